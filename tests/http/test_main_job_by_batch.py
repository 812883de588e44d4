"""The main job through the Batch APIs: killed on the way, right, in order, paid once, at half the price.

The client is a process of its own on a real store; it is killed with SIGKILL in the middle of a create and
again later, and the same line is typed again.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from smartbatch.testing import Emulator, emulator
from tests.shared_data import shared

OPENAI, ANTHROPIC = "openai:gpt-5-mini", "anthropic:claude-haiku-5-5"
GEMINI = "gemini:gemini-3.8-flash"
PATIENCE = 60.0
"""Seconds for a thing to happen that takes a moment."""


def own_questions(folder: Path, count: int) -> Path:
    path = folder / "questions.jsonl"
    rows = [{"question": f"What is {n} plus {n + 1}?", "answer": f"#### {2 * n + 1}"} for n in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line]


class Creates:
    """Tells, from inside the emulator, that the creates of batches arrive; holds the first ones.

    Without the hold, a kill that is late by some milliseconds may fall between the intent of the next
    create and its sending. Nobody knows then whether that batch exists, and it is searched for for minutes.

    Args:
        kills: how many creates are held, from the first on, until their sender is dead.
    """

    def __init__(self, kills: int) -> None:
        self._monitor = threading.Condition()
        self._kills = kills
        self._seen = self._killed = 0

    def __call__(self, index: int, _label: Mapping[str, str]) -> None:
        with self._monitor:
            self._seen = index + 1
            self._monitor.notify_all()
            if index < self._kills:
                self._monitor.wait_for(lambda: self._killed > index, PATIENCE)

    def wait_for(self, count: int) -> None:
        with self._monitor:
            assert self._monitor.wait_for(lambda: self._seen >= count, PATIENCE), "no create came"

    def killed(self) -> None:
        with self._monitor:
            self._killed += 1
            self._monitor.notify_all()


def command(questions: Path, model: str, *options: object) -> list[str]:
    line = [sys.executable, "-m", "smartbatch", "run", questions, "--model", model]
    return [str(word) for word in [*line, "--prompt-field", "question", "--quiet", *options]]


def surroundings(emu: Emulator) -> dict[str, str]:
    key = "sk-test-of-the-main-job"
    return os.environ | {
        "OPENAI_BASE_URL": emu.base_url,
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": emu.url,
        "ANTHROPIC_API_KEY": key,
        "GOOGLE_GEMINI_BASE_URL": emu.url,
        "GOOGLE_API_KEY": "AIza-test-of-the-main-job",
    }


def cost_in_real_time(questions: Path, model: str, folder: Path, answers: Mapping[str, str]) -> float:
    out = folder / "realtime.jsonl"
    with emulator(answers=answers, latency=0) as emu:
        line = command(questions, model, "-o", out, "--parallelism", 8)
        home = {"XDG_STATE_HOME": str(folder / "state")}
        subprocess.run(line, env=surroundings(emu) | home, check=True, timeout=PATIENCE * 2)
    return sum(row["cost"] for row in rows_of(out))


def killed_twice(questions: Path, model: str, folder: Path, *, batch: int) -> None:
    asked = rows_of(questions)
    answers = {row["question"]: row["answer"] for row in asked}
    out, creates = folder / "out.jsonl", Creates(kills=2)
    options = ("--strategy", "batch", "--store", folder / "jobs.db", "--batch-poll-interval", 0.1)
    line = command(questions, model, "-o", out, *options, "--batch-max-requests", batch)
    with emulator(answers=answers, batch_turnaround=0.3, batch_fault_for=creates) as emu:
        for kill, create in enumerate((1, 2)):
            process = subprocess.Popen(line, env=surroundings(emu), stderr=subprocess.PIPE)
            creates.wait_for(create)
            process.send_signal(signal.SIGKILL)
            process.communicate()
            creates.killed()
            assert process.returncode == -signal.SIGKILL, f"the run ended before kill {kill + 1}"
        ended = subprocess.run(line, env=surroundings(emu), capture_output=True, timeout=PATIENCE * 2)
        assert ended.returncode == 0, ended.stderr
        again = subprocess.run(line, env=surroundings(emu), capture_output=True, timeout=PATIENCE)
        assert again.returncode == 0, again.stderr

        answered = rows_of(out)
        assert [row["index"] for row in answered] == list(range(len(asked)))
        assert [row["text"] for row in answered] == [row["answer"] for row in asked]
        assert emu.ledger.paid_twice(excluding_lost=False) == []
        assert not [call for call in emu.ledger.calls if call.billed], "a row went in real time"
        created = [record for record in emu.ledger.batches if record.created_at is not None]
        assert len(created) == -(-len(asked) // batch)
    cost = sum(row["cost"] for row in answered)
    assert cost > 0
    assert cost == pytest.approx(cost_in_real_time(questions, model, folder, answers) / 2, rel=1e-9)


@pytest.mark.full
def test_a_run_killed_twice_is_right_paid_once_and_half_price(tmp_path: Path) -> None:
    killed_twice(own_questions(tmp_path, 120), OPENAI, tmp_path, batch=40)


@pytest.mark.soak
@pytest.mark.parametrize("model", [OPENAI, ANTHROPIC, GEMINI])
def test_gsm8k_goes_through_every_batch_api_killed_twice(model: str, tmp_path: Path) -> None:
    killed_twice(shared("prompts/gsm8k_test.jsonl"), model, tmp_path, batch=500)
