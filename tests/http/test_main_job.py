"""Files of questions, answered by processes that are killed: right, in order, and paid for once."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from smartbatch.testing import emulator
from tests.levels import sampled
from tests.shared_data import shared

MODELS = ("openai:gpt-5-mini", "anthropic:claude-haiku-5-5", "gemini:gemini-3.8-flash")
FAULTS = 0.02
PATIENCE = 60.0
IN_REAL_TIME = ("--parallelism", 16, "--call-timeout", 2, "--retries", 8)  # a busy machine may be slow


def own_questions(folder, count=300):
    path = folder / "questions.jsonl"
    rows = [{"question": f"What is {n} plus {n + 1}?", "answer": f"#### {2 * n + 1}"} for n in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(params=["own questions", "gsm8k"])
def questions(request, tmp_path):
    return shared("prompts/gsm8k_test.jsonl") if request.param == "gsm8k" else own_questions(tmp_path)


def rows_of(path):
    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line]


def answers_of(path):
    return {row["question"]: row["answer"] for row in rows_of(path)}


def command(questions, model, out, *options):
    line = [sys.executable, "-m", "smartbatch", "run", questions, "--model", model, "-o", out]
    return [str(word) for word in [*line, "--prompt-field", "question", "--quiet", *options]]


def environment(emu, folder):
    key = "sk-test-of-the-main-job"
    return os.environ | {
        "XDG_STATE_HOME": str(folder / "state"),
        "OPENAI_BASE_URL": emu.base_url,
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": emu.url,
        "ANTHROPIC_API_KEY": key,
        "GOOGLE_GEMINI_BASE_URL": emu.url,
        "GOOGLE_API_KEY": "AIza-test-of-the-main-job",
    }


def run(line, emu, folder):
    ended = subprocess.run(
        line, env=environment(emu, folder), capture_output=True, text=True, timeout=2 * PATIENCE
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def killed(line, emu, folder, wait):
    """Run a command and kill it once ``wait`` returns."""
    process = subprocess.Popen(line, env=environment(emu, folder), stderr=subprocess.PIPE)
    wait()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL, "the run ended before it was killed"


def assert_all_right(questions, out):
    asked, answered = rows_of(questions), rows_of(out)
    assert [row["index"] for row in answered] == list(range(len(asked)))
    assert [row["text"] for row in answered] == [row["answer"] for row in asked]


@pytest.mark.full
@pytest.mark.parametrize("model", sampled(MODELS))
def test_despite_faults_all_answers_are_right_ordered_and_paid_once(questions, tmp_path, model):
    out = tmp_path / "out.jsonl"
    with emulator(faults=FAULTS, hang_seconds=60, answers=answers_of(questions), seed=11) as emu:
        run(command(questions, model, out, *IN_REAL_TIME), emu, tmp_path)
        assert_all_right(questions, out)
        assert emu.ledger.paid_twice(excluding_lost=True) == []
        faults = {call.fault for call in emu.ledger.calls} - {None}
    assert len(faults) >= 3, "the run met too few kinds of faults to mean anything"


@pytest.mark.full
def test_a_killed_run_sends_no_answered_row_again(questions, tmp_path):
    out = tmp_path / "out.jsonl"
    half = len(rows_of(questions)) // 2
    reached_half = threading.Event()

    def watch(index, _body):
        if index >= half:
            reached_half.set()

    with emulator(
        faults=FAULTS, hang_seconds=60, answers=answers_of(questions), seed=12, latency=0.02, fault_for=watch
    ) as emu:
        line = command(questions, MODELS[0], out, *IN_REAL_TIME)
        killed(line, emu, tmp_path, lambda: reached_half.wait(PATIENCE))
        complete = out.read_bytes().rpartition(b"\n")[0].split(b"\n")
        answered = [row for row in map(json.loads, complete) if row["error"] is None]
        assert len(answered) > half // 2
        calls_before = emu.ledger.received
        run(line, emu, tmp_path)
        asked_later = {call.prompt for call in emu.ledger.calls[calls_before:]}
        written = {hashlib.sha256(row["input"]["question"].encode()).hexdigest() for row in answered}
        assert not asked_later & written
        assert_all_right(questions, out)


class Creates:
    """Waits for the emulator to receive batch creates, and holds the first ones until their sender is dead.

    Without the hold, a late kill could fall between the intent of the next create and its sending. The client
    would then search for that batch for minutes.
    """

    def __init__(self, kills):
        self._monitor = threading.Condition()
        self._kills = kills
        self._seen = self._killed = 0

    def __call__(self, index, _label):
        with self._monitor:
            self._seen = index + 1
            self._monitor.notify_all()
            if index < self._kills:
                self._monitor.wait_for(lambda: self._killed > index, PATIENCE)

    def wait_for(self, count):
        with self._monitor:
            assert self._monitor.wait_for(lambda: self._seen >= count, PATIENCE), "no create came"

    def killed(self):
        with self._monitor:
            self._killed += 1
            self._monitor.notify_all()


def killed_twice(questions, model, folder, *, batch):
    answers, out, creates = answers_of(questions), folder / "out.jsonl", Creates(kills=2)
    options = ("--strategy", "batch", "--store", folder / "jobs.db", "--batch-poll-interval", 0.1)
    line = command(questions, model, out, *options, "--batch-max-requests", batch)
    with emulator(answers=answers, batch_turnaround=0.3, batch_fault_for=creates) as emu:
        for create in (1, 2):
            killed(line, emu, folder, lambda create=create: creates.wait_for(create))
            creates.killed()
        for _ in range(2):
            run(line, emu, folder)
        assert_all_right(questions, out)
        assert emu.ledger.paid_twice(excluding_lost=False) == []
        assert not [call for call in emu.ledger.calls if call.billed], "a row went in real time"
        created = [record for record in emu.ledger.batches if record.created_at is not None]
        assert len(created) == -(-len(answers) // batch)
    alone = folder / "realtime.jsonl"
    with emulator(answers=answers, latency=0) as emu:
        run(command(questions, model, alone, "--parallelism", 8), emu, folder / "alone")
    cost, in_real_time = (sum(row["cost"] for row in rows_of(path)) for path in (out, alone))
    assert cost > 0
    assert cost == pytest.approx(in_real_time / 2, rel=1e-9)


@pytest.mark.full
def test_a_run_killed_twice_is_right_paid_once_and_half_price(tmp_path):
    killed_twice(own_questions(tmp_path, 120), MODELS[0], tmp_path, batch=40)


@pytest.mark.soak
@pytest.mark.parametrize("model", MODELS)
def test_gsm8k_goes_through_every_batch_api_killed_twice(model, tmp_path):
    killed_twice(shared("prompts/gsm8k_test.jsonl"), model, tmp_path, batch=500)


DEFERRED = """
import json, sys
from smartbatch import BatchingClient

place, groups = sys.argv[1], json.loads(sys.argv[2])
settings = {"store": place, "deferrable": "batch", "batch_poll_interval": 0.05, "batch_threshold": 5}
client = BatchingClient("openai:gpt-5-mini", max_tokens=20, **settings)
futures = {}
for group in groups:
    futures |= {name: client.submit_background(name, id=name) for name in group}
    client.flush()
results = {name: future.result() for name, future in futures.items()}
client.stop()
assert all(result.request_id == name for name, result in results.items())
print(json.dumps({name: [result.route.value, result.cost] for name, result in results.items()}))
"""


@pytest.mark.full
def test_what_a_killed_process_deferred_is_answered_once_to_the_next(tmp_path):
    names, creates = [f"question {n}" for n in range(20)], Creates(kills=0)
    line = [sys.executable, "-c", DEFERRED, str(tmp_path / "jobs.db")]
    with emulator(batch_turnaround=0.5, batch_fault_for=creates) as emu:
        killed([*line, json.dumps([names])], emu, tmp_path, lambda: creates.wait_for(1))
        # in another order and other groups
        answered = json.loads(run([*line, json.dumps([names[12:][::-1], names[:12]])], emu, tmp_path))
        assert sorted(answered) == sorted(names)
        assert {route for route, _ in answered.values()} == {"batch"}
        assert all(cost > 0 for _, cost in answered.values())
        assert emu.ledger.paid_twice(excluding_lost=False) == []
        assert not [call for call in emu.ledger.calls if call.billed], "one went in real time"
        assert [record.created_at is not None for record in emu.ledger.batches].count(True) == 1
