"""This library next to what people use today, in one run: CPU, wall time, memory, limits, outages, vectors.

    python -m benchmarks.peers --rounds 5 --write docs/reference

Each peer is a process of its own for each case, which begins its clock after one call that imports and
connects everything; the server is the emulator in a process of its own. The peers take turns in each round,
and medians count. Peers that are not installed are left out (``pip install openai litellm langchain-openai
async-batch-llm``); what each does is in ``benchmarks/peer_clients.py``.

- *busy*: 2,000 requests of 50 ms, 64 at a time. *fast*: 5,000 requests of 2 ms.
- *limit*: 200 requests to a server that takes 20 a second and no burst, and is not told of beforehand; *used*
  is the share of what it would have taken in that time, *refused* the share of calls with 429.
- *outage*: 1,000 requests of 50 ms; from one second on every call gets 503 for five seconds.
- *embeddings*: 2,000 texts from 64 threads, each of which asks for one vector, waits, and asks for the next.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from attrs import frozen

from benchmarks.peer_clients import LISTS, LONE_VECTORS
from benchmarks.peers_page import Column, Measured, page, picture
from benchmarks.server import emulator

WIDE = 64


@frozen
class Case:
    """A server, and how many requests it gets.

    Attributes:
        columns: what is told of it: the head, and the figure of a measurement.
    """

    name: str
    requests: int
    server: Sequence[str]
    columns: Sequence[Column]
    vectors: bool = False


def _per_request(case_requests: int) -> Callable[[Measured], float]:
    return lambda found: 1000 * found.cpu / case_requests


CASES = (
    Case(
        "busy",
        2_000,
        ("--latency", "0.05"),
        (
            Column("CPU a request, ms", _per_request(2_000)),
            Column("wall, s", lambda found: found.wall),
            Column("memory, MB", lambda found: found.memory),
        ),
    ),
    Case(
        "fast",
        5_000,
        ("--latency", "0.002"),
        (
            Column("CPU a request, ms", _per_request(5_000)),
            Column("requests a second", lambda found: 5_000 / found.wall, digits=0),
        ),
    ),
    Case(
        "limit",
        200,
        ("--latency", "0.05", "--rpm", "1200", "--enforce", "second"),
        (
            Column("used, %", lambda found: 100 * min(1.0, found.answered / (20 * found.wall)), digits=1),
            Column("refused, %", lambda found: 100 * found.refused / max(1, found.calls), digits=1),
            Column("lost", lambda found: 200 - found.answered, digits=0),
        ),
    ),
    Case(
        "outage",
        1_000,
        ("--latency", "0.05", "--outage-between", "1:6"),
        (
            Column("wall, s", lambda found: found.wall, digits=1),
            Column("lost", lambda found: 1_000 - found.answered, digits=0),
            Column("calls", lambda found: found.calls, digits=0),
        ),
    ),
    Case(
        "embeddings",
        2_000,
        ("--latency", "0.05"),
        (
            Column("calls", lambda found: found.calls, digits=0),
            Column("texts a second", lambda found: 2_000 / found.wall, digits=0),
            Column("CPU a text, ms", _per_request(2_000)),
        ),
        vectors=True,
    ),
)


def peers_of(case: Case) -> Mapping[str, tuple[str | None, Callable[[str, Sequence[str]], Sequence[Any]]]]:
    """Return the installed peers that take a case."""
    known: Mapping[str, tuple[str | None, Callable[[str, Sequence[str]], Sequence[Any]]]]
    known = LONE_VECTORS if case.vectors else LISTS
    return {
        name: (module, ask)
        for name, (module, ask) in known.items()
        if module is None or importlib.util.find_spec(module) is not None
    }


def one(case: Case, peer: str, url: str) -> None:
    """Run a peer on a case in this process, and print what it took."""
    ask = peers_of(case)[peer][1]
    ask(url, ["warm"])
    urlopen(Request(url.removesuffix("/v1") + "/_ledger/reset", method="POST")).close()
    texts = [f"row {number}: how many apples are left in the basket?" for number in range(case.requests)]
    cpu, wall = time.process_time(), time.perf_counter()
    answers = ask(url, texts)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    answered = sum(answer is not None for answer in answers)
    different = len({repr(answer) for answer in answers if answer is not None})
    if different != answered:
        raise AssertionError(f"{answered - different} answers belong to other rows")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"cpu": cpu, "wall": wall, "memory": peak, "answered": answered}), flush=True)
    os._exit(0)  # what still runs would only use the machine of the next one


def measure(case: Case, peer: str) -> Measured:
    """Return what a peer takes for a case, in a process of its own against a new server."""
    with emulator(*case.server) as url:
        command = [sys.executable, "-m", "benchmarks.peers", "--one", case.name, peer, url]
        environ = {**os.environ, "SMARTBATCH_SHARED": "off"}  # nothing of an earlier process is known
        printed = subprocess.run(command, capture_output=True, text=True, check=True, env=environ).stdout
        with urlopen(url.removesuffix("/v1") + "/_ledger") as answer:
            ledger = json.load(answer)
    return Measured(
        **json.loads(printed.splitlines()[-1]),
        calls=ledger["received"],
        refused=ledger["by_status"].get("429", 0),
    )


def main() -> None:
    """Measure the peers, print tables, and write them with a picture where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES])
    parser.add_argument("--write", type=Path, help="the folder for peers.md and peers.svg")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    by_name = {case.name: case for case in CASES}
    if args.one:
        one(by_name[args.one[0]], *args.one[1:])
    found: dict[str, dict[str, list[Measured]]] = {}
    for name in args.case or by_name:
        case, rows = by_name[name], found.setdefault(name, {})
        for _ in range(args.rounds):
            for peer in peers_of(case):
                rows.setdefault(peer, []).append(measure(case, peer))
                print(f"{name}, {peer}: {rows[peer][-1]}", file=sys.stderr)
    tables = {
        name: (by_name[name].columns, {peer: _median(each) for peer, each in rows.items()})
        for name, rows in found.items()
    }
    words = page(tables, _where(args.rounds))
    print(words)
    if args.write:
        (args.write / "peers.md").write_text(words)
        (args.write / "peers.svg").write_text(picture(tables))


def _median(found: Sequence[Measured]) -> Measured:
    figures = zip(*(each.figures for each in found), strict=True)
    return Measured(*(statistics.median(values) for values in figures))


def _where(rounds: int) -> str:
    """Return when, where and how it was measured."""
    options = " ".join(sys.argv[1:])
    load, versions = os.getloadavg()[2], ", ".join(_versions())
    return (
        f"Measured on {datetime.date.today():%d %B %Y} on {os.cpu_count()} cores ({platform.machine()}, "
        f"{platform.system()}) with Python {platform.python_version()}, in {rounds} rounds, by "
        f"`python -m benchmarks.peers {options}`; {load:.1f} programs wanted a core meanwhile. {versions}."
    )


def _versions() -> Iterator[str]:
    """Yield the peers' packages with their versions, as far as they are installed."""
    for name in ("urllib3", "openai", "litellm", "langchain-openai", "async-batch-llm"):
        with suppress(metadata.PackageNotFoundError):
            yield f"{name} {metadata.version(name)}"


if __name__ == "__main__":
    main()
