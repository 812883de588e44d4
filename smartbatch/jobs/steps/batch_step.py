"""One step of the batches of a job: which shard is due, and which function does its step, by its state."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from smartbatch.errors import ProviderError
from smartbatch.jobs.records import ItemState, JobState
from smartbatch.jobs.shard_records import OPEN_SHARDS, UNSENT_SHARDS, ShardRow, ShardState
from smartbatch.jobs.steps import collect, create, job_rescue, orphans, poll, reconcile, recover
from smartbatch.jobs.steps.context import Step, StepResult, has_realtime, is_paused
from smartbatch.jobs.steps.planning import plan_shards

_S = ShardState
_STEPS: Mapping[ShardState, Callable[[Step, ShardRow], ShardRow]] = {
    _S.PLANNED: create.begin,
    _S.UPLOADING: create.resume_upload,
    _S.READY: create.submit,
    _S.SUBMITTING: recover.mark_uncertain,
    _S.UNCERTAIN: recover.search,
    _S.PROVISIONAL: recover.verify,
    _S.FENCED: recover.search,
    _S.SUBMITTED: poll.poll,
    _S.ENDED: collect.fetch,
    _S.INGESTING: reconcile.settle,
    _S.DEAD: orphans.watch_dead_shard,
    _S.SETTLED: orphans.clean_up,
}


def run_batch_step(step: Step) -> StepResult:
    """Run the step that is due first, if one is due."""
    # 1. the job is held because of uncertain creates whose outcome is known by now: it goes on
    if step.policy.on_unknown == "hold" and recover.resume_if_known(step):
        return StepResult(step.wall)
    job = step.job
    goes_on = job.state is JobState.ACTIVE and not is_paused(step.runtime, job)
    # 2. it has open items: they become shards, unless its model is paused
    if goes_on and not job.cancel_requested and plan_shards(step):
        return StepResult(step.wall, has_realtime(step.runtime, job))
    # 3. otherwise the shards that there are
    return _step(step)


def _step(step: Step) -> StepResult:
    """Run the step that is due of the shards that there are."""
    shards = [
        shard
        for shard in step.store.shards.of_job(step.job.id)
        if shard.state in OPEN_SHARDS or not shard.cleaned_up
    ]
    paused = is_paused(step.runtime, step.job)
    check_at, deadline = math.inf, step.policy.deadline
    if deadline is not None and not paused:
        check_at = job_rescue.rescue_late_job(step, deadline, shards)
    realtime = has_realtime(step.runtime, step.job)
    # 1. a batch was taken back because the job is late, which would not help while its model is paused: look
    # again at once
    if check_at <= step.wall:
        return StepResult(step.wall, realtime)
    # what was sent is followed to its end, also while the job is held or its model is paused
    held = (paused or step.job.state is JobState.HELD) and not step.job.cancel_requested
    runnable = [shard for shard in shards if not (held and shard.state in UNSENT_SHARDS)]
    due = min(runnable, key=lambda shard: _due_at(step, shard), default=None)
    # 2. no shard may run: the job is finished if none is left, else the next look is that at its deadline
    if due is None:
        finished = not shards and step.job.state is JobState.DONE
        return StepResult(None if check_at == math.inf else check_at, realtime, finished)
    at = min(_due_at(step, due), check_at)
    # 3. none is due yet: the next look is when one is
    if at > step.wall:
        return StepResult(at, realtime)
    own = step.for_model(due.model)
    # 4. what is due was not sent, and takes too long, the job was cancelled, or an orphan has answered all of
    # its requests: it is discarded
    if due.state in UNSENT_SHARDS and poll.is_overdue(own, due):
        own.discard(due, poll.OVERDUE, to=ItemState.REALTIME)
        return StepResult(step.wall, has_realtime(step.runtime, step.job))
    if due.state in UNSENT_SHARDS and (step.job.cancel_requested or step.store.shards.is_answered(due)):
        own.discard(due, "the job was cancelled" if step.job.cancel_requested else poll.ANSWERED)
        return StepResult(step.wall, realtime)
    # 5. otherwise it has its step, by its state; a provider's error puts it off
    try:
        _STEPS[due.state](own, due)
    except ProviderError as error:
        own.retry_later(due, error)
    return StepResult(step.wall, realtime)


def _due_at(step: Step, shard: ShardRow) -> float:
    """Return when a shard is due. A wall clock that was set back must not turn a pause into hours, and what a
    cancelled job has at the provider is cancelled without waiting for its next poll."""
    limits = step.limits
    untouched = shard.state is ShardState.SUBMITTED and not (shard.cancelled or shard.tries)
    if step.job.cancel_requested and untouched:
        return -math.inf
    longest = max(limits.longest_pause, limits.poll_interval, limits.reread_pause, limits.visibility)
    return -math.inf if shard.due_at > step.wall + 2 * longest else shard.due_at
