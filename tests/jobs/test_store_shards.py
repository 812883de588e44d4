"""Shards in stores on both databases."""

from __future__ import annotations

import threading

import pytest
from attrs import evolve
from jobs.sample_records import PROGRESS
from jobs.stores import bench, ingesting, led, new_items, result, started, store

from smartbatch.errors import StoreError
from smartbatch.jobs.records import ItemSize, ItemState, LeaseLost, StoredItem
from smartbatch.jobs.shard_records import OPEN_SHARDS, ShardState
from smartbatch.jobs.store import database
from tests.threads_together import run_together

__all__ = ["bench", "store"]  # fixtures


def test_a_planned_shard_holds_its_items_in_its_own_order(store, bench):
    job, lease = started(store, bench, 5)
    new = bench.shard(3, 0, 4)
    shard = store.shards.plan(lease, new)
    assert (shard.id, shard.nonce, shard.job_id, shard.no, shard.size) == (new.id, new.nonce, job.id, 1, 3)
    assert (shard.scope, shard.model, shard.state) == ("scope-1", "openai:m", ShardState.PLANNED)
    assert store.shards.get(new.id) == store.shards.with_nonce(new.nonce) == shard
    assert [item.ix for item in store.items.in_state(job.id)] == [1, 2]
    assert [item.ix for item in store.items.in_state(job.id, state=ItemState.SHARDED)] == [0, 3, 4]
    held = [StoredItem(ix, f"row-{ix}", b"ask %d" % ix, tokens=10 + ix, tries=0) for ix in (3, 0, 4)]
    assert store.shards.payloads(shard.id, limit=1000) == dict(enumerate(held))
    assert store.shards.payloads(shard.id, after=0, limit=1) == {1: held[1]}
    assert store.shards.payloads(shard.id, after=2, limit=1000) == {}
    assert store.shards.measures(shard.id) == {0: ItemSize(5, 13), 1: ItemSize(5, 10), 2: ItemSize(5, 14)}
    found = store.shards.items_at(shard.id, [2, 0, 7, -1])
    assert {position: item.ix for position, item in found.items()} == {0: 3, 2: 4}
    assert store.shards.plan(lease, bench.shard(1)).no == 2


def test_a_nonce_is_never_used_twice(store, bench):
    job, lease = started(store, bench, 3)
    first = store.shards.plan(lease, bench.shard(0))
    with pytest.raises(StoreError):
        store.shards.plan(lease, bench.shard(1, nonce=first.nonce))
    assert [item.ix for item in store.items.in_state(job.id)] == [1, 2]


def test_every_column_of_a_shard_that_may_change_is_kept(bench):
    store = bench.open()
    _, lease = started(store, bench, 1)
    changes = {
        "due_at": 1.5,
        "tries": 3,
        "file_id": "f",
        "batch_id": "b",
        "watermark": "w",
        "server_time": 2.5,
        "submitted_at": 3.5,
        "uncertain_since": 4.5,
        "fenced_at": 5.5,
        "candidate": "c",
        "foreign_batches": ("x", "y"),
        "remote": PROGRESS,
        "cancelled": True,
        "ended_at": 6.5,
        "settled_at": 7.5,
        "died_at": 8.5,
        "cleaned_up": True,
        "results_until": 9.5,
        "cost": 0.25,
        "note": "why",
        "bytes": 77,
    }
    shard = store.shards.plan(lease, bench.shard(0))
    moved = store.shards.advance(lease, shard, ShardState.READY, **changes)
    assert moved == evolve(shard, state=ShardState.READY, **changes)
    assert bench.open().shards.get(shard.id) == moved
    cleared = store.shards.advance(
        lease, moved, ShardState.READY, note=None, batch_id=None, foreign_batches=(), cost=None
    )
    assert (cleared.note, cleared.batch_id, cleared.foreign_batches, cleared.cost) == (None, None, (), None)
    assert cleared.remote == moved.remote


def test_submitting_begins_with_mark_submitting_only(store, bench):
    _, lease = started(store, bench, 1)
    shard = led(store, lease, store.shards.plan(lease, bench.shard(0)), ShardState.READY)
    with pytest.raises(ValueError, match="mark_submitting"):
        store.shards.advance(lease, shard, ShardState.SUBMITTING)
    intended = store.shards.mark_submitting(lease, shard, exclusive=False, watermark="w", submitted_at=4.0)
    assert (intended.state, intended.watermark, intended.submitted_at) == (ShardState.SUBMITTING, "w", 4.0)
    with pytest.raises(ValueError, match="only a ready shard"):
        store.shards.mark_submitting(lease, intended, exclusive=False)


def test_of_exclusive_creates_at_once_one_goes(bench):
    stores = [bench.open() for _ in range(4)]
    ready = []
    for one in stores:
        _, lease = started(one, bench, 1)
        ready.append((one, lease, led(one, lease, one.shards.plan(lease, bench.shard(0)), ShardState.READY)))
    together = threading.Barrier(4)
    went = []

    def mark_submitting(one, lease, shard):
        together.wait(10)
        went.append(one.shards.mark_submitting(lease, shard, exclusive=True) is not None)

    run_together(lambda row: mark_submitting(*row), ready)
    assert sorted(went) == [False, False, False, True]


def test_shards_are_found_by_state_and_account(store, bench):
    job, lease = started(store, bench, 3)
    _far, far_lease = started(store, bench, 1, scope="scope-2")
    first = store.shards.plan(lease, bench.shard(0))
    second = led(store, lease, store.shards.plan(lease, bench.shard(1)), ShardState.SUBMITTED)
    third = store.shards.discard(
        lease, store.shards.plan(lease, bench.shard(2)), items=ItemState.OPEN, tried=False, note="", at=1.0
    )
    elsewhere = store.shards.plan(far_lease, bench.shard(0))
    assert store.shards.of_job(job.id) == [first, second, third]
    assert store.shards.of_job(job.id, states=[ShardState.DEAD, ShardState.PLANNED]) == [first, third]
    assert store.shards.of_job(job.id, states=[]) == []
    assert store.shards.of_job(job.id, states=OPEN_SHARDS) == [first, second]
    assert store.shards.in_scope("scope-1", states=list(ShardState)) == [first, second, third]
    assert store.shards.in_scope("scope-2", states=[ShardState.PLANNED]) == [elsewhere]
    assert store.shards.in_scope("scope-3", states=list(ShardState)) == []


def test_pages_of_large_rows_end_early_and_skip_nothing(store, bench, monkeypatch):
    monkeypatch.setattr(database, "PAGE_BYTES", 100)
    sizes = [10, 20, 500, 60, 40, 30]
    items = [evolve(item, payload=b"x" * size) for item, size in zip(new_items(6), sizes, strict=True)]
    job, _ = store.jobs.accept(bench.job(), items)
    lease = store.leases.claim(job.id, 15.0)
    shard = led(store, lease, store.shards.plan(lease, bench.shard(*range(6))), ShardState.INGESTING)
    store.shards.ingest(lease, shard, [result(ix, text=b"12345678") for ix in (5, 0, 1, 2, 3, 4)], at=1.0)

    pages, after = [], -1
    while page := store.shards.payloads(shard.id, after=after, limit=1000):
        pages.append([len(request.payload) for request in page.values()])
        after = max(page)
    assert pages == [[10, 20], [500], [60, 40], [30]]

    found, after = [], -1
    while rows := store.items.results(job.id, after=after, limit=2):
        found.append([row.ix for row in rows])
        after = rows[-1].ix
    assert found == [[0, 1], [2], [3], [4, 5]]

    found, after = [], 0
    while rows := store.items.fresh(job.id, after=after, limit=1000):
        found.append([row.ix for row in rows])
        after = rows[-1].seq
    assert found == [[5, 0, 1], [2], [3], [4]]


@pytest.mark.parametrize("bench", ["sqlite"], indirect=True)
def test_a_misuse_of_a_shard_is_refused_and_changes_nothing(store, bench):
    _, lease = started(store, bench, 2)
    planned = store.shards.plan(lease, bench.shard(0))
    shard = ingesting(store, bench, lease, 1)
    table = store.shards
    twice = {"opened": [1], "realtime": [], "finals": [result(1)]}
    for wrong in (
        lambda: table.advance(lease, planned, ShardState.SETTLED),
        lambda: table.advance(lease, planned, ShardState.SUBMITTED),
        lambda: table.advance(lease, planned, ShardState.READY, job=9),
        lambda: table.discard(lease, planned, items=ItemState.SHARDED, tried=False, note="", at=5.0),
        lambda: table.ingest(lease, planned, [result(0)], at=5.0),
        lambda: table.ingest(lease, shard, [result(0)], at=5.0),
        lambda: table.settle(lease, shard, **twice, at=5.0),
        lambda: table.settle(lease, shard, **{**twice, "opened": [], "realtime": [1]}, at=5.0),
        lambda: table.settle(lease, shard, opened=[], realtime=[], finals=[result(1, "again")], at=5.0),
        lambda: table.settle(lease, shard, opened=[], realtime=[], finals=[], at=5.0),
    ):
        with pytest.raises(ValueError):
            wrong()
    assert table.of_job(lease.job_id) == [planned, shard]
    table.settle(lease, shard, opened=[1], realtime=[], finals=[], at=5.0)
    with pytest.raises(LeaseLost):
        table.ingest(lease, shard, [result(1)], at=5.0)
