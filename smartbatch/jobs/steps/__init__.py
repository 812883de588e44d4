"""Steps of a job. Each makes at most one or two remote calls and commits before and after them.

Steps start no threads, never wait, and keep no state in memory: after a crash at any point, the next process
reads the states from the store and continues.
"""

from __future__ import annotations

from smartbatch.errors import RequestCancelled
from smartbatch.jobs.payload import encode_error
from smartbatch.jobs.records import ItemState, JobLease, JobState
from smartbatch.jobs.steps.step import Step, StepResult, has_realtime
from smartbatch.jobs.wiring import JobRuntime

__all__ = ["StepResult", "run_step"]


def run_step(runtime: JobRuntime, lease: JobLease) -> StepResult:
    """Run the next due step of a job, if there is one.

    Only one thread at a time may run steps of a job; steps of different jobs may run concurrently.

    Raises:
        LeaseLost: another process owns the job now.
        StoreError: the store is unavailable.
    """
    job = runtime.store.jobs.get(lease.job_id)
    # 1. the job was deleted: finished
    if job is None:
        return StepResult(None, finished=True)
    # 2. it is being cancelled: end items that were not sent
    if job.cancel_requested and job.state is not JobState.DONE:
        body = encode_error(RequestCancelled("the job was cancelled before this request was sent"))
        if runtime.store.items.drop_unsent(lease, body, at=runtime.wall()):
            job = runtime.publish_progress(job)
    # 3. it has no batches and needs none, or this process has no access to its Batch API: no batch step
    provider = runtime.provider_of(job)
    api = None if provider is None else provider.batches()
    store = runtime.store
    if api is None or not (
        store.items.in_state(job.id, state=ItemState.OPEN, limit=1) or store.shards.of_job(job.id)
    ):
        return StepResult(None, has_realtime(runtime, job), finished=job.state is JobState.DONE)
    # 4. otherwise run a batch step
    from smartbatch.jobs.steps.batch_step import run_batch_step  # imported late: real-time jobs never need it

    return run_batch_step(Step(runtime=runtime, api=api, job=job, lease=lease))
