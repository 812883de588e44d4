"""Strings, numbers and times from a provider: which may be kept, and which must not appear in errors."""

from __future__ import annotations

import codecs
import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any

from smartbatch.errors import ErrorKind, ProviderError, scrub
from smartbatch.types import Request, Usage

PLAIN_WORD = re.compile(r"[\w.:/-]{1,64}", re.ASCII)  # an error code or a finish reason
PLAIN_ID = re.compile(r"[\w.:=+/-]{1,128}", re.ASCII)  # the id of a call or the name of a model

_MAX_TOKENS = 10**9
_DIGITS = re.compile(r"[0-9]{1,12}")
_MAX_DATE = 64  # characters
_ECHO = 20  # characters: a common run of this length counts as a piece of the prompt


def unusable(
    text: str,
    code: str = "shape",
    *,
    kind: ErrorKind = ErrorKind.INVALID_RESPONSE,
    status: int | None = None,
    usage: Usage | None = None,
) -> ProviderError:
    """Return the error for an answer that breaks the API's contract and may be billed; ``text`` is ours."""
    return ProviderError(text, kind=kind, status=status, code=code, maybe_billed=True, usage=usage)


def safe_text(message: str, requests: Sequence[Request], *secrets: str | None) -> str:
    """Return a provider's text for display: without keys, shortened, and left out if it repeats a prompt."""
    if not message:
        return ""
    text = scrub(message[:2000], *secrets, limit=200)
    return "(its text is left out, it repeats the prompt)" if echoes(text, texts(requests)) else text


def repeats(text: str, requests: Sequence[Request]) -> bool:
    """Whether a provider's text contains a long piece of a prompt, so that its words may be the user's."""
    return echoes(text, (prompt for prompt in texts(requests) if len(prompt) >= _ECHO))


def without_echo(error: ProviderError, request: Request) -> ProviderError:
    """Return the already scrubbed error of a line of a batch's results without pieces of its request's
    prompt."""
    if not echoes(error.message, texts((request,))):
        return error
    shown = copy.copy(error)
    before = error.message.partition(": ")[0]
    shown.message = f"{before}: (its text is left out, it repeats the prompt)"
    if echoes(before, texts((request,))):
        shown.message = "the request failed (the error's text is left out, it repeats the prompt)"
    shown.args = (shown.message,)
    return shown


def texts(requests: Sequence[Request]) -> Iterator[str]:
    """Yield every text of the requests."""
    for request in requests:
        if request.params.system:
            yield request.params.system
        if isinstance(request.prompt, str):
            yield request.prompt
            continue
        for message in request.prompt:
            if isinstance(message.content, str):
                yield message.content
            else:
                yield from (part["text"] for part in message.content if isinstance(part.get("text"), str))
            for call in message.tool_calls:
                yield from (value for value in (call.arguments or {}).values() if isinstance(value, str))


def echoes(text: str, prompts: Iterator[str]) -> bool:
    """Whether ``text`` repeats 20 characters of a prompt, or a whole shorter one; runs of blanks count as
    one.
    """
    text = " ".join(text.split())
    for prompt in prompts:
        prompt = " ".join(prompt.split())
        if len(prompt) < _ECHO:
            if len(prompt) >= 4 and prompt in text:
                return True
            continue
        # Any common run of 20 contains a block of 10 at a multiple of 10: search for those first.
        for start in range(0, len(text) - 9, 10):
            if text[start : start + 10] in prompt and any(
                text[at : at + _ECHO] in prompt
                for at in range(max(0, start - 10), min(start + 1, len(text) - _ECHO + 1))
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
    """A string that arrives in pieces, without lone surrogates; a pair may be split between two pieces."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-16-le")("replace")
        self._parts: list[str] = []

    def take(self, piece: str, *, last: bool = False) -> str:
        """Return the usable part of ``piece``; half a pair waits for the other half."""
        piece = self._decoder.decode(piece.encode("utf-16-le", "surrogatepass"), last)
        self._parts.append(piece)
        return piece

    @property
    def whole(self) -> str:
        """All pieces so far."""
        return "".join(self._parts)


def count(value: Any) -> int | None:
    """Return a number of tokens; ``None`` for anything else."""
    return value if type(value) is int and 0 <= value <= _MAX_TOKENS else None


def detail(found: Any, name: str) -> int:
    """Return a number of tokens in the details of a usage; 0 without one."""
    return count(fields(found).get(name)) or 0


def whole(value: Any) -> int | None:
    """Return a count that may be a string, as 64-bit numbers are in JSON."""
    return count(int(value)) if isinstance(value, str) and _DIGITS.fullmatch(value) else count(value)


def fields(value: Any) -> Mapping[str, Any]:
    """Return a value if it is an object; otherwise an empty mapping."""
    return value if type(value) is dict or isinstance(value, Mapping) else {}  # the faster check first


def short(value: Any, form: re.Pattern[str]) -> str | None:
    """Return the value if it is a string of this form."""
    return value if isinstance(value, str) and form.fullmatch(value) else None


def plain(value: Any) -> str:
    """Return a string, or a number as a string; empty for anything else, which may be nested too deeply."""
    return str(value) if isinstance(value, (str, int, float)) else ""


def finish_word(reason: Any, known: Mapping[str, str]) -> str:
    """Return our name for a provider's finish reason; names that are not ``known`` are returned unchanged."""
    if reason is None:
        return "stop"
    word = short(reason, PLAIN_WORD) or "unknown"
    return known.get(word, word)


def http_date(text: str | None) -> float | None:
    """Return the time of an HTTP date (RFC 9110, 5.6.7); ``None`` for anything else."""
    return _http_date(text) if text and len(text) <= _MAX_DATE else None


@lru_cache(maxsize=64)  # all answers within a second have the same
def _http_date(text: str) -> float | None:
    try:
        return _utc(parsedate_to_datetime(text))
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def unix_seconds(text: Any) -> float | None:
    """Return the time of an RFC 3339 string; ``None`` for anything else."""
    return _unix_seconds(text) if isinstance(text, str) and 0 < len(text) <= _MAX_DATE else None


@lru_cache(maxsize=64)  # all answers within a second name the same
def _unix_seconds(text: str) -> float | None:
    try:
        return _utc(datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        return None


def _utc(moment: datetime) -> float:
    # HTTP dates have no zone, and -0000 is parsed without one: both are UTC
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
