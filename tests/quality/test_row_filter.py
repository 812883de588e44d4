"""Rows selected by error, defect, text, field, length and mark."""

from __future__ import annotations

from typing import Any

import pytest

from smartbatch.quality.labels import LabelScores
from smartbatch.quality.recorded_row import RecordedRow
from smartbatch.quality.row_filter import RowFilter

ROWS = [
    RecordedRow(
        index=0,
        id="a",
        input={"text": "Füße", "mood": "Good"},
        text="yes",
        fields={"label": "good", "stars": 5},
    ),
    RecordedRow(
        index=1, id="b", input={"text": "plain", "label": "own", "mood": "no"}, text="", defects=("empty",)
    ),
    RecordedRow(index=2, id="c", input={"text": "plain"}, error_kind="timeout", error="It took too long"),
]


@pytest.mark.parametrize(
    ("wanted", "ids"),
    [
        ({}, "abc"),
        ({"failed": True}, "c"),
        ({"failed": False}, "ab"),
        ({"error_kind": "timeout"}, "c"),
        ({"error_kind": "network_error"}, ""),
        ({"defect": "empty"}, "b"),
        ({"search": "FÜSSE"}, ""),
        ({"search": "FÜß"}, "a"),
        ({"search": "TOO LONG"}, "c"),
        ({"search": "good"}, "a"),
        ({"where": (("label", "good"),)}, "a"),
        ({"where": (("label", "own"),)}, "b"),
        ({"where": (("stars", "5"), ("label", "good"))}, "a"),
        ({"where": (("stars", "4"),)}, ""),
        ({"min_length": 1}, "a"),
        ({"max_length": 2}, "bc"),
        ({"scores": LabelScores("mood", "label"), "scored_right": True}, "a"),
        ({"scores": LabelScores("mood", "label"), "scored_right": False}, "b"),
        ({"scores": LabelScores("mood", "label")}, "abc"),
        ({"verdict": "wrong"}, "b"),
        ({"verdict": "none"}, "ac"),
    ],
)
def test_a_row_must_meet_every_condition(wanted: dict[str, Any], ids: str):
    verdicts = {"b": {"wrong"}}
    chosen = RowFilter(**wanted)
    assert (
        "".join(str(row.id) for row in ROWS if chosen.matches(row, verdicts.get(str(row.id), set()))) == ids
    )
