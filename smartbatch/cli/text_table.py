"""Tables of text for a terminal of any width."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from attrs import frozen

from smartbatch.observe.text import escape

_GAP = 2
_LEAST = 8
"""Cells to which the first column is cut before further columns are left out."""


@frozen
class Column:
    """A column.

    Attributes:
        title: above it.
        right: whether its cells stand at the right.
        drop: columns with a higher number are left out first where the terminal is narrow; 0 stays.
    """

    title: str
    right: bool = False
    drop: int = 0


def cells_of(text: str) -> int:
    """Return how many cells of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(_cells(sign) for sign in text)


def _cells(sign: str) -> int:
    if unicodedata.combining(sign):
        return 0
    return 2 if unicodedata.east_asian_width(sign) in "WF" else 1


def fitted(text: str, width: int) -> str:
    """Return a text that takes at most ``width`` cells; one that is cut ends in an ellipsis."""
    if cells_of(text) <= width:
        return text
    kept, room = [], max(0, width - 1)
    for sign in text:
        room -= _cells(sign)
        if room < 0:
            break
        kept.append(sign)
    return "".join(kept) + "…" if width > 0 else ""


def text_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Return a table as lines of at most ``width`` cells, its head first.

    Where it is too wide, its first column is cut, then columns are left out, then that column is cut further.
    Control characters of cells are shown as escapes.
    """
    told = [[escape(cell) for cell in row] for row in rows]
    kept = list(range(len(columns)))
    while True:
        widths = {at: max([cells_of(columns[at].title), *(cells_of(row[at]) for row in told)]) for at in kept}
        over = sum(widths.values()) + _GAP * (len(kept) - 1) - width
        if over <= 0:
            break
        spare = widths[kept[0]] - _LEAST
        last = max(kept, key=lambda at: columns[at].drop)
        if spare >= over or not columns[last].drop:
            widths[kept[0]] = max(1, widths[kept[0]] - over)
            break
        kept.remove(last)
    lines = [[columns[at].title for at in kept], *([row[at] for at in kept] for row in told)]
    return [fitted(_line(line, kept, widths, columns), width) for line in lines]


def _line(
    cells: Sequence[str], kept: Sequence[int], widths: dict[int, int], columns: Sequence[Column]
) -> str:
    parts = []
    for at, cell in zip(kept, cells, strict=True):
        shown = fitted(cell, widths[at])
        blank = " " * (widths[at] - cells_of(shown))
        parts.append(blank + shown if columns[at].right else shown + blank)
    return (" " * _GAP).join(parts).rstrip()
