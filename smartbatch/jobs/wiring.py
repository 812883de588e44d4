"""Resources that a process provides to its jobs: its real-time side, providers, and the settings of steps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from random import Random
from typing import Any, Protocol, Self

from attrs import define, frozen

from smartbatch._clock import Clock, SteadyWall
from smartbatch.config import BatchingConfig
from smartbatch.core.limits.budget import Budget
from smartbatch.core.limits.model_controls import ModelControls, Pause
from smartbatch.core.limits.shared_limit import LeaseAsk, LeaseGrant
from smartbatch.core.preparation.calibration import Calibration
from smartbatch.core.routing.rescue import Speed
from smartbatch.errors import SmartbatchError
from smartbatch.events import Event, JobFinished, JobProgress
from smartbatch.jobs.client_store import SummaryLog
from smartbatch.jobs.records import HOUR, MINUTE, JobPolicy, JobRow, JobState
from smartbatch.jobs.store import SqlStore
from smartbatch.providers.base import Provider
from smartbatch.providers.hosts import HOSTS
from smartbatch.providers.price_book import PriceBook
from smartbatch.providers.registry import create
from smartbatch.types import Request, Result, RunCallback, T, call_now

EnqueuedExchange = Callable[[str, str, LeaseAsk], LeaseGrant | None]
"""Exchanges counts of enqueued tokens with other processes; ``None`` while the back end is unavailable."""

PolicyChange = Callable[[JobPolicy], JobPolicy]


class Reopening(Protocol):
    """Sends requests of a job again within the budget of a client."""

    def __call__(self, job_id: str, work: Callable[[PolicyChange], T], /) -> T:
        """Call ``work``, which reopens the requests and applies the change of policy."""
        ...


def unchanged(policy: JobPolicy) -> JobPolicy:
    return policy


def reopen_without_client(_: str, work: Callable[[PolicyChange], T], /) -> T:
    return work(unchanged)


@frozen
class RealtimeItem:
    """A job item to be sent in real time. Its request was checked and preprocessed before it was stored."""

    request: Request
    provider: Provider
    model: str  # without the provider prefix
    # receives the raw result, success or failure; reading it post-processes it
    sink: Callable[[Result], None]
    # budget of the job within the client's budget; None if only the client's is charged
    own_budget: Budget | None
    alone: bool  # shares its call with no other request
    flex: bool  # uses the provider's slower tier if there is one
    keeps_going: bool  # sent even if the provider rejects the key, the account or the model
    traceparent: str | None  # span of the job's submitter


@frozen(kw_only=True, eq=False, repr=False)
class JobWiring:
    """Functions and values that jobs need from the real-time side of their process."""

    providers: tuple[Provider, ...]  # the client's own providers, used first
    serve: Callable[[Provider], None]  # called with a provider opened for a job before it is used
    send: Callable[[RealtimeItem], Future[Result]]
    drop: Callable[[Future[Result]], None]  # cancels a future of ``send`` if its call has not started
    process: Callable[[Result], Result]  # the user's post-processing
    new_future: Callable[[], Any]  # creates a future whose callbacks may block
    publish_event: Callable[[Event], None]  # publishes an event; never raises
    warn_dropped: Callable[[str, str], None]  # warns that a parameter was left out, with the reason
    # logs an error of one job, or of all jobs if the id is None
    report: Callable[[str | None, BaseException], None]
    # called with all pauses and limits after each change in the store
    control: Callable[[ModelControls], None]
    speed: Callable[[JobRow], Speed]  # forecasts how fast requests of a job are answered
    calibration: Callable[[JobRow], Calibration]  # learned token counts for a job's model
    outer_budget: Callable[[JobRow], Budget | None]  # also charged for items of a job with its own budget
    parallelism: Callable[[], int]  # concurrent calls of the client
    # true if the request may share the answer of an identical one
    shares: Callable[[Request], bool] = lambda _: False
    reopen: Reopening = reopen_without_client
    run_callback: RunCallback = call_now  # calls the user's progress callbacks
    exchange_enqueued: EnqueuedExchange | None = None  # None if enqueued tokens are not shared


PROVIDER_RETRY_SECONDS = 60.0
"""A missing key may be set later, so the provider is tried again."""


@define(eq=False)
class _OpenedProvider:
    """A provider opened from the environment for a job's model, or the reason why there is none."""

    provider: Provider | None
    problem: str
    at: float


class InAccount(Protocol):
    """Anything with the account and a model of a provider, such as a job."""

    @property
    def scope(self) -> str: ...

    @property
    def model(self) -> str:
        """As ``provider:model``."""
        ...


class JobProviders:
    """Finds a provider that uses the account with which a job was submitted."""

    def __init__(self, wiring: JobWiring, clock: Clock) -> None:
        self._wiring = wiring
        self._clock = clock
        self._opening = threading.Lock()
        self._opened: dict[str, _OpenedProvider] = {}

    def provider_of(self, row: InAccount) -> Provider | None:
        """Return ``None`` if this process lacks the key or server."""
        name = row.model.partition(":")[0]
        for provider in self._wiring.providers:
            if provider.name == name and provider.scope == row.scope:
                return provider
        opened = self._from_environment(row.model)
        if opened.provider is None or opened.provider.scope != row.scope:
            return None
        return opened.provider

    def problem_with(self, row: InAccount) -> str | None:
        """Return the reason why this process cannot use the account of a job, for users."""
        if self.provider_of(row) is not None:
            return None
        opened = self._from_environment(row.model)
        name = row.model.partition(":")[0]
        another, host = "this process has a different key, server or organization", HOSTS.get(name)
        if host is not None and host.key_variables and host.key_variable() is None:
            another += f" ({' or '.join(host.key_variables)} is not set)"
        problem = another if opened.provider else opened.problem
        return f"needs the {name} account it was submitted with: {problem}"

    def close(self) -> None:
        """Close the providers opened by this object."""
        with self._opening:
            all_opened, self._opened = self._opened, {}
        for opened in all_opened.values():
            if opened.provider is not None:
                opened.provider.close()

    def abandon(self) -> None:
        """In a forked child, forget the opened providers without touching the parent's connections."""
        for opened in list(self._opened.values()):
            if opened.provider is not None:
                opened.provider.abandon()

    def _from_environment(self, model: str) -> _OpenedProvider:
        with self._opening:
            known = self._opened.get(model)
            now = self._clock.now()
            if known is not None and (known.provider is not None or now - known.at < PROVIDER_RETRY_SECONDS):
                return known
            opened = self._opened[model] = self._open(model, now)
        if opened.provider is not None:
            self._wiring.serve(opened.provider)
        return opened

    def _open(self, model: str, now: float) -> _OpenedProvider:
        try:
            return _OpenedProvider(create(model, clock=self._clock)[0], "", now)
        except SmartbatchError as error:
            return _OpenedProvider(None, error.message, now)
        except Exception as error:  # an SDK is missing or fails to start
            return _OpenedProvider(None, f"it could not be opened ({type(error).__name__})", now)


@frozen(kw_only=True)
class StepLimits:
    """Waiting times of the engine in seconds, and batch sizes."""

    poll_interval: float  # between polls of a batch
    timeout: float  # until the batches of a job that may fall back to real time are cancelled
    # Time to search for a batch whose creation is uncertain before its items are sent again. The longest
    # observed delay of a create call is 30 minutes, plus a margin.
    settle: float
    max_requests: int  # per shard
    enqueued_tokens: int | None  # maximum tokens of a model in unfinished batches; None if discovered
    visibility: float = 2 * MINUTE  # a new batch may be missing from the list for this long; observed: 15 s
    call_timeout: float = MINUTE  # of a small remote call
    transfer_timeout: float = HOUR  # of an upload, a download, or a create call that carries its input
    file_timeout: float = 10 * MINUTE  # for the upload of a file in a prompt
    # A create call is not sent if its intent was stored longer ago than this: the process was frozen, and
    # another one may own the job by now.
    send_within: float = 5.0
    max_tries: int = 3  # times an item is sent before its failure is final
    # before results with missing lines are read again; each further pause is 4 times as long
    reread_pause: float = 2.0
    reread_time: float = MINUTE  # maximum total of these pauses
    # Time to search the list for an abandoned batch, and to follow it once found. After 26 hours, every
    # possible batch has ended.
    orphan_watch: float = 26 * HOUR
    longest_pause: float = 10 * MINUTE  # between tries of a failing call
    deletions_per_hour: int = 600  # of what an account still stores for finished batches

    @classmethod
    def of(cls, config: BatchingConfig) -> Self:
        return cls(
            poll_interval=config.batch_poll_interval,
            timeout=config.batch_timeout,
            settle=config.batch_settle,
            max_requests=config.batch_max_requests,
            enqueued_tokens=config.batch_enqueued_tokens,
        )


@frozen(kw_only=True, eq=False, repr=False)
class JobRuntime:
    """Resources for running jobs, shared by all jobs of a process."""

    store: SqlStore
    summaries: SummaryLog  # saved every few seconds and at the end
    clock: Clock
    rng: Random  # for nonces and backoff
    wall: SteadyWall  # Unix seconds for deadlines and pauses, unaffected by changes to the machine's clock
    prices: PriceBook
    limits: StepLimits
    # None if this process lacks the job's key; then only steps that need no provider run
    provider_of: Callable[[InAccount], Provider | None]
    pause_of: Callable[[str], Pause | None]  # the pause of a provider:model, as far as this process knows
    publish_event: Callable[[Event], None]  # publishes an event, but the end of a job only once
    wiring: JobWiring
    webhook_url: str | None = None  # address for events about single batches, with its token

    def publish_progress(self, before: JobRow, *, running: int = 0) -> JobRow:
        """Publish a job's progress after results were stored, and its end after the last result.

        Returns:
            the current row of the job.
        """
        job = self.store.jobs.get(before.id) or before
        now = self.clock.now()
        self.publish_event(
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
        # after failed rows were sent again, "before" may describe an earlier end
        if job.state is JobState.DONE and _end_of(job) != _end_of(before):
            self.publish_event(
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


def _end_of(job: JobRow) -> tuple[float | None, int, int, int] | None:
    if job.state is not JobState.DONE:
        return None
    return job.finished_at, job.succeeded, job.failed, job.cancelled
