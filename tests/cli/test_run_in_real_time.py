"""``smartbatch run`` in real time stands on the store: what it leaves there, who goes on, and who pays."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cli.runs import Child, prompts, stored_jobs, until, use_emulator, written

from smartbatch.cli.main import main
from smartbatch.jobs.store import default_place
from smartbatch.testing import emulator

OWN = "call:own_calls:ask"
OPENAI = "openai:gpt-5-mini"


def run(*args: str, input: str = "in.txt", model: str = OWN, output: str | None = "out.jsonl") -> int:
    out = [] if output is None else ["-o", output]
    return main(["run", input, "--model", model, "--parallelism", "3", *out, *args])


def lines_of_output() -> int:
    return Path("out.jsonl").read_bytes().count(b"\n") if Path("out.jsonl").exists() else 0


def killed(expected: list[str], *args: str, count: int = 3) -> None:
    with Child("--parallelism", "1", "-o", "out.jsonl", *args) as child:
        child.release(count)
        child.begun(count + 1)
        until(lambda: lines_of_output() == count)
        child.process.kill()
        child.process.wait()
    assert [row["input"]["prompt"] for row in written()] == expected[:count]


@pytest.mark.full
def test_a_run_that_is_over_leaves_nothing_in_the_store(calls):
    expected = prompts(20)
    calls.broken.add("prompt 7")
    assert run("--retries", "0") == 1
    assert stored_jobs() == []
    calls.broken.clear()
    calls.asked.clear()
    assert run() == 0
    assert calls.asked == ["prompt 7"]
    Path("out.jsonl").unlink()
    calls.asked.clear()
    assert run() == 0
    assert sorted(calls.asked) == sorted(expected)
    assert stored_jobs() == []


@pytest.mark.full
def test_without_an_output_the_store_keeps_failed_rows(calls, capfd):
    prompts(8)
    calls.broken.add("prompt 2")
    assert run("--retries", "0", "--quiet", output=None) == 1
    first = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [row["index"] for row in first if row["error"]] == [2]
    calls.broken.clear()
    calls.asked.clear()
    assert run("--quiet", output=None) == 0
    again = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert calls.asked == ["prompt 2"]
    assert [(row["index"], row["error"]) for row in again] == [(i, None) for i in range(8)]
    assert stored_jobs() == []
    assert run("--quiet", output=None) == 0
    assert len(calls.asked) == 1 + 8


@pytest.mark.full
def test_an_output_counts_although_the_store_is_gone(calls):
    expected = prompts(10)
    killed(expected)
    for path in Path(default_place()).parent.glob("jobs.db*"):
        if path.is_file():
            path.unlink()
    with Child("--parallelism", "2", "-o", "out.jsonl") as child:
        child.release(10)
        asked = child.begun(7)
        assert child.process.wait() == 0
    assert sorted(asked) == expected[3:]
    assert [row["input"]["prompt"] for row in written()] == expected


@pytest.mark.full
def test_nobody_else_pays_for_a_run_that_was_killed(calls, capfd):
    expected = prompts(10)
    killed(expected)
    others = prompts(5, "other.txt", "other")
    assert run(input="other.txt", output="other.jsonl") == 0
    assert sorted(calls.asked) == others
    capfd.readouterr()
    (job,) = stored_jobs()
    assert main(["jobs", "resume"]) == 0
    left_alone = f"job {job.id} was not resumed, because its real-time run was interrupted"
    assert left_alone in capfd.readouterr().err
    assert main(["jobs", "show", job.id]) == 0
    assert f"run the same command again, or smartbatch jobs resume {job.id}\n" in capfd.readouterr().out
    assert stored_jobs()[0].succeeded == 3
    with Child("--parallelism", "2", "-o", "out.jsonl") as child:
        child.release(10)
        asked = child.begun(7)
        said = child.printed(b"continues").decode()
        assert child.process.wait() == 0
    assert f"Job {job.id}: continues; 3 of 10 rows have results." in said
    assert Counter(asked) == Counter(expected[3:])
    assert [row["input"]["prompt"] for row in written()] == expected
    assert stored_jobs() == []


@pytest.mark.full
def test_a_named_job_of_a_run_is_resumed_and_its_line_writes_what_came(calls, capfd, monkeypatch):
    expected = prompts(10)
    killed(expected)
    (job,) = stored_jobs()
    began, began_there = os.pipe()
    leave_there, leave = os.pipe()
    monkeypatch.setenv("TEST_BEGAN", str(began_there))
    monkeypatch.setenv("TEST_LEAVE", str(leave_there))
    os.write(leave, b"." * 7)
    assert main(["jobs", "resume", job.id, "--quiet"]) == 0
    assert stored_jobs()[0].succeeded == 10
    assert run(model="call:own_calls:gated") == 0
    os.close(began_there)
    with os.fdopen(began) as asked:
        assert sorted(asked.read().splitlines()) == expected[3:]
    os.close(leave)
    os.close(leave_there)
    assert [row["input"]["prompt"] for row in written()] == expected
    assert "finished earlier; its answers are read from the store." in capfd.readouterr().err


@pytest.mark.full
def test_ctrl_c_says_what_becomes_of_the_rest(calls):
    prompts(50)
    with Child("--parallelism", "2", "-o", "out.jsonl") as child:
        child.begun(2)
        child.process.send_signal(signal.SIGINT)
        child.printed(b"interrupted: calls in progress")
        printed = child.printed(b"unsent requests stay in the store").decode()
        child.release(2)
        assert child.process.wait() == 130
    (job,) = stored_jobs()
    assert f"smartbatch jobs cancel {job.id} to discard them" in printed
    assert (job.succeeded, job.owner, len(written())) == (2, None, 2)
    assert main(["jobs", "cancel", job.id, "--quiet"]) == 0
    (ended,) = stored_jobs()
    assert (ended.succeeded, ended.cancelled) == (2, 48)


@pytest.mark.full
def test_a_second_ctrl_c_ends_at_once(calls):
    prompts(50)
    with Child("--parallelism", "2", "-o", "out.jsonl") as child:
        child.begun(2)
        child.process.send_signal(signal.SIGINT)
        child.printed(b"interrupted: calls in progress")
        child.process.send_signal(signal.SIGINT)
        assert child.process.wait(8) == 130  # less than the grace of the first one
        assert b"Traceback" not in child.stderr.read()
    assert stored_jobs()[0].succeeded == 0


@pytest.mark.full
def test_another_input_for_the_output_drops_what_was_left(calls, capfd):
    expected = prompts(10)
    killed(expected)
    Path("out.jsonl").unlink()
    better = prompts(4, word="better prompt")
    assert run() == 0
    assert sorted(calls.asked) == better
    (old,) = stored_jobs()
    assert (old.succeeded, old.cancelled) == (3, 7)
    assert f"Job {old.id}: 7 unanswered rows dropped: another" in capfd.readouterr().err


@pytest.mark.full
def test_the_rest_of_a_run_in_real_time_can_go_by_batch(calls, monkeypatch, capfd):
    expected = prompts(30)
    killed = threading.Event()

    def fault(index: int, _body: Mapping[str, Any]) -> str | None:
        return "hang" if index >= 6 and not killed.is_set() else None

    with emulator(hang_seconds=60, fault_for=fault, batch_turnaround=0.2) as emu:
        use_emulator(emu, monkeypatch)
        with Child("-o", "out.jsonl", "--parallelism", "1", model=OPENAI) as child:
            until(lambda: emu.ledger.received >= 7 and lines_of_output() == 6)
            child.process.kill()
            child.process.wait()
        killed.set()
        assert run("--strategy", "batch", model=OPENAI) == 0
        assert emu.ledger.paid_twice(excluding_lost=True) == []
    assert [row["input"]["prompt"] for row in written()] == expected
    assert [(job.total, job.succeeded) for job in stored_jobs()] == [(24, 24)]
    assert "24 unanswered rows dropped: the rest is sent as a batch now." in capfd.readouterr().err


@pytest.mark.full
def test_another_key_goes_on_with_a_run(calls, monkeypatch):
    expected = prompts(12)
    with emulator(hang_seconds=60, fault_for=lambda i, _: "hang" if i == 4 else None) as emu:
        use_emulator(emu, monkeypatch, "sk-the-first-of-the-tests")
        with Child("-o", "out.jsonl", "--parallelism", "1", model=OPENAI) as child:
            until(lambda: emu.ledger.received >= 5 and lines_of_output() == 4)
            child.process.kill()
            child.process.wait()
        use_emulator(emu, monkeypatch, "sk-the-second-of-the-tests")
        assert run(model=OPENAI) == 0
        assert emu.ledger.paid_twice(excluding_lost=True) == []
    assert [row["input"]["prompt"] for row in written()] == expected
    (old,) = stored_jobs() or [None]
    assert old is None


@pytest.mark.full
def test_rows_beyond_the_budget_fail_and_a_larger_budget_asks_them(monkeypatch, calls, capfd):
    with emulator(latency=0, answers=dict.fromkeys(prompts(40), "a long word " * 20)) as emu:
        use_emulator(emu, monkeypatch)
        options = ["--max-tokens", "100", "--strategy", "individual", "--budget"]
        assert run(*options, "0.00005", model=OPENAI) == 2
        printed = capfd.readouterr().err
        assert "no route meets a budget of $0.00005 for 40 requests with strategy='individual'" in printed
        assert "nothing was sent" in printed
        assert "a budget of $0.0081 (individual)" in printed
        assert not Path("out.jsonl").exists()
        assert emu.ledger.received == 0

        assert run(*options, "0.004", model=OPENAI) == 1
        kinds = Counter(row["error"] and row["error"]["kind"] for row in written())
        assert set(kinds) == {None, "budget_exceeded"}
        assert len(emu.ledger.calls) == kinds[None] > 0
        assert sum(row["cost"] or 0 for row in written()) <= 0.004
        assert run(*options, "5", model=OPENAI) == 0
        assert len(emu.ledger.calls) == 40


@pytest.mark.full
def test_a_store_that_cannot_be_used_is_told_before_anything_is_sent(calls, monkeypatch, capfd):
    prompts(3)
    Path("no-folder").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(Path("no-folder").resolve()))
    assert run() == 2
    printed = capfd.readouterr().err
    assert "no-folder/smartbatch/jobs.db cannot be used" in printed
    assert "use --store to keep the run's data somewhere else" in printed
    assert "Traceback" not in printed
    assert calls.asked == []
    assert not Path("out.jsonl").exists()
    assert run("--store", "here.db") == 0
