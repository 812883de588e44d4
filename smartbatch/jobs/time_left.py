"""Time remaining of a job, from its rows and from batches that ended before."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import evolve

from smartbatch.core.forecast.turnaround import ObservedBatch, RunningBatch, remaining
from smartbatch.core.routing.rescue import Speed
from smartbatch.core.routing.throughput import Throughput
from smartbatch.jobs.records import (
    OPEN_SHARDS,
    UNSENT_SHARDS,
    ItemState,
    JobRow,
    JobState,
    ShardRow,
    ShardState,
)
from smartbatch.jobs.store import SqlStore
from smartbatch.jobs.turnaround_log import late

__all__ = ["time_left"]

READING = 2.0
"""Seconds that results take which are there and only have to be read; more would be said of a batch."""
SOON = 1.0
"""Seconds that are said while anything is left."""


def time_left(
    store: SqlStore,
    job: JobRow,
    shards: Sequence[ShardRow],
    *,
    asking: int,
    speed: Callable[[JobRow], Speed],
    wall: float,
) -> float | None:
    """Return the seconds until the job ends, as likely too long as too short; ``None`` when nobody can say.

    Args:
        shards: all of the job's.
        asking: items asked alone now.
        speed: says how fast requests of a job are answered in real time.
        wall: Unix seconds.
    """
    if job.state is JobState.DONE:
        return 0.0
    if job.state is JobState.HELD or job.note is not None:  # it waits for somebody, or for money
        return None
    waiting = [shard for shard in shards if shard.state in OPEN_SHARDS]
    rest = max(0, job.total - job.finished - sum(shard.size for shard in waiting))
    alone = bool(asking) or _some(store, job, ItemState.REALTIME)
    unplanned = [rest] if rest and not job.cancel_requested and _some(store, job, ItemState.OPEN) else []
    batches = _batches(store, job, waiting, unplanned, wall) if waiting or unplanned else 0.0
    if batches is None:
        return None
    return max(batches, _calls(speed(job).throughput, rest, asking) if alone else 0.0, SOON)


def _calls(throughput: Throughput, rest: int, asking: int) -> float:
    """Return the time of what is asked in real time.

    Not at the pace of the results so far: how long a batch was waited for says nothing of calls.
    """
    return evolve(throughput, ahead=max(0, throughput.ahead - asking)).finish(rest, 0.5)  # these are its own


def _some(store: SqlStore, job: JobRow, state: ItemState) -> bool:
    return bool(store.open_items(job.id, state=state, limit=1))


def _batches(
    store: SqlStore, job: JobRow, waiting: Sequence[ShardRow], unplanned: Sequence[int], wall: float
) -> float | None:
    """Return the time of what is in batches, or is to go in further ones of these sizes."""
    running = [
        RunningBatch(shard.size, max(0.0, wall - shard.submitted_at), _done(shard))
        for shard in waiting
        if shard.submitted_at is not None and shard.ended_at is None
    ]
    unsent = [*(shard.size for shard in waiting if shard.state in UNSENT_SHARDS), *unplanned]
    if not running and not unsent:
        return READING
    observed = [
        ObservedBatch(size, seconds, max(0.0, wall - at), ended)
        for name, ended in ((job.model, True), (late(job.model), False))
        for size, seconds, at in store.turnarounds(name)
    ]
    return remaining(running, observed, unsent=unsent)


def _done(shard: ShardRow) -> int | None:
    return shard.remote.completed if shard.state is ShardState.SUBMITTED else None
