"""``smartbatch run --n``: several answers to each row, each paid once, whatever the number was before."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from cli.runs import prompts, stored_jobs, use_emulator, written
from levels import sampled

from smartbatch.cli.main import main
from smartbatch.testing import emulator


def run(*args: str, n: int | None = None, output: str = "out.jsonl") -> int:
    asked = () if n is None else ("--n", str(n))
    return main(["run", "in.txt", "--model", "call:own_calls:ask", "--quiet", "-o", output, *asked, *args])


def places(lines: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(line["index"], line["sample"]) for line in lines]


def test_each_row_has_a_line_for_each_answer(calls):
    Path("in.txt").write_text("prompt 0\nprompt 0\n")
    expected = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    for _ in range(2):
        assert run(n=3) == 0
        assert places(written()) == expected
        assert calls.asked == ["prompt 0"] * 6
    assert {line["input"]["prompt"] for line in written()} == {"prompt 0"}
    assert stored_jobs() == []


def test_a_larger_number_pays_only_for_the_further_answers(calls):
    expected = prompts(2)
    assert run() == 0
    first = written()
    for n, paid in ((3, 2), (5, 2)):
        calls.asked.clear()
        assert run(n=n) == 0
        assert Counter(calls.asked) == dict.fromkeys(expected, paid)
        assert [line for line in written() if "sample" not in line] == first
        found = [(line["index"], line.get("sample", 0)) for line in written()]
        assert found == [(row, sample) for row in range(2) for sample in range(n)]


@pytest.mark.parametrize("smaller", sampled([2, None]))
def test_a_smaller_number_is_refused(smaller, calls, capfd):
    prompts(2)
    assert run(n=3) == 0
    before = Path("out.jsonl").read_bytes()
    assert run(n=smaller) == 2
    assert "(is it smaller than before?)" in capfd.readouterr().err
    assert Path("out.jsonl").read_bytes() == before
    assert len(calls.asked) == 6


def test_only_the_answers_that_failed_are_asked_again(calls, capfd):
    prompts(2)
    assert run(n=2) == 0
    lines = Path("out.jsonl").read_bytes().splitlines(keepends=True)
    Path("out.jsonl").write_bytes(b"".join(lines[:1] + lines[2:]))
    calls.broken.add("prompt 0")
    calls.asked.clear()
    line = ["run", "in.txt", "--model", "call:own_calls:ask", "-o", "out.jsonl", "--n", "2", "--retries", "0"]
    assert main(line) == 1
    assert "row 0, sample 1: " in capfd.readouterr().err
    calls.broken.clear()
    assert main(line) == 0
    assert calls.asked == ["prompt 0"] * 2
    assert Path("out.jsonl").read_bytes().count(b"\n") == 4


@pytest.mark.parametrize("name", sampled(["out.csv", "out.parquet"]))
def test_tables_have_the_number_of_the_answer(name, calls):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    Path("in.txt").unlink(missing_ok=True)
    Path("in.csv").write_text("prompt,sample\nprompt 0,x\nprompt 1,y\n")
    line = [
        "run",
        "in.csv",
        "--prompt-field",
        "prompt",
        "--model",
        "call:own_calls:ask",
        "--quiet",
        "-o",
        name,
    ]
    assert main([*line, "--n", "2"]) == 0
    calls.asked.clear()
    assert main([*line, "--n", "3"]) == 0
    assert sorted(calls.asked) == ["prompt 0", "prompt 1"]
    if name.endswith("csv"):
        with open(name, newline="") as file:
            rows = list(csv.DictReader(file))
    else:
        import pyarrow.parquet

        rows = pyarrow.parquet.read_table(name).to_pylist()
    found = [(int(row["index"]), row["sample"], int(row["result_sample"])) for row in rows]
    assert found == [(at, "xy"[at], sample) for at in range(2) for sample in range(3)]
    assert main(["report", name, "-o", "report.html"]) == 0
    assert "6 of 6 requests were answered" in Path("report.html").read_text()


def test_a_skipped_row_has_one_line(calls, capfd):
    line = ["run", "in.csv", "--template", "{text}", "--model", "call:own_calls:ask", "--quiet"]
    line += ["--on-missing", "skip", "--n", "2"]
    Path("in.csv").write_text("id,text\na,one\nb,\nc,three\n")
    assert main(line) == 0
    printed = [json.loads(each) for each in capfd.readouterr().out.splitlines()]
    for _ in range(2):
        assert main([*line, "-o", "out.jsonl"]) == 0
        for lines in (printed, written()):
            assert [(each["index"], each.get("sample")) for each in lines] == [
                (0, 0),
                (0, 1),
                (1, None),
                (2, 0),
                (2, 1),
            ]
    assert len(calls.asked) == 8


def test_flawed_answers_are_sent_again_one_by_one(folder, monkeypatch, capfd):
    prompts(2)
    line = ["run", "in.txt", "--model", "sim:demo?latency=0", "-o", "out.jsonl", "--quiet"]
    assert main([*line, "--max-tokens", "3", "--n", "2"]) == 0
    assert [each["finish_reason"] for each in written()] == ["length"] * 4
    assert main([*line, "--max-tokens", "300", "--n", "2", "--resend", "truncated"]) == 0
    assert [
        (*place, each["finish_reason"]) for place, each in zip(places(written()), written(), strict=True)
    ] == [(row, sample, "stop") for row in range(2) for sample in range(2)]


def test_answers_come_by_batch(folder, monkeypatch):
    prompts(3)
    with emulator() as emu:
        use_emulator(emu, monkeypatch)
        line = ["run", "in.txt", "--model", "openai:gpt-5-mini", "-o", "out.jsonl", "--quiet"]
        assert main([*line, "--strategy", "batch", "--n", "2"]) == 0
    assert places(written()) == [(row, sample) for row in range(3) for sample in range(2)]
    (job,) = stored_jobs()
    assert job.total == 6


def test_a_plan_counts_each_answer(calls, capfd):
    prompts(4)
    line = ["plan", "in.txt", "--model", "sim:demo", "--json"]
    counts = []
    for more in ([], ["--n", "3"]):
        assert main([*line, *more]) == 0
        counts.append(json.loads(capfd.readouterr().out)["requests"])
    assert counts == [4, 12]


@pytest.mark.parametrize(
    ("args", "said"), [(["--n", "0"], "n must be"), (["--n", "2", "--embed"], "--n applies to")]
)
def test_what_cannot_be_asked_is_refused(args, said, calls, capfd):
    prompts(1)
    assert run(*args) == 2
    assert said in capfd.readouterr().err
    assert calls.asked == []
