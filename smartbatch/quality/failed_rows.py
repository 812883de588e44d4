"""Groups the failed and flawed rows of an output by kind and message, with what to do about each kind."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from attrs import define, field, frozen

from smartbatch.errors import RowSkipped, snake_case
from smartbatch.failure_groups import FailureGroup, FailureGroups, remedy_for
from smartbatch.quality.recorded_row import RecordedRow, row_name
from smartbatch.types import DEFECTS

SKIPPED = snake_case(RowSkipped.__name__)
"""The kind of error of a row that was not sent because a field of its prompt is blank."""


@frozen
class FailedKind:
    """The rows with one kind of error, or whose answers have one defect.

    Attributes:
        kind: an :class:`ErrorKind`, the class of another error, or a defect.
        rows: the number of rows.
        groups: these rows by message, the largest group first; the message of a defect is empty.
        action: what to do.
        options: the options of ``smartbatch run`` that send these rows again.
    """

    kind: str
    rows: int
    groups: tuple[FailureGroup, ...]
    action: str
    options: str


@define
class FailedRows:
    """Counts failed and flawed rows one by one, in bounded memory."""

    answered: int = 0
    failed: int = 0
    skipped: int = 0
    longest: int = 0  # output tokens of the longest truncated answer
    _errors: FailureGroups = field(factory=FailureGroups)
    _defects: FailureGroups = field(factory=FailureGroups)

    def count(self, row: RecordedRow) -> None:
        if row.error_kind == SKIPPED:
            self.skipped += 1
            return
        name = row_name(row.index, row.id, row.sample)
        self.answered += row.ok
        self.failed += not row.ok
        if row.error_kind is not None:
            self._errors.count(row.error_kind, row.error or "", name, row.index)
        for defect in row.defects:
            self._defects.count(defect, "", name, row.index)
        if "truncated" in row.defects:
            self.longest = max(self.longest, row.output_tokens or 0)

    def kinds(self) -> Iterator[FailedKind]:
        """Yield the kinds of errors by number of rows, then the defects."""
        groups: dict[str, list[FailureGroup]] = {}
        for group in (*self._errors.largest(), *self._defects.largest()):
            groups.setdefault(group.kind, []).append(group)
        rows = {kind: sum(group.count for group in same) for kind, same in groups.items()}
        for kind in sorted(groups, key=lambda kind: (kind in DEFECTS, -rows[kind])):
            remedy = remedy_for(kind)
            option = remedy.option
            if kind == "truncated" and self.longest:
                option = option.replace("N", str(2 * self.longest))
            options = f"--resend {shlex.quote(kind)} {option}".rstrip()
            yield FailedKind(kind, rows[kind], tuple(groups[kind]), remedy.action, options)
