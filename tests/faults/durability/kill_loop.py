"""Start a worker, kill it at a random moment, and start it again, until its job is done; then the next."""

from __future__ import annotations

import heapq
import itertools
import json
import math
import os
import select
import signal
import sqlite3
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from attrs import define, field, frozen

from tests.faults.durability.disturbances import MIXES, Disturber, Stage
from tests.faults.durability.faulty_servers import LATEST, LIST_LAG
from tests.faults.durability.fork_server import ForkServer
from tests.faults.durability.run_checks import RunReport, StoreView, answered_in, check_run, notes_of
from tests.faults.durability.worker_task import AGAIN, VARIED, Reading, WorkerTask

SHORTEST, LONGEST = 0.08, 0.53
"""Seconds until a worker is killed where a client starts within :data:`COMES_UP`; on a busy machine longer in
proportion, else it would only start."""
COMES_UP = 0.08  # seconds from the fork to an open store, on two idle cores
A_STEP = 0.1  # CPU seconds with which a worker gets from its fork through a step of any kind, as a rule
SLOWEST = 8.0  # on a busy machine workers run at most so many times longer
RESTARTS = 5  # workers in a row that may be killed without any progress
PATIENCE = 40.0  # seconds the last job has to end once no worker is killed any more
MORE_PATIENCE = 6.0  # so many times as long where more creates fail, and are searched for one after another
LONG_LIVES = 6
"""One worker of so many lives ten times longer where something else goes wrong: long enough to meet it."""
UNFENCED = ("anthropic", "openrouter")  # a late create cannot be made to fail
TRIES = 100  # workers in a row that may end because of a disturbance


@frozen(kw_only=True)
class Plan:
    provider: str  # whose API
    cycles: int  # workers killed
    jobs: int = 1  # least number of jobs; those that begin after the last kill run undisturbed
    seed: int = 1  # of everything but the moments threads run
    # settle, visibility: seconds, see :class:`~tests.faults.durability.worker_task.WorkerTask`
    settle: float
    visibility: float
    freeze: float = 0.0  # longest seconds a worker is stopped before it goes on and is killed; 0 for never
    workers: int = 1  # processes on the store at a time; all but the first carry on only
    lease: float | None = None  # of a job; None leaves the supervisor's own
    mutant: str | None = None  # a safety rule to break
    # the emulator exchanges answers: jobs have two dozen prompts of different lengths, in one batch, so that
    # it can be told by the tokens that are billed
    exchanged: bool = False
    mix: str | None = None  # what else goes wrong, of :data:`~tests.faults.durability.disturbances.MIXES`


@define(eq=False)
class _Slot:
    number: int
    pid: int = 0
    fd: int = -1
    since: float = 0.0
    cpu: float = 0.0
    script: list[tuple[float, int]] = field(factory=list)


class KillLoop:
    def __init__(self, plan: Plan, *, url: str, folder: Path, fork_server: ForkServer) -> None:
        self._plan = plan
        self._url = url
        self._folder = folder
        self._zygote = fork_server
        self._rng = Random(f"{plan.provider} {plan.seed} {plan.mix or ''}".rstrip())
        self._stage = Stage(url=url, store=str(folder / f"{plan.provider}-{plan.seed}.db"), outputs=folder)
        self._disturber: Disturber | None = None
        if plan.mix is not None:
            mix = MIXES[plan.mix](folder, url)
            self._stage = mix.stage
            self._disturber = Disturber(mix, Random(f"{self._rng.random()}"), lambda: self._slowness)
        self._store = StoreView(self._stage.store)
        self._numbers = itertools.count(1)
        self.jobs: list[WorkerTask] = []
        self.kills = self.freezes = self.again = 0
        self._again_in_a_row = 0
        self.seconds = 0.0
        self._idle_workers: list[str] = []
        self._most_idle: list[str] = []
        self._seen: tuple[object, ...] = ()
        self._opened_before = 0
        self._slowness = 1.0

    @property
    def worst_stuck(self) -> int:
        return len(self._most_idle)

    @property
    def deletions(self) -> int:
        """Deletions at the provider in the last hour with any."""
        counts = "SELECT value FROM fact WHERE CAST(name AS TEXT) LIKE 'deletions:%'"
        return sum(int(json.loads(value)[1]) for (value,) in self._store.rows(counts))

    @property
    def disturbances(self) -> int:
        return 0 if self._disturber is None else self._disturber.times

    def run(self) -> RunReport:
        began = time.monotonic()
        slots = [_Slot(number) for number in range(self._plan.workers)]
        self._next_job()
        if self._disturber is not None:
            self._disturber.start()
        try:
            while self._pass(slots):
                """The signals that were due are sent, the workers that ended have been replaced."""
            self.seconds = time.monotonic() - began
            report = check_run(self._url, self._store, self.jobs)
        finally:
            for slot in slots:
                self._end(slot)
            if self._disturber is not None:
                self._disturber.stop()
                self._disturber.mix.close()
        if self.worst_stuck > RESTARTS:
            report.stuck += self._most_idle
        return report

    def _pass(self, slots: list[_Slot]) -> bool:
        for slot in slots:
            if not slot.pid:
                self._start(slot)
        ended = self._await(slots)
        for slot in ended:
            code = self._reap(slot)
            if code == -signal.SIGKILL:
                self._count(slot)
            elif self._may_go_on(slot, code):
                self.again += 1
                self._again_in_a_row += 1
            elif code != 0 or self._again_in_a_row > TRIES:
                shards = self._store.rows("SELECT state, tries, note FROM shard WHERE state != 'settled'")
                log = self._zygote.log.read_text()[-4000:]
                raise AssertionError(f"a worker failed (exit code {code}), shards {shards}: {log}")
            elif slot.number == 0:  # it has all its answers
                for other in slots:
                    self._end(other)
                if self.kills >= self._plan.cycles and len(self.jobs) >= self._plan.jobs:
                    return False
                self._next_job()
                break
        return True

    def _may_go_on(self, slot: _Slot, code: int) -> bool:
        task, disturber = self.jobs[-1], self._disturber
        if disturber is None or self._again_in_a_row > TRIES:
            return False
        if code == AGAIN:
            return True
        # touched after the command had looked at it for the last time, which no command can see
        late = task.reading == "command" and slot.number == 0 and disturber.touched_since(slot.since)
        return code == 0 and late and answered_in(task) != task.size

    # -- jobs ------------------------------------------------------------------------------------------------

    def _next_job(self) -> None:
        rng, plan = self._rng, self._plan
        size = rng.randint(22, 26) if plan.exchanged else rng.randint(4, 12)
        key = f"{plan.provider} {plan.seed}{VARIED * plan.exchanged}/{next(self._numbers)}"
        name = key.replace("/", "-").replace(" ", "-")
        reading: Reading = rng.choice(["ordered", "stored", "futures"])
        if self._stage.commands and rng.randrange(100) < self._stage.commands:
            reading = "command"
        self.jobs.append(
            WorkerTask(
                provider=plan.provider,
                url=self._stage.url,
                store=self._stage.store,
                out=str(self._folder / f"{name}.notes"),
                output=str(self._stage.outputs / f"{name}.jsonl"),
                clock=self._stage.clock,
                may_fail=self._stage.may_fail,
                key=key,
                size=size,
                max_requests=26 if plan.exchanged else rng.choice([4, 6, 12]),
                settle=plan.settle,
                visibility=plan.visibility,
                reading=reading,
                lease=plan.lease,
                mutant=plan.mutant,
                seed=plan.seed,
            )
        )
        self._idle_workers, self._opened_before, self._again_in_a_row = [], 0, 0
        if self._disturber is not None:
            self._disturber.output = Path(self.jobs[-1].output)

    # -- workers ---------------------------------------------------------------------------------------------

    def _start(self, slot: _Slot) -> None:
        task = self.jobs[-1]
        if slot.number:
            task = _helper(task)
        slot.pid = self._zygote.run(task)
        slot.fd = os.pidfd_open(slot.pid)
        slot.since = time.monotonic()
        slot.script = self._script(slot.since)
        if self._disturber is not None:
            self._disturber.pid = slot.pid

    def _script(self, now: float) -> list[tuple[float, int]]:
        rng = self._rng
        if self.kills >= self._plan.cycles:
            if self._disturber is not None:
                self._disturber.stop()
            patience = PATIENCE * (MORE_PATIENCE if self._plan.mix else 1.0)
            return [(now + self._slowness * patience, signal.SIGABRT)]
        at = now + self._slowness * rng.uniform(SHORTEST, LONGEST)
        if self._disturber is not None and rng.randrange(LONG_LIVES) == 0:
            at += self._slowness * rng.uniform(0, 10 * LONGEST)
        if not self._plan.freeze or rng.random() < 0.5:
            return [(at, signal.SIGKILL)]
        thaw = at + rng.uniform(0.1, self._plan.freeze)
        return [
            (at, signal.SIGSTOP),
            (thaw, signal.SIGCONT),
            (thaw + self._slowness * rng.uniform(SHORTEST, LONGEST), signal.SIGKILL),
        ]

    def _await(self, slots: list[_Slot]) -> list[_Slot]:
        script = [(at, slot.number, which) for slot in slots for at, which in slot.script]
        heapq.heapify(script)
        poll = select.poll()
        for slot in slots:
            poll.register(slot.fd, select.POLLIN)
        at, number, which = script[0] if script else (math.inf, 0, signal.SIGKILL)
        ready = {fd for fd, _ in poll.poll(max(0.0, at - time.monotonic()) * 1000 if script else None)}
        if not ready:
            slot = slots[number]
            slot.script.pop(0)
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(slot.fd, which)
            if which == signal.SIGSTOP:
                self.freezes += 1
            return [slot] if which == signal.SIGKILL else []
        return [slot for slot in slots if slot.fd in ready]

    def _reap(self, slot: _Slot) -> int:
        code, slot.cpu = self._zygote.reap(slot.pid)
        os.close(slot.fd)
        slot.pid, slot.fd, slot.script = 0, -1, []
        return code

    def _end(self, slot: _Slot) -> None:
        if slot.pid:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(slot.fd, signal.SIGKILL)
            self._reap(slot)

    # -- progress --------------------------------------------------------------------------------------------

    def _count(self, slot: _Slot) -> None:
        """Count a kill, and for how many workers in a row nothing changed although something was due."""
        self.kills += 1
        self._again_in_a_row = 0
        if slot.number or (self._disturber is not None and self._disturber.touched_since(slot.since)):
            return
        ups = self._ups()
        opened, self._opened_before = len(ups) > self._opened_before, len(ups)
        try:
            seen, waits = self._looks(), self._only_waits()
        except sqlite3.OperationalError:  # locked by another process, which waits for our signal to wake
            return
        moved, self._seen = seen != self._seen, seen
        idle = not moved and not waits
        if moved:
            self._idle_workers = []
        if not opened or (idle and slot.cpu < A_STEP and self._slowness < SLOWEST):
            self._slowness = min(SLOWEST, 1.2 * self._slowness)
            return
        if idle:
            lived = time.monotonic() - slot.since
            self._idle_workers.append(f"{lived:.2f} s, {slot.cpu:.3f} s of CPU: {seen}")
            self._most_idle = max(self._most_idle, self._idle_workers, key=len)
        self._slowness = min(SLOWEST, max(1.0, ups[-1] / COMES_UP))

    def _ups(self) -> list[float]:
        return [row["up"] for row in notes_of(self.jobs[-1]) if "up" in row]

    def _looks(self) -> tuple[object, ...]:
        shards = self._store.rows("SELECT id, state, tries, due_at, remote FROM shard")
        rest = self._store.rows(
            "SELECT (SELECT count(*) FROM result), (SELECT count(*) FROM job), sum(state) FROM item"
        )
        task = self.jobs[-1]
        taken = answered_in(task) if task.reading == "command" else sum("id" in row for row in notes_of(task))
        return taken, tuple(shards), tuple(rest)

    def _only_waits(self) -> bool:
        found = self._store.rows("SELECT min(due_at) FROM shard WHERE state NOT IN ('settled', 'dead')")
        return found[0][0] is not None and found[0][0] > time.time()


def _helper(task: WorkerTask) -> WorkerTask:
    from attrs import evolve

    return evolve(task, reading="none", out=f"{task.out}.helper")


def plan_of(mix: str, provider: str, *, cycles: int, seed: int, **more: Any) -> tuple[Plan, dict[str, Any]]:
    """Return the plan of a loop in which something else goes wrong, and what its emulator does otherwise."""
    searched = mix == "clock set"
    latest = 4.0 if searched else LATEST
    plan = Plan(
        provider=provider,
        cycles=cycles,
        seed=seed,
        settle=settle_of(provider, latest=latest),
        visibility=LIST_LAG + 0.2,
        mix=mix,
        **more,
    )
    return plan, {"share": 2.0 if searched else 1.0, "latest": latest}


def settle_of(provider: str, *, freeze: float = 0.0, latest: float = LATEST) -> float:
    """Return how long an unknown create has to be looked for in this world, in seconds."""
    if provider not in UNFENCED:
        return 0.5
    return latest + LIST_LAG + 0.5 + freeze
