"""The supervisor: steps run when they are due, leases are renewed, and no error of a step ends a thread."""

from __future__ import annotations

import gc
import itertools
import random
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from jobs.stores import new_items, new_job

from smartbatch._clock import VirtualClock
from smartbatch.errors import StoreError
from smartbatch.jobs.act_records import JobSelection
from smartbatch.jobs.records import LEASE, JobLease, JobRow, LeaseLost
from smartbatch.jobs.steps.context import JobRuntime, StepResult
from smartbatch.jobs.store import SqlStore, open_store
from smartbatch.jobs.store.leases import LeaseTable
from smartbatch.jobs.supervisor import CLAIM_EVERY, WORKERS, JobSupervisor

T = TypeVar("T")

PATIENCE = 20.0
"""Real seconds until a test that waits is taken for hung."""


class RecordingRunner:
    """Records what the supervisor calls."""

    problem = None

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def offer(self, lease: JobLease) -> None:
        self.told.append(("offer", lease.job_id))

    def recall(self, job_id: str) -> None:
        self.told.append(("recall", job_id))

    def forget(self, job_id: str) -> None:
        self.told.append(("forget", job_id))


class Scene:
    """A store in virtual time, and a supervisor whose steps a test writes."""

    def __init__(self, folder: Path) -> None:
        self.clock = VirtualClock()
        self.place = str(folder / "jobs.db")
        self.realtime = RecordingRunner()
        self.steps: list[tuple[float, str]] = []
        self.reports: list[tuple[str | None, BaseException]] = []
        self.script: Callable[[JobLease, int], StepResult] = lambda *_: StepResult()
        self.serves: Callable[[JobRow], bool] = lambda _: True
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._open: list[SqlStore] = []
        self.store = self.another_store()

    def another_store(self) -> SqlStore:
        store = open_store(self.place, wall=self.clock.wall, rng=random.Random(len(self._open)))
        self._open.append(store)
        return store

    def supervisor(self, store: SqlStore | None = None, *, seed: int = 1) -> JobSupervisor:
        return JobSupervisor(
            JobRuntime(
                store=store or self.store,
                clock=self.clock,
                rng=random.Random(seed),
                report=lambda job_id, error: self.reports.append((job_id, error)),
            ),
            run_step=self._run_step,
            serves=lambda row: self.serves(row),
            realtime=self.realtime,
            changed=lambda _: None,
        )

    def accept(self, name: str, *, scope: str = "scope-1") -> str:
        row, _ = self.store.jobs.accept(new_job(f"job-{name:0>16}", scope=scope), new_items(2))
        return row.id

    def _run_step(self, lease: JobLease) -> StepResult:
        with self._lock:
            count = self._counts[lease.job_id] = self._counts.get(lease.job_id, 0) + 1
            self.steps.append((self.clock.now(), lease.job_id))
        try:
            return self.script(lease, count)
        finally:
            with self._news:
                self._news.notify_all()

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait, in real time, until steps have made ``condition`` true."""
        with self._news:
            assert self._news.wait_for(condition, PATIENCE), self.steps[-20:]

    def in_step(self, work: Callable[[], T]) -> T:
        """Do something on a thread that time waits for, as it does for the library's own."""
        done: list[T] = []

        def run() -> None:
            self.clock.began()
            try:
                done.append(work())
            finally:
                self.clock.ended()

        thread = threading.Thread(target=run)
        self.clock.spawned()
        thread.start()
        thread.join(PATIENCE)
        return done[0]

    def close(self) -> None:
        for store in self._open:
            store.close()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.close()


def test_a_job_is_run_when_it_is_due_and_not_in_between(scene: Scene) -> None:
    """Steps come at the times the engine names, to the second, with nothing polled between them."""
    scene.accept("a")
    scene.script = lambda _, count: StepResult(scene.clock.wall() + 30.0 * count)
    supervisor = scene.supervisor()
    with scene.clock.held():
        supervisor.start()
    scene.until(lambda: len(scene.steps) >= 4)
    supervisor.stop(1.0)
    times = [at for at, _ in scene.steps[:4]]
    assert [later - earlier for earlier, later in itertools.pairwise(times)] == [30.0, 60.0, 90.0]


def test_a_job_of_another_account_is_left_alone(scene: Scene) -> None:
    """Only what this process can serve is claimed; the other stays free for another process."""
    mine, other = scene.accept("a"), scene.accept("b", scope="scope-2")
    scene.serves = lambda row: row.scope == "scope-1"
    scene.script = lambda _, count: StepResult(scene.clock.wall() + CLAIM_EVERY)
    supervisor = scene.supervisor()
    supervisor.start()
    scene.until(lambda: len(scene.steps) >= 3)
    assert supervisor.owns(mine)
    assert not supervisor.owns(other)
    supervisor.stop(1.0)
    assert {job_id for _, job_id in scene.steps} == {mine}
    row = scene.store.jobs.get(other)
    assert row is not None
    assert row.epoch == 0


def test_a_lease_is_renewed_while_a_step_takes_long(scene: Scene) -> None:
    """Another process tries every second to get the job during a call of 20 leases, and never does."""
    job_id = scene.accept("a")
    rival = scene.another_store()
    taken: list[JobLease | None] = []

    def slow(_: JobLease, count: int) -> StepResult:
        if count == 1:
            for _second in range(int(20 * LEASE)):
                scene.clock.sleep(1.0)
                taken.append(rival.leases.claim(job_id, LEASE))
        return StepResult()

    scene.script = slow
    supervisor = scene.supervisor()
    supervisor.start()
    scene.until(lambda: len(taken) >= 20 * LEASE)
    supervisor.stop(1.0)
    assert taken == [None] * len(taken)


def test_a_wall_clock_that_leaps_takes_no_job_from_a_living_owner(scene: Scene) -> None:
    """After hours of suspension all leases are over: the owners are given time to renew them."""
    job_id = scene.accept("a")
    owner, rival = scene.supervisor(), scene.supervisor(scene.another_store(), seed=2)
    owner.start()
    scene.until(lambda: len(scene.steps) >= 1)
    rival.start()
    scene.in_step(lambda: scene.clock.sleep(3 * CLAIM_EVERY))
    with scene.clock.held():
        scene.clock.set_wall(8 * 3600.0)
        rival.notify()
    scene.in_step(lambda: scene.clock.sleep(5 * CLAIM_EVERY))
    assert owner.owns(job_id)
    assert not rival.owns(job_id)
    row = scene.store.jobs.get(job_id)
    assert row is not None
    assert row.epoch == 1
    owner.stop(1.0)
    rival.stop(1.0)


def test_steps_of_different_jobs_run_at_the_same_time(scene: Scene) -> None:
    """Up to four at a time; never two steps of one job."""
    ids = [scene.accept(f"{number}") for number in range(10)]
    inside: dict[str, int] = {}
    most = [0, 0]
    lock = threading.Lock()

    def count_in(lease: JobLease, _: int) -> StepResult:
        with lock:
            inside[lease.job_id] = inside.get(lease.job_id, 0) + 1
            most[0] = max(most[0], sum(inside.values()))
            most[1] = max(most[1], inside[lease.job_id])
        scene.clock.sleep(7.0)
        with lock:
            inside[lease.job_id] -= 1
        return StepResult(scene.clock.wall())

    scene.script = count_in
    supervisor = scene.supervisor()
    with scene.clock.held():
        supervisor.start()
    scene.until(lambda: len(scene.steps) >= 50)
    supervisor.stop(1.0)
    assert most == [WORKERS, 1]
    assert {job_id for _, job_id in scene.steps[:50]} == set(ids)  # and each has its turn


def test_workers_without_a_step_for_long_end_and_come_back(scene: Scene) -> None:
    """Those that have a step now and then stay."""
    ids = [scene.accept(f"{number}") for number in range(WORKERS)]
    workers: list[threading.Thread] = []

    def step(lease: JobLease, count: int) -> StepResult:
        workers.append(threading.current_thread())
        scene.clock.sleep(1.0)
        return StepResult(scene.clock.wall() + (20.0 if count < 10 else 1e9))

    scene.script = step
    supervisor = scene.supervisor()
    with scene.clock.held():
        supervisor.start()
    scene.until(lambda: len(scene.steps) == 10 * WORKERS)
    assert len(set(workers)) == WORKERS
    scene.in_step(lambda: scene.clock.sleep(60.0))
    for worker in set(workers):
        worker.join(PATIENCE)
        assert not worker.is_alive()
    supervisor.notify(ids[0])
    scene.until(lambda: len(scene.steps) == 10 * WORKERS + 1)
    assert workers[-1] not in workers[:-1]
    supervisor.stop(1.0)


def test_a_supervisor_that_owns_nothing_is_not_held_by_its_thread(scene: Scene) -> None:
    """One that owns a job is: it renews the lease."""
    idle, busy = scene.supervisor(), scene.supervisor(scene.another_store(), seed=2)
    busy.start()
    scene.accept("a")
    busy.notify()
    scene.until(lambda: len(scene.steps) >= 1)
    idle.start()
    scene.in_step(lambda: scene.clock.sleep(2 * CLAIM_EVERY))
    collected = threading.Event()
    references = weakref.ref(idle, lambda _: collected.set()), weakref.ref(busy)
    del idle, busy
    with scene.clock.held():
        for _ in range(int(PATIENCE / 0.1)):  # until its thread waits, which holds it while it looks
            gc.collect()
            if collected.wait(0.1):
                break
    assert collected.is_set()
    kept = references[1]()
    assert kept is not None
    kept.stop(1.0)


@pytest.mark.parametrize(
    "error", [StoreError("the store is full"), ValueError("a mistake"), SystemExit(3), KeyboardInterrupt()]
)
def test_no_error_of_a_step_ends_a_thread(error: BaseException, scene: Scene) -> None:
    """It is reported once, the step is tried again with growing pauses, and other jobs go on."""
    broken, sound = scene.accept("a"), scene.accept("b")

    def step(lease: JobLease, count: int) -> StepResult:
        if lease.job_id == broken and count <= 6:
            raise error
        return StepResult(scene.clock.wall() + 1.0)

    scene.script = step
    supervisor = scene.supervisor()
    supervisor.start()
    scene.until(lambda: sum(job_id == broken for _, job_id in scene.steps) > 8)
    assert supervisor.problem_with(broken) is None  # it is over
    supervisor.stop(1.0)
    times = [at for at, job_id in scene.steps if job_id == broken]
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert [(job_id, type(told)) for job_id, told in scene.reports] == [(broken, type(error))]
    assert pauses[0] < pauses[3] < pauses[5]
    assert pauses[5] >= 16.0
    assert sum(job_id == sound for _, job_id in scene.steps) > 20


def test_a_job_whose_lease_is_lost_is_dropped(scene: Scene) -> None:
    """After the loss of a lease no further step of the job runs, and its items are taken back."""
    job_id = scene.accept("a")

    def lose(_: JobLease, count: int) -> StepResult:
        if count == 1:
            raise LeaseLost("taken over")
        return StepResult()

    scene.script = lose
    supervisor = scene.supervisor()
    with scene.clock.held():
        supervisor.start()
        scene.until(lambda: len(scene.steps) == 1)
    scene.until(lambda: len(scene.steps) == 2)  # it was given back, so it could be claimed anew
    supervisor.stop(1.0)
    assert ("forget", job_id) in scene.realtime.told
    row = scene.store.jobs.get(job_id)
    assert row is not None
    assert row.epoch == 2


def test_a_job_that_is_forgotten_during_its_step_is_dropped(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last step may still run when its user has the results. Nothing is reported, and others go on."""
    gone = scene.accept("a")
    scene.accept("b")
    claimable = LeaseTable.claimable

    def step(lease: JobLease, _: int) -> StepResult:
        if lease.job_id == gone:  # from now on no search finds it
            left = lambda table: [row for row in claimable(table) if row.id != gone]  # noqa: E731
            monkeypatch.setattr(LeaseTable, "claimable", left)
            scene.store.shards.of_job("forgotten")
        return StepResult(scene.clock.wall() + 1.0)

    scene.script = step
    supervisor = scene.supervisor()
    supervisor.start()
    scene.until(lambda: len(scene.steps) > 5)
    assert not supervisor.owns(gone)
    assert [job_id for _, job_id in scene.steps].count(gone) == 1
    assert scene.reports == []
    supervisor.stop(1.0)


def test_a_stop_lets_a_step_end_and_gives_the_job_back(scene: Scene) -> None:
    """The next process has it at once, without waiting for the lease."""
    job_id = scene.accept("a")
    entered, leave = threading.Event(), threading.Event()

    def step(*_: object) -> StepResult:
        entered.set()
        leave.wait(PATIENCE)
        return StepResult()

    scene.script = step
    supervisor = scene.supervisor()
    supervisor.start()
    assert entered.wait(PATIENCE)
    stopping = threading.Thread(target=supervisor.stop, args=(1000.0,))
    stopping.start()
    rival = scene.another_store()
    assert rival.leases.claim(job_id, LEASE) is None
    leave.set()
    stopping.join(PATIENCE)
    lease = rival.leases.claim(job_id, LEASE)
    assert lease is not None
    assert lease.epoch == 2


def test_a_step_that_outlives_the_grace_cannot_write(scene: Scene) -> None:
    """The job is given back all the same; what the step tries afterwards meets a lost lease."""
    scene.accept("a")
    entered, leave = threading.Event(), threading.Event()
    fates: list[str] = []

    def step(lease: JobLease, _: int) -> StepResult:
        entered.set()
        leave.wait(PATIENCE)
        try:
            scene.store.jobs.note(lease, "too late")
        except LeaseLost:
            fates.append("lost")
            raise
        return StepResult()

    scene.script = step
    supervisor = scene.supervisor()
    supervisor.start()
    assert entered.wait(PATIENCE)
    supervisor.stop(0.0)
    leave.set()
    scene.until(lambda: fates == ["lost"])


def test_a_step_that_outlives_the_grace_and_finds_the_store_closed_is_no_failure(scene: Scene) -> None:
    scene.accept("a")
    entered, leave = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    def step(lease: JobLease, _: int) -> StepResult:
        threads.append(threading.current_thread())
        entered.set()
        leave.wait(PATIENCE)
        raise StoreError("the store refused a statement (Cannot operate on a closed database.)")

    scene.script = step
    supervisor = scene.supervisor()
    supervisor.start()
    assert entered.wait(PATIENCE)
    supervisor.stop(0.0)
    leave.set()
    threads[0].join(PATIENCE)
    assert not threads[0].is_alive()
    assert scene.reports == []


def test_a_finished_job_is_released(scene: Scene) -> None:
    """Its lease is no longer renewed, and it has no owner."""
    job_id = scene.accept("a")
    scene.script = lambda *_: StepResult(finished=True)
    supervisor = scene.supervisor()
    with scene.clock.held():
        supervisor.start()
        scene.until(lambda: len(scene.steps) == 1)
        supervisor.stop(5.0)
    assert not supervisor.owns(job_id)
    row = scene.store.jobs.get(job_id)
    assert row is not None
    assert row.owner is None


def test_a_notification_during_a_step_is_not_lost(scene: Scene) -> None:
    """The next step runs right after the present one, although nothing was due."""
    job_id = scene.accept("a")
    entered, leave = threading.Event(), threading.Event()

    def step(_: JobLease, count: int) -> StepResult:
        if count == 1:
            entered.set()
            leave.wait(PATIENCE)
        return StepResult(scene.clock.wall() + 1e6)

    scene.script = step
    supervisor = scene.supervisor()
    supervisor.start()
    assert entered.wait(PATIENCE)
    with scene.clock.held():
        supervisor.notify(job_id)
        leave.set()
        scene.until(lambda: len(scene.steps) == 2)
    supervisor.stop(1.0)
    assert scene.steps[0][0] == scene.steps[1][0]


def test_a_job_that_is_named_is_claimed_without_reading_the_others(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be very many of them."""
    scene.accept("first")
    supervisor = scene.supervisor()
    with scene.clock.held():  # so that it searches once, at the start
        supervisor.start()
        scene.until(lambda: len(scene.steps) == 1)
        monkeypatch.setattr(LeaseTable, "claimable", lambda _: pytest.fail("all jobs were read"))
        scene.accept("a")
        supervisor.notify(scene.accept("b"))
        scene.until(lambda: len(scene.steps) == 2)
        monkeypatch.undo()
    assert scene.steps[1][1] == f"job-{'b':0>16}"
    supervisor.stop(1.0)
    assert scene.reports == []


def test_what_another_process_asks_of_a_job_is_noticed(scene: Scene) -> None:
    """A cancel that arrives through the store takes back calls that have not started; a step follows."""
    job_id = scene.accept("a")
    scene.script = lambda *_: StepResult()
    supervisor = scene.supervisor()
    supervisor.start()
    scene.until(lambda: len(scene.steps) == 1)
    scene.another_store().acts.cancel(JobSelection(ids=(job_id,)), "ada")
    scene.until(lambda: len(scene.steps) == 2)
    supervisor.stop(1.0)
    assert ("recall", job_id) in scene.realtime.told


def test_the_jobs_of_a_dead_process_are_taken_over(scene: Scene) -> None:
    """Its lock is free, so its lease need not expire first; the epoch says that there was another owner."""
    job_id = scene.accept("a")
    dead = scene.another_store()
    assert dead.leases.claim(job_id, 1e9) is not None
    supervisor = scene.supervisor()
    scene.script = lambda *_: StepResult()
    supervisor.start()
    dead.abandon()  # as its death would
    scene.until(lambda: len(scene.steps) == 1)
    supervisor.stop(1.0)
    row = scene.store.jobs.get(job_id)
    assert row is not None
    assert row.epoch == 2


def test_a_job_that_runs_in_a_living_process_is_left_to_it(scene: Scene) -> None:
    """Two supervisors, twelve jobs: each job has one owner, and all are carried on."""
    ids = [scene.accept(f"{number}") for number in range(12)]
    scene.script = lambda *_: StepResult(scene.clock.wall() + 5.0)
    supervisors = [scene.supervisor(), scene.supervisor(scene.another_store(), seed=2)]
    for supervisor in supervisors:
        supervisor.start()
    scene.until(lambda: {job_id for _, job_id in scene.steps} == set(ids) and len(scene.steps) > 200)
    owners = [sum(supervisor.owns(job_id) for supervisor in supervisors) for job_id in ids]
    for supervisor in supervisors:
        supervisor.stop(1.0)
    assert owners == [1] * 12


def test_halting_keeps_the_leases_and_begins_nothing(scene: Scene) -> None:
    """The first half of a stop: answers under way must still find the job theirs."""
    job_id = scene.accept("a")
    scene.script = lambda *_: StepResult(scene.clock.wall() + 1.0)
    supervisor = scene.supervisor()
    with scene.clock.held():
        supervisor.start()
        scene.until(lambda: len(scene.steps) == 1)
        supervisor.halt()
        begun = len(scene.steps)
    rival = scene.another_store()
    taken = scene.in_step(lambda: [_a_second_later(scene, rival, job_id) for _ in range(60)])
    assert taken == [None] * 60
    assert len(scene.steps) <= begun + 1
    supervisor.stop(1.0)
    assert rival.leases.claim(job_id, LEASE) is not None


def _a_second_later(scene: Scene, rival: SqlStore, job_id: str) -> JobLease | None:
    scene.clock.sleep(1.0)
    return rival.leases.claim(job_id, LEASE)
