"""Outputs that are tables: resumed as lines are, whole at any time, and never without a paid answer."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from cli.runs import Child, prompts, stored_prompts, until
from hypothesis import given
from hypothesis import strategies as st
from levels import sampled

from smartbatch import BatchingClient
from smartbatch.cli.main import main
from smartbatch.runs import table_output
from smartbatch.runs.table_output import read_table
from smartbatch.tables.result_files import Line, UnwritableTable, write_table
from smartbatch.tables.row_formats import BadRow
from smartbatch.tables.row_source import READERS

OWN = "call:own_calls:ask"
FORMATS = ["csv", "parquet"]
both = pytest.mark.parametrize("name", sampled([f"out.{format}" for format in FORMATS]))


def run(name: str, *args: str, input: str = "in.txt") -> int:
    return main(["run", input, "--model", OWN, "--parallelism", "2", "-o", name, *args])


def table(name: str) -> list[dict[str, Any]]:
    with open(name, "rb") as file:
        rows = list(READERS[name.rpartition(".")[2]](file))
    assert not any(isinstance(row, BadRow) for row in rows), rows
    return [row[1] for row in rows if isinstance(row, tuple)]


def left() -> set[str]:
    return {path.name for path in Path().iterdir()} - {"code", "state", "in.txt", "in.jsonl"}


def partial(name: str) -> list[Line]:
    return [json.loads(line) for line in Path(name + ".partial.jsonl").read_bytes().split(b"\n")[:-1]]


def ends_without_asking(calls: Any, name: str, expected: list[str]) -> None:
    calls.asked.clear()
    assert run(name) == 0
    assert calls.asked == []
    assert [row["prompt"] for row in table(name)] == expected
    assert left() == {name}


@pytest.mark.full
@both
def test_a_table_is_written_and_resumed(calls, name):
    expected = prompts(5)
    assert run(name, "--limit", "3") == 0
    assert [row["prompt"] for row in table(name)] == expected[:3]
    calls.asked.clear()
    assert run(name) == 0
    assert sorted(calls.asked) == expected[3:]
    rows = table(name)
    assert [row["prompt"] for row in rows] == expected
    assert [row["text"] for row in rows] == [f"answer to {prompt}" for prompt in expected]
    assert [int(row["index"]) for row in rows] == list(range(5))
    before = os.stat(name)
    assert run(name) == 0
    assert os.stat(name).st_mtime_ns == before.st_mtime_ns
    assert sorted(calls.asked) == expected[3:]
    assert left() == {name}


@pytest.mark.full
@pytest.mark.parametrize("before", [0, 7])
@pytest.mark.parametrize("name", [f"out.{format}" for format in FORMATS])
def test_a_killed_run_loses_no_answered_row_and_pays_none_twice(calls, name, before):
    expected = prompts(60)
    if before:
        with Child("-o", name, "--limit", str(before)) as child:
            child.release(before)
            assert child.process.wait() == 0
    with Child("-o", name, "--parallelism", "2") as child:
        child.release(20)
        child.begun(22)
        until(lambda: len(partial(name)) >= before + 10)
        child.process.kill()
        child.process.wait()
    answered = stored_prompts() | set(expected[:before])
    assert {line["input"]["prompt"] for line in partial(name)} <= answered
    assert [row["prompt"] for row in table(name)] == expected[:before] if before else not Path(name).exists()
    with Child("-o", name, "--parallelism", "2") as child:
        child.release(60)
        asked = child.begun(60 - len(answered))
        assert child.process.wait() == 0
    assert Counter(asked) == Counter(set(expected) - answered)
    assert [row["prompt"] for row in table(name)] == expected
    assert left() == {name}


@pytest.mark.full
@both
def test_a_run_that_ends_as_its_table_is_written_goes_on_from_its_lines(calls, name, monkeypatch, capfd):
    expected = prompts(4)
    assert run(name, "--limit", "2") == 0
    earlier = Path(name).read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(table_output, "write_table", full)
        assert run(name) == 1
    assert f"every answered row is in {name}.partial.jsonl" in capfd.readouterr().err
    assert Path(name).read_bytes() == earlier
    ends_without_asking(calls, name, expected)


@pytest.mark.parametrize("name", ["out.parquet", pytest.param("out.csv", marks=pytest.mark.full)])
def test_a_run_over_strange_rows_ends_with_a_table_that_can_be_read(calls, name):
    row = {"prompt": "p", "deep": nested(190, 1), "meta": {"x\ud83d": 1}, "y\ud83d": 2}
    Path("in.jsonl").write_text(json.dumps(row) + "\n")
    assert run(name, input="in.jsonl") == run(name, input="in.jsonl") == 0
    assert [row["text"] for row in table(name)] == ["answer to p"]
    assert calls.asked == ["p"]
    assert left() == {name}


def test_a_table_that_cannot_be_written_leaves_the_lines_and_says_where(calls, monkeypatch, capfd):
    def refuse(*_: object, **__: object) -> None:
        raise UnwritableTable("a value fits no column")

    prompts(2)
    monkeypatch.setattr(table_output, "write_table", refuse)
    assert run("out.parquet") == 1
    said = capfd.readouterr().err
    assert "out.parquet: cannot be written: a value fits no column; every answered row is in" in said
    assert "Traceback" not in said
    calls.asked.clear()
    assert run("out.parquet.partial.jsonl") == 0
    assert calls.asked == []


@pytest.mark.full
@both
def test_a_run_that_was_killed_after_its_table_was_written_is_over(calls, name, monkeypatch):
    expected = prompts(3)
    with monkeypatch.context() as patched:
        patched.setattr(table_output.OutputFile, "remove", table_output.OutputFile.close)
        assert run(name) == 0
    assert left() == {name, f"{name}.partial.jsonl"}
    ends_without_asking(calls, name, expected)


@pytest.mark.parametrize("content", ["a,b\n1,2\n", "notes\n", "index,key\n1,2\n", 'a,b\n"1\n'])
def test_a_table_that_is_no_output_is_refused(calls, content, capfd):
    prompts(3)
    Path("out.csv").write_text(content)
    assert run("out.csv") == 2
    assert "out.csv: " in capfd.readouterr().err
    assert calls.asked == []
    assert Path("out.csv").read_text() == content
    assert left() == {"out.csv"}


def test_parquet_without_pyarrow_is_refused(calls, monkeypatch, capfd):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    prompts(1)
    assert run("out.parquet") == 2
    assert "writing Parquet needs pyarrow" in capfd.readouterr().err
    assert calls.asked == []


@pytest.mark.full
@pytest.mark.parametrize("name", [f"letters.{format}" for format in FORMATS])
def test_the_results_of_a_job_are_a_table(tmp_path, monkeypatch, name, capfd):
    monkeypatch.chdir(tmp_path)
    with BatchingClient("sim:demo?batch_seconds=0", batch_poll_interval=0.05) as client:
        job = client.submit_batch(["a", "b"])
        job.wait(60)
    assert main(["jobs", "results", job.id, "-o", name]) == 0
    assert [int(row["index"]) for row in table(name)] == [0, 1]
    assert "key" not in table(name)[0]
    assert main(["jobs", "results", job.id, "-o", name]) == 2
    assert "already exists" in capfd.readouterr().err


def line(index: int, **changed: Any) -> Line:
    usage = dict.fromkeys(("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens"), 3)
    usage |= {"cache_write_tokens": 0, "cache_write_1h_tokens": 0}
    plain = {"model": "sim:x", "text": "answer", "finish_reason": "stop", "usage": usage, "cost": 0.5}
    plain |= {"latency": 0.25, "attempts": 1, "dropped": {}, "error": None, "key": f"{index:064x}"}
    return {"index": index, "id": index, "input": {"prompt": "p"}, **plain, **changed}


def round_trip(format: str, lines: list[Line]) -> list[dict[str, Any]]:
    first, again = io.BytesIO(), io.BytesIO()
    write_table(format, lambda: iter(lines), first)
    first.seek(0)
    back = list(read_table(format, first, "out"))
    write_table(format, lambda: iter(back), again)
    assert [each["key"] for each in back] == [each["key"] for each in lines]
    assert [(each["error"] or {}).get("kind") for each in back] == [
        (each["error"] or {}).get("kind") for each in lines
    ]
    read: list[list[dict[str, Any]]] = []
    for file in (first, again):
        file.seek(0)
        read.append([row[1] for row in READERS[format](file) if isinstance(row, tuple)])
    assert read[0] == read[1]
    return read[0]


@pytest.mark.parametrize(("numbers", "bits"), [([0.5, -0.25], "float"), ([0.1, 0.5], "double")])
def test_a_table_that_is_read_back_keeps_the_width_of_its_numbers(numbers, bits):
    import pyarrow.parquet

    vectors = [{"embedding": numbers}, {"embedding": [1.0]}]
    answers = vectors if bits == "float" else [{"parsed": each} for each in vectors]
    files = [io.BytesIO(), io.BytesIO()]
    write_table("parquet", lambda: (line(at, **each) for at, each in enumerate(answers)), files[0])
    back = list(read_table("parquet", files[0], "out"))
    write_table("parquet", lambda: iter(back), files[1])
    for file in files:
        found = pyarrow.parquet.read_table(file).column("embedding")
        assert found.to_pylist() == [numbers, [1.0]]
        assert str(found.type.value_type) == bits


def test_names_that_meet_are_told_apart():
    lines = [
        line(0, input={"text": "q", "result_text": "r", "key": "k"}, parsed={"text": "p", "score": 1}),
        line(1, input={"score": 5}, parsed=[1, 2]),
        line(2, error={"kind": "timeout", "message": "too late"}, text=None),
    ]
    rows = round_trip("csv", lines)
    assert (rows[0]["text"], rows[0]["result_text"], rows[0]["key"]) == ("q", "r", "k")
    assert rows[0]["result_result_text"] == "answer"
    assert (rows[0]["parsed_text"], rows[0]["result_score"], rows[1]["score"]) == ("p", "1", "5")
    assert (rows[1]["parsed"], rows[2]["error_kind"], rows[2]["error"]) == ("[1, 2]", "timeout", "too late")


def nested(levels: int, inner: Any, kind: type = list) -> Any:
    for _ in range(levels):
        inner = [inner] if kind is list else {"in": inner}
    return inner


@pytest.mark.parametrize("kind", [list, dict])
def test_what_is_nested_deeply_is_text_in_a_table(kind):
    values = [nested(levels, 1, kind) for levels in (10, 60, 190)]
    rows = round_trip("parquet", [line(0, input=dict(zip("abc", values, strict=True)))])
    assert rows[0]["a"] == values[0]
    for name, levels in (("b", 60), ("c", 190)):
        assert rows[0][name] == nested(30, json.dumps(nested(levels - 30, 1, kind)), kind)


@pytest.mark.parametrize("format", FORMATS)
def test_names_that_are_no_utf_8_do_not_keep_a_table_from_being_written(format):
    lines = [
        line(0, input={"a\ud83d": "in", "meta": {"b\ud83d": [1]}}, parsed={"c\ud83d": "out"}),
        line(1, input={"meta": {"d": 2}}),
    ]
    first, second = round_trip(format, lines)
    assert (first["a\\ud83d"], first["c\\ud83d"]) == ("in", "out")
    assert (first["meta"], second["meta"]) == ('{"b?": [1]}', '{"d": 2}')


NAMES = st.sampled_from(["a", "text", "result_text", "key", "index", "parsed", "id", "result_result_id"])
SCALARS = st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats(-1e9, 1e9)
SCALARS |= st.text(st.characters(exclude_categories=["Cs"]), max_size=4) | st.sampled_from(["\r", "\n", '"'])
CELLS = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2)
)
CHANGES = st.fixed_dictionaries(
    {
        "input": st.dictionaries(NAMES, CELLS, max_size=3),
        "text": st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    },
    optional={"parsed": CELLS},
)


@pytest.mark.full
@pytest.mark.parametrize("format", FORMATS)
@given(changes=st.lists(CHANGES, min_size=1, max_size=5))
def test_whatever_is_asked_and_answered_comes_back_as_it_was_written(format, changes):
    rows = round_trip(format, [line(index, **change) for index, change in enumerate(changes)])
    assert len(rows) == len(changes)


PEAK = """
import re, sys
from pathlib import Path
from smartbatch.tables.result_files import write_table
line = {"id": 1, "input": {"text": "text " * 50}, "model": "m", "text": "answer " * 50, "usage": {}}
line |= {"dropped": {}, "error": None, "key": "k"}
with open(sys.argv[1], "wb") as file:
    write_table(sys.argv[2], lambda: ({"index": n} | line for n in range(int(sys.argv[3]))), file)
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
"""


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak of one program")
@pytest.mark.parametrize("format", FORMATS)
def test_four_times_the_rows_take_no_more_memory(tmp_path, format):
    peaks = []
    for count in (50_000, 200_000):
        command = [sys.executable, "-c", PEAK, str(tmp_path / "out"), format, str(count)]
        peaks.append(int(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    assert peaks[1] < 1.15 * peaks[0], peaks
