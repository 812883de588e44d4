"""What becomes of a shard that is ``DEAD``: a ghost of it is watched for, and its remote file is tidied."""

from __future__ import annotations

from smartbatch.errors import StoreError
from smartbatch.jobs.records import ShardRow
from smartbatch.jobs.steps import collect
from smartbatch.jobs.steps.context import Work
from smartbatch.jobs.steps.listing import newer_than_intent
from smartbatch.jobs.steps.orphan_watch import watched
from smartbatch.jobs.steps.recover import READINGS, tell_unreadable
from smartbatch.providers.batch_api import RemoteBatch

__all__ = ["chase"]


def chase(work: Work, shard: ShardRow) -> ShardRow:
    """``DEAD``, not tidied: deal with a ghost that was noticed, or look for one, until 26 hours are over."""
    try:
        if shard.candidate is not None:
            return _face(work, shard, shard.candidate)
        if watched(work, shard):
            newer_than_intent(work, shard)  # notes a ghost on its shard, this one included
            fresh = work.store.shard(shard.id) or shard
            if fresh.candidate is not None:
                return fresh
            return work.later(fresh, work.limits.longest_pause, tries=0)
        if shard.file_id is not None and shard.fenced_at is None:
            work.api.delete_file(shard.file_id, work.limits.call_timeout)
    except StoreError:
        raise
    except Exception as error:
        return work.stumbled(shard, work.api.classify(error))
    collect.clear(work, shard)
    return work.later(shard, 0.0, tidied=True)


def _face(work: Work, shard: ShardRow, batch_id: str) -> ShardRow:
    """Stop a proven ghost if it runs, use what it has finished, and say what it cost."""
    batch = work.api.get(batch_id, work.limits.call_timeout)
    labelled = work.api.abilities.labels
    if batch is None and shard.tries + 1 < READINGS:
        return work.later(shard, work.limits.poll_interval, tries=shard.tries + 1)
    if batch is None:  # somebody deleted it; only strangers' are, before they were looked into
        return work.later(shard, 0.0, candidate=None, tries=0, foreign=(*shard.foreign, batch_id))
    if not batch.state.ended:
        if labelled and not shard.cancelled:  # without a label it may be a stranger's: it is left alone
            work.api.cancel(batch.id, work.limits.call_timeout)
            return work.later(shard, work.limits.poll_interval, cancelled=True)
        return work.later(shard, work.limits.poll_interval)
    if not labelled:
        nonces = collect.nonces_in(work, batch)
        if not nonces and shard.tries + 1 < READINGS:
            return work.later(shard, work.limits.reread_pause, tries=shard.tries + 1)
        if not nonces:
            tell_unreadable(work, shard, batch)
        if shard.nonce not in nonces:
            return work.later(shard, 0.0, candidate=None, tries=0, foreign=(*shard.foreign, batch.id))
    return _lay(work, shard, batch)


def _lay(work: Work, shard: ShardRow, batch: RemoteBatch) -> ShardRow:
    money = collect.salvage(work, shard, batch)
    if money.billed:
        known = "an unknown amount" if money.usd is None else f"{money.usd:.4f} USD"
        work.incident(
            "double_submission",
            f"batch {batch.id} was given up and came all the same: {money.billed:,} requests were run by it, "
            f"for {known}; {money.used:,} of its answers were still of use",
            shard,
            money.usd,
        )
    collect.clear(work, shard)
    most = shard.most if money.wasted is None else money.wasted  # the answers that are of use are booked
    return work.later(shard, 0.0, tidied=True, batch_id=batch.id, most=most)
