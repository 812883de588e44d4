"""How values are shown in a line: reprs of bounded length, and no control characters on a terminal."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Sequence
from typing import Any, TextIO

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 160
_short.maxlist = _short.maxtuple = _short.maxdict = _short.maxset = _short.maxarray = 3
_short.maxlevel = 3


def short(value: object, most: int = 240) -> str:
    """Return a repr of some ``most`` characters, whatever is in ``value``."""
    return without_middle(_short.repr(value), most)


def brief(value: object) -> str:
    """Return a repr of a few words, for what there are many of."""
    return short(value, 80)


def without_middle(words: str, most: int = 300) -> str:
    """Return at most ``most`` characters of a repr, its end included."""
    return words if len(words) <= most else f"{words[: most - 43]}...{words[-40:]}"


def counted(word: str, values: Sequence[object]) -> str:
    """Return how many values there are, in place of what may be thousands."""
    return f"<{len(values):,} {word}>"


def escape(text: str) -> str:
    """Return ``text`` with what is not printable (escape sequences, line ends, bidi marks) as ``\\x1b``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def duration(seconds: float) -> str:
    """Return seconds in short: ``0.42 s``, ``17 s``, ``3:05 min``, ``2:07 h``, ``for ever``."""
    if not math.isfinite(seconds):
        return "for ever"
    if seconds < 1:
        return f"{max(0.0, seconds):.2f} s"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d} min"
    return f"{minutes // 60}:{minutes % 60:02d} h"


class SafeStream:
    """A stream that others may close: after a failed write, nothing more is written.

    Characters that the stream's encoding lacks are written as escapes.

    Args:
        stream: ``None`` if there is none, as for a program started without standard streams.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream: Any = stream
        self._broken = stream is None

    def write(self, text: str) -> int:
        if not self._broken:
            encoding = getattr(self._stream, "encoding", None) or "utf-8"
            try:
                self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
            except (OSError, ValueError):  # the reader ended, or the stream is closed
                self._broken = True
        return len(text)

    def flush(self) -> None:
        if not self._broken:
            try:
                self._stream.flush()
            except (OSError, ValueError):
                self._broken = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
