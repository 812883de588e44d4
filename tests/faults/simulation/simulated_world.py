"""One run: a job, its provider, the processes that carry it on, their crashes, and the checks. One thread."""

from __future__ import annotations

import os
import shutil
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random

from attrs import frozen

from smartbatch.emulator.batches.backend import BatchBackend
from smartbatch.emulator.batches.timeline import BatchRandomness
from smartbatch.emulator.ledger import Call, Ledger
from smartbatch.events import Event, ShardChanged
from smartbatch.jobs.payload import Shared, encode_params, encode_request
from smartbatch.jobs.records import JobRow, JobSelection, JobState, NewItem
from smartbatch.jobs.steps import result_lines
from smartbatch.types import Generation, Request
from tests.faults.simulation.clock import SimClock
from tests.faults.simulation.crash_points import Crash, CrashPoints, Violation
from tests.faults.simulation.disk import Disk
from tests.faults.simulation.faults import FaultPlan
from tests.faults.simulation.futures import Reader
from tests.faults.simulation.invariants import InvariantChecker
from tests.faults.simulation.process import LEASE, PROVIDER, Process
from tests.faults.simulation.scenario import FLAVOURS, HOUR, MINUTE, Plan, scenario
from tests.faults.simulation.simulated_remote import Network, digest_of, tokens_of
from tests.faults.simulation.uploads import JobFiles
from tests.faults.simulation.webhooks import NOTICE_SECONDS, Webhooks
from tests.figures import runs

BOUND = 40 * HOUR
"""Virtual seconds after the last fault within which a job must be over: settle times in a row, a foreign
batch that must end first, 26 hours of a job that holds, and the watch for orphans."""
STEPS = 4000  # steps of a run at most; the longest of 10,000 seeds took a quarter
KEY = "key"
WRONG_KEY = 0.1  # the share of processes that are started with another key


@frozen(kw_only=True)
class Outcome:
    plan: Plan  # the run
    problem: str | None  # the invariant that broke, or what was raised; None when all is well
    trace: str  # a digest of every event with its time, which a run of an equal plan has as well
    # by name, what a reviewer wants to know of the run: how often each thing took place; the order in which
    # results came and lines of each batch ran; seconds until the end, of each create, and of an average call
    figures: dict[str, str]
    points: tuple[str, ...]  # names of the crash points that were met
    crashed: tuple[str, ...]  # names of those that crashed; frozen how many stood still
    frozen: int
    incidents: Counter[str]  # what the store told, by kind
    creates: Counter[str]  # what became of the creates, by the ledger
    cancelled: int  # batches that ended so
    double: int  # items that were paid for more than once
    unnamed: int  # answers that were paid for and not used, and no incident says so
    adopted_foreign: int  # foreign batches that became a shard's
    seconds: float  # virtual


class World:
    """One provider, one store, and the processes on it."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.what = scenario(plan)
        self.disk = Disk(folder)
        flavour = FLAVOURS[plan.flavour]
        self.clock = SimClock()
        self._rng = Random(f"world {plan.flavour} {plan.seed}")
        self.points = CrashPoints(
            Random(f"crash {plan.flavour} {plan.seed}"),
            rate=plan.crash_rate,
            crashes=frozenset(plan.crashes),
            freezes=self.what.freezes,
            now=self.clock.now,
        )
        self.faults = FaultPlan(plan, self.what, flavour, self.clock.now)
        self.ledger = Ledger()
        self.backend = BatchBackend(self.faults.settings, self.ledger, epoch=SimClock.START)
        self.network = Network(
            flavour, self.what, self.backend, self.faults, self.clock, self.points, self._rng, plan.repeats
        )
        self.prompts = [f"question {number} {'x' * (number % 7) * 9}" for number in range(self.what.items)]
        self.files = JobFiles(folder) if plan.uploads else None
        rng = BatchRandomness(self.faults.settings)
        self.checker = InvariantChecker(self.disk.connection, self.ledger, self.prompts, rng.identity)
        self.network.check_deletion = self.checker.check_deletion
        self.network.check_upload_deletion = self.checker.check_upload_deletion
        self.webhooks = Webhooks(plan, self.backend, self.clock) if plan.webhooks else None
        self._started = 0
        self._resumes_at: float | None = None
        self._cancelled = False
        self.processes: list[Process] = []
        self.job: JobRow | None = None
        self._running: Process | None = None
        self.points.freeze = self._freeze
        self._over_at: float | None = None
        self._events: Counter[str] = Counter()

    # -- the course of a run ---------------------------------------------------------------------------------

    def run(self) -> Counter[str]:
        """Run to the end; return the job's incidents by kind."""
        self.processes = [self._start_process(KEY) for _ in range(self.what.workers)]
        self._accept()
        for _ in range(STEPS):
            if self.checker.check_step():
                self._deliver()
            if self._over():
                return self._end()
            self._act_as_user()
            self._receive_events()
            self.points.calm = self.faults.calm
            self._next()
        raise Violation(f"I12 the job is not over after {STEPS} steps: {self._describe()}")

    def _accept(self) -> None:
        shared = encode_params(Generation())
        requests = [
            Request(prompt) if self.files is None else self.files.request(number, prompt)
            for number, prompt in enumerate(self.prompts)
        ]
        items = [
            NewItem(None, encode_request(request, Shared()), len(prompt) + 60, tokens_of(prompt))
            for request, prompt in zip(requests, self.prompts, strict=True)
        ]
        uploaded = () if self.files is None else self.files.keys()
        while self.job is None:
            name = f"{self._rng.getrandbits(64):016x}"
            new = JobRow(
                f"job-{name}", "key", f"sim {KEY}", f"{PROVIDER}:m", "generate", shared, {}, self.what.policy,
                self.clock.wall(),
            )  # fmt: skip
            try:
                self.job, _ = self.processes[0].store.jobs.accept(new, items, uploaded=lambda: uploaded)
            except Crash:
                self._replace(self.processes[0])
        if len(self.processes[0].plain.jobs.latest()) != 1:
            raise Violation("I7 a job was accepted twice")

    def _next(self) -> None:
        able = [process for process in self.processes if not process.frozen]
        turn = min(able, key=lambda process: process.due)
        moments = [turn.due, self._resumes_at, None if self._cancelled else self.what.cancel_at]
        moments += [process.leaves_at for process in able]
        moments += [self.webhooks.next_at] if self.webhooks else []
        moment = min(moment for moment in moments if moment is not None)
        if moment > BOUND + self.what.calm_at:
            raise Violation(f"I12 the job does not go on: {self._describe()}")
        self.clock.reach(moment)
        for process in able:
            process.keep()
            if process.leaves_at is not None and process.leaves_at <= self.clock.now():
                self._replace(process, KEY)
                return
        if turn.due <= self.clock.now():
            self._step(turn)

    def _step(self, process: Process) -> None:
        self._running = process
        try:
            process.step()
        except Crash:
            self._replace(process)
        self._running = None
        self.points.record(" ".join(self.disk.files()))
        if process.resumed:  # its supervisor finds out what it lost meanwhile
            process.resumed = False
            process.renew()
            process.due = self.clock.now()
        if not process.leases:
            self._notify_idle(process)

    def _replace(self, process: Process, key: str | None = None) -> None:
        process.die()
        new = self._start_process(key)
        new.due = self.clock.now() + self._rng.choice((0.0, 0.0, 5.0, 60.0, 1200.0))
        self.processes[self.processes.index(process)] = new
        self._notify_idle(new)

    def _notify_idle(self, but: Process) -> None:
        for process in self.processes:
            if process is not but and not process.leases and not process.frozen:
                process.due = min(process.due, self.clock.now() + self._rng.uniform(0, 10))

    def _freeze(self) -> None:
        frozen = self._running
        if frozen is None or len(self.processes) < 2 or any(process.frozen for process in self.processes):
            return
        frozen.frozen = True
        other = next(process for process in self.processes if process is not frozen)
        until = self.clock.now() + self._rng.choice((5.0, 20.0, 60.0, 600.0))
        other.due = min(other.due, self.clock.now() + LEASE + 1)
        self.points.record(f"{frozen.name} freezes")
        while other.due <= until:
            self.clock.reach(other.due)
            other.keep()
            self._step(other)
            other = next(process for process in self.processes if process is not frozen)
        self.clock.reach(until)
        frozen.frozen = False
        frozen.resumed = True
        self._running = frozen
        self.points.record(f"{frozen.name} wakes")

    def _act_as_user(self) -> None:
        assert self.job is not None
        store, now = self.processes[0].plain, self.clock.now()
        if not self._cancelled and self.what.cancel_at is not None and now >= self.what.cancel_at:
            self._cancelled = True
            store.actions.cancel(JobSelection(ids=(self.job.id,)), "ada")
            self._make_due()
        if self.checker.state is not JobState.HELD:
            self._resumes_at = None
        elif self._resumes_at is None:
            self._resumes_at = now + self.what.resume_after
        elif now >= self._resumes_at:
            self._resumes_at = None
            store.actions.resume(JobSelection(ids=(self.job.id,)), "ada")
            self._make_due()

    def _receive_events(self) -> None:
        if self.webhooks is not None:
            self.webhooks.plan()
            if self.webhooks.deliver(self.processes[0].plain):
                for process in self.processes:
                    if process.leases:
                        process.due = min(process.due, self.clock.now() + NOTICE_SECONDS)

    def _make_due(self) -> None:
        for process in self.processes:
            process.due = min(process.due, self.clock.now())

    def _deliver(self) -> None:
        assert self.job is not None
        try:
            self.points.reach("deliver")
        except Crash:
            self._replace(self.processes[0])
        self.checker.delivered.read(self.processes[0].plain, self.job.id)
        for process in self.processes:
            if not process.frozen:
                self._reader_of(process, self.job).look()

    def _reader_of(self, process: Process, job: JobRow) -> Reader:
        if process.reader is None:
            process.reader = Reader(job.id, len(self.prompts), process.plain, self.disk)
        return process.reader

    def _over(self) -> bool:
        if self.checker.state is not JobState.DONE or any(process.leases for process in self.processes):
            return False
        if self.processes[0].plain.leases.claimable():
            return False
        return self.disk.next_deletion(f"sim {KEY}") is None

    def _end(self) -> Counter[str]:
        assert self.job is not None
        self._over_at = end = self.clock.now()
        self.clock.advance(48 * HOUR)
        self.backend.advance(self.clock.now())
        self._recover_again()
        incidents = self.checker.check_end(
            self.processes[0].plain, self.job, self.network.creates, repeats=bool(self.plan.repeats)
        )
        if self.files is not None:
            self.files.check_end(self.ledger)
        if end > self.what.calm_at + BOUND:
            raise Violation(f"I12 the job took {end:.0f} s")
        return incidents

    def _recover_again(self) -> None:
        assert self.job is not None
        before = self.processes[0].plain.jobs.get(self.job.id), sum(self.network.calls.values())
        for process in self.processes:
            process.die()
        self.processes = [self._start_process(KEY)]
        self.points.calm = True
        self.processes[0].step()
        if self.processes[0].leases or before != (
            self.processes[0].plain.jobs.get(self.job.id),
            sum(self.network.calls.values()),
        ):
            raise Violation("I10 a second recovery changed something")
        reader = self._reader_of(self.processes[0], self.job)
        reader.look()
        if None in reader.given:
            raise Violation("I4 a future of a job that is done has not ended")

    # -- its parts -------------------------------------------------------------------------------------------

    def _start_process(self, key: str | None = None) -> Process:
        self._started += 1
        rng = Random(f"process {self.plan.flavour} {self.plan.seed} {self._started}")
        if key is None:
            wrong = not self.plan.quiet and not self.faults.calm and rng.random() < WRONG_KEY
            key = "another key" if wrong else KEY
        process = Process(
            self.disk, self.network, self.clock, self.points, rng,
            self._ask, self._publish_event, f"process {self._started}", key,
        )  # fmt: skip
        if key != KEY:
            process.leaves_at = self.clock.now() + rng.uniform(1, 60) * MINUTE
        return process

    def _ask(self, prompt: str) -> str | None:
        index = self.ledger.received
        digest = digest_of(prompt)
        call = Call(index, self.clock.now(), "POST /", prompt=digest)
        self.ledger.open(call)
        if not self.faults.calm and self._rng.random() < 0.1:
            self.ledger.close(call, status=503)
            return None
        self.ledger.close(call, status=200, billed=tokens_of(prompt) + 5, delivered=True)
        return f"{digest[:16]} call-{index}"

    def _publish_event(self, event: Event) -> None:
        self._events[type(event).__name__] += 1
        if isinstance(event, ShardChanged):
            self.points.record(f"{event.shard_id} {event.before} {event.after} {event.reason}")
        else:
            self.points.record(repr(event))

    def _describe(self) -> str:
        assert self.job is not None
        store = self.processes[0].plain
        job = store.jobs.get(self.job.id)
        shards = [
            (shard.no, shard.state.value, shard.note, shard.tries)
            for shard in store.shards.of_job(self.job.id)
        ]
        return f"{job.state if job else None} {job.note if job else None} {shards}"

    def _figures(self) -> dict[str, str]:
        if self.job is None:
            return {}
        network, ledger, checker = self.network, self.ledger, self.checker
        store = self.processes[0].plain
        row, shards = store.jobs.get(self.job.id), store.shards.of_job(self.job.id)
        number = {digest_of(prompt): ix for ix, prompt in enumerate(self.prompts)}
        batches = [batch for batch in ledger.batches if "foreign" not in batch.label]
        ran = [[number[line.prompt] for _, line in sorted(batch.lines.items())] for batch in batches]
        at = network.called_at
        counts: dict[str, Mapping[str, int]] = {
            "calls": network.calls,
            "batches": Counter(batch.outcome for batch in batches),
            "shards": Counter(shard.state.value for shard in shards),
            "asked": Counter(str(call.status) for call in ledger.calls),
            "events": self._events,
            "incidents": Counter(one.kind for one in store.facts.incidents(self.job.id)),
        }
        assert row is not None
        found = {
            "seconds": "never" if self._over_at is None else f"{self._over_at:.0f}",
            "ok": row.succeeded,
            "failed": row.failed,
            "cancelled": row.cancelled,
            "usd": f"{row.cost + row.realtime_cost:.6g}",
            "billed": sum(each.billed for paid in ledger.billed_by_prompt.values() for each in paid),
            "twice": sum(len(paid) > 1 for paid in ledger.billed_by_prompt.values()),
            "results": f"({runs(checker.delivered.seen)})",
            "ran": " ".join(f"({runs(each)})" for each in ran),
            "created_at": " ".join(f"{batch.at:.0f}" for batch in batches),
            "called_at": f"{sum(at) / len(at):.1f}" if at else "",
            "points": len(self.points.names),
            "crashed": len(self.points.crashed),
            "frozen": self.points.frozen,
        }
        if self.webhooks is not None:
            found["notices"], found["repeats"] = self.webhooks.arrived, self.webhooks.repeated
        for name, each in counts.items():
            found[name] = " ".join(f"{key}:{count}" for key, count in sorted(each.items()))
        return {name: str(figure) for name, figure in found.items() if figure}

    def outcome(self, problem: str | None, incidents: Counter[str]) -> Outcome:
        records = self.ledger.batches
        foreign = {batch.id for batch in records if "foreign" in batch.label}
        adopted = 0
        if self.job is not None and self.processes:
            shards = self.processes[0].plain.shards.of_job(self.job.id)
            adopted = sum(shard.batch_id in foreign for shard in shards)
        return Outcome(
            plan=self.plan,
            problem=problem,
            trace=self.points.trace,
            figures=self._figures() | ({} if problem is None else {"problem": problem.split()[0]}),
            points=tuple(self.points.names),
            crashed=tuple(self.points.crashed),
            frozen=self.points.frozen,
            incidents=incidents,
            creates=Counter(batch.outcome for batch in records if "foreign" not in batch.label),
            cancelled=sum(batch.state == "cancelled" for batch in records),
            double=sum(len(paid) > 1 for paid in self.ledger.billed_by_prompt.values()),
            unnamed=self.checker.unnamed,
            adopted_foreign=adopted,
            seconds=self.clock.now(),
        )

    def close(self) -> None:
        for process in self.processes:
            process.die()
        self.disk.close()


def simulate(plan: Plan) -> Outcome:
    with _folder() as folder, _small_pages():
        world = World(plan, folder)
        try:
            incidents = world.run()
            return world.outcome(None, incidents)
        except Violation as violation:
            return world.outcome(str(violation), Counter())
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__} {error} ({Path(where.filename).name}:{where.lineno})"
            return world.outcome(text, Counter())
        finally:
            world.close()


@contextmanager
def _folder() -> Iterator[Path]:
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = tempfile.mkdtemp(prefix="smartbatch-sim-", dir=memory)
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _small_pages() -> Iterator[None]:
    before = result_lines.PAGE_LINES
    result_lines.PAGE_LINES = 2
    try:
        yield
    finally:
        result_lines.PAGE_LINES = before
