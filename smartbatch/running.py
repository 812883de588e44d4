"""The running parts of a client in one process: real time, jobs and routing, all connected in this module."""

from __future__ import annotations

import random
import secrets
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from attrs import Factory, evolve, field, frozen

from smartbatch._clock import Clock, RealClock
from smartbatch._fork import PerProcess, on_exit, on_fork, reentered, run_after_collection
from smartbatch.config import BatchingConfig, ClientParams
from smartbatch.core.preparation.preparer import Preprocess, RequestPreparer
from smartbatch.core.preparation.validation import admit_defaults
from smartbatch.errors import ConfigError, SmartbatchError, StoreError, did_you_mean
from smartbatch.events import (
    BatchEnded,
    BreakerChanged,
    CallFinished,
    ClientStarted,
    CooldownStarted,
    ExplicitCacheEnded,
    ForecastMoved,
    JobAccepted,
    JobFinished,
    JobProgress,
    JobResultsStored,
    LongWait,
    Observer,
    PauseChanged,
    RequestFinished,
    RetryScheduled,
    ShardChanged,
)
from smartbatch.jobs.job_options import check_priced, checked_key
from smartbatch.jobs.threads import OwnThreads
from smartbatch.observe import logs
from smartbatch.observe.listeners import EventBus, UserWarnings
from smartbatch.observe.metrics import BatchMetrics
from smartbatch.observe.opentelemetry import record_content, under, with_telemetry
from smartbatch.observe.participants import RealtimeStatus, with_figures
from smartbatch.providers.price_book import PriceBook
from smartbatch.providers.registry import OpenedModel, open_model, parse_model
from smartbatch.realtime.call import References
from smartbatch.realtime.engine import CallbackThread, stored_future
from smartbatch.realtime.realtime import Realtime
from smartbatch.realtime.setup import Parallelism, RealtimeSetup, UserHooks
from smartbatch.realtime.ticket import CallOptions, ResultFuture, wrong_process_error
from smartbatch.routing.advisor import Advisor
from smartbatch.routing.awaited_places import AnswerFutures, AwaitedPlaces
from smartbatch.routing.history import ForecastHistory, process_memory
from smartbatch.routing.list_planner import ListPlanner
from smartbatch.routing.list_results import RouteTaker
from smartbatch.routing.lists import ListRouter
from smartbatch.routing.stored_lists import Reading, StoredLists
from smartbatch.routing.stored_requests import StoredRequests
from smartbatch.sharing.addresses import check_address
from smartbatch.sharing.limit_leases import EnqueuedTokens
from smartbatch.types import Generation, Kind, Prompt, Request, Usage

if TYPE_CHECKING:
    from smartbatch.core.routing.outcome import ListDecision
    from smartbatch.jobs.job_budget import ClientBudget
    from smartbatch.jobs.job_submission import JobSubmission
    from smartbatch.jobs.realtime_caches import RealtimeCaches
    from smartbatch.jobs.wiring import JobWiring, RealtimeItem

STEP_GRACE_SECONDS = 30.0
"""Seconds a stop without a timeout waits for remote calls of jobs, because an interrupted creation of a batch
requires a search later.
"""
STOP_STEP_SECONDS = 0.6
"""Time to store results and complete calls in progress when a stop has timed out."""
STORE_WAIT_SECONDS = 3.0
MIN_STOP_STEP_SECONDS = 0.25
"""Minimum of that time, if calls and their callbacks took too long."""
LAST_EVENTS_SECONDS = 0.85
"""Additional wait for callbacks when a stop has timed out."""


@frozen(eq=False, repr=False)
class ClientSettings:
    """The validated settings of a client, the same in every process."""

    config: BatchingConfig
    clock: Clock
    rng: random.Random | None  # ``None`` for one per process
    model: OpenedModel
    fallback: OpenedModel | None  # used while the breaker of ``model`` is open
    preparer: RequestPreparer
    hooks: UserHooks
    # the user's; :meth:`BatchingClient.observe` appends to it
    observers: list[Observer] = field(factory=list)
    # maximum calls in flight, changed by ``set_parallelism``
    parallelism: Parallelism = Factory(lambda self: Parallelism(self.config.parallelism), takes_self=True)

    @classmethod
    def of(
        cls,
        config: BatchingConfig,
        clock: Clock,
        rng: random.Random | None,
        model: OpenedModel,
        provider_options: Mapping[str, Any] | None,
        generation: Generation,
        preprocess: Sequence[Preprocess],
        hooks: UserHooks,
        observers: Sequence[Observer],
    ) -> ClientSettings:
        """Check the settings together.

        Args:
            provider_options: options of ``model``, also passed to a fallback model of the same provider.

        Raises:
            ConfigError: the fallback model, the store or the address of shared limits cannot be used, or a
                budget is set but a price is unknown.
            StoreError: the name of the store is invalid.
            InvalidRequest: a parameter of ``generation`` is out of range.
        """
        check_address(config.shared, clock.now)
        if config.store is not None:
            from smartbatch.jobs.store import check_place  # imported late: most programs have no store

            check_place(config.store)
        fallback = None
        if config.fallback_model is not None:
            same = parse_model(config.fallback_model)[0] == model.provider.name
            fallback = open_model(config.fallback_model, None, provider_options if same else None, clock)
        PriceBook(config.prices).check_references(clock.wall())
        if config.budget is not None:
            check_priced(config, clock, model, fallback)
        preparer = RequestPreparer(
            admit_defaults(generation),
            tuple(preprocess),
            request_timeout=config.request_timeout,
            check=model.check,
            deduplicate=config.deduplicate,
            named=model.named,
        )
        if config.telemetry_content:
            hooks = evolve(hooks, middleware=(*hooks.middleware, record_content))
        heard: list[Observer] = [logs.LogObserver(), *with_telemetry(config.telemetry, observers)]
        return cls(config, clock, rng, model, fallback, preparer, hooks, heard)


class RunningState:
    """The parts of a client in one process: real time, jobs, routing, and the events between them.

    Creating it starts and opens nothing. Parts are built in the order of their dependencies; later parts
    reach earlier ones through events.
    """

    def __init__(self, settings: ClientSettings) -> None:
        config, clock, model, hooks = settings.config, settings.clock, settings.model, settings.hooks
        self._settings = settings
        self._clock = clock
        self._grace = config.exit_grace
        self._carries_store = config.store is not None
        self._bus = EventBus(settings.observers)
        self._warnings = UserWarnings(self._bus)
        self._jobs: JobSubmission | None = None
        self._jobs_halted = False
        # reentrant, because a signal handler may need jobs while they are being created
        self._making_jobs = threading.RLock()
        self._is_heard = False
        self.metrics = BatchMetrics(
            max_batch_size=config.max_batch_size,
            queue_capacity=config.queue_capacity,
            now=clock.now,
            prepare=partial(_learn, weakref.ref(self)),
        )
        self.history = ForecastHistory(
            clock, self._forecast_moved, store=lambda: self.jobs.engine.store, memory=process_memory()
        )
        self._prices = PriceBook(config.prices)
        self._caches = self._new_caches()
        self.realtime = realtime = self._new_realtime()
        self.advisor = advisor = Advisor(
            model,
            config,
            clock=clock,
            prices=self._prices,
            history=self.history,
            realtime=realtime,
            publish_event=self._bus.publish_event,
            parallelism=settings.parallelism,
        )
        self._callbacks = callbacks = CallbackThread(clock, callback_raised, hooks.run_callback)
        reading = Reading(realtime.admission, realtime.process)
        self.planner = ListPlanner(
            config,
            clock,
            model=model,
            fallback=settings.fallback,
            preparer=settings.preparer,
            realtime=realtime,
            advisor=advisor,
        )
        stored_lists = StoredLists(settings.preparer, realtime, lambda: self.jobs, reading)
        routes = RouteTaker(config, clock, self.planner, realtime, stored_lists, self._note_decision)
        self.routing = ListRouter(
            config, clock, self.planner, realtime=realtime, jobs=lambda: self.jobs, routes=routes
        )
        self.stored = StoredRequests(
            config,
            clock,
            model=model,
            preparer=settings.preparer,
            realtime=realtime,
            jobs=lambda: self.jobs,
            callbacks=callbacks,
            places=AwaitedPlaces(clock, lambda: self.jobs, reading),
            routing=self.routing,
        )
        self.submit = self.stored.defer if config.deferrable == "batch" else realtime.submit_request
        self._subscribe()
        on_fork(self)
        on_exit(self)

    def _new_realtime(self) -> Realtime:
        settings, rng = self._settings, self._settings.rng or random.Random()
        setup = RealtimeSetup(
            settings.config,
            settings.clock,
            rng,
            publish_event=self._bus.publish_event,
            report=callback_raised,
            hooks=settings.hooks,
            calibration=self.history.calibration,
            fallback=settings.fallback,
            metrics=self.metrics,
            read_controls=self._read_controls,
            parallelism=settings.parallelism,
            references=self._references(),
            caches=self._caches,
        )
        return Realtime(setup, settings.model, settings.preparer)

    def _new_caches(self) -> RealtimeCaches | None:
        """Without a store, nothing could record explicit caches for deletion."""
        config = self._settings.config
        if config.store is None or config.prompt_caching == "off":
            return None
        from smartbatch.jobs.realtime_caches import RealtimeCaches

        return RealtimeCaches(self._clock, lambda: self.jobs.engine.store, self._charge_cache)

    def _charge_cache(self, model: str, tokens: int) -> None:
        """Charge the client for what an explicit cache has cost since its last request."""
        usage, budget = Usage(explicit_cache_tokens=tokens), self.realtime.budget
        provider, _, name = model.partition(":")
        rates = self._prices.rates(provider, name, self._clock.wall())
        cost = None if rates is None else rates.cost(usage)
        if cost:
            self.realtime.guard_budget(lambda: budget.reconcile(budget.reserve(0.0), cost))
        self._bus.publish_event(ExplicitCacheEnded(at=self._clock.now(), model=model, usage=usage, cost=cost))

    def _references(self) -> References | None:
        """Without a store, nothing is uploaded, because nothing could record it for deletion."""
        config = self._settings.config
        if config.store is None:
            return None
        from smartbatch.jobs.uploading import RealtimeUploads

        return RealtimeUploads(self._clock, lambda: self.jobs.engine.store, config.batch_retention)

    @property
    def jobs(self) -> JobSubmission:
        """The jobs, created with the first job or when the store is needed; most clients have none."""
        if (jobs := self._jobs) is not None:
            return jobs
        with self._making_jobs:
            if self._jobs is None:
                self._make_jobs()
            assert self._jobs is not None
            return self._jobs

    def _make_jobs(self) -> None:
        """Create the jobs engine, unless a signal handler has just created it."""
        from smartbatch.core.limits.budget_reservations import JobReservations
        from smartbatch.jobs.job_budget import ClientBudget
        from smartbatch.jobs.job_submission import JobSubmission
        from smartbatch.jobs.jobs_engine import JobsEngine

        settings, realtime = self._settings, self.realtime
        config, clock, rng = settings.config, settings.clock, settings.rng or random.SystemRandom()
        budget = ClientBudget(
            JobReservations(realtime.budget, realtime.guard_budget, _account(config), realtime.await_budget),
            lambda: engine.store,
        )
        engine = JobsEngine(config, clock, rng=rng, wiring=self._job_wiring(budget))
        jobs = JobSubmission(
            config,
            clock,
            model=settings.model,
            fallback_model=settings.fallback,
            preparer=settings.preparer,
            engine=engine,
            budget=budget,
        )
        if self._jobs is None:
            self._bus.subscribe(engine.summaries, RequestFinished)
            self._bus.subscribe(engine.summaries.cache_ended, ExplicitCacheEnded)
            self._bus.subscribe(budget, JobResultsStored, JobProgress, JobFinished, ShardChanged)
            self._jobs = jobs
            if self._jobs_halted:
                engine.halt()

    def _job_wiring(self, budget: ClientBudget) -> JobWiring:
        from smartbatch.jobs.wiring import JobWiring

        settings, realtime, history, callbacks = self._settings, self.realtime, self.history, self._callbacks
        return JobWiring(
            providers=(settings.model.provider,),
            serve=realtime.serve,
            send=partial(ask_item, realtime),
            drop=realtime.drop,
            control=realtime.control,
            process=settings.hooks.process,
            new_future=lambda: stored_future(callbacks),
            run_callback=settings.hooks.run_callback,
            publish_event=self._bus.publish_event,
            report=logs.job_error,
            speed=self.advisor.speed,
            calibration=lambda row: history.calibration(row.model, Kind(row.kind)),
            outer_budget=budget.next_to,
            shares=realtime.admission.shares,
            reopen=budget.reopen,
            warn_dropped=self._warnings.dropped,
            exchange_enqueued=_enqueued(settings),
            parallelism=lambda: settings.parallelism.calls,
        )

    def _subscribe(self) -> None:
        """Subscribe the parts to events. The order matters."""
        bus = self._bus
        bus.subscribe_to_all(self.metrics)
        bus.subscribe(self.history, CallFinished)
        bus.subscribe(self.advisor.batch_ended, BatchEnded)  # before forecasts use it
        bus.subscribe(self.history.batch_ended, BatchEnded)
        bus.subscribe(self.routing.job_finished, JobFinished)
        shown = (CooldownStarted, LongWait, RetryScheduled, BreakerChanged, PauseChanged)
        bus.subscribe(self.routing.displays, *shown)
        bus.subscribe(self._started, ClientStarted)
        bus.subscribe(self._accepted, JobAccepted)

    def submit_prompt(self, prompt: Prompt, params: Mapping[str, Any]) -> ResultFuture:
        """Queue the request for a prompt, or one request per answer; see
        :meth:`smartbatch.BatchingClient.submit`.
        """
        preparer = self._settings.preparer
        if "durable" not in params and "key" not in params:
            request, submit = preparer.request(prompt, params), self.submit
            if request.params.n is None:
                return submit(request)

            def submit_numbered(request: Request, number: int) -> ResultFuture:  # noqa: ARG001
                return submit(request)

        else:
            given = dict(params)
            durable, key = given.pop("durable", None), checked_key(given.pop("key", None))
            request = preparer.request(prompt, given)

            def submit_numbered(request: Request, number: int) -> ResultFuture:
                own = key if key is None or not number else f"{key}#{number + 1}"
                return self.stored.submit_durable(request, own, durable=durable)

        samples = preparer.samples(request)
        if len(samples) == 1:
            return submit_numbered(samples[0], 0)
        run_later, on_interrupt = self._callbacks.run_later, self.stored.cancel_pending
        return AnswerFutures(samples, submit_numbered, run_later, on_interrupt).whole

    @property
    def uses_store(self) -> bool:
        return self._jobs is not None and self._jobs.engine.client_store.opened is not None

    @property
    def status(self) -> RealtimeStatus:
        recent = self.metrics.recent(self._clock.wall())
        return with_figures(self.realtime.status(), self.metrics.counted(), recent)

    @property
    def spent(self) -> float:
        """USD of real-time calls and jobs, if prices are known."""
        unreserved = 0.0 if self._jobs is None else self._jobs.unreserved
        return self.realtime.budget.spent + unreserved

    def start(self) -> None:
        """Start the threads, including after a stop."""
        self.realtime.allow_start()
        self.stored.open()
        with self._making_jobs:
            self._jobs_halted = False
            if self._jobs is not None:
                self._jobs.engine.open()
        self.realtime.start()

    def stop_from_anywhere(self, timeout: float | None, *, cancel_waiting: bool) -> None:
        """Stop for the user; in the background if the caller must not wait, as on a thread of the client or
        in a signal handler that interrupted this library.
        """
        stop = partial(self.stop, timeout, "the client was stopped", cancel_waiting=cancel_waiting)
        own = any(part.on_own_thread() for part in (self.realtime, self.stored))
        own = own or (self._jobs is not None and self._jobs.engine.on_own_thread())
        if not own and not reentered():
            stop()
            return
        # no thread can be started: the interpreter is exiting, and stops all clients
        with suppress(RuntimeError):
            OwnThreads(self._clock).start(stop, "smartbatch-stop")

    def stop(self, timeout: float | None, reason: str, *, cancel_waiting: bool = False) -> int:
        """Complete pending requests within ``timeout`` seconds, fail the rest, release the jobs, and end the
        threads.

        Returns the number of lost requests. With ``cancel_waiting`` only real-time calls in flight are
        completed, and jobs of deferred requests stay in the store.
        """
        if cancel_waiting:
            self.stored.cancel_pending()
        began = self._clock.now()
        try:
            self.stored.finish(timeout, wait=not cancel_waiting)
        except BaseException:  # Ctrl-C: stop waiting, but complete every future
            self.stored.cancel_pending()
            self._stop_parts(self._clock.now() + self._grace, reason)
            raise
        return self._stop_parts(None if timeout is None else began + timeout, reason)

    def _stop_parts(self, end: float | None, reason: str) -> int:
        """Stop all parts by the monotonic time ``end``; return the number of lost requests."""
        self.halt_jobs()
        try:
            timeout = None if end is None else max(0.0, end - self._clock.now())
            return self.realtime.stop(timeout, reason, lambda: self._delete_caches(end))
        finally:
            until, last = self._step_end(end), self._clock.now() + STEP_GRACE_SECONDS
            if end is not None:
                last = end + LAST_EVENTS_SECONDS
            self.history.hand_over()
            if self._jobs is not None:  # after the requests, so that arrived answers are stored
                self._jobs.engine.finish(until, self.history.save)
            self._callbacks.drain(max(0.0, last - self._clock.now()))
            self._callbacks.close()
            self.realtime.unpublish()
            self.realtime.close_providers()
            logs.user_errors_left()

    def _step_end(self, end: float | None) -> float:
        if end is None:
            return self._clock.now() + STEP_GRACE_SECONDS
        return max(end + STOP_STEP_SECONDS, self._clock.now() + MIN_STOP_STEP_SECONDS)

    def _delete_caches(self, end: float | None) -> None:
        if self._caches is not None:
            self._caches.finish(self._step_end(end))

    def halt_jobs(self) -> None:
        """Start no further call of any job. Does not take the lock under which jobs are created."""
        self._jobs_halted = True
        if self._jobs is not None:
            self._jobs.engine.halt()

    def after_fork(self) -> None:
        """In a forked child, fail the copies of the parent's futures. The child has its own state."""
        error = wrong_process_error()
        self.realtime.abandon(error)
        self.stored.abandon(error)
        if self._jobs is not None:
            self._jobs.engine.abandon(error)

    def at_exit(self, waited: float, *, interrupted: bool) -> None:
        """Give pending work its grace period at the exit of the interpreter, then fail and report the
        rest."""
        grace = max(0.0, self._grace - waited)
        lost = self.stop(grace, "the interpreter is exiting", cancel_waiting=interrupted)
        if not interrupted:
            self._warnings.lost(lost, self._grace)

    def forgotten(self) -> None:
        """Complete pending requests of a client that is no longer referenced and stop, on a separate
        thread."""
        if self.realtime.engine is None and not self._carries_jobs:
            return
        self._clock.spawned()  # registers this thread with the clock, like the client's threads
        self._clock.began()
        try:
            self.stop(None, "the client is no longer referenced")
        finally:
            self._clock.ended()

    @property
    def _carries_jobs(self) -> bool:
        return self._jobs is not None and self._jobs.engine.is_working

    def _note_decision(self, decision: ListDecision) -> None:
        """Store the decision for a list that is not a job, if a store is in use. Store it again once the
        outcome has been measured.
        """
        if self._jobs is not None:
            self._jobs.engine.summaries.decided(decision)

    def _forecast_moved(self, event: ForecastMoved) -> None:
        self._bus.publish_event(event)
        self.advisor.learned(event)  # may publish further events, which must come later

    def _read_controls(self) -> None:
        """Read pauses and limits before the first request, if a store answers in time."""
        if not self._carries_store and not self._carries_jobs:
            return
        engine = self.jobs.engine
        self._is_heard = False
        try:
            engine.client_store.read_within(lambda: engine.store, STORE_WAIT_SECONDS, _late)
            engine.controls.read()
        except SmartbatchError as error:  # real-time requests do not need it
            logs.job_error(None, error)
        else:
            self._is_heard = True

    def _started(self, _: ClientStarted) -> None:
        """Run the jobs of a configured store. Each process that uses the store does a share of the work and
        stores its measurements.

        If the store is unavailable, this happens as soon as it becomes available.
        """
        if not self._carries_store:
            return
        engine = self.jobs.engine
        if self._is_heard:
            try:
                engine.carry_on()
                self.history.refresh()
            except SmartbatchError as error:
                logs.job_error(None, error)
            else:
                return
        engine.carry_on_later(self.history.refresh)

    def _accepted(self, _: JobAccepted) -> None:
        """Appear among the processes that share limits, even if nothing is sent in real time."""
        with suppress(ConfigError):  # jobs do not need shared limits
            self.realtime.publish()


def forget(states: PerProcess[RunningState]) -> None:
    """Stop the running parts of a collected client. Called by its ``__del__``, which may interrupt any code.

    ``weakref.finalize`` would keep the running parts alive, including observers and hooks that refer to the
    client.
    """
    running = states.peek()
    if running is not None:
        run_after_collection(running.forgotten)


def ask_item(realtime: Realtime, item: RealtimeItem) -> ResultFuture:
    """Send an item of a job in real time; it is post-processed when it is read."""
    options = CallOptions(
        OpenedModel(item.provider, item.model),
        sink=item.sink,
        raw=True,
        own_budget=item.own_budget,
        alone=item.alone,
        flex=item.flex,
        keeps_going=item.keeps_going,
    )
    return under(item.traceparent, lambda: realtime.enqueue(item.request, options))


def _learn(running: weakref.ref[RunningState]) -> None:
    """Update forecasts with finished calls. The metrics may outlive their client."""
    found = running()
    if found is not None:
        found.history.learn()


def _account(config: BatchingConfig) -> str:
    """Return the name of the client's budget in jobs, equal for all clients that share it."""
    return secrets.token_hex(8) if config.budget_scope == "client" else config.budget_scope


def _enqueued(settings: ClientSettings) -> EnqueuedTokens | None:
    """Return the quotas of enqueued tokens, which processes share like request limits."""
    config, clock = settings.config, settings.clock
    by_itself = settings.model.provider.capabilities.priced and isinstance(clock, RealClock)
    if config.shared == "off" or (config.shared == "auto" and not by_itself):
        return None
    return EnqueuedTokens(config.shared, clock)


def _late(_: str) -> StoreError:
    within = f"{STORE_WAIT_SECONDS:.3g} s"
    return StoreError(f"the store has not answered for {within}; real-time requests are sent without it")


def callback_raised(error: BaseException) -> None:
    logs.warn("callback_raised", error=type(error).__name__)
    logs.user_error("a callback", error)


def why_not_settable(client: type, name: str, value: Any) -> str:
    """Return why an attribute of a client cannot be set, and what to do instead."""
    if name == "parallelism":
        return f"change parallelism with client.set_parallelism({value!r:.20})"
    if name in ClientParams.__optional_keys__ or isinstance(getattr(client, name, None), property):
        return f"{name} cannot be changed: create a client with it, BatchingClient(model, {name}=…)"
    names = (each for each in dir(client) if not each.startswith("_"))
    return f"a BatchingClient has no attribute {name!r:.60}{did_you_mean(name, names)}"
