"""What workers of a Dask cluster gain, next to what bare processes gain in the same rounds.

    python -m benchmarks.cluster [--rows N] [--rounds N] [--case CASE] [--store ADDRESS]

Each round of a case asks 20,000 rows of an emulator in a process of its own four times: by one bare process,
by several bare processes that have a share of the rows each, by one worker of a ``LocalCluster``, and by as
many workers, through a store; every other round in the opposite order. A bare process is a client with
``generate`` and no store. *Gain* is rows a second over those of one: of the workers over one bare process,
which counts all that a cluster adds, and over one worker. Each is to be 0.9 of the gain of as many bare
processes over one; the gains are those of the median round. Dask runs with the settings of its own, and
those of the environment.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count, repeat
from pathlib import Path
from statistics import median
from typing import Any

import distributed
from attrs import frozen

from benchmarks.server import emulator
from benchmarks.starts import ready, release
from benchmarks.targets import Targets
from smartbatch import BatchingClient
from smartbatch._clock import RealClock
from smartbatch.integrations import dask

LEAST = 0.9
"""The gain of workers over that of as many bare processes."""
MODEL = "openai:gpt-5-mini"


@frozen
class Case:
    """A server that takes so many seconds, and so many processes with so many calls at a time."""

    latency: float
    processes: int
    parallelism: int


CASES = {"fast": Case(0.002, 2, 8), "slow": Case(0.2, 4, 64)}


def prompts(first: int, count: int) -> list[str]:
    """Return different prompts."""
    return [f"Is {number} a prime number?" for number in range(first, first + count)]


def work(base_url: str, case: Case, first: int, count: int) -> None:
    """Be a bare process: ask when told to."""
    options = {"base_url": base_url, "api_key": "any"}
    settings: dict[str, Any] = {"shared": "off", "parallelism": case.parallelism, "strategy": "individual"}
    with BatchingClient(MODEL, provider_options=options, **settings) as client:
        print("ready", flush=True)
        sys.stdin.readline()
        print(client.generate(prompts(first, count)).succeeded, flush=True)


def bare(base_url: str, name: str, processes: int, rows: int) -> float:
    """Return the rows a second of bare processes."""
    share = rows // processes
    command = [sys.executable, "-m", "benchmarks.cluster", "--case", name, "--work", base_url]
    started = ready([[*command, str(number * share), str(share)] for number in range(processes)])
    began = RealClock.now()
    release(started)
    answered = sum(int(process.communicate()[0]) for process in started)
    assert answered == share * processes
    return answered / (RealClock.now() - began)


def workers(base_url: str, case: Case, processes: int, rows: int, store: str) -> float:
    """Return the rows a second of workers, whose clients were made before."""
    options = {"base_url": base_url, "api_key": "any"}
    settings: dict[str, Any] = {
        "store": store,
        "shared": "off",
        "provider_options": options,
        "parallelism": case.parallelism,
        "strategy": "individual",
    }
    key = secrets.token_hex(8)
    with (
        distributed.LocalCluster(
            n_workers=processes, threads_per_worker=4, processes=True, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster) as scheduler,
    ):
        dask.map(prompts(rows, 800), model=MODEL, scheduler=scheduler, key=f"{key}-first", **settings)
        results = dask.map(prompts(0, rows), model=MODEL, scheduler=scheduler, key=key, **settings)
    assert results.succeeded == rows
    return float(rows / results.wall)


def measure(name: str, rows: int, rounds: int, stores: Iterator[str]) -> Sequence[Mapping[str, float]]:
    """Return the rows a second of each way, round by round."""
    case = CASES[name]
    with emulator("--latency", str(case.latency)) as base_url:
        ways: dict[str, Callable[[], float]] = {
            "one process": partial(bare, base_url, name, 1, rows),
            "processes": partial(bare, base_url, name, case.processes, rows),
            "one worker": lambda: workers(base_url, case, 1, rows, next(stores)),
            "workers": lambda: workers(base_url, case, case.processes, rows, next(stores)),
        }
        measured = []
        for number in range(rounds):
            order = list(ways)[:: -1 if number % 2 else 1]
            measured.append({way: ways[way]() for way in order})
            print("  " + ", ".join(f"{way} {measured[-1][way]:,.0f}" for way in ways), flush=True)
    return measured


def compare(name: str, rounds: Sequence[Mapping[str, float]], targets: Targets) -> None:
    """Print the gains of one case."""
    case = CASES[name]

    def gain(way: str, over: str) -> float:
        return median(one[way] / one[over] for one in rounds)

    bare_gain = gain("processes", "one process")
    target = round(LEAST * bare_gain, 2)
    rates = ", ".join(f"{way} {median(one[way] for one in rounds):,.0f}" for way in rounds[0])
    print(f"{name}, {case.latency * 1000:g} ms, {case.processes} processes or workers, rows/s: {rates}")
    print(f"  {case.processes} processes over one process: a gain of {bare_gain:.2f}")
    for over in ("one process", "one worker"):
        found = gain("workers", over)
        told = targets.at_least(found, target)
        print(f"  {case.processes} workers over {over}: a gain of {found:.2f} ({told})", flush=True)


def main() -> None:
    """Print the figures; exit with 1 where a target is missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("--store", help="a file of its own when none is given")
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        base_url, first, share = args.work
        work(base_url, CASES[args.case[0]], int(first), int(share))
        return
    targets = Targets()
    for name in args.case or CASES:
        with tempfile.TemporaryDirectory() as folder:
            files = map(f"{folder}/{{}}.db".format, count())
            stores = files if args.store is None else repeat(args.store)
            measured = measure(name, args.rows, args.rounds, stores)
            compare(name, measured, targets)
            if args.store is None:
                size = sum(file.stat().st_size for file in Path(folder).iterdir())
                print(f"  {size / (2 * args.rounds * args.rows):,.0f} bytes of the store a row", flush=True)
    targets.exit()


if __name__ == "__main__":
    main()
