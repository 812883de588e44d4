"""``smartbatch run`` as a process: interrupted and killed, on a terminal, and its memory."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from cli.runs import Child, prompts, stored_prompts, until, written
from levels import sampled

from smartbatch._words import money
from smartbatch.testing import emulator

SIM = "sim:demo?latency=0"

OWN = "call:own_calls:ask"


@pytest.mark.full
@pytest.mark.parametrize(("number", "code"), sampled([(signal.SIGINT, 130), (signal.SIGTERM, 143)], keep=1))
def test_ctrl_c_keeps_what_is_under_way_and_asks_no_more(calls, number, code):
    expected = prompts(500)
    with Child("-o", "out.jsonl", "--parallelism", "3") as child:
        first = child.begun(3)
        child.release(1)
        first += child.begun(1)
        child.process.send_signal(number)
        child.printed(b"interrupted: calls in progress")
        child.release(3)
        assert b"496 rows not answered. Run the same command again" in child.printed(b"not answered")
        assert child.process.wait() == code
    assert sorted(first) == [row["input"]["prompt"] for row in written()] == expected[:4]


def test_a_killed_run_loses_no_answered_row_and_pays_none_twice(calls):
    expected = prompts(60)
    with Child("-o", "out.jsonl", "--parallelism", "2") as child:
        child.release(20)
        child.begun(22)
        until(lambda: Path("out.jsonl").read_bytes().count(b"\n") >= 10)
        child.process.kill()
        child.process.wait()
    rows = Path("out.jsonl").read_bytes().split(b"\n")[:-1]
    assert 10 <= len(rows) < 60
    answered = stored_prompts()
    assert {json.loads(row)["input"]["prompt"] for row in rows} <= answered
    with Child("-o", "out.jsonl", "--parallelism", "2") as child:
        child.release(60)
        asked = child.begun(60 - len(answered))
        assert child.process.wait() == 0
        said = child.stderr.read()
    assert b"Requests may be paid for twice: " in said
    assert b" were in progress in real time when their process ended" in said
    assert Counter(asked) == Counter(set(expected) - answered)
    assert [row["input"]["prompt"] for row in written()] == expected


@pytest.mark.full
def test_a_reader_that_goes_away_ends_the_run_quietly(calls):
    prompts(300)
    with Child("--parallelism", "1") as child:
        child.release(1)
        assert json.loads(child.stdout.readline())["index"] == 0
        child.stdout.close()
        child.release(300)
        assert child.process.wait() == 1
        said = child.stderr.read()
    assert b"Traceback" not in said
    assert b"BrokenPipe" not in said
    assert b"rows not printed, as the reader closed the pipe. Run the same command again" in said


@pytest.mark.full
def test_the_cost_counts_answers_that_the_reader_did_not_wait_for(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("in.txt").write_text("".join(f"question {n}\n" for n in range(300)))
    with emulator() as emu:
        monkeypatch.setenv("OPENAI_BASE_URL", emu.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-test")
        line = [sys.executable, "-m", "smartbatch", "run", "in.txt", "--model", "openai:gpt-5-mini"]
        with subprocess.Popen(
            [*line, "--store", "own.db"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.readline()
            process.stdout.close()
            said = process.stderr.read()
    with sqlite3.connect("own.db") as db:
        ((paid,),) = db.execute("SELECT cost FROM job").fetchall()
    assert paid > 0
    assert re.findall(r"^Cost: (\$[\d.]*\d)", said, re.MULTILINE) == [money(paid)]


def memory_of_a_run(rows: int) -> int:
    with Path("in.jsonl").open("w") as file:
        for i in range(rows):
            file.write(json.dumps({"id": f"row {i}", "text": f"{i} {'x' * 200}"}) + "\n")
    Path("out.jsonl").unlink(missing_ok=True)
    code = (
        "import resource, sys; from smartbatch.cli.main import main;"
        f"code = main(['run', 'in.jsonl', '--model', {SIM!r}, '-o', 'out.jsonl', '--quiet']);"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    with Path("out.jsonl").open("rb") as out:
        assert [json.loads(line)["index"] for line in out] == list(range(rows))
    return int(done.stdout) * (1 if sys.platform == "darwin" else 1024)


@pytest.mark.full
def test_memory_does_not_grow_with_the_input(calls):
    assert memory_of_a_run(12_000) - memory_of_a_run(2_000) < 9 * 2**20


@pytest.mark.soak
def test_a_million_rows_stream_in_constant_memory(calls):
    assert memory_of_a_run(1_000_000) - memory_of_a_run(20_000) < 48 * 2**20
