"""How well several processes fill one limit together, over real HTTP against an enforcing server.

    python -m benchmarks.shared [--address ADDRESS] [--case CASE]

Each case sends 900 requests at 600 a minute, by one process and then by four that share the limit. *Time* is
the time of all over the time of the one; *refused* is the share of calls answered with 429; nothing may be
lost. In two cases one of four processes is killed, or frozen for 20 seconds: its rows are its own affair, and
the limit is the others'. In one case as many processes met the limit before, and others come after them.
*Operations* are those at the place where they share, a second and process: of all on average, and the most of
one process between two of the records that it publishes. ``--publishing`` tells what a record costs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from attrs import field, frozen

from benchmarks.limits import provider_of, summary
from benchmarks.server import emulator
from benchmarks.starts import ready, release
from smartbatch import BatchingClient, participants
from smartbatch._clock import RealClock
from smartbatch.observe.participants import RECORD_SECONDS, text_of
from smartbatch.sharing.addresses import open_back_end
from smartbatch.sharing.publication import Publication

TIME, REFUSED, OPERATIONS = 1.05, 0.01, 10.0
"""Targets: the time of all over that of one, the share of calls refused, operations a second and process."""


@frozen
class Case:
    """A limit of 600 a minute, as the server enforces it and as the client knows it.

    Attributes:
        event: what happens to one of four processes five seconds after the start: ``kill`` or ``freeze``.
        requests, processes: how many.
        before: requests that as many processes send before, and end; they do not count.
        time: target, of the time of all over that of one; infinity where the operations are what counts.
    """

    title: str
    server: list[str] = field(factory=lambda: ["--rpm", "600"])
    api: str = "openai"
    settings: dict[str, Any] = field(factory=dict)
    event: str = ""
    requests: int = 900
    processes: int = 4
    before: int = 0
    time: float = TIME


@frozen
class Operations:
    """What the processes of a run did at the place where they share.

    Attributes:
        mean, most: operations a second and process: of all, and of one between two of its records.
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
    "many": Case("told, 64 processes", settings={"max_rpm": 600}, requests=1280, processes=64, time=math.inf),
}


def work(base_url: str, case: Case, count: int, address: str, name: str) -> dict[str, Any]:
    """Send ``count`` requests from this process; return how many were lost and the seconds it took."""
    model, provider = provider_of(case.api, base_url)
    with BatchingClient(model, provider=provider, parallelism=16, shared=address, **case.settings) as client:
        print("ready", flush=True)
        sys.stdin.readline()
        results = client.generate(f"question {number} of {name}" for number in range(count))
    return {"lost": results.failed, "wall": results.wall}


def command(base_url: str, case: str, count: int, address: str, name: str) -> list[str]:
    """Return the command of a process that waits for a line on its standard input."""
    words = [base_url, case, str(count), address, name]
    return [sys.executable, "-m", "benchmarks.shared", "--work", *words]


def together(case: str, processes: int, address: str) -> tuple[float, int, int, int, Operations]:
    """Let ``processes`` send all requests of a case; return seconds, lost, calls, refused, operations."""
    chosen = CASES[case]
    clock = RealClock()
    with emulator("--latency", "0.05", "--latency-sigma", "0.3", *chosen.server) as base_url:
        if chosen.before:
            for one in begin(base_url, case, processes, chosen.before, address):
                one.communicate()
        before = int(summary(base_url)["received"])
        begun = begin(base_url, case, processes, chosen.requests, address)
        if chosen.event and processes > 1:
            threading.Thread(target=disturb, args=(begun[0], chosen.event, clock)).start()
        operations = watched(begun, address, clock)
        lost, seconds = 0, 0.0
        for one in begun if chosen.event != "kill" or processes == 1 else begun[1:]:
            said, _ = one.communicate()
            told = json.loads(said.splitlines()[-1])
            lost, seconds = lost + told["lost"], max(seconds, told["wall"])
        report = summary(base_url)
    calls = int(report["received"]) - before
    answered = chosen.requests - lost
    return seconds, lost, calls, calls - answered, operations


def begin(
    base_url: str, case: str, processes: int, requests: int, address: str
) -> list[subprocess.Popen[str]]:
    """Let processes begin to send so many requests together."""
    share = requests // processes
    begun = ready(
        [command(base_url, case, share, address, f"{share} {number}") for number in range(processes)]
    )
    release(begun)
    return begun


def watched(processes: list[subprocess.Popen[str]], address: str, clock: RealClock) -> Operations:
    """Read what the processes publish until all have ended."""
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
    spans = [span for span in spans if span[3] - span[0] > 1.0]  # else it is the same record, read twice
    made = sum(span[4] - span[1] for span in spans)
    return Operations(
        made / sum(span[3] - span[0] for span in spans),
        max((span[4] - span[1]) / (span[3] - span[0]) for span in spans),
        1000.0 * sum(span[5] - span[2] for span in spans) / made,
    )


def counted(sums: Mapping[str, float], what: str) -> float:
    """Return the sum over all kinds of operations."""
    return sum(value for name, value in sums.items() if name.startswith(f"shared_{what}:"))


def publishing(rounds: int = 500) -> None:
    """Tell what a record costs a process: its bytes, and the time to make and store it."""
    with tempfile.TemporaryDirectory() as folder, emulator("--latency", "0") as base_url:
        _, provider = provider_of("openai", base_url)
        address = f"sqlite:///{folder}/limits.db"
        with BatchingClient("gpt-5-mini", provider=provider, parallelism=16, shared=address) as client:
            client.generate(f"question {number}" for number in range(500))
            kept = participants(address).processes[0]
            publication = Publication("benchmark", RealClock())
            publication.add(client.metrics, lambda _: kept.realtime)
            back_end = open_back_end(address, RealClock.now)
            back_end.prepare()
            cpu, began = time.process_time(), RealClock.now()
            for number in range(rounds):
                record = publication.record({"shared_operations:publish": float(number)}, lambda name: name)
                text = text_of(record)
                back_end.publish("benchmark", text, {})
            wall, cpu = RealClock.now() - began, time.process_time() - cpu
            back_end.close()
    each = 1000.0 * cpu / rounds
    print(f"a record: {len(text):,} bytes, {each:.2f} ms of CPU, {1000 * wall / rounds:.2f} ms")
    print(f"  every {RECORD_SECONDS:.0f} s: {each / 10 / RECORD_SECONDS:.3f} % of a core")


def disturb(process: subprocess.Popen[str], event: str, clock: RealClock) -> None:
    """After five seconds kill a process, or freeze it for 20."""
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
    parser.add_argument(
        "--publishing", action="store_true", help="tell what a record costs, and nothing else"
    )
    parser.add_argument("--work", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work is not None:
        base_url, case, count, address, name = given.work
        print(json.dumps(work(base_url, CASES[case], int(count), address, name)))
        return
    if given.publishing:
        publishing()
        return
    missed = 0
    for case in given.case or CASES:
        processes = CASES[case].processes
        with tempfile.TemporaryDirectory() as folder:
            place = given.address or f"sqlite:///{Path(folder) / 'limits.db'}"
            alone, *_ = together(case, 1, place if CASES[case].before else "off")
            seconds, lost, calls, refused, made = together(case, processes, place)
        met = (
            seconds <= CASES[case].time * alone
            and refused <= REFUSED * calls
            and lost == 0
            and made.most <= OPERATIONS
        )
        missed += not met
        print(
            f"{CASES[case].title:<32} time {seconds / alone:5.2f} x {alone:5.1f} s"
            f"  refused {refused / calls:6.2%}  lost {lost}"
            f"  operations {made.mean:.2f}, {made.most:.2f} of {made.milliseconds:.2f} ms"
            f"{'' if met else '  MISSED'}",
            flush=True,
        )
    sys.exit(missed > 0)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
