"""Recorded figures are read as they were written, and a comparison names each one that differs."""

from __future__ import annotations

from pathlib import Path

from tests import figures
from tests.core.walks.record import Record


def test_figures_are_read_as_they_were_written(tmp_path: Path) -> None:
    long = {f"figure_{number}": f"{number} in {number}" for number in range(60)}
    table = {
        "limits": {"10 a second": {"calls": "15", "order": "0-3 5 4"}, "none": {}},
        "jobs": {"one": long},
    }
    figures.write(tmp_path / "recorded.txt", table)
    assert figures.read(tmp_path / "recorded.txt") == table


def test_all_differences_are_told_by_name() -> None:
    recorded = {"limits": {"one": {"calls": "15", "seconds": "9"}, "two": {}, "three": {"calls": "1"}}}
    found = {"limits": {"one": {"calls": "16", "refused": "1"}, "two": {}, "four": {"calls": "1"}}}
    assert figures.differences(recorded, found) == [
        "limits, one: calls was 15, is 16",
        "limits, one: seconds was 9, is 0",
        "limits, one: refused was 0, is 1",
        "limits, three: no longer takes place",
        "limits, four: is not recorded",
    ]


def test_an_order_is_told_in_runs() -> None:
    assert figures.runs([0, 1, 2, 3, 5, 4, 7, 8]) == "0-3 5 4 7-8"


def test_a_record_tells_sums_words_and_the_order_of_lists() -> None:
    record = Record()
    for wait, state in ((0.0, "open"), (2.5, "open"), (float("inf"), "closed")):
        record.note("look", wait=wait, state=state, left=[3, 1, 2])
    assert record.figures() == {
        "look": {
            "times": "3",
            "wait": "2.5 in 1",
            "wait:never": "1",
            "state:closed": "1",
            "state:open": "2",
            "left": "18 in 9",
            "left:falls": "3",
        }
    }
