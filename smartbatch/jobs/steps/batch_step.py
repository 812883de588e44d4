"""A step of a batch job: find the shard that is due and run the function for its state.

If the job has a deadline, batches that would miss it are withdrawn first, and their requests are sent in
real time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from smartbatch._words import duration
from smartbatch.core.routing.rescue import LATE_PENALTY, PendingShard, Rescue, margin_of, rescue
from smartbatch.errors import ProviderError
from smartbatch.events import JobRescued
from smartbatch.jobs.records import ItemState, JobState
from smartbatch.jobs.shard_records import OPEN_SHARDS, UNSENT_SHARDS, ShardRow, ShardState
from smartbatch.jobs.steps import collect, create, orphans, poll, reconcile, recover, storage
from smartbatch.jobs.steps.step import Step, StepResult, has_realtime, is_overdue, is_paused

_S = ShardState
_STEPS: Mapping[ShardState, Callable[[Step, ShardRow], ShardRow]] = {
    _S.PLANNED: create.begin,
    _S.UPLOADING: create.resume_upload,
    _S.READY: create.send_create,
    _S.SUBMITTING: recover.mark_uncertain,
    _S.UNCERTAIN: recover.search_batch,
    _S.PROVISIONAL: recover.verify,
    _S.FENCED: recover.search_batch,
    _S.SUBMITTED: poll.poll_batch,
    _S.ENDED: collect.download_results,
    _S.INGESTING: reconcile.reconcile_shard,
    _S.DEAD: orphans.watch_dead_shard,
    _S.SETTLED: orphans.examine_suspect,
}
_UNKNOWN = frozenset({_S.SUBMITTING, _S.UNCERTAIN, _S.PROVISIONAL, _S.FENCED})


def run_batch_step(step: Step) -> StepResult:
    # 1. the job was held because of uncertain create calls, whose outcome is now known: resume it
    if step.policy.on_unknown == "hold" and recover.resume_if_known(step):
        return StepResult(step.wall)
    job = step.job
    active = job.state is JobState.ACTIVE and not is_paused(step.runtime, job)
    # 2. it has open items: divide them into shards, unless its model is paused
    if active and not job.cancel_requested and create.plan_shards(step):
        return StepResult(step.wall, has_realtime(step.runtime, job))
    # 3. otherwise work on the existing shards
    return _step(step)


def _step(step: Step) -> StepResult:
    shards = [
        shard
        for shard in step.store.shards.of_job(step.job.id)
        if shard.state in OPEN_SHARDS or not shard.cleaned_up
    ]
    paused = is_paused(step.runtime, step.job)
    check_at, deadline = math.inf, step.policy.deadline
    if deadline is not None and not paused:
        check_at = rescue_late_job(step, deadline, shards)
    realtime = has_realtime(step.runtime, step.job)
    # 1. a batch was withdrawn because the job is late: start again with the new states. (A paused model skips
    # this check, since real time would be paused as well.)
    if check_at <= step.wall:
        return StepResult(step.wall, realtime)
    # batches that were sent are polled until they end, even if the job is held or its model is paused
    held = (paused or step.job.state is JobState.HELD) and not step.job.cancel_requested
    runnable: Sequence[ShardRow] = [shard for shard in shards if not (held and shard.state in UNSENT_SHARDS)]
    # uploads wait while the account's file storage is full
    runnable, look_at = storage.without_waiting(step, runnable)
    check_at = min(check_at, look_at)
    polled = [shard.batch_id for shard in runnable if shard.state is _S.SUBMITTED and shard.batch_id]
    events = step.store.webhook_events.unused(polled)
    due = min(runnable, key=lambda shard: _due_at(step, shard, events), default=None)
    # 2. no shard may run: the job is finished if no shard is left, else wait for the deadline check
    if due is None:
        finished = not shards and step.job.state is JobState.DONE
        return StepResult(None if check_at == math.inf else check_at, realtime, finished)
    at = min(_due_at(step, due, events), check_at)
    # 3. no shard is due yet: wait
    if at > step.wall:
        return StepResult(at, realtime)
    own = step.for_model(due.model)
    # 4. the shard was not sent and is not needed, because it takes too long, the job was cancelled, or
    # all of its requests were answered by an orphan: discard it
    if due.state in UNSENT_SHARDS and is_overdue(own, due):
        own.discard(due, poll.OVERDUE_NOTE, to=ItemState.REALTIME)
        return StepResult(step.wall, has_realtime(step.runtime, step.job))
    if due.state in UNSENT_SHARDS and (step.job.cancel_requested or step.store.shards.is_answered(due)):
        own.discard(due, "the job was cancelled" if step.job.cancel_requested else poll.ANSWERED_NOTE)
        return StepResult(step.wall, realtime)
    # 5. otherwise run the function for its state; after a provider error, retry later
    try:
        _STEPS[due.state](own, due)
    except create.UnsendableRequests as found:
        create.end_unsendable(own, found)
    except ProviderError as error:
        own.retry_later(due, error)
    else:
        if due.batch_id is not None and due.batch_id in events:
            step.store.webhook_events.mark_used(due.batch_id, events[due.batch_id])
    return StepResult(step.wall, realtime)


def _due_at(step: Step, shard: ShardRow, events: Mapping[str, int]) -> float:
    limits = step.limits
    # a webhook event makes a poll due, unless the last one failed: failing calls keep their pauses
    if shard.batch_id in events and not shard.tries:
        return -math.inf
    # batches of a cancelled job are cancelled immediately, without waiting for their next poll
    untouched = shard.state is ShardState.SUBMITTED and not (shard.cancelled or shard.tries)
    if step.job.cancel_requested and untouched and step.api.abilities.cancels:
        return -math.inf
    # if the system clock was set back, a pause must not last for hours
    longest = max(limits.longest_pause, limits.poll_interval, limits.reread_pause, limits.visibility)
    return -math.inf if shard.due_at > step.wall + 2 * longest else shard.due_at


# -- jobs that may miss their deadline -----------------------------------------------------------------------


def rescue_late_job(step: Step, deadline: float, shards: Sequence[ShardRow]) -> float:
    """Withdraw batches that would miss the deadline; return the Unix time of the next check, or infinity."""
    # 1. the job is not active, is being cancelled, or has no open shard: never
    if step.job.state is not JobState.ACTIVE or step.job.cancel_requested:
        return math.inf
    pending = [shard for shard in shards if shard.state in OPEN_SHARDS]
    if not pending:
        return math.inf
    abandon_at = min(poll.abandon_at(step, shard) for shard in pending)
    # 2. a batch was cancelled and is still running when its requests must be sent in real time: poll it once
    # more, then abandon it
    for shard in pending:
        if step.wall >= poll.abandon_at(step, shard):
            poll.poll_batch(step.for_model(shard.model), shard)
            return step.wall
    decision = _decision(step, deadline, pending)
    # 3. a shard with an uncertain create call endangers the deadline and cannot be withdrawn: report it
    if decision.late:
        _report_risk(step, pending)
    # 4. discard all late shards that were not sent; cancel one late batch per step. While any
    # remain, check again immediately
    for at in decision.take_back:
        _withdraw(step, pending[at], deadline, decision)
        if pending[at].state not in UNSENT_SHARDS:
            return step.wall
    if decision.take_back:
        return step.wall
    # 5. no shard is late yet: check again at the earliest time when one could be
    return min(step.wall + decision.wait, abandon_at)


def _decision(step: Step, deadline: float, pending: Sequence[ShardRow]) -> Rescue:
    backlog = step.job.total - step.job.finished - sum(shard.size for shard in pending)
    margin = margin_of(deadline - step.job.created_at)
    return rescue(
        deadline - step.wall,
        margin,
        max(0, backlog),
        [_pending(shard, step.wall, cancels=step.api.abilities.cancels) for shard in pending],
        step.runtime.wiring.speed(step.job),
        LATE_PENALTY if step.policy.late_penalty is None else step.policy.late_penalty,
    )


def _pending(shard: ShardRow, wall: float, *, cancels: bool) -> PendingShard:
    done = shard.remote.completed if shard.state is _S.SUBMITTED else None
    left = shard.size - (done or 0)
    paused = shard.tries > 0 and shard.due_at > wall  # its last call failed, so a cancel would be delayed too
    unsent = shard.state in UNSENT_SHARDS
    at_work = shard.state is _S.SUBMITTED and not (shard.cancelled or poll.is_being_cancelled(shard))
    movable = unsent or (at_work and cancels and not paused)
    age = 0.0 if shard.submitted_at is None else max(0.0, wall - shard.submitted_at)
    sent_at = shard.remote.cancel_sent_at
    cancelled = None if sent_at is None else max(0.0, wall - sent_at)
    return PendingShard(
        left=max(0, left),
        sent=not unsent,
        stuck=not movable,
        size=shard.size,
        age=age,
        cancelled=cancelled,
        held_up=unsent and shard.due_at > wall,
    )


def _withdraw(step: Step, shard: ShardRow, deadline: float, decision: Rescue) -> None:
    left = max(0.0, deadline - step.wall)
    reason = (
        f"withdrawn to meet the deadline: {duration(left)} left, and the unanswered requests need up to "
        f"{duration(decision.needs)} in real time"
    )
    if shard.state in UNSENT_SHARDS:
        step.discard(shard, reason, to=ItemState.REALTIME)
    elif not poll.cancel(step, shard, reason).cancelled:
        return
    step.runtime.publish_event(
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


def _report_risk(step: Step, pending: Sequence[ShardRow]) -> None:
    for shard in pending:
        if shard.state in _UNKNOWN:
            step.incident(
                "deadline_at_risk",
                "it is not known yet whether this batch was created, so its requests are not sent again and "
                "the job may miss its deadline; no action is needed",
                shard,
            )
