"""The provider's list of batches: what was created since a shard's intent, and which of it are orphans.

An orphan is a batch of a shard that was given up (``DEAD``) and that exists all the same. Every list that is
read for any reason is searched for orphans: by the label where batches have labels, by the size of a dead
shard where they have none. The step of the dead shard handles what was found.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from attrs import field, frozen

from smartbatch.jobs.records import ShardRow, ShardState
from smartbatch.jobs.steps.context import StepContext
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


def newer_than_intent(step: StepContext, shard: ShardRow) -> NewerBatches:
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


def find_orphans(step: StepContext, batches: Sequence[RemoteBatch]) -> None:
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


def is_watched(step: StepContext, shard: ShardRow) -> bool:
    """Whether a batch of a dead shard may still appear: its create may have been sent, not long ago."""
    return shard.uncertain_since is not None and is_young(step, shard)


def is_young(step: StepContext, shard: ShardRow) -> bool:
    """Whether a batch of a dead shard may still run: it was given up not long ago."""
    return shard.died_at is not None and step.wall - shard.died_at < step.limits.orphan_watch


def has_label(batch: RemoteBatch, shard: ShardRow) -> bool:
    """Whether a batch has the shard's label, or, where a server keeps no labels, its input file."""
    if batch.mark is not None:
        return batch.mark == shard.nonce
    return shard.file_id is not None and batch.file_id == shard.file_id


def unclaimed(step: StepContext, shard: ShardRow, batches: Sequence[RemoteBatch]) -> list[RemoteBatch]:
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
