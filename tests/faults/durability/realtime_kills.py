"""Rows in real time whose process is killed again and again: how many calls each kill makes be paid again."""

from __future__ import annotations

import itertools
import os
import select
import signal
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Literal, TypeAlias
from urllib.request import Request, urlopen

from attrs import define, field

from tests.faults.durability.fork_server import ForkServer
from tests.faults.durability.run_checks import ledger_of
from tests.faults.durability.worker_task import WorkerTask, digest_of, prompt_of

RealtimeReading: TypeAlias = Literal["list", "singles", "rows"]
REALTIME: tuple[RealtimeReading, ...] = ("list", "singles", "rows")
"""How rows are asked: a list with a key, durable submits, ``smartbatch run``."""
KILLS = 3  # workers killed before one may end
ON_THE_WAY = 0.05
"""Seconds that a call takes at most to reach the emulator, also from a process that is dead by then."""
LOOK, LONGEST_LIFE = 10.0, 250.0
"""Milliseconds between two looks for a first call, and most from there to the kill."""


@define
class KilledRows:
    seed: int  # of the moments
    reading: str  # how the rows were asked
    again: list[int] = field(factory=list)  # for each kill, the calls paid again because of it
    answered: list[int] = field(factory=list)  # for each kill, those of them whose answer had been sent
    never: list[int] = field(factory=list)  # rows that were never billed
    unexplained: int = 0  # calls paid again although no kill came between them and the next one

    @property
    def in_flight(self) -> list[int]:
        return [again - answered for again, answered in zip(self.again, self.answered, strict=True)]


def kill_rows(
    reading: RealtimeReading,
    seed: int,
    *,
    url: str,
    folder: Path,
    fork_server: ForkServer,
    parallelism: int = 2,
    capped: bool = False,
    size: int = 40,
) -> KilledRows:
    key = f"{reading} {seed}{' capped' * capped}"
    name = f"{folder}/{key.replace(' ', '-')}"
    task = WorkerTask(
        provider="openai",
        url=url,
        store=f"{name}.db",
        out=f"{name}.notes",
        output=f"{name}.jsonl",
        key=key,
        size=size,
        max_requests=1,
        settle=1.0,
        visibility=1.0,
        reading=reading,
        parallelism=parallelism,
        capped=capped,
    )
    rng = Random(key)
    with urlopen(Request(f"{url}/_ledger/reset", b"", method="POST")):
        """What other lists were billed is of no interest."""
    found = KilledRows(seed, reading)
    killed = [_kill_one(task, rng, url, fork_server) for _ in range(KILLS)]
    _run(task, fork_server)
    _count(task, killed, ledger_of(url)["calls"], found)
    return found


def _kill_one(task: WorkerTask, rng: Random, url: str, fork_server: ForkServer) -> float:
    before, pid = _received(url), fork_server.run(task)
    ended = select.poll()
    ended.register(descriptor := os.pidfd_open(pid), select.POLLIN)
    while _received(url) == before and not ended.poll(LOOK):
        """The client starts."""
    ended.poll(rng.uniform(0.0, LONGEST_LIFE))
    os.kill(pid, signal.SIGKILL)
    at = time.monotonic()
    fork_server.reap(pid)
    os.close(descriptor)
    time.sleep(ON_THE_WAY)  # so that no call of it seems to be one of the next worker
    return at


def _received(url: str) -> int:
    return len(ledger_of(url)["calls"])


def _run(task: WorkerTask, fork_server: ForkServer) -> None:
    code, _ = fork_server.reap(fork_server.run(task))
    assert code == 0, fork_server.log.read_text()[-4000:]


def _count(
    task: WorkerTask, killed: Sequence[float], calls: Sequence[dict[str, Any]], found: KilledRows
) -> None:
    billed: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for call in calls:
        if call["billed"]:
            billed[call["prompt"]].append(call)
    found.again, found.answered = [0] * len(killed), [0] * len(killed)
    for number in range(task.size):
        of_row = billed[digest_of(prompt_of(task.key, number))]
        if not of_row:
            found.never.append(number)
        for call, following in itertools.pairwise(of_row):
            causes = [at for at in killed if call["at"] <= at + ON_THE_WAY < following["at"]]
            if not causes:
                found.unexplained += 1
                continue
            kill = killed.index(causes[0])
            found.again[kill] += 1
            found.answered[kill] += call["at"] + call["latency"] < causes[0]
