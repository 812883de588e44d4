"""What a client is to its jobs: it asks single requests in real time, tells, begins and ends with them."""

from __future__ import annotations

import random
import secrets
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from smartbatch._clock import Clock
from smartbatch.config import BatchingConfig
from smartbatch.core.limits.budget import Budget
from smartbatch.core.limits.budget_reservations import JobReservations
from smartbatch.core.preparation.tokens import Calibration
from smartbatch.core.routing.rescue import Speed
from smartbatch.errors import ConfigError, SmartbatchError, StoreError, WrongProcess
from smartbatch.events import Event, JobFinished, JobProgress, ShardChanged
from smartbatch.jobs.dependencies import JobDependencies
from smartbatch.jobs.job_budget import bill
from smartbatch.jobs.records import JobRow
from smartbatch.jobs.service import JobService
from smartbatch.observe import logs
from smartbatch.providers.base import Provider
from smartbatch.realtime.admission import Admission
from smartbatch.realtime.callbacks import CallbackThread
from smartbatch.realtime.effects import PostProcess, processed
from smartbatch.realtime.engine import RealtimeEngine
from smartbatch.realtime.ticket import ResultFuture
from smartbatch.routing.history import ForecastHistory
from smartbatch.types import Kind, Request, Result, Route, evolve

__all__ = ["LAST_STEP", "ClientJobs", "tell_waiters", "warn_of"]

STEP_GRACE = 30.0
"""Seconds that a stop without a time of its own waits for remote calls of jobs: cutting a create off means
looking for it later."""
LAST_ANSWERS = 5.0
"""Seconds in which answers that came are stored at a stop whose time is over."""
LAST_STEP = 1.0
"""Seconds for what is under way at a stop whose time is over."""


class ClientJobs:
    """The part of a client that its jobs need; see :class:`~smartbatch.BatchingClient`."""

    config: BatchingConfig
    model: str
    _clock: Clock
    _admission: Admission
    _provider: Provider
    _providers: dict[str, Provider]
    _second: tuple[Provider, str] | None
    _given_rng: random.Random | None
    _post_process: PostProcess | None
    _engine: RealtimeEngine | None
    _leaving: RealtimeEngine | None
    _starting: threading.Lock
    _budget: Budget
    _reservations: JobReservations
    _history: ForecastHistory
    _service: JobService
    _job_callbacks: CallbackThread | None

    # -- for the service
    # ----------------------------------------------------------------------------------------

    def _new_service(self) -> JobService:
        dependencies = JobDependencies(
            own=(self._provider,),
            opened=self._opened,
            ask=self._ask_directly,
            drop=self._drop_direct,
            process=self._process,
            new_future=self._new_job_future,
            tell=self._job_told,
            report=warn_of,
            speed=self._speed_of,
            calibration=self._calibration_of,
            outer=self._payer_beside,
        )
        self._job_callbacks = None
        return JobService(self.config, clock=self._clock, rng=self._given_rng, dependencies=dependencies)

    def _ask_directly(
        self, row: JobRow, request: Request, sink: Callable[[Result], None], own_budget: Budget | None
    ) -> Future[Result]:
        """Submit an item of a job: checked and preprocessed long ago, post-processed when it is read."""
        provider = self._service.serving.provider_of(row)
        if provider is None:
            raise ConfigError(f"the account of job {row.id} is no longer at hand in this process")
        limit = self.config.request_timeout
        if limit is not None and request.timeout is None and row.policy.attended:
            request = evolve(request, timeout=limit)
        model = row.model.partition(":")[2]
        route = row.policy.route
        return self._enqueue(
            request,
            sink,
            provider=provider,
            model=model,
            raw=True,
            own_budget=own_budget,
            alone=route is Route.INDIVIDUAL,
            flex=route is Route.FLEX,
        )

    def _drop_direct(self, future: Future[Result]) -> None:
        engine = self._engine
        if engine is None:
            future.cancel()
        elif isinstance(future, ResultFuture):
            engine.drop(future)

    def _opened(self, provider: Provider) -> None:
        """Take in a provider that was made for a job of another model."""
        self._providers[f"{provider.name}:{provider.scope}"] = provider
        if self._engine is not None:
            provider.open(self.config.parallelism)

    def _process(self, result: Result) -> Result:
        return result if self._post_process is None else processed(self._post_process, result)

    def _new_job_future(self) -> ResultFuture:
        if self._job_callbacks is None:
            self._job_callbacks = CallbackThread(self._clock, self._callback_raised)
        return ResultFuture(self._job_callbacks.run_later, tell_waiters)

    def _carry_on_jobs(self) -> None:
        """Carry on the jobs of a store that was named: any process started on it does its share."""
        if self.config.store is None:
            return
        try:
            self._service.carry_on()
        except SmartbatchError as error:  # requests in real time do not need it
            warn_of(None, error)

    # -- money -----------------------------------------------------------------------------------------------

    def _new_budget(self) -> None:
        """Begin with nothing spent and nothing held back for jobs, as a forked child does, too."""
        self._budget = Budget(self.config.budget)
        self._reservations = JobReservations(self._budget, self._money, secrets.token_hex(8))

    @contextmanager
    def _money(self) -> Iterator[None]:
        """Hold what guards the client's budget: the monitor of its calls, while there are any."""
        with self._starting:
            engine = self._engine or self._leaving
            if engine is None:
                yield
                return
        with engine.queue.monitor:
            yield

    def _payer_beside(self, row: JobRow) -> Budget | None:
        """Return the client's budget for a job with one of its own that is not held back in it."""
        mine = row.policy.budget_account == self._reservations.account or self._reservations.has(row.id)
        return None if mine else self._budget

    def _calibration_of(self, row: JobRow) -> Calibration:
        return self._history.calibration(row.model, Kind(row.kind))

    def _job_told(self, event: Event) -> None:
        if isinstance(event, JobProgress):
            self._reservations.charge(event.job_id, event.cost, ended=False)
        elif isinstance(event, (JobFinished, ShardChanged)) and self._reservations.has(event.job_id):
            self._refresh_reservation(event.job_id)
        self._tell(event)

    def _refresh_reservation(self, job_id: str) -> None:
        """Book what a job has cost. When it has ended, what may have been billed all the same counts, too;
        that is known when the last of its batches is settled."""
        try:
            owed = bill(self._service.store, job_id)
        except SmartbatchError:  # it stays held back
            return
        self._reservations.charge(job_id, owed.cost, ended=owed.ended, still=owed.open)

    # -- stop, fork ------------------------------------------------------------------------------------------

    def _halt_jobs(self) -> None:
        """Ask nothing more of any job; what is under way goes on. The first half of a stop."""
        self._service.halt()

    def _finish_jobs(self, timeout: float | None, began: float) -> None:
        """Store what came, and give the jobs back."""
        steps = STEP_GRACE
        if timeout is not None:
            steps = max(LAST_STEP, timeout - (self._clock.now() - began))
        self._service.finish(answers=max(LAST_ANSWERS, steps), steps=steps)
        callbacks, self._job_callbacks = self._job_callbacks, None
        if callbacks is not None:
            callbacks.drain(LAST_STEP)
            callbacks.close()

    def _fork_jobs(self, error: WrongProcess) -> None:
        """In a forked child: start empty."""
        self._job_callbacks = None
        self._service.abandon(error)

    # -- what the client brings ------------------------------------------------------------------------------

    def _enqueue(
        self,
        request: Request,
        sink: Callable[[Result], None] | None,
        *,
        provider: Provider,
        model: str,
        raw: bool = False,
        own_budget: Budget | None = None,
        alone: bool = False,
        flex: bool = False,
    ) -> ResultFuture:
        raise NotImplementedError

    def _speed_of(self, row: JobRow) -> Speed:
        raise NotImplementedError

    def _tell(self, event: Event) -> None:
        raise NotImplementedError

    def _callback_raised(self, error: BaseException) -> None:
        raise NotImplementedError


def warn_of(job_id: str | None, error: BaseException) -> None:
    """Log what keeps jobs from going on; of foreign errors the class only, they may hold anything."""
    told = error.message if isinstance(error, StoreError) else ""
    logs.warn("job_trouble", job_id=job_id or "", error=type(error).__name__, told=told)


def tell_waiters(future: ResultFuture) -> None:
    """A future that is cancelled must be told to those in ``concurrent.futures.wait`` as well."""
    future.set_running_or_notify_cancel()
