"""What errors of OpenAI's APIs mean, and of the servers that imitate them."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

from smartbatch.errors import ErrorKind
from smartbatch.providers.error_reader import ErrorReader, Refusal, error_in
from smartbatch.providers.error_table import kind_of_status
from smartbatch.providers.foreign_text import PLAIN_WORD, short
from smartbatch.providers.http.replies import Reply
from smartbatch.providers.limit_headers import parse_duration, read_limits
from smartbatch.types import LimitReport

_TRY_AGAIN = re.compile(r"try again in ([0-9.hmsuµn]{1,24}?)\.?(?:\s|$)", re.I)


def _understand(reply: Reply, data: Any) -> Refusal:
    # Older vLLM sends the error flat, some servers a bare text.
    error = error_in(data) or error_in({"error": data[0] if isinstance(data, list) and data else data})
    message, type_, code = error.get("message", ""), error.get("type"), error.get("code")
    kind = kind_of_status(reply.status, code, type_, message)
    wait = None
    if kind is ErrorKind.RATE_LIMIT and (found := _TRY_AGAIN.search(message)):
        wait = parse_duration(found[1])
    word = short(str(code) if isinstance(code, int) else code, PLAIN_WORD) or short(type_, PLAIN_WORD)
    return Refusal(kind, message, word, wait=wait)


def _limits(headers: Mapping[str, str]) -> LimitReport | None:
    for name in headers:
        if name.startswith("x-ratelimit-"):
            return read_limits(headers, time.time())
    return None


ERRORS = ErrorReader(_understand, _limits, "x-request-id")
