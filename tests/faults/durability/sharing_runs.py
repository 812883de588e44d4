"""Four processes share one PostgreSQL store and twenty jobs; one is killed, one is stopped and continued."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import psycopg
from attrs import define, field, frozen

from smartbatch.jobs.store import open_store
from tests.faults.durability.faulty_servers import LIST_LAG
from tests.faults.durability.fork_server import ForkServer
from tests.faults.durability.run_checks import billed_of, ledger_of
from tests.faults.durability.worker import client_of
from tests.faults.durability.worker_task import MODELS, WorkerTask, answer_to, digest_of, prompt_of

_AUDIT = """
CREATE TABLE audit (
    no bigserial, at timestamptz, job bigint, epoch bigint, writer text, what text, pid int
);
CREATE FUNCTION noted() RETURNS trigger AS $$
DECLARE found bigint;
BEGIN
    IF TG_TABLE_NAME = 'job' THEN found := NEW.no;
    ELSIF TG_TABLE_NAME = 'shard' THEN found := NEW.job;
    ELSE found := NEW.no >> 32;
    END IF;
    INSERT INTO audit (at, job, epoch, writer, what, pid)
    SELECT clock_timestamp(), found, j.epoch, current_setting('application_name'), TG_TABLE_NAME,
        pg_backend_pid()
    FROM job j WHERE j.no = found;
    RETURN NEW;
END $$ LANGUAGE plpgsql SET search_path FROM CURRENT;
CREATE TRIGGER noted_job AFTER UPDATE ON job FOR EACH ROW EXECUTE FUNCTION noted();
CREATE TRIGGER noted_shard AFTER INSERT OR UPDATE ON shard FOR EACH ROW EXECUTE FUNCTION noted();
CREATE TRIGGER noted_result AFTER INSERT OR UPDATE ON result FOR EACH ROW EXECUTE FUNCTION noted();
CREATE TRIGGER noted_item AFTER UPDATE ON item FOR EACH ROW EXECUTE FUNCTION noted();
"""


@frozen(kw_only=True)
class SharingPlan:
    # processes, jobs, size: how many; size requests a job
    processes: int = 4
    jobs: int = 20
    size: int = 12
    freeze: float  # how long one process is stopped; up to twice that until others have taken a job of it
    lease: float | None = None  # of a job; None leaves the supervisor's own
    # settle, visibility, poll, mutant, seed: see :class:`~tests.faults.durability.worker_task.WorkerTask`
    settle: float
    visibility: float = LIST_LAG + 0.2
    poll: float = 0.1
    patience: float = 60.0  # for everything to end
    mutant: str | None = None
    seed: int


@define(eq=False)
class _Worker:
    name: str
    pid: int
    fd: int


@define
class SharingRun:
    """One run; :meth:`run` fills the figures."""

    plan: SharingPlan
    dsn: str
    url: str
    fork_server: ForkServer
    folder: Path
    schema: str = field(factory=lambda: f"sharing_{os.getpid()}_{time.monotonic_ns()}")
    faults: list[str] = field(factory=list)  # everything that must not be; empty when all is well
    taken_over: int = 0  # jobs the frozen process owned and others took meanwhile
    owned_by_killed: int = 0  # jobs the killed process owned
    samples: int = 0  # queries of who owns what
    writes: int = 0  # rows the triggers noted
    resumed_writes: int = 0  # those of the resumed process, to jobs that are its own
    # creates that reached the provider, by what became of them
    outcomes: Counter[str] = field(factory=Counter)
    seconds: float = 0.0  # from the kill to the end of the last job
    _epochs: dict[str, int] = field(factory=dict)
    _tasks: list[WorkerTask] = field(factory=list)

    def run(self) -> SharingRun:
        with psycopg.connect(self.dsn, autocommit=True) as session:
            workers: list[_Worker] = []
            open_store(self._address("maker"), wall=time.time, rng=Random(1)).close()  # makes the tables
            try:
                session.execute(f"SET search_path TO {self.schema}".encode())
                session.execute(_AUDIT.encode())
                workers += [self._start(number) for number in range(self.plan.processes)]
                self._disturb(session, workers)
                self._check(session)
            finally:
                for worker in workers:
                    self._end(worker)
                session.execute(f"DROP SCHEMA {self.schema} CASCADE".encode())
        return self

    # -- the run ---------------------------------------------------------------------------------------------

    def _address(self, name: str) -> str:
        mark = "&" if "?" in self.dsn else "?"
        return f"{self.dsn}{mark}schema={self.schema}&application_name={name}"

    def _start(self, number: int) -> _Worker:
        plan, name = self.plan, f"worker{number}"
        task = WorkerTask(
            provider=list(MODELS)[number % len(MODELS)],
            url=self.url,
            store=self._address(name),
            out=str(self.folder / f"{name}.notes"),
            key=f"{self.schema} {name}",
            size=plan.size,
            jobs=plan.jobs // plan.processes,
            until=plan.jobs,
            max_requests=plan.size // 2,
            settle=plan.settle,
            visibility=plan.visibility,
            poll=plan.poll,
            lease=plan.lease,
            mutant=plan.mutant,
            seed=plan.seed,
            reading="carry",
        )
        self._tasks.append(task)
        pid = self.fork_server.run(task)
        return _Worker(name, pid, os.pidfd_open(pid))

    def _disturb(self, session: psycopg.Connection[Any], workers: list[_Worker]) -> None:
        stopped: list[_Worker] = []

        def ready() -> bool:
            stopped[:] = self._stop_two(session, workers)
            return bool(stopped)

        self._until(session, ready, "every job to be there, and two processes to own some")
        killed, frozen = stopped
        owners = self._sample(session)
        self.owned_by_killed = sum(owner == killed.pid for owner in owners.values())
        lost = {job for job, owner in owners.items() if owner == frozen.pid}
        signal.pidfd_send_signal(killed.fd, signal.SIGKILL)
        began = time.monotonic()
        # longer on a machine so busy that no process has taken a job by then
        while (took := time.monotonic() - began) < self.plan.freeze or (
            not self.taken_over and took < 2 * self.plan.freeze
        ):
            owners = self._sample(session)
            self.taken_over = sum(owners[job] != frozen.pid for job in lost)
            time.sleep(0.03)
        woken_at = session.execute("SELECT clock_timestamp()").fetchone()
        signal.pidfd_send_signal(frozen.fd, signal.SIGCONT)
        alive = [worker for worker in workers if worker is not killed]
        self._until(session, lambda: self._all_ended(session, alive), "all jobs to end")
        self.seconds = time.monotonic() - began
        assert woken_at is not None
        found = session.execute(
            b"SELECT count(*) FROM audit WHERE writer = %s AND at >= %s", (frozen.name, woken_at[0])
        ).fetchone()
        self.resumed_writes = int(found[0]) if found else 0

    def _stop_two(self, session: psycopg.Connection[Any], workers: list[_Worker]) -> list[_Worker]:
        owners = self._sample(session)
        busy = Counter(owner for owner in owners.values() if owner is not None)
        if len(owners) < self.plan.jobs or len(busy) < 2:
            return []
        two = sorted(workers, key=lambda worker: busy[worker.pid])[-2:]
        for worker in two:
            signal.pidfd_send_signal(worker.fd, signal.SIGSTOP)
        owning = set(self._sample(session).values())
        if all(worker.pid in owning for worker in two):
            return two
        for worker in two:
            signal.pidfd_send_signal(worker.fd, signal.SIGCONT)
        return []

    def _all_ended(self, session: psycopg.Connection[Any], alive: list[_Worker]) -> bool:
        self._sample(session)
        poll = select.poll()
        for worker in alive:
            poll.register(worker.fd, select.POLLIN)
        return len(poll.poll(0)) == len(alive)

    def _sample(self, session: psycopg.Connection[Any]) -> dict[str, int | None]:
        self.samples += 1
        owners: dict[str, int | None] = {}
        for job, owner, epoch in session.execute(b"SELECT id, owner, epoch FROM job").fetchall():
            if epoch < self._epochs.get(job, 0):
                self.faults.append(f"{job}: epoch {epoch} after {self._epochs[job]}")
            self._epochs[job] = epoch
            owners[job] = None if owner is None else int(owner.rsplit("-", 2)[1])
        return owners

    def _until(self, session: psycopg.Connection[Any], ready: Any, what: str) -> None:
        until = time.monotonic() + self.plan.patience
        while not ready():
            if time.monotonic() > until:
                rows = session.execute(b"SELECT id, owner, epoch, note FROM job WHERE state <> 'done'")
                log = self.fork_server.log.read_text()[-3000:]
                raise AssertionError(f"waited too long for {what}; left: {rows.fetchall()}; {log}")
            time.sleep(0.03)

    def _end(self, worker: _Worker) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(worker.fd, signal.SIGKILL)
        code, _ = self.fork_server.reap(worker.pid)
        os.close(worker.fd)
        if code not in (0, -signal.SIGKILL):
            self.faults.append(f"{worker.name} ended with {code}: {self.fork_server.log.read_text()[-3000:]}")

    # -- the checks ------------------------------------------------------------------------------------------

    def _check(self, session: psycopg.Connection[Any]) -> None:
        writers: dict[tuple[int, int], set[str]] = defaultdict(set)
        last: dict[int, int] = {}
        rows = session.execute(b"SELECT job, epoch, writer FROM audit ORDER BY no").fetchall()
        self.writes = len(rows)
        for job, epoch, writer in rows:
            writers[job, epoch].add(writer)
            if epoch < last.get(job, 0):
                self.faults.append(f"job {job}: a write under epoch {epoch} after one under {last[job]}")
            last[job] = epoch
        for (job, epoch), names in writers.items():
            if len(names) > 1:
                self.faults.append(f"job {job}, epoch {epoch}: written by {sorted(names)}")
        ledger = ledger_of(self.url)
        self.outcomes.update(record["outcome"] for record in ledger["batch_records"])
        billed = billed_of(ledger)
        for task in self._tasks:
            self.faults += _check_answers(task, billed)


def _check_answers(task: WorkerTask, billed: Counter[str]) -> Iterator[str]:
    client = client_of(task)
    for number in range(task.jobs):
        key = f"{task.key}.{number}"
        job = client.job(key)
        texts = [result.text for result in job.results(wait=False)]
        if texts != [_answer(task, key, n) for n in range(task.size)]:
            yield f"{key}: {len(texts)} answers, not the right ones"
        for n in range(task.size):
            times = billed[digest_of(prompt_of(key, n))]
            if times != 1:
                yield f"{prompt_of(key, n)}: billed {times} times; {job.incidents()}"
    client.stop()


def _answer(task: WorkerTask, key: str, number: int) -> str:
    from attrs import evolve

    return answer_to(evolve(task, key=key), number)
