"""Marks of answers, and the accuracy that they yield."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from smartbatch.quality.marks import Mark, MarkedAccuracy, answer_digest
from smartbatch.quality.recorded_row import RecordedRow

ROW = RecordedRow(index=3, id="r3", input={"text": "fine"}, text="positive", fields={"label": "positive"})


def mark(verdict: Any, field: str | None = None) -> Mark:
    return Mark(index=3, id="r3", answer="x", verdict=verdict, field=field)


def test_accuracy_is_the_share_of_right_among_right_and_wrong():
    found = MarkedAccuracy.of([*[mark("right")] * 9, mark("wrong"), mark("unsure"), mark(None)])
    assert (found.answers.successes, found.answers.total, found.unsure) == (9, 10, 1)
    assert str(found.answers) == "90.0 % (95 %: 59.6 to 98.2 %)"


def test_each_field_has_an_accuracy_of_its_own():
    found = MarkedAccuracy.of([mark("right"), mark("wrong", "stars"), mark("right", "label")])
    assert found.answers.value == 1.0
    assert {name: share.value for name, share in found.fields.items()} == {"label": 1.0, "stars": 0.0}


def test_without_marks_the_accuracy_is_unknown():
    assert MarkedAccuracy.of([]).answers.value is None


@pytest.mark.parametrize(
    "changes", [{"text": "negative"}, {"fields": {}}, {"input": {}}, {"error_kind": "timeout"}, {"id": "r4"}]
)
def test_a_mark_is_of_the_answer_that_was_marked(changes):
    made = Mark(index=3, id="r3", answer=answer_digest(ROW), verdict="right")
    assert made.is_of(evolve(ROW, cost=0.5, attempts=3))
    assert not made.is_of(evolve(ROW, **changes))
