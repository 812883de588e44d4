"""The jobs of a store without a client: looking at them, acting on them, and carrying them on."""

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
from smartbatch.jobs.job import Job
from smartbatch.jobs.jobs_engine import JobsEngine
from smartbatch.jobs.records import Act, Acted, JobRow, JobSelection, actor, one_line
from smartbatch.jobs.status import JobStatus, status_of
from smartbatch.jobs.summary_records import StoredDecision
from smartbatch.jobs.wiring import JobWiring, RealtimeItem
from smartbatch.observe import logs
from smartbatch.observe.listeners import EventBus, UserWarnings
from smartbatch.providers.base import Provider
from smartbatch.providers.registry import OpenedModel
from smartbatch.realtime.engine import CallbackThread
from smartbatch.realtime.realtime import Realtime, stored_future
from smartbatch.realtime.setup import RealtimeSetup
from smartbatch.routing.history import ForecastHistory
from smartbatch.running import LAST_STEP, ask_item, callback_raised
from smartbatch.types import Duration, Generation, Kind, Result, Route, T


@final
class StoredJobs:
    """The jobs of one store, whatever model they were submitted for, without a client.

    Looking at them needs no key. Whoever waits for one has this process carry on the jobs of the store whose
    accounts it has the keys for. Items that go in real time are asked within the settings given here. A
    forked child begins anew. Every method raises :class:`StoreError` where the store cannot be used.

    Args:
        config: settings; ``store`` names the store. From the environment when ``None``.
        clock: time and waiting, for tests.
    """

    def __init__(self, config: BatchingConfig | None = None, clock: Clock | None = None) -> None:
        self.config = given_or_loaded(config)
        settings, time = self.config, clock or RealClock()
        self._states = PerProcess(lambda: _StoreState(settings, time))

    @property
    def place(self) -> str:
        """Where the store is: a path, or an address without its password."""
        return self._state.engine.store.place

    def job(self, id_or_key: str) -> Job:
        """Return a job by its id or its key.

        Raises:
            JobNotFound: the store has none.
        """
        return self._handle(self._state.engine.find(id_or_key))

    def jobs(self, *, unfinished: bool = False, limit: int = 1000) -> list[Job]:
        """Return jobs, newest first.

        Args:
            unfinished: only those that have not ended.
            limit: at most so many.
        """
        rows = self._state.engine.store.jobs.latest(limit=count_of("limit", limit), unfinished=unfinished)
        return [self._handle(row) for row in rows]

    def kept_decisions(self, beginning: str) -> list[tuple[str, StoredDecision]]:
        """Return decisions on jobs that were deleted but for these, with the keys of the jobs, newest first.

        Args:
            beginning: of the keys.
        """
        return self._state.engine.store.summaries.kept(beginning)

    def statuses(self, limit: int = 1000) -> list[JobStatus]:
        """Return the statuses of jobs, newest first, by one query for all of them.

        They have no batches and no incidents, and nothing that follows from batches: ``running`` is 0,
        ``remaining`` is ``None``. :meth:`~smartbatch.Job.status` has all of that.

        Args:
            limit: at most so many.
        """
        engine = self._state.engine
        wall = engine.clock.wall()
        return [
            status_of(row, (), asking=0, incidents=(), remaining=None, note=None, wall=wall)
            for row in engine.store.jobs.latest(limit=count_of("limit", limit))
        ]

    # -- acting ----------------------------------------------------------------------------------------------

    def pause(
        self, provider: str, model: str | None = None, *, reason: str | None = None, by: str | None = None
    ) -> Pause:
        """Have nothing new sent to a model, by any process that uses the store, until :meth:`resume`.

        Calls under way end, and batches that were sent are followed to their end. What waits goes on waiting,
        within its own time-outs, and nothing is lost. A process hears of it within two seconds, and one that
        starts later at once. A model that is paused already keeps its pause.

        Args:
            provider: the name before the colon, such as ``openai``.
            model: the name behind it; ``None`` for all models of the provider.
            reason: for those who wait.
            by: who acts; by default the user and the machine.
        """
        controls = self._state.engine.store.controls
        return self._acted(controls.pause(name_of(provider, model), one_line(reason), actor(by)))

    def resume(self, provider: str, model: str | None = None, *, by: str | None = None) -> bool:
        """End a pause; False where there is none. A model that was paused by its own name, and by that of its
        provider, goes on when both have ended."""
        return self._acted(self._state.engine.store.controls.resume(name_of(provider, model), actor(by)))

    def paused(self) -> list[Pause]:
        """Return the pauses that hold, oldest first."""
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
        """Set limits of a model in place of the settings ``max_rpm`` and ``max_tpm``, for all that use the
        store; ``None`` leaves those of the settings, or has them hold again.
        """
        given = {"requests_per_minute": requests_per_minute, "tokens_per_minute": tokens_per_minute}
        for field, value in given.items():
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (number and 0 < value <= sys.float_info.max):
                raise InvalidRequest(f"{field} = {value!r:.60} is no number above 0", field=field)
        self._acted(
            self._state.engine.store.controls.set_limit(
                name_of(provider, model), requests_per_minute, tokens_per_minute, actor(by)
            )
        )

    def limits(self) -> list[ModelLimit]:
        """Return the limits that were set, oldest first."""
        return list(self._state.engine.store.controls.controls().limits.values())

    def cancel_jobs(self, chosen: JobSelection, *, by: str | None = None) -> Acted:
        """Ask for jobs to be cancelled, by whoever carries them on; 1,000 at a time."""
        return self._acted(self._state.engine.store.acts.cancel(chosen, actor(by)))

    def resume_jobs(self, chosen: JobSelection, *, by: str | None = None) -> Acted:
        """Have held jobs go on; 1,000 at a time. This process does not carry them on by that."""
        return self._acted(self._state.engine.store.acts.resume(chosen, actor(by)))

    def forget_jobs(self, chosen: JobSelection, *, by: str | None = None) -> Acted:
        """Delete finished jobs, their requests and their results; 1,000 at a time."""
        store = self._state.engine.store
        ids, left_out = store.acts.finished(chosen)
        count = 0
        for job_id in ids:
            with suppress(JobNotFound):  # another process was quicker
                store.jobs.forget(job_id, actor(by))
                count += 1
        return Acted(count, left_out)

    def retry_jobs(self, chosen: JobSelection, *, billed: bool = False, by: str | None = None) -> Acted:
        """Ask the failed rows of jobs again, as :meth:`~smartbatch.Job.retry_failed`; 1,000 jobs at a time.

        Returns:
            how many rows are asked again, and how many jobs are left.
        """
        store = self._state.engine.store
        ids, left_out = store.acts.with_failed_rows(chosen)
        count = 0
        for job_id in ids:
            with suppress(JobNotFound):
                count += retry_failed(store, job_id, None, actor(by), billed=billed).count
        return self._acted(Acted(count, left_out))

    def acts(self, *, before: int | None = None, job_id: str | None = None, limit: int = 100) -> list[Act]:
        """Return what people did, newest first; the store remembers the latest 10,000 acts.

        Args:
            before: only those before the act of this number.
            job_id: only those on this job alone.
        """
        before, most = None if before is None else count_of("before", before), count_of("limit", limit)
        return self._state.engine.store.controls.latest(before=before, job_id=job_id, limit=most)

    def close(self, timeout: Duration | None = None) -> None:
        """Store what comes within ``timeout`` seconds, by default ``exit_grace``, and give the jobs back."""
        seconds = seconds_of("timeout", timeout)
        self._state.close(self.config.exit_grace if seconds is None else seconds)

    @property
    def _state(self) -> _StoreState:
        return self._states.get()

    def _acted(self, done: T) -> T:
        """Have this process hear of an act at once, where it carries jobs on."""
        self._state.engine.look_at_acts()
        return done

    def _handle(self, row: JobRow) -> Job:
        return Job(self._engine, row)

    def _engine(self) -> JobsEngine:
        return self._state.engine


class _StoreState:
    """What carries on the jobs of a store in one process. Real time is made with the first item that needs
    it.

    Attributes:
        engine: carries jobs on.
    """

    def __init__(self, config: BatchingConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._making = threading.Lock()
        self._realtime: Realtime | None = None
        self._closed = False
        self._bus = EventBus([logs.LogObserver()])
        self._callbacks = CallbackThread(clock, callback_raised)
        self._history = ForecastHistory(clock, self._bus.tell, store=lambda: self.engine.store)
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
                tell=self._bus.tell,
                report=logs.job_error,
                speed=self._speed,
                calibration=lambda row: self._history.calibration(row.model, Kind(row.kind)),
                outer_budget=self._budget_for,
                tell_dropped=UserWarnings(self._bus).dropped,
            ),
        )
        self._bus.subscribe(self._history, CallFinished)
        on_fork(self)
        on_exit(self)

    def after_fork(self) -> None:
        """In a forked child: end the copies of the parent's futures. The child's state is another one."""
        error = WrongProcess("the job's futures belong to the parent process; take your own")
        if self._realtime is not None:
            self._realtime.abandon(error)
        self.engine.abandon(error)

    def at_exit(self, waited: float, *, interrupted: bool) -> None:  # noqa: ARG002
        """At the interpreter's end: give the jobs back."""
        self.close(max(0.0, self._config.exit_grace - waited))

    def close(self, timeout: float) -> None:
        """Store what comes within ``timeout`` seconds, and give the jobs back."""
        with self._making:
            self._closed = True
            realtime = self._realtime
        began = self._clock.now()
        self.engine.halt()
        if realtime is not None:
            realtime.stop(timeout, "the store was closed")
        self.engine.finish(max(began + timeout, self._clock.now()) + LAST_STEP)
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
        """Return how fast requests of a job are answered in real time, by what the store knows of it."""
        self._history.refresh()
        call = self._history.latency(Route.INDIVIDUAL, row.model)
        cancelling = self._history.cancelling(row.model.partition(":")[0])
        throughput = Throughput(call, parallelism=self._config.parallelism)
        return Speed(throughput, cancelling, self._history.turnaround(row.model))

    def _budget_for(self, row: JobRow) -> Budget:
        provider = self.engine.providers.provider_of(row)
        if provider is None:
            raise ConfigError(f"the account of job {row.id} is not at hand in this process")
        return self._realtime_for(OpenedModel(provider, row.model.partition(":")[2])).budget

    def _realtime_for(self, model: OpenedModel) -> Realtime:
        """Return the real-time part; it asks for jobs of any model."""
        with self._making:
            if self._closed:
                raise ClientClosed("the store was closed; the job can be taken up again")
            if self._realtime is None:
                preparer = RequestPreparer(Generation(), (), request_timeout=None, check=model.check)
                setup = RealtimeSetup(
                    self._config,
                    self._clock,
                    tell=self._bus.tell,
                    report=callback_raised,
                    calibration=self._history.calibration,
                )
                self._realtime = Realtime(setup, model, preparer)
                self._realtime.control(self.engine.controls.current)
            return self._realtime
