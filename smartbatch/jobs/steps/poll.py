"""Polling of a batch that was created, until it has ended, and its cancellation."""

from __future__ import annotations

import math

from attrs import evolve

from smartbatch.core.routing.rescue import margin_of
from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.events import BatchEnded
from smartbatch.jobs import summary_records
from smartbatch.jobs.records import ACCOUNT_ERRORS, ItemState
from smartbatch.jobs.shard_records import RemoteProgress, ShardRow, ShardState
from smartbatch.jobs.steps import collect, enqueued_quota, listing, refusals
from smartbatch.jobs.steps.context import Step
from smartbatch.jobs.wiring import HOUR
from smartbatch.providers.batch_api import RemoteBatch, RemoteState
from smartbatch.types import Kind

PROMISE = 24 * HOUR
"""Seconds in which all three providers aim to end a batch; one that takes longer gets a note."""
_LATE = (
    "still {word} after more than 24 hours, and waited for; cancel the job to keep what is done and end it "
    "(jobs with batch_fallback='individual' send the rest in real time after their time-out)"
)
OVERDUE = "the batch takes too long"
ANSWERED = "its requests were answered by a batch that was given up and came after all"
"""Why a batch is not needed any more."""
STUCK = 15 * 60.0
"""Seconds after a cancel in which a batch ends at all three providers."""
SHORTEST = 10.0
"""Seconds that a batch has to end after its cancel, however late its job is: most take less."""
AFTER_CANCEL = 1.0
"""Seconds from a cancel to the next poll; later pauses are as long as the cancel has taken so far."""
REFUSALS = 2
"""Batches that are refused at validation before their items fail: a refusal costs nothing. If the provider
itself had an error, they are sent as often as after any other one."""
_UNREACHED = frozenset({ErrorKind.NETWORK_ERROR, ErrorKind.TIMEOUT})
_LOOKS = 4
"""Polls within the time after which a new batch is visible."""


def poll(step: Step, shard: ShardRow) -> ShardRow:
    """``SUBMITTED``: poll the batch."""
    assert shard.batch_id is not None
    left = step.wall >= leave_at(step, shard)
    # 1. the job was cancelled, the batch takes too long, or an orphan has answered all of its requests:
    # cancel it
    if not (left or shard.cancelled) and (reason := _reason_to_cancel(step, shard)):
        return cancel(step, shard, reason, rescues=reason == OVERDUE)
    try:
        with step.provider_calls():
            batch = step.api.get(shard.batch_id, step.limits.call_timeout)
    except ProviderError as error:
        if not left or (step.policy.deadline is None and error.kind in _UNREACHED):
            raise
        return leave_behind(step, shard)
    # 2. we cancelled it long ago, and nobody says that it has ended: it is left behind. A cancel that failed
    # is tried once more before, and without a deadline a provider that cannot be reached is waited for:
    # requests in real time would not reach it either
    if left and (batch is None or not batch.state.ended):
        if batch is not None and not shard.cancelled and step.policy.deadline is None:
            shard = cancel(step, shard, OVERDUE)
            if shard.cancelled or shard.state is not ShardState.SUBMITTED:
                return shard
        return leave_behind(step, shard)
    # 3. the provider does not know it
    if batch is None:
        return _vanished(step, shard)
    enqueued_quota.tell(step, shard, ended=batch.state.ended)
    remote = _progress(listing.search_duplicates_once(step, shard, batch), batch)
    # 4. it has ended: its results are fetched next, or it failed as a whole
    if batch.state.ended:
        return _ended(step, shard, batch, remote)
    # 5. it runs: store its progress. Once, its duplicates are searched for. After a cancel it is polled
    # sooner at first, as most cancels take seconds
    late = step.wall - (shard.submitted_at or step.wall) > PROMISE
    note = _LATE.format(word=batch.word) if late else None
    pause = step.limits.poll_interval
    if remote.cancel_sent_at is not None:
        pause = min(pause, max(AFTER_CANCEL, step.wall - remote.cancel_sent_at))
    moved = step.reschedule(shard, pause, tries=0, note=note, remote=remote)
    if remote != shard.remote:
        step.runtime.tell_progress(step.job, running=_running(step))
    return moved


def cancel(step: Step, shard: ShardRow, reason: str, *, rescues: bool = True) -> ShardRow:
    """Cancel a batch. Its finished requests are kept; nothing is sent again before it has ended.

    That it is to be cancelled is stored first: after a crash nobody takes it for a cancel of somebody else's.

    Args:
        rescues: the batch's unanswered requests are then sent in real time.
    """
    batch_id = shard.batch_id
    assert batch_id is not None
    if shard.remote.cancel_sent_at is None:
        rescue = reason if rescues else None
        marked = evolve(shard.remote, cancel_sent_at=step.wall, rescue=rescue)
        shard = step.reschedule(shard, 0.0, remote=marked)
    try:
        step.api.cancel(batch_id, step.limits.call_timeout)
    except Exception as error:
        return _not_cancelled(step, shard, step.api.classify(error))
    remote = evolve(shard.remote, cancel_sent_at=step.wall)
    pause = min(step.limits.poll_interval, AFTER_CANCEL)
    return step.reschedule(shard, pause, tries=0, cancelled=True, note=reason, remote=remote)


def _not_cancelled(step: Step, shard: ShardRow, error: ProviderError) -> ShardRow:
    """A cancel failed with ``error``."""
    assert shard.batch_id is not None
    try:
        batch = step.api.get(shard.batch_id, step.limits.call_timeout)
    # 1. the batch is not to be looked at either: the cancel is tried again later
    except Exception as raised:
        step.ignored("poll of a batch", raised)
        return step.retry_later(shard, error)
    # 2. the provider does not know the batch
    if batch is None and error.status == 404:
        return _vanished(step, shard)
    # 3. it has ended: go on with it. Some servers have no cancel, and a batch must end all the same
    if batch is not None and batch.state.ended:
        enqueued_quota.tell(step, shard, ended=True)
        return _ended(
            step, shard, batch, _progress(listing.search_duplicates_once(step, shard, batch), batch)
        )
    # 4. otherwise the cancel is tried again later
    return step.retry_later(shard, error)


def is_overdue(step: Step, shard: ShardRow) -> bool:
    """Whether the requests of a shard should go in real time because it takes too long: since its create, or
    where that was not sent, since the job was submitted. A deadline has its own rescue."""
    since = step.job.created_at if shard.submitted_at is None else shard.submitted_at
    timed = step.falls_back and step.policy.deadline is None and not step.job.cancel_requested
    return timed and step.wall - since >= step.timeout


def _reason_to_cancel(step: Step, shard: ShardRow) -> str | None:
    if step.job.cancel_requested:
        return "the job was cancelled"
    if is_overdue(step, shard) and not is_being_cancelled(shard):
        return OVERDUE
    if step.store.shards.is_answered(shard):
        return ANSWERED
    return None


def leave_at(step: Step, shard: ShardRow) -> float:
    """Return when a batch that we cancelled is waited for no longer, and its requests go in real time:
    infinity for never."""
    asked, deadline = shard.remote.cancel_sent_at, step.policy.deadline
    waits = shard.state is ShardState.SUBMITTED and step.falls_back and not step.job.cancel_requested
    if asked is None or not waits:
        return math.inf
    if deadline is None:
        return asked + STUCK
    throughput = step.runtime.wiring.speed(step.job).throughput
    needs = throughput.finish(shard.size - (shard.remote.completed or 0), 0.5)
    return max(asked + SHORTEST, deadline - needs - margin_of(deadline - step.job.created_at))


def leave_behind(step: Step, shard: ShardRow) -> ShardRow:
    """Send the requests of a batch in real time although it was cancelled and has not ended.

    What still comes of it is handled as of any orphan: it is counted, and overwrites nothing. One that never
    ends is looked at for as long as any orphan.
    """
    asked = shard.remote.cancel_sent_at
    waited = 0.0 if asked is None else step.wall - asked
    detail = (
        f"batch {shard.batch_id} has not ended {waited:,.0f} s after it was cancelled: its {shard.size:,} "
        "requests go in real time, and may be paid twice"
    )
    step.incident("maybe_billed", detail, shard)
    reason = "cancelled long ago, and not ended; its requests go in real time"
    return step.discard(
        shard, reason, to=ItemState.REALTIME, tried=True, maybe_billed=True, orphan=shard.batch_id
    )


def is_being_cancelled(shard: ShardRow) -> bool:
    """Whether a batch that runs was being cancelled when it was last polled."""
    return shard.remote.state is RemoteState.ENDING and "cancel" in (shard.remote.status or "").lower()


def _ended(step: Step, shard: ShardRow, batch: RemoteBatch, remote: RemoteProgress) -> ShardRow:
    if batch.state is RemoteState.FAILED and not batch.outputs:
        return _failed(step, shard, batch)
    enqueued_quota.admitted(step)
    _learn(step, shard, batch)
    return step.advance(shard, ShardState.ENDED, batch.word, ended_at=step.wall, remote=remote)


def _learn(step: Step, shard: ShardRow, batch: RemoteBatch) -> None:
    """Tell how long a batch took, and store it: who hears of it may read the store before it learns from
    it."""
    if shard.submitted_at is None:
        return
    now, cancelled_at = step.wall, shard.remote.cancel_sent_at
    ended = BatchEnded(
        at=step.now,
        job_id=step.job.id,
        shard_id=shard.id,
        batch_id=shard.batch_id,
        model=step.job.model,
        traceparent=step.job.policy.traceparent,
        kind=Kind(step.job.kind),
        size=shard.size,
        tokens=shard.tokens,
        state=batch.state.value,
        ended_at=now,
        seconds=max(0.0, now - shard.submitted_at),
        cancelling=None if cancelled_at is None else max(0.0, now - cancelled_at),
    )
    step.runtime.tell(ended)
    for name, row in summary_records.durations_of(ended):
        step.store.facts.observe_turnarounds(name, [row])


def _failed(step: Step, shard: ShardRow, batch: RemoteBatch) -> ShardRow:
    """The batch was refused at validation: nothing was run, nothing billed."""
    reason = batch.reason or "the provider failed the batch as a whole"
    error = batch.error or ProviderError(reason, kind=ErrorKind.CLIENT_ERROR, code=batch.code)
    # 1. lines of it are wrong, or it is above a limit
    if (sorted_out := refusals.sort_out(step, shard, error)) is not None:
        return sorted_out
    if refusals.repeats_a_prompt(step, shard, f"{reason} {error.message}"):
        reason = "the provider failed the batch as a whole (its text is left out, it repeats a prompt)"
        error = ProviderError(reason, kind=error.kind, code=error.code)
    # 2. the quota of enqueued tokens: the items go into new shards, later, and lose no try
    if batch.code in enqueued_quota.QUOTA_CODES:
        enqueued_quota.refused(step, shard, batch.error, batch.reason)
        return step.discard(shard, reason, tried=False)
    # 3. the account cannot be used: the same, when a person has resumed the job
    if error.kind in ACCOUNT_ERRORS:
        step.hold(error)
        return step.discard(shard, reason, tried=False)
    # 4. these items were not refused so often before: they go into a new shard
    refusals_allowed = step.limits.max_tries if error.kind is ErrorKind.SERVER_ERROR else REFUSALS
    if refusals.tries_of(step, shard) + 1 < refusals_allowed:
        return step.discard(shard, reason, tried=True)
    # 5. otherwise the refusal stands
    return step.give_up(shard, error, reason, tried=True)


def _vanished(step: Step, shard: ShardRow) -> ShardRow:
    """The provider does not know the batch."""
    # 1. it no longer keeps batches of that age: go on as with an ended one
    if collect.no_longer_kept(step, shard):
        return step.advance(shard, ShardState.ENDED, "the provider no longer keeps it", ended_at=step.wall)
    # 2. the batch is new, and may not be visible yet: poll again. How old it is tells the time of the create,
    # unless the process was suspended until the answer; so it is searched for a few times before its first
    # poll
    age = step.wall - (shard.submitted_at or step.wall)
    never_seen = shard.remote.state is None and shard.tries < _LOOKS
    if age < max(step.limits.visibility, step.limits.poll_interval) or never_seen:
        pause = min(step.limits.poll_interval, step.limits.visibility / _LOOKS)
        return step.reschedule(shard, pause, tries=shard.tries + 1)
    # 3. an incident, once; and where the job is cancelled, the items end, as nothing more will come
    step.incident(
        "batch_vanished",
        f"the provider no longer knows batch {shard.batch_id}; its requests are not sent again, as they may "
        "have been paid. If it is gone for good, cancel the job and submit its open requests anew",
        shard,
    )
    if step.job.cancel_requested:
        reason = "the provider no longer knows the batch, and the job is cancelled"
        return step.discard(shard, reason, tried=True, maybe_billed=True)
    # 4. otherwise poll rarely. Nothing is sent again, since the requests may have been paid
    return step.reschedule(
        shard, step.limits.longest_pause, note="the provider no longer knows the batch; see the incidents"
    )


def _progress(known: RemoteProgress, batch: RemoteBatch) -> RemoteProgress:
    return evolve(
        known,
        state=batch.state,
        status=batch.word,
        completed=batch.completed,
        failed=batch.failed,
        outputs=batch.outputs,
    )


def _running(step: Step) -> int:
    """Return the requests that the provider has run, of shards whose results are not stored yet."""
    shards = step.store.shards.of_job(step.job.id, states=[ShardState.SUBMITTED, ShardState.ENDED])
    return sum(shard.remote.done or 0 for shard in shards)
