"""Webhook events in stores on both databases."""

from __future__ import annotations

import pytest
from jobs.stores import bench, led, started, store

from smartbatch.jobs.records import DAY
from smartbatch.jobs.shard_records import ShardState
from smartbatch.jobs.store.webhook_events import KEPT_SECONDS

__all__ = ["bench", "store"]  # fixtures

NOW = 1e9


def submitted(store, bench, batch_id, *, ended_at=None, **job):
    row, lease = started(store, bench, 1, **job)
    shard = led(store, lease, store.shards.plan(lease, bench.shard(0)), ShardState.SUBMITTED)
    shard = store.shards.advance(lease, shard, ShardState.SUBMITTED, batch_id=batch_id)
    if ended_at is not None:
        store.shards.advance(lease, shard, ShardState.ENDED, ended_at=ended_at)
    return row.id


def test_an_event_is_unused_until_a_later_poll_is_stored(store):
    events = store.webhook_events
    assert events.last() == 0
    assert events.add("evt-1", "batch-1", at=NOW)
    assert not events.add("evt-1", "batch-1", at=NOW)
    [(_, seen)] = events.unused(["batch-1", "batch-2"]).items()
    assert events.add("evt-2", "batch-1", at=NOW)  # during the poll
    events.mark_used("batch-1", seen)
    assert events.unused(["batch-1"]) == {"batch-1": events.last()}
    events.mark_used("batch-1", events.last())
    assert events.unused(["batch-1"]) == events.unused([]) == {}
    assert not events.add("evt-1", "batch-1", at=NOW + KEPT_SECONDS - 1)


def test_events_are_forgotten_after_four_days_although_each_is_delivered_twice(store, bench):
    for day in range(60):
        for _ in range(2):
            store.webhook_events.add(f"evt-{day}", "batch-1", at=NOW + day * DAY)
    assert bench.behind("SELECT count(*) FROM webhook_event") == [(KEPT_SECONDS // DAY,)]


def test_jobs_are_named_by_events_about_their_running_batches(store, bench):
    events = store.webhook_events
    job_id = submitted(store, bench, "batches/abc")
    submitted(store, bench, "batch-2", ended_at=NOW)
    for number, batch_id in enumerate(["abc", "batch-2", "batch-of-others"]):
        events.add(f"evt-{number}", batch_id, at=NOW)
    assert events.named_jobs(0) == [job_id]
    assert events.named_jobs(events.last()) == []
    events.mark_used("batches/abc", events.last())
    assert events.named_jobs(0) == []


@pytest.mark.parametrize(
    ("named", "expected"), [([], False), (["batch-0"], False), (["batch-1"], True), (["batch-2"], True)]
)
def test_events_are_expected_if_one_of_the_latest_two_batches_had_one(named, expected, store, bench):
    for number in range(3):
        submitted(store, bench, f"batch-{number}", ended_at=NOW + number)
    submitted(store, bench, "batch-elsewhere", ended_at=NOW + 9, scope="scope-2")
    for batch_id in named:
        store.webhook_events.add(f"evt about {batch_id}", batch_id, at=NOW)
    assert store.webhook_events.is_expected("scope-1", "batch-new", at=NOW + 10) is expected
    assert not store.webhook_events.is_expected("scope-2", "batch-new", at=NOW + 10)
    assert not store.webhook_events.is_expected("scope-1", "batch-new", at=NOW + 10 + KEPT_SECONDS)
    for batch_id in named:
        assert not store.webhook_events.is_expected("scope-1", batch_id, at=NOW + 10)
