"""Runs in tests: their inputs and outputs, runs in processes of their own, and the jobs they leave."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from smartbatch.cli.summary import RunSummary
from smartbatch.jobs.payload import decode_params, decode_request
from smartbatch.jobs.records import JobRow
from smartbatch.jobs.store import open_store
from smartbatch.runs.output_file import Recovered
from smartbatch.testing import Emulator

__all__ = [
    "CALLS",
    "Child",
    "prompts",
    "stored_jobs",
    "stored_prompts",
    "summary_lines",
    "until",
    "use_emulator",
    "written",
]

PATIENCE = 20.0

CALLS = '''
"""Own calls for the tests: what was called is written down; what is told to hang waits for a byte."""
import os

asked = []
broken = set()

def ask(request, attempt):
    asked.append(request.prompt)
    if request.prompt in broken:
        raise ValueError("broken on purpose")
    return "answer to " + request.prompt

def gated(request, attempt):
    """Say that it began, then wait for a byte of leave."""
    os.write(int(os.environ["TEST_BEGAN"]), (request.prompt + "\\n").encode())
    os.read(int(os.environ["TEST_LEAVE"]), 1)
    return "answer to " + request.prompt

def first_waits(request, attempt):
    """Only the first prompt waits for a byte of leave."""
    return gated(request, attempt) if request.prompt == "prompt 0" else "answer to " + request.prompt
'''


def summary_lines(summary: RunSummary, *, wall: float = 1.0, **more: Any) -> list[str]:
    return summary.render(wall=wall, **{"before": Recovered(), **more}).splitlines()


def prompts(count: int, name: str = "in.txt", word: str = "prompt") -> list[str]:
    Path(name).write_text("".join(f"{word} {i}\n" for i in range(count)))
    return [f"{word} {i}" for i in range(count)]


def written(name: str = "out.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(name).read_bytes().split(b"\n")[:-1]]


def use_emulator(emu: Emulator, monkeypatch: pytest.MonkeyPatch, key: str = "sk-of-the-tests") -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", emu.base_url)
    monkeypatch.setenv("OPENAI_API_KEY", key)
    monkeypatch.setenv("SMARTBATCH_BATCH_POLL_INTERVAL", "0.05")


class Child:
    def __init__(self, *args: str, input: str = "in.txt", model: str = "call:own_calls:gated") -> None:
        began, began_there = os.pipe()
        leave_there, self._leave = os.pipe()
        env = {**os.environ, "TEST_BEGAN": str(began_there), "TEST_LEAVE": str(leave_there)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "smartbatch", "run", input, "--model", model, *args],
            env=env,
            pass_fds=(began_there, leave_there),
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        os.close(began_there)
        os.close(leave_there)
        self._began, self._seen = began, b""
        assert self.process.stderr is not None
        assert self.process.stdout is not None
        self.stderr: BinaryIO = self.process.stderr  # type: ignore[assignment]
        self.stdout: BinaryIO = self.process.stdout  # type: ignore[assignment]

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for fd in (self._leave, self._began):
            os.close(fd)
        for pipe in (self.stderr, self.stdout):
            pipe.close()

    def begun(self, count: int) -> list[str]:
        while self._seen.count(b"\n") < count:
            ready, _, _ = select.select([self._began], [], [], PATIENCE)
            data = os.read(self._began, 1 << 16) if ready else b""
            assert data, f"of {count} calls only these began: {self._seen!r}"
            self._seen += data
        *lines, self._seen = self._seen.split(b"\n", count)
        return [line.decode() for line in lines]

    def release(self, count: int) -> None:
        os.write(self._leave, b"." * count)

    def printed(self, text: bytes) -> bytes:
        while line := self.stderr.readline():
            if text in line:
                return line
        raise AssertionError(f"never said {text!r}")


def until(true: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < ends, "it did not happen"
        threading.Event().wait(0.01)


def stored_jobs() -> list[JobRow]:
    store = open_store()
    try:
        return sorted(store.jobs.latest(), key=lambda row: row.created_at)
    finally:
        store.close()


def stored_prompts() -> set[str]:
    store = open_store()
    try:
        return {
            str(decode_request(row.payload, decode_params(job.params), id=None).prompt)
            for job in store.jobs.latest()
            for row in store.items.results(job.id)
            if row.outcome == "succeeded"
        }
    finally:
        store.close()
