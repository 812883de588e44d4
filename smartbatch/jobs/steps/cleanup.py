"""Remote files of a settled shard go when the user's retention is over; never before its content is here."""

from __future__ import annotations

from smartbatch.jobs.records import JobState, ShardRow
from smartbatch.jobs.steps import duplicates
from smartbatch.jobs.steps.context import Work

__all__ = ["tidy"]


def tidy(work: Work, shard: ShardRow) -> ShardRow:
    """``SETTLED``, not tidied: delete input, outputs and what else the provider keeps of the batch."""
    if shard.remote.get(duplicates.SUSPECTS):
        return duplicates.examine(work, shard)
    retention = work.policy("retention", None)
    if retention is None:
        return work.later(shard, 0.0, tidied=True)
    if work.job.state is not JobState.DONE:
        return work.later(shard, work.limits.longest_pause)
    rest = (work.job.finished_at or work.wall) + float(retention) - work.wall
    if rest > 0:
        return work.later(shard, min(rest, work.limits.longest_pause))
    try:
        batch = None if shard.batch_id is None else work.api.get(shard.batch_id, work.limits.call_timeout)
        if batch is not None:
            for file_id in work.api.output_files(batch):
                work.api.delete_file(file_id, work.limits.call_timeout)
            work.api.delete_batch(batch.id, work.limits.call_timeout)
        if shard.file_id is not None:
            work.api.delete_file(shard.file_id, work.limits.call_timeout)
    except Exception as error:
        return work.stumbled(shard, work.api.classify(error))
    return work.later(shard, 0.0, tidied=True)
