"""Following the provider's list of batches down to where a shard's create began."""

from __future__ import annotations

from smartbatch.jobs.records import ShardRow
from smartbatch.jobs.steps import orphan_watch
from smartbatch.jobs.steps.context import StepContext
from smartbatch.providers.batch_api import RemoteBatch

__all__ = ["newer_than_intent"]

SLACK = 600.0
"""Seconds before the intent, by the provider's own clock, at which the search may stop when the watermark
has vanished from the list: a batch cannot have been created before its intent."""


def newer_than_intent(step: StepContext, shard: ShardRow) -> list[RemoteBatch]:
    """Return every batch of the account that was created after the shard's watermark, newest first.

    The list is followed page by page: absence counts only when all of it was seen.

    Raises:
        Exception: whatever the provider's adapter raised; then nothing may be concluded.
    """
    found: list[RemoteBatch] = []
    after: str | None = None
    while True:
        page = step.api.page(after, step.limits.call_timeout)
        orphan_watch.notice(step, page.batches)
        for batch in page.batches:
            if batch.id == shard.watermark or _long_before(batch, shard):
                return found
            found.append(batch)
        after = page.next
        if after is None:
            return found


def _long_before(batch: RemoteBatch, shard: ShardRow) -> bool:
    if batch.created_at is None or shard.server_time is None:
        return False
    return batch.created_at < shard.server_time - SLACK
