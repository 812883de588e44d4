"""Measures memory, time and store operations of one job of 100,000 requests in 20 batches.

    python -m benchmarks.million
    python -m benchmarks.million --requests 20000 --batches 20 --dimensions 1536

The client and the emulator run in separate processes and communicate over loopback HTTP. The provider
completes a batch two seconds after its creation. The first run is undisturbed. In the second, the client is
killed with SIGKILL and restarted three times: while it stores the rows, while it sends the batches, and
while it reads the results.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from attrs import define, field, frozen

from benchmarks.harness import emulator
from benchmarks.million_client import MODELS, PROMPT, Orders

__all__ = ["ClientProcess", "Told", "serving", "undisturbed"]

TURNAROUND = 2.0
"""Seconds a batch takes at the provider."""
Told = dict[str, Any]
"""A line of the client's output."""


@define
class ClientProcess:
    """A run of the client in its own process.

    Attributes:
        began: Unix time of its start.
        told: its output.
        stored: results in the store at its start.
    """

    began: float
    stored: int
    told: list[Told] = field(factory=list, repr=False)

    @property
    def peak(self) -> float:
        """Maximum memory in MB."""
        return float(max(line["peak"] for line in self.told))

    def first(self, what: str) -> Told:
        return next(line for line in self.told if line["what"] == what)

    def since(self, line: Told) -> float:
        return float(line["at"]) - self.began

    @property
    def carried_on(self) -> float:
        """Seconds from the start of the process until it first made progress: it took the job over and
        advanced a batch, stored new results, or else accepted the job.
        """
        for line in self.told:
            moved = line["what"] == "shard" or (line["what"] == "stored" and line["count"] > self.stored)
            if moved or line["what"] == "accepted":
                return self.since(line)
        raise ValueError("the client did nothing")


def run(orders: Orders, until: Callable[[Told], bool] | None = None) -> ClientProcess:
    """Run a client until it ends, or kill it at the first line for which ``until`` is true."""
    client = ClientProcess(time.time(), stored_in(orders.store))
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.million_client", orders.line()],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[1],
    )
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            if not line.endswith(b"\n"):
                break  # killed during output
            client.told.append(json.loads(line))
            if until is not None and until(client.told[-1]):
                process.kill()
                break
    if process.wait() not in (0, -9):
        raise RuntimeError("the client failed; see its output above")
    return client


def stored_in(store: str) -> int:
    if not Path(store).exists():
        return 0
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as file:
        return int(file.execute("SELECT count(*) FROM result").fetchone()[0])


def bytes_of(store: str) -> int:
    """Return the size of a store whose client has ended, including its log and spool."""
    name = Path(store).name
    return sum(file.stat().st_size for file in Path(store).parent.rglob(f"{name}*") if file.is_file())


@contextmanager
def serving(turnaround: float = TURNAROUND) -> Iterator[str]:
    """Serve the providers' APIs and yield the URL."""
    with emulator("--latency=0", f"--batch-turnaround={turnaround}") as url:
        yield url.removesuffix("/v1")


@frozen
class Undisturbed:
    """The outcome of a job that was not disturbed.

    Attributes:
        client: the process that ran it.
        bytes: size of the store at the end.
        ledger: the emulator's figures.
    """

    client: ClientProcess
    bytes: int
    ledger: Told = field(repr=False)


def undisturbed(orders: Orders) -> Undisturbed:
    client = run(orders)
    with urlopen(f"{orders.url}/_ledger") as answer:
        ledger = json.load(answer)
    return Undisturbed(client, bytes_of(orders.store), ledger)


# -- kills ---------------------------------------------------------------------------------------------------


def killed(orders: Orders) -> tuple[list[ClientProcess], Told]:
    """Kill the client at three points and let it finish; return its processes and the ledger's figures."""
    moments = (_while_storing(orders), _while_sending(orders), _in_the_middle(orders), None)
    processes = [run(orders, until) for until in moments]
    with urlopen(f"{orders.url}/_ledger") as answer:
        return processes, json.load(answer)


def _while_storing(orders: Orders) -> Callable[[Told], bool]:
    return lambda line: bool(line["what"] == "given" and line["count"] * 2 >= orders.requests)


def _in_the_middle(orders: Orders) -> Callable[[Told], bool]:
    return lambda line: bool(line["what"] == "stored" and line["count"] * 2 >= orders.requests)


def _while_sending(orders: Orders) -> Callable[[Told], bool]:
    batches = -(-orders.requests // orders.per_batch)
    sent = iter(range(1, batches + 1))
    return lambda line: bool(
        line["what"] == "shard" and line["state"] == "submitted" and next(sent) * 2 >= batches
    )


# -- the tables ----------------------------------------------------------------------------------------------


def show_undisturbed(orders: Orders, found: Undisturbed) -> bool:
    client, count = found.client, orders.requests
    ended = client.told[-1]
    accepted, looked = client.first("accepted"), client.first("looked")
    sent = [line for line in client.told if line["what"] == "shard" and line["state"] == "submitted"]
    good = (ended["what"], ended["wrong"], ended["completed"]) == ("ended", 0, count)
    good = good and _paid_once(orders, found.ledger)
    rows: list[tuple[str, str]] = [
        ("right answers", f"{ended['completed'] - ended['wrong']:,} of {count:,}"),
        ("batches", f"{ended['batches']}, incidents {ended['incidents']}"),
        (
            "seconds: to the accepted job, to the last batch sent, in all",
            " ".join(f"{client.since(line):.1f}" for line in (accepted, sent[-1], ended)),
        ),
        ("client's CPU a request, the check of its answer included", f"{ended['cpu'] / count * 1e6:.0f} µs"),
        (
            "client's memory: at its start, at its peak",
            f"{client.told[0]['memory']:.0f} MB, {client.peak:.0f} MB",
        ),
        ("write transactions a request", f"{ended['transactions'] / count:.4f}"),
        ("rows written a request", f"{ended['written'] / count:.2f}"),
        (
            "read statements a request, rows read",
            f"{ended['reads'] / count:.4f}, {ended['rows'] / count:.2f}",
        ),
        ("bytes of the store a request", f"{found.bytes / count:,.0f}"),
        ("a look at the job's status", f"{looked['seconds'] * 1000:.1f} ms"),
    ]
    for name, value in rows:
        print(f"| {name} | {value} |", flush=True)
    return good


def show_killed(orders: Orders, processes: list[ClientProcess], ledger: Told) -> bool:
    print("| killed | s until the next process carries on | results it found | peak MB |\n|---|---|---|---|")
    names = (
        "while it stored the rows: until all are stored anew",
        "while it sent batches",
        "in the middle of the results",
    )
    for name, client in zip(names, processes[1:], strict=True):
        print(f"| {name} | {client.carried_on:.1f} | {client.stored:,} | {client.peak:.0f} |", flush=True)
    ended = processes[-1].told[-1]
    good = (ended["what"], ended["wrong"], ended["completed"]) == ("ended", 0, orders.requests)
    print(f"right answers {ended['completed'] - ended['wrong']:,}, paid twice {ledger['paid_twice']}")
    return good and _paid_once(orders, ledger)


def _paid_once(orders: Orders, ledger: Told) -> bool:
    return (ledger["prompts_billed"], ledger["paid_twice"]) == (orders.requests, 0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--provider", choices=sorted(MODELS), default="openai")
    parser.add_argument("--letters", type=int, default=PROMPT, help="of each prompt")
    parser.add_argument("--dimensions", type=int, default=0, help="ask for vectors of so many numbers")
    options = parser.parse_args()
    good = True
    for kind in ("left alone", "killed three times"):
        print(f"{options.requests:,} requests, {options.batches} batches, {options.provider}, {kind}")
        with tempfile.TemporaryDirectory(prefix="smartbatch-") as folder, serving() as url:
            orders = Orders(
                url=url,
                store=str(Path(folder) / "jobs.db"),
                requests=options.requests,
                per_batch=-(-options.requests // options.batches),
                provider=options.provider,
                letters=options.letters,
                dimensions=options.dimensions,
            )
            if kind == "left alone":
                good &= show_undisturbed(orders, undisturbed(orders))
            else:
                good &= show_killed(orders, *killed(orders))
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
