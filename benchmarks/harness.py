"""Shared by benchmarks: servers and clients in separate processes, a hand-written loop, and measurements."""

from __future__ import annotations

import json
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import urllib3

from smartbatch.providers.anthropic.provider import AnthropicProvider
from smartbatch.providers.base import Provider
from smartbatch.providers.gemini.provider import GeminiProvider
from smartbatch.providers.openai.provider import OpenAIProvider

KEY = "benchmark"
IN_FLIGHT = 64
TRIES = 5
RETRIED_STATUSES = frozenset({408, 409, 429, *range(500, 600)})
MODELS = {"openai": "gpt-5-mini", "anthropic": "claude-haiku-5-5", "gemini": "gemini-3.8-flash"}

Send = Callable[[str, Sequence[str]], Sequence[Any]]
"""Sends prompts to a base URL and returns the answers in order, with ``None`` for lost ones."""


@contextmanager
def emulator(*options: str) -> Iterator[str]:
    """Run ``smartbatch emulator`` in its own process and yield its base URL."""
    command = [sys.executable, "-m", "smartbatch", "emulator", "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        found = re.search(r"http://\S+/v1", process.stdout.readline())
        if found is None:
            raise RuntimeError("the emulator did not print its address")
        yield found.group()
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:  # it has gigabytes to release
            process.kill()
            process.wait()
        process.stdout.close()


def ledger(base_url: str, *, full: bool = False) -> dict[str, Any]:
    """Return the emulator's ledger."""
    with urlopen(base_url.removesuffix("/v1") + "/_ledger" + "?full=1" * full) as answer:
        report: dict[str, Any] = json.load(answer)
    return report


def reset_ledger(base_url: str) -> None:
    urlopen(Request(base_url.removesuffix("/v1") + "/_ledger/reset", method="POST")).close()


def provider_of(api: str, base_url: str) -> tuple[str, Provider]:
    """Return a model and the adapter that uses an API of the emulator."""
    root = base_url.removesuffix("/v1")
    made: dict[str, Callable[[], Provider]] = {
        "openai": lambda: OpenAIProvider(KEY, base_url),
        "anthropic": lambda: AnthropicProvider(KEY, root),
        "gemini": lambda: GeminiProvider(KEY, root),
    }
    return MODELS[api], made[api]()


def prompts(count: int, mark: object = "row") -> list[str]:
    return [f"{mark} {number}: how many apples are left in the basket?" for number in range(count)]


def chat(text: str) -> dict[str, Any]:
    return {"model": MODELS["openai"], "messages": [{"role": "user", "content": text}]}


class Loop:
    """A careful hand-written loop: five tries, exponential backoff with full jitter, and Retry-After."""

    def __init__(self, base_url: str, path: str = "/chat/completions") -> None:
        self._url = base_url + path
        self._pool = urllib3.PoolManager(maxsize=IN_FLIGHT, block=True, retries=False)
        self._headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}

    def send(self, body: dict[str, Any]) -> Any:
        content = json.dumps(body).encode()
        for attempt in range(TRIES):
            wait: float | None = 0.0
            try:
                response = self._pool.request("POST", self._url, body=content, headers=self._headers)
                if response.status == 200:
                    return json.loads(response.data)
                named = float(response.headers.get("Retry-After", 0))
                wait = named if response.status in RETRIED_STATUSES else None
            except (urllib3.exceptions.HTTPError, ValueError):
                pass
            if wait is None:
                return None
            if attempt + 1 < TRIES:
                time.sleep(wait or random.uniform(0.0, min(8.0, 0.5 * 2**attempt)))
        return None


def raw(base_url: str, texts: Sequence[str]) -> list[str | None]:
    """``urllib3`` and a thread pool."""
    loop = Loop(base_url)

    def one(text: str) -> str | None:
        found = loop.send(chat(text))
        return None if found is None else str(found["choices"][0]["message"]["content"])

    with ThreadPoolExecutor(IN_FLIGHT) as executor:
        return list(executor.map(one, texts))


def measured(send: Send, base_url: str, texts: Sequence[str]) -> tuple[float, float]:
    """Return CPU seconds of this process and wall seconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    answers = send(base_url, texts)
    spent = time.process_time() - cpu, time.perf_counter() - wall
    if None in answers or len(answers) != len(texts):
        raise AssertionError("an answer is missing")
    return spent


def ratios(ours: Send, theirs: Send, base_url: str, count: int, rounds: int) -> tuple[float, float]:
    """Return the median ratios of CPU and wall time of two functions, run alternately after a warm-up."""
    for send in (theirs, ours):
        send(base_url, prompts(200, f"warm {send}"))
    found = []
    for number in range(rounds):
        other = measured(theirs, base_url, prompts(count, f"theirs {number}"))
        own = measured(ours, base_url, prompts(count, f"ours {number}"))
        found.append((own[0] / other[0], own[1] / other[1]))
    cpu, wall = (statistics.median(each) for each in zip(*found, strict=True))
    return cpu, wall


def start_together(commands: Sequence[Sequence[str]]) -> list[subprocess.Popen[str]]:
    """Start processes, wait until each has printed a line, and then release all of them together."""
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for command in commands
    ]
    for process in started:
        assert process.stdout is not None
        process.stdout.readline()
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return started


def memory_of(pid: int) -> float:
    """Return the MB used by a process; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS")), 0.0)
