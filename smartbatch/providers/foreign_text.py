"""Validates strings, numbers and times from a provider, and keeps keys and prompts out of errors."""

from __future__ import annotations

import codecs
import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any

from smartbatch.chats import texts_in
from smartbatch.errors import ErrorKind, ProviderError, scrub
from smartbatch.types import Request, Usage

PLAIN_WORD = re.compile(r"[\w.:/-]{1,64}", re.ASCII)  # an error code or a finish reason
PLAIN_ID = re.compile(r"[\w.:=+/-]{1,128}", re.ASCII)  # call id or model name

_MAX_TOKENS = 10**9
_DIGITS = re.compile(r"[0-9]{1,12}")
_MAX_DATE = 64  # characters
_ECHO_CHARACTERS = 20  # characters; a shared run of this length counts as part of the prompt


def unusable(
    text: str,
    code: str = "shape",
    *,
    kind: ErrorKind = ErrorKind.INVALID_RESPONSE,
    status: int | None = None,
    usage: Usage | None = None,
) -> ProviderError:
    """Create the error for an answer that breaks the API's contract and may be billed."""
    return ProviderError(text, kind=kind, status=status, code=code, maybe_billed=True, usage=usage)


def safe_text(message: str, requests: Sequence[Request], *secrets: str | None) -> str:
    """Prepare a provider's text for display: remove keys, shorten it, and leave it out if it repeats a
    prompt.
    """
    if not message:
        return ""
    text = scrub(message[:2000], *secrets, limit=200)
    return "(its text is omitted because it repeats the prompt)" if echoes(text, texts(requests)) else text


def repeats(text: str, requests: Sequence[Request]) -> bool:
    """True if a provider's text contains a long piece of a prompt."""
    return echoes(text, (prompt for prompt in texts(requests) if len(prompt) >= _ECHO_CHARACTERS))


def without_echo(error: ProviderError, request: Request) -> ProviderError:
    """Remove prompt text from the scrubbed error of a batch line."""
    if not echoes(error.message, texts((request,))):
        return error
    shown = copy.copy(error)
    before = error.message.partition(": ")[0]
    shown.message = f"{before}: (its text is omitted because it repeats the prompt)"
    if echoes(before, texts((request,))):
        shown.message = "the request failed (the error's text is omitted because it repeats the prompt)"
    shown.args = (shown.message,)
    return shown


def texts(requests: Sequence[Request]) -> Iterator[str]:
    for request in requests:
        if request.params.system:
            yield request.params.system
        if isinstance(request.prompt, str):
            yield request.prompt
            continue
        for message in request.prompt:
            yield from texts_in(message.content)
            for call in message.tool_calls:
                yield from (value for value in (call.arguments or {}).values() if isinstance(value, str))


def echoes(text: str, prompts: Iterator[str]) -> bool:
    """True if ``text`` repeats 20 characters of a prompt, or all of a shorter one. Runs of blanks count as
    one.
    """
    text = " ".join(text.split())
    for prompt in prompts:
        prompt = " ".join(prompt.split())
        if len(prompt) < _ECHO_CHARACTERS:
            if len(prompt) >= 4 and prompt in text:
                return True
            continue
        # Any common run of 20 contains a block of 10 at a multiple of 10, so these are searched for first.
        for start in range(0, len(text) - 9, 10):
            if text[start : start + 10] in prompt and any(
                text[at : at + _ECHO_CHARACTERS] in prompt
                for at in range(max(0, start - 10), min(start + 1, len(text) - _ECHO_CHARACTERS + 1))
            ):
                return True
    return False


def well_formed(text: str) -> str:
    """Return a string without lone surrogates, which JSON can contain and UTF-8 cannot."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


class WellFormedText:
    """A string that arrives in pieces, without lone surrogates. A pair may be split between two pieces."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-16-le")("replace")
        self._parts: list[str] = []

    def take(self, piece: str, *, last: bool = False) -> str:
        """Return the usable part of ``piece``; half of a pair is held back until the other half arrives."""
        piece = self._decoder.decode(piece.encode("utf-16-le", "surrogatepass"), last)
        self._parts.append(piece)
        return piece

    @property
    def whole(self) -> str:
        return "".join(self._parts)


def count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= _MAX_TOKENS else None


def detail(found: Any, name: str) -> int:
    return count(fields(found).get(name)) or 0


def whole(value: Any) -> int | None:
    """JSON may represent 64-bit numbers as strings."""
    return count(int(value)) if isinstance(value, str) and _DIGITS.fullmatch(value) else count(value)


def fields(value: Any) -> Mapping[str, Any]:
    # the exact type is checked first, because that is faster
    return value if type(value) is dict or isinstance(value, Mapping) else {}


def short(value: Any, form: re.Pattern[str]) -> str | None:
    return value if isinstance(value, str) and form.fullmatch(value) else None


def plain(value: Any) -> str:
    """Convert a string or number; empty for anything else, which may be deeply nested."""
    return str(value) if isinstance(value, (str, int, float)) else ""


def finish_word(reason: Any, known: Mapping[str, str]) -> str:
    """Translate a provider's finish reason; unknown names are returned unchanged."""
    if reason is None:
        return "stop"
    word = short(reason, PLAIN_WORD) or "unknown"
    return known.get(word, word)


def http_date(text: str | None) -> float | None:
    """Parse an HTTP date (RFC 9110, 5.6.7)."""
    return _http_date(text) if text and len(text) <= _MAX_DATE else None


@lru_cache(maxsize=64)  # answers within one second have the same date
def _http_date(text: str) -> float | None:
    try:
        return _utc(parsedate_to_datetime(text))
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def unix_seconds(text: Any) -> float | None:
    """Parse an RFC 3339 time."""
    return _unix_seconds(text) if isinstance(text, str) and 0 < len(text) <= _MAX_DATE else None


@lru_cache(maxsize=64)  # answers within one second have the same time
def _unix_seconds(text: str) -> float | None:
    try:
        return _utc(datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        return None


def _utc(moment: datetime) -> float:
    # HTTP dates have no zone, and -0000 is parsed as none; both mean UTC
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
