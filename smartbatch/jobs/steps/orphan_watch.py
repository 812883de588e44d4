"""The orphan watch: batches that were given up and turn up all the same.

Every list that is read for any reason is looked through for nonces of shards that are ``DEAD``; where batches
have no labels, for new ones of a dead shard's size. What is proven to be a orphan is cancelled if it still
runs, its paid answers are used for items that are still open, and an incident says what it may have cost.
"""

from __future__ import annotations

from collections.abc import Iterable

from smartbatch.jobs.records import ShardRow, ShardState
from smartbatch.jobs.steps.context import StepContext
from smartbatch.providers.batch_api import RemoteBatch

__all__ = ["labelled", "notice", "watched"]


def watched(step: StepContext, shard: ShardRow) -> bool:
    """Whether a dead shard's batch could still turn up: its create may have been sent, not long ago."""
    if shard.uncertain_since is None or shard.died_at is None:
        return False
    return step.wall - shard.died_at < step.limits.orphan_watch


def notice(step: StepContext, batches: Iterable[RemoteBatch]) -> None:
    """Look for dead shards among ``batches`` and note on each what was found; their own step acts on it."""
    dead = [
        shard
        for shard in step.store.shards_in_scope(step.job.scope, states=[ShardState.DEAD])
        if shard.candidate is None and shard.job_id == step.job.id and watched(step, shard)
    ]
    if not dead:
        return
    batches = list(batches)
    claimed: set[str] | None = None
    for shard in dead:
        if step.api.abilities.labels:
            found = next((batch for batch in batches if labelled(batch, shard)), None)
        else:
            if claimed is None:
                claimed = step.store.claimed_batches(step.job.scope, [batch.id for batch in batches])
            found = next((batch for batch in batches if _alike(batch, shard, claimed)), None)
        if found is not None:
            step.later(shard, 0.0, candidate=found.id)


def labelled(batch: RemoteBatch, shard: ShardRow) -> bool:
    """Whether its label is the shard's, or where a server keeps no labels, its input: each is used once."""
    if batch.mark is not None:
        return batch.mark == shard.nonce
    return shard.file_id is not None and batch.file_id == shard.file_id


def _alike(batch: RemoteBatch, shard: ShardRow, claimed: set[str]) -> bool:
    return (
        batch.id not in claimed
        and batch.id not in shard.foreign
        and batch.id != shard.watermark
        and batch.total in (None, shard.size)
        and (batch.created_at is None or batch.created_at >= (shard.server_time or 0.0) - 1.0)
    )
