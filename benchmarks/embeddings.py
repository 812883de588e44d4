"""Measures what shared calls save: embeddings requested one by one from many threads.

    python -m benchmarks.embeddings

Shared calls are compared with one call per text. Each of 64 threads requests one vector, waits for it, and
requests the next one. Every vector is checked.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from benchmarks.harness import IN_FLIGHT, KEY, emulator, ledger
from smartbatch import BatchingClient
from smartbatch.emulator.composed_answers import vector_for
from smartbatch.providers.openai.provider import OpenAIProvider

MODEL = "text-embedding-3-small"
DIMENSIONS = 64
TEXTS = 2_000


def run(title: str, **settings: Any) -> float:
    """Print calls and speed; return the CPU seconds of this process."""
    wrong: list[int] = []
    with emulator("--latency", "0.05") as base_url:
        provider = OpenAIProvider(KEY, base_url)
        with BatchingClient(MODEL, provider=provider, parallelism=IN_FLIGHT, **settings) as client:

            def work(first: int) -> None:
                for number in range(first, TEXTS, IN_FLIGHT):
                    text = f"text number {number}"
                    vector = client.submit_embedding(text, dimensions=DIMENSIONS).result().embedding
                    if vector != vector_for(text, MODEL, DIMENSIONS):
                        wrong.append(number)

            client.submit_embedding("warm", dimensions=DIMENSIONS).result()
            before = ledger(base_url)["received"]
            threads = [threading.Thread(target=work, args=(first,)) for first in range(IN_FLIGHT)]
            cpu, wall = time.process_time(), time.perf_counter()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            calls = ledger(base_url)["received"] - before
    if wrong:
        raise AssertionError(f"{len(wrong)} texts have the vector of another text")
    print(f"{title:<16} {calls:5} calls, {TEXTS / wall:6.0f} texts/s, {1000 * cpu / TEXTS:.2f} ms of CPU")
    return cpu


def main() -> None:
    shared = run("shared calls")
    single = run("one per call", strategy="individual")
    print(f"CPU of shared calls: {shared / single:.2f} of one call per text")


if __name__ == "__main__":
    main()
