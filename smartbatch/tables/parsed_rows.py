"""What every reader of rows yields, and the bounds that all of them keep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, Final, TypeAlias

from attrs import frozen

from smartbatch.errors import InputError

MAX_ROW_BYTES: Final = 64 * 2**20
"""Longest row, bytes: above any request body the providers take, and small enough to hold in memory."""


@frozen
class BadRow:
    """A row that cannot be used: its one-based line, and what is wrong, without the row's content."""

    line: int
    message: str


ParsedRow: TypeAlias = "tuple[int, dict[str, Any]] | BadRow"
"""What a reader yields: a line and its fields, or the error there."""

Reader: TypeAlias = "Callable[[IO[bytes]], Iterator[ParsedRow]]"


def header_error(header: Sequence[str]) -> str | None:
    """Return what is wrong with the names of columns; ``None`` if nothing is."""
    if any(not is_clean(name) for name in header):
        return "the header is not valid UTF-8; save the file as UTF-8"
    name, times = Counter(header).most_common(1)[0] if header else ("", 0)
    return f"the header names the column {name[:100]!r} twice" if times > 1 else None


def is_clean(text: str) -> bool:
    """Whether a text was valid UTF-8: what was not is a lone surrogate."""
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def missing(package: str, extra: str, purpose: str) -> InputError:
    """Return the error for a library that is not installed, which says what to install."""
    return InputError(
        f"{purpose} needs {package}: pip install {package}, or the extra {extra!r} of smartbatch-llm"
    )
