"""What workers of a Dask cluster gain, next to what bare processes gain in the same run.

    python -m benchmarks.cluster [--rows N] [--case CASE] [--store ADDRESS]

Each case asks 20,000 rows of an emulator in a process of its own: by one bare process, by several bare
processes that have a share of the rows each, and by as many workers of a ``LocalCluster``, through a store. A
bare process is a client with ``generate`` and no store. *Gain* is rows a second over those of one bare
process; the workers' is to be 0.9 of that of as many bare processes.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
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


def workers(base_url: str, case: Case, rows: int, store: str) -> float:
    """Return the rows a second of workers, whose clients were made before."""
    options = {"base_url": base_url, "api_key": "any"}
    settings: dict[str, Any] = {
        "store": store,
        "shared": "off",
        "provider_options": options,
        "parallelism": case.parallelism,
        "strategy": "individual",
    }
    with (
        distributed.LocalCluster(
            n_workers=case.processes, threads_per_worker=4, processes=True, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster) as scheduler,
    ):
        dask.map(prompts(rows, 800), model=MODEL, scheduler=scheduler, **settings)
        results = dask.map(prompts(0, rows), model=MODEL, scheduler=scheduler, **settings)
    assert results.succeeded == rows
    return float(rows / results.wall)


def compare(name: str, rows: int, store: str, targets: Targets) -> None:
    """Print the gains of one case."""
    case = CASES[name]
    with emulator("--latency", str(case.latency)) as base_url:
        one = bare(base_url, name, 1, rows)
        several = bare(base_url, name, case.processes, rows)
        cluster = workers(base_url, case, rows, store)
    gain, target = several / one, LEAST * several / one
    print(
        f"{name}, {case.latency * 1000:g} ms: one process {one:,.0f} rows/s; {case.processes} processes "
        f"{several:,.0f}, a gain of {gain:.2f}; {case.processes} workers {cluster:,.0f}, a gain of "
        f"{cluster / one:.2f} ({targets.at_least(cluster / one, round(target, 2))})",
        flush=True,
    )


def main() -> None:
    """Print the figures; exit with 1 where a target is missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("--store", help="a file of its own when none is given")
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        base_url, first, count = args.work
        work(base_url, CASES[args.case[0]], int(first), int(count))
        return
    targets = Targets()
    with tempfile.TemporaryDirectory() as folder:
        for name in args.case or CASES:
            file = Path(folder) / f"{name}.db"
            compare(name, args.rows, args.store or str(file), targets)
            if file.exists():
                size = sum(os.path.getsize(part) for part in Path(folder).glob(f"{name}.db*"))
                print(f"  {size / args.rows:,.0f} bytes of the store a row", flush=True)
    targets.exit()


if __name__ == "__main__":
    main()
