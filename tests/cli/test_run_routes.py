"""``smartbatch run`` chooses the route of its rows, says which and why, holds to it, and scores it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cli.runs import Child, prompts, stored_jobs, until, use_emulator, written
from levels import sampled

from smartbatch.cli.main import main
from smartbatch.core.routing.workload import Workload
from smartbatch.testing import Emulator, emulator

OPENAI = "openai:gpt-5-mini"


@pytest.fixture(autouse=True)
def poll_interval(folder, monkeypatch):
    monkeypatch.setenv("SMARTBATCH_BATCH_POLL_INTERVAL", "0.05")


def run(*more: str, model: str = OPENAI, output: str | None = "out.jsonl") -> int:
    out = [] if output is None else ["-o", output]
    return main(["run", "in.txt", "--model", model, *out, *more])


def calls_in_real_time(emu: Emulator) -> int:
    return sum(call.prompt is not None for call in emu.ledger.calls)


def lines_of_batches(emu: Emulator) -> int:
    return sum(len(batch.lines) for batch in emu.ledger.batches)


@pytest.mark.full
@pytest.mark.parametrize(
    ("constraints", "alone", "by_batch"),
    sampled(
        [
            ([], 24, 0),
            (["--prefer", "cost"], 0, 24),
            (["--time-value", "0"], 0, 24),
            (["--deadline", "6h"], 0, 24),
            (["--deadline", "2min"], 24, 0),
            (["--strategy", "individual"], 24, 0),
            (["--strategy", "hybrid"], 3, 21),
            (["--strategy", "threshold"], 0, 24),
        ],
        keep=3,
    ),
)
def test_rows_go_by_the_route_that_was_chosen(constraints, alone, by_batch, monkeypatch, capfd):
    expected = prompts(24)
    with emulator(latency=0) as emu:
        use_emulator(emu, monkeypatch)
        assert main(["plan", "in.txt", "--model", OPENAI, "--json", *constraints]) == 0
        planned = json.loads(capfd.readouterr().out)
        assert run(*constraints) == 0
        printed = capfd.readouterr().err
        assert (calls_in_real_time(emu), lines_of_batches(emu)) == (alone, by_batch)
        assert run(*constraints) == 0
        assert (calls_in_real_time(emu), lines_of_batches(emu)) == (alone, by_batch)
        assert emu.ledger.paid_twice(excluding_lost=False) == []
    assert [row["input"]["prompt"] for row in written()] == expected
    sent = {"individual": "in real time", "batch": "as a batch", "hybrid": "3 in real time and 21 as a batch"}
    assert printed.startswith(f"Sending {sent[planned['route']]}: ")
    assert "Sending" not in capfd.readouterr().err  # there was nothing left to choose for


@pytest.mark.full
def test_the_choice_and_its_reason_are_told_first_and_scored_last(monkeypatch, capfd):
    prompts(30)
    monkeypatch.setenv("SMARTBATCH_STRATEGY", "hybrid")
    with emulator(latency=0) as emu:
        use_emulator(emu, monkeypatch)
        assert run("--deadline", "2h", "--max-tokens", "50") == 0
    printed = capfd.readouterr().err
    first, _, faster, job = printed.splitlines()[:4]
    assert first.startswith("Sending 3 in real time and 27 as a batch: usually done in ")
    assert faster == "For a faster run, use --strategy individual."
    assert job.startswith("Job job-")
    assert "30 rows stored. If this command is interrupted, run it again to continue." in printed
    assert re.search(r"^Took [\d.]+ \w+ \(expected up to [\d.]+ h\)\.$", printed, re.MULTILINE)
    cost = r"^Cost: \$[\d.]+; the same tokens would have cost \$[\d.]+ in real time or \$[\d.]+ as a batch\.$"
    assert re.search(cost, printed, re.MULTILINE)
    assert re.search(r"^Met the deadline with [\d.]+ h to spare\.$", printed, re.MULTILINE)


@pytest.mark.full
def test_a_route_that_is_not_to_be_had_is_told(calls, capfd):
    prompts(12)
    own = "call:own_calls:ask"
    assert run("--strategy", "hybrid", "--batch-fallback", "individual", model=own) == 0
    printed = capfd.readouterr().err
    assert printed.startswith("Sending in real time: ")
    assert "A batch is not possible for this list." in printed.splitlines()[0]
    assert len(calls.asked) == 12


@pytest.mark.parametrize(
    ("constraints", "printed"),
    [
        (["--deadline", "1s"], "no route meets a deadline of 1 s for 40 requests; nothing was sent."),
        (["--deadline", "yesterday"], "deadline = 'yesterday' is not a positive duration"),
        (["--budget", "0.00001"], "Constraints that can be met: a budget of $0.0"),
        (["--time-value", "-5"], "time_value = -5.0 is out of range"),
    ],
)
def test_impossible_constraints_send_nothing(constraints, printed, monkeypatch, capfd):
    prompts(40)
    with emulator(latency=0) as emu:
        use_emulator(emu, monkeypatch)
        assert run(*constraints) == 2
        assert emu.ledger.received == 0
    message = capfd.readouterr().err
    assert printed in message
    assert "Traceback" not in message
    assert not Path("out.jsonl").exists()
    assert stored_jobs() == []


def test_a_failed_batch_is_reported_with_the_rows_sent_in_real_time(monkeypatch, capfd):
    prompts(12)
    with emulator(latency=0, batch_faults={"fail_validation": 1.0}) as emu:
        use_emulator(emu, monkeypatch)
        assert run("--prefer", "cost") == 0
        assert calls_in_real_time(emu) == 12
    reason = "the batch failed (invalid_request): The batch could not be validated."
    counts = "12 requests were planned as a batch, 12 of them were sent in real time"
    assert f"{counts}: {reason}" in capfd.readouterr().err.splitlines()
    assert main(["report", "out.jsonl", "-o", "report.html"]) == 0
    assert f"requests of a batch were sent in real time instead: {reason}" in Path("report.html").read_text()


@pytest.mark.full
def test_a_hybrid_run_that_was_killed_goes_on_and_pays_nothing_twice(monkeypatch, capfd):
    expected = prompts(40)
    created = threading.Event()

    def note(_index: int, _headers: Mapping[str, str]) -> None:
        created.set()

    with emulator(latency=0, batch_turnaround=2.0, batch_fault_for=note) as emu:
        use_emulator(emu, monkeypatch)
        line = ["run", "in.txt", "--model", OPENAI, "-o", "out.jsonl", "--strategy", "hybrid"]
        process = subprocess.Popen(
            [sys.executable, "-m", "smartbatch", *line, "--deadline", "2h"],
            env=dict(os.environ),
            stderr=subprocess.DEVNULL,
        )
        try:
            assert created.wait(20)
            until(lambda: stored_jobs()[0].succeeded >= 4)
        finally:
            process.kill()
            process.wait()
        (killed,) = stored_jobs()
        assert killed.succeeded < 40
        alone = calls_in_real_time(emu)
        assert main([*line, "--deadline", "1s"]) == 0
        (job,) = stored_jobs()
        assert (job.id, job.succeeded, job.policy) == (killed.id, 40, killed.policy)
        assert 4 <= calls_in_real_time(emu) == alone
        assert emu.ledger.paid_twice(excluding_lost=False) == []
    assert [row["input"]["prompt"] for row in written()] == expected
    printed = capfd.readouterr().err
    assert f"Job {job.id}: continues; " in printed
    assert "Sending" not in printed  # the route was chosen then


@pytest.mark.full
def test_new_rows_get_a_choice_of_their_own(calls, monkeypatch, capfd):
    prompts(8)
    killed = threading.Event()

    def fault(index: int, _body: Mapping[str, Any]) -> str | None:
        return "hang" if index >= 3 and not killed.is_set() else None

    with emulator(latency=0, hang_seconds=60, fault_for=fault) as emu:
        use_emulator(emu, monkeypatch)
        with Child("-o", "out.jsonl", "--parallelism", "1", model=OPENAI) as child:
            until(lambda: emu.ledger.received >= 4 and Path("out.jsonl").read_bytes().count(b"\n") == 3)
            child.process.kill()
            child.process.wait()
        killed.set()
        expected = prompts(30)
        assert run("--prefer", "cost") == 0
        assert len(emu.ledger.batches) == 1
        assert emu.ledger.paid_twice(excluding_lost=True) == []
    assert [row["input"]["prompt"] for row in written()] == expected
    printed = capfd.readouterr().err
    assert "continues; 3 of 8 rows have results." in printed
    assert "\nSending as a batch: " in printed
    assert [job.total for job in stored_jobs()] == [22]
    assert "expected up to" not in printed  # time and cost of both jobs say nothing about the choice for one


def test_ctrl_c_while_a_route_is_chosen_leaves_nothing(monkeypatch, capfd):
    prompts(5000)
    added: list[object] = []

    def add(_self: Workload, request: object, *_: object) -> None:
        added.append(request)
        if len(added) == 3:
            os.kill(os.getpid(), signal.SIGINT)
            until(lambda: "interrupted: nothing is lost" in capfd.readouterr().err)

    monkeypatch.setattr(Workload, "add_request", add)
    assert run(model="sim:demo?latency=0") == 130
    assert len(added) == 3
    assert stored_jobs() == []
    assert not Path("out.jsonl").exists()
    assert "5,000 rows not answered. Run the same command again" in capfd.readouterr().err


@pytest.mark.full
def test_a_run_that_is_taken_up_with_new_rows_keeps_its_budget(monkeypatch):
    answers = dict.fromkeys(prompts(30), "a long word " * 20)
    created = threading.Event()

    def note(_index: int, _headers: Mapping[str, str]) -> None:
        created.set()

    budget = "0.0035"  # thirty rows at their most cost some 0.0031 USD by batch
    line = ["run", "in.txt", "--model", OPENAI, "-o", "out.jsonl", "--strategy", "batch"]
    line += ["--max-tokens", "100", "--budget", budget]
    with emulator(latency=0, answers=answers, batch_turnaround=1.5, batch_fault_for=note) as emu:
        use_emulator(emu, monkeypatch)
        Path("in.txt").write_text("".join(f"prompt {i}\n" for i in range(20)))
        process = subprocess.Popen([sys.executable, "-m", "smartbatch", *line], stderr=subprocess.DEVNULL)
        try:
            assert created.wait(20)
        finally:
            process.kill()
            process.wait()
        prompts(30)
        assert main([*line, "--quiet"]) == 1
        first, second = stored_jobs()
    assert (first.total, first.succeeded, second.total) == (20, 20, 10)
    assert first.policy.budget == float(budget)
    assert second.policy.budget == 0
    assert {row["error"] and row["error"]["kind"] for row in written()} == {None, "budget_exceeded"}


def test_rows_may_name_their_models(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": "one"}, {"prompt": "two", "model": "sim:other"}, {"prompt": "three", "model": ""}]
    Path("in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["run", "in.jsonl", "--model", "sim:demo?latency=0", "-o", "out.jsonl", "--quiet"]
    for _ in range(2):
        assert main(command) == 0
        written = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
        assert [line["model"] for line in written] == ["sim:demo", "sim:other", "sim:demo"]
    Path("in.jsonl").write_text(json.dumps({"prompt": "one", "model": "openai:gpt-5"}) + "\n")
    assert main([*command[:-2], "other.jsonl", "--quiet"]) == 2
    assert not Path("other.jsonl").exists()
