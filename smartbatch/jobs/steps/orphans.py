"""What becomes of a shard that is ``DEAD``: a orphan of it is watched for, and its remote file is tidied."""

from __future__ import annotations

from smartbatch.errors import StoreError
from smartbatch.jobs.records import ShardRow
from smartbatch.jobs.steps import collect
from smartbatch.jobs.steps.context import StepContext
from smartbatch.jobs.steps.listing import newer_than_intent
from smartbatch.jobs.steps.orphan_watch import watched
from smartbatch.jobs.steps.recover import READINGS, tell_unreadable
from smartbatch.providers.batch_api import RemoteBatch

__all__ = ["chase"]


def chase(step: StepContext, shard: ShardRow) -> ShardRow:
    """``DEAD``, not tidied: deal with a orphan that was noticed, or look for one, until 26 hours are over."""
    try:
        if shard.candidate is not None:
            return _face(step, shard, shard.candidate)
        if watched(step, shard):
            newer_than_intent(step, shard)  # notes a orphan on its shard, this one included
            fresh = step.store.shard(shard.id) or shard
            if fresh.candidate is not None:
                return fresh
            return step.later(fresh, step.limits.longest_pause, tries=0)
        if shard.file_id is not None and shard.fenced_at is None:
            step.api.delete_file(shard.file_id, step.limits.call_timeout)
    except StoreError:
        raise
    except Exception as error:
        return step.stumbled(shard, step.api.classify(error))
    collect.clear(step, shard)
    return step.later(shard, 0.0, tidied=True)


def _face(step: StepContext, shard: ShardRow, batch_id: str) -> ShardRow:
    """Stop a proven orphan if it runs, use what it has finished, and say what it cost."""
    batch = step.api.get(batch_id, step.limits.call_timeout)
    labelled = step.api.abilities.labels
    if batch is None and shard.tries + 1 < READINGS:
        return step.later(shard, step.limits.poll_interval, tries=shard.tries + 1)
    if batch is None:  # somebody deleted it; only strangers' are, before they were looked into
        return step.later(shard, 0.0, candidate=None, tries=0, foreign=(*shard.foreign, batch_id))
    if not batch.state.ended:
        if labelled and not shard.cancelled:  # without a label it may be a stranger's: it is left alone
            step.api.cancel(batch.id, step.limits.call_timeout)
            return step.later(shard, step.limits.poll_interval, cancelled=True)
        return step.later(shard, step.limits.poll_interval)
    if not labelled:
        nonces = collect.nonces_in(step, batch)
        if not nonces and shard.tries + 1 < READINGS:
            return step.later(shard, step.limits.reread_pause, tries=shard.tries + 1)
        if not nonces:
            tell_unreadable(step, shard, batch)
        if shard.nonce not in nonces:
            return step.later(shard, 0.0, candidate=None, tries=0, foreign=(*shard.foreign, batch.id))
    return _lay(step, shard, batch)


def _lay(step: StepContext, shard: ShardRow, batch: RemoteBatch) -> ShardRow:
    money = collect.salvage(step, shard, batch)
    if money.billed:
        known = "an unknown amount" if money.usd is None else f"{money.usd:.4f} USD"
        step.incident(
            "double_submission",
            f"batch {batch.id} was given up and came all the same: {money.billed:,} requests were run by it, "
            f"for {known}; {money.used:,} of its answers were still of use",
            shard,
            money.usd,
        )
    collect.clear(step, shard)
    most = shard.most if money.wasted is None else money.wasted  # the answers that are of use are booked
    return step.later(shard, 0.0, tidied=True, batch_id=batch.id, most=most)
