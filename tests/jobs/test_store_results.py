"""Results and the ends of items in stores on both databases."""

from __future__ import annotations

import threading

import pytest
from attrs import evolve
from jobs.stores import bench, ingesting, led, new_items, result, started, store

from smartbatch.jobs.records import EarlierTries, JobState, LeaseLost
from smartbatch.jobs.shard_records import ShardState
from smartbatch.jobs.store import items as items_module
from smartbatch.jobs.store import outcomes as outcomes_module
from smartbatch.types import Usage

__all__ = ["bench", "store"]  # fixtures


def test_results_behind_a_gap_longer_than_a_page_are_found(store, bench):
    job, lease = started(store, bench, 40)
    shard = ingesting(store, bench, lease, *range(40))
    store.shards.ingest(lease, shard, [result(ix) for ix in (39, 0, 30)], at=1.0)
    pages, after = [], -1
    while rows := store.items.results(job.id, after=after, limit=10):
        pages.append([row.ix for row in rows])
        after = rows[-1].ix
    assert pages == [[0], [30, 39]]
    assert [row.ix for row in store.items.results(job.id, after=38, limit=10)] == [39]
    assert store.items.results(job.id, after=39) == []


def test_a_large_job_is_cancelled_and_deleted_in_pages(store, bench, monkeypatch):
    monkeypatch.setattr(items_module, "PAGE_DROPPED", 7)
    monkeypatch.setattr(outcomes_module, "PAGE_DELETED", 7)
    other, _ = store.jobs.accept(bench.job(), new_items(3))
    job, lease = started(store, bench, 21)
    last, _ = store.jobs.accept(bench.job(), new_items(3))
    assert store.items.drop_unsent(lease, b"cancelled", at=5.0) == 21
    done = store.jobs.get(job.id)
    assert (done.cancelled, done.state, done.finished_at) == (21, JobState.DONE, 5.0)
    assert [(row.ix, row.seq) for row in store.items.fresh(job.id, limit=1000)] == [
        (ix, ix + 1) for ix in range(21)
    ]
    store.jobs.forget(job.id)
    assert bench.behind("SELECT count(*) FROM item") == bench.behind("SELECT count(*) FROM payload") == [(6,)]
    assert (
        bench.behind("SELECT count(*) FROM result")
        == bench.behind("SELECT count(*) FROM incomplete_job")
        == [(0,)]
    )
    assert [len(store.items.in_state(one.id)) for one in (other, last)] == [3, 3]


def test_open_items_fail_or_use_real_time_all_or_none(store, bench):
    job, lease = started(store, bench, 5)
    store.shards.plan(lease, bench.shard(1))
    for ixs in ([0, 1], [9]):
        with pytest.raises(LeaseLost, match="not every item"):
            store.items.fail_open(lease, ixs, b"why", at=1.0)
        with pytest.raises(LeaseLost, match="not every item"):
            store.items.move_to_realtime(lease, ixs)
    assert [item.ix for item in store.items.in_state(job.id)] == [0, 2, 3, 4]
    store.items.fail_open(lease, [4, 0], b"why", at=2.0)
    store.items.move_to_realtime(lease, [3, 2])
    assert [(r.ix, r.outcome, r.body, r.cost) for r in store.items.results(job.id)] == [
        (0, "failed", b"why", 0.0),
        (4, "failed", b"why", 0.0),
    ]
    assert [(item.ix, item.tries) for item in store.items.claim_realtime(lease, 9)] == [(2, 0), (3, 0)]
    found = store.jobs.get(job.id)
    assert (found.failed, found.unpriced, found.state) == (2, 0, JobState.ACTIVE)
    assert len(store.shards.of_job(job.id)) == 1


def test_earlier_tries_are_returned_with_the_final_result(store, bench):
    job, lease = started(store, bench, 3)
    for answer in (b"no", b"never"):
        shard = ingesting(store, bench, lease, 0, 1, 2)
        tried = [
            result(0, "again", answer, usage=Usage(3, 1)),
            result(1, "again", answer, usage=Usage(5, 2), cost=None),
            result(2, "unrun", answer),
        ]
        store.shards.ingest(lease, shard, tried, at=1.0)
        store.shards.ingest(lease, shard, tried, at=1.0)
        store.shards.settle(lease, shard, opened=[0, 1, 2], at=2.0)
    shard = ingesting(store, bench, lease, 0)
    store.shards.ingest(lease, shard, [result(0, cost=1.0)], at=3.0)
    assert store.items.drop_unsent(lease, b"", at=4.0) == 2
    assert [(row.cost, row.earlier) for row in store.items.results(job.id)] == [
        (1.0, EarlierTries(1.0, Usage(6, 2), b"never")),
        (0.0, EarlierTries(None, Usage(10, 4), b"never")),
        (0.0, None),
    ]


def test_no_reader_misses_a_result_while_others_write(bench):
    store, reader = bench.open(), bench.open()
    job, lease = started(store, bench, 400)
    shards = [ingesting(store, bench, lease, *range(at, at + 100)) for at in range(0, 400, 100)]

    def write(mine):
        for shard, first in mine:
            for ix in range(first, first + 100, 10):
                store.shards.ingest(lease, shard, [result(i) for i in range(ix, ix + 10)], at=1.0)

    parts = [[(shard, n * 100) for n, shard in enumerate(shards) if n % 2 == side] for side in (0, 1)]
    threads = [threading.Thread(target=write, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    seen = []
    after = 0
    for _ in range(100_000):
        page = reader.items.fresh(job.id, after=after, limit=7)
        assert [row.seq for row in page] == list(range(after + 1, after + 1 + len(page)))
        seen += [row.ix for row in page]
        after += len(page)
        if len(seen) == 400:
            break
    for thread in threads:
        thread.join(60)
    assert sorted(seen) == list(range(400))


def test_results_stored_during_the_search_for_a_gap_are_not_skipped(store, bench, monkeypatch):
    job, lease = started(store, bench, 9)
    shard = ingesting(store, bench, lease, *range(9))
    real = items_module.first_in

    def meanwhile(*asked, **named):
        store.shards.ingest(lease, shard, [result(ix) for ix in range(9)], at=1.0)
        return real(*asked, **named)

    with monkeypatch.context() as patched:
        patched.setattr(items_module, "first_in", meanwhile)
        assert [row.seq for row in store.items.fresh(job.id, limit=4)] == [1, 2, 3, 4]
    assert [row.seq for row in store.items.fresh(job.id, after=4, limit=9)] == [5, 6, 7, 8, 9]


@pytest.mark.parametrize("way", ["batch", "real time", "refused", "dropped", "in flight at a kill"])
def test_followers_end_with_their_leader_however_it_ends(bench, monkeypatch, way):
    monkeypatch.setattr(outcomes_module, "PAGE_FOLLOWERS", 2)
    told = []
    store = bench.open(counted=lambda _, counts: told.append(counts))
    first = new_items(1, realtime=way in ("real time", "in flight at a kill"))
    following = [evolve(item, leader=0) for item in new_items(6)[1:]]
    job, _ = store.jobs.accept(bench.job(), [*first, *following])
    lease = store.leases.claim(job.id, 60.0)
    if way == "batch":
        shard = led(store, lease, store.shards.plan(lease, bench.shard(0)), ShardState.INGESTING)
        store.shards.ingest(lease, shard, [result(0)], at=9.0)
    elif way == "real time":
        store.items.claim_realtime(lease, 5)
        store.leases.report_counts(job.id, store.items.answer(lease, [result(0)], at=9.0).counts)
    elif way == "refused":
        store.shards.fail(lease, store.shards.plan(lease, bench.shard(0)), b"no", note="", at=9.0)
    elif way == "dropped":
        store.items.drop_unsent(lease, b"no", at=9.0)
    else:
        store.items.claim_realtime(lease, 5)
        store.leases.release(lease)
        assert store.leases.claim(job.id, 60.0, unknown=b"no") is not None
    row = store.jobs.get(job.id)
    assert (row.state, row.finished) == (JobState.DONE, 6)
    assert row.cost == (0.5 if way in ("batch", "real time") else 0.0)
    found = store.items.results(job.id)
    assert [each.ix for each in found] == list(range(6))
    assert [each.follower for each in found] == [False] + [True] * 5
    assert len({(each.outcome, each.body) for each in found}) == 1
    assert [each.payload for each in found] == [b"ask %d" % ix for ix in range(6)]
    assert [each.ix for each in store.items.fresh(job.id, limit=1000)] == list(range(6))
    assert sum(each.succeeded + each.failed + each.cancelled for each in told) == 6
    assert sum(each.deduplicated for each in told) == 5
    store.jobs.forget(job.id)
    assert bench.behind("SELECT count(*) FROM follower") == [(0,)]


@pytest.mark.parametrize("others", [3, 7, 25])
def test_a_cancelled_job_keeps_no_request_whichever_way_its_requests_go(store, bench, monkeypatch, others):
    monkeypatch.setattr(items_module, "PAGE_DROPPED", 7)
    items = [*new_items(10), *new_items(others, realtime=True)]
    job, _ = store.jobs.accept(bench.job(), [evolve(item, user_id=None) for item in items])
    lease = store.leases.claim(job.id, 60.0)
    assert store.items.drop_unsent(lease, b"cancelled", at=5.0) == 10 + others
    done = store.jobs.get(job.id)
    assert (done.cancelled, done.state) == (10 + others, JobState.DONE)
