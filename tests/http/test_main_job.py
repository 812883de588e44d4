"""The main job as a user runs it: a file of questions in, every answer out, over real HTTP with faults.

Serves the first measure of the main job (B1, B2, F3): right answers in order, nothing paid twice that was
not lost in transit, and a run that was killed goes on where it was.
"""

from __future__ import annotations

import hashlib
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
from tests.levels import sampled
from tests.shared_data import shared

FAULTS = 0.02
OPENAI, ANTHROPIC = "openai:gpt-5-mini", "anthropic:claude-haiku-5-5"
GEMINI = "gemini:gemini-3.8-flash"


def own_questions(folder: Path) -> Path:
    path = folder / "questions.jsonl"
    rows = [{"question": f"What is {n} plus {n + 1}?", "answer": f"#### {2 * n + 1}"} for n in range(300)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(params=["own questions", "gsm8k"])
def questions(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "gsm8k":
        return shared("prompts/gsm8k_test.jsonl")
    return own_questions(tmp_path)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line]


def answers_of(path: Path) -> dict[str, str]:
    return {row["question"]: row["answer"] for row in rows_of(path)}


def start(emu: Emulator, questions: Path, out: Path, model: str = OPENAI) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "smartbatch", "run", str(questions), "--model", model]
    command += [
        "--prompt-field",
        "question",
        "-o",
        str(out),
        "--parallelism",
        "16",
        "--call-timeout",
        "2",
        "--retries",  # a busy machine is slow now and then, besides the faults
        "8",
    ]
    environment = os.environ | {
        "XDG_STATE_HOME": str(out.parent / "state"),
        "OPENAI_BASE_URL": emu.base_url,
        "OPENAI_API_KEY": "sk-test-of-the-main-job",
        "ANTHROPIC_BASE_URL": emu.url,
        "ANTHROPIC_API_KEY": "sk-test-of-the-main-job",
        "GOOGLE_GEMINI_BASE_URL": emu.url,
        "GOOGLE_API_KEY": "AIza-test-of-the-main-job",
    }
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> None:
    _, errors = process.communicate(timeout=90)
    assert process.returncode == 0, errors


def assert_all_right(questions: Path, out: Path) -> None:
    asked, answered = rows_of(questions), rows_of(out)
    assert [row["index"] for row in answered] == list(range(len(asked)))
    assert [row["text"] for row in answered] == [row["answer"] for row in asked]


@pytest.mark.full
@pytest.mark.parametrize("model", sampled([OPENAI, ANTHROPIC, GEMINI]))
def test_despite_faults_all_answers_are_right_ordered_and_paid_once(
    questions: Path, tmp_path: Path, model: str
) -> None:
    out = tmp_path / "out.jsonl"
    with emulator(faults=FAULTS, hang_seconds=60, answers=answers_of(questions), seed=11) as emu:
        finish(start(emu, questions, out, model))
        assert_all_right(questions, out)
        assert emu.ledger.paid_twice(excluding_lost=True) == []
        faults = {call.fault for call in emu.ledger.calls} - {None}
    assert len(faults) >= 3, "the run met too few kinds of faults to mean anything"


@pytest.mark.full
def test_a_run_killed_at_half_goes_on_and_asks_no_answered_row_again(questions: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    half = len(rows_of(questions)) // 2
    reached_half = threading.Event()

    def watch(index: int, _body: Mapping[str, Any]) -> str | None:
        if index >= half:
            reached_half.set()
        return None

    with emulator(
        faults=FAULTS, hang_seconds=60, answers=answers_of(questions), seed=12, latency=0.02, fault_for=watch
    ) as emu:
        process = start(emu, questions, out)
        assert reached_half.wait(60)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        complete = out.read_bytes().rpartition(b"\n")[0].split(b"\n")
        answered = [row for row in map(json.loads, complete) if row["error"] is None]
        assert len(answered) > half // 2
        calls_before = emu.ledger.received

        finish(start(emu, questions, out))

        asked_later = {call.prompt for call in emu.ledger.calls[calls_before:]}
        written = {hashlib.sha256(row["input"]["question"].encode()).hexdigest() for row in answered}
        assert not asked_later & written
        assert_all_right(questions, out)
