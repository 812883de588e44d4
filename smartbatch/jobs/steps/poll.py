"""A batch that was created: look at it until it has ended, and cancel it when it must not go on."""

from __future__ import annotations

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.jobs import enqueued_quota, turnaround_log
from smartbatch.jobs.payload import encode_error
from smartbatch.jobs.records import ItemState, ShardRow, ShardState
from smartbatch.jobs.steps import collect, create, duplicates
from smartbatch.jobs.steps.context import HOUR, Work, report
from smartbatch.jobs.steps.redaction import repeats
from smartbatch.providers.batch_api import RemoteBatch, RemoteState

__all__ = ["cancel", "poll"]

PROMISE = 24 * HOUR
"""What all three providers aim at; a batch that takes longer is worth a word."""
_LATE = (
    "still {word} after more than 24 hours, and waited for; cancel the job to keep what is done and end it "
    "(jobs with fallback='individual' send the rest in real time after their time-out)"
)
REFUSALS = 2
"""How often a batch that was refused at validation is made anew before its items fail: it costs nothing, and
it will hardly go otherwise."""


def poll(work: Work, shard: ShardRow) -> ShardRow:
    """``SUBMITTED``: ask how it stands."""
    assert shard.batch_id is not None
    if not shard.cancelled and (reason := _reason_to_cancel(work, shard)):
        return cancel(work, shard, reason)
    try:
        batch = work.api.get(shard.batch_id, work.limits.call_timeout)
    except Exception as error:
        return work.stumbled(shard, work.api.classify(error))
    if batch is None:
        return _vanished(work, shard)
    audited = duplicates.audit(work, shard, batch)
    if batch.state.ended:
        return _ended(work, shard, batch, audited)
    late = work.wall - (shard.submitted_at or work.wall) > PROMISE
    note = _LATE.format(word=batch.word) if late else None
    told = _told(shard, batch) | audited
    moved = work.later(shard, work.limits.poll_interval, tries=0, note=note, remote=told)
    if told != shard.remote:
        report(work.store, work.job, work.tell, work.clock, running=_running(work))
    return moved


def cancel(work: Work, shard: ShardRow, reason: str) -> ShardRow:
    """Ask the provider to cancel it. What has finished is kept; nothing replaces it before it has ended."""
    assert shard.batch_id is not None
    try:
        work.api.cancel(shard.batch_id, work.limits.call_timeout)
    except Exception as error:
        found = work.api.classify(error)
        if found.status == 404 and _is_unknown(work, shard.batch_id):
            return _vanished(work, shard)
        return work.stumbled(shard, found)
    remote = {**shard.remote, turnaround_log.CANCELLED_AT: work.wall}
    pause = min(work.limits.poll_interval, 1.0)
    return work.later(shard, pause, tries=0, cancelled=True, note=reason, remote=remote)


def _is_unknown(work: Work, batch_id: str) -> bool:
    try:
        return work.api.get(batch_id, work.limits.call_timeout) is None
    except Exception:  # then it is not certain
        return False


def _reason_to_cancel(work: Work, shard: ShardRow) -> str | None:
    if work.job.cancel_requested:
        return "the job was cancelled"
    age = work.wall - (shard.submitted_at or work.wall)
    timed = work.falls_back and work.policy("deadline", None) is None  # a deadline has its own rescue
    if timed and age >= work.policy("timeout", work.limits.timeout):
        return "it takes too long; what it has not run goes on in real time"
    return None


def _ended(work: Work, shard: ShardRow, batch: RemoteBatch, audited: dict[str, object]) -> ShardRow:
    if batch.state is RemoteState.FAILED and not batch.outputs:
        return _failed(work, shard, batch)
    enqueued_quota.admitted(work)
    turnaround_log.learn(work, shard, batch)
    told = _told(shard, batch) | audited
    return work.move(shard, ShardState.ENDED, batch.word, ended_at=work.wall, remote=told)


def _failed(work: Work, shard: ShardRow, batch: RemoteBatch) -> ShardRow:
    """Refused at validation, as a whole: nothing was run, nothing billed."""
    reason = batch.reason or "the provider failed the batch as a whole"
    error = batch.error or ProviderError(reason, kind=ErrorKind.CLIENT_ERROR, code=batch.code)
    if repeats(work, shard, f"{reason} {error.message}"):
        reason = "the provider failed the batch as a whole (its text is left out, it repeats a prompt)"
        error = ProviderError(reason, kind=error.kind, code=error.code)
    if enqueued_quota.is_quota(batch.code):
        enqueued_quota.refused(work, shard, batch.error, batch.reason)
        return _again(work, shard, reason, tried=False)
    if error.kind in (ErrorKind.NO_MONEY, ErrorKind.AUTH_ERROR):
        work.hold(error)
        return _again(work, shard, reason, tried=False)
    if create.tries_of(work, shard) + 1 < REFUSALS:
        return _again(work, shard, reason, tried=True)
    if work.falls_back:
        return _again(work, shard, reason, tried=True, to=ItemState.DIRECT)
    now = work.wall
    dead = work.store.fail_shard(work.grip, shard, encode_error(error), note=reason, at=now)
    work.told(shard, dead, reason)
    report(work.store, work.job, work.tell, work.clock)
    return dead


def _again(
    work: Work,
    shard: ShardRow,
    reason: str,
    *,
    tried: bool,
    to: ItemState = ItemState.OPEN,
    maybe_billed: bool = False,
) -> ShardRow:
    dead = work.store.bury(
        work.grip, shard, items=to, tried=tried, note=reason, at=work.wall, maybe_billed=maybe_billed
    )
    work.told(shard, dead, reason)
    return dead


def _vanished(work: Work, shard: ShardRow) -> ShardRow:
    """Just after the create it may not be seen yet; later, something is wrong that guessing makes worse."""
    if collect.no_longer_kept(work, shard):
        return work.move(shard, ShardState.ENDED, "the provider no longer keeps it", ended_at=work.wall)
    age = work.wall - (shard.submitted_at or work.wall)
    if age < max(work.limits.visibility, work.limits.poll_interval):
        return work.later(shard, min(work.limits.poll_interval, work.limits.visibility / 4))
    work.incident(
        "batch_vanished",
        f"the provider no longer knows batch {shard.batch_id}; its requests are not sent again, as they may "
        "have been paid. If it is gone for good, cancel the job and submit its open requests anew",
        shard,
    )
    if work.job.cancel_requested:  # nothing more is to be had of it, and nothing is sent again
        reason = "the provider no longer knows the batch, and the job is cancelled"
        return _again(work, shard, reason, tried=True, maybe_billed=True)
    return work.later(
        shard, work.limits.longest_pause, note="the provider no longer knows the batch; see the incidents"
    )


def _told(shard: ShardRow, batch: RemoteBatch) -> dict[str, object]:
    known = {key: shard.remote[key] for key in (turnaround_log.CANCELLED_AT,) if key in shard.remote}
    return known | {
        "word": batch.word,
        "state": batch.state.value,
        "completed": batch.completed,
        "failed": batch.failed,
        "outputs": list(batch.outputs),
    }


def _running(work: Work) -> int:
    """Items the provider says it has done, of shards whose results are not stored yet."""
    shards = work.store.shards(work.job.id, states=[ShardState.SUBMITTED, ShardState.ENDED])
    return sum(
        int(shard.remote.get("completed") or 0) + int(shard.remote.get("failed") or 0) for shard in shards
    )
