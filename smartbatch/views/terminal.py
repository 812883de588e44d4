"""Renders views as lines of text for a terminal of any width."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, TypeAlias

from attrs import frozen

from smartbatch import _words as words
from smartbatch._words import escape
from smartbatch.views.drawings import Drawing, drawing, thinned
from smartbatch.views.model import (
    BarsOverTime,
    Bullets,
    Cell,
    Chart,
    Column,
    DataTable,
    Facts,
    Folded,
    Form,
    Kind,
    Link,
    Links,
    LongText,
    Moment,
    Note,
    Part,
    Picture,
    ProgressBar,
    State,
    Thumbnail,
    Tile,
    Value,
    View,
)

Style: TypeAlias = Literal["", "title", "head", "bad", "warn"]

UNLIMITED_WIDTH = 1_000  # cells per line
_COLUMN_GAP = 2
_MIN_FIRST_COLUMN = 8  # cells
_BAR_WIDTH = 10  # cells
_SPARK_CHARACTERS = "▁▂▃▄▅▆▇█"
_SPARK_WIDTH = 30
_NUMERIC = ("number", "money", "duration")
_PREFIXES = {"bad": "! ", "warn": "! "}


@frozen
class TextLine:
    text: str
    style: Style = ""  # for terminals with colors


def text_of(view: View) -> str:
    return "\n".join(line.text for line in lines_of(view, UNLIMITED_WIDTH))


def lines_of(view: View, width: int) -> list[TextLine]:
    """Return a view as lines of at most ``width`` cells; control characters are escaped."""
    return [TextLine(fitted(escape(line.text), width), line.style) for line in _lines(view, width)]


def cells_of(text: str) -> int:
    return len(text) if text.isascii() else sum(map(_cells, text))


def fitted(text: str, width: int) -> str:
    """Cut text to ``width`` cells; an ellipsis marks the cut."""
    if cells_of(text) <= width:
        return text
    kept, room = [], max(0, width - 1)
    for sign in text:
        room -= _cells(sign)
        if room < 0:
            break
        kept.append(sign)
    return "".join(kept) + "…" if width > 0 else ""


def table_lines(columns: Sequence[Column], rows: Iterable[Sequence[Cell]], width: int) -> list[str]:
    """Return a table as lines of at most ``width`` cells, its head first.

    A table that is too wide is narrowed in this order:

    1. Cells with several values keep only the first, column by column: the highest ``drop`` first.
    2. The first column is cut, down to :data:`_MIN_FIRST_COLUMN` cells.
    3. Whole columns are left out, the highest ``drop`` first.
    4. The widest columns are cut.
    """
    listed = [tuple(row) for row in rows]
    texts = [_column_texts(column, [row[at] for row in listed]) for at, column in enumerate(columns)]
    shown = list(range(len(columns)))
    full = sorted(shown, key=lambda at: -columns[at].drop)
    while True:
        widths = {at: max(map(cells_of, texts[at])) for at in shown}
        excess = sum(widths.values()) + _COLUMN_GAP * (len(shown) - 1) - width
        if excess <= 0:
            break
        if full:
            at = full.pop(0)
            texts[at] = _column_texts(columns[at], [_main_value(row[at]) for row in listed])
            continue
        spare = widths[shown[0]] - _MIN_FIRST_COLUMN
        last = max(shown, key=lambda at: columns[at].drop)
        if spare >= excess:
            widths[shown[0]] -= excess
            break
        if not columns[last].drop:
            room = sum(widths.values()) - excess
            fits = (
                most
                for most in range(width, 1, -1)
                if sum(min(each, most) for each in widths.values()) <= room
            )
            limit = next(fits, 1)
            widths = {at: min(each, limit) for at, each in widths.items()}
            break
        shown.remove(last)
    lines = zip(*(texts[at] for at in shown), strict=True)
    return [fitted(_line(line, shown, widths, columns), width) for line in lines]


def _column_texts(column: Column, cells: Iterable[Cell]) -> list[str]:
    return [column.title, *(escape(cell_text(cell, column.kind)) for cell in cells)]


def _main_value(cell: Cell) -> Cell:
    return cell[0] if isinstance(cell, tuple) and cell else cell


def cell_text(cell: Cell, kind: Kind = "text") -> str:
    """Return the text of a cell; several values are separated by commas."""
    if isinstance(cell, tuple):
        return ", ".join(found for one in cell if (found := cell_text(one, kind)) != "-")
    return _value_text(cell, kind)


def _value_text(value: Value, kind: Kind) -> str:
    match value:
        case None | "":
            return "-"
        case State() | Link():
            return value.text
        case ProgressBar():
            filled = round(_BAR_WIDTH * value.share)
            return f"{'#' * filled}{'.' * (_BAR_WIDTH - filled)} {int(100 * value.share):3d}%"
        case Moment():
            return words.moment(value.at)
        case Picture() | Thumbnail():
            return value.label
        case Form():
            return ""
        case str():
            return value
    if kind == "time":
        return words.moment(value)
    return words.worded(value, "number" if kind == "text" else kind)


# -- views ---------------------------------------------------------------------------------------------------


def _lines(view: View, width: int) -> Iterator[TextLine]:
    state = "" if view.state is None else f"  {view.state.text}"
    yield TextLine(f"{view.title}{state}", "title")
    if view.subtitle:
        yield TextLine(view.subtitle)
    yield from _tile_lines(view.tiles, width)
    was_empty = False
    for section in view.sections:
        body = [line for part in section.parts for line in _part(part, width)]
        if body or not was_empty:
            yield TextLine("")
        if body:
            yield TextLine(section.title, "head")
            yield from body
        else:
            yield TextLine(f"{section.title}: {section.empty}")
        was_empty = not body


def _tile_lines(tiles: Iterable[Tile], width: int) -> Iterator[TextLine]:
    """Put as many key figures on each line as fit."""
    line = ""
    for tile in tiles:
        text = f"{tile.label} {tile.figure}" + (f" ({tile.note})" if tile.note else "")
        if line and cells_of(line) + 3 + cells_of(text) > width:
            yield TextLine(line)
            line = ""
        line += f"   {text}" if line else text
    if line:
        yield TextLine(line)


def _part(part: Part, width: int) -> Iterator[TextLine]:
    match part:
        case Note():
            yield _toned(part.text, part.tone)
        case LongText():
            yield TextLine(f"{part.label}:")
            for line in part.text.split("\n"):
                yield from (TextLine(f"  {piece}") for piece in _pieces(escape(line), width - 2))
        case Bullets():
            for row in part.rows:
                yield _toned("".join(cell_text(value) for value in row if value not in (None, "")), part.tone)
        case Facts():
            if part.label:
                yield TextLine(f"{part.label}:")
            indent = "  " if part.label else ""
            wide = max((cells_of(name) for name, _ in part.rows), default=0)
            yield from (
                TextLine(f"{indent}{name}{' ' * (wide - cells_of(name))}  {cell_text(what)}")
                for name, what in part.rows
            )
        case DataTable():
            yield from map(TextLine, table_lines(part.columns, part.rows, width))
        case Folded():
            yield TextLine(part.summary)
        case Links() | Form():
            return
        case _:
            yield from _chart(part)


def _pieces(line: str, width: int) -> Iterator[str]:
    """Split a line into pieces of at most ``width`` cells, at spaces if possible."""
    while True:
        head = line[: max(1, width)]
        while len(head) > 1 and cells_of(head) > width:
            head = head[:-1]
        if len(head) == len(line):
            yield line
            return
        end = head.rfind(" ") + 1 or len(head)
        yield head[:end]
        line = line[end:]


def _chart(chart: Chart) -> Iterator[TextLine]:
    drawn = drawing(chart)
    if drawn is not None:
        sparks = f"  {_sparks(drawn)}" if isinstance(chart, BarsOverTime) else ""
        yield TextLine(f"{drawn.title}{sparks}  {drawn.summary}")


def _sparks(drawn: Drawing) -> str:
    heights = [box.height for box in thinned(drawn.boxes, _SPARK_WIDTH)]
    most = max(heights) or 1.0
    return "".join(
        _SPARK_CHARACTERS[min(len(_SPARK_CHARACTERS) - 1, int(height / most * len(_SPARK_CHARACTERS)))]
        for height in heights
    )


def _toned(text: str, tone: str) -> TextLine:
    style: Style = "bad" if tone == "bad" else "warn" if tone == "warn" else ""
    return TextLine(f"{_PREFIXES.get(tone, '')}{text}", style)


def _cells(sign: str) -> int:
    if unicodedata.combining(sign):
        return 0
    return 2 if unicodedata.east_asian_width(sign) in "WF" else 1


def _line(
    cells: Sequence[str], kept: Sequence[int], widths: dict[int, int], columns: Sequence[Column]
) -> str:
    parts = []
    for at, cell in zip(kept, cells, strict=True):
        shown = fitted(cell, widths[at])
        blank = " " * (widths[at] - cells_of(shown))
        parts.append(blank + shown if columns[at].kind in _NUMERIC else shown + blank)
    return (" " * _COLUMN_GAP).join(parts).rstrip()
