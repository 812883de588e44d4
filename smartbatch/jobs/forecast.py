"""Time remaining of a job, from its rows and from batches that ended before."""

from __future__ import annotations

import math
from collections.abc import Sequence

from smartbatch.core.turnaround import Observed, Running, remaining
from smartbatch.jobs.records import OPEN_SHARDS, UNSENT_SHARDS, JobRow, JobState, ShardRow, ShardState
from smartbatch.jobs.store.base import Store

__all__ = ["time_left"]

READING = 2.0
"""Seconds that results take which are there and only have to be read; more would be said of a batch."""


def time_left(
    store: Store, job: JobRow, shards: Sequence[ShardRow], *, asking: int, wall: float
) -> float | None:
    """Return the seconds until the job ends, as likely too long as too short; ``None`` when nobody can say.

    Args:
        asking: items asked alone now; nothing is known of the time of those, beyond their own pace.
        wall: Unix seconds.
    """
    if job.state is JobState.DONE:
        return 0.0
    if job.state is JobState.HELD:
        return None
    waiting = [shard for shard in shards if shard.state in OPEN_SHARDS]
    alone = _alone(job, waiting, wall)
    if not waiting:
        return alone
    batches = _batches(store, job, waiting, wall)
    if batches is None or (alone is None and asking):
        return batches
    return max(batches, alone or 0.0)


def _batches(store: Store, job: JobRow, waiting: Sequence[ShardRow], wall: float) -> float | None:
    running = [
        Running(shard.size, max(0.0, wall - shard.submitted_at), _done(shard))
        for shard in waiting
        if shard.submitted_at is not None and shard.ended_at is None
    ]
    unsent = [shard.size for shard in waiting if shard.state in UNSENT_SHARDS]
    if not running and not unsent:
        return READING
    observed = [
        Observed(size, seconds, max(0.0, wall - at)) for size, seconds, at in store.turnarounds(job.model)
    ]
    return remaining(running, observed, unsent=unsent)


def _alone(job: JobRow, waiting: Sequence[ShardRow], wall: float) -> float | None:
    """Return the time of what is in no batch, at the pace of the results so far."""
    left = job.total - job.finished - sum(shard.size for shard in waiting)
    elapsed = wall - job.created_at
    if left <= 0 or not job.finished or elapsed <= 0:
        return None
    return math.ceil(left * elapsed / job.finished)


def _done(shard: ShardRow) -> int | None:
    done = shard.remote.get("completed")
    return done if isinstance(done, int) and shard.state is ShardState.SUBMITTED else None
