"""Compares the library's choice of route with always-batch, for lists of 1, 3, 10 and 100 prompts.

    python -m benchmarks.smart_batching

The emulator runs in its own process, in scaled time: one second represents ten. A batch takes 40 to 60
scaled seconds, depending on its size, like those of a fast Batch API. A call takes 1.2 scaled seconds, or
three times as long in the flex tier. Before the lists, another client of the same store observes twenty
batches and a dozen calls of each kind, so these durations are known. The other settings are the defaults,
with five parallel calls.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import frozen

from benchmarks.harness import emulator
from smartbatch import BatchingClient, ResultList

SCALE = 10.0
"""Simulated seconds per real second."""
SIZES = {1: 40.0, 3: 45.0, 10: 50.0, 100: 60.0}
"""Seconds of a batch, by the number of prompts."""
CALL = 1.2
"""Seconds of a call."""
BATCHES = 20
"""Batches already known to the store."""
APART = 0.3
"""Seconds between two calls, so that they count as separate observations."""
MODEL = "gpt-5"
PROMPT = "Read this page and say in a sentence what it is about. " + "Lorem ipsum dolor sit amet. " * 200
"""A page of some 1,400 tokens, which costs about $0.0018."""


@frozen
class Measured:
    """The outcome of a list.

    Attributes:
        seconds: simulated seconds.
        cost: USD.
        routes: number of requests by route.
    """

    seconds: float
    cost: float
    routes: dict[str, int]


def measure(client: BatchingClient, count: int, mark: str, **constraints: Any) -> Measured:
    """Send a list and measure it."""
    prompts = [f"{PROMPT} {mark} {number}" for number in range(count)]
    began = time.perf_counter()
    results: ResultList = client.generate(prompts, **constraints)
    seconds = (time.perf_counter() - began) * SCALE
    assert results.succeeded == count, [str(result.error) for result in results if not result.ok][:1]
    routes: dict[str, int] = {}
    for result in results:
        name = result.route.value if result.route else ""
        routes[name] = routes.get(name, 0) + 1
    return Measured(seconds, results.cost or 0.0, routes)


@contextmanager
def client_of(url: str, folder: Path, *, flex: bool) -> Iterator[BatchingClient]:
    """Create a client with default settings and scaled times."""
    with BatchingClient(
        f"openai:{MODEL}",
        provider_options={"api_key": "none", "base_url": url, **({"flex": True} if flex else {})},
        store=str(folder / "jobs.db"),
        parallelism=5,
        batch_poll_interval=0.1,
        time_value=5.0 * SCALE,
        max_tokens=60,
        flex=flex,
    ) as client:
        yield client


def run(count: int, folder: Path, *, flex: bool) -> tuple[Measured, Measured]:
    """Run a list with always-batch and with the library's choice of route."""
    server = ("--latency", str(CALL / SCALE), "--batch-turnaround", str(SIZES[count] / SCALE))
    with emulator(*server) as url, client_of(url, folder, flex=flex) as client:
        with ThreadPoolExecutor(BATCHES) as pool:
            learnt = []
            for number in range(BATCHES):
                learnt.append(pool.submit(measure, client, count, f"learning {number}", strategy="batch"))
                time.sleep(APART)
            for each in learnt:
                each.result()
        measure(client, 12, "learning", strategy="individual")
        if flex:  # so few are never sent by batch, and the flex tier is then the cheapest route
            for number in range(6):
                measure(client, 3, f"learning {number}", prefer="cost")
    with emulator(*server) as url, client_of(url, folder, flex=flex) as client:
        return measure(client, count, "always", strategy="batch"), measure(client, count, "own")


def main() -> None:
    for flex in (True, False):
        print(f"\n{'with' if flex else 'without'} a flex tier")
        print("| prompts | always-batch | own choice | faster | cost, own / always | routes |")
        print("|---|---|---|---|---|---|")
        always_cost = own_cost = 0.0
        for count in SIZES:
            with tempfile.TemporaryDirectory() as folder:
                always, own = run(count, Path(folder), flex=flex)
            always_cost += always.cost
            own_cost += own.cost
            faster = round(always.seconds / own.seconds, 1)
            print(
                f"| {count} | {always.seconds:.1f} s | {own.seconds:.1f} s | "
                f"{faster} x | {own.cost / always.cost:.2f} | "
                f"{', '.join(f'{name} {n}' for name, n in own.routes.items())} |",
                flush=True,
            )
        dearer = 100 * (own_cost / always_cost - 1)
        print(f"cost in sum, own against always-batch: {dearer:+.1f} %")


if __name__ == "__main__":
    main()
