"""A service without a client: for whoever takes up a job by its name only, as ``smartbatch.job`` does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from attrs import evolve

from smartbatch._clock import Clock, RealClock
from smartbatch._fork import on_exit, on_fork
from smartbatch.client import BatchingClient
from smartbatch.config import BatchingConfig
from smartbatch.core.limits.budget import Budget
from smartbatch.core.routing.rescue import Speed
from smartbatch.core.routing.throughput import Throughput
from smartbatch.errors import ClientClosed, ConfigError, WrongProcess
from smartbatch.jobs.client_jobs import tell_waiters, warn_of
from smartbatch.jobs.dependencies import JobDependencies
from smartbatch.jobs.records import JobRow
from smartbatch.jobs.service import JobService
from smartbatch.observe import logs
from smartbatch.realtime.callbacks import CallbackThread
from smartbatch.realtime.ticket import ResultFuture
from smartbatch.routing.history import ForecastHistory
from smartbatch.types import Kind, Request, Result, Route

__all__ = ["StoreJobs", "service_of"]

LAST_ANSWERS = 5.0
"""Seconds in which answers that came are stored at the interpreter's end."""


class StoreJobs:
    """Carries on the jobs of one store with whatever keys the environment has.

    Items that are asked alone go through a client, made when the first one comes.

    Args:
        config: settings; ``store`` names the store.
        clock: time and waiting.
    """

    def __init__(self, config: BatchingConfig, clock: Clock | None = None) -> None:
        self._config = config
        self._clock: Clock = clock or RealClock()
        dependencies = JobDependencies(
            own=(),
            opened=lambda _: None,
            ask=self._ask,
            drop=self._drop,
            process=lambda result: result,
            new_future=self._new_future,
            tell=logs.LogObserver(),
            report=warn_of,
            speed=self._speed_of,
            calibration=lambda row: self._history.calibration(row.model, Kind(row.kind)),
            outer=lambda row: self._client_for(row)._budget,
        )
        self._history = ForecastHistory(self._clock, dependencies.tell, store=lambda: self.service.store)
        self._new_process()
        self.service = JobService(config, clock=self._clock, rng=None, dependencies=dependencies)
        on_fork(self)
        on_exit(self)

    def _new_process(self) -> None:
        self._history.renew()
        self._making = threading.Lock()
        self._client: BatchingClient | None = None
        self._callbacks: CallbackThread | None = None
        self._closed = False

    def after_fork(self) -> None:
        """In a forked child: start empty. The hook of the library calls it; users need not."""
        self._new_process()
        self.service.abandon(WrongProcess("the job's futures belong to the parent process; take your own"))

    def at_exit(self, waited: float, *, interrupted: bool) -> None:  # noqa: ARG002
        """At the interpreter's end: give the jobs back. Users need not call it."""
        self.close(max(0.0, self._config.exit_grace - waited))

    def close(self, timeout: float) -> None:
        """Store what comes within ``timeout`` seconds, and give the jobs back."""
        self._closed = True
        self.service.halt()
        client = self._client
        if client is not None:
            client.stop(timeout)
        self.service.finish(answers=LAST_ANSWERS, steps=timeout)
        if self._callbacks is not None:
            self._callbacks.close()

    def _speed_of(self, row: JobRow) -> Speed:
        """Return how fast requests of a job are answered in real time, by what the store knows of it."""
        self._history.refresh()
        call = self._history.latency(Route.INDIVIDUAL, row.model)
        cancelling = self._history.cancelling(row.model.partition(":")[0])
        turnaround = self._history.turnaround(row.model)
        return Speed(Throughput(call, parallelism=self._config.parallelism), cancelling, turnaround)

    def _ask(
        self, row: JobRow, request: Request, sink: Callable[[Result], None], own_budget: Budget | None
    ) -> Future[Result]:
        return self._client_for(row)._ask_directly(row, request, sink, own_budget)

    def _drop(self, future: Future[Result]) -> None:
        if self._client is not None:
            self._client._drop_direct(future)

    def _client_for(self, row: JobRow) -> BatchingClient:
        """Return the client that asks; it asks for jobs of any model."""
        with self._making:
            if self._closed:
                raise ClientClosed("the interpreter is exiting; the job can be taken up again")
            if self._client is None:
                provider = self.service.serving.provider_of(row)
                if provider is None:
                    raise ConfigError(f"the account of job {row.id} is not at hand in this process")
                # its own service stays empty: this one has the store
                config = evolve(self._config, store=None)
                model = row.model.partition(":")[2]
                self._client = BatchingClient(model, config, provider=provider, clock=self._clock)
            return self._client

    def _new_future(self) -> ResultFuture:
        with self._making:
            if self._callbacks is None:
                self._callbacks = CallbackThread(self._clock, lambda error: warn_of(None, error))
            return ResultFuture(self._callbacks.run_later, tell_waiters)


_services: dict[str, StoreJobs] = {}


def service_of(config: BatchingConfig) -> JobService:
    """Return the one service of this process for the store that ``config`` names."""
    place = config.store or ""
    found = _services.get(place) or _services.setdefault(place, StoreJobs(config))
    return found.service
