"""Matches the rows of two outputs, and compares their answers.

Both outputs are read at the same time. A row waits until the other output has it, too, so outputs in about
the same order are compared in little memory. In any other order, memory grows by a digest of each row.
"""

from __future__ import annotations

import json
import statistics
import sys
from array import array
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from hashlib import blake2b
from itertools import islice, zip_longest
from typing import Any, Final, TypeAlias

from attrs import define, evolve, field

from smartbatch._words import escape
from smartbatch.errors import InputError, RowSkipped, snake_case
from smartbatch.quality.comparison import (
    ComparedAmounts,
    ComparedField,
    ComparedOutput,
    Comparison,
    ConfusedPair,
    FieldKind,
    FlippedRow,
    NumberDifferences,
)
from smartbatch.quality.intervals import wilson
from smartbatch.quality.recorded_row import RecordedRow
from smartbatch.types import DEFECTS

_Value: TypeAlias = str | float | bool | None  # of a field, ready to be compared

_MAX_FIELDS: Final = 100
_MAX_LABELS: Final = 20  # per category
_MAX_LABEL_CHARACTERS: Final = 40
_MAX_NUMBER: Final = 1e100  # larger numbers are compared as text
_MAX_WAITING_CHARACTERS: Final = 20_000_000
"""Characters of the answers that are kept while their rows wait, to be shown if they flip."""
_MAX_SHOWN_IDS: Final = 20
_SKIPPED: Final = snake_case(RowSkipped.__name__)
_LONG: Final = "\0"  # begins the digest that replaces a long text


def compare_rows(
    first: Iterable[RecordedRow],
    second: Iterable[RecordedRow],
    *,
    names: tuple[str, str],
    max_flipped: int,
) -> Comparison:
    """Compare two outputs row by row. Rows with the same id and sample match; if an id occurs several times,
    in the order in which its rows occur.

    Args:
        names: the names of the outputs.
        max_flipped: maximum number of rows in :attr:`Comparison.flipped`.

    Raises:
        InputError: no row is in both outputs.
    """
    sides, pairs = (_Side(), _Side()), _Pairs(max_flipped)
    for both in zip_longest(first, second):
        for at, row in enumerate(both):
            if row is None or not sides[at].counts(row):
                continue
            found, other = pairs.prepared(row), sides[1 - at].take(row)
            if other is None:
                sides[at].wait(row, found)
            else:
                pairs.compare(*((found, other) if at == 0 else (other, found)))
    if not pairs.outcomes.total():
        raise InputError(
            f"no row of {escape(names[0])} is in {escape(names[1])}; rows are matched by id, so both runs "
            "need the same --id-field"
        )
    return _comparison(sides, pairs, names)


def _comparison(sides: tuple[_Side, _Side], pairs: _Pairs, names: tuple[str, str]) -> Comparison:
    first, second = sides
    outcomes = pairs.outcomes
    return Comparison(
        first=first.output(names[0]),
        second=second.output(names[1]),
        matched=outcomes.total(),
        only_in_first=first.waiting_rows,
        only_in_second=second.waiting_rows,
        ids_only_in_first=first.waiting_ids(),
        ids_only_in_second=second.waiting_ids(),
        both_answered=outcomes[True, True],
        only_first_answered=outcomes[True, False],
        only_second_answered=outcomes[False, True],
        not_comparable=outcomes[True, True] - pairs.compared,
        agreement=wilson(pairs.agreed, pairs.compared),
        fields=tuple(tally.field(name) for name, tally in pairs.fields.items() if tally.rows),
        fields_left_out=len(pairs.left_out),
        flipped=tuple(sorted(pairs.flipped, key=lambda row: row.first.index)),
    )


# -- one output ----------------------------------------------------------------------------------------------


@define
class _PreparedRow:
    """What is kept of a row in order to compare it."""

    id: str | int
    is_answered: bool
    digest: bytes | None  # of all fields, or else of the text; ``None`` if there is neither
    values: tuple[_Value, ...]  # by the position of the field
    row: RecordedRow | None  # ``None`` if too many answers wait
    next: _PreparedRow | None = None  # the next one with the same id


@define
class _AmountTally:
    values: array[float] = field(factory=lambda: array("d"))
    unknown: int = 0

    def add(self, value: float | None) -> None:
        if value is None:
            self.unknown += 1
        else:
            self.values.append(value)

    def amounts(self) -> ComparedAmounts:
        return ComparedAmounts.of(self.values, self.unknown)


@define
class _Side:
    """The totals of an output, and its rows that wait for the other output."""

    counts_by_name: Counter[str] = field(factory=Counter)
    models: Counter[str] = field(factory=Counter)
    failures: Counter[str] = field(factory=Counter)
    cost: _AmountTally = field(factory=_AmountTally)
    input_tokens: _AmountTally = field(factory=_AmountTally)
    output_tokens: _AmountTally = field(factory=_AmountTally)
    latency: _AmountTally = field(factory=_AmountTally)
    waiting: dict[Hashable, _PreparedRow] = field(factory=dict)
    waiting_rows: int = 0
    waiting_characters: int = 0

    def counts(self, row: RecordedRow) -> bool:
        """Add a row to the totals; return whether it is to be compared. Skipped rows are not."""
        if row.error_kind == _SKIPPED:
            self.counts_by_name["skipped"] += 1
            return False
        self.counts_by_name.update(("rows", *row.defects))
        if row.model is not None:
            self.models[row.model] += 1
        if row.error_kind is not None:
            self.failures[row.error_kind] += 1
        else:
            self.latency.add(row.latency)
        self.cost.add(row.cost)
        self.input_tokens.add(row.input_tokens)
        self.output_tokens.add(row.output_tokens)
        return True

    def wait(self, row: RecordedRow, prepared: _PreparedRow) -> None:
        self.waiting_rows += 1
        prepared.row = evolve(row, input={})
        if self.waiting_characters + (size := _size(prepared)) > _MAX_WAITING_CHARACTERS:
            prepared.row, size = None, 0
        self.waiting_characters += size
        last = self.waiting.setdefault(_key(row), prepared)
        if last is not prepared:
            while last.next is not None:
                last = last.next
            last.next = prepared

    def take(self, row: RecordedRow) -> _PreparedRow | None:
        """Return the first waiting row that matches a row of the other output, and stop keeping it."""
        found = self.waiting.pop(_key(row), None)
        if found is not None:
            self.waiting_rows -= 1
            self.waiting_characters -= _size(found)
            if found.next is not None:
                self.waiting[_key(row)] = found.next
        return found

    def waiting_ids(self) -> tuple[str | int, ...]:
        return tuple(row.id for row in islice(self.waiting.values(), _MAX_SHOWN_IDS))

    def output(self, name: str) -> ComparedOutput:
        return ComparedOutput(
            name=name,
            models=tuple(model for model, _ in self.models.most_common()),
            failures=dict(self.failures.most_common()),
            cost=self.cost.amounts(),
            input_tokens=self.input_tokens.amounts(),
            output_tokens=self.output_tokens.amounts(),
            latency=self.latency.amounts(),
            **{each: self.counts_by_name[each] for each in ("rows", "skipped", *DEFECTS)},
        )


def _key(row: RecordedRow) -> Hashable:
    return str(row.id) if row.sample is None else (str(row.id), row.sample)


def _size(prepared: _PreparedRow) -> int:
    row = prepared.row
    return 0 if row is None else len(row.text or "") + sum(len(str(value)) for value in row.fields.values())


# -- the matched rows ----------------------------------------------------------------------------------------


@define
class _Pairs:
    """The comparison of the rows that both outputs have."""

    max_flipped: int
    outcomes: Counter[tuple[bool, bool]] = field(factory=Counter)  # whether each output answered
    compared: int = 0
    agreed: int = 0
    fields: dict[str, _FieldTally] = field(factory=dict)
    left_out: set[str] = field(factory=set)
    flipped: list[FlippedRow] = field(factory=list)

    def prepared(self, row: RecordedRow) -> _PreparedRow:
        values = {name: made for name, value in row.fields.items() if (made := _value(value)) is not None}
        for name in values:
            if name not in self.fields and len(self.fields) < _MAX_FIELDS:
                self.fields[name] = _FieldTally()
            elif name not in self.fields and len(self.left_out) < _MAX_FIELDS:
                self.left_out.add(name)
        if values:
            text = json.dumps([(name, _label(values[name])) for name in sorted(values)])
        else:
            text = _normalized(row.text or "")
        return _PreparedRow(
            id=row.id,
            is_answered=row.ok,
            digest=_digest(text) if text else None,
            values=tuple(map(values.get, self.fields)) if values else (),
            row=row,
        )

    def compare(self, first: _PreparedRow, second: _PreparedRow) -> None:
        self.outcomes[first.is_answered, second.is_answered] += 1
        if not (first.is_answered and second.is_answered) or first.digest is second.digest is None:
            return
        self.compared += 1
        differing: tuple[str, ...] = ()
        if first.values and second.values:
            pairs = zip_longest(first.values, second.values)
            differing = tuple(
                name
                for (name, tally), (one, other) in zip(self.fields.items(), pairs, strict=False)
                if not tally.agree(one, other)
            )
        if first.digest == second.digest:
            self.agreed += 1
        elif len(self.flipped) < self.max_flipped and first.row is not None and second.row is not None:
            self.flipped.append(
                FlippedRow(evolve(first.row, input={}), evolve(second.row, input={}), differing)
            )


@define
class _FieldTally:
    """The values of a field in the rows that both outputs answered with fields."""

    rows: int = 0
    agreed: int = 0
    kinds: set[FieldKind] = field(factory=set)
    labels: set[str] = field(factory=set)  # at most one more than a category has
    pairs: Counter[tuple[str | None, str | None]] = field(factory=Counter)
    first: array[float] = field(factory=lambda: array("d"))
    second: array[float] = field(factory=lambda: array("d"))

    def agree(self, one: _Value, other: _Value) -> bool:
        """Count the values of a row, and return whether they are equal."""
        if one is None and other is None:
            return True
        labels = _label(one), _label(other)
        for value, label in zip((one, other), labels, strict=True):
            if value is not None and label is not None:
                self.kinds.add(_kind(value))
                if len(self.labels) <= _MAX_LABELS:
                    self.labels.add(label)
        if len(self.labels) <= _MAX_LABELS:
            self.pairs[labels] += 1
        if self.kinds == {"number"} and one is not None and other is not None:
            self.first.append(float(one))
            self.second.append(float(other))
        self.rows += 1
        self.agreed += labels[0] == labels[1]
        return labels[0] == labels[1]

    def field(self, name: str) -> ComparedField:
        few = len(self.labels) <= min(_MAX_LABELS, max(3, self.rows // 2))
        is_category = few and not any(label.startswith(_LONG) for label in self.labels)
        kind: FieldKind = "category" if is_category else "text"
        if len(self.kinds) == 1 and "text" not in self.kinds:
            (kind,) = self.kinds
        has_pairs = kind in ("boolean", "category")
        return ComparedField(
            name=name,
            kind=kind,
            agreement=wilson(self.agreed, self.rows),
            confusion=tuple(
                ConfusedPair(*pair, count) for pair, count in self.pairs.most_common() if has_pairs
            ),
            differences=_differences(self.first, self.second) if kind == "number" and self.first else None,
        )


def _differences(first: Sequence[float], second: Sequence[float]) -> NumberDifferences:
    differences = array("d", (other - one for one, other in zip(first, second, strict=True)))
    try:
        correlation = statistics.correlation(first, second)
    except statistics.StatisticsError:  # fewer than two rows, or the same number in all of them
        correlation = None
    return NumberDifferences(
        rows=len(differences),
        first_mean=statistics.fmean(first),
        second_mean=statistics.fmean(second),
        mean=statistics.fmean(differences),
        median=statistics.median(differences),
        max_absolute=max(map(abs, differences)),
        correlation=correlation,
    )


# -- values --------------------------------------------------------------------------------------------------


def _normalized(text: str) -> str:
    return " ".join(text.split()).casefold()


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).digest()


def _value(value: Any) -> _Value:
    """Return a value of a field as it is compared: a long text is replaced by a digest."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float) and -_MAX_NUMBER < value < _MAX_NUMBER:
        return value
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    text = _normalized(text)
    if len(text) > _MAX_LABEL_CHARACTERS:
        return _LONG + _digest(text).hex()
    return sys.intern(text)


def _kind(value: _Value) -> FieldKind:
    return "boolean" if isinstance(value, bool) else "number" if isinstance(value, int | float) else "text"


def _label(value: _Value) -> str | None:
    """Return a value as text. Tables and JSON lines write numbers and booleans differently, but their labels
    are equal.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if value == int(value) else repr(value)
