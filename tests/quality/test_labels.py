"""Answers compared with labels: which value counts, what is equal, and the scores of each class."""

from __future__ import annotations

from typing import Any

import pytest

from smartbatch.quality.labels import LabelScores, class_of, label_view
from smartbatch.quality.recorded_row import RecordedRow
from smartbatch.views.html import report
from smartbatch.views.terminal import lines_of, text_of
from tests.hostile import HOSTILE, Elements
from tests.levels import sampled


def row(label: Any, answer: Any = None, /, **fields: Any) -> RecordedRow:
    return RecordedRow(index=0, id=0, input={"label": label}, text=answer, fields=fields)


def scored(*rows: RecordedRow, compared: str | None = None) -> LabelScores:
    scores = LabelScores("label", compared)
    for each in rows:
        scores.count(each)
    return scores


@pytest.mark.parametrize(
    ("label", "answer"),
    [
        ("Positive", " positive\n"),
        ("STRASSE", "straße"),
        ("True", True),
        ("false", False),
        ("4", 4),
        ("4.0", 4),
        (4, 4.0),
        ("0.50", 0.5),
        (["a", 1], ["a", 1]),
    ],
)
def test_equal_values_may_be_written_differently(label, answer):
    assert class_of(label) == class_of(answer)
    assert scored(row(label, value=answer)).right == 1


@pytest.mark.parametrize(
    ("label", "answer"), [("positive", "positive."), ("007", 7), ("1", True), ("yes", True)]
)
def test_different_values_stay_different(label, answer):
    assert class_of(label) != class_of(answer)


@pytest.mark.parametrize("blank", [None, "", "  ", float("nan")])
def test_rows_without_a_label_are_not_scored(blank):
    scores = scored(row(blank, "a"), row("a", "a"))
    assert (scores.scored, scores.right, scores.unlabeled) == (1, 1, 1)


def test_the_only_field_the_field_of_that_name_or_the_text_is_compared():
    assert scored(row("a", '{"x": "a"}', x="a")).right == 1
    assert scored(row("a", None, label="a", reason="b")).right == 1
    assert scored(row("a", "A")).right == 1
    assert scored(row("b", None, label="a", reason="b"), compared="reason").right == 1
    unclear = scored(row("a", None, stars=4, reason="b"))
    assert (unclear.scored, unclear.fields) == (0, ("stars", "reason"))
    assert "choose one with --label-field" in text_of(label_view(unclear))


def test_failed_rows_and_missing_fields():
    failed = RecordedRow(index=1, id=1, input={"label": "a"}, error_kind="timeout", error="oh")
    scores = scored(failed, row("a", None, x="a"), row("a", None, y="a"), compared="x")
    assert (scores.unanswered, scores.scored, scores.right) == (1, 2, 1)


def test_the_scores_of_a_published_example():
    """The confusion table of cats, dogs and rabbits in the documentation of scikit-learn's metrics."""
    counts = {
        ("cat", "cat"): 5,
        ("cat", "dog"): 3,
        ("dog", "cat"): 2,
        ("dog", "dog"): 3,
        ("dog", "rabbit"): 1,
    }
    counts |= {("rabbit", "dog"): 2, ("rabbit", "rabbit"): 11}
    scores = scored(*(row(label, answer) for (label, answer), rows in counts.items() for _ in range(rows)))
    assert str(scores.accuracy) == "70.4 % (95 %: 51.5 to 84.1 %)"
    found = {each.name: (each.precision.value, each.recall.value, each.f1) for each in scores.classes()}
    assert found["cat"] == pytest.approx((5 / 7, 5 / 8, 2 / 3))
    assert found["dog"] == pytest.approx((3 / 8, 3 / 6, 3 / 7))
    assert found["rabbit"] == pytest.approx((11 / 12, 11 / 13, 22 / 25))
    assert scores.confusion() == {
        "rabbit": [11, 0, 2, 0],
        "cat": [0, 5, 3, 0],
        "dog": [1, 2, 3, 0],
    }


def test_answers_that_are_no_label_are_counted_but_not_shown():
    scores = scored(row("a", "a"), row("a", "SECRET text"), row("b", "SECRET text"), row("b", None))
    assert scores.confusion() == {"a": [1, 0, 1], "b": [0, 0, 2]}
    assert scores.classes()[1].precision.value is None
    shown = text_of(label_view(scores))
    assert "secret" not in shown.lower()
    assert "25.0 % (95 %: 4.6 to 69.9 %) of 4 answers equal the label (label)." in shown


def test_free_text_has_an_accuracy_and_no_classes():
    scores = scored(*(row(f"label {n}", f"label {n % 100}") for n in range(200)))
    assert (scores.right, scores.classes()) == (100, [])
    assert "More than 50 different labels" in text_of(label_view(scores))


def test_memory_is_bounded_however_long_answers_are():
    scores = scored(*(row("a" if n % 2 else "b", f"{n} " * 1000) for n in range(5000)))
    assert scores.confusion() == {"a": [0, 0, 2500], "b": [0, 0, 2500]}
    assert sum(len(str(pair)) for pair in scores._pairs) < 200_000


@pytest.mark.parametrize("name", sampled(HOSTILE, keep=2, first=1))
def test_hostile_labels_are_only_text(name):
    view = label_view(scored(row(HOSTILE[name], HOSTILE[name]), row(HOSTILE[name], "other"), row("b", "b")))
    assert all(line.text.isprintable() for line in lines_of(view, 80))
    page = Elements(report(view))
    assert {"script", "img"}.isdisjoint(page.tags)
    assert not any(attribute.startswith("on") for attribute, _ in page.attributes)
