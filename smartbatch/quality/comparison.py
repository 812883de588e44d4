"""The comparison of two outputs, and its view."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

from attrs import asdict, frozen

from smartbatch._words import UNKNOWN, duration, known_money, money, number, plural
from smartbatch.quality.intervals import Proportion
from smartbatch.quality.recorded_row import RecordedRow
from smartbatch.tables.cells import text_of
from smartbatch.types import DEFECTS
from smartbatch.views.drawings import quantile
from smartbatch.views.model import Cell, Column, DataTable, Facts, Note, Part, Section, Tile, View

FieldKind: TypeAlias = Literal["boolean", "number", "category", "text"]

_TEXT_WIDTH: Final = 100  # cells per line of ``str(comparison)``
_MAX_CELL_CHARACTERS: Final = 1_000  # per answer shown
_MAX_NAME_CHARACTERS: Final = 60  # per id or field shown


@frozen
class ComparedAmounts:
    """The known amounts of an output's rows; ``None`` if no amount is known.

    Attributes:
        unknown: number of rows whose amount is not known.
    """

    total: float | None
    median: float | None
    p95: float | None
    unknown: int

    @classmethod
    def of(cls, values: Sequence[float], unknown: int) -> ComparedAmounts:
        if not values:
            return cls(None, None, None, unknown)
        found = sorted(values)
        return cls(math.fsum(found), quantile(found, 0.5), quantile(found, 0.95), unknown)


@frozen(kw_only=True)
class ComparedOutput:
    """One of two compared outputs.

    Attributes:
        name: the name shown.
        models: the models of its rows, the most frequent first.
        rows: number of rows, without skipped ones.
        failures: number of failed rows by kind of error.
        truncated, empty, refused: number of answers with each defect.
        cost: USD per row, failed ones included.
        latency: seconds of the calls that answered.
    """

    name: str
    models: tuple[str, ...]
    rows: int
    failures: Mapping[str, int]
    skipped: int
    truncated: int
    empty: int
    refused: int
    cost: ComparedAmounts
    input_tokens: ComparedAmounts
    output_tokens: ComparedAmounts
    latency: ComparedAmounts

    @property
    def failed(self) -> int:
        """Number of failed rows."""
        return sum(self.failures.values())


@frozen
class NumberDifferences:
    """Differences of a numeric field, second minus first, over the rows in which both answers have it.

    Attributes:
        max_absolute: the largest difference, without its sign.
        correlation: Pearson's coefficient; ``None`` if one output has the same number in all these rows.
    """

    rows: int
    first_mean: float
    second_mean: float
    mean: float
    median: float
    max_absolute: float
    correlation: float | None


@frozen
class ConfusedPair:
    """Values of a field in the first and in the second output, ``None`` if missing, and the number of rows
    with them.
    """

    first: str | None
    second: str | None
    rows: int


@frozen
class ComparedField:
    """A field of parsed answers.

    Attributes:
        agreement: share of the rows with equal values, among those in which an answer has the field.
        confusion: the pairs of values of a boolean or a category, the most frequent first.
        differences: the differences of a number.
    """

    name: str
    kind: FieldKind
    agreement: Proportion
    confusion: tuple[ConfusedPair, ...] = ()
    differences: NumberDifferences | None = None


@frozen
class FlippedRow:
    """A row with two different answers, without its input.

    Attributes:
        fields: names of the fields that differ; empty if the texts were compared.
    """

    first: RecordedRow
    second: RecordedRow
    fields: tuple[str, ...]


@frozen(kw_only=True, repr=False, eq=False)
class Comparison:
    """Two outputs, compared row by row. Returned by :func:`smartbatch.compare`; notebooks display it.

    Two answers agree if all their fields are equal, or, without fields, if their texts are. Upper and lower
    case and differences in whitespace are ignored.

    Attributes:
        first, second: models, failures, cost, tokens and latency of each output.
        matched: number of rows in both outputs.
        only_in_first, only_in_second: number of rows in one output only.
        ids_only_in_first, ids_only_in_second: up to 20 ids of these rows.
        both_answered: number of matched rows that both outputs answered.
        only_first_answered, only_second_answered: number of matched rows that failed in the other output.
        not_comparable: number of rows that both answered without a text or fields, such as vectors.
        agreement: share of the compared answers that agree, with its 95 % interval (Wilson).
        fields: each field of parsed answers, with its own agreement.
        fields_left_out: number of further fields, which are not compared one by one.
        flipped: the first rows whose answers differ.
        flipped_rows: number of all such rows.
    """

    first: ComparedOutput
    second: ComparedOutput
    matched: int
    only_in_first: int
    only_in_second: int
    ids_only_in_first: tuple[str | int, ...]
    ids_only_in_second: tuple[str | int, ...]
    both_answered: int
    only_first_answered: int
    only_second_answered: int
    not_comparable: int
    agreement: Proportion
    fields: tuple[ComparedField, ...]
    fields_left_out: int
    flipped: tuple[FlippedRow, ...]

    @property
    def flipped_rows(self) -> int:
        return self.agreement.total - self.agreement.successes

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison as plain values that can be written as JSON, with the answers of
        :attr:`flipped`.
        """
        plain = asdict(self, filter=lambda each, _: each.name != "flipped", value_serializer=_serialized)
        flipped = [
            {
                **{name: getattr(row.first, name) for name in ("index", "id", "sample")},
                "differing_fields": list(row.fields),
                "first": {"text": row.first.text, "fields": dict(row.first.fields)},
                "second": {"text": row.second.text, "fields": dict(row.second.fields)},
            }
            for row in self.flipped
        ]
        return {**plain, "flipped_rows": self.flipped_rows, "flipped": flipped}

    @property
    def view(self) -> View:
        """The comparison as a title and sections, to be rendered as a page, as text or in a notebook."""
        return _view(self)

    def __repr__(self) -> str:
        return f"<Comparison {self.matched:,} rows in both, agreement {self.agreement}>"

    def __str__(self) -> str:
        from smartbatch.views.terminal import lines_of  # imported late, because most comparisons are pages

        return "\n".join(line.text for line in lines_of(self.view, _TEXT_WIDTH))

    def _repr_html_(self) -> str:
        from smartbatch.views.html import render, report  # imported late: Jinja is slow to import

        return render("frame.html", document=report(self.view))


def _serialized(_: object, __: object, value: Any) -> Any:
    return {"value": value.value, **asdict(value)} if isinstance(value, Proportion) else value


# -- the view ------------------------------------------------------------------------------------------------


def _view(one: Comparison) -> View:
    first, second = one.first.name, one.second.name
    interval = f"95 %: {one.agreement.interval}" if one.agreement.total else ""
    tiles = (
        Tile("agreement", one.agreement.percent, interval),
        Tile("rows in both", number(one.matched)),
        Tile("different answers", number(one.flipped_rows)),
    )
    left_out = plural(one.fields_left_out, "more field")
    more = None if not one.fields_left_out else Note(f"{left_out}: not compared one by one")
    sections = (
        Section("rows", "Rows", (_row_facts(one),)),
        Section("outputs", "Outputs", (_output_table(one.first, one.second),)),
        *([Section("fields", "Fields", (_field_table(one.fields), more))] if one.fields else ()),
        *_difference_sections(one),
        *(
            Section(
                f"values-{place}",
                f"{_cut(each.name)}: {first} (rows) and {second} (columns)",
                (table,),
            )
            for place, each in enumerate(one.fields)
            if (table := _confusion_table(each, one)) is not None
        ),
        Section("flipped", "Rows with different answers", _flipped_parts(one), empty="None."),
    )
    return View(f"Comparison of {first} and {second}", sections, tiles=tiles)


def _row_facts(one: Comparison) -> Facts:
    first, second = one.first.name, one.second.name
    only = (
        (f"only in {first}", one.only_in_first, one.ids_only_in_first),
        (f"only in {second}", one.only_in_second, one.ids_only_in_second),
    )
    counts = (
        ("answered by both", one.both_answered),
        (f"answered only by {first}", one.only_first_answered),
        (f"answered only by {second}", one.only_second_answered),
        ("answered without text or fields", one.not_comparable),
    )
    facts: list[tuple[str, Cell]] = [(name, number(count)) for name, count in counts if count]
    for name, count, ids in only:
        if count:
            rest = f", and {count - len(ids):,} more" if count > len(ids) else ""
            facts.append((name, f"{count:,}: {', '.join(_cut(str(id)) for id in ids)}{rest}"))
    return Facts(tuple(facts))


def _output_table(first: ComparedOutput, second: ComparedOutput) -> DataTable:
    def both(title: str, text: Callable[[ComparedOutput], str]) -> tuple[Cell, ...]:
        return title, text(first), text(second)

    rows = [
        both("model", lambda one: _cut(", ".join(one.models), _MAX_CELL_CHARACTERS) or UNKNOWN),
        both("rows", lambda one: number(one.rows)),
        both("failed", _failures),
        *(
            both(name, lambda one, name=name: number(getattr(one, name)))  # type: ignore[misc]
            for name in ("skipped", *DEFECTS)
            if getattr(first, name) or getattr(second, name)
        ),
        both("cost", lambda one: known_money(one.cost.total or 0.0, one.cost.unknown)),
        both("cost per row", lambda one: _spread(one.cost, money)),
        both("input tokens", lambda one: _total(one.input_tokens)),
        both("output tokens", lambda one: _total(one.output_tokens)),
        both("output tokens per row", lambda one: _spread(one.output_tokens, number)),
        both("latency", lambda one: _spread(one.latency, duration)),
    ]
    columns = (Column(""), Column(first.name), Column(second.name))
    return DataTable("Outputs", columns, tuple(rows))


def _failures(one: ComparedOutput) -> str:
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in one.failures.items())
    return f"{one.failed:,} ({kinds})" if kinds else "0"


def _total(amounts: ComparedAmounts) -> str:
    if amounts.total is None:
        return UNKNOWN if amounts.unknown else "0"
    return f"{'at least ' if amounts.unknown else ''}{number(amounts.total)}"


def _spread(amounts: ComparedAmounts, text: Callable[[float], str]) -> str:
    if amounts.median is None or amounts.p95 is None:
        return UNKNOWN
    return f"{text(amounts.median)} median, {text(amounts.p95)} p95"


def _field_table(fields: Sequence[ComparedField]) -> DataTable:
    rows = [
        (
            _cut(each.name),
            each.kind,
            each.agreement.percent,
            each.agreement.interval,
            each.agreement.total,
        )
        for each in fields
    ]
    return DataTable.of("Agreement of each field", "field, kind, agreement, 95 % interval, rows:number", rows)


def _difference_sections(one: Comparison) -> Iterator[Section]:
    rows = [
        (
            _cut(each.name),
            found.first_mean,
            found.second_mean,
            found.mean,
            found.median,
            found.max_absolute,
            found.correlation,
        )
        for each in one.fields
        if (found := each.differences) is not None
    ]
    if rows:
        columns = (
            "field, first mean:number, second mean:number, mean change:number, median change:number/2, "
            "max change:number, correlation:number/1"
        )
        yield Section("numbers", "Numbers", (DataTable.of("Changes of numbers", columns, rows),))


def _confusion_table(field: ComparedField, one: Comparison) -> DataTable | None:
    if not field.confusion:
        return None
    counts = {(pair.first, pair.second): pair.rows for pair in field.confusion}
    labels = sorted({label for pair in counts for label in pair}, key=lambda one: (one is None, one or ""))
    title = f"{_cut(field.name)}: rows by value in {one.first.name} and {one.second.name}"
    columns = (Column(""), *(Column(_label(label), "number") for label in labels))
    rows: list[tuple[Cell, ...]] = [
        (_label(row), *(counts.get((row, each), 0) for each in labels)) for row in labels
    ]
    return DataTable(title, columns, tuple(rows))


def _flipped_parts(one: Comparison) -> tuple[Part, ...]:
    if not one.flipped_rows:
        return ()
    rows = [
        (
            _cut(str(row.first.id)) + ("" if row.first.sample is None else f" #{row.first.sample}"),
            _answer(row.first, row.fields),
            _answer(row.second, row.fields),
        )
        for row in one.flipped
    ]
    columns = (Column("row"), Column(one.first.name), Column(one.second.name))
    rest = one.flipped_rows - len(rows)
    more = f"{rest:,} more {'row has' if rest == 1 else 'rows have'} different answers." if rest else None
    table = DataTable("Rows with different answers", columns, tuple(rows)) if rows else None
    return tuple(part for part in (table, more and Note(more)) if part)


def _answer(row: RecordedRow, fields: Sequence[str]) -> str:
    if not fields:
        return _cut(" ".join((row.text or "").split()), _MAX_CELL_CHARACTERS)
    values = ", ".join(f"{name}: {text_of(row.fields.get(name))}" for name in fields)
    return _cut(" ".join(values.split()), _MAX_CELL_CHARACTERS)


def _cut(text: str, most: int = _MAX_NAME_CHARACTERS) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _label(label: str | None) -> str:
    return "(missing)" if label is None else label or "(blank)"
