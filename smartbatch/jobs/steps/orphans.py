"""A shard that is ``DEAD``: its orphan is watched for and handled, and its remote file is deleted.

A proven orphan is cancelled while it runs. Its answers, which are paid for, are used for items that are still
open, and an incident says what it cost.
"""

from __future__ import annotations

from smartbatch.jobs.records import ShardRow
from smartbatch.jobs.runtime import HOUR
from smartbatch.jobs.steps import collect, settle
from smartbatch.jobs.steps.context import StepContext
from smartbatch.jobs.steps.listing import is_watched, is_young, newer_than_intent
from smartbatch.jobs.steps.recover import tell_unreadable
from smartbatch.providers.batch_api import RemoteBatch

LOOKS = 4
"""How often a batch that could be ours is asked for before it counts as gone."""


def watch_dead_shard(step: StepContext, shard: ShardRow) -> ShardRow:
    """``DEAD``, not cleaned up. The cases, in order:

    1. An orphan was salvaged: what the provider keeps of it is deleted as of a batch that was settled.
    2. A list showed a batch that is, or could be, an orphan: handle it.
    3. An orphan may still appear: read the list, which notes orphans on their shards, this one included.
    4. None can appear any more: delete the input file, unless the fence did, and the local files; the shard
       is cleaned up.
    """
    if shard.candidate is not None and shard.candidate == shard.batch_id:
        return settle.clean_up(step, shard)
    with step.provider_calls():
        if shard.candidate is not None:
            return _handle_orphan(step, shard, shard.candidate)
        if is_watched(step, shard):
            newer_than_intent(step, shard)
            fresh = step.store.shards.get(shard.id) or shard
            if fresh.candidate is not None:
                return fresh
            return step.reschedule(fresh, step.limits.longest_pause, tries=0)
        if shard.file_id is not None and shard.fenced_at is None:
            step.api.delete_file(shard.file_id, step.limits.call_timeout)
    collect.clear(step, shard)
    return step.reschedule(shard, 0.0, cleaned_up=True)


def _handle_orphan(step: StepContext, shard: ShardRow, batch_id: str) -> ShardRow:
    """Deal with a batch that is, or could be, the shard's. The cases, in order:

    1. It is not there: read again a few times; then somebody deleted it, and it is remembered as foreign.
    2. It runs, and its label proves it: cancel it once, and wait for its end.
    3. It runs although every batch should have ended by now, as one that is stuck in its cancel: it is no
       longer looked at. An incident has said, or says, so, and what is reserved stays so.
    4. It runs, and has no label: it may be foreign, so it is left alone until its results tell.
    5. It is proven by its label, and the provider keeps its results no longer: an incident, and what is
       reserved stays so.
    6. It has ended without a label, and no result can be read: read again a few times, then an incident.
    7. Its results carry other ids: it is foreign.
    8. It is the shard's: salvage it.
    """
    batch = step.api.get(batch_id, step.limits.call_timeout)
    if batch is None:
        if shard.tries + 1 < LOOKS:
            return step.reschedule(shard, step.limits.poll_interval, tries=shard.tries + 1)
        return _discard(step, shard, batch_id)
    labels = step.api.abilities.labels
    if not batch.state.ended:
        if labels and not shard.cancelled:
            step.api.cancel(batch.id, step.limits.call_timeout)
            return step.reschedule(shard, step.limits.poll_interval, cancelled=True)
        if not is_young(step, shard):
            return _stop_looking(step, shard, batch)
        return step.reschedule(shard, step.limits.poll_interval)
    gone = collect.are_gone(step, shard, batch)
    if gone and labels:
        tell_unreadable(step, shard, batch)
        collect.clear(step, shard)
        return step.reschedule(shard, 0.0, cleaned_up=True, batch_id=batch.id)
    if not labels:
        nonces = set() if gone else collect.nonces_in(step, shard, batch)
        if not nonces and (pause := step.reread_pause(shard.tries)) is not None:
            return step.reschedule(shard, pause, tries=shard.tries + 1)
        if not nonces:
            tell_unreadable(step, shard, batch)
        if shard.nonce not in nonces:
            return _discard(step, shard, batch.id)
    return _salvage_orphan(step, shard, batch)


def _stop_looking(step: StepContext, shard: ShardRow, batch: RemoteBatch) -> ShardRow:
    if shard.remote.cancel_sent_at is None:  # that of a batch that was left behind was told when it was
        step.incident(
            "maybe_billed",
            f"batch {batch.id} may be this job's, and still runs {step.limits.orphan_watch / HOUR:,.0f} "
            f"hours after its {shard.size:,} requests were sent again: it is no longer looked at, and they "
            "may be paid twice. Cancel it at the provider if it is yours",
            shard,
        )
    collect.clear(step, shard)
    return step.reschedule(shard, 0.0, cleaned_up=True, batch_id=batch.id if shard.cancelled else None)


def _discard(step: StepContext, shard: ShardRow, batch_id: str) -> ShardRow:
    """Remember that a batch is not the shard's, and go on watching."""
    return step.reschedule(
        shard, 0.0, candidate=None, tries=0, foreign_batches=(*shard.foreign_batches, batch_id)
    )


def _salvage_orphan(step: StepContext, shard: ShardRow, batch: RemoteBatch) -> ShardRow:
    """Use the orphan's answers for items that are still open: they are paid for. Say what it cost."""
    totals = collect.store_results(step, shard, collect.download_whole(step, shard, batch))
    if totals.billed:
        step.incident(
            "double_submission",
            f"batch {batch.id} was given up, but exists: {totals.billed:,} requests were run by it, for "
            f"{totals.price}; {totals.billed - totals.unused:,} of its answers were still of use",
            shard,
            totals.wasted,
        )
    collect.clear(step, shard)
    wasted = shard.reserved if totals.wasted is None else totals.wasted  # used answers are charged already
    cleaned_up = step.policy.retention is None
    return step.reschedule(shard, 0.0, cleaned_up=cleaned_up, batch_id=batch.id, reserved=wasted)
