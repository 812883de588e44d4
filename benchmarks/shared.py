"""How well several processes fill one limit together, over real HTTP against an enforcing server.

    python -m benchmarks.shared [--address ADDRESS] [--case CASE]

Each case sends 900 requests at 600 a minute, by one process and then by four that share the limit. *Time* is
the time of all over the time of the one; *refused* is the share of calls answered with 429; nothing may be
lost. In two cases one of four processes is killed, or frozen for 20 seconds: its rows are its own affair, and
the limit is the others'.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from attrs import field, frozen

from benchmarks.limits import provider_of, summary
from benchmarks.server import emulator
from smartbatch import BatchingClient
from smartbatch._clock import RealClock

REQUESTS = 900
PROCESSES = 4
TIME, REFUSED = 1.05, 0.01
"""Targets: the time of four over that of one, and the share of calls refused."""


@frozen
class Case:
    """A limit of 600 a minute, as the server enforces it and as the client knows it.

    Attributes:
        event: what happens to one of four processes five seconds after the start: ``kill`` or ``freeze``.
    """

    title: str
    server: list[str] = field(factory=lambda: ["--rpm", "600"])
    api: str = "openai"
    settings: dict[str, Any] = field(factory=dict)
    event: str = ""


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
    "killed": Case("told, one killed", settings={"max_rpm": 600}, event="kill"),
    "frozen": Case("told, one frozen for 20 s", settings={"max_rpm": 600}, event="freeze"),
}


def work(base_url: str, case: Case, count: int, address: str, name: str) -> dict[str, Any]:
    """Send ``count`` requests from this process; return how many were lost and the seconds it took."""
    model, provider = provider_of(case.api, base_url)
    with BatchingClient(model, provider=provider, parallelism=16, shared=address, **case.settings) as client:
        print("ready", flush=True)
        sys.stdin.readline()
        results = client.generate(f"question {number} of {name}" for number in range(count))
    return {"lost": results.failed, "wall": results.wall}


def start(base_url: str, case: str, count: int, address: str, name: str) -> subprocess.Popen[str]:
    """Start a process that waits for a line on its standard input."""
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.shared", "--work", base_url, case, str(count), address, name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def together(case: str, processes: int, address: str) -> tuple[float, int, int, int]:
    """Let ``processes`` send all requests of a case; return seconds, lost, calls and refused calls."""
    chosen = CASES[case]
    clock = RealClock()
    with emulator("--latency", "0.05", "--latency-sigma", "0.3", *chosen.server) as base_url:
        begun = [
            start(base_url, case, REQUESTS // processes, address, f"{case} {number}")
            for number in range(processes)
        ]
        for one in begun:
            assert one.stdout is not None
            one.stdout.readline()
        began = clock.now()
        for one in begun:
            assert one.stdin is not None
            one.stdin.write("go\n")
            one.stdin.flush()
        if chosen.event and processes > 1:
            clock.sleep(5.0)
            disturb(begun[0], chosen.event, clock)
        lost = 0
        for one in begun if chosen.event != "kill" or processes == 1 else begun[1:]:
            said, _ = one.communicate()
            lost += json.loads(said.splitlines()[-1])["lost"]
        seconds = clock.now() - began
        report = summary(base_url)
    calls = int(report["received"])
    answered = REQUESTS - lost
    return seconds, lost, calls, calls - answered


def disturb(process: subprocess.Popen[str], event: str, clock: RealClock) -> None:
    """Kill a process, or freeze it for 20 seconds."""
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
    missed = 0
    for case in given.case or CASES:
        with tempfile.TemporaryDirectory() as folder:
            alone, *_ = together(case, 1, "off")
            place = given.address or f"sqlite:///{Path(folder) / 'limits.db'}"
            seconds, lost, calls, refused = together(case, PROCESSES, place)
        met = seconds <= TIME * alone and refused <= REFUSED * calls and lost == 0
        missed += not met
        print(
            f"{CASES[case].title:<32} time {seconds / alone:5.2f} x {alone:5.1f} s"
            f"  refused {refused / calls:6.2%}  lost {lost}{'' if met else '  MISSED'}",
            flush=True,
        )
    sys.exit(missed > 0)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
