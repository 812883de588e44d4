"""What is left of a shard that has ended: batches that exist besides, and what the provider keeps of it.

A shard that was given up (``DEAD``) is watched for its orphan, a batch of it that exists all the same. A
proven orphan is cancelled while it runs. Its answers, which are paid for, are used for items that are still
open, and an incident says what it cost. A shard that is ``SETTLED`` may have a second batch, see
:mod:`.listing`; it is examined once it has ended. What the provider keeps is deleted when the user's
retention is over, and never before.
"""

from __future__ import annotations

from contextlib import closing

from attrs import evolve

from smartbatch.errors import ErrorKind
from smartbatch.jobs.records import JobState
from smartbatch.jobs.shard_records import ShardRow
from smartbatch.jobs.steps import collect
from smartbatch.jobs.steps.context import Step
from smartbatch.jobs.steps.listing import is_watched, is_young, newer_than_intent
from smartbatch.jobs.steps.recover import tell_unreadable
from smartbatch.jobs.steps.result_lines import OddLines, ResultReader, pages_of, read_lines
from smartbatch.jobs.wiring import HOUR
from smartbatch.providers.batch_api import RemoteBatch

LOOKS = 4
"""How often a batch that could be ours is asked for before it counts as gone."""


def watch_dead_shard(step: Step, shard: ShardRow) -> ShardRow:
    """``DEAD``, not cleaned up."""
    # 1. an orphan was salvaged: what the provider keeps of it is deleted as of a batch that was settled
    if shard.candidate is not None and shard.candidate == shard.batch_id:
        return clean_up(step, shard)
    with step.provider_calls():
        # 2. a list showed a batch that is, or could be, an orphan: handle it
        if shard.candidate is not None:
            return _handle_orphan(step, shard, shard.candidate)
        # 3. an orphan may still appear: read the list, which notes orphans on their shards, this one included
        if is_watched(step, shard):
            newer_than_intent(step, shard)
            fresh = step.store.shards.get(shard.id) or shard
            if fresh.candidate is not None:
                return fresh
            return step.reschedule(fresh, step.limits.longest_pause, tries=0)
        # 4. none can appear any more: delete the input file, unless the fence did, and the local files; the
        # shard is cleaned up
        if shard.file_id is not None and shard.fenced_at is None:
            step.api.delete_file(shard.file_id, step.limits.call_timeout)
    collect.clear(step, shard)
    return step.reschedule(shard, 0.0, cleaned_up=True)


def _handle_orphan(step: Step, shard: ShardRow, batch_id: str) -> ShardRow:
    """Deal with a batch that is, or could be, the shard's."""
    batch = step.api.get(batch_id, step.limits.call_timeout)
    # 1. it is not there: read again a few times; then somebody deleted it, and it is remembered as foreign
    if batch is None:
        if shard.tries + 1 < LOOKS:
            return step.reschedule(shard, step.limits.poll_interval, tries=shard.tries + 1)
        return _discard(step, shard, batch_id)
    labels = step.api.abilities.labels
    if not batch.state.ended:
        # 2. it runs, and its label proves it: cancel it once, and wait for its end
        if labels and not shard.cancelled:
            step.api.cancel(batch.id, step.limits.call_timeout)
            return step.reschedule(shard, step.limits.poll_interval, cancelled=True)
        # 3. it runs although every batch should have ended by now, as one that is stuck in its cancel: it is
        # no longer looked at. An incident has said, or says, so, and what is reserved stays so
        if not is_young(step, shard):
            return _stop_looking(step, shard, batch)
        # 4. it runs, and has no label: it may be foreign, so it is left alone until its results tell
        return step.reschedule(shard, step.limits.poll_interval)
    gone = _are_gone(step, shard, batch)
    # 5. it is proven by its label, and the provider keeps its results no longer: an incident, and what is
    # reserved stays so
    if gone and labels:
        tell_unreadable(step, shard, batch)
        collect.clear(step, shard)
        return step.reschedule(shard, 0.0, cleaned_up=True, batch_id=batch.id)
    if not labels:
        nonces = set() if gone else collect.nonces_in(step, shard, batch)
        # 6. it has ended without a label, and no result can be read: read again a few times, then an incident
        if not nonces and (pause := step.reread_pause(shard.tries)) is not None:
            return step.reschedule(shard, pause, tries=shard.tries + 1)
        if not nonces:
            tell_unreadable(step, shard, batch)
        # 7. its results carry other ids: it is foreign
        if shard.nonce not in nonces:
            return _discard(step, shard, batch.id)
    # 8. it is the shard's: salvage it
    return _salvage_orphan(step, shard, batch)


def _stop_looking(step: Step, shard: ShardRow, batch: RemoteBatch) -> ShardRow:
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


def _discard(step: Step, shard: ShardRow, batch_id: str) -> ShardRow:
    """Remember that a batch is not the shard's, and go on watching."""
    return step.reschedule(
        shard, 0.0, candidate=None, tries=0, foreign_batches=(*shard.foreign_batches, batch_id)
    )


def _salvage_orphan(step: Step, shard: ShardRow, batch: RemoteBatch) -> ShardRow:
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


# -- shards that are settled ---------------------------------------------------------------------------------


def clean_up(step: Step, shard: ShardRow) -> ShardRow:
    """``SETTLED``, not cleaned up."""
    # 1. there may be a second batch of the shard: examine it first
    if shard.remote.suspected_duplicates:
        return _examine_suspect(step, shard)
    retention = step.policy.retention
    # 2. the user sets no retention: nothing is deleted, and the shard is cleaned up
    if retention is None:
        return step.reschedule(shard, 0.0, cleaned_up=True)
    # 3. the job is not done, or its retention is not over: later
    if step.job.state is not JobState.DONE:
        return step.reschedule(shard, step.limits.longest_pause)
    rest = (step.job.finished_at or step.wall) + retention - step.wall
    if rest > 0:
        return step.reschedule(shard, min(rest, step.limits.longest_pause))
    # 4. delete the outputs, the batch and the input at the provider
    with step.provider_calls():
        batch = None if shard.batch_id is None else step.api.get(shard.batch_id, step.limits.call_timeout)
        if batch is not None:
            for file_id in step.api.output_files(batch):
                step.api.delete_file(file_id, step.limits.call_timeout)
            step.api.delete_batch(batch.id, step.limits.call_timeout)
        if shard.file_id is not None:
            step.api.delete_file(shard.file_id, step.limits.call_timeout)
    return step.reschedule(shard, 0.0, cleaned_up=True)


def _examine_suspect(step: Step, shard: ShardRow) -> ShardRow:
    """``SETTLED``, with suspects: examine the first of them."""
    suspect, *others = shard.remote.suspected_duplicates
    twice = 0.0
    with step.provider_calls():
        batch = step.api.get(suspect, step.limits.call_timeout)
        # 1. it runs: later
        if batch is not None and not batch.state.ended:
            return step.reschedule(shard, step.limits.poll_interval, tries=0)
        gone = batch is None or _are_gone(step, shard, batch)
        nonces = set() if batch is None or gone else collect.nonces_in(step, shard, batch)
        pause = step.reread_pause(shard.tries)
        # 2. it has results of which none can be read: read again a few times, then nothing can be found out
        if not (nonces or gone) and batch is not None and batch.outputs and pause is not None:
            return step.reschedule(shard, pause, tries=shard.tries + 1)
        # 3. its results carry the shard's ids: it is a duplicate, and an incident says what it cost
        if batch is not None and shard.nonce in nonces:
            twice = _tell_cost(step, shard, batch)
    # 4. it, or its results, are gone, unreadable, or foreign: nothing more is to be done
    remote = evolve(shard.remote, suspected_duplicates=others)
    return step.reschedule(shard, 0.0, tries=0, remote=remote, reserved=shard.reserved + twice)


def _tell_cost(step: Step, shard: ShardRow, duplicate: RemoteBatch) -> float:
    """Say what a second batch cost, and return it, USD; what is not known counts nothing."""
    money = _cost_of(step, shard, duplicate)
    if money.billed:
        step.incident(
            "double_submission",
            f"batch {duplicate.id} was created a second time for the same requests: {money.billed:,} of "
            f"them were run by it, for {money.price}; something between here and the provider repeats "
            "requests",
            shard,
            money.usd,
        )
    return money.usd or 0.0


def _cost_of(step: Step, shard: ShardRow, batch: RemoteBatch) -> collect.ResultTotals:
    """Fetch and read the results of a second batch of a shard that is settled, only for what they cost."""
    paths = collect.download_whole(step, shard, batch)
    reader = ResultReader(step, shard.submitted_at)
    totals = collect.ResultTotals()
    for page in pages_of(read_lines(step, shard, paths, OddLines()), step.store.shards.measures(shard.id)):
        items = step.store.shards.items_at(shard.id, [line.position for line in page])
        totals.add(reader.results(items, page), frozenset())
    collect.clear(step, shard)
    return totals


def _are_gone(step: Step, shard: ShardRow, batch: RemoteBatch) -> bool:
    """Whether the provider refuses results of a second batch of a shard, or of its orphan, which it keeps no
    longer.

    Raises:
        Exception: whatever else the provider's adapter raised.
    """
    since = max(shard.submitted_at or 0.0, batch.created_at or 0.0)
    if step.wall < since + step.api.abilities.retention:
        return False
    try:
        for output in batch.outputs:
            with closing(collect.received(step, batch, output)) as pieces:
                next(pieces, None)
    except Exception as error:
        if step.api.classify(error).kind is ErrorKind.CLIENT_ERROR:
            return True
        raise
    return False
