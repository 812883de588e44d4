"""A job with a deadline: what is still in batches when it gets late is taken back and asked in real time."""

from __future__ import annotations

import math
from collections.abc import Sequence

from smartbatch.core.routing.rescue import MARGIN, PendingShard, Rescue, rescue
from smartbatch.core.routing.risk import LATE_PENALTY
from smartbatch.events import JobRescued
from smartbatch.jobs.records import OPEN_SHARDS, UNSENT_SHARDS, ItemState, JobState, ShardRow, ShardState
from smartbatch.jobs.steps import poll
from smartbatch.jobs.steps.context import StepContext

__all__ = ["in_time"]

_S = ShardState
_UNKNOWN = frozenset({_S.SUBMITTING, _S.UNCERTAIN, _S.PROVISIONAL, _S.FENCED})


def in_time(step: StepContext, shards: Sequence[ShardRow]) -> float:
    """Take back what has to be, and return the Unix seconds at which to look again; infinity for never.

    One batch is cancelled a step; ``work.wall`` is returned while there are more.
    """
    deadline = step.policy.deadline
    if deadline is None or step.job.state is not JobState.ACTIVE or step.job.cancel_requested:
        return math.inf
    held = [shard for shard in shards if shard.state in OPEN_SHARDS]
    if not held:
        return math.inf
    found = _found(step, deadline, held)
    if found.late:
        _tell_risk(step, held)
    for at in found.take_back:
        _take_back(step, held[at], deadline, found)
        if held[at].state not in UNSENT_SHARDS:
            return step.wall
    return step.wall if found.take_back else step.wall + found.wait


def _found(step: StepContext, deadline: float, held: Sequence[ShardRow]) -> Rescue:
    backlog = step.job.total - step.job.finished - sum(shard.size for shard in held)
    margin = max(1.0, MARGIN * (deadline - step.job.created_at))
    return rescue(
        deadline - step.wall,
        margin,
        max(0, backlog),
        [_held(shard, step.wall) for shard in held],
        step.speed(step.job),
        LATE_PENALTY if step.policy.late_penalty is None else step.policy.late_penalty,
    )


def _held(shard: ShardRow, wall: float) -> PendingShard:
    done = shard.remote.completed if shard.state is _S.SUBMITTED else None
    left = shard.size - (done or 0)
    paused = shard.tries > 0 and shard.due_at > wall  # a call about it failed: a cancel waits as well
    unsent = shard.state in UNSENT_SHARDS
    movable = unsent or (shard.state is _S.SUBMITTED and not shard.cancelled and not paused)
    age = 0.0 if shard.submitted_at is None else max(0.0, wall - shard.submitted_at)
    asked = shard.remote.cancel_sent_at
    cancelled = None if asked is None else max(0.0, wall - asked)
    return PendingShard(max(0, left), not unsent, not movable, shard.size, age, cancelled)


def _take_back(step: StepContext, shard: ShardRow, deadline: float, found: Rescue) -> None:
    left = max(0.0, deadline - step.wall)
    reason = (
        f"taken back for the deadline: {left:.0f} s are left, and what is not answered needs up to "
        f"{found.needs:.0f} s in real time"
    )
    if shard.state in UNSENT_SHARDS:
        dead = step.store.discard(
            step.lease, shard, items=ItemState.REALTIME, tried=False, note=reason, at=step.wall
        )
        step.told(shard, dead, reason)
    elif not poll.cancel(step, shard, reason).cancelled:
        return
    step.tell(
        JobRescued(
            at=step.clock.now(),
            job_id=step.job.id,
            shard_id=shard.id,
            model=step.job.model,
            requests=shard.size,
            left=left,
            needs=found.needs,
        )
    )


def _tell_risk(step: StepContext, held: Sequence[ShardRow]) -> None:
    """Say once of each shard that holds up a deadline and cannot be taken back."""
    for shard in held:
        if shard.state in _UNKNOWN:
            step.incident(
                "deadline_at_risk",
                "whether this batch exists is not known yet, so its requests are not sent again, and the "
                "deadline may be missed; nothing has to be done",
                shard,
            )
