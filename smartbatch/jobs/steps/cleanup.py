"""Remote files of a settled shard go when the user's retention is over; never before its content is here."""

from __future__ import annotations

from smartbatch.jobs.records import JobState, ShardRow
from smartbatch.jobs.steps import duplicates
from smartbatch.jobs.steps.context import StepContext

__all__ = ["tidy"]


def tidy(step: StepContext, shard: ShardRow) -> ShardRow:
    """``SETTLED``, not tidied: delete input, outputs and what else the provider keeps of the batch."""
    if shard.remote.suspected_duplicates:
        return duplicates.examine(step, shard)
    retention = step.policy.retention
    if retention is None:
        return step.later(shard, 0.0, cleaned_up=True)
    if step.job.state is not JobState.DONE:
        return step.later(shard, step.limits.longest_pause)
    rest = (step.job.finished_at or step.wall) + retention - step.wall
    if rest > 0:
        return step.later(shard, min(rest, step.limits.longest_pause))
    try:
        batch = None if shard.batch_id is None else step.api.get(shard.batch_id, step.limits.call_timeout)
        if batch is not None:
            for file_id in step.api.output_files(batch):
                step.api.delete_file(file_id, step.limits.call_timeout)
            step.api.delete_batch(batch.id, step.limits.call_timeout)
        if shard.file_id is not None:
            step.api.delete_file(shard.file_id, step.limits.call_timeout)
    except Exception as error:
        return step.stumbled(shard, step.api.classify(error))
    return step.later(shard, 0.0, cleaned_up=True)
