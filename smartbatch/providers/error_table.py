"""The meaning of error answers: one table for OpenAI and compatible servers.

Source: OpenAI's error guide and OpenAPI document, and the texts of the compatible servers (vLLM, llama.cpp,
Ollama, Azure, Groq) as of 2026. Compatible servers send codes as numbers, strings or null.
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
    "budget_exceeded": ErrorKind.NO_MONEY,  # LiteLLM: a key's, team's or user's budget
    "exceeded_current_quota_error": ErrorKind.NO_MONEY,  # Moonshot
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
    408: ErrorKind.SERVER_ERROR,  # the server's own time-out; retried
    409: ErrorKind.SERVER_ERROR,  # a lock; retried
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
    """Return the meaning of an error's code, type or text alone; ``None`` if they show none."""
    named = _CODES.get(code) if isinstance(code, str) else None
    if named is None and isinstance(type_, str) and type_ != "invalid_request_error":
        named = _CODES.get(type_)
    if named in (None, ErrorKind.CLIENT_ERROR, ErrorKind.RATE_LIMIT):
        # Types are coarse and texts are more specific. Money and length first: they are never retried.
        if _NO_MONEY.search(message):
            return ErrorKind.NO_MONEY
        if _TOO_LONG.search(message):
            return ErrorKind.CONTEXT_TOO_LONG
    return named


def kind_of_status(
    status: int, code: object = None, type_: object = None, message: str | None = None
) -> ErrorKind:
    """Return the meaning of an error answer; a 200 may contain an error as well.

    Args:
        status: the HTTP status.
        code: ``error.code``.
        type_: ``error.type``.
        message: ``error.message``, unscrubbed; it is only searched.
    """
    message = message or ""
    named = kind_of_code(code, type_, message)
    # 1. A success: the kind of its code, or of the HTTP status that the code is.
    if status < 300:
        number = _http_number(code)
        if named is not None or number is None:
            return named or ErrorKind.INVALID_RESPONSE
        status = number
    # 2. A redirect, which is not followed.
    if status < 400:
        return ErrorKind.INVALID_RESPONSE
    # 3. No credit, a context that is too long and a rejected key, whatever the status.
    if named in (ErrorKind.NO_MONEY, ErrorKind.CONTEXT_TOO_LONG, ErrorKind.AUTH_ERROR):
        return named
    # 4. Statuses with another meaning: a request above the limit per minute, for which waiting does not help;
    # a rate limit; a rejected key; a prompt that a filter rejected.
    if status == 429 and _NEVER_FITS.search(message):
        return ErrorKind.CLIENT_ERROR
    if status == 503 and (named is ErrorKind.RATE_LIMIT or _SLOW_DOWN.search(message)):
        return ErrorKind.RATE_LIMIT
    if status == 400 and _BAD_KEY.search(message):
        return ErrorKind.AUTH_ERROR
    if status == 403 and (code in _FILTERS or type_ in _FILTERS or _FLAGGED.search(message)):
        return ErrorKind.CLIENT_ERROR
    # 5. The status.
    if status in _STATUSES:
        return _STATUSES[status]
    return ErrorKind.SERVER_ERROR if status >= 500 else ErrorKind.CLIENT_ERROR


def _http_number(code: object) -> int | None:
    text = str(code) if isinstance(code, (int, str)) and not isinstance(code, bool) else ""
    return int(text) if len(text) == 3 and text.isdecimal() and 400 <= int(text) <= 599 else None
