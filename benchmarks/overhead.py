"""What smartbatch costs over a raw ``urllib3`` pool: CPU, wall and memory, side by side in one run.

    python -m benchmarks.overhead

The emulator serves from its own process. Rounds alternate, so that a machine that changes its speed changes
it for both; the median of the rounds' ratios is what counts.
"""

from __future__ import annotations

import argparse
import heapq
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from urllib.request import urlopen

import urllib3

from benchmarks.server import emulator
from benchmarks.targets import Targets
from smartbatch import BatchingClient, Request
from smartbatch.providers.openai.provider import OpenAIProvider

KEY = "benchmark"
LIMIT = 10**6
"""Requests a minute: more than are sent, so that the limit is counted and holds nothing up."""


def prompts(count: int, mark: str) -> list[str]:
    return [f"{mark} {number}: how many apples are left in the basket?" for number in range(count)]


def raw(base_url: str, texts: list[str], in_flight: int) -> list[str]:
    """The loop a user writes first: a pool, a thread pool, JSON in and out."""
    pool = urllib3.PoolManager(maxsize=in_flight, block=True, retries=False)
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}

    def ask(text: str) -> str:
        body = json.dumps({"model": "gpt-5-mini", "messages": [{"role": "user", "content": text}]})
        response = pool.request("POST", f"{base_url}/chat/completions", body=body, headers=headers)
        answer: str = json.loads(response.data)["choices"][0]["message"]["content"]
        return answer

    with ThreadPoolExecutor(in_flight) as executor:
        answers = list(executor.map(ask, texts))
    pool.clear()
    return answers


def ours(base_url: str, texts: list[str], in_flight: int, **settings: Any) -> list[str]:
    """The same through the client."""
    provider = OpenAIProvider(KEY, base_url)
    with BatchingClient("gpt-5-mini", provider=provider, parallelism=in_flight, **settings) as client:
        return [str(text) for text in client.generate(texts).texts]


Sender = Callable[[str, list[str], int], list[str]]


def measure(send: Sender, base_url: str, texts: list[str], in_flight: int) -> tuple[float, float]:
    """Return CPU seconds of this process and wall seconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    answers = send(base_url, texts, in_flight)
    result = time.process_time() - cpu, time.perf_counter() - wall
    if len(set(answers)) != len(texts):
        raise AssertionError("an answer is missing or doubled")
    return result


def cpu_and_wall(targets: Targets, rounds: int, count: int, in_flight: int, latency: float) -> None:
    """2,000 requests, 64 in flight, 50 ms: CPU a request against the raw loop, wall against the ideal."""
    ideal = count / in_flight * latency
    cpu_ratios, raw_walls, our_walls, cpus = [], [], [], []
    with emulator("--latency", str(latency)) as base_url:
        raw(base_url, prompts(200, "warm"), in_flight)
        ours(base_url, prompts(200, "warm too"), in_flight)
        for number in range(rounds):
            theirs = measure(raw, base_url, prompts(count, f"raw {number}"), in_flight)
            mine = measure(ours, base_url, prompts(count, f"own {number}"), in_flight)
            cpu_ratios.append(mine[0] / theirs[0])
            cpus.append((1000 * theirs[0] / count, 1000 * mine[0] / count))
            raw_walls.append(theirs[1] / ideal)
            our_walls.append(mine[1] / ideal)
    print(f"{count:,} requests, {in_flight} in flight, {1000 * latency:.0f} ms, {rounds} rounds")
    print(f"  CPU a request, ms (raw, ours): {', '.join(f'({a:.2f}, {b:.2f})' for a, b in cpus)}")
    cpu, wall = statistics.median(cpu_ratios), statistics.median(our_walls)
    print(f"  CPU ours / raw      {cpu:.2f}   ({targets.at_most(cpu, 1.6)})")
    print(f"  wall raw / ideal    {statistics.median(raw_walls):.2f}")
    print(f"  wall ours / ideal   {wall:.2f}   ({targets.at_most(wall, 1.5)})")


def shared_limits(targets: Targets, rounds: int, count: int, in_flight: int, latency: float) -> None:
    """The same requests within a limit that processes share, and within one that is the client's own."""
    ratios, alone = [], partial(ours, max_rpm=LIMIT, shared="off")
    with emulator("--latency", str(latency)) as base_url, tempfile.TemporaryDirectory() as folder:
        together = partial(ours, max_rpm=LIMIT, shared=f"sqlite:///{folder}/limits.db")
        for send in (alone, together):
            send(base_url, prompts(200, "warm"), in_flight)
        for number in range(rounds):
            without = measure(alone, base_url, prompts(count, f"alone {number}"), in_flight)
            within = measure(together, base_url, prompts(count, f"together {number}"), in_flight)
            ratios.append((within[0] / without[0], within[1] / without[1]))
    cpu, wall = (statistics.median(each) for each in zip(*ratios, strict=True))
    print(f"{count:,} requests, {in_flight} in flight, within a limit, {rounds} rounds")
    print(f"  CPU shared / own    {cpu:.2f}   ({targets.at_most(cpu, 1.1)})")
    print(f"  wall shared / own   {wall:.2f}")


def against_zero_cost(targets: Targets, rounds: int, count: int, in_flight: int) -> None:
    """400 requests, 32 in flight, lognormal around 400 ms: wall against a client that costs nothing.

    The ideal is computed from the latencies the server drew, taken by the first free of ``in_flight`` slots.
    """
    ratios = []
    with emulator("--latency", "0.4", "--latency-sigma", "0.4") as base_url:
        ours(base_url, prompts(50, "warm"), in_flight)
        for number in range(rounds):
            reset(base_url)
            _, wall = measure(ours, base_url, prompts(count, f"log {number}"), in_flight)
            ratios.append(wall / ideal_wall(latencies(base_url), in_flight))
    print(f"{count} requests, {in_flight} in flight, lognormal around 400 ms, {rounds} rounds")
    ratio = statistics.median(ratios)
    print(f"  wall ours / zero-cost client   {ratio:.3f}   ({targets.at_most(ratio, 1.03)})")


def reset(base_url: str) -> None:
    ledger = base_url.removesuffix("/v1") + "/_ledger"
    urllib3.request("POST", f"{ledger}/reset")


def latencies(base_url: str) -> list[float]:
    """The seconds the server waited for each call, in order of arrival."""
    with urlopen(base_url.removesuffix("/v1") + "/_ledger?full=1") as answer:
        return [call["latency"] for call in json.load(answer)["calls"]]


def ideal_wall(seconds: list[float], in_flight: int) -> float:
    free = [0.0] * in_flight
    for each in seconds:
        heapq.heapreplace(free, free[0] + each)
    return max(free)


def memory(targets: Targets, small: int, large: int) -> None:
    """Growth of the peak memory from a small to a large list, in processes of their own."""
    peaks = []
    for count in (small, large):
        command = [sys.executable, "-m", "benchmarks.overhead", "--peak-of", str(count)]
        peaks.append(int(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    print(f"from {small:,} to {large:,} requests")
    growth = (peaks[1] - peaks[0]) / (large - small)
    print(f"  memory a request    {growth:.2f} KiB   ({targets.at_most(growth, 3)})")


def peak_of(count: int) -> None:
    with emulator() as base_url:
        ours(base_url, prompts(count, "memory"), 32)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def on_the_wire(targets: Targets, count: int) -> None:
    """Seconds from ``submit`` on an idle client to its call, seen by an own callable."""
    started: list[float] = []
    waits = []

    def call(_request: Request, _attempt: int) -> str:
        started.append(time.perf_counter())
        return "ok"

    with BatchingClient(call) as client:
        for number in range(count):
            began = time.perf_counter()
            client.submit(f"single {number}").result()
            waits.append(started[-1] - began)
    waits.sort()
    print(f"a single submit on an idle client, {count} times")
    slowest = 1000 * waits[int(0.99 * count)]
    print(
        f"  until its call, ms  median {1000 * statistics.median(waits):.2f}, "
        f"99 % {slowest:.2f}   ({targets.at_most(slowest, 5)})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peak-of", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak_of:
        peak_of(options.peak_of)
        return
    targets = Targets()
    cpu_and_wall(targets, options.rounds, 2000, 64, 0.05)
    shared_limits(targets, options.rounds, 2000, 64, 0.05)
    against_zero_cost(targets, max(1, options.rounds // 2), 400, 32)
    on_the_wire(targets, 500)
    memory(targets, 2_000, 20_000)
    targets.exit()


if __name__ == "__main__":
    main()
