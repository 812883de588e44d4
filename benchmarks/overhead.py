"""Compares smartbatch with a bare ``urllib3`` loop: CPU, wall time, latency and memory.

    python -m benchmarks.overhead

The two alternate, and the median ratios are reported.
"""

from __future__ import annotations

import argparse
import heapq
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from benchmarks.harness import (
    IN_FLIGHT,
    emulator,
    ledger,
    measured,
    prompts,
    provider_of,
    ratios,
    raw,
    reset_ledger,
)
from smartbatch import BatchingClient, Request

UNREACHED_RPM = 10**6  # counted, but never reached


def ours(
    base_url: str, texts: Sequence[str], *, api: str = "openai", parallelism: int = IN_FLIGHT, **settings: Any
) -> list[str | None]:
    model, provider = provider_of(api, base_url)
    with BatchingClient(model, provider=provider, parallelism=parallelism, **settings) as client:
        return list(client.generate(texts, strategy="individual").texts)


def against_raw(rounds: int, count: int, latency: float) -> None:
    with emulator("--latency", str(latency)) as base_url:
        for api in ("openai", "anthropic", "gemini"):
            cpu, wall = ratios(partial(ours, api=api), raw, base_url, count, rounds)
            print(f"{api}, {count:,} requests of {1000 * latency:.0f} ms: CPU {cpu:.2f}, wall {wall:.2f}")


def shared_limits(rounds: int, count: int) -> None:
    with emulator("--latency", "0.05") as base_url, tempfile.TemporaryDirectory() as folder:
        alone = partial(ours, max_rpm=UNREACHED_RPM, shared="off")
        together = partial(ours, max_rpm=UNREACHED_RPM, shared=f"sqlite:///{folder}/limits.db")
        cpu, wall = ratios(together, alone, base_url, count, rounds)
    print(f"within a shared limit, compared with a limit of one client: CPU {cpu:.2f}, wall {wall:.2f}")


def against_zero_cost(rounds: int, count: int, in_flight: int) -> None:
    """Compare with the time computed from the latencies that the server drew."""
    found = []
    with emulator("--latency", "0.4", "--latency-sigma", "0.4") as base_url:
        send = partial(ours, parallelism=in_flight)
        send(base_url, prompts(50, "warm"))
        for number in range(rounds):
            reset_ledger(base_url)
            _, wall = measured(send, base_url, prompts(count, f"log {number}"))
            free = [0.0] * in_flight
            for call in ledger(base_url, full=True)["calls"]:
                heapq.heapreplace(free, free[0] + call["latency"])
            found.append(wall / max(free))
    print(f"{count} requests of about 400 ms: wall {statistics.median(found):.3f} of ideal")


def on_the_wire(count: int) -> None:
    """Print the seconds from ``submit`` on an idle client to its call, measured by a user's function."""
    started: list[float] = []
    waits = []

    def call(_request: Request, _attempt: int) -> str:
        started.append(time.perf_counter())
        return "ok"

    with BatchingClient(call) as client:
        for number in range(count):
            began = time.perf_counter()
            client.submit(f"single {number}").result()
            waits.append(1000 * (started[-1] - began))
    waits.sort()
    slowest = waits[int(0.99 * count)]
    print(f"from submit to call: median {statistics.median(waits):.2f} ms, 99 % {slowest:.2f} ms")


def memory(small: int, large: int) -> None:
    """Growth of the peak memory from a small to a large list, each in its own process."""
    peaks = []
    for count in (small, large):
        command = [sys.executable, "-m", "benchmarks.overhead", "--peak-of", str(count)]
        peaks.append(int(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    print(f"memory per request: {(peaks[1] - peaks[0]) / (large - small):.2f} KiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peak-of", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak_of:
        with emulator() as base_url:
            ours(base_url, prompts(options.peak_of, "memory"), parallelism=32)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        return
    against_raw(options.rounds, 2_000, 0.05)
    shared_limits(options.rounds, 2_000)
    against_zero_cost(max(1, options.rounds // 2), 400, 32)
    on_the_wire(500)
    memory(2_000, 20_000)


if __name__ == "__main__":
    main()
