"""Processes that upload files are killed again and again: each file is uploaded once, and none is left."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from inside import inside

from smartbatch import BatchingClient, Document
from smartbatch._clock import RealClock
from smartbatch.testing import emulator

MODELS = {"openai": "gpt-5-mini", "anthropic": "claude-haiku-5-5", "gemini": "gemini-3.8-flash"}
FILES, QUESTIONS = 30, 3
KILLS = 12
LATENCY_SECONDS = 0.06  # of each call, so that kills hit uploads


class InAnHour(RealClock):
    @staticmethod
    def wall() -> float:
        return RealClock.wall() + 3600.0


def client_of(name: str, url: str, folder: Path, clock: RealClock | None = None) -> BatchingClient:
    options = {"uploads": True, "base_url": f"{url}/v1"} if name == "openai" else {"base_url": url}
    return BatchingClient(
        f"{name}:{MODELS[name]}",
        store=str(folder / "jobs.db"),
        provider_options={"api_key": "key", **options},
        batch_poll_interval=0.05,
        batch_settle=5,
        clock=clock,
    )


def content_of(number: int) -> bytes:
    return b"%%PDF-1.7 %d" % number + bytes(400_000)


def work(name: str, url: str, folder: Path, strategy: str) -> None:
    """What a killed process begins, and its successors continue."""
    prompts = [
        [f"What is the SHA-256? Question {question}", Document(folder / f"{number}.pdf")]
        for number in range(FILES)
        for question in range(QUESTIONS)
    ]
    with client_of(name, url, folder) as client:
        if strategy == "batch":
            results = list(client.submit_batch(prompts, key="files").results())
        else:
            results = list(client.generate(prompts, strategy="individual", key="files"))
    (folder / "answers.part").write_text(json.dumps([result.text for result in results]))
    os.rename(folder / "answers.part", folder / "answers")


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "strategy"),
    [*((name, "batch") for name in MODELS), ("anthropic", "individual")],
)
def test_a_file_is_uploaded_once_however_often_its_process_is_killed(name, strategy, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for number in range(FILES):
        (tmp_path / f"{number}.pdf").write_bytes(content_of(number))
    context, rng = multiprocessing.get_context("forkserver"), Random(f"{name} {strategy}")
    context.set_forkserver_preload(["smartbatch", "tests.faults.durability.test_killed_uploads"])
    kills = 0
    with emulator(latency=LATENCY_SECONDS) as emu:
        while not (tmp_path / "answers").exists():
            process = context.Process(target=work, args=(name, emu.url, tmp_path, strategy))
            process.start()
            process.join(rng.uniform(0.3, 1.3) if kills < KILLS else 60)
            assert process.exitcode in (None, 0)
            if process.is_alive():
                process.kill()
                process.join()
                kills += 1
        shas = [hashlib.sha256(content_of(number)).hexdigest() for number in range(FILES)]
        answers = json.loads((tmp_path / "answers").read_text())
        assert answers == [sha for sha in shas for _ in range(QUESTIONS)]
        assert Counter(file.sha256 for file in emu.ledger.files if file.sha256 in shas) == dict.fromkeys(
            shas, 1
        )
        assert emu.ledger.paid_twice() == []
        with client_of(name, emu.url, tmp_path, InAnHour()) as client:  # when no request can be using a file
            inside(client).jobs.engine.clean(remote=True, dry_run=False)
        assert [file.name for file in emu.ledger.files if file.deleted_at is None] == []
    assert kills >= KILLS / 2
