"""Rescue of a late job: batches that would miss the deadline are taken back and run in real time."""

from __future__ import annotations

import math
from collections.abc import Sequence

from smartbatch.core.routing.rescue import LATE_PENALTY, PendingShard, Rescue, margin_of, rescue
from smartbatch.events import JobRescued
from smartbatch.jobs.records import ItemState, JobState
from smartbatch.jobs.shard_records import OPEN_SHARDS, UNSENT_SHARDS, ShardRow, ShardState
from smartbatch.jobs.steps import poll
from smartbatch.jobs.steps.context import Step

_S = ShardState
_UNKNOWN = frozenset({_S.SUBMITTING, _S.UNCERTAIN, _S.PROVISIONAL, _S.FENCED})


def rescue_late_job(step: Step, deadline: float, shards: Sequence[ShardRow]) -> float:
    """Take back what would be late; return the Unix seconds of the next check, infinity for never."""
    # 1. the job is not active, is being cancelled, or has no open shard: never
    if step.job.state is not JobState.ACTIVE or step.job.cancel_requested:
        return math.inf
    pending = [shard for shard in shards if shard.state in OPEN_SHARDS]
    if not pending:
        return math.inf
    leave_at = min(poll.leave_at(step, shard) for shard in pending)
    # 2. a batch was cancelled, and has not ended when its requests have to go in real time: it is polled once
    # more, and left behind
    for shard in pending:
        if step.wall >= poll.leave_at(step, shard):
            poll.poll(step.for_model(shard.model), shard)
            return step.wall
    decision = _decision(step, deadline, pending)
    # 3. a shard whose create is uncertain endangers the deadline: an incident; it cannot be taken back
    if decision.late:
        _tell_risk(step, pending)
    # 4. shards that were not sent are discarded, all at once; one batch is cancelled in each step. While
    # there are more, the next check is now
    for at in decision.take_back:
        _take_back(step, pending[at], deadline, decision)
        if pending[at].state not in UNSENT_SHARDS:
            return step.wall
    if decision.take_back:
        return step.wall
    # 5. nothing is late yet: check again when it could be
    return min(step.wall + decision.wait, leave_at)


def _decision(step: Step, deadline: float, pending: Sequence[ShardRow]) -> Rescue:
    backlog = step.job.total - step.job.finished - sum(shard.size for shard in pending)
    margin = margin_of(deadline - step.job.created_at)
    return rescue(
        deadline - step.wall,
        margin,
        max(0, backlog),
        [_pending(shard, step.wall) for shard in pending],
        step.runtime.wiring.speed(step.job),
        LATE_PENALTY if step.policy.late_penalty is None else step.policy.late_penalty,
    )


def _pending(shard: ShardRow, wall: float) -> PendingShard:
    done = shard.remote.completed if shard.state is _S.SUBMITTED else None
    left = shard.size - (done or 0)
    paused = shard.tries > 0 and shard.due_at > wall  # a call about it failed: a cancel waits as well
    unsent = shard.state in UNSENT_SHARDS
    at_work = shard.state is _S.SUBMITTED and not (shard.cancelled or poll.is_being_cancelled(shard))
    movable = unsent or (at_work and not paused)
    age = 0.0 if shard.submitted_at is None else max(0.0, wall - shard.submitted_at)
    asked = shard.remote.cancel_sent_at
    cancelled = None if asked is None else max(0.0, wall - asked)
    return PendingShard(
        left=max(0, left),
        sent=not unsent,
        stuck=not movable,
        size=shard.size,
        age=age,
        cancelled=cancelled,
        held_up=unsent and shard.due_at > wall,
    )


def _take_back(step: Step, shard: ShardRow, deadline: float, decision: Rescue) -> None:
    left = max(0.0, deadline - step.wall)
    reason = (
        f"taken back for the deadline: {left:.0f} s are left, and what is not answered needs up to "
        f"{decision.needs:.0f} s in real time"
    )
    if shard.state in UNSENT_SHARDS:
        step.discard(shard, reason, to=ItemState.REALTIME)
    elif not poll.cancel(step, shard, reason).cancelled:
        return
    step.runtime.tell(
        JobRescued(
            at=step.now,
            job_id=step.job.id,
            shard_id=shard.id,
            model=step.job.model,
            requests=shard.size,
            left=left,
            needs=decision.needs,
        )
    )


def _tell_risk(step: Step, pending: Sequence[ShardRow]) -> None:
    """Say once of each shard that holds up a deadline and cannot be taken back."""
    for shard in pending:
        if shard.state in _UNKNOWN:
            step.incident(
                "deadline_at_risk",
                "whether this batch exists is not known yet, so its requests are not sent again, and the "
                "deadline may be missed; nothing has to be done",
                shard,
            )
