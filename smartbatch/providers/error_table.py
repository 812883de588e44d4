"""Classifies error answers of OpenAI and compatible servers in one table.

Sources: OpenAI's error guide and OpenAPI document, and the error texts of vLLM, llama.cpp,
Ollama, Azure and Groq as of 2026. Compatible servers send codes as numbers, strings or null.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.error_reader import error_in
from smartbatch.providers.foreign_text import PLAIN_WORD, fields, plain, safe_text, short, whole

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
    "Arrearage": ErrorKind.NO_MONEY,  # DashScope: an overdue payment
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
    408: ErrorKind.SERVER_ERROR,  # the server's own timeout; retried
    409: ErrorKind.SERVER_ERROR,  # a lock conflict; retried
    424: ErrorKind.SERVER_ERROR,  # TGI: the generation failed
    425: ErrorKind.SERVER_ERROR,
    429: ErrorKind.RATE_LIMIT,
    498: ErrorKind.SERVER_ERROR,  # Groq: flex capacity exceeded
    499: ErrorKind.SERVER_ERROR,  # Groq: cancelled by the server
    501: ErrorKind.CLIENT_ERROR,
    505: ErrorKind.CLIENT_ERROR,
}

RPC_CODES = {
    1: (499, "CANCELLED"),
    2: (500, "UNKNOWN"),
    3: (400, "INVALID_ARGUMENT"),
    4: (504, "DEADLINE_EXCEEDED"),
    5: (404, "NOT_FOUND"),
    6: (409, "ALREADY_EXISTS"),
    7: (403, "PERMISSION_DENIED"),
    8: (429, "RESOURCE_EXHAUSTED"),
    9: (400, "FAILED_PRECONDITION"),
    10: (409, "ABORTED"),
    11: (400, "OUT_OF_RANGE"),
    12: (501, "UNIMPLEMENTED"),
    13: (500, "INTERNAL"),
    14: (503, "UNAVAILABLE"),
    15: (500, "DATA_LOSS"),
    16: (401, "UNAUTHENTICATED"),
}
"""HTTP statuses of ``google.rpc.Code``, from ``code.proto``."""

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
_FLAGGED = re.compile(r"requires moderation|input was flagged|^request blocked", re.I)
_BAD_KEY = re.compile(r"api key not valid|(?:incorrect|invalid) api key", re.I)


# OpenRouter's reasons and limits in the metadata of a 402 or 403
_SPENDING_LIMITS = {
    "weight_exceeds_budget": ErrorKind.CLIENT_ERROR,  # this request alone is too expensive
    "openrouter_in_flight_budget": ErrorKind.RATE_LIMIT,  # until requests in flight have been billed
    "openrouter_guardrail_budget": ErrorKind.NO_MONEY,
    "openrouter_workspace_budget": ErrorKind.NO_MONEY,
    "openrouter_key_limit": ErrorKind.NO_MONEY,
}
# texts about an unknown model by servers that answer 400 without a code for it: DeepSeek, Mistral, OpenRouter
_UNKNOWN_MODEL = re.compile(
    r"^model not exist|^invalid model: |\bis not a valid model\b|"
    r"\bmodel \S{1,200} (?:not found|does not exist)",
    re.I,
)


def kind_of_spending_limit(metadata: object) -> ErrorKind | None:
    """Classify an error by OpenRouter's metadata; ``None`` if it names no spending limit."""
    found = fields(metadata)
    named = (found.get("reason"), found.get("limit_source"))
    kinds = (_SPENDING_LIMITS.get(each) for each in named if isinstance(each, str))
    return next(filter(None, kinds), None)


def is_unknown_model(status: int, message: str) -> bool:
    return status == 400 and _UNKNOWN_MODEL.search(message) is not None


def kind_of_code(code: object, type_: object, message: str) -> ErrorKind | None:
    """Classify an error by its code, type or text alone; ``None`` if they are inconclusive."""
    named = _CODES.get(code) if isinstance(code, str) else None
    if named is None and isinstance(type_, str) and type_ != "invalid_request_error":
        named = _CODES.get(type_)
    if named in (None, ErrorKind.CLIENT_ERROR, ErrorKind.RATE_LIMIT):
        # Texts are more specific than types. Billing and length come first, because they are never retried.
        if _NO_MONEY.search(message):
            return ErrorKind.NO_MONEY
        if _TOO_LONG.search(message):
            return ErrorKind.CONTEXT_TOO_LONG
    return named


def kind_of_status(
    status: int, code: object = None, type_: object = None, message: str | None = None
) -> ErrorKind:
    """Classify an error answer; its status may be 200. ``message`` is unscrubbed and only searched."""
    message = message or ""
    named = kind_of_code(code, type_, message)
    # 1. A success: classified by its code, which may be an HTTP status.
    if status < 300:
        number = _http_number(code)
        if named is not None or number is None:
            return named or ErrorKind.INVALID_RESPONSE
        status = number
    # 2. A redirect: never followed.
    if status < 400:
        return ErrorKind.INVALID_RESPONSE
    # 3. Whatever the status: no credit, a context that is too long, or a rejected key.
    if named in (ErrorKind.NO_MONEY, ErrorKind.CONTEXT_TOO_LONG, ErrorKind.AUTH_ERROR):
        return named
    # 4. Statuses with another meaning: a request above the limit per minute, for which waiting does not help;
    # a rate limit; a rejected key; a prompt rejected by a filter.
    if status == 429 and _NEVER_FITS.search(message):
        return ErrorKind.CLIENT_ERROR
    if status == 503 and (named is ErrorKind.RATE_LIMIT or _SLOW_DOWN.search(message)):
        return ErrorKind.RATE_LIMIT
    if status == 400 and _BAD_KEY.search(message):
        return ErrorKind.AUTH_ERROR
    if status == 403 and (code in _FILTERS or type_ in _FILTERS or _FLAGGED.search(message)):
        return ErrorKind.CLIENT_ERROR
    # 5. In all other cases, the status decides.
    if status in _STATUSES:
        return _STATUSES[status]
    return ErrorKind.SERVER_ERROR if status >= 500 else ErrorKind.CLIENT_ERROR


def _http_number(code: object) -> int | None:
    text = str(code) if isinstance(code, (int, str)) and not isinstance(code, bool) else ""
    return int(text) if len(text) == 3 and text.isdecimal() and 400 <= int(text) <= 599 else None


Measure: TypeAlias = Literal["requests", "bytes", "tokens"]  # limited per batch

_MAX_TEXT, _MAX_PARTS = 64 * 1024, 20  # characters of a problem's text, steps of its path
# statuses of refusals that may concern lines or limits; a batch that fails validation has no status
_REFUSED = (None, 400, 413, 422)
_NOT_OF_A_LINE = frozenset(
    {ErrorKind.RATE_LIMIT, ErrorKind.NO_MONEY, ErrorKind.AUTH_ERROR, ErrorKind.SERVER_ERROR}
)
_ALL_LINES = frozenset({"model_not_found", "invalid_model", "model_mismatch", "url_mismatch", "invalid_url"})
_OF_THE_BATCH = re.compile(r"(?:body\.)?(?:model|url|method|endpoint)")
_PATH = re.compile(r"\brequests(?:\[|\.|/)(\d{1,7})\b")
_LINES = re.compile(
    r"\b(?:lines?|rows?)\s*(?:(?:numbers?|nos?\.?|#|:|=)\s*)*(\d{1,7}(?:\s*(?:,|and|&|\bto\b)\s*#?\d{1,7})*)\b"
    r"(?!\s*[,:]?\s*(?:col|char|pos))",
    re.I,
)
_WIRE_ID = re.compile(r"\b[0-9A-Za-z]{22}-[0-9A-Za-z]{1,6}\b")
_OVER = re.compile(
    r"too[ _](?:many|large|big|long)|exceed|larger|more (?:\w+ )?than|greater than|at most|maximum|\bmax\b|"
    r"limit",
    re.I,
)
_MEASURES: tuple[tuple[Measure, re.Pattern[str]], ...] = (
    ("tokens", re.compile(r"\btokens\b", re.I)),
    ("bytes", re.compile(r"bytes?\b|\b\d*\s?[kmg]i?b\b|size\b|large|too[ _]big|payload|body", re.I)),
    ("requests", re.compile(r"\b(?:requests|tasks|lines|rows|items|records|entries|prompts|inputs)\b", re.I)),
)
_OTHER_LIMIT = re.compile(
    r"output[ _]tokens|max_(?:completion_)?tokens|context|rate limit|quota|enqueued|per (?:minute|day)", re.I
)
# quoted parts may repeat a prompt, so their words are ignored
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`")
_LIMIT_CODES: Mapping[str, Measure] = {
    "too_many_tasks": "requests",
    "too_many_requests_in_batch": "requests",
    "file_too_large": "bytes",
    "request_too_large": "bytes",
    "invalid_file_size": "bytes",
}


class BatchRefused(ProviderError):
    """A batch was refused because of invalid lines or an exceeded limit."""

    # reasons by position in the input (from 0) or by request id; not checked against the batch
    lines: Mapping[int | str, ProviderError] = {}
    exceeds: Measure | None = None  # the limit exceeded by the batch


def explained(error: ProviderError, refusal: Any, secrets: Sequence[str | None] = ()) -> ProviderError:
    """Convert ``error`` to a :class:`BatchRefused` if it names lines or a limit.

    ``refusal`` is the decoded body of the refusal, or the errors of the batch. If it is neither an
    object nor a list, the text of ``error`` is parsed instead.
    """
    if error.status not in _REFUSED or error.kind in _NOT_OF_A_LINE:
        return error
    problems = list(_problems(refusal if isinstance(refusal, (dict, list)) else [error.message]))
    lines: dict[int | str, ProviderError] = {}
    for problem in problems:
        reason = _reason(problem, error, secrets)
        for place in _places(problem):
            lines.setdefault(place, reason)
        if reason.kind in _NOT_OF_A_LINE:  # the problem is the account, not the line that was read first
            return error
    exceeds = None if lines else _exceeded(error, problems)
    if not lines and exceeds is None:
        return error
    details = {name: value for name, value in vars(error).items() if name != "message"}
    return BatchRefused(error.message, **{**details, "lines": lines, "exceeds": exceeds})


def _problems(refusal: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the problems that a refusal lists, or the refusal itself."""
    if isinstance(refusal, list):
        found = refusal
    else:
        body = fields(refusal)
        error = error_in(body) or body
        found = _listed(error) or _listed(body)
        if not found:
            yield _problem(error)
    for each in found:
        yield _problem(each)


def _listed(error: Mapping[str, Any]) -> list[Any]:
    """Read the problem list of OpenAI, FastAPI or Google."""
    errors = error.get("errors")
    listed = fields(errors).get("data") if isinstance(errors, dict) else errors
    if not isinstance(listed, list):
        listed = error.get("data") or error.get("detail")
    found = list(listed) if isinstance(listed, list) else []
    details = error.get("details")
    for detail in details if isinstance(details, list) else []:
        violations = fields(detail).get("fieldViolations")
        found += violations if isinstance(violations, list) else []
    return found


def _problem(found: Any) -> Mapping[str, Any]:
    problem = {"message": found} if isinstance(found, str) else fields(found)
    message = problem.get("message") or problem.get("msg") or problem.get("description")
    path = problem.get("param") or problem.get("field") or problem.get("loc")
    if isinstance(path, list):
        path = ".".join(map(plain, path[:_MAX_PARTS]))
    return {
        **problem,
        "message": message[:_MAX_TEXT] if isinstance(message, str) else "",
        "param": path[:_MAX_TEXT] if isinstance(path, str) else "",
    }


def _reason(problem: Mapping[str, Any], error: ProviderError, secrets: Sequence[str | None]) -> ProviderError:
    code, text = short(problem.get("code"), PLAIN_WORD), safe_text(problem["message"], (), *secrets)
    kind = kind_of_code(code, None, problem["message"]) or ErrorKind.CLIENT_ERROR
    said = f" ({code})" if code else ""
    return ProviderError(
        f"the provider rejected this request when it checked the batch{said}{f': {text}' if text else ''}",
        kind=kind,
        status=error.status,
        code=code,
    )


def _places(problem: Mapping[str, Any]) -> Iterator[int | str]:
    """Yield the line positions and request ids that a problem concerns."""
    # 1. A property of all lines, such as the model, is wrong: yield nothing.
    if short(problem.get("code"), PLAIN_WORD) in _ALL_LINES or _OF_THE_BATCH.fullmatch(problem["param"]):
        return
    # 2. The problem has a line number or a request id.
    if (line := whole(problem.get("line", problem.get("line_number")))) is not None:
        yield line - 1
        return
    named = problem.get("custom_id") or problem.get("key")
    if isinstance(named, str) and _WIRE_ID.fullmatch(named):
        yield named
        return
    # 3. The problem's path, or else its text, contains one of them.
    for text in (problem["param"], _QUOTED.sub("", problem["message"])):
        numbers = [int(number) - 1 for found in _LINES.findall(text) for number in re.findall(r"\d+", found)]
        places = [*_WIRE_ID.findall(text), *(int(found) for found in _PATH.findall(text)), *numbers]
        if places:
            yield from places
            return


def _exceeded(error: ProviderError, problems: Sequence[Mapping[str, Any]]) -> Measure | None:
    for problem in problems:
        if (named := _LIMIT_CODES.get(str(problem.get("code") or problem.get("type")))) is not None:
            return named
        text = _QUOTED.sub("", problem["message"])
        if error.kind is ErrorKind.CONTEXT_TOO_LONG or _OTHER_LIMIT.search(text) or not _OVER.search(text):
            continue
        for measure, words in _MEASURES:
            if words.search(text):
                return measure
    return "bytes" if error.status == 413 else None
