"""The provider's list of batches, and unexpected batches in it: orphans and duplicates.

An orphan is a batch whose shard was given up (``DEAD``). Every list that is read is searched for orphans, by
label or, if batches have no labels, by size. The step of the dead shard cancels a running orphan, uses its
paid answers for items that are still open, and records its cost as an incident.

A duplicate is a second batch of one shard, created when a proxy or a gateway repeats the create call.
Duplicates are searched for once after each create call, cancelled, and reported as incidents.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from functools import partial

from attrs import evolve, field, frozen

from smartbatch._words import duration
from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.jobs.shard_records import RemoteProgress, ShardRow, ShardState
from smartbatch.jobs.steps import collect
from smartbatch.jobs.steps.result_lines import OddLines, ResultReader, pages_of, read_lines
from smartbatch.jobs.steps.step import Step
from smartbatch.providers.batch_api import RemoteBatch

CLOCK_SLACK_SECONDS = 600.0
"""If the watermark is no longer listed, a search stops at batches created this long before the intent,
measured by the provider's clock.
"""
MAX_LOOKUPS = 4  # lookups of a missing candidate before it is considered deleted


# -- the list ------------------------------------------------------------------------------------------------


@frozen
class NewerBatches:
    """Batches of an account that were created after a shard's intent, newest first."""

    at: float | None  # Unix seconds by the provider's clock when the list was read; None if unknown
    batches: list[RemoteBatch] = field(factory=list)


def newer_than_intent(step: Step, shard: ShardRow) -> NewerBatches:
    """Return every batch of the account that was created after the shard's watermark.

    The list is read page by page, because a batch is absent only if no page contains it. A list whose order
    is unknown is read to its end.

    Raises:
        Exception: the provider's adapter failed, so nothing can be concluded.
    """
    page = step.api.page(None, step.limits.call_timeout)
    found = NewerBatches(at=page.server_time)
    while True:
        find_orphans(step, page.batches)
        for batch in page.batches:
            if batch.id != shard.watermark and not _long_before(batch, shard):
                found.batches.append(batch)
            elif step.api.abilities.newest_first:
                return found
        after = page.next
        if after is None:
            return found
        page = step.api.page(after, step.limits.call_timeout)


def _long_before(batch: RemoteBatch, shard: ShardRow) -> bool:
    if batch.created_at is None or shard.server_time is None:
        return False
    return batch.created_at < shard.server_time - CLOCK_SLACK_SECONDS


def find_orphans(step: Step, batches: Sequence[RemoteBatch]) -> None:
    """Search ``batches`` for orphans of the job's dead shards, and record them on the shards.

    Shards that have a candidate already or are no longer watched are skipped.
    """
    dead = [
        shard
        for shard in step.store.shards.in_scope(step.job.scope, states=[ShardState.DEAD])
        if shard.candidate is None and shard.job_id == step.job.id and is_watched(step, shard)
    ]
    if not dead:
        return
    if step.api.abilities.labels:
        is_orphan = has_label
    else:
        claimed = step.store.shards.claimed_batches(step.job.scope, [batch.id for batch in batches])
        is_orphan = partial(_could_be_orphan, claimed=claimed)
    for shard in dead:
        found = next((batch for batch in batches if is_orphan(batch, shard)), None)
        if found is not None:
            step.reschedule(shard, 0.0, candidate=found.id)


def is_watched(step: Step, shard: ShardRow) -> bool:
    """Whether a batch of a dead shard may still appear because its create call was sent recently."""
    return shard.uncertain_since is not None and died_recently(step, shard)


def died_recently(step: Step, shard: ShardRow) -> bool:
    """Whether a batch of a dead shard may still be running."""
    return shard.died_at is not None and step.wall - shard.died_at < step.limits.orphan_watch


def has_label(batch: RemoteBatch, shard: ShardRow) -> bool:
    """Whether a batch has the shard's label or, if a server drops labels, its input file."""
    if batch.mark is not None:
        return batch.mark == shard.nonce
    return shard.file_id is not None and batch.file_id == shard.file_id


def unclaimed(step: Step, shard: ShardRow, batches: Sequence[RemoteBatch]) -> list[RemoteBatch]:
    """Return unlabelled batches that could be the shard's: they have its size and belong to no other
    shard."""
    claimed = step.store.shards.claimed_batches(shard.scope, [batch.id for batch in batches])
    return [batch for batch in batches if _could_be(batch, shard, claimed)]


def _could_be(batch: RemoteBatch, shard: ShardRow, claimed: set[str]) -> bool:
    return (
        batch.id not in claimed
        and batch.id not in shard.foreign_batches
        and batch.total in (None, shard.size)
    )


def _could_be_orphan(batch: RemoteBatch, shard: ShardRow, claimed: set[str]) -> bool:
    return (
        _could_be(batch, shard, claimed)
        and batch.id != shard.watermark
        and (batch.created_at is None or batch.created_at >= (shard.server_time or 0.0) - 1.0)
    )


def report_unreadable(step: Step, shard: ShardRow, batch: RemoteBatch) -> None:
    step.incident(
        "maybe_billed",
        f"batch {batch.id} may belong to this job, but no line of its results can be read; {shard.size:,} "
        "requests are sent again and may be paid for twice",
        shard,
    )


# -- orphans of dead shards ----------------------------------------------------------------------------------


def watch_dead_shard(step: Step, shard: ShardRow) -> ShardRow:
    with step.provider_calls():
        # 1. a list contained a batch that is, or could be, an orphan: handle it
        if shard.candidate is not None:
            return _handle_orphan(step, shard, shard.candidate)
        # 2. an orphan may still appear: read the list, which records orphans on their shards, including this
        # one
        if is_watched(step, shard):
            newer_than_intent(step, shard)
            fresh = step.store.shards.get(shard.id) or shard
            if fresh.candidate is not None:
                return fresh
            return step.reschedule(fresh, step.limits.longest_pause, tries=0)
    # 3. an orphan can no longer appear: nothing is left to do
    step.clear_files(shard)
    return step.reschedule(shard, 0.0, cleaned_up=True)


def _handle_orphan(step: Step, shard: ShardRow, batch_id: str) -> ShardRow:
    batch = step.api.get(batch_id, step.limits.call_timeout)
    # 1. it is missing: look again a few times; if it is still missing, it was deleted, so record it as
    # foreign
    if batch is None:
        if shard.tries + 1 < MAX_LOOKUPS:
            return step.reschedule(shard, step.limits.poll_interval, tries=shard.tries + 1)
        return _mark_foreign(step, shard, batch_id)
    labels = step.api.abilities.labels
    if not batch.state.ended:
        # 2. it is running, and its label proves that it is the shard's: cancel it once, and wait until it has
        # ended
        if labels and step.api.abilities.cancels and not shard.cancelled:
            step.api.cancel(batch.id, step.limits.call_timeout)
            return step.reschedule(shard, step.limits.poll_interval, cancelled=True)
        # 3. it is running although every batch should have ended by now, for example because its cancel is
        # stuck: stop watching. An incident reports it, and its reservation stays
        if not died_recently(step, shard):
            return _stop_watching(step, shard, batch)
        # 4. it is running without a label: it may be foreign, so leave it alone until its results show
        # whether it belongs to the shard
        return step.reschedule(shard, step.limits.poll_interval)
    gone = _results_are_gone(step, shard, batch)
    # 5. its label proves that it is the shard's, but the provider no longer has its results: record an
    # incident and keep the reservation
    if gone and labels:
        report_unreadable(step, shard, batch)
        step.clear_files(shard)
        return step.reschedule(shard, 0.0, cleaned_up=True, batch_id=batch.id)
    if not labels:
        nonces = set() if gone else collect.nonces_in(step, shard, batch)
        # 6. it has ended without a label, and no result can be read: read again a few times, then record an
        # incident
        if not nonces and (pause := step.reread_pause(shard.tries)) is not None:
            return step.reschedule(shard, pause, tries=shard.tries + 1)
        if not nonces:
            report_unreadable(step, shard, batch)
        # 7. its results have other ids: it is foreign
        if shard.nonce not in nonces:
            return _mark_foreign(step, shard, batch.id)
    # 8. it is the shard's: salvage it
    return _salvage_orphan(step, shard, batch)


def _stop_watching(step: Step, shard: ShardRow, batch: RemoteBatch) -> ShardRow:
    if shard.remote.cancel_sent_at is None:  # an abandoned batch was reported when it was abandoned
        step.incident(
            "maybe_billed",
            f"batch {batch.id} may belong to this job and is still running "
            f"{duration(step.limits.orphan_watch)} after its {shard.size:,} requests were sent again. It "
            "is no longer watched, and the requests may be paid for twice. If it is yours, cancel it at the "
            "provider",
            shard,
        )
    step.clear_files(shard)
    return step.reschedule(shard, 0.0, cleaned_up=True, batch_id=batch.id if shard.cancelled else None)


def _mark_foreign(step: Step, shard: ShardRow, batch_id: str) -> ShardRow:
    return step.reschedule(
        shard, 0.0, candidate=None, tries=0, foreign_batches=(*shard.foreign_batches, batch_id)
    )


def _salvage_orphan(step: Step, shard: ShardRow, batch: RemoteBatch) -> ShardRow:
    totals = collect.store_results(step, shard, collect.download_whole(step, shard, batch))
    if totals.billed:
        step.incident(
            "double_submission",
            f"batch {batch.id} was written off but turned out to exist: it ran {totals.billed:,} requests "
            f"{totals.price}; {totals.billed - totals.unused:,} of its answers could still be used",
            shard,
            totals.wasted,
        )
    step.clear_files(shard)
    wasted = shard.reserved if totals.wasted is None else totals.wasted  # used answers are already charged
    remote = evolve(shard.remote, outputs=batch.outputs)
    return step.reschedule(shard, 0.0, cleaned_up=True, batch_id=batch.id, remote=remote, reserved=wasted)


# -- duplicates ----------------------------------------------------------------------------------------------


def search_duplicates_once(step: Step, shard: ShardRow, batch: RemoteBatch) -> RemoteProgress:
    """Search once for duplicates of a shard's batch, as soon as all must be listed or the batch has ended.

    If the list cannot be read, the search is repeated while the batch runs.
    """
    known = shard.remote
    age = step.wall - (shard.submitted_at or step.wall)
    if known.checked_for_duplicates or not (batch.state.ended or age >= step.limits.visibility):
        return known
    try:
        with step.provider_calls():
            newer = newer_than_intent(step, shard).batches
            others = [other for other in newer if other.id != batch.id]
            if step.api.abilities.labels:
                found = [other for other in others if has_label(other, shard)]
                cancel_duplicates(step, shard, found)
            else:
                found = unclaimed(step, shard, others)
    except ProviderError as error:
        step.log_ignored("list of batches", error)
        return known
    return evolve(known, checked_for_duplicates=True, suspected_duplicates=[other.id for other in found])


def cancel_duplicates(step: Step, shard: ShardRow, duplicates: Iterable[RemoteBatch]) -> None:
    """Cancel duplicates of a shard's batch, and record an incident for each.

    Raises:
        Exception: the provider's adapter failed.
    """
    for duplicate in duplicates:
        cancelled = " and was cancelled" if step.api.abilities.cancels else ""
        if cancelled and not duplicate.state.ended:
            step.api.cancel(duplicate.id, step.limits.call_timeout)
        step.incident(
            "double_submission",
            f"batch {duplicate.id} was a second batch for the same requests{cancelled}; something between "
            "this process and the provider repeats requests",
            shard,
        )


def examine_suspect(step: Step, shard: ShardRow) -> ShardRow:
    """Examine a batch that may be a duplicate of a settled shard's."""
    suspect, *others = shard.remote.suspected_duplicates
    twice = 0.0
    with step.provider_calls():
        batch = step.api.get(suspect, step.limits.call_timeout)
        # 1. it is running: wait
        if batch is not None and not batch.state.ended:
            return step.reschedule(shard, step.limits.poll_interval, tries=0)
        gone = batch is None or _results_are_gone(step, shard, batch)
        nonces = set() if batch is None or gone else collect.nonces_in(step, shard, batch)
        pause = step.reread_pause(shard.tries)
        # 2. it has results, but none can be read: read again a few times, then give up
        if not (nonces or gone) and batch is not None and batch.outputs and pause is not None:
            return step.reschedule(shard, pause, tries=shard.tries + 1)
        # 3. its results have the shard's ids: it is a duplicate, so report its cost as an incident
        if batch is not None and shard.nonce in nonces:
            twice = _report_cost(step, shard, batch)
    # 4. it is gone, unreadable, foreign, or reported: done with it
    remote = evolve(shard.remote, suspected_duplicates=others)
    reserved = shard.reserved + twice
    return step.reschedule(shard, 0.0, tries=0, remote=remote, reserved=reserved, cleaned_up=not others)


def _report_cost(step: Step, shard: ShardRow, duplicate: RemoteBatch) -> float:
    """Record the cost of a duplicate, read from its results; return it in USD (0 if unknown)."""
    paths = collect.download_whole(step, shard, duplicate)
    reader = ResultReader(step, shard.submitted_at)
    totals = collect.ResultTotals()
    for page in pages_of(read_lines(step, shard, paths, OddLines()), step.store.shards.measures(shard.id)):
        items = step.store.shards.items_at(shard.id, [line.position for line in page])
        totals.add_page(reader.results_of_page(items, page), frozenset())
    step.clear_files(shard)
    if totals.billed:
        step.incident(
            "double_submission",
            f"batch {duplicate.id} was a second batch for the same requests: it ran {totals.billed:,} of "
            f"them {totals.price}; something between this process and the provider repeats requests",
            shard,
            totals.usd,
        )
    return totals.usd or 0.0


def _results_are_gone(step: Step, shard: ShardRow, batch: RemoteBatch) -> bool:
    """Whether the provider has deleted a batch's results; any other failure of its adapter is raised."""
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
