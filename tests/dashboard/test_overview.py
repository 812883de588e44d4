"""What the store says of many jobs: by pages, by indexes, and with counts that stop somewhere."""

from __future__ import annotations

from typing import Any

from jobs.stores import Bench, bench, led, new_items, result, started, store

from smartbatch.errors import RequestCancelled
from smartbatch.jobs.payload import encode_error
from smartbatch.jobs.records import IncidentRow, JobState
from smartbatch.jobs.shard_records import ShardState
from smartbatch.jobs.store import SqlStore, job_overview
from smartbatch.jobs.store.job_overview import JobFilter

__all__ = ["bench", "store"]


def accepted(store: SqlStore, bench: Bench, count: int, **changes: Any) -> list[str]:
    return [store.jobs.accept(bench.job(**changes), new_items(1))[0].id for _ in range(count)]


def test_pages_go_on_where_the_last_one_ended(store, bench):
    ids = accepted(store, bench, 5)
    first = store.overview.page(JobFilter(), limit=2)
    accepted(store, bench, 1)  # what comes meanwhile moves nothing
    second = store.overview.page(JobFilter(), before=first[-1].no, limit=2)
    third = store.overview.page(JobFilter(), before=second[-1].no, limit=2)
    assert [line.id for line in (*first, *second, *third)] == ids[::-1]


def test_a_filter_names_state_model_id_or_key(store, bench):
    [plain], [other] = accepted(store, bench, 1), accepted(store, bench, 1, model="gemini:g", key="nächtlich")
    empty = store.jobs.accept(bench.job(), [])[0].id

    def found(**which: Any) -> list[str]:
        return [line.id for line in store.overview.page(JobFilter(**which), limit=50)]

    assert found(unfinished=True) == [other, plain]
    assert found(state=JobState.DONE) == [empty]
    assert found(model="gemini:g") == [other]
    assert found(model="gemini:g", state=JobState.DONE) == []
    assert found(name=plain) == [plain]
    assert found(name="nächtlich") == [other]
    assert found(name="nobody") == []


def test_creations_that_nobody_knows_of_are_found_in_all_accounts(store, bench):
    for scope, state in (("a", ShardState.UNCERTAIN), ("b", ShardState.SUBMITTED), ("c", ShardState.FENCED)):
        _, lease = started(store, bench, 2, scope=scope)
        led(store, lease, store.shards.plan(lease, bench.shard(0, 1)), state)
    found = store.overview.unknown_creations(limit=20)
    assert sorted((shard.scope, shard.state) for shard in found) == [
        ("a", ShardState.UNCERTAIN),
        ("c", ShardState.FENCED),
    ]


def test_jobs_that_nobody_carries_on_or_that_say_why_are_found(store, bench, monkeypatch):
    [free] = accepted(store, bench, 1)
    carried, _ = started(store, bench)
    noted, other = started(store, bench)
    store.jobs.note(other, "waits for money")
    assert [line.id for line in store.overview.waiting(limit=20)] == [noted.id, free]
    bench.let_leases_run_out()
    assert [line.id for line in store.overview.waiting(limit=20)] == [noted.id, carried.id, free]
    assert [line.id for line in store.overview.waiting(limit=1)] == [noted.id]
    monkeypatch.setattr(job_overview, "MAX_SEARCHED", 2)
    assert [line.id for line in store.overview.waiting(limit=20)] == [noted.id, carried.id]


def test_counts_and_searches_end_at_a_bound(store, bench):
    accepted(store, bench, 1)
    bench.behind("""INSERT INTO job (no, id, scope, model, kind, metadata, policy, digest, created_at, state,
        total, owner, lease_until)
        WITH RECURSIVE other (no) AS (SELECT 2 UNION ALL SELECT no + 1 FROM other WHERE no < 10002)
        SELECT other.no, 'other ' || other.no, scope, CASE WHEN other.no < 4 THEN 'rare' ELSE model END, kind,
        metadata, policy, digest, created_at, state, total, 'somebody', 1e12 FROM job, other""")
    assert store.overview.count(JobState.ACTIVE) == 10_001
    assert [line.no for line in store.overview.page(JobFilter(model="rare"), limit=9)] == [3]
    bench.behind("UPDATE job SET owner = NULL WHERE no IN (9002, 9003)")
    assert [line.no for line in store.overview.waiting(limit=9)] == [9003]


def test_failed_requests_and_incidents_of_a_job(store, bench):
    job, lease = started(store, bench, 4)
    shard = led(store, lease, store.shards.plan(lease, bench.shard(0, 1, 2, 3)), ShardState.INGESTING)
    store.shards.ingest(lease, shard, [result(0), result(1, "failed", b"no"), result(2)], at=1.0)
    store.items.drop_unsent(lease, encode_error(RequestCancelled("dropped")), at=2.0)
    for at in (1.0, 2.0):
        store.facts.add_incident(lease, IncidentRow("doubled_line", job.id, shard.id, f"row {at}", None, at))
    line = store.jobs.get(job.id)
    assert line is not None
    assert [
        (row.ix, row.user_id, row.outcome, bytes(row.body)) for row in store.overview.failed(line, limit=50)
    ] == [(1, "row-1", "failed", b"no")]
    assert [one.detail for one in store.overview.incidents(job.id, limit=50)] == ["row 2.0", "row 1.0"]
