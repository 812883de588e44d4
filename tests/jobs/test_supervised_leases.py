"""Leases under supervision: renewed, lost, released and taken over."""

from __future__ import annotations

import threading

import pytest
from jobs.supervised import PATIENCE, scene

from smartbatch.errors import StoreError
from smartbatch.jobs.records import LEASE_SECONDS, LeaseLost
from smartbatch.jobs.steps import StepResult
from smartbatch.jobs.store.leases import LeaseTable
from smartbatch.jobs.supervision import CLAIM_SECONDS

__all__ = ["scene"]  # fixtures


def test_a_lease_is_renewed_while_a_step_takes_long(scene):
    job_id = scene.accept("a")
    rival = scene.another_store()
    taken = []

    def slow(_, count):
        if count == 1:
            for _second in range(int(20 * LEASE_SECONDS)):
                scene.clock.sleep(1.0)
                taken.append(rival.leases.claim(job_id, LEASE_SECONDS))
        return StepResult()

    scene.script = slow
    supervisor = scene.supervisor()
    supervisor.start()
    scene.until(lambda: len(taken) >= 20 * LEASE_SECONDS)
    supervisor.stop(1.0)
    assert taken == [None] * len(taken)


def test_a_wall_clock_that_leaps_takes_no_job_from_a_living_owner(scene):
    """After a suspension all leases have expired, and owners need time to renew them."""
    job_id = scene.accept("a")
    owner, rival = scene.supervisor(), scene.supervisor(scene.another_store(), seed=2)
    owner.start()
    scene.until(lambda: len(scene.steps) >= 1)
    rival.start()
    scene.in_step(lambda: scene.clock.sleep(3 * CLAIM_SECONDS))
    with scene.clock.held():
        scene.clock.set_wall(8 * 3600.0)
        rival.notify()
    scene.in_step(lambda: scene.clock.sleep(5 * CLAIM_SECONDS))
    assert owner.owns(job_id)
    assert not rival.owns(job_id)
    row = scene.store.jobs.get(job_id)
    assert row.epoch == 1
    owner.stop(1.0)
    rival.stop(1.0)


def test_a_job_whose_lease_is_lost_is_dropped(scene):
    job_id = scene.accept("a")

    def lose(_, count):
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
    assert row.epoch == 2


def test_a_job_that_is_forgotten_during_its_step_is_dropped(scene, monkeypatch):
    gone = scene.accept("a")
    scene.accept("b")
    claimable = LeaseTable.claimable

    def step(lease, _):
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


def test_a_stop_lets_a_step_end_and_gives_the_job_back(scene):
    job_id = scene.accept("a")
    rival = scene.another_store()
    with scene.held_step(lambda _: StepResult()) as supervisor:
        stopping = threading.Thread(target=supervisor.stop, args=(1000.0,))
        stopping.start()
        assert rival.leases.claim(job_id, LEASE_SECONDS) is None
    stopping.join(PATIENCE)
    assert rival.leases.claim(job_id, LEASE_SECONDS).epoch == 2


def test_a_step_that_outlives_the_grace_cannot_write(scene):
    scene.accept("a")
    lost = []

    def end(lease):
        with pytest.raises(LeaseLost):
            scene.store.jobs.note(lease, "too late")
        lost.append(lease)
        raise LeaseLost("taken over")

    with scene.held_step(end) as supervisor:
        supervisor.stop(0.0)
    assert len(lost) == 1


@pytest.mark.parametrize("outcome", [StepResult(finished=True), LeaseLost("taken over")])
def test_a_step_that_outlives_the_grace_releases_nothing_twice(outcome, scene, monkeypatch):
    job_id = scene.accept("a")
    released = []
    monkeypatch.setattr(LeaseTable, "release", lambda _, lease: released.append(lease.job_id))

    def end(_):
        if isinstance(outcome, LeaseLost):
            raise outcome
        return outcome

    with scene.held_step(end) as supervisor:
        supervisor.stop(0.0)
    assert released == [job_id]


def test_a_step_that_finds_the_store_closed_has_not_failed(scene):
    scene.accept("a")

    def end(_):
        raise StoreError("the store rejected a statement (Cannot operate on a closed database.)")

    with scene.held_step(end) as supervisor:
        supervisor.stop(0.0)
    assert scene.reports == []


def test_halting_keeps_the_leases_and_begins_nothing(scene):
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
    assert rival.leases.claim(job_id, LEASE_SECONDS) is not None


def _a_second_later(scene, rival, job_id):
    scene.clock.sleep(1.0)
    return rival.leases.claim(job_id, LEASE_SECONDS)
