"""Measures how well several processes share one limit, over HTTP against a server that enforces it.

    python -m benchmarks.shared [--address ADDRESS] [--case CASE]

In each case, one process and then four processes that share the limit send 900 requests at 600 per minute.
*Time* is the time of the four divided by the time of the one; *refused* is the share of calls answered with
429. No request may be lost. In two cases, one of the four processes is killed, or frozen for 20 seconds;
the other three should then use the whole limit. In one case, the same number of processes used the limit
earlier. *Operations* are operations per second and process on the shared store: the average of all, and the
maximum of one process between two of its published records.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from attrs import field, frozen

from benchmarks.harness import emulator, ledger, provider_of, start_together
from smartbatch import BatchingClient, participants
from smartbatch._clock import RealClock


@frozen
class Case:
    """A limit as enforced by the server and known to the client.

    Attributes:
        event: ``kill`` or ``freeze`` one of four processes after five seconds.
        requests, processes: their numbers.
        before: requests sent earlier by the same number of processes, which are not measured.
    """

    title: str
    server: list[str] = field(factory=lambda: ["--rpm", "600"])
    api: str = "openai"
    settings: dict[str, Any] = field(factory=dict)
    event: str = ""
    requests: int = 900
    processes: int = 4
    before: int = 0


@frozen
class Operations:
    """Operations of the processes of a run on the shared place.

    Attributes:
        mean, most: operations per second and process: the mean, and the maximum between two records.
        milliseconds: of one operation.
    """

    mean: float
    most: float
    milliseconds: float


CASES = {
    "told": Case("told", settings={"max_rpm": 600}),
    "learned": Case("learned from answers"),
    "learned-anthropic": Case("learned from answers, Anthropic", api="anthropic"),
    "even": Case(
        "told, no burst honoured",
        ["--rpm", "600", "--enforce", "second"],
        settings={"max_rpm": 600},
    ),
    "untold": Case("not told", ["--rpm", "600", "--no-limit-headers"]),
    "untold-before": Case(
        "not told, but met before", ["--rpm", "600", "--no-limit-headers"], requests=480, before=800
    ),
    "killed": Case("told, one killed", settings={"max_rpm": 600}, event="kill"),
    "frozen": Case("told, one frozen for 20 s", settings={"max_rpm": 600}, event="freeze"),
    "many": Case("told, 64 processes", settings={"max_rpm": 600}, requests=1280, processes=64),
}


def work(base_url: str, case: Case, count: int, address: str, name: str) -> dict[str, Any]:
    """Send ``count`` requests from this process; return lost requests and seconds."""
    model, provider = provider_of(case.api, base_url)
    with BatchingClient(model, provider=provider, parallelism=16, shared=address, **case.settings) as client:
        print("ready", flush=True)
        sys.stdin.readline()
        results = client.generate(f"question {number} of {name}" for number in range(count))
    return {"lost": results.failed, "wall": results.wall}


def command(base_url: str, case: str, count: int, address: str, name: str) -> list[str]:
    """Return the command of a process that waits for a line on standard input."""
    words = [base_url, case, str(count), address, name]
    return [sys.executable, "-m", "benchmarks.shared", "--work", *words]


def together(case: str, processes: int, address: str) -> tuple[float, int, int, int, Operations]:
    """Send all requests of a case with ``processes``; return seconds, lost, calls, refused, operations."""
    chosen = CASES[case]
    clock = RealClock()
    with emulator("--latency", "0.05", "--latency-sigma", "0.3", *chosen.server) as base_url:
        if chosen.before:
            for one in begin(base_url, case, processes, chosen.before, address):
                one.communicate()
        before = int(ledger(base_url)["received"])
        begun = begin(base_url, case, processes, chosen.requests, address)
        if chosen.event and processes > 1:
            threading.Thread(target=disturb, args=(begun[0], chosen.event, clock)).start()
        operations = watched(begun, address, clock)
        lost, seconds = 0, 0.0
        for one in begun if chosen.event != "kill" or processes == 1 else begun[1:]:
            said, _ = one.communicate()
            told = json.loads(said.splitlines()[-1])
            lost, seconds = lost + told["lost"], max(seconds, told["wall"])
        report = ledger(base_url)
    calls = int(report["received"]) - before
    answered = chosen.requests - lost
    return seconds, lost, calls, calls - answered, operations


def begin(
    base_url: str, case: str, processes: int, requests: int, address: str
) -> list[subprocess.Popen[str]]:
    """Start processes that send requests together."""
    share = requests // processes
    return start_together(
        [command(base_url, case, share, address, f"{share} {number}") for number in range(processes)]
    )


def watched(processes: list[subprocess.Popen[str]], address: str, clock: RealClock) -> Operations:
    """Read the status published by the processes until all have ended."""
    if address == "off":
        return Operations(0.0, 0.0, 0.0)
    records: dict[str, dict[float, tuple[float, float]]] = {}  # by process and time: operations, seconds
    while any(one.poll() is None for one in processes):
        clock.sleep(1.0)
        now = clock.now()
        for one in participants(address).living:
            told = records.setdefault(one.member, {})
            told[round(now - one.age, 1)] = counted(one.sums, "operations"), counted(one.sums, "seconds")
    spans = [
        (at, *told[at], later, *told[later]) for told in records.values() for at, later in pairwise(told)
    ]
    spans = [span for span in spans if span[3] - span[0] > 1.0]  # otherwise it is the same record read twice
    made = sum(span[4] - span[1] for span in spans)
    return Operations(
        made / sum(span[3] - span[0] for span in spans),
        max((span[4] - span[1]) / (span[3] - span[0]) for span in spans),
        1000.0 * sum(span[5] - span[2] for span in spans) / made,
    )


def counted(sums: Mapping[str, float], what: str) -> float:
    """Return the total of all kinds of operations."""
    return sum(value for name, value in sums.items() if name.startswith(f"shared_{what}:"))


def disturb(process: subprocess.Popen[str], event: str, clock: RealClock) -> None:
    """After five seconds, kill a process or freeze it for 20."""
    clock.sleep(5.0)
    if event == "kill":
        process.send_signal(signal.SIGKILL)
        process.wait()
    else:
        process.send_signal(signal.SIGSTOP)
        clock.sleep(20.0)
        process.send_signal(signal.SIGCONT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--address", help="a file of its own when none is given")
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("--work", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work is not None:
        base_url, case, count, address, name = given.work
        print(json.dumps(work(base_url, CASES[case], int(count), address, name)))
        return
    for case in given.case or CASES:
        processes = CASES[case].processes
        with tempfile.TemporaryDirectory() as folder:
            place = given.address or f"sqlite:///{Path(folder) / 'limits.db'}"
            alone, *_ = together(case, 1, place if CASES[case].before else "off")
            seconds, lost, calls, refused, made = together(case, processes, place)
        print(
            f"{CASES[case].title:<32} time {seconds / alone:5.2f} x {alone:5.1f} s"
            f"  refused {refused / calls:6.2%}  lost {lost}"
            f"  operations {made.mean:.2f}, {made.most:.2f} of {made.milliseconds:.2f} ms",
            flush=True,
        )


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
