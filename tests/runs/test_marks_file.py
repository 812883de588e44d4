"""The file of marks: the last mark counts, several processes may write, and a kill loses no complete mark."""

from __future__ import annotations

import json
import multiprocessing
import os
from typing import Any

import pytest

from smartbatch.errors import InputError
from smartbatch.quality.marks import Mark
from smartbatch.runs.marks_file import MarksFile, marks_path


def mark(index: int, verdict: Any = "right", **more: Any) -> Mark:
    return Mark(index=index, id=f"r{index}", answer="digest", verdict=verdict, **more)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "out.marks.jsonl")


@pytest.mark.parametrize(
    ("output", "marks"),
    [("a/out.jsonl", "a/out.marks.jsonl"), ("out.csv", "out.csv.marks.jsonl"), ("out", "out.marks.jsonl")],
)
def test_marks_are_kept_next_to_the_output(output, marks):
    assert marks_path(output) == marks


def test_the_last_mark_of_a_row_and_field_counts(path):
    file = MarksFile(path)
    assert list(file.read()) == []
    for each in (
        mark(0),
        mark(1),
        mark(0, "wrong", note="no"),
        mark(0, "right", field="label"),
        mark(1, None),
    ):
        file.add(each)
    expected = [mark(0, "wrong", note="no"), mark(0, "right", field="label")]
    assert list(file.read()) == list(MarksFile(path).read()) == expected


def test_marks_of_another_viewer_are_seen(path):
    one, other = MarksFile(path), MarksFile(path)
    one.add(mark(0))
    assert list(other.read()) == [mark(0)]
    one.add(mark(0, "unsure"))
    assert list(other.read()) == [mark(0, "unsure")]
    os.unlink(path)
    assert list(other.read()) == []


def test_a_mark_cut_off_by_a_kill_is_removed_by_the_next_one(path):
    file = MarksFile(path)
    file.add(mark(0))
    with open(path, "a") as other:
        other.write('{"index": 1, "id"')
    assert list(file.read()) == [mark(0)]
    file.add(mark(2))
    assert list(file.read()) == list(MarksFile(path).read()) == [mark(0), mark(2)]


@pytest.mark.parametrize(
    "text", ["x", "[]", '{"index": 0}', '{"index": 0, "id": "a", "answer": "x", "verdict": "perhaps"}']
)
def test_a_file_of_something_else_is_refused(path, text):
    with open(path, "w") as file:
        file.write(text + "\n")
    with pytest.raises(InputError, match="has a line that is not a mark"):
        MarksFile(path).read()


def test_a_mark_that_cannot_be_written_is_reported(tmp_path):
    with pytest.raises(InputError, match=r"out\.marks\.jsonl: cannot be written: No such file or directory"):
        MarksFile(str(tmp_path / "gone" / "out.marks.jsonl")).add(mark(0))


def test_a_link_in_place_of_the_file_is_not_followed(tmp_path, path):
    (tmp_path / "other").write_text("precious")
    os.symlink(tmp_path / "other", path)
    with pytest.raises(InputError, match="cannot be written"):
        MarksFile(path).add(mark(0))
    assert (tmp_path / "other").read_text() == "precious"


def add_many(path: str, first: int) -> None:
    file = MarksFile(path)
    for number in range(first, first + 50):
        file.add(mark(number, note="x" * 500))


@pytest.mark.full
def test_several_processes_may_mark_rows_at_once(path):
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=add_many, args=(path, 50 * number)) for number in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert sorted(one.index for one in MarksFile(path).read()) == list(range(200))
    with open(path) as lines:
        assert all(json.loads(each) for each in lines)
