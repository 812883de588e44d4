"""Texts, numbers and moments of a provider: what of an answer may be kept, and what no error may show."""

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

PLAIN_WORD = re.compile(r"[\w.:/-]{1,64}", re.ASCII)
"""What an error code or a finish reason looks like."""
PLAIN_ID = re.compile(r"[\w.:=+/-]{1,128}", re.ASCII)
"""What the id of a call or the name of a model looks like."""

_MOST_TOKENS = 10**9
_DIGITS = re.compile(r"[0-9]{1,12}")
_LONGEST = 64  # characters; no moment is longer
_ECHO = 20  # characters: a common run of this length is taken for a piece of the prompt


def unusable(
    text: str,
    code: str = "shape",
    *,
    kind: ErrorKind = ErrorKind.INVALID_RESPONSE,
    status: int | None = None,
    usage: Usage | None = None,
) -> ProviderError:
    """Return the error of an answer that is not what the API promises; it may be billed. ``text`` is ours."""
    return ProviderError(text, kind=kind, status=status, code=code, maybe_billed=True, usage=usage)


def safe_text(message: str, requests: Sequence[Request], *secrets: str | None) -> str:
    """Return a provider's text as it may be shown: without keys, cut, left out if it repeats a prompt."""
    if not message:
        return ""
    text = scrub(message[:2000], *secrets, limit=200)
    return "(its text is left out, it repeats the prompt)" if echoes(text, texts(requests)) else text


def repeats(text: str, requests: Sequence[Request]) -> bool:
    """Whether a provider's text has a long piece of a prompt in it: then its words may be the user's."""
    return echoes(text, (prompt for prompt in texts(requests) if len(prompt) >= _ECHO))


def without_echo(error: ProviderError, request: Request) -> ProviderError:
    """Return an error of a batch's result line, scrubbed already, without pieces of its request's prompt."""
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
    """Yield every text of some requests."""
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
    """True when ``text`` repeats 20 characters or more of a prompt, or a whole shorter one; blanks count
    as one.
    """
    text = " ".join(text.split())
    for prompt in prompts:
        prompt = " ".join(prompt.split())
        if len(prompt) < _ECHO:
            if len(prompt) >= 4 and prompt in text:
                return True
            continue
        # Any common run of 20 holds one of the blocks of 10 at multiples of 10: look for those first.
        for start in range(0, len(text) - 9, 10):
            if text[start : start + 10] in prompt and any(
                text[at : at + _ECHO] in prompt
                for at in range(max(0, start - 10), min(start + 1, len(text) - _ECHO + 1))
            ):
                return True
    return False


def well_formed(text: str) -> str:
    """The text with lone surrogates replaced: JSON can carry them, UTF-8 files and databases cannot."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


class WellFormedText:
    """A text that comes in pieces, without lone surrogates; a pair may be split between two pieces."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-16-le")("replace")
        self._parts: list[str] = []

    def take(self, piece: str, *, last: bool = False) -> str:
        """Return what can be handed on of ``piece``; half a pair waits for the other half."""
        piece = self._decoder.decode(piece.encode("utf-16-le", "surrogatepass"), last)
        self._parts.append(piece)
        return piece

    @property
    def whole(self) -> str:
        """All pieces so far."""
        return "".join(self._parts)


def count(value: Any) -> int | None:
    """Return a number of tokens; ``None`` for anything that cannot be one."""
    return value if type(value) is int and 0 <= value <= _MOST_TOKENS else None


def detail(found: Any, name: str) -> int:
    """Return a number of tokens in the details of a usage; 0 where they have none."""
    return count(fields(found).get(name)) or 0


def whole(value: Any) -> int | None:
    """Return a count that may be written as a text, as 64-bit numbers are in JSON."""
    return count(int(value)) if isinstance(value, str) and _DIGITS.fullmatch(value) else count(value)


def fields(value: Any) -> Mapping[str, Any]:
    """Return a value that should be an object; nothing for any other."""
    return value if type(value) is dict or isinstance(value, Mapping) else {}  # most are a dict: seen at once


def short(value: Any, form: re.Pattern[str]) -> str | None:
    """Return the value if it is a text of this form."""
    return value if isinstance(value, str) and form.fullmatch(value) else None


def plain(value: Any) -> str:
    """Return a text, or a number as text; nothing for what may be nested too deeply to be one."""
    return str(value) if isinstance(value, (str, int, float)) else ""


def finish_word(reason: Any, known: Mapping[str, str]) -> str:
    """Return our word for a provider's finish reason; words that are not ``known`` are passed on."""
    if reason is None:
        return "stop"
    word = short(reason, PLAIN_WORD) or "unknown"
    return known.get(word, word)


def http_date(text: str | None) -> float | None:
    """Return the moment an HTTP date names (RFC 9110, 5.6.7); ``None`` for anything else."""
    return _http_date(text) if text and len(text) <= _LONGEST else None


@lru_cache(maxsize=64)  # all answers within a second have the same
def _http_date(text: str) -> float | None:
    try:
        return _utc(parsedate_to_datetime(text))
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def unix_seconds(text: Any) -> float | None:
    """Return the moment an RFC 3339 text names; ``None`` for anything else."""
    return _unix_seconds(text) if isinstance(text, str) and 0 < len(text) <= _LONGEST else None


@lru_cache(maxsize=64)  # all answers within a second name the same
def _unix_seconds(text: str) -> float | None:
    try:
        return _utc(datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        return None


def _utc(moment: datetime) -> float:
    """A moment without a zone is UTC: so are HTTP dates, and ``-0000`` comes back without one."""
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
