"""Scores answers against labels: accuracy, and precision and recall of each class."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Collection
from typing import Any, Final

from attrs import define, field, frozen

from smartbatch._words import UNKNOWN, plural
from smartbatch.quality.failed_rows import SKIPPED
from smartbatch.quality.intervals import Proportion, wilson
from smartbatch.quality.recorded_row import RecordedRow
from smartbatch.views.model import Cell, Column, DataTable, Note, Part, Section, View

_MAX_CLASSES: Final = 50  # with more, labels are probably free text
_MAX_SHOWN_CLASSES: Final = 12  # in the confusion table
_MAX_OTHER_ANSWERS: Final = 1_000  # distinct answers that are not a label so far
_MAX_CLASS_CHARACTERS: Final = 60
_NUMBER: Final = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?")
_OTHER: Final = None  # class of further answers


@frozen
class ClassScore:
    """How well the answers recognize the rows with one label.

    Attributes:
        name: the label, in lower case.
        precision: share of the answers with this value that are right.
        recall: share of the rows with this label that have this answer.
    """

    name: str
    precision: Proportion
    recall: Proportion

    @property
    def f1(self) -> float | None:
        """The harmonic mean of precision and recall; ``None`` if no row has this label or answer."""
        named = self.precision.total + self.recall.total
        return 2 * self.recall.successes / named if named else None


@frozen
class GivenLabels:
    """Labels that are not in the input, by row id. Ids are text, because tables and JSON lines write numeric
    ids differently.

    Attributes:
        right: the classes of the labels.
        wrong: classes of wrong answers, for rows whose right answer may not be known.
    """

    right: dict[str, str] = field(factory=dict)
    wrong: dict[str, set[str]] = field(factory=dict)


@define
class LabelScores:
    """Compares answers with labels, row by row and in bounded memory.

    The compared value is the field ``compared``; by default the only field of the parsed answer, the one
    named like the column, or the text of an answer without fields. Upper and lower case and surrounding
    whitespace are ignored, and ``4`` equals ``4.0``. Rows without a label are not scored, nor are rows
    without an answer.

    Attributes:
        column: the column with the labels, or the file they were read from.
        compared: the field of the answer.
        given: labels used instead of the column. If only a wrong answer is known for a row, the row is scored
            if it has that answer.
        scored, right: numbers of answers.
        unlabeled, unanswered: numbers of rows that are not scored.
        fields: the fields of the answers, if none was chosen; the answers are then not scored.
    """

    column: str
    compared: str | None = None
    given: GivenLabels | None = None
    scored: int = 0
    right: int = 0
    unlabeled: int = 0
    unanswered: int = 0
    fields: tuple[str, ...] = ()
    has_classes: bool = True  # false if there are too many different labels
    _pairs: Counter[tuple[str | None, str | None]] = field(factory=Counter)  # by label, if known, and answer
    _labels: set[str] = field(factory=set)
    _others: set[str] = field(factory=set)  # answers that were not a label when they were counted

    def count(self, row: RecordedRow) -> None:
        """Add a row, unless it was skipped."""
        if row.error_kind == SKIPPED:
            return
        label, wrong = self._label(row)
        if label is None and not wrong:
            self.unlabeled += 1
        elif not row.ok:
            self.unanswered += 1
        elif self.compared is None and len(row.fields) > 1 and self.column not in row.fields:
            self.fields = self.fields or tuple(row.fields)
        elif (answer := self.answer_of(row)) not in wrong and label is None:
            self.unlabeled += 1
        else:
            self.scored += 1
            self.right += label == answer
            if self.has_classes:
                self._count_pair(None if label is None else _cut(label), _cut(answer))

    def judged(self, row: RecordedRow) -> bool | None:
        """Return whether the answer of a row is right, without counting it; ``None`` if it is not scored."""
        one = LabelScores(self.column, self.compared, self.given)
        one.count(row)
        return one.right == 1 if one.scored else None

    def label_of(self, row: RecordedRow) -> str | None:
        """Return the class of a row's label; ``None`` without a label."""
        return self._label(row)[0]

    def _label(self, row: RecordedRow) -> tuple[str | None, Collection[str]]:
        """Return the label of a row, and answers that are wrong."""
        if self.given is None:
            return class_of(row.input.get(self.column)), ()
        return self.given.right.get(str(row.id)), self.given.wrong.get(str(row.id), ())

    def answer_of(self, row: RecordedRow) -> str:
        """Return the class of a row's answer; an empty string if it has none."""
        value: Any = row.text
        if self.compared is not None:
            value = row.fields.get(self.compared)
        elif row.fields:
            value = row.fields[self.column] if len(row.fields) > 1 else next(iter(row.fields.values()))
        return class_of(value) or ""

    def _count_pair(self, label: str | None, answer: str) -> None:
        if label is not None:
            self._labels.add(label)
        if len(self._labels) > _MAX_CLASSES:
            self.has_classes = False
            self._pairs.clear()
            return
        if answer not in self._labels and len(self._others) < _MAX_OTHER_ANSWERS:
            self._others.add(answer)
        is_kept = answer in self._labels or answer in self._others
        self._pairs[label, answer if is_kept else _OTHER] += 1

    @property
    def accuracy(self) -> Proportion:
        """The share of right answers among the scored ones."""
        return wilson(self.right, self.scored)

    def classes(self) -> list[ClassScore]:
        """Return the scores of each label, the most frequent first; none if there are too many."""
        labels, answers = Counter[str](), Counter[str | None]()
        for (label, answer), rows in self._pairs.items():
            answers[answer] += rows
            if label is not None:
                labels[label] += rows
        return [
            ClassScore(
                label,
                wilson(self._pairs[label, label], answers[label]),
                wilson(self._pairs[label, label], rows),
            )
            for label, rows in labels.most_common()
        ]

    def confusion(self) -> dict[str, list[int]]:
        """Return, for each label, how many of its rows were answered with each label; the last number counts
        all other answers.
        """
        names = [each.name for each in self.classes()]
        rows = {
            label: sum(count for pair, count in self._pairs.items() if pair[0] == label) for label in names
        }
        known = {label: [self._pairs[label, name] for name in names] for label in names}
        return {label: [*counts, rows[label] - sum(counts)] for label, counts in known.items()}


def class_of(value: Any) -> str | None:
    """Return the class that a label or an answer names; ``None`` for a missing or blank value."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(int(value)) if math.isfinite(value) and value == int(value) else repr(value)
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    text = text.strip().casefold()
    if _NUMBER.fullmatch(text) and len(text) <= _MAX_CLASS_CHARACTERS:
        return class_of(float(text)) if "." in text else text
    return text or None


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_CLASS_CHARACTERS else f"{text[: _MAX_CLASS_CHARACTERS - 1]}…"


# -- the view ------------------------------------------------------------------------------------------------


def label_view(scores: LabelScores) -> View:
    """Return the scores as a view. It shows labels, but no other answers."""
    return View(f"Labels: {scores.column}", (label_section(scores),))


def label_section(scores: LabelScores) -> Section:
    return Section("labels", "Accuracy", _parts(scores), empty="No row has a label.")


def _parts(scores: LabelScores) -> tuple[Part, ...]:
    parts: list[Part] = []
    if scores.fields:
        names = ", ".join(scores.fields)
        parts.append(
            Note(f"Not compared: the answers have the fields {names}; choose one with --label-field.")
        )
    if scores.scored:
        parts.append(
            Note(f"{scores.accuracy} of {plural(scores.scored, 'answer')} equal the label ({scores.column}).")
        )
    left_out = [
        f"{plural(rows, 'row')} without {what}"
        for rows, what in ((scores.unlabeled, "a label"), (scores.unanswered, "an answer"))
        if rows
    ]
    if left_out:
        parts.append(Note(f"Not scored: {' and '.join(left_out)}."))
    if not scores.has_classes:
        parts.append(Note(f"More than {_MAX_CLASSES} different labels, so only the accuracy is shown."))
    return (*parts, *_tables(scores))


def _tables(scores: LabelScores) -> tuple[Part, ...]:
    classes = scores.classes()
    if not classes:
        return ()
    rows = [
        (
            each.name,
            each.recall.total,
            _share(each.precision),
            _share(each.recall),
            None if each.f1 is None else f"{each.f1:.2f}",
        )
        for each in classes
    ]
    table = DataTable.of("Each label", "label, rows:number, precision (95 %), recall (95 %), F1", rows)
    if len(classes) > _MAX_SHOWN_CLASSES:
        return (table,)
    confusion = scores.confusion()
    columns = (
        *(Column("label \\ answer"), *(Column(name, "number") for name in confusion)),
        Column("(other)", "number"),
    )
    counts: list[tuple[Cell, ...]] = [(label, *found) for label, found in confusion.items()]
    return table, DataTable("Labels (rows) and answers (columns)", columns, tuple(counts))


def _share(share: Proportion) -> str:
    if share.value is None:
        return UNKNOWN
    return f"{100 * share.value:.1f} % ({100 * share.low:.1f} to {100 * share.high:.1f})"
