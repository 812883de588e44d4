"""Rows of an output by position: in input order, whatever the order of the lines, and in little memory."""

from __future__ import annotations

import itertools
import json
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from smartbatch.errors import InputError
from smartbatch.quality.row_filter import RowFilter
from smartbatch.runs.row_index import RowIndex
from smartbatch.tables.result_files import write_table
from tests.levels import sampled


def line(index: int, **changes: Any) -> dict[str, Any]:
    sample = {"sample": changes.pop("sample")} if "sample" in changes else {}
    whole = {
        "index": index,
        "id": f"r{index}",
        **sample,
        "input": {"text": f"word {index}"},
        "model": "sim:x",
    }
    usage = {"input_tokens": 3, "output_tokens": 5}
    return {**whole, "text": f"answer {index}", "usage": usage, "cost": 0.5, "error": None, **changes}


def failed(index: int, kind: str = "timeout") -> dict[str, Any]:
    return line(index, text=None, error={"kind": kind, "message": "it broke"})


@pytest.fixture
def index_of(tmp_path):
    def make(*lines: dict[str, Any]) -> RowIndex:
        path = tmp_path / "out.jsonl"
        path.write_text("".join(json.dumps(each) + "\n" for each in lines))
        return RowIndex(str(path))

    return make


def ids(index: RowIndex, wanted: RowFilter | None = None, **more: Any) -> list[str | int]:
    return [row.id for _, row in index.find(wanted or RowFilter(), **more).rows]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)], ids=["finished", "running"])
def test_rows_are_in_input_order(index_of, order):
    index = index_of(*(line(number) for number in order))
    assert ids(index) == ["r0", "r1", "r2"]
    assert [index.row(at).text for at in range(len(index))] == ["answer 0", "answer 1", "answer 2"]


def test_of_several_lines_of_a_row_the_counted_one_is_shown(index_of):
    for lines in ((failed(0), line(1), line(0), failed(1)), (failed(0), line(0), line(1))):
        assert [row.ok for _, row in index_of(*lines).find(RowFilter()).rows] == [True, True]


@pytest.mark.parametrize("step", [1, -1], ids=["finished", "running"])
def test_samples_of_a_row_have_positions_of_their_own(index_of, step):
    places = [(0, 0), (0, 1), (1, 0), (1, 1)]
    index = index_of(*(line(row, sample=sample) for row, sample in places[::step]))
    assert [(row.index, row.sample) for _, row in index.find(RowFilter()).rows] == places
    assert index.position_of(1, 0) == 2
    assert index.position_of(2, 0) is None


@pytest.mark.parametrize("tail", ['{"index": 2, "id', '{"index": 2, "id": "r2", "input": {}, "te'])
def test_a_line_cut_off_by_a_kill_is_left_out(tmp_path, tail):
    path = tmp_path / "out.jsonl"
    path.write_text(json.dumps(line(0)) + "\n" + tail)
    assert ids(RowIndex(str(path))) == ["r0"]


@pytest.mark.parametrize("format", sampled(("csv", "parquet")))
def test_tables_have_the_same_rows(tmp_path, format):
    lines = [line(0, parsed={"label": "good"}), failed(1)]
    for each in lines:
        each |= {"finish_reason": "stop", "latency": 0.1, "attempts": 1, "dropped": {}, "key": "ab" * 32}
    path = tmp_path / f"out.{format}"
    with open(path, "wb") as file:
        write_table(format, lambda: iter(lines), file)
    index = RowIndex(str(path))
    assert ids(index, RowFilter(where=(("label", "good"),))) == ["r0"]
    assert ids(index, RowFilter(error_kind="timeout")) == ["r1"]


def test_a_page_goes_on_after_the_last_position(index_of):
    index = index_of(*(line(number) for number in range(5)))
    first = index.find(RowFilter(), limit=2)
    assert (first.searched, first.is_last) == (1, False)
    assert ids(index, after=first.searched, limit=2) == ["r2", "r3"]
    assert index.find(RowFilter(), after=3, limit=1).is_last


def test_a_long_search_stops_and_says_how_far_it_came(index_of):
    index = index_of(*(line(number) for number in range(100)))
    steps = itertools.count(1)
    found = index.find(RowFilter(search="word 99"), is_over=lambda: next(steps) == 40)
    assert (found.rows, found.searched, found.is_last) == ([], 39, False)
    rest = index.find(RowFilter(search="word 99"), after=found.searched)
    assert ([row.id for _, row in rest.rows], rest.is_last) == (["r99"], True)


TEXTS = ['say "yes"', "back\\slash", "Ünïcode ß", "line\nbreak", "tab\there", "\u2028", "a/b", "<b>", "1.5"]


@pytest.mark.parametrize("text", sampled(TEXTS, keep=3))
def test_a_search_finds_any_text_without_decoding_all_lines(index_of, text):
    index = index_of(line(0, text=f"x {text} y"), line(1), line(2, input={"nested": [f"{text}!"]}))
    assert ids(index, RowFilter(search=text.upper() if text.isascii() else text))[:1] == ["r0"]
    assert ids(index, RowFilter(where=(("text", "word 1"),))) == ["r1"]


def test_a_field_that_looks_like_an_error_is_no_failure(index_of):
    index = index_of(line(0, input={"error": {"kind": "timeout"}}), failed(1), line(2, input={"error": None}))
    assert ids(index, RowFilter(failed=True)) == ["r1"]
    assert ids(index, RowFilter(error_kind="timeout")) == ["r1"]
    assert ids(index, RowFilter(failed=False)) == ["r0", "r2"]


def test_marked_rows_are_found_by_their_marks(index_of):
    index = index_of(*(line(number) for number in range(5)))
    verdicts = {3: {"wrong"}, 1: {"right", "wrong"}, 4: {"right"}}
    assert ids(index, RowFilter(verdict="wrong"), verdicts=verdicts) == ["r1", "r3"]
    assert ids(index, RowFilter(verdict="wrong"), verdicts=verdicts, after=1) == ["r3"]
    assert ids(index, RowFilter(verdict="none"), verdicts=verdicts) == ["r0", "r2"]


def test_a_changed_output_is_noticed_and_its_old_rows_stay(index_of, tmp_path):
    index = index_of(line(0))
    assert not index.has_changed
    new = tmp_path / "new.jsonl"
    new.write_text(json.dumps(line(7)) + "\n")
    new.replace(tmp_path / "out.jsonl")
    assert index.has_changed
    assert ids(index) == ["r0"]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("no JSON\n", "line 1 is not JSON"),
        ('{"a": 1}\n', "line 1 is not a result"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_a_file_that_is_no_output_is_not_opened(tmp_path, content, what):
    path = tmp_path / "x.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=what):
        RowIndex(str(path))


def test_a_damaged_line_is_named_when_it_is_shown(index_of):
    index = index_of(line(0), line(1, error="x"), line(2))
    assert index.row(2).ok
    with pytest.raises(InputError, match=r"out\.jsonl: the line of row 1 is damaged"):
        index.row(1)


def large(path: Path, rows: Iterable[int]) -> None:
    with open(path, "w") as file:
        file.writelines(json.dumps(line(number)) + "\n" for number in rows)


@pytest.mark.full
def test_each_row_takes_sixteen_bytes_of_memory(tmp_path):
    large(tmp_path / "out.jsonl", range(100_000))
    tracemalloc.start()
    try:
        index = RowIndex(str(tmp_path / "out.jsonl"))
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()
    assert [row.id for _, row in index.find(RowFilter(), after=99_997).rows] == ["r99998", "r99999"]
