"""One step of one job: what is due, which function does it, and when the next step is due.

There is no thread here, and no waiting. Each call of :func:`run_step` does at most one step of one shard: a
remote call or two, and the commits around them. After a crash at any point the next process reads the states
and goes on; nothing is kept in memory.
"""

from __future__ import annotations

from smartbatch.errors import RequestCancelled
from smartbatch.jobs.payload import encode_error
from smartbatch.jobs.records import ItemState, JobLease, JobRow, JobState
from smartbatch.jobs.steps.context import Step, StepResult, has_realtime
from smartbatch.jobs.wiring import JobRuntime


def run_step(runtime: JobRuntime, lease: JobLease) -> StepResult:
    """Run the step of a job that is due first, if one is due.

    One thread at a time may run a job's step; different jobs may run concurrently.

    Raises:
        LeaseLost: another process owns the job now.
        StoreError: the store cannot be used at the moment.
    """
    job = runtime.store.jobs.get(lease.job_id)
    # 1. the job was deleted: finished
    if job is None:
        return StepResult(None, finished=True)
    # 2. it is cancelled: items that were not sent end now
    if job.cancel_requested and job.state is not JobState.DONE:
        body = encode_error(RequestCancelled("the job was cancelled before this request was sent"))
        if runtime.store.items.drop_unsent(lease, body, at=runtime.wall()):
            job = runtime.tell_progress(job)
    # 3. this process lacks its account, or that has no Batch API: only what needs no provider is done; and
    # nothing is due where nothing goes by batch, now or earlier
    provider = runtime.provider_of(job)
    api = None if provider is None else provider.batches()
    if api is None or not _uses_batches(runtime, job):
        return StepResult(None, has_realtime(runtime, job), finished=job.state is JobState.DONE)
    # 4. otherwise its batches have their step
    from smartbatch.jobs.steps.batch_step import run_batch_step  # late: a run in real time needs none of it

    return run_batch_step(Step(runtime=runtime, api=api, job=job, lease=lease))


def _uses_batches(runtime: JobRuntime, job: JobRow) -> bool:
    """Whether a job has shards, or items that are to become some."""
    store = runtime.store
    return bool(store.items.in_state(job.id, state=ItemState.OPEN, limit=1) or store.shards.of_job(job.id))
