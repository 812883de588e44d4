"""One step of one job: which shard is due, which function does its step, and when the next step is due.

There is no thread here, and no waiting. Each call of :func:`run_step` does at most one step of one shard: a
remote call or two, and the commits around them. After a crash at any point the next process reads the states
and goes on; nothing is kept in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from attrs import frozen

from smartbatch.errors import ProviderError, RequestCancelled
from smartbatch.jobs.payload import encode_error
from smartbatch.jobs.records import (
    OPEN_SHARDS,
    UNSENT_SHARDS,
    ItemState,
    JobLease,
    JobRow,
    JobState,
    ShardRow,
    ShardState,
)
from smartbatch.jobs.steps import collect, create, job_rescue, orphans, poll, recover, settle
from smartbatch.jobs.steps.context import JobRuntime, StepContext
from smartbatch.jobs.steps.shard import plan_shards

_S = ShardState
_STEPS: dict[ShardState, Callable[[StepContext, ShardRow], ShardRow]] = {
    _S.PLANNED: create.begin,
    _S.UPLOADING: create.resume_upload,
    _S.READY: create.submit,
    _S.SUBMITTING: recover.mark_uncertain,
    _S.UNCERTAIN: recover.search,
    _S.PROVISIONAL: recover.verify,
    _S.FENCED: recover.search,
    _S.SUBMITTED: poll.poll,
    _S.ENDED: collect.fetch,
    _S.INGESTING: settle.settle,
    _S.DEAD: orphans.watch_dead_shard,
    _S.SETTLED: settle.clean_up,
}


@frozen
class StepResult:
    """What a job needs next.

    Attributes:
        next_at: Unix seconds when the next step is due; ``None`` when nothing comes due by itself.
        realtime: there are items to run in real time now.
        finished: everything is done and cleaned up; the job may be released.
    """

    next_at: float | None = None
    realtime: bool = False
    finished: bool = False


def run_step(runtime: JobRuntime, lease: JobLease) -> StepResult:
    """Run the step of a job that is due first, if one is due. The cases, in order:

    1. The job was deleted: finished.
    2. It is cancelled: items that were not sent end now.
    3. This process lacks its account, or that has no Batch API: only what needs no provider is done.
    4. It is held because of uncertain creates whose outcome is known by now: it goes on.
    5. It has open items: they become shards, unless its model is paused.
    6. It has a deadline and is late: a batch is taken back. While its model is paused that would not help.
    7. Otherwise the shard that is due first has its step, by its state. What was sent is followed to its end,
       also while the job is held or its model is paused.

    One thread at a time may run a job's step; different jobs may run concurrently.

    Raises:
        LeaseLost: another process owns the job now.
        StoreError: the store cannot be used at the moment.
    """
    job = runtime.store.jobs.get(lease.job_id)
    if job is None:
        return StepResult(None, finished=True)
    if job.cancel_requested and job.state is not JobState.DONE:
        body = encode_error(RequestCancelled("the job was cancelled before this request was sent"))
        if runtime.store.items.drop_unsent(lease, body, at=runtime.wall()):
            job = runtime.tell_progress(job)
    provider = runtime.provider_of(job)
    if provider is None or (api := provider.batches()) is None:
        return StepResult(None, _has_realtime(runtime, job), finished=job.state is JobState.DONE)
    step = StepContext(runtime=runtime, api=api, job=job, lease=lease)
    if recover.resume_if_known(step):
        return StepResult(step.wall)
    goes_on = job.state is JobState.ACTIVE and not _is_paused(runtime, job)
    if goes_on and not job.cancel_requested and plan_shards(step):
        return StepResult(step.wall, _has_realtime(runtime, job))
    return _step(step)


def _step(step: StepContext) -> StepResult:
    shards = [
        shard
        for shard in step.store.shards.of_job(step.job.id)
        if shard.state in OPEN_SHARDS or not shard.cleaned_up
    ]
    paused = _is_paused(step.runtime, step.job)
    check_at = math.inf if paused else job_rescue.rescue_late_job(step, shards)
    realtime = _has_realtime(step.runtime, step.job)
    if check_at <= step.wall:
        return StepResult(step.wall, realtime)
    held = (paused or step.job.state is JobState.HELD) and not step.job.cancel_requested
    runnable = [shard for shard in shards if not (held and shard.state in UNSENT_SHARDS)]
    due = min(runnable, key=lambda shard: shard.due_at, default=None)
    if due is None:
        finished = not shards and step.job.state is JobState.DONE
        return StepResult(None if check_at == math.inf else check_at, realtime, finished)
    at = min(_due_at(step, due), check_at)
    if at > step.wall:
        return StepResult(at, realtime)
    if due.state in UNSENT_SHARDS and step.job.cancel_requested:
        step.discard(due, "the job was cancelled")
        return StepResult(step.wall, realtime)
    try:
        _STEPS[due.state](step, due)
    except ProviderError as error:
        step.retry_later(due, error)
    return StepResult(step.wall, realtime)


def _due_at(step: StepContext, shard: ShardRow) -> float:
    """Return when a shard is due. A wall clock that was set back must not turn a pause into hours."""
    limits = step.limits
    longest = max(limits.longest_pause, limits.poll_interval, limits.reread_pause, limits.visibility)
    return -math.inf if shard.due_at > step.wall + 2 * longest else shard.due_at


def _is_paused(runtime: JobRuntime, job: JobRow) -> bool:
    return runtime.pause_of(job.model) is not None


def _has_realtime(runtime: JobRuntime, job: JobRow) -> bool:
    return (
        job.state is JobState.ACTIVE
        and not _is_paused(runtime, job)
        and bool(runtime.store.items.in_state(job.id, state=ItemState.REALTIME, limit=1))
    )
