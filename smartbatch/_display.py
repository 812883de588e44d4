"""How values are shown in a line: reprs of bounded length, and no control characters on a terminal."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence

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
