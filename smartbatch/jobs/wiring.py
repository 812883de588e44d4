"""What jobs have of the process that carries them on: real time, listeners and money of its client, providers
of their accounts, and how long steps wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from random import Random
from typing import Any, Self

from attrs import define, frozen

from smartbatch._clock import Clock, SteadyWall
from smartbatch.config import BatchingConfig
from smartbatch.core.limits.budget import Budget
from smartbatch.core.limits.lease_ask import LeaseAsk, LeaseGrant
from smartbatch.core.limits.model_controls import ModelControls, Pause
from smartbatch.core.preparation.tokens import Calibration
from smartbatch.core.routing.rescue import Speed
from smartbatch.errors import SmartbatchError
from smartbatch.events import Event, JobFinished, JobProgress
from smartbatch.jobs.records import JobRow, JobState
from smartbatch.jobs.retried_rows import Reopening, without_client
from smartbatch.jobs.store import SqlStore
from smartbatch.jobs.summary_log import SummaryLog
from smartbatch.prices import PriceBook
from smartbatch.providers.base import Provider
from smartbatch.providers.registry import create
from smartbatch.types import Request, Result, RunCallback, call_now

EnqueuedExchange = Callable[[str, str, LeaseAsk], LeaseGrant | None]
"""Makes an exchange with what processes share of a provider's scope and a model."""


@frozen
class RealtimeItem:
    """An item of a job that is to be asked in real time.

    Attributes:
        request: checked and preprocessed when the job was stored.
        provider, model: who answers; the model's name without prefix.
        sink: gets the result, whatever comes of it, as it came: it is post-processed when it is read.
        own_budget: pays for it, within the client's budget; ``None`` where the client's budget pays.
        alone: whether it shares its call with no other request.
        flex: whether it goes in the provider's slower tier, where there is one.
        keeps_going: whether it is sent although the provider refuses the key, the account or the model.
        traceparent: the span of whoever submitted the job.
    """

    request: Request
    provider: Provider
    model: str
    sink: Callable[[Result], None]
    own_budget: Budget | None
    alone: bool
    flex: bool
    keeps_going: bool
    traceparent: str | None


@frozen(kw_only=True, eq=False, repr=False)
class JobWiring:
    """What jobs need of the client that carries them: real time, listeners, money. Made in one place.

    Attributes:
        providers: the client's own; they come first when the provider of a job is looked for.
        serve: called with a provider that was made for a job, before it is used.
        ask: submits an item in real time.
        drop: cancels what ``ask`` returned, if its call has not started.
        process: the user's post-processing of a result.
        new_future: makes a future whose callbacks run where they hold up nobody.
        tell: takes events; never raises.
        tell_dropped: takes the name of a parameter that was left out of a request, and why.
        exchange_enqueued: makes an exchange with the quota of enqueued tokens that processes share, of a
            provider's scope and a model; ``None`` where nothing is shared. It returns ``None`` while the
            back end is unavailable.
        control: given all that people set for models, whenever it changed in the store.
        report: told what went wrong: the job's id, where it is about one, and the error.
        speed: says how fast requests of a job are answered in real time.
        calibration: says what was learned of the tokens of a job's model.
        run_callback: calls the user's callbacks of progress.
        outer_budget: returns the budget that items of a job with a budget of its own spend from as well.
        reopen: has requests of a job asked again within the client's budget.
        parallelism: returns how many calls the client makes at once.
    """

    providers: tuple[Provider, ...]
    serve: Callable[[Provider], None]
    ask: Callable[[RealtimeItem], Future[Result]]
    drop: Callable[[Future[Result]], None]
    process: Callable[[Result], Result]
    new_future: Callable[[], Any]
    tell: Callable[[Event], None]
    report: Callable[[str | None, BaseException], None]
    speed: Callable[[JobRow], Speed]
    calibration: Callable[[JobRow], Calibration]
    run_callback: RunCallback = call_now
    outer_budget: Callable[[JobRow], Budget | None]
    reopen: Reopening = without_client
    tell_dropped: Callable[[str, str], None]
    control: Callable[[ModelControls], None]
    exchange_enqueued: EnqueuedExchange | None = None
    parallelism: Callable[[], int]


AGAIN = 60.0
"""Seconds until a provider that could not be made is tried again: a key may be set later."""


@define(eq=False)
class _Made:
    """A provider made from the environment for a job's model, or why there is none."""

    provider: Provider | None
    problem: str
    at: float


class Serving:
    """Finds the provider for a job, of the very account it was submitted with.

    Args:
        own: the client's providers; they come first.
        opened: called with a provider that was made here, before it is used.
    """

    def __init__(self, own: Iterable[Provider], *, opened: Callable[[Provider], None], clock: Clock) -> None:
        self._own = tuple(own)
        self._opened = opened
        self._clock = clock
        self._making = threading.Lock()
        self._made: dict[str, _Made] = {}

    def provider_of(self, row: JobRow) -> Provider | None:
        """Return the provider for a job, or ``None`` when this process lacks its key or server."""
        name = row.model.partition(":")[0]
        for provider in self._own:
            if provider.name == name and provider.scope == row.scope:
                return provider
        made = self._from_environment(row.model)
        if made.provider is None or made.provider.scope != row.scope:
            return None
        return made.provider

    def problem_with(self, row: JobRow) -> str | None:
        """Return, in words, why this process cannot carry a job on; ``None`` when it can."""
        if self.provider_of(row) is not None:
            return None
        made = self._from_environment(row.model)
        another = "the key, server or organisation of this process is another"
        name, problem = row.model.partition(":")[0], another if made.provider else made.problem
        return f"needs the {name} account it was submitted with: {problem}"

    def close(self) -> None:
        """Close what was made here."""
        with self._making:
            all_made, self._made = self._made, {}
        for made in all_made.values():
            if made.provider is not None:
                made.provider.close()

    def abandon(self) -> None:
        """In a forked child: forget what was made here without touching the parent's connections."""
        for made in list(self._made.values()):
            if made.provider is not None:
                made.provider.abandon()

    def _from_environment(self, model: str) -> _Made:
        with self._making:
            made = self._made.get(model)
            if made is not None and (made.provider is not None or self._clock.now() - made.at < AGAIN):
                return made
            made = self._made[model] = self._make(model)
        if made.provider is not None:
            self._opened(made.provider)
        return made

    def _make(self, model: str) -> _Made:
        now = self._clock.now()
        try:
            return _Made(create(model, clock=self._clock)[0], "", now)
        except SmartbatchError as error:
            return _Made(None, error.message, now)
        except Exception as error:  # an SDK that is not there, or will not start
            return _Made(None, f"it could not be opened ({type(error).__name__})", now)


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
