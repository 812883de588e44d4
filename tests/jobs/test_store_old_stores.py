"""A store in full use that version 2 of the tables left behind is migrated, and carried on to its end."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import asdict
from jobs.remote import Made, Remote
from jobs.stores import Bench, bench

from smartbatch._clock import VirtualClock
from smartbatch.client import BatchingClient
from smartbatch.errors import StoreError
from smartbatch.jobs.payload import decode_params, decode_request
from smartbatch.jobs.records import ItemState, JobRow, JobState
from smartbatch.jobs.store.migrations import MIGRATIONS
from smartbatch.jobs.store.sqlite import APPLICATION
from smartbatch.jobs.versioned_records import JobPolicy, RemoteProgress
from smartbatch.jobs.wire_ids import wire_id
from smartbatch.providers.batch_api import RemoteState
from smartbatch.types import Route

__all__ = ["bench"]  # a fixture

SAMPLES = Path(__file__).parent / "old_stores"
NOW = 1_795_000_000.0
HOUR = 3600.0
COMMON = JobPolicy(timeout=3600.0, settle=1800.0, max_requests=5000)
POLICIES: dict[str, dict[str, Any]] = {
    "unsent": {"max_requests": 2},
    "uncertain": {"fallback": "individual"},
    "held": {"on_unknown": "hold"},
    "provisional": {"exclusive_workspace": True},
    "submitted": {"budget": 10.0, "budget_account": "client-1"},
    "late": {"fallback": "individual", "deadline": NOW - 60.0, "late_penalty": 3.5},
    "ingesting": {"fallback": "individual"},
    "done": {"retention": 3600.0},
    "attended": {"attended": True, "route": Route.INDIVIDUAL},
    "realtime": {"route": Route.FLEX},
}
"""What the policy of each job has besides the common choices."""
RUNNING = RemoteProgress(state=RemoteState.RUNNING, status="running", completed=2, failed=1)
ENDED = RemoteProgress(
    state=RemoteState.COMPLETED, status="completed", completed=2, failed=0, outputs=("out",)
)
PROGRESS: dict[str, list[dict[str, Any]]] = {
    "unsent": [{}, {"uploads": 1}, {}],
    "held": [{"held_job": True}],
    "submitted": [{**asdict(RUNNING), "checked_for_duplicates": True}],
    "late": [{**asdict(RUNNING), "cancel_sent_at": NOW - 30.0}],
    "ended": [asdict(ENDED)],
    "ingesting": [{**asdict(ENDED), "results_fetched": True, "results_refetched": True}],
    "gone": [{**asdict(RUNNING), "results_fetched": True, "results_gone": True}],
    "done": [
        {
            **asdict(RUNNING),
            "results_fetched": True,
            "checked_for_duplicates": True,
            "suspected_duplicates": ("batch-twin",),
        }
    ],
    "cancelled": [{"status": "running"}],
}
"""What is known of the batches of each job, shard by shard."""
OUTCOMES = {
    "prepared": (3, 0, 0),
    "unsent": (4, 0, 0),
    "submitting": (2, 0, 0),
    "uncertain": (2, 0, 0),
    "held": (2, 0, 0),
    "provisional": (2, 0, 0),
    "fenced": (2, 0, 0),
    "submitted": (3, 0, 0),
    "late": (3, 0, 0),
    "ended": (2, 0, 0),
    "ingesting": (4, 1, 0),
    "gone": (0, 2, 0),
    "done": (1, 1, 1),
    "again": (2, 0, 0),
    "attended": (4, 0, 0),
    "realtime": (3, 0, 0),
    "cancelled": (2, 0, 2),
}
"""Items of each job that succeed, fail and are cancelled."""
SENT_IN_REAL_TIME = [
    *(f"attended {ix}" for ix in (1, 2, 3)),
    *(f"ingesting {ix}" for ix in (2, 3)),
    *(f"late {ix}" for ix in range(3)),
    *(f"realtime {ix}" for ix in range(3)),
]
SENT_BY_BATCH = [
    *(f"again {ix}" for ix in range(2)),
    *(f"fenced {ix}" for ix in range(2)),
    *(f"prepared {ix}" for ix in range(3)),
    *(f"unsent {ix}" for ix in range(4)),
]
"""What was certainly not sent before, or is sent again by the rules: nothing else is paid for twice."""


@pytest.fixture
def old(bench: Bench) -> Bench:
    """A place with the sample of its kind of database."""
    if bench.kind == "sqlite":
        with sqlite3.connect(bench.place) as connection:
            connection.executescript((SAMPLES / "in_use_2.sqlite.sql").read_text())
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.close()
    else:
        dump = (SAMPLES / "in_use_2.postgres.sql").read_text()
        bench.behind(
            dump.replace("SCHEMA sample", f"SCHEMA {bench.schema}").replace("sample.", f"{bench.schema}.")
        )
    assert bench.behind("SELECT version FROM schema_version") == [(2,)]
    return bench


def provider_of(bench: Bench, clock: VirtualClock) -> Remote:
    """The provider as it stands: it has the batches that the store's shards were sent as."""
    remote = Remote(clock)
    assert remote.api is not None
    store = bench.open()
    known = {
        "submitting",
        "uncertain",
        "held",
        "provisional",
        "submitted",
        "ended",
        "cancelled",
        "late",
        "done",
    }
    for job in store.jobs.latest():
        name = str(job.key)
        shared = decode_params(job.params)
        for shard in store.shards.of_job(job.id):
            if name not in known | {"ingesting"}:
                continue
            payloads = store.shards.payloads(shard.id, limit=1000)
            lines = [
                {
                    "id": wire_id(shard.nonce, position),
                    "prompt": decode_request(p.payload, shared, id=None).prompt,
                }
                for position, p in payloads.items()
                if name != "ingesting" or p.ix == 4
            ]
            batch_id = (
                {"done": "batch-twin"}.get(name) or shard.batch_id or shard.candidate or f"batch-{name}"
            )
            at = NOW if name == "late" else NOW - 600.0
            made = Made(batch_id, shard.nonce, shard.file_id or f"file-{name}", at, lines, name == "late")
            remote.api.made[batch_id] = made
    store.close()
    return remote


def by_key(jobs: list[JobRow]) -> dict[str, JobRow]:
    return {str(job.key): job for job in jobs}


def test_dictionaries_of_the_old_store_become_records(old: Bench) -> None:
    store = old.open()
    jobs = by_key(store.jobs.latest())
    assert jobs.keys() == OUTCOMES.keys()
    for name, job in jobs.items():
        assert job.policy == JobPolicy(**{**asdict(COMMON), **POLICIES.get(name, {})}), name
        progress = [shard.remote for shard in store.shards.of_job(job.id)]
        expected = PROGRESS.get(name, [{} for _ in progress])
        assert progress == [RemoteProgress(**fields) for fields in expected], name


def test_what_has_another_name_keeps_its_value(old: Bench) -> None:
    store = old.open()
    jobs = by_key(store.jobs.latest())
    assert jobs["submitted"].reserved == 1.75
    assert store.shards.of_job(jobs["submitted"].id)[0].reserved == 1.5
    assert store.shards.of_job(jobs["provisional"].id)[0].foreign_batches == ("batch-else",)
    assert [shard.cleaned_up for shard in store.shards.of_job(jobs["done"].id)] == [False]
    (shard,) = store.shards.of_job(jobs["ingesting"].id)
    assert [(item.ix, item.verdict) for item in store.shards.unsettled(shard.id)] == [
        (2, "again"),
        (3, "unrun"),
        (4, None),
    ]
    attended = jobs["attended"].id
    assert [item.ix for item in store.items.in_state(attended, state=ItemState.IN_FLIGHT)] == [1]
    assert [item.ix for item in store.items.in_state(attended, state=ItemState.REALTIME)] == [2, 3]
    assert [incident.kind for incident in store.facts.incidents(jobs["done"].id)] == [
        "double_submission",
        "missing_items",
        "maybe_billed",
    ]
    assert store.facts.recall("shared:limit") == 5
    assert store.facts.turnarounds("late remote:m", limit=100) == [(3, 4000.0, NOW - 100.0)]


@pytest.mark.full
def test_every_job_of_the_old_store_is_carried_on_to_its_end(
    old: Bench, clock: VirtualClock, client_of: Callable[..., BatchingClient]
) -> None:
    remote = provider_of(old, clock)
    assert remote.api is not None
    before = set(remote.api.made)
    client = client_of(remote, store=old.place)
    for name in OUTCOMES:
        client.job(name).resume() if name != "held" else client.job(name)
    clock.sleep(2 * HOUR)
    store = old.open()
    jobs = by_key(store.jobs.latest())
    assert {name: job.state for name, job in jobs.items()} == dict.fromkeys(OUTCOMES, JobState.DONE)
    assert {name: (job.succeeded, job.failed, job.cancelled) for name, job in jobs.items()} == OUTCOMES
    assert sorted(remote.asked) == sorted(SENT_IN_REAL_TIME)
    new = [batch for batch_id, batch in remote.api.made.items() if batch_id not in before]
    assert sorted(line["prompt"] for batch in new for line in batch.lines) == sorted(SENT_BY_BATCH)
    assert [shard.cleaned_up for shard in store.shards.of_job(jobs["done"].id)] == [True]
    for name, job in jobs.items():
        results = store.items.results(job.id)
        assert [result.ix for result in results] == list(range(job.total)), name
        assert [result.user_id for result in results] == [f"{name}-{ix}" for ix in range(job.total)]
    assert old.behind("SELECT count(*) FROM incomplete_job") == [(0,)]


def test_a_migration_of_the_old_store_that_fails_at_its_end_leaves_it_as_it_was(old: Bench) -> None:
    broken = (*MIGRATIONS[:2], (*MIGRATIONS[2], "INSERT INTO nowhere VALUES (1)"))
    tables = "SELECT policy, pledged FROM job ORDER BY no", "SELECT remote, most FROM shard ORDER BY id"
    before = [old.behind(statement) for statement in tables]
    with pytest.raises(StoreError):
        old.open(steps=broken)
    assert old.behind("SELECT version FROM schema_version") == [(2,)]
    assert [old.behind(statement) for statement in tables] == before
    assert len(old.open().jobs.latest()) == len(OUTCOMES)


@pytest.mark.parametrize("change", [{"version": 4}, {"version": 4, "colour": "red"}])
@pytest.mark.parametrize("table", ["job", "shard"])
def test_a_record_of_a_newer_release_is_refused_and_left_as_it_is(
    old: Bench, table: str, change: dict[str, Any]
) -> None:
    column, kind = {"job": ("policy", "JobPolicy"), "shard": ("remote", "RemoteProgress")}[table]
    store = old.open()
    job = store.jobs.get("submitted")
    assert job is not None
    newer = json.dumps(change)
    old.behind(f"UPDATE {table} SET {column} = ?", newer)
    with pytest.raises(StoreError, match=rf"a {kind} of the store has version 4.*update smartbatch"):
        store.shards.of_job(job.id) if table == "shard" else store.jobs.get(job.id)
    assert set(old.behind(f"SELECT {column} FROM {table}")) == {(newer,)}


@pytest.mark.parametrize("damage", ['{"version": 1, "colour": "red"}', "{}", "[]", "no JSON"])
def test_a_record_with_an_unknown_field_or_without_a_version_is_refused(old: Bench, damage: str) -> None:
    store = old.open()
    old.behind("UPDATE job SET policy = ?", damage)
    with pytest.raises(StoreError, match="a JobPolicy of the store is damaged"):
        store.jobs.get("submitted")
