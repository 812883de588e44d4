"""What errors of OpenAI's APIs mean, and of the servers that imitate them."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

from smartbatch.errors import ErrorKind
from smartbatch.providers.error_reader import ErrorReader, Refusal, error_in
from smartbatch.providers.error_table import kind_of_status
from smartbatch.providers.foreign_text import PLAIN_WORD, fields, short
from smartbatch.providers.http.replies import Reply
from smartbatch.providers.limit_headers import parse_duration, parse_retry_after, read_limits
from smartbatch.providers.openai.parameters import refused_parameters
from smartbatch.types import LimitReport

_TRY_AGAIN = re.compile(r"try again in ([0-9.hmsuµn]{1,24}?)\.?(?:\s|$)", re.I)


def _understand(reply: Reply, data: Any) -> Refusal:
    error = error_in(data)
    message, type_, code = error.get("message", ""), error.get("type"), error.get("code")
    kind = kind_of_status(reply.status, code, type_, message)
    wait = _wait(error, message, reply) if kind is ErrorKind.RATE_LIMIT else None
    word = short(str(code) if isinstance(code, int) else code, PLAIN_WORD) or short(type_, PLAIN_WORD)
    parameters = refused_parameters(reply.status, message, error.get("param"), code)
    return Refusal(kind, message, word, wait=wait, parameters=parameters)


def _wait(error: Mapping[str, Any], message: str, reply: Reply) -> float | None:
    """Return the seconds that a body asks to wait: in words, or in headers that stand in there, as those of
    OpenRouter do.
    """
    if found := _TRY_AGAIN.search(message):
        return parse_duration(found[1])
    inside = {
        name.lower(): value
        for name, value in fields(fields(error.get("metadata")).get("headers")).items()
        if isinstance(value, str)
    }
    reset = inside.get("retry-after", inside.get("x-ratelimit-reset", ""))
    return parse_retry_after({"retry-after": reset, "date": reply.headers.get("date", "")}, time.time())


def _limits(headers: Mapping[str, str]) -> LimitReport | None:
    for name in headers:
        if name.startswith("x-ratelimit-"):
            return read_limits(headers, time.time())
    return None


ERRORS = ErrorReader(_understand, _limits, "x-request-id")
