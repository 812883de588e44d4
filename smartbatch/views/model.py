"""Views without markup: a state, tiles with key figures, and sections of facts, tables and charts.

A view is built once and rendered as a page, a report, text or notebook output. Cells hold plain figures,
which are formatted according to the kind of their column.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias, Union

from attrs import Attribute, field, frozen

from smartbatch._words import Unit

Tone: TypeAlias = Literal["", "good", "warn", "bad"]
Kind: TypeAlias = Literal["text", "number", "money", "time", "duration"]


def _inside(_: object, attribute: Attribute[str], value: str) -> None:
    if not value.startswith("/") or value[1:2] in ("/", "\\"):
        raise ValueError(f"{attribute.name} leaves the application: {value[:80]!r}")


# -- cells


@frozen
class State:
    """A state in a word or two, shown with a color and a sign."""

    text: str
    tone: Tone = ""


@frozen
class Link:
    """A link to another page of the same application."""

    text: str
    href: str = field(validator=_inside)
    is_download: bool = False
    is_current: bool = False


@frozen
class ProgressBar:
    label: str  # for screen readers
    done: float
    total: float

    @property
    def share(self) -> float:
        return min(max(self.done / self.total, 0.0), 1.0) if self.total > 0 else 0.0


@frozen
class Moment:
    at: float  # Unix seconds


@frozen
class Picture:
    """A small image in a notebook. Other renderings show its label."""

    label: str
    media_type: str
    content: bytes = field(repr=False)

    @property
    def uri(self) -> str:
        return f"data:{self.media_type};base64,{base64.b64encode(self.content).decode()}"


@frozen
class Thumbnail:
    """An image of the same application, loaded when it is scrolled into view, with a link to it.

    Attributes:
        width, height: size of the thumbnail in pixels.
    """

    label: str
    href: str = field(validator=_inside)
    width: int
    height: int


@frozen
class Field:
    name: str
    label: str = ""
    value: str = ""
    hint: str = ""
    kind: Literal["text", "search", "hidden", "checkbox", "select"] = "text"
    options: tuple[tuple[str, str], ...] = ()  # values and labels of a select
    is_required: bool = True


@frozen
class Form:
    """An action, or a search that filters a list."""

    action: str = field(validator=_inside)
    button: str
    fields: tuple[Field, ...] = ()
    warning: str = ""  # shown before the form opens
    is_search: bool = False
    choices: tuple[tuple[str, str], ...] = ()  # further buttons: value of the field ``choice``, and label


Value: TypeAlias = Union[str, float, State, Link, ProgressBar, Moment, Picture, Thumbnail, Form, None]  # noqa: UP007
Cell: TypeAlias = Union[Value, "tuple[Value, ...]"]
"""One value, or several; the first is the main one."""


# -- parts of a section


@frozen
class Note:
    """A paragraph; a tone makes it stand out."""

    text: str
    tone: Tone = ""


@frozen
class LongText:
    """A text of several lines, such as an answer, whose line breaks are kept."""

    label: str
    text: str


@frozen
class Bullets:
    """A list of items, each a row of values."""

    rows: tuple[tuple[Value, ...], ...]
    tone: Tone = ""


@frozen
class Facts:
    rows: tuple[tuple[str, Cell], ...]
    label: str = ""


@frozen
class Column:
    title: str
    kind: Kind = "text"  # format and alignment of figures
    drop: int = 0  # a narrow terminal drops the columns with the highest number first; 0 is never dropped


@frozen
class DataTable:
    """Rows of cells; ``None`` is shown as a dash. A page can be sorted by any column."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    chosen: int | None = None  # index of a highlighted row

    @classmethod
    def of(cls, caption: str, columns: str, rows: Sequence[tuple[Cell, ...]], **more: Any) -> DataTable:
        """Make a table from column definitions: ``title, title:kind, title/drop, …``."""
        made = []
        for text in columns.split(", "):
            name, _, drop = text.partition("/")
            title, _, kind = name.partition(":")
            found: Any = kind or "text"
            made.append(Column(title, found, int(drop or 0)))
        return cls(caption, tuple(made), tuple(rows), **more)


@frozen
class BarsOverTime:
    title: str
    width: float  # seconds per bar
    bars: tuple[tuple[float, float], ...]  # start in Unix seconds, and height
    unit: Unit = "number"  # unit of the heights
    low: float | None = None  # fixed ends of the axis, in Unix seconds
    high: float | None = None
    ticks: Literal["moments", "hours"] = "moments"


@frozen
class ProgressOverTime:
    title: str
    points: tuple[tuple[float, float], ...]  # Unix seconds, and number done
    total: float
    expected: tuple[float, float] | None = None  # expected end in Unix seconds: median and 95 % bound
    deadline: float | None = None  # Unix seconds


@frozen
class ValueDistribution:
    """The distribution of values on a logarithmic scale, with their median and 95 % quantile."""

    title: str
    values: tuple[float, ...] = field(repr=False)
    unit: Unit = "number"
    marks: tuple[tuple[str, float], ...] = ()  # further named values, such as a forecast


Chart: TypeAlias = BarsOverTime | ProgressOverTime | ValueDistribution


@frozen
class Folded:
    """Parts that are collapsed until the reader opens them."""

    summary: str
    parts: tuple[Part, ...]


@frozen
class Links:
    """A row of links, such as the pages of a list."""

    label: str
    links: tuple[Link, ...]


Part: TypeAlias = Union[Note, LongText, Bullets, Facts, DataTable, Chart, Folded, Links, Form]  # noqa: UP007


# -- views


@frozen
class Tile:
    """A key figure."""

    label: str
    figure: str
    note: str = ""
    tone: Tone = ""
    progress: ProgressBar | None = None
    href: str | None = None


def _present(parts: Iterable[Part | None]) -> tuple[Part, ...]:
    return tuple(part for part in parts if part is not None)


@frozen
class Section:
    id: str  # unique in its view; lowercase letters and dashes
    title: str
    parts: tuple[Part, ...] = field(converter=_present)  # ``None`` is left out
    empty: str = "Nothing yet."  # shown if there are no parts
    is_live: bool = True  # updated while the page is open; false for forms


@frozen
class View:
    title: str
    sections: tuple[Section, ...]
    state: State | None = None
    subtitle: str = ""
    tiles: tuple[Tile, ...] = ()
