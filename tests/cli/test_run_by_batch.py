"""``smartbatch run`` by batch: resumed, repeated, extended, interrupted, and never paid twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from cli.runs import use_emulator, written

from smartbatch.cli.main import main
from smartbatch.jobs.records import JobRow
from smartbatch.jobs.store import open_store
from smartbatch.testing import Emulator, emulator

PATIENCE = 60.0
SIM = "sim:demo?batch_seconds=0.02"
OPENAI = "openai:gpt-5-mini"


pytestmark = pytest.mark.usefixtures("folder")


def lines_of(count: int) -> list[str]:
    prompts = [f"prompt {i}" for i in range(count)]
    Path("in.txt").write_text("".join(f"{prompt}\n" for prompt in prompts))
    return prompts


def words(model: str, *more: str) -> list[str]:
    line = ["run", "in.txt", "--model", model, "--strategy", "batch"]
    return [*line, "--store", "jobs.db", "--batch-poll-interval", "0.05", *more]


def run(*more: str, model: str = SIM) -> int:
    return main(words(model, *more))


def jobs() -> list[JobRow]:
    store = open_store("jobs.db")
    try:
        return sorted(store.jobs.latest(), key=lambda row: row.created_at)
    finally:
        store.close()


@pytest.mark.full
def test_rows_go_as_one_job_and_come_back_in_order(capfd):
    prompts = lines_of(50)
    assert run("-o", "out.jsonl") == 0
    rows = written()
    assert [row["input"]["prompt"] for row in rows] == prompts
    assert [row["index"] for row in rows] == list(range(50))
    assert all(row["text"] and row["error"] is None for row in rows)
    (job,) = jobs()
    assert (job.total, job.succeeded) == (50, 50)
    printed = capfd.readouterr()
    assert "\n50 answered.\n" in printed.err
    assert f"\nJob {job.id}: " in printed.err
    assert "100% 50/50" in printed.err
    assert printed.out == ""


@pytest.mark.full
@pytest.mark.parametrize("output", [["-o", "out.jsonl"], []])
def test_rows_that_failed_are_asked_again_as_a_job_of_their_own(output, monkeypatch, capfdbinary):
    lines_of(6)

    def refused(batch: int, position: int, _id: str | None) -> str | None:
        return "item_invalid" if batch == 0 and position in (2, 4) else None

    def rows() -> list[dict[str, Any]]:
        if output:
            return written()
        return [json.loads(line) for line in capfdbinary.readouterr().out.split(b"\n")[:-1]]

    with emulator(batch_line_fault_for=refused) as emu:
        use_emulator(emu, monkeypatch)
        assert run(*output, model=OPENAI) == 1
        assert [row["index"] for row in rows() if row["error"] is not None] == [2, 4]
        assert run(*output, model=OPENAI) == 0
        ended = rows()
        assert [(row["index"], row["error"]) for row in ended] == [(i, None) for i in range(6)]
        assert emu.ledger.paid_twice(excluding_lost=False) == []
    first, second = jobs()
    assert (first.total, second.total) == (6, 2)
    assert second.key == f"{first.key}#2"
    assert first.key is not None
    assert first.key.startswith(f"run:{'out.jsonl' if output else 'stdout'}:")


class Interrupted:
    def __init__(self, emu: Emulator, created: threading.Event) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "smartbatch", *words(OPENAI, "-o", "out.jsonl")],
            env=dict(os.environ),
            stderr=subprocess.PIPE,
            text=True,
        )
        assert created.wait(PATIENCE)
        self.process.send_signal(signal.SIGINT)
        self.printed = self.process.communicate(timeout=PATIENCE)[1]


def when_created(event: threading.Event) -> Callable[[int, Mapping[str, str]], None]:
    return lambda *_: event.set()


@pytest.mark.full
def test_ctrl_c_leaves_the_job_to_the_next_run(monkeypatch, capfd):
    lines_of(40)
    created = threading.Event()
    with emulator(batch_turnaround=3.0, batch_fault_for=when_created(created)) as emu:
        use_emulator(emu, monkeypatch)
        ended = Interrupted(emu, created)
        assert ended.process.returncode == 130
        (job,) = jobs()
        assert "interrupted: nothing is lost" in ended.printed
        assert f"smartbatch jobs cancel {job.id} to cancel it" in ended.printed
        assert "40 rows not answered. Run the same command again to resume." in ended.printed
        assert not job.cancel_requested

        Path("in.txt").write_text("another prompt\n")
        assert run("-o", "out.jsonl", model=OPENAI) == 2
        refusal = capfd.readouterr().err
        assert f"job {job.id} of a run with another input" in refusal
        assert len(jobs()) == 1

        prompts = lines_of(45)
        assert run("-o", "out.jsonl", model=OPENAI) == 0
        assert [row["input"]["prompt"] for row in written()] == prompts
        assert [row.total for row in jobs()] == [40, 5]
        assert emu.ledger.paid_twice(excluding_lost=False) == []


@pytest.mark.parametrize(
    ("line", "printed"),
    [
        (
            ["--model", "sim:demo", "--strategy", "individual", "--batch-fallback", "batch"],
            "--batch-fallback applies",
        ),
        (
            ["--model", "sim:demo", "--strategy", "individual", "--batch-poll-interval", "5"],
            "--batch-poll-interval applies to batches",
        ),
        (
            ["--model", "sim:demo", "--strategy", "batch", "--batch-poll-interval", "0"],
            "batch_poll_interval = ",
        ),
        (["--model", "sim:demo", "--strategy", "batch", "--batch-max-requests", "0"], "batch_max_requests"),
        (["--model", "call:json:dumps", "--strategy", "batch"], "batch_fallback='individual'"),
        (["--model", "sim:demo", "--strategy", "batch", "--store", "in.txt"], "in.txt"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_stored(line, printed, capfd):
    lines_of(3)
    assert main(["run", "in.txt", "-o", "out.jsonl", "--store", "jobs.db", *line]) == 2
    message = capfd.readouterr().err
    assert printed in message
    assert "Traceback" not in message
    assert not Path("out.jsonl").exists()


@pytest.mark.full
def test_a_budget_bounds_batches_and_a_larger_one_asks_the_rest(monkeypatch):
    answers = dict.fromkeys(lines_of(40), "a long word " * 20)
    with emulator(answers=answers) as emu:
        use_emulator(emu, monkeypatch)
        options = ["-o", "out.jsonl", "--max-tokens", "100", "--budget"]
        assert run(*options, "0.002", model=OPENAI) == 1
        kinds = Counter(row["error"] and row["error"]["kind"] for row in written())
        assert set(kinds) == {None, "budget_exceeded"}
        (first,) = jobs()
        assert 0 < first.cost <= 0.002
        assert first.cost == pytest.approx(sum(row["cost"] or 0 for row in written()))
        assert run(*options, "5", model=OPENAI) == 0
        assert emu.ledger.paid_twice(excluding_lost=False) == []
    assert [row["error"] for row in written()] == [None] * 40
    assert [job.total for job in jobs()] == [40, kinds["budget_exceeded"]]
