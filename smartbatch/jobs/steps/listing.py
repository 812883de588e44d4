"""The provider's list of batches: what was created since a shard's intent, and what of it is not meant.

An orphan is a batch of a shard that was given up (``DEAD``) and that exists all the same. Every list that is
read for any reason is searched for orphans: by the label where batches have labels, by the size of a dead
shard where they have none. The step of the dead shard handles what was found.

A duplicate is a second batch of one shard. A shard's create is sent once, and nothing of ours repeats it; a
proxy or a gateway might: the answer to the first is lost on the way, the second is answered, and both run.
So the list is searched once after each create. A second batch with the shard's label is cancelled; without
labels one of its size is examined when it has ended. An incident says what it cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from attrs import evolve, field, frozen

from smartbatch.errors import ProviderError
from smartbatch.jobs.shard_records import RemoteProgress, ShardRow, ShardState
from smartbatch.jobs.steps.context import Step
from smartbatch.providers.batch_api import RemoteBatch

SLACK = 600.0
"""Seconds before the intent, by the provider's own clock, at which the search may stop when the watermark
has vanished from the list: a batch cannot have been created before its intent."""


@frozen
class NewerBatches:
    """Batches of an account that were created after a shard's intent, newest first.

    Attributes:
        at: the provider's clock when the list was read, Unix seconds, where it tells.
    """

    at: float | None
    batches: list[RemoteBatch] = field(factory=list)


def newer_than_intent(step: Step, shard: ShardRow) -> NewerBatches:
    """Return every batch of the account that was created after the shard's watermark.

    The list is read page by page: absence counts only when all of it was seen.

    Raises:
        Exception: whatever the provider's adapter raised; then nothing may be concluded.
    """
    page = step.api.page(None, step.limits.call_timeout)
    found = NewerBatches(at=page.server_time)
    while True:
        find_orphans(step, page.batches)
        for batch in page.batches:
            if batch.id == shard.watermark or _long_before(batch, shard):
                return found
            found.batches.append(batch)
        after = page.next
        if after is None:
            return found
        page = step.api.page(after, step.limits.call_timeout)


def find_orphans(step: Step, batches: Sequence[RemoteBatch]) -> None:
    """Search ``batches`` for those of the job's dead shards, and note what is found on each shard.

    A shard that has a candidate already, or is no longer watched, is left out.
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
    """Whether a batch of a dead shard may still appear: its create may have been sent, not long ago."""
    return shard.uncertain_since is not None and is_young(step, shard)


def is_young(step: Step, shard: ShardRow) -> bool:
    """Whether a batch of a dead shard may still run: it was given up not long ago."""
    return shard.died_at is not None and step.wall - shard.died_at < step.limits.orphan_watch


def has_label(batch: RemoteBatch, shard: ShardRow) -> bool:
    """Whether a batch has the shard's label, or, where a server keeps no labels, its input file."""
    if batch.mark is not None:
        return batch.mark == shard.nonce
    return shard.file_id is not None and batch.file_id == shard.file_id


def unclaimed(step: Step, shard: ShardRow, batches: Sequence[RemoteBatch]) -> list[RemoteBatch]:
    """Return the batches without a label that could be the shard's: of its size, and no other shard's."""
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


def _long_before(batch: RemoteBatch, shard: ShardRow) -> bool:
    if batch.created_at is None or shard.server_time is None:
        return False
    return batch.created_at < shard.server_time - SLACK


# -- duplicates ----------------------------------------------------------------------------------------------


def search_duplicates_once(step: Step, shard: ShardRow, batch: RemoteBatch) -> RemoteProgress:
    """Search once for duplicates of a shard's batch: when all are in the list by now, or it has ended.

    Returns:
        What the shard is to remember. A list that cannot be read delays nothing: it is tried again as long
        as the batch runs.
    """
    known = shard.remote
    age = step.wall - (shard.submitted_at or step.wall)
    if known.checked_for_duplicates or not (batch.state.ended or age >= step.limits.visibility):
        return known
    try:
        with step.provider_calls():
            found = _found(step, shard, batch)
    except ProviderError as error:
        step.ignored("list of batches", error)
        return known
    return evolve(known, checked_for_duplicates=True, suspected_duplicates=[other.id for other in found])


def _found(step: Step, shard: ShardRow, batch: RemoteBatch) -> list[RemoteBatch]:
    """Return the duplicates of a shard's batch, cancelled; without labels those that could be some."""
    others = [other for other in newer_than_intent(step, shard).batches if other.id != batch.id]
    if not step.api.abilities.labels:
        return unclaimed(step, shard, others)
    labelled = [other for other in others if has_label(other, shard)]
    cancel_duplicates(step, shard, labelled)
    return labelled


def cancel_duplicates(step: Step, shard: ShardRow, duplicates: Iterable[RemoteBatch]) -> None:
    """Cancel duplicates of a shard's batch, and write an incident for each.

    Raises:
        Exception: whatever the provider's adapter raised.
    """
    for duplicate in duplicates:
        if not duplicate.state.ended:
            step.api.cancel(duplicate.id, step.limits.call_timeout)
        step.incident(
            "double_submission",
            f"batch {duplicate.id} was created a second time for the same requests and cancelled; something "
            "between here and the provider repeats requests",
            shard,
        )
