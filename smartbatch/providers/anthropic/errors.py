"""Classifies Anthropic's errors by type and code, then by text, then by status.

Sources: Anthropic's error reference; ``_exceptions.py`` and ``_error_classes.py`` in the
``anthropic`` SDK.
"""

from __future__ import annotations

import re
import time
from typing import Any

from smartbatch.errors import ErrorKind
from smartbatch.providers.error_reader import ErrorReader, Refusal, error_in
from smartbatch.providers.error_table import kind_of_status
from smartbatch.providers.foreign_text import PLAIN_ID, PLAIN_WORD, fields, short
from smartbatch.providers.http.replies import Reply
from smartbatch.providers.limit_headers import read_anthropic_limits

_TYPES = {
    "authentication_error": ErrorKind.AUTH_ERROR,
    "permission_error": ErrorKind.AUTH_ERROR,
    "billing_error": ErrorKind.NO_MONEY,
    "rate_limit_error": ErrorKind.RATE_LIMIT,
    "overloaded_error": ErrorKind.SERVER_ERROR,
    "api_error": ErrorKind.SERVER_ERROR,
    "timeout_error": ErrorKind.SERVER_ERROR,
    "conflict_error": ErrorKind.SERVER_ERROR,
    "request_too_large": ErrorKind.CLIENT_ERROR,
    "not_found_error": ErrorKind.CLIENT_ERROR,
    "invalid_request_error": ErrorKind.CLIENT_ERROR,
}

_SPENT_CODE = re.compile(r"spend_limit|billing_unavailable|credit_balance|user_profile_not_billable")
_SPENT_TEXT = re.compile(
    r"credit balance is too low|(?:specified|API) usage limits?|spend(?:ing)? limit", re.I
)
_TOO_LONG = re.compile(
    r"prompt is too long|exceeds? (?:the )?(?:context|model'?s) (?:limit|window|maximum)|"
    r"input length and `?max_tokens`? exceed",
    re.I,
)


def kind_of(status: int, type_: object, code: object, message: str) -> ErrorKind:
    """``status`` is 200 for an error inside a stream, and ``code`` is the error's ``details.error_code``."""
    named = _TYPES.get(type_) if isinstance(type_, str) else None
    if isinstance(code, str) and _SPENT_CODE.search(code):
        return ErrorKind.NO_MONEY
    if status in (200, 400, 403, 429) and code != "ramp_limit_exceeded" and _SPENT_TEXT.search(message):
        return ErrorKind.NO_MONEY  # a workspace that reached its spend limit returns 400
    if status in (200, 400, 413) and _TOO_LONG.search(message):
        return ErrorKind.CONTEXT_TOO_LONG
    if status < 300:
        return named or ErrorKind.SERVER_ERROR
    if named in (ErrorKind.NO_MONEY, ErrorKind.AUTH_ERROR):
        return named
    return kind_of_status(status, None, None, message)


def understand(reply: Reply, data: Any) -> Refusal:
    error = error_in(data)
    message, type_ = error.get("message", ""), error.get("type")
    code = fields(error.get("details")).get("error_code")
    return Refusal(
        kind_of(reply.status, type_, code, message),
        message,
        short(code, PLAIN_WORD) or short(type_, PLAIN_WORD),
        request_id=short(fields(data).get("request_id"), PLAIN_ID),
    )


ERRORS = ErrorReader(understand, lambda headers: read_anthropic_limits(headers, time.time()), "request-id")
