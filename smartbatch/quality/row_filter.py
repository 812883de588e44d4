"""Selects rows by error, defect, text, field, length and mark."""

from __future__ import annotations

from collections.abc import Iterator, Set

from attrs import frozen

from smartbatch.quality.labels import LabelScores
from smartbatch.quality.marks import Verdict
from smartbatch.quality.recorded_row import RecordedRow
from smartbatch.tables.cells import text_of
from smartbatch.types import Defect


@frozen(kw_only=True)
class RowFilter:
    """Conditions that a row must meet; those that are not set are met by every row.

    Attributes:
        failed: the row has no answer, or (if false) has one.
        error_kind: the kind of its error.
        defect: a defect of its answer.
        search: text that occurs in its id, input, answer or error, in upper or lower case.
        where: values of fields of the parsed answer or, if it has no such field, of the input.
        min_length, max_length: characters of the answer's text.
        verdict: a mark of the answer or of one of its fields; ``"none"`` if it must have none.
        scores: the labels by which answers are scored.
        scored_right: the answer is right, or (if false) wrong, by its label.
    """

    failed: bool | None = None
    error_kind: str | None = None
    defect: Defect | None = None
    search: str = ""
    where: tuple[tuple[str, str], ...] = ()
    min_length: int | None = None
    max_length: int | None = None
    verdict: Verdict | str | None = None
    scores: LabelScores | None = None
    scored_right: bool | None = None

    def matches(self, row: RecordedRow, verdicts: Set[str] = frozenset()) -> bool:
        """Whether a row with these marks meets all conditions."""
        if self.failed is not None and row.ok is self.failed:
            return False
        if self.error_kind is not None and row.error_kind != self.error_kind:
            return False
        if self.defect is not None and self.defect not in row.defects:
            return False
        if self.verdict is not None and self.verdict not in (verdicts or {"none"}):
            return False
        length = len(row.text or "")
        if not (self.min_length or 0) <= length <= (length if self.max_length is None else self.max_length):
            return False
        if any(_value(row, name) != wanted for name, wanted in self.where):
            return False
        if self.scores and self.scored_right not in (None, self.scores.judged(row)):
            return False
        wanted = self.search.lower()
        return not wanted or any(wanted in text.lower() for text in _texts(row))


def _value(row: RecordedRow, name: str) -> str | None:
    fields = row.fields if name in row.fields else row.input
    return text_of(fields[name]) if name in fields else None


def _texts(row: RecordedRow) -> Iterator[str]:
    yield str(row.id)
    yield row.text or ""
    yield row.error or ""
    yield from map(text_of, row.input.values())
    yield from map(text_of, row.fields.values())
