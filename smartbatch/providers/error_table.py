"""The meaning of error answers: one table for OpenAI and the servers compatible with it.

Source: OpenAI's error guide and OpenAPI document, and the texts of the compatible servers (vLLM, llama.cpp,
Ollama, Azure, Groq) as of 2026. Compatible servers send codes as numbers, texts or null.
"""

from __future__ import annotations

import re

from smartbatch.errors import ErrorKind

_CODES = {
    "insufficient_quota": ErrorKind.NO_MONEY,
    "credit_balance_exhausted": ErrorKind.NO_MONEY,
    "organization_spend_limit_exceeded": ErrorKind.NO_MONEY,
    "project_spend_limit_exceeded": ErrorKind.NO_MONEY,
    "organization_usage_limit_exceeded": ErrorKind.NO_MONEY,
    "billing_hard_limit_reached": ErrorKind.NO_MONEY,
    "billing_not_active": ErrorKind.NO_MONEY,
    "budget_exceeded": ErrorKind.NO_MONEY,  # LiteLLM: of a key, a team or a user
    "exceeded_current_quota_error": ErrorKind.NO_MONEY,  # Moonshot: the account's balance
    "context_length_exceeded": ErrorKind.CONTEXT_TOO_LONG,
    "exceed_context_size_error": ErrorKind.CONTEXT_TOO_LONG,
    "string_above_max_length": ErrorKind.CONTEXT_TOO_LONG,
    "invalid_api_key": ErrorKind.AUTH_ERROR,
    "account_deactivated": ErrorKind.AUTH_ERROR,
    "unsupported_country_region_territory": ErrorKind.AUTH_ERROR,
    "rate_limit_exceeded": ErrorKind.RATE_LIMIT,
    "server_error": ErrorKind.SERVER_ERROR,
    "server_is_overloaded": ErrorKind.SERVER_ERROR,
    "slow_down": ErrorKind.RATE_LIMIT,
    "model_not_found": ErrorKind.CLIENT_ERROR,
    "invalid_prompt": ErrorKind.CLIENT_ERROR,
    "content_filter": ErrorKind.CLIENT_ERROR,
    "content_policy_violation": ErrorKind.CLIENT_ERROR,
    "invalid_request_error": ErrorKind.CLIENT_ERROR,
}

_FILTERS = ("content_filter", "content_policy_violation")

_STATUSES = {
    401: ErrorKind.AUTH_ERROR,
    402: ErrorKind.NO_MONEY,
    403: ErrorKind.AUTH_ERROR,
    407: ErrorKind.AUTH_ERROR,
    408: ErrorKind.SERVER_ERROR,  # the server's own time-out: the request may go again
    409: ErrorKind.SERVER_ERROR,  # a lock; again
    424: ErrorKind.SERVER_ERROR,  # TGI: the generation failed
    425: ErrorKind.SERVER_ERROR,
    429: ErrorKind.RATE_LIMIT,
    498: ErrorKind.SERVER_ERROR,  # Groq: flex capacity exceeded
    499: ErrorKind.SERVER_ERROR,  # Groq: cancelled by the server's side
    501: ErrorKind.CLIENT_ERROR,
    505: ErrorKind.CLIENT_ERROR,
}

_TOO_LONG = re.compile(
    r"maximum context length|context[ _](?:length|size|window)[^.]{0,40}exceed|exceed[^.]{0,40}context|"
    r"longer than the (?:maximum model|model's context) length|"  # vLLM, SGLang
    r"maximum prompt length is|"  # xAI
    r"inputs` (?:tokens \+ `max_new_tokens` must be <=|must have less than)",  # TGI and TEI
    re.I,
)
_NEVER_FITS = re.compile(r"request too large", re.I)
_SLOW_DOWN = re.compile(r"slow down|maximum pending requests", re.I)
_NO_MONEY = re.compile(r"insufficient (?:credits?|balance|funds)", re.I)
_FLAGGED = re.compile(r"requires moderation|input was flagged", re.I)
_BAD_KEY = re.compile(r"api key not valid|(?:incorrect|invalid) api key", re.I)


def kind_of_code(code: object, type_: object, message: str) -> ErrorKind | None:
    """Return what a provider's error code, type or text says by itself; ``None`` when it says nothing."""
    named = _CODES.get(code) if isinstance(code, str) else None
    if named is None and isinstance(type_, str) and type_ != "invalid_request_error":
        named = _CODES.get(type_)
    if named in (None, ErrorKind.CLIENT_ERROR, ErrorKind.RATE_LIMIT):
        # Types are coarse and the older texts say more: money and length first, they are never retried.
        if _NO_MONEY.search(message):
            return ErrorKind.NO_MONEY
        if _TOO_LONG.search(message):
            return ErrorKind.CONTEXT_TOO_LONG
    return named


def kind_of_status(
    status: int, code: object = None, type_: object = None, message: str | None = None
) -> ErrorKind:
    """Return the meaning of an error answer: its status, and ``error.code``, ``error.type``,
    ``error.message``.

    A 200 may carry an error object too. The message is unscrubbed; it is only looked at. The cases, in order:

    1. A success: what its code names; else the HTTP status that its code is; else no usable answer.
    2. A redirect: no usable answer.
    3. No credit, a context too long and a refused key are what they are, whatever the status.
    4. Statuses that some servers use for something else: a 429 for a request that never fits, a 503 for a
       rate limit, a 400 for a refused key, a 403 for a prompt that a filter refused.
    5. What the status says.
    """
    message = message or ""
    named = kind_of_code(code, type_, message)
    if status < 300:
        number = _http_number(code)
        if named is not None or number is None:
            return named or ErrorKind.INVALID_RESPONSE
        status = number
    if status < 400:
        return ErrorKind.INVALID_RESPONSE  # a redirect, which is not followed
    if named in (ErrorKind.NO_MONEY, ErrorKind.CONTEXT_TOO_LONG, ErrorKind.AUTH_ERROR):
        return named
    if status == 429 and _NEVER_FITS.search(message):
        return ErrorKind.CLIENT_ERROR  # larger than the whole minute's tokens: waiting does not help
    if status == 503 and (named is ErrorKind.RATE_LIMIT or _SLOW_DOWN.search(message)):
        return ErrorKind.RATE_LIMIT
    if status == 400 and _BAD_KEY.search(message):
        return ErrorKind.AUTH_ERROR
    if status == 403 and (code in _FILTERS or type_ in _FILTERS or _FLAGGED.search(message)):
        return ErrorKind.CLIENT_ERROR
    if status in _STATUSES:
        return _STATUSES[status]
    return ErrorKind.SERVER_ERROR if status >= 500 else ErrorKind.CLIENT_ERROR


def _http_number(code: object) -> int | None:
    text = str(code) if isinstance(code, (int, str)) and not isinstance(code, bool) else ""
    return int(text) if len(text) == 3 and text.isdecimal() and 400 <= int(text) <= 599 else None
