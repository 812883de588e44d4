"""What carrying jobs on takes in one process, whatever the job."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Self

from attrs import frozen

from smartbatch._clock import Clock, SteadyWall
from smartbatch.config import BatchingConfig
from smartbatch.core.limits.model_controls import Pause
from smartbatch.events import Event, JobFinished, JobProgress
from smartbatch.jobs.records import JobRow, JobState
from smartbatch.jobs.store import SqlStore
from smartbatch.jobs.summary_log import SummaryLog
from smartbatch.jobs.wiring import JobWiring
from smartbatch.prices import PriceBook
from smartbatch.providers.base import Provider

MINUTE = 60.0
HOUR = 3600.0


@frozen(kw_only=True)
class StepLimits:
    """How the engine waits, and how much it puts into a batch. All times are seconds.

    Attributes:
        poll_interval: between two polls of a batch.
        timeout: after it, a job that may go on in real time has its batches cancelled.
        settle: how long a batch whose creation is uncertain is searched for before its items are sent again.
            30 minutes is the longest delay seen of a late create, with a margin.
        visibility: how long a batch that exists may be missing from the provider's list; seen: 15 s.
        max_requests: most requests of a shard.
        enqueued_tokens: most tokens of one model in batches that have not ended; ``None`` learns it.
        call_timeout: of a small remote call.
        transfer_timeout: of an upload, a download, or a create that carries its input.
        send_within: a create that could not be sent this soon after its intent was stored is not sent: the
            process was frozen, and another may own the job.
        max_tries: how often an item is sent before its last failure stands.
        reread_pause: before results that lack lines are read again; each further pause is four times as long.
        reread_time: most of these pauses together.
        orphan_watch: how long the list is searched for a batch that was given up, and one that is known is
            looked at while it runs. 26 hours: by then every batch that could exist has ended.
        longest_pause: between two tries of a call that fails.
    """

    poll_interval: float
    timeout: float
    settle: float
    max_requests: int
    enqueued_tokens: int | None
    visibility: float = 2 * MINUTE
    call_timeout: float = MINUTE
    transfer_timeout: float = HOUR
    send_within: float = 5.0
    max_tries: int = 3
    reread_pause: float = 2.0
    reread_time: float = MINUTE
    orphan_watch: float = 26 * HOUR
    longest_pause: float = 10 * MINUTE

    @classmethod
    def of(cls, config: BatchingConfig) -> Self:
        """Return what a client's settings say."""
        return cls(
            poll_interval=config.batch_poll_interval,
            timeout=config.batch_timeout,
            settle=config.batch_settle,
            max_requests=config.batch_max_requests,
            enqueued_tokens=config.batch_enqueued_tokens,
        )


@frozen(kw_only=True, eq=False, repr=False)
class JobRuntime:
    """What carrying jobs on takes, the same for all jobs of a process; made in one place.

    Attributes:
        provider_of: the provider of a job, of the very scope it was submitted in; ``None`` when this process
            does not have its key: then only what needs no provider is done.
        rng: for nonces and backoff.
        wall: Unix seconds by which the jobs of a client wait and are late: that the clock of the machine is
            set must not move them.
        pause_of: says whether a person paused a model, ``provider:model``, as far as this process knows.
        tell: takes events; the end of a job is passed on once.
        wiring: what jobs need of the real-time side.
        summaries: is written every few seconds, and at the end.
    """

    store: SqlStore
    summaries: SummaryLog
    clock: Clock
    rng: Random
    wall: SteadyWall
    prices: PriceBook
    limits: StepLimits
    provider_of: Callable[[JobRow], Provider | None]
    pause_of: Callable[[str], Pause | None]
    tell: Callable[[Event], None]
    wiring: JobWiring

    def tell_progress(self, before: JobRow, *, running: int = 0) -> JobRow:
        """Tell the progress of a job after results were stored, and its end after the last one.

        Returns:
            the job as it stands.
        """
        job = self.store.jobs.get(before.id) or before
        now = self.clock.now()
        self.tell(
            JobProgress(
                at=now,
                job_id=job.id,
                model=job.model,
                total=job.total,
                succeeded=job.succeeded,
                failed=job.failed,
                cancelled=job.cancelled,
                running=running,
                cost=job.cost,
                realtime_cost=job.realtime_cost,
            )
        )
        # where failed rows were asked again, "before" may be the end before that
        if job.state is JobState.DONE and _ended(job) != _ended(before):
            self.tell(
                JobFinished(
                    at=now,
                    job_id=job.id,
                    model=job.model,
                    traceparent=job.policy.traceparent,
                    succeeded=job.succeeded,
                    failed=job.failed,
                    cancelled=job.cancelled,
                    seconds=max(0.0, (job.finished_at or self.wall()) - job.created_at),
                    cost=job.cost,
                    realtime_cost=job.realtime_cost,
                    unpriced=job.unpriced,
                )
            )
        return job


def _ended(job: JobRow) -> tuple[float | None, int, int, int] | None:
    """Return when and with what a job has ended; ``None`` while it goes on."""
    if job.state is not JobState.DONE:
        return None
    return job.finished_at, job.succeeded, job.failed, job.cancelled
