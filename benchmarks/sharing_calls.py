"""Lone embeddings from many threads, in turns with a raw loop of one call a text, for three latencies.

    python -m benchmarks.sharing_calls

2,000 texts from 64 threads, each of which asks for one vector, waits for it, and asks for the next, as web
workers do. The server is :mod:`benchmarks.quick_server`; the time of a round includes making the client or
the pool. The medians of five rounds count.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

from benchmarks.peer_clients import EMBEDDING_MODEL, KEY, WIDE, Vectors, by_threads, raw_vectors
from benchmarks.server import serving
from benchmarks.targets import Targets
from smartbatch import BatchingClient
from smartbatch.events import CallStarted, Event

TEXTS, MOST_CALLS = 2_000, 50
DIMENSIONS = 256
LATENCIES = (0.01, 0.05, 0.25)


class Ours:
    """The client, by each thread.

    Attributes:
        calls: that were made.
    """

    def __init__(self) -> None:
        self.calls = 0

    def observe(self, event: Event) -> None:
        self.calls += isinstance(event, CallStarted)  # no retries: the server refuses nothing

    def __call__(self, url: str, texts: Sequence[str]) -> Vectors:
        options = {"api_key": KEY, "base_url": url}
        with BatchingClient(
            f"openai:{EMBEDDING_MODEL}", provider_options=options, parallelism=WIDE, observers=[self.observe]
        ) as client:

            def ask(text: str) -> list[float] | None:
                vector = client.submit_embedding(text, dimensions=DIMENSIONS).result().embedding
                return None if vector is None else list(vector)

            return by_threads(ask, texts)


def measure(ask: Callable[[str, Sequence[str]], Vectors], url: str, mark: str) -> tuple[float, float]:
    """Return CPU and wall seconds of one round."""
    texts = [f"{mark}, text {number}" for number in range(TEXTS)]
    cpu, wall = time.process_time(), time.perf_counter()
    vectors = ask(url, texts)
    spent = time.process_time() - cpu, time.perf_counter() - wall
    if len({tuple(vector[:2]) for vector in vectors if vector is not None}) < 0.9 * TEXTS:
        raise AssertionError("vectors are missing, or many are alike")
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    targets = Targets()
    print(
        "| a call takes | calls | texts a second, ours / raw loop | CPU, ours / raw loop |\n|---|---|---|---|"
    )
    for latency in LATENCIES:
        calls, speed, cpu = [], [], []
        with serving("benchmarks.quick_server", "--latency", str(latency)) as url:
            for ask in (raw_vectors, Ours()):
                ask(url, ["warm"])
            for number in range(args.rounds):
                ours = Ours()
                theirs, mine = measure(raw_vectors, url, f"raw {number}"), measure(ours, url, f"own {number}")
                calls.append(ours.calls)
                cpu.append(mine[0] / theirs[0])
                speed.append(theirs[1] / mine[1])
        made, faster = statistics.median(calls), statistics.median(speed)
        print(
            f"| {1000 * latency:.0f} ms | {made:.0f} ({targets.at_most(made, MOST_CALLS)}) | {faster:.2f} "
            f"({targets.at_least(faster, 1)}) | {statistics.median(cpu):.2f} |",
            flush=True,
        )
    targets.exit()


if __name__ == "__main__":
    main()
