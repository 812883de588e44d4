"""The jobs of a store without a client: view, manage and run them."""

from __future__ import annotations

import random
import sys
import threading
from concurrent.futures import Future
from contextlib import suppress
from typing import final

from smartbatch._clock import Clock, RealClock
from smartbatch._fork import PerProcess, on_exit, on_fork
from smartbatch._words import count_of, seconds_of
from smartbatch.config import BatchingConfig, given_or_loaded
from smartbatch.core.limits.budget import Budget
from smartbatch.core.limits.model_controls import ModelControls, ModelLimit, Pause, name_of
from smartbatch.core.preparation.preparer import RequestPreparer
from smartbatch.core.routing.offers import Throughput
from smartbatch.core.routing.rescue import Speed
from smartbatch.errors import ClientClosed, ConfigError, InvalidRequest, JobNotFound, WrongProcess
from smartbatch.events import CallFinished
from smartbatch.jobs.actions import retry_failed
from smartbatch.jobs.cleaning import CleanResult
from smartbatch.jobs.job import Job
from smartbatch.jobs.jobs_engine import JobsEngine
from smartbatch.jobs.records import Action, ActionResult, JobRow, JobSelection, actor, one_line
from smartbatch.jobs.status import JobStatus, status_of
from smartbatch.jobs.summary_records import StoredDecision
from smartbatch.jobs.wiring import JobWiring, RealtimeItem
from smartbatch.observe import logs
from smartbatch.observe.listeners import EventBus, UserWarnings
from smartbatch.providers.base import Provider
from smartbatch.providers.hosts import add_hosts
from smartbatch.providers.registry import OpenedModel
from smartbatch.realtime.engine import CallbackThread, stored_future
from smartbatch.realtime.realtime import Realtime
from smartbatch.realtime.setup import RealtimeSetup
from smartbatch.routing.history import ForecastHistory
from smartbatch.running import STOP_STEP_SECONDS, ask_item, callback_raised
from smartbatch.types import Duration, Generation, Kind, Result, Route, T


@final
class StoredJobs:
    """The jobs of one store, for all models, without a client. Viewing jobs needs no API key. Waiting for a
    job makes this process run the jobs of the store for which it has API keys. Items sent in real time use
    the settings given here. A forked child starts with no state. Every method raises :class:`StoreError` if
    the store cannot be used.

    Args:
        config: settings, with ``store``; read from the environment if ``None``.
        clock: time and waiting, for tests.
    """

    def __init__(self, config: BatchingConfig | None = None, clock: Clock | None = None) -> None:
        self.config = given_or_loaded(config)
        add_hosts(self.config.hosts)
        settings, time = self.config, clock or RealClock()
        self._states = PerProcess(lambda: _StoreState(settings, time))

    @property
    def place(self) -> str:
        """The path of the store, or its address without the password."""
        return self._state.engine.store.place

    def job(self, id_or_key: str) -> Job:
        """Return a job by its ID or its key.

        Raises:
            JobNotFound: the store has no such job.
        """
        return self._handle(self._state.engine.find(id_or_key))

    def jobs(self, *, unfinished: bool = False, limit: int = 1000) -> list[Job]:
        """Return jobs, newest first.

        Args:
            unfinished: only jobs that have not finished.
            limit: maximum number of jobs.
        """
        rows = self._state.engine.store.jobs.latest(limit=count_of("limit", limit), unfinished=unfinished)
        return [self._handle(row) for row in rows]

    def kept_decisions(self, beginning: str) -> list[tuple[str, StoredDecision]]:
        """Return the stored decisions of deleted jobs with the jobs' keys, newest first.

        Args:
            beginning: prefix of the keys.
        """
        return self._state.engine.store.summaries.of_deleted_jobs(beginning)

    def statuses(self, limit: int = 1000) -> list[JobStatus]:
        """Return the statuses of jobs, newest first, with a single query.

        They contain no incidents and nothing about batches: ``running`` is 0 and ``remaining`` is ``None``.
        :meth:`~smartbatch.Job.status` returns the complete status of one job.

        Args:
            limit: maximum number of statuses.
        """
        engine = self._state.engine
        wall = engine.clock.wall()
        return [
            status_of(row, (), asking=0, incidents=(), remaining=None, note=None, wall=wall)
            for row in engine.store.jobs.latest(limit=count_of("limit", limit))
        ]

    # -- actions ---------------------------------------------------------------------------------------------

    def pause(
        self, provider: str, model: str | None = None, *, reason: str | None = None, by: str | None = None
    ) -> Pause:
        """Stop sending new requests to a model, in all processes that use the store, until :meth:`resume`.

        Calls in flight complete, and batches already sent are followed until they finish. Waiting requests
        keep waiting, within their own timeouts, and nothing is lost. Running processes notice the pause
        within two seconds. A model that is already paused keeps its pause.

        Args:
            provider: the name before the colon, such as ``openai``.
            model: the name after it; ``None`` for all models of the provider.
            reason: shown to users who wait for the model.
            by: the user who pauses it; by default the user and the machine.
        """
        controls = self._state.engine.store.controls
        return self._after_action(controls.pause(name_of(provider, model), one_line(reason), actor(by)))

    def resume(self, provider: str, model: str | None = None, *, by: str | None = None) -> bool:
        """End a pause; return false if there is none.

        A model that was paused both by its own name and by its provider's resumes once both pauses end.
        """
        return self._after_action(
            self._state.engine.store.controls.resume(name_of(provider, model), actor(by))
        )

    def paused(self) -> list[Pause]:
        """Return the active pauses, oldest first."""
        return list(self._state.engine.store.controls.controls().pauses.values())

    def set_limit(
        self,
        provider: str,
        model: str,
        *,
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
        by: str | None = None,
    ) -> None:
        """Replace ``max_rpm`` and ``max_tpm`` for a model, in all processes that use the store.

        ``None`` keeps, or restores, the limit from the settings.
        """
        given = {"requests_per_minute": requests_per_minute, "tokens_per_minute": tokens_per_minute}
        for field, value in given.items():
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (number and 0 < value <= sys.float_info.max):
                raise InvalidRequest(f"{field} = {value!r:.60} must be a number above 0", field=field)
        self._after_action(
            self._state.engine.store.controls.set_limit(
                name_of(provider, model), requests_per_minute, tokens_per_minute, actor(by)
            )
        )

    def limits(self) -> list[ModelLimit]:
        """Return the limits set with :meth:`set_limit`, oldest first."""
        return list(self._state.engine.store.controls.controls().limits.values())

    def cancel_jobs(self, chosen: JobSelection, *, by: str | None = None) -> ActionResult:
        """Request the cancellation of up to 1,000 jobs; the processes that run them carry it out."""
        return self._after_action(self._state.engine.store.actions.cancel(chosen, actor(by)))

    def resume_jobs(self, chosen: JobSelection, *, by: str | None = None) -> ActionResult:
        """Resume up to 1,000 held jobs. This does not make the current process run them."""
        return self._after_action(self._state.engine.store.actions.resume(chosen, actor(by)))

    def forget_jobs(self, chosen: JobSelection, *, by: str | None = None) -> ActionResult:
        """Delete up to 1,000 finished jobs with their requests and results."""
        store = self._state.engine.store
        ids, left_out = store.actions.finished(chosen)
        count = 0
        for job_id in ids:
            with suppress(JobNotFound):  # another process deleted it first
                store.jobs.forget(job_id, actor(by))
                count += 1
        return ActionResult(count, left_out)

    def retry_jobs(
        self, chosen: JobSelection, *, billed: bool = False, by: str | None = None
    ) -> ActionResult:
        """Retry the failed rows of up to 1,000 jobs, like :meth:`~smartbatch.Job.retry_failed`.

        Returns:
            the number of rows sent again, and the number of jobs left.
        """
        store = self._state.engine.store
        ids, left_out = store.actions.with_failed_rows(chosen)
        count = 0
        for job_id in ids:
            with suppress(JobNotFound):
                count += retry_failed(store, job_id, None, actor(by), billed=billed).count
        return self._after_action(ActionResult(count, left_out))

    def actions(
        self, *, before: int | None = None, job_id: str | None = None, limit: int = 100
    ) -> list[Action]:
        """Return the actions of users, newest first; the store keeps the latest 10,000.

        Args:
            before: only actions before this number.
            job_id: only actions on this job.
        """
        before, most = None if before is None else count_of("before", before), count_of("limit", limit)
        return self._state.engine.store.controls.latest(before=before, job_id=job_id, limit=most)

    def clean(self, *, remote: bool = False, dry_run: bool = False) -> CleanResult:
        """Delete what forgotten jobs left in the store, and return the space to the system.

        Jobs, requests and results that were not forgotten stay.

        Args:
            remote: also delete now what finished jobs left at providers, regardless of their
                ``batch_retention``; only for accounts whose key this process has, and at most 600 deletions
                per hour.
            dry_run: delete nothing; return what would be deleted.
        """
        return self._state.engine.clean(remote=remote, dry_run=dry_run)

    def close(self, timeout: Duration | None = None) -> None:
        """Release the jobs, storing results for up to ``timeout`` seconds (default: ``exit_grace``)."""
        seconds = seconds_of("timeout", timeout)
        self._state.close(self.config.exit_grace if seconds is None else seconds)

    @property
    def _state(self) -> _StoreState:
        return self._states.get()

    def _after_action(self, done: T) -> T:
        # wakes up the engine if this process runs jobs
        self._state.engine.check_actions()
        return done

    def _handle(self, row: JobRow) -> Job:
        return Job(self._engine, row)

    def _engine(self) -> JobsEngine:
        return self._state.engine


class _StoreState:
    """Runs a store's jobs in one process. The real-time side starts with the first item sent in real time."""

    def __init__(self, config: BatchingConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._making = threading.Lock()
        self._realtime: Realtime | None = None
        self._closed = False
        self._bus = EventBus([logs.LogObserver()])
        self._callbacks = CallbackThread(clock, callback_raised)
        self._history = ForecastHistory(clock, self._bus.publish_event, store=lambda: self.engine.store)
        self.engine = JobsEngine(
            config,
            clock,
            rng=random.SystemRandom(),
            wiring=JobWiring(
                parallelism=lambda: self._config.parallelism,
                providers=(),
                serve=self._serve,
                send=self._send,
                drop=self._drop,
                control=self._control,
                process=lambda result: result,
                new_future=lambda: stored_future(self._callbacks),
                publish_event=self._bus.publish_event,
                report=logs.job_error,
                speed=self._speed,
                calibration=lambda row: self._history.calibration(row.model, Kind(row.kind)),
                outer_budget=self._budget_for,
                warn_dropped=UserWarnings(self._bus).dropped,
            ),
        )
        self._bus.subscribe(self._history, CallFinished)
        on_fork(self)
        on_exit(self)

    def after_fork(self) -> None:
        # the child has its own state; only the copies of the parent's futures must fail
        error = WrongProcess(
            "the job's futures belong to the parent process; look the job up again in this process"
        )
        if self._realtime is not None:
            self._realtime.abandon(error)
        self.engine.abandon(error)

    def at_exit(self, waited: float, *, interrupted: bool) -> None:  # noqa: ARG002
        self.close(max(0.0, self._config.exit_grace - waited))

    def close(self, timeout: float) -> None:
        with self._making:
            self._closed = True
            realtime = self._realtime
        began = self._clock.now()
        self.engine.halt()
        if realtime is not None:
            realtime.stop(timeout, "the store was closed")
        self.engine.finish(max(began + timeout, self._clock.now()) + STOP_STEP_SECONDS)
        if realtime is not None:
            realtime.close_providers()
        self._callbacks.close()

    def _serve(self, provider: Provider) -> None:
        if self._realtime is not None:
            self._realtime.serve(provider)

    def _send(self, item: RealtimeItem) -> Future[Result]:
        realtime = self._realtime_for(OpenedModel(item.provider, item.model))
        realtime.serve(item.provider)
        return ask_item(realtime, item)

    def _drop(self, future: Future[Result]) -> None:
        if self._realtime is not None:
            self._realtime.drop(future)

    def _control(self, controls: ModelControls) -> None:
        with self._making:
            realtime = self._realtime
        if realtime is not None:
            realtime.control(controls)

    def _speed(self, row: JobRow) -> Speed:
        self._history.refresh()
        call = self._history.latency(Route.INDIVIDUAL, row.model)
        cancelling = self._history.cancelling(row.model.partition(":")[0])
        throughput = Throughput(call, parallelism=self._config.parallelism)
        return Speed(throughput, cancelling, self._history.turnaround(row.model))

    def _budget_for(self, row: JobRow) -> Budget:
        provider = self.engine.providers.provider_of(row)
        if provider is None:
            raise ConfigError(f"this process has no key for the account of job {row.id}")
        return self._realtime_for(OpenedModel(provider, row.model.partition(":")[2])).budget

    def _realtime_for(self, model: OpenedModel) -> Realtime:
        with self._making:
            if self._closed:
                raise ClientClosed("the store was closed; open it again to continue the job")
            if self._realtime is None:
                preparer = RequestPreparer(Generation(), (), request_timeout=None, check=model.check)
                setup = RealtimeSetup(
                    self._config,
                    self._clock,
                    publish_event=self._bus.publish_event,
                    report=callback_raised,
                    calibration=self._history.calibration,
                )
                self._realtime = Realtime(setup, model, preparer)
                self._realtime.control(self.engine.controls.current)
            return self._realtime
