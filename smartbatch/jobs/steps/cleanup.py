"""The remote files of a settled shard are deleted when the user's retention is over, and never before."""

from __future__ import annotations

from smartbatch.jobs.records import JobState, ShardRow
from smartbatch.jobs.steps import duplicates
from smartbatch.jobs.steps.context import StepContext

__all__ = ["clean_up"]


def clean_up(step: StepContext, shard: ShardRow) -> ShardRow:
    """``SETTLED``, not cleaned up. The cases, in order:

    1. There may be a second batch of the shard: examine it first.
    2. The user sets no retention: nothing is deleted, and the shard is cleaned up.
    3. The job is not done, or its retention is not over: later.
    4. Delete the outputs, the batch and the input at the provider.
    """
    if shard.remote.suspected_duplicates:
        return duplicates.examine_suspect(step, shard)
    retention = step.policy.retention
    if retention is None:
        return step.reschedule(shard, 0.0, cleaned_up=True)
    if step.job.state is not JobState.DONE:
        return step.reschedule(shard, step.limits.longest_pause)
    rest = (step.job.finished_at or step.wall) + retention - step.wall
    if rest > 0:
        return step.reschedule(shard, min(rest, step.limits.longest_pause))
    try:
        batch = None if shard.batch_id is None else step.api.get(shard.batch_id, step.limits.call_timeout)
        if batch is not None:
            for file_id in step.api.output_files(batch):
                step.api.delete_file(file_id, step.limits.call_timeout)
            step.api.delete_batch(batch.id, step.limits.call_timeout)
        if shard.file_id is not None:
            step.api.delete_file(shard.file_id, step.limits.call_timeout)
    except Exception as error:
        return step.retry_later(shard, step.api.classify(error))
    return step.reschedule(shard, 0.0, cleaned_up=True)
