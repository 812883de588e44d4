"""Steps run when they are due, and no error of a step ends a thread."""

from __future__ import annotations

import gc
import itertools
import threading
import weakref

import pytest
from jobs.supervised import PATIENCE, scene

from smartbatch.errors import StoreError
from smartbatch.jobs.steps import StepResult
from smartbatch.jobs.store.leases import LeaseTable
from smartbatch.jobs.supervision import CLAIM_SECONDS, MAX_WORKERS

__all__ = ["scene"]  # fixtures


def test_a_job_is_run_when_it_is_due_and_not_in_between(scene):
    scene.accept("a")
    scene.script = lambda _, count: StepResult(scene.clock.wall() + 30.0 * count)
    supervisor = scene.supervisor()
    with scene.clock.held():
        supervisor.start()
    scene.until(lambda: len(scene.steps) >= 4)
    supervisor.stop(1.0)
    times = [at for at, _ in scene.steps[:4]]
    assert [later - earlier for earlier, later in itertools.pairwise(times)] == [30.0, 60.0, 90.0]


def test_steps_of_different_jobs_run_at_the_same_time(scene):
    ids = [scene.accept(f"{number}") for number in range(10)]
    inside = {}
    most = [0, 0]
    lock = threading.Lock()

    def count_in(lease, _):
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
    assert most == [MAX_WORKERS, 1]
    assert {job_id for _, job_id in scene.steps[:50]} == set(ids)  # and each has its turn


def test_workers_without_a_step_for_long_end_and_come_back(scene):
    ids = [scene.accept(f"{number}") for number in range(MAX_WORKERS)]
    workers = []

    def step(lease, count):
        workers.append(threading.current_thread())
        scene.clock.sleep(1.0)
        return StepResult(scene.clock.wall() + (20.0 if count < 10 else 1e9))

    scene.script = step
    supervisor = scene.supervisor()
    with scene.clock.held():
        supervisor.start()
    scene.until(lambda: len(scene.steps) == 10 * MAX_WORKERS)
    assert len(set(workers)) == MAX_WORKERS
    scene.in_step(lambda: scene.clock.sleep(60.0))
    for worker in set(workers):
        worker.join(PATIENCE)
        assert not worker.is_alive()
    supervisor.notify(ids[0])
    scene.until(lambda: len(scene.steps) == 10 * MAX_WORKERS + 1)
    assert workers[-1] not in workers[:-1]
    supervisor.stop(1.0)


@pytest.mark.full
def test_a_supervisor_that_owns_nothing_is_not_held_by_its_thread(scene):
    idle, busy = scene.supervisor(), scene.supervisor(scene.another_store(), seed=2)
    busy.start()
    scene.accept("a")
    busy.notify()
    scene.until(lambda: len(scene.steps) >= 1)
    idle.start()
    scene.in_step(lambda: scene.clock.sleep(2 * CLAIM_SECONDS))
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
    kept.stop(1.0)


@pytest.mark.parametrize(
    "error", [StoreError("the store is full"), ValueError("a mistake"), SystemExit(3), KeyboardInterrupt()]
)
def test_no_error_of_a_step_ends_a_thread(error, scene):
    broken, sound = scene.accept("a"), scene.accept("b")

    def step(lease, count):
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


def test_a_notification_during_a_step_is_not_lost(scene):
    job_id = scene.accept("a")
    entered, leave = threading.Event(), threading.Event()

    def step(_, count):
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


def test_a_job_that_is_named_is_claimed_without_reading_the_others(scene, monkeypatch):
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
