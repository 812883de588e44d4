"""A view: a state, tiles with the key figures, and sections of facts, tables and charts, without any markup.

A view is built once and rendered as a page, a report, a text or the output of a notebook's cell. Cells hold
plain figures; how they are written follows from the kind of their column.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias, Union

from attrs import Attribute, field, frozen

from smartbatch._words import Unit

Tone: TypeAlias = Literal["", "good", "warn", "bad"]
Kind: TypeAlias = Literal["text", "number", "money", "time", "duration"]


def _inside(_: object, attribute: Attribute[str], value: str) -> None:
    if not value.startswith("/") or value[1:2] in ("/", "\\"):
        raise ValueError(f"{attribute.name} leaves the application: {value[:80]!r}")


# -- what a cell holds


@frozen
class State:
    """A state in a word or two, which a colour and a sign underline."""

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
    """How much of a total is done; ``label`` says what, for those who do not see the bar."""

    label: str
    done: float
    total: float

    @property
    def share(self) -> float:
        """From 0 to 1."""
        return min(max(self.done / self.total, 0.0), 1.0) if self.total > 0 else 0.0


@frozen
class Moment:
    """A time in Unix seconds."""

    at: float


@frozen
class Field:
    """A field of a form; ``value`` alone without a label is sent as it is."""

    name: str
    label: str = ""
    value: str = ""
    hint: str = ""
    kind: Literal["text", "search", "hidden", "checkbox", "select"] = "text"
    options: tuple[tuple[str, str], ...] = ()  # of a select: values and what people read
    is_required: bool = True


@frozen
class Form:
    """A form: an action, or with ``is_search`` what narrows a list. ``warning`` is read before it opens."""

    action: str = field(validator=_inside)
    button: str
    fields: tuple[Field, ...] = ()
    warning: str = ""
    is_search: bool = False


Value: TypeAlias = Union[str, float, State, Link, ProgressBar, Moment, Form, None]  # noqa: UP007
Cell: TypeAlias = Union[Value, "tuple[Value, ...]"]
"""A value; or several, one below the other, of which the first is the main one."""


# -- parts of a section


@frozen
class Note:
    """A paragraph; one with a tone stands out."""

    text: str
    tone: Tone = ""


@frozen
class Bullets:
    """Things that people should read one by one; each is a row of values."""

    rows: tuple[tuple[Value, ...], ...]
    tone: Tone = ""


@frozen
class Facts:
    """Names with what they are."""

    rows: tuple[tuple[str, Cell], ...]


@frozen
class Column:
    """A column of a table.

    Attributes:
        title: above it.
        kind: how its figures are written, and where they stand.
        drop: columns with a higher number are left out first where a terminal is narrow; 0 stays.
    """

    title: str
    kind: Kind = "text"
    drop: int = 0


@frozen
class DataTable:
    """Rows of cells; ``None`` is shown as a dash. People can sort it by any column."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    chosen: int | None = None  # the position of a row that is marked

    @classmethod
    def of(cls, caption: str, columns: str, rows: Sequence[tuple[Cell, ...]], **more: Any) -> DataTable:
        """Make a table; ``columns`` is ``title, title:kind, …``, with a ``/N`` after it for ``drop``."""
        made = []
        for text in columns.split(", "):
            name, _, drop = text.partition("/")
            title, _, kind = name.partition(":")
            found: Any = kind or "text"
            made.append(Column(title, found, int(drop or 0)))
        return cls(caption, tuple(made), tuple(rows), **more)


@frozen
class BarsOverTime:
    """What came in each stretch of time.

    Attributes:
        title: with its unit.
        width: seconds of a bar.
        bars: Unix seconds at which each begins, and its height.
        unit: of the heights.
        low, high: ends of the time that is shown, whatever bars there are.
        ticks: whether the axis says moments, or hours of a day.
    """

    title: str
    width: float
    bars: tuple[tuple[float, float], ...]
    unit: Unit = "number"
    low: float | None = None
    high: float | None = None
    ticks: Literal["moments", "hours"] = "moments"


@frozen
class ProgressOverTime:
    """How many of a total were done by when, and when the rest is expected.

    Attributes:
        points: Unix seconds, and how many were done by then; in order.
        expected: Unix seconds of the end, median and 95 % bound.
        deadline: Unix seconds.
    """

    title: str
    points: tuple[tuple[float, float], ...]
    total: float
    expected: tuple[float, float] | None = None
    deadline: float | None = None


@frozen
class ValueDistribution:
    """How values are distributed, on a logarithmic scale, with their median and 95 % quantile.

    Attributes:
        marks: further named values, such as a forecast.
    """

    title: str
    values: tuple[float, ...] = field(repr=False)
    unit: Unit = "number"
    marks: tuple[tuple[str, float], ...] = ()


Chart: TypeAlias = BarsOverTime | ProgressOverTime | ValueDistribution


@frozen
class Folded:
    """Parts behind a line of text that opens them."""

    summary: str
    parts: tuple[Part, ...]


@frozen
class Links:
    """Links next to each other, such as the pages of a list."""

    label: str
    links: tuple[Link, ...]


Part: TypeAlias = Union[Note, Bullets, Facts, DataTable, Chart, Folded, Links, Form]  # noqa: UP007


# -- the whole


@frozen
class Tile:
    """A key figure: what it is, the figure, and a word on it."""

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
    """A part of a view.

    Attributes:
        id: unique in its view; letters and dashes.
        title: its heading.
        parts: from top to bottom; those that are ``None`` are left out.
        empty: what is said, and what to do, where there are no parts.
        is_live: whether it is renewed while somebody looks; forms that are being filled in are not.
    """

    id: str
    title: str
    parts: tuple[Part, ...] = field(converter=_present)
    empty: str = "Nothing yet."
    is_live: bool = True


@frozen
class View:
    """What is shown of one thing.

    Attributes:
        title: its name.
        sections: from top to bottom.
        state: in a word.
        subtitle: what it is, in a line.
        tiles: key figures.
    """

    title: str
    sections: tuple[Section, ...]
    state: State | None = None
    subtitle: str = ""
    tiles: tuple[Tile, ...] = ()
