"""The contract of every store about incidents, claims of batches and facts, on both databases."""

from __future__ import annotations

from attrs import evolve
from jobs.stores import Bench, bench, led, started, store

from smartbatch.jobs.records import IncidentRow, ItemState
from smartbatch.jobs.shard_records import ShardState
from smartbatch.jobs.store import SqlStore

__all__ = ["bench", "store"]  # fixtures


def test_an_incident_told_twice_is_kept_once(bench: Bench) -> None:
    store, other = bench.open(), bench.open()
    job, lease = started(store, bench)
    first = IncidentRow("doubled_line", "job-1", "shard-1", "row 5", 0.25, 10.0)
    assert store.facts.add_incident(lease, first)
    store.leases.release(lease)
    anew = other.leases.claim(job.id, 60.0)
    assert anew is not None
    assert not other.facts.add_incident(anew, evolve(first, at=20.0, money=None))
    different = [
        evolve(first, kind="foreign_line"),
        evolve(first, job_id="job-2"),
        evolve(first, shard_id=None),
        evolve(first, detail="row 6"),
    ]
    assert all(other.facts.add_incident(anew, incident) for incident in different)
    assert store.facts.incidents("job-1") == [first, different[0], *different[2:]]
    assert store.facts.incidents("job-2") == [different[1]]


def test_own_batches_are_claimed_and_guesses_are_not(store: SqlStore, bench: Bench) -> None:
    _, lease = started(store, bench, 3)
    _, far = started(store, bench, 1, scope="scope-2")
    submitted = led(store, lease, store.shards.plan(lease, bench.shard(0)), ShardState.SUBMITTING)
    store.shards.advance(lease, submitted, ShardState.SUBMITTED, batch_id="ours")
    unsure = led(store, lease, store.shards.plan(lease, bench.shard(1)), ShardState.UNCERTAIN)
    unsure = store.shards.advance(
        lease, unsure, ShardState.PROVISIONAL, candidate="maybe", foreign_batches=("alien", "other")
    )
    store.shards.advance(far, store.shards.plan(far, bench.shard(0)), ShardState.READY, batch_id="far")
    given_up = led(store, lease, store.shards.plan(lease, bench.shard(2)), ShardState.UNCERTAIN)
    dead = store.shards.discard(lease, given_up, items=ItemState.OPEN, tried=False, note="", at=1.0)
    store.shards.advance(lease, dead, ShardState.DEAD, candidate="orphan")
    asked = ["ours", "maybe", "alien", "orphan", "new", "far"]
    assert store.shards.claimed_batches("scope-1", asked) == {"ours", "maybe"}
    assert store.shards.claimed_batches("scope-1", []) == set()


def test_turnarounds_come_back_newest_first_and_do_not_grow_for_ever(store: SqlStore, bench: Bench) -> None:
    for n in range(560):
        store.facts.observe_turnarounds("m", [(n, n / 2, float(n))])
    store.facts.observe_turnarounds("other", [(1, 1.0, 1.0)])
    assert store.facts.turnarounds("m", limit=2) == [(559, 279.5, 559.0), (558, 279.0, 558.0)]
    assert len(store.facts.turnarounds("m", limit=100)) == 100
    assert store.facts.turnarounds("none", limit=100) == []
    assert bench.behind("SELECT count(*) FROM turnaround WHERE model = 'm'") == [(510,)]
