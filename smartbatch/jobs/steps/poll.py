"""Poll a batch until it has ended, or cancel it."""

from __future__ import annotations

import math

from attrs import evolve

from smartbatch._words import duration
from smartbatch.core.routing.rescue import margin_of
from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.events import BatchEnded
from smartbatch.jobs import summary_records
from smartbatch.jobs.records import ACCOUNT_ERRORS, DAY, MINUTE, ItemState
from smartbatch.jobs.shard_records import RemoteProgress, ShardRow, ShardState
from smartbatch.jobs.steps import collect, orphans, refusals
from smartbatch.jobs.steps.step import Step, is_overdue
from smartbatch.providers.batch_api import RemoteBatch, RemoteState
from smartbatch.types import Kind

PROMISED_SECONDS = DAY
"""All three providers aim to finish a batch within this time. A job whose batch takes longer gets a note."""
_LATE_NOTE = (
    "still {word} after more than 24 h, and the job is waiting for it; cancel the job to keep the results so "
    "far (jobs with batch_fallback='individual' send the rest in real time after their timeout)"
)
OVERDUE_NOTE = "the batch takes too long"
ANSWERED_NOTE = "its requests were answered by a batch that was written off but turned out to exist"
STUCK_CANCEL_SECONDS = 15 * MINUTE  # at all three providers, a cancelled batch ends sooner
MIN_CANCEL_SECONDS = 10.0  # minimum time from the cancel of a batch until it is abandoned, even if late
CANCEL_POLL_SECONDS = 1.0  # from a cancel to the next poll; later pauses grow with the time since the cancel
MAX_REFUSED_BATCHES = 2
"""Number of batches that may be refused at validation, which costs nothing, before their items fail. It does
not apply to errors of the provider itself.
"""
EVENT_POLL_FACTOR = 4
"""While a webhook event is expected, a pause is this many times as long as the batch has been running, and at
most :data:`MAX_EVENT_POLL_SECONDS`, which is also the maximum delay by a lost event.
"""
MAX_EVENT_POLL_SECONDS = 15 * MINUTE
_UNREACHED = frozenset({ErrorKind.NETWORK_ERROR, ErrorKind.TIMEOUT})
_VISIBILITY_POLLS = 4  # minimum number of polls before a missing batch is reported


def poll_batch(step: Step, shard: ShardRow) -> ShardRow:
    batch_id = shard.batch_id
    assert batch_id is not None
    overdue = step.wall >= abandon_at(step, shard)
    # 1. the job was cancelled, the batch takes too long, or all of its requests were answered by an
    # orphan: cancel it
    if not (overdue or shard.cancelled) and (reason := _reason_to_cancel(step, shard)):
        return cancel(step, shard, reason, rescues=reason == OVERDUE_NOTE)
    try:
        with step.provider_calls():
            batch = step.api.get(batch_id, step.limits.call_timeout)
    except ProviderError as error:
        if not overdue or (step.policy.deadline is None and error.kind in _UNREACHED):
            raise
        return abandon(step, shard)
    # 2. it was cancelled long ago and is still not reported as ended: abandon it. A cancel that failed is
    # tried once more first. Without a deadline, wait for a provider that cannot be reached: real-time
    # requests would not reach it either
    if overdue and (batch is None or not batch.state.ended):
        if batch is not None and not shard.cancelled and step.policy.deadline is None:
            shard = cancel(step, shard, OVERDUE_NOTE)
            if shard.cancelled or shard.state is not ShardState.SUBMITTED:
                return shard
        return abandon(step, shard)
    # 3. the provider does not know it
    if batch is None:
        return _vanished(step, shard)
    refusals.publish_enqueued(step, shard, ended=batch.state.ended)
    remote = _progress(orphans.search_duplicates_once(step, shard, batch), batch)
    # 4. it has ended: fetch its results next, unless it failed as a whole
    if batch.state.ended:
        return _ended(step, shard, batch, remote)
    # 5. it is running: store its progress. After a cancel, poll sooner at first: most cancels take seconds
    late = step.wall - (shard.submitted_at or step.wall) > PROMISED_SECONDS
    note = _LATE_NOTE.format(word=batch.word) if late else None
    pause = seconds_to_poll(step, shard, batch_id, step.limits.poll_interval)
    if remote.cancel_sent_at is not None:
        pause = min(pause, max(CANCEL_POLL_SECONDS, step.wall - remote.cancel_sent_at))
    moved = step.reschedule(shard, pause, tries=0, note=note, remote=remote)
    if remote != shard.remote:
        step.runtime.publish_progress(step.job, running=_processed_not_stored(step))
    return moved


def seconds_to_poll(step: Step, shard: ShardRow, batch_id: str, usual: float) -> float:
    """Return the seconds until the next poll of a running batch; ``usual`` without webhooks."""
    # no webhook event is expected, or it has arrived, perhaps before the provider's API shows the end
    if not step.store.webhook_events.is_expected(shard.scope, batch_id, at=step.wall):
        return usual
    age = 0.0 if shard.submitted_at is None else max(0.0, step.wall - shard.submitted_at)
    # the batch must be cancelled when it has taken too long
    timed = step.falls_back and step.policy.deadline is None
    return seconds_to_event_poll(usual, age, step.timeout - age if timed else math.inf)


def seconds_to_event_poll(usual: float, age: float, left: float) -> float:
    """Return the seconds until the next poll of a running batch while an event is expected at its end.

    Args:
        usual: pause without webhooks in seconds, which is the minimum.
        age: seconds since the create call.
        left: seconds until the batch must be polled, because it takes too long; infinity for never.
    """
    return max(usual, min(EVENT_POLL_FACTOR * max(usual, age), MAX_EVENT_POLL_SECONDS, left))


def _progress(known: RemoteProgress, batch: RemoteBatch) -> RemoteProgress:
    return evolve(
        known,
        state=batch.state,
        status=batch.word,
        completed=batch.completed,
        failed=batch.failed,
        outputs=batch.outputs,
    )


def _processed_not_stored(step: Step) -> int:
    """Return the number of requests that were processed but whose results are not stored yet."""
    shards = step.store.shards.of_job(step.job.id, states=[ShardState.SUBMITTED, ShardState.ENDED])
    return sum(shard.remote.done or 0 for shard in shards)


# -- cancels -------------------------------------------------------------------------------------------------


def cancel(step: Step, shard: ShardRow, reason: str, *, rescues: bool = True) -> ShardRow:
    """Cancel a batch. Its completed requests are used; nothing is sent again before it has ended.

    The intent is stored first, so that after a crash the cancel is not attributed to someone else.

    Args:
        rescues: the batch's unanswered requests are to be sent in real time.
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
    pause = min(step.limits.poll_interval, CANCEL_POLL_SECONDS)
    return step.reschedule(shard, pause, tries=0, cancelled=True, note=reason, remote=remote)


def _not_cancelled(step: Step, shard: ShardRow, error: ProviderError) -> ShardRow:
    assert shard.batch_id is not None
    try:
        batch = step.api.get(shard.batch_id, step.limits.call_timeout)
    # 1. the batch cannot be polled either: try the cancel again later
    except Exception as raised:
        step.log_ignored("poll of a batch", raised)
        return step.retry_later(shard, error)
    # 2. the provider does not know the batch
    if batch is None and error.status == 404:
        return _vanished(step, shard)
    # 3. it has ended: continue with its results. Servers without a cancel end here as well
    if batch is not None and batch.state.ended:
        refusals.publish_enqueued(step, shard, ended=True)
        return _ended(
            step, shard, batch, _progress(orphans.search_duplicates_once(step, shard, batch), batch)
        )
    # 4. otherwise try the cancel again later
    return step.retry_later(shard, error)


def _reason_to_cancel(step: Step, shard: ShardRow) -> str | None:
    # a batch that cannot be cancelled is paid for in any case, so its answers are waited for
    if not step.api.abilities.cancels:
        return None
    if step.job.cancel_requested:
        return "the job was cancelled"
    if is_overdue(step, shard) and not is_being_cancelled(shard):
        return OVERDUE_NOTE
    if step.store.shards.is_answered(shard):
        return ANSWERED_NOTE
    return None


def abandon_at(step: Step, shard: ShardRow) -> float:
    """Return the Unix time at which a cancelled batch is abandoned (infinity if never)."""
    cancelled_at, deadline = shard.remote.cancel_sent_at, step.policy.deadline
    waits = shard.state is ShardState.SUBMITTED and step.falls_back and not step.job.cancel_requested
    if cancelled_at is None or not waits:
        return math.inf
    if deadline is None:
        return cancelled_at + STUCK_CANCEL_SECONDS
    throughput = step.runtime.wiring.speed(step.job).throughput
    needs = throughput.finish(shard.size - (shard.remote.completed or 0), 0.5)
    return max(
        cancelled_at + MIN_CANCEL_SECONDS, deadline - needs - margin_of(deadline - step.job.created_at)
    )


def abandon(step: Step, shard: ShardRow) -> ShardRow:
    """Send the requests of a cancelled batch in real time although it has not ended.

    The batch is then handled like any orphan: its cost is recorded, but its results replace no others.
    """
    cancelled_at = shard.remote.cancel_sent_at
    waited = 0.0 if cancelled_at is None else step.wall - cancelled_at
    detail = (
        f"batch {shard.batch_id} has not ended {duration(waited)} after it was cancelled: its {shard.size:,} "
        "requests are sent in real time and may be paid for twice"
    )
    step.incident("maybe_billed", detail, shard)
    reason = "cancelled long ago but not ended; its requests are sent in real time"
    return step.discard(
        shard, reason, to=ItemState.REALTIME, tried=True, maybe_billed=True, orphan=shard.batch_id
    )


def is_being_cancelled(shard: ShardRow) -> bool:
    return shard.remote.state is RemoteState.ENDING and "cancel" in (shard.remote.status or "").lower()


# -- batches that have ended or vanished ---------------------------------------------------------------------


def _ended(step: Step, shard: ShardRow, batch: RemoteBatch, remote: RemoteProgress) -> ShardRow:
    if batch.state is RemoteState.FAILED and not batch.outputs:
        return _failed(step, shard, batch)
    refusals.quota_admitted(step)
    _record_turnaround(step, shard, batch)
    return step.advance(shard, ShardState.ENDED, batch.word, ended_at=step.wall, remote=remote)


def _record_turnaround(step: Step, shard: ShardRow, batch: RemoteBatch) -> None:
    # publish the event before storing the duration: a listener that reads the store while it handles the
    # event would otherwise count the batch twice
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
    step.runtime.publish_event(ended)
    for name, row in summary_records.durations_of(ended):
        step.store.facts.observe_turnarounds(name, [row])


def _failed(step: Step, shard: ShardRow, batch: RemoteBatch) -> ShardRow:
    """Handle a batch that was refused at validation: nothing was processed or billed."""
    reason = batch.reason or "the provider failed the batch as a whole"
    error = batch.error or ProviderError(reason, kind=ErrorKind.CLIENT_ERROR, code=batch.code)
    # 1. some of its lines are wrong, or it exceeds a limit
    if (handled := refusals.handle_known_refusal(step, shard, error)) is not None:
        return handled
    if refusals.repeats_a_prompt(step, shard, f"{reason} {error.message}"):
        reason = "the provider failed the batch as a whole (text omitted because it repeats a prompt)"
        error = ProviderError(reason, kind=error.kind, code=error.code)
    # 2. the quota of enqueued tokens was exceeded: the items go into new shards later, and this try does not
    # count
    if batch.code in refusals.QUOTA_CODES:
        refusals.quota_refused(step, shard, batch.error, batch.reason)
        return step.discard(shard, reason, tried=False)
    # 3. the account cannot be used: the items go into new shards once a person has resumed the job
    if error.kind in ACCOUNT_ERRORS:
        step.hold(error)
        return step.discard(shard, reason, tried=False)
    # 4. the items have not been refused too often: they go into a new shard
    allowed = step.limits.max_tries if error.kind is ErrorKind.SERVER_ERROR else MAX_REFUSED_BATCHES
    if refusals.max_tries_of(step, shard) + 1 < allowed:
        return step.discard(shard, reason, tried=True)
    # 5. otherwise the refusal is final
    return step.give_up(shard, error, reason, tried=True)


def _vanished(step: Step, shard: ShardRow) -> ShardRow:
    # 1. the provider deletes batches this old: treat it as ended
    if collect.results_may_be_deleted(step, shard):
        return step.advance(
            shard, ShardState.ENDED, "the provider no longer stores the batch", ended_at=step.wall
        )
    # 2. the batch is new and may not be visible yet: poll again, at least a few times, since the process
    # may have been suspended after the create call
    age = step.wall - (shard.submitted_at or step.wall)
    never_seen = shard.remote.state is None and shard.tries < _VISIBILITY_POLLS
    if age < max(step.limits.visibility, step.limits.poll_interval) or never_seen:
        pause = min(step.limits.poll_interval, step.limits.visibility / _VISIBILITY_POLLS)
        return step.reschedule(shard, pause, tries=shard.tries + 1)
    # 3. record an incident once; if the job is cancelled, end the items, since nothing more will arrive
    step.incident(
        "batch_vanished",
        f"the provider no longer knows batch {shard.batch_id}; its requests are not sent again because they "
        "may have been billed. If the batch is gone for good, cancel the job and submit its open requests "
        "again",
        shard,
    )
    if step.job.cancel_requested:
        reason = "the provider no longer knows the batch, and the job is cancelled"
        return step.discard(shard, reason, tried=True, maybe_billed=True)
    # 4. otherwise poll rarely. Nothing is sent again, since the requests may have been billed
    return step.reschedule(
        shard, step.limits.longest_pause, note="the provider no longer knows the batch; see the incidents"
    )
