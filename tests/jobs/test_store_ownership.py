"""Ownership of jobs in stores on both databases."""

from __future__ import annotations

import fcntl
import random
import threading

import pytest
from jobs.stores import bench, ingesting, led, new_items, result, started, store
from realtime.scenes import eventually

from smartbatch.errors import StoreError
from smartbatch.jobs.records import ItemState, JobLease, LeaseLost
from smartbatch.jobs.shard_records import ShardState
from tests.threads_together import run_together

__all__ = ["bench", "store"]  # fixtures


def test_a_lease_that_ran_out_still_counts_while_nobody_else_took_the_job(bench):
    store = bench.open()
    _, lease = started(store, bench)
    bench.let_leases_run_out()
    store.jobs.note(lease, "awake")
    assert store.leases.renew([lease], 60) == [lease]
    assert bench.open().leases.claimable() == []


class Repeating(random.Random):
    def getrandbits(self, count):
        return 7


def test_an_owner_whose_ids_are_all_taken_is_told_so(bench):
    job, _ = started(bench.open(rng=Repeating()), bench)
    with pytest.raises(StoreError, match="the random source repeats itself"):
        bench.open(rng=Repeating()).leases.claim(job.id, 60.0)


@pytest.mark.parametrize("bench", ["sqlite"], indirect=True)
def test_two_who_look_at_once_do_not_take_each_other_for_the_owner(bench):
    dead = bench.open()
    job, _ = started(dead, bench)
    dead.abandon()
    (name,) = (row[0] for row in bench.behind("SELECT id FROM owner"))
    (path,) = bench.folder.rglob(f"*{name}*")
    with open(path, "rb") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        assert bench.open().leases.claim(job.id, 60) == JobLease(job.id, 2)


def test_a_lease_does_not_count_in_another_store(bench):
    mine, other = bench.open(), bench.open()
    _, lease = started(mine, bench)
    started(other, bench)
    with pytest.raises(LeaseLost):
        other.jobs.note(lease, "x")
    assert other.leases.renew([lease], 60) == []


def test_a_closed_store_has_given_everything_back(bench):
    mine, other = bench.open(), bench.open()
    job, _ = started(mine, bench)
    mine.close()
    mine.close()
    found = other.jobs.get(job.id)
    assert found.owner is None
    assert other.leases.claim(job.id, 60)
    assert len(bench.behind("SELECT id FROM owner")) == 1
    with pytest.raises(StoreError, match="was closed; open it again"):
        mine.jobs.latest()
    with pytest.raises(StoreError, match="was closed; open it again"):
        mine.jobs.accept(bench.job(), [])


def test_a_frozen_owner_that_wakes_writes_nothing(bench):
    frozen, other = bench.open(), bench.open()
    job, lease = started(frozen, bench, 8)
    planned = frozen.shards.plan(lease, bench.shard(0))
    ready = led(frozen, lease, frozen.shards.plan(lease, bench.shard(1)), ShardState.READY)
    taking = ingesting(frozen, bench, lease, 2, 3)
    bench.let_leases_run_out()
    assert other.leases.claim(job.id, 60)

    def contents():
        tables = ("job", "item", "shard", "shard_items", "result", "verdict", "incident")
        return [bench.behind(f"SELECT * FROM {table} ORDER BY 1") for table in tables]

    before = contents()
    at = 1.0
    verbs = [
        lambda: frozen.shards.plan(lease, bench.shard(4)),
        lambda: frozen.shards.advance(lease, planned, ShardState.UPLOADING),
        lambda: frozen.shards.advance(lease, planned, ShardState.PLANNED, tries=3),
        lambda: frozen.shards.mark_submitting(lease, ready, exclusive=False),
        lambda: frozen.shards.discard(lease, planned, items=ItemState.OPEN, tried=True, note="n", at=at),
        lambda: frozen.shards.fail(lease, planned, b"no", note="n", at=at),
        lambda: frozen.shards.ingest(lease, taking, [result(2)], at=at),
        lambda: frozen.shards.settle(lease, taking, opened=[2, 3], at=at),
        lambda: frozen.items.fail_open(lease, [4], b"no", at=at),
        lambda: frozen.items.move_to_realtime(lease, [4]),
        lambda: frozen.items.claim_realtime(lease, 5),
        lambda: frozen.items.answer(lease, [result(4)], at=at),
        lambda: frozen.items.drop_unsent(lease, b"", at=at),
        lambda: frozen.jobs.note(lease, "mine!", hold=True),
    ]
    for verb in verbs:
        with pytest.raises(LeaseLost):
            verb()
    frozen.leases.release(lease)
    assert frozen.leases.renew([lease], 60) == []
    assert contents() == before


def test_unfinished_jobs_are_claimable_before_those_to_clean_up(bench):
    store, other = bench.open(), bench.open()
    settled, lease = started(store, bench, 1)
    shard = ingesting(store, bench, lease, 0)
    shard = store.shards.advance(lease, shard, ShardState.INGESTING, batch_id="b-1")
    store.shards.ingest(lease, shard, [result(0)], at=1.0)
    shard = store.shards.settle(lease, shard, at=1.0)
    _never_sent, lease_2 = started(store, bench, 1)
    store.shards.fail(lease_2, store.shards.plan(lease_2, bench.shard(0)), b"", note="refused", at=1.0)
    fresh, _ = store.jobs.accept(bench.job(), new_items(1))
    held, lease_3 = started(store, bench, 1)
    store.jobs.note(lease_3, "?", hold=True)
    for one in (lease, lease_2, lease_3):
        store.leases.release(one)
    assert [job.id for job in other.leases.claimable()] == [fresh.id, held.id, settled.id]
    again = other.leases.claim(settled.id, 60)
    other.shards.advance(again, shard, ShardState.SETTLED, cleaned_up=True)
    other.leases.release(again)
    assert [job.id for job in other.leases.claimable()] == [fresh.id, held.id]


def test_two_who_claim_at_once_are_never_both_the_owner(bench):
    stores = [bench.open() for _ in range(4)]
    jobs = [stores[0].jobs.accept(bench.job(), new_items(1))[0].id for _ in range(10)]
    together = threading.Barrier(4)
    got = []

    def claim_all(one):
        together.wait(10)
        got.extend(lease for job in jobs if (lease := one.leases.claim(job, 60)))

    run_together(claim_all, stores)
    assert sorted(lease.job_id for lease in got) == sorted(jobs)


@pytest.mark.parametrize("unknown", [None, b"not known"])
def test_items_found_asking_after_a_death_are_told_of(bench, unknown):
    dead, other = bench.open(), bench.open()
    job, _ = dead.jobs.accept(bench.job(), new_items(4, realtime=True))
    lease = dead.leases.claim(job.id, 3600)
    assert [item.ix for item in dead.items.claim_realtime(lease, 2)] == [0, 1]
    dead.abandon()
    bench.clock.sleep(5)
    taken = eventually(lambda: other.leases.claim(job.id, 60, unknown=unknown))
    (incident,) = other.facts.incidents(job.id)
    assert (incident.kind, incident.job_id, incident.shard_id) == ("maybe_billed", job.id, None)
    assert "2 requests" in incident.detail
    assert "rows 0, 1" in incident.detail
    found = other.jobs.get(job.id)
    if unknown is None:
        claimed = other.items.claim_realtime(taken, 9)
        assert [(i.ix, i.tries) for i in claimed] == [(0, 1), (1, 1), (2, 0), (3, 0)]
        assert (found.failed, found.unpriced) == (0, 0)
    else:
        assert [(r.ix, r.outcome, r.body, r.cost) for r in other.items.results(job.id)] == [
            (0, "failed", b"not known", None),
            (1, "failed", b"not known", None),
        ]
        assert (found.failed, found.unpriced, found.cost) == (2, 2, 0.0)
        assert [item.ix for item in other.items.claim_realtime(taken, 9)] == [2, 3]


@pytest.mark.parametrize("count", [64, 65])
def test_an_incident_names_64_rows_in_flight_at_most(store, bench, count):
    job, lease = started(store, bench, count, realtime=True)
    store.items.claim_realtime(lease, count)
    store.leases.release(lease)
    assert store.leases.claim(job.id, 60.0) is not None
    [told] = store.facts.incidents(job.id)
    more = ", …" if count > 64 else ""
    assert told.detail.startswith(f"{count} requests were in progress")
    assert f": rows {', '.join(map(str, range(64)))}{more} (owner 2)" in told.detail
    assert [item.tries for item in store.items.in_state(job.id, state=ItemState.REALTIME)] == [1] * count
