"""What an error of Anthropic's means: its type and code first, then what its text says, then the status.

Source: Anthropic's error reference; ``_exceptions.py`` and ``_error_classes.py`` of the ``anthropic`` SDK.
"""

from __future__ import annotations

import re
import time
from typing import Any

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.error_table import kind_of_status
from smartbatch.providers.foreign_text import PLAIN_ID, PLAIN_WORD, short, told
from smartbatch.providers.http.replies import Reply, invalid_response, redirected
from smartbatch.providers.limit_headers import parse_retry_after, read_anthropic_limits
from smartbatch.types import LimitReport, Request, Usage

__all__ = ["kind_of", "limits_of", "read_error", "request_id_of", "unusable"]

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
    """Return the meaning of an error.

    Args:
        status: the HTTP status; 200 for an error inside a stream.
        type_: ``error.type``.
        code: ``error.details.error_code``.
        message: ``error.message``, unscrubbed; it is only looked at.
    """
    named = _TYPES.get(type_) if isinstance(type_, str) else None
    if isinstance(code, str) and _SPENT_CODE.search(code):
        return ErrorKind.NO_MONEY
    if status in (200, 400, 403, 429) and code != "ramp_limit_exceeded" and _SPENT_TEXT.search(message):
        return ErrorKind.NO_MONEY  # a limit the user set on a workspace answers 400
    if status in (200, 400, 413) and _TOO_LONG.search(message):
        return ErrorKind.CONTEXT_TOO_LONG
    if status < 300:
        return named or ErrorKind.SERVER_ERROR
    if named in (ErrorKind.NO_MONEY, ErrorKind.AUTH_ERROR):
        return named
    return kind_of_status(status, None, None, message)


def read_error(
    reply: Reply,
    request: Request,
    *secrets: str,
    data: Any = None,
    usage: Usage | None = None,
    where: str = "during the stream",
) -> ProviderError:
    """Return the meaning of an error answer, without the key and without pieces of the prompt.

    Args:
        reply: the answer; of an error inside a stream, its head.
        request: whose texts must not come back in the error.
        secrets: further texts that must not.
        data: the decoded body, or the data of a stream's ``error`` event.
        usage: what a stream had been billed for until then.
        where: what failed, for an error inside a success.
    """
    if 300 <= reply.status < 400:
        return redirected(reply.status, request_id=request_id_of(reply), limits=limits_of(reply))
    if data is None:
        data = reply.json()
    message, type_, code = _fields(data)
    kind = kind_of(reply.status, type_, code, message)
    word = short(code, PLAIN_WORD) or short(type_, PLAIN_WORD)
    text = told(message, [request], *secrets)
    identity = request_id_of(reply)
    if identity is None and isinstance(data, dict):
        identity = short(data.get("request_id"), PLAIN_ID)
    said = f"failed {where}" if reply.status < 300 else f"answered {reply.status}"
    return ProviderError(
        f"the provider {said}{f' {word}' if word else ''}{f': {text}' if text else ''}",
        kind=kind,
        status=reply.status,
        code=word,
        retry_after=parse_retry_after(reply.headers, time.time()),
        provider_request_id=identity,
        limits=limits_of(reply),
        # In a stream, or after a gateway gave up waiting, work may have been done.
        maybe_billed=reply.status < 300 or reply.status == 504,
        usage=usage,
    )


def unusable(reply: Reply, code: str, text: str, usage: Usage | None = None) -> ProviderError:
    """Return the error for an answer that has not the shape the API promises."""
    return invalid_response(
        reply.status, code, text, usage, request_id=request_id_of(reply), limits=limits_of(reply)
    )


def request_id_of(reply: Reply) -> str | None:
    """Return the provider's id of the call."""
    return short(reply.headers.get("request-id"), PLAIN_ID)


def limits_of(reply: Reply) -> LimitReport | None:
    """Return what the answer's headers say about limits."""
    return read_anthropic_limits(reply.headers, time.time())


def _fields(data: Any) -> tuple[str, Any, Any]:
    """Message, type and code of an error body; gateways may send the error as a bare text."""
    error = data.get("error") if isinstance(data, dict) else None
    if isinstance(error, str):
        return error, None, None
    if not isinstance(error, dict):
        return "", None, None
    message, details = error.get("message"), error.get("details")
    code = details.get("error_code") if isinstance(details, dict) else None
    return message if isinstance(message, str) else "", error.get("type"), code
