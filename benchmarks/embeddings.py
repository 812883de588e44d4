"""What coalescing is worth: single embeddings from many threads, against one call a text and fixed windows.

    python -m benchmarks.embeddings

Every thread asks for one vector, waits for it, and asks for the next, as web workers do. The server takes
50 ms a call and runs in a process of its own. Every vector is checked against its text.
"""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch
from urllib.request import urlopen

from attrs import evolve

from benchmarks.server import emulator
from benchmarks.targets import Targets
from smartbatch import BatchingClient
from smartbatch.core.batching.request_batch import BatchAccumulator, Waiting, Window
from smartbatch.emulator.composed_answers import vector_for
from smartbatch.providers.openai.provider import OpenAIProvider
from smartbatch.realtime import lane
from smartbatch.types import Embedding, Request

MODEL = "text-embedding-3-small"
DIMENSIONS = 64
THREADS, TEXTS, LATENCY = 64, 2_000, 0.05
MOST_CALLS = 80
FIXED_WINDOWS = (0.002, 0.005, 0.01, 0.02, 0.05)


class FixedWindow(BatchAccumulator):
    """The usual way: whatever came within a fixed time goes, busy or idle."""

    def ready(self, now: float, waiting: Waiting) -> float:
        if waiting.count == 0:
            return float("inf")
        full = waiting.count >= self.window.max_size or waiting.flushed
        return now if full else waiting.opened + self.window.seconds


def calls(base_url: str) -> int:
    with urlopen(base_url.removesuffix("/v1") + "/_ledger") as answer:
        received: int = json.load(answer)["received"]
    return received


def ask_all(client: BatchingClient) -> tuple[float, float]:
    """Have all threads ask; return CPU seconds of this process and wall seconds."""
    wrong: list[int] = []

    def ask(first: int) -> None:
        for number in range(first, TEXTS, THREADS):
            text = f"text number {number}"
            vector = client.submit_embedding(text, dimensions=DIMENSIONS).result().embedding
            if vector != vector_for(text, MODEL, DIMENSIONS):
                wrong.append(number)

    threads = [threading.Thread(target=ask, args=(first,)) for first in range(THREADS)]
    cpu, wall = time.process_time(), time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spent = time.process_time() - cpu, time.perf_counter() - wall
    if wrong:
        raise AssertionError(f"{len(wrong)} texts got another text's vector")
    return spent


def run(
    title: str, accumulator: Callable[[Window], BatchAccumulator] = BatchAccumulator, **settings: Any
) -> tuple[float, float, int]:
    """Return CPU seconds, wall seconds and calls.

    Args:
        accumulator: what the lanes of the client gather requests with, made of a window.
    """
    made_with = patch.object(lane, "BatchAccumulator", accumulator)
    with emulator("--latency", str(LATENCY)) as base_url, made_with:
        provider = OpenAIProvider("benchmark", base_url)
        with BatchingClient(MODEL, provider=provider, parallelism=THREADS, **settings) as client:
            client.submit_embedding("warm", dimensions=DIMENSIONS).result()
            before = calls(base_url)
            cpu, wall = ask_all(client)
            made = calls(base_url) - before
    print(
        f"{title:<24} {made:5} calls, {TEXTS / made:5.1f} texts a call, {TEXTS / wall:6.0f} texts/s, "
        f"CPU {1000 * cpu / TEXTS:.2f} ms a text"
    )
    return cpu, wall, made


def lone(count: int) -> tuple[float, float]:
    """Median seconds of a lone request on an idle client, and of a direct call of the adapter."""
    with emulator("--latency", str(LATENCY)) as base_url:
        provider = OpenAIProvider("benchmark", base_url)
        with BatchingClient(MODEL, provider=provider) as client:
            client.submit_embedding("warm", dimensions=DIMENSIONS).result()
            ours, direct = [], []
            for number in range(count):
                began = time.perf_counter()
                client.submit_embedding(f"alone {number}", dimensions=DIMENSIONS).result()
                ours.append(time.perf_counter() - began)
                began = time.perf_counter()
                lonely = Request(f"direct {number}", embedding=Embedding(dimensions=DIMENSIONS))
                provider.embed([lonely], model=MODEL, attempt=0, timeout=10)
                direct.append(time.perf_counter() - began)
    return statistics.median(ours), statistics.median(direct)


def fixed_window(seconds: float) -> Callable[[Window], BatchAccumulator]:
    def accumulator(window: Window) -> BatchAccumulator:
        shared = window.max_size > 1
        return FixedWindow(evolve(window, seconds=seconds)) if shared else BatchAccumulator(window)

    return accumulator


def main() -> None:
    targets = Targets()
    cpu, wall, made = run("coalesced")
    print(f"{'':<24} {targets.at_most(made, MOST_CALLS, ' calls')}")
    single_cpu, single_wall, _ = run("one call a text", strategy="individual")
    windows = [run(f"window of {1000 * s:.0f} ms", fixed_window(s))[1:] for s in FIXED_WINDOWS]
    best = min(wall for wall, _ in windows)
    best_full = min(wall for wall, made in windows if made <= MOST_CALLS)
    print(f"against one call a text  wall {wall / single_wall:.2f}, CPU {cpu / single_cpu:.2f}")
    print(
        f"against the best window  throughput {best_full / wall:.2f} of those in at most {MOST_CALLS} calls"
    )
    print(f"                         (about 1 is meant), {best / wall:.2f} of all")
    ours, direct = lone(100)
    later = 1000 * (ours - direct)
    print(f"a lone request, p50      {later:+.2f} ms against a direct call ({targets.at_most(later, 3)})")
    targets.exit()


if __name__ == "__main__":
    main()
