"""The real-time part of a client: accepts requests from any number of threads and returns futures.

Within one process, it lives as long as its client, through any number of starts and stops. Each run has its
own :class:`~smartbatch.realtime.engine.RealtimeEngine` with threads, queue and gates.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from attrs import evolve

from smartbatch._fork import something_ended, something_started
from smartbatch.core.limits.budget import Budget
from smartbatch.core.limits.model_controls import ModelControls
from smartbatch.core.prefixes.entries import StopReason
from smartbatch.core.preparation.fingerprint import object_key
from smartbatch.core.preparation.preparer import RequestPreparer
from smartbatch.errors import ClientClosed, InvalidRequest, WrongProcess
from smartbatch.events import ClientStarted, ClientStopped, Event
from smartbatch.observe.listeners import warn_of_unbounded_answers
from smartbatch.observe.participants import RealtimeStatus
from smartbatch.providers.base import Provider
from smartbatch.providers.registry import OpenedModel
from smartbatch.realtime.admission import Admission
from smartbatch.realtime.bounded_map import BoundedMap, ListOptions
from smartbatch.realtime.effects import parameters_dropped, request_finished, request_submitted
from smartbatch.realtime.engine import LAST_CALLBACK_SECONDS, RealtimeEngine
from smartbatch.realtime.queue import RequestCounts
from smartbatch.realtime.setup import RealtimeSetup
from smartbatch.realtime.text_stream import ChunkBox, TextStream
from smartbatch.realtime.ticket import CallOptions, ResultFuture, Submission
from smartbatch.sharing.limit_leases import BudgetShare, SharedLeases, leases_of, shared_leases
from smartbatch.types import Answer, Request, Result, Route

_T = TypeVar("_T")


def _status(realtime: weakref.ref[Realtime], hide: Callable[[str], str]) -> RealtimeStatus | None:
    """Return the status of a client that still exists, without keeping it alive."""
    found = realtime()
    return None if found is None else found.status(hide)


class Realtime:
    """Sends requests one by one, or several per call, while their callers wait.

    Args:
        model: the default; items of jobs name their own model.
    """

    def __init__(self, setup: RealtimeSetup, model: OpenedModel, preparer: RequestPreparer) -> None:
        self._setup = setup
        self._config = setup.config
        self._clock = setup.clock
        self._preparer = preparer
        self.model = model
        shares_budget = setup.config.budget_scope != "client"
        # the client's budget, which outlives a stop
        self.budget = Budget(0.0 if shares_budget else setup.config.budget)
        self._lock = threading.Lock()  # guards the budget and the monitors of all engines
        self._budget_share: BudgetShare | None = None
        self._leased = setup.clock.monitor(self._lock)
        self.admission = Admission(model, setup)
        opened = (one.provider for one in (model, setup.fallback) if one is not None)
        self._providers: dict[int, Provider] = {id(provider): provider for provider in opened}
        self._opening = threading.Lock()
        self._starting = threading.Lock()
        self._lists: weakref.WeakSet[BoundedMap] = weakref.WeakSet()
        self.engine: RealtimeEngine | None = None  # None while no threads run
        self._stopping: tuple[RealtimeEngine, ...] = ()  # engines being stopped, oldest first
        self._counts = RequestCounts()
        self._controls = ModelControls()
        self._published_to: SharedLeases | None = None  # makes the status visible to other processes
        self._is_stopped = self._has_warned = False

    # -- requests --------------------------------------------------------------------------------------------

    def submit_request(self, request: Request) -> ResultFuture:
        """Queue one normalized request.

        Raises:
            InvalidRequest: a hook rejects it, or the provider cannot accept it.
            QueueFull, ClientClosed: see :class:`~smartbatch.realtime.queue.RequestQueue`.
        """
        return self._submit(request, CallOptions(self.model))

    def stream(self, request: Request) -> TextStream:
        """Queue one normalized request and stream its answer.

        Raises:
            InvalidRequest: as in :meth:`submit_request`, or this is an embedding request.
            QueueFull, ClientClosed: as in :meth:`submit_request`.
        """
        if request.embedding is not None:
            raise InvalidRequest("embeddings cannot be streamed; use submit_embedding", field="embedding")
        box = ChunkBox(self._clock)
        self._submit(request, CallOptions(self.model, sink=box.end, stream=box))
        return TextStream(box)

    def map(self, requests: Iterable[Request], options: ListOptions) -> BoundedMap:
        def submit(request: Request, sink: Callable[[Result], None]) -> ResultFuture:
            call = CallOptions(
                self.model,
                sink=sink,
                own_budget=options.own_budget,
                alone=options.route is Route.INDIVIDUAL,
                flex=options.route is Route.FLEX,
                keeps_going=options.stop is None,
            )
            return self._submit(request, call)

        if options.ahead is None:
            options = evolve(options, ahead=self._config.queue_capacity)
        options = evolve(options, calls=self._setup.parallelism.calls)
        results = BoundedMap(requests, submit, self._clock, options, self._abandon_futures)
        with self._starting:
            self._lists.add(results)
        return results

    def never_waits(self, request: Request) -> bool:
        """Return whether a request's purpose requires a separate, immediate call."""
        return request.purpose in self._config.prefer_individual_for

    def enqueue(
        self, request: Request, options: CallOptions, future: ResultFuture | None = None
    ) -> ResultFuture:
        """Queue a validated and preprocessed request; raises what :meth:`submit_request` raises.

        Args:
            future: receives the result; ``None`` creates a new future.
        """
        # 1. The answer is cached, and there is no middleware: complete the request immediately.
        admission, hooks, config = self.admission, self._setup.hooks, self._config
        model = options.model.of(request)
        streamed = options.stream is not None
        own = self.model.of(request).is_same(model.provider, model.name)
        shared, kept = (None, None) if streamed or not own else admission.keys(request)
        if hooks.middleware:  # AnswerSharing shows cached answers to middleware
            kept = None
        known = admission.cached_result(request, kept)
        if known is not None:
            result = hooks.process(known) if known.ok and not options.raw else known
            return self._settled(request, result, options, future)
        # 2. It is streamed: queue it in the standard lane, and do not share its answer.
        # 3. Queue it in the lane for its kind, or in the flex lane if the options request it.
        engine = self._running()  # read once: a lane belongs to one engine, and another may start
        flex = options.flex and not streamed
        lane = engine.lanes.of(model.provider, model.name, request.embedding, flex=flex)
        if not streamed:
            lane = lane.lane_for(request, self._clock.now())
        if shared is not None:
            shared = object_key(shared, request)
            if lane.standard is not None:
                shared += b"flex"  # a request that pays for speed must not join one in the flex tier
        estimated = lane.calibration.estimate(request)
        if lane.cache is not None and estimated >= lane.cache.rules.min_tokens:
            request = engine.recognized(lane, request)
        # the cost matters only with a budget
        priced = options.own_budget is not None or config.budget is not None
        if priced and not config.allow_unknown_price and lane.names_unpriced_tier(request):
            raise InvalidRequest(
                f"a budget is set, but the price of {lane.label} in the priority tier is unknown: leave the "
                "tier out, add a price to prices, or set allow_unknown_price",
                field="extra",
            )
        tokens, reserve = lane.demand(request, estimated, priced=priced)
        if priced:
            self.warn_of_unbounded(request)
        return engine.admit(
            Submission(
                request,
                admission.id_of(request),
                lane,
                options,
                fingerprint=shared,
                cache_key=kept,
                input_tokens=estimated,
                tokens=tokens,
                reserve=reserve,
            ),
            future,
        )

    def warn_of_unbounded(self, request: Request) -> None:
        """Log once that answers without ``max_tokens`` can exceed a budget."""
        bounded = request.params.max_tokens is not None or request.embedding is not None
        if bounded or request.call is not None or self._has_warned:
            return
        if self.model.provider.capabilities.priced:
            self._has_warned = True
            warn_of_unbounded_answers(self._config.parallelism)

    def process(self, result: Result) -> Result:
        return self._setup.hooks.process(result)

    def drop(self, future: Any) -> None:
        """Cancel a request of :meth:`enqueue` whose call has not started, or that waits for a retry."""
        engines = self._engines()
        if not engines:
            future.cancel()
        elif isinstance(future, ResultFuture):
            for engine in engines:
                engine.drop(future)

    def submit_prepared(
        self, request: Request, prepared: Request | Answer, future: ResultFuture | None = None
    ) -> ResultFuture:
        return self._submit_prepared(request, prepared, CallOptions(self.model), future)

    def cancelled(self, future: ResultFuture) -> None:
        """Remove the request of a cancelled future that was passed to :meth:`enqueue`."""
        for engine in self._engines():
            engine.cancelled(future)

    def _submit(self, request: Request, options: CallOptions) -> ResultFuture:
        return self._submit_prepared(request, self._preparer.preprocessed(request), options)

    def _submit_prepared(
        self,
        request: Request,
        prepared: Request | Answer,
        options: CallOptions,
        future: ResultFuture | None = None,
    ) -> ResultFuture:
        if isinstance(prepared, Answer):
            known = self.admission.hook_result(request, prepared)
            return self._settled(request, self.process(known) if known.ok else known, options, future)
        self._preparer.check(prepared)
        if not options.alone and self.never_waits(prepared):
            options = evolve(options, alone=True)
        return self.enqueue(prepared, options, future)

    def _settled(
        self, request: Request, result: Result, options: CallOptions, future: ResultFuture | None
    ) -> ResultFuture:
        """Complete a request that needs no call. It is counted, but not queued, and costs nothing."""
        engine, now, label = self._running(), self._clock.now(), self.model.of(request).label
        if options.stream is not None:
            result = evolve(result, time_to_first_chunk=0.0)
        if future is None:
            future = ResultFuture(engine.callbacks.run_later, lambda _: None)
        if not future.running():
            future.set_running_or_notify_cancel()
        self._setup.publish_event(request_submitted(request, result.request_id, label, now, joined=False))
        future.complete(result)
        if options.sink is not None:
            options.sink(result)
        for dropped in parameters_dropped(request, result, now):
            self._setup.publish_event(dropped)
        self._setup.publish_event(request_finished(request, result, label, now, now, of_job=options.raw))
        return future

    def _abandon_futures(self, futures: list[ResultFuture]) -> None:
        """Cancel requests whose results will not be read.

        Finalisers call this, so it runs no user code and takes no lock.
        """
        for engine in self._engines():
            engine.abandon_futures(futures)

    # -- lifecycle -------------------------------------------------------------------------------------------

    def allow_start(self) -> None:
        with self._starting:
            self._is_stopped = False

    def start(self) -> RealtimeEngine:
        """Return the engine, starting it if none is running.

        Providers are opened under a separate lock, which requests do not wait for while an engine is running.

        Raises:
            ClientClosed: the client was stopped; see :meth:`allow_start`.
            RuntimeError: the system allows no further thread.
        """
        with self._opening:
            engine = self.engine
            if engine is not None:
                return engine
            self._check_not_stopped()
            for provider in list(self._providers.values()):
                provider.open(self._setup.parallelism.calls)
            share, leases = self._shared_budget(), self._leases()
            self._setup.read_controls()  # so that a pause applies from the first request
            if share is not None:  # must happen before any request can wait for the shared budget
                share.leases.join(share)
            try:
                with self._starting:
                    self._check_not_stopped()
                    engine = self.engine = RealtimeEngine(
                        self._setup, self.budget, self._lock, self.admission.cache, self._controls
                    )
            except BaseException:
                if share is not None:
                    share.leases.leave(share)
                raise
            self._publish_at(leases)
        something_started()
        self._setup.publish_event(ClientStarted(at=self._clock.now(), workers=self._setup.parallelism.calls))
        return engine

    def _shared_budget(self) -> BudgetShare | None:
        """Return the client's part of a budget that processes share.

        Raises:
            ConfigError: the address of the shared store cannot be read.
        """
        config = self._config
        if config.budget_scope == "client" or config.budget is None:
            return None
        if self._budget_share is None:
            leases = shared_leases(config.shared, self._clock)
            self._budget_share = BudgetShare(leases, config.budget_scope, config.budget, self)
        return self._budget_share

    def control(self, controls: ModelControls) -> None:
        with self._starting:
            self._controls = controls
            engines = self._engines()
        for engine in engines:
            engine.control(controls)

    def resize(self, calls: int) -> None:
        """Apply a new parallelism. Calls in flight are not interrupted."""
        with self._opening:
            engine = self.engine
            if engine is not None:
                for provider in list(self._providers.values()):
                    provider.open(calls)
        if engine is not None:
            engine.dispatcher.resize()

    def recheck_budget(self) -> None:
        with self._leased:
            self._leased.notify_all()
        for engine in self._engines():
            engine.dispatcher.wake()

    def publish_event(self, event: Event) -> None:
        self._setup.publish_event(event)

    def serve(self, provider: Provider) -> None:
        if id(provider) in self._providers:
            return
        self._providers[id(provider)] = provider
        if self.engine is not None:
            provider.open(self._setup.parallelism.calls)

    def stop(self, timeout: float | None, reason: str, at_end: Callable[[], object] = lambda: None) -> int:
        """Finish pending requests within ``timeout`` seconds, fail the rest, and end the threads.

        ``None`` waits for everything. Errors of failed requests contain ``reason``. ``at_end`` is called
        after the last request, before a shared budget is left. Returns the number of failed requests that a
        caller waits for and that will not be sent again.
        """
        began = self._clock.now()
        with self._starting:
            engine, stopping = self.engine, self._stopping
            if engine is not None:
                self._stopping = (*stopping, engine)
            self.engine = None  # last, so that lock-free readers always find the engine
            self._is_stopped = True
        self.recheck_budget()
        # 1. No engine is running: wait up to ``timeout`` seconds for other threads that are stopping one.
        if engine is None:
            try:
                for each in stopping:
                    left = None if timeout is None else max(0.0, began + timeout - self._clock.now())
                    each.stop(left, reason=reason, release=self.close_providers)
            finally:
                at_end()
            return sum(each.lost for each in stopping)
        # 2. An engine is running: stop it. Even if that fails, leave shared limits, report the end, and wait
        # for callbacks.
        try:
            engine.stop(timeout, reason=reason, release=self.close_providers)
        finally:
            self._counts = engine.counts()
            with self._starting:
                self._stopping = tuple(each for each in self._stopping if each is not engine)
            engine.detach()
            at_end()
            with self._opening:  # otherwise a starting engine could join before this one leaves
                if self._budget_share is not None and not self._engines():
                    self._budget_share.leases.leave(self._budget_share)
            something_ended()
            engine.publish_later(ClientStopped(at=self._clock.now(), failed=engine.failed))
            if timeout is not None:  # subtract the time that the engine took
                timeout = max(0.0, began + timeout + LAST_CALLBACK_SECONDS - self._clock.now())
            engine.callbacks.drain(timeout)
        return engine.lost

    def status(self, hide: Callable[[str], str] = lambda _: "") -> RealtimeStatus:
        """Return the status of the requests.

        Args:
            hide: returns an anonymous name for a quota or budget; by default, no name is shown.
        """
        engine = next(iter(self._engines()), None)
        return RealtimeStatus() if engine is None else engine.status(hide)

    def publish(self) -> None:
        """Show this client to the processes that share limits.

        Raises:
            ConfigError: the address of the shared store cannot be read.
        """
        self._publish_at(self._leases())

    def _leases(self) -> SharedLeases | None:
        """Return ``None`` if the client shares nothing; raises what :meth:`publish` raises."""
        has_account = any(provider.capabilities.priced for provider in self._providers.values())
        return leases_of(self._config.shared, self._clock, has_account=has_account)

    def _publish_at(self, leases: SharedLeases | None) -> None:
        if leases is not None and self._setup.metrics is not None:
            self._published_to = leases
            leases.publish_client(self._setup.metrics, partial(_status, weakref.ref(self)))

    def unpublish(self) -> None:
        metrics = self._setup.metrics
        with self._opening:  # otherwise a publication that starts now could be ended
            if self._published_to is not None and metrics is not None and self._has_ended:
                leases, self._published_to = self._published_to, None
                leases.unpublish_client(metrics)

    def close_providers(self) -> None:
        """Close providers that no engine uses. An engine may have started while another was stopping."""
        with self._opening, self._starting:
            if self._has_ended:
                for provider in list(self._providers.values()):
                    provider.close()

    def abandon(self, error: WrongProcess) -> None:
        """Complete a forked child's copies of its parent's futures, without acquiring an inherited lock."""
        for provider in self._providers.values():
            provider.abandon()
        for engine in self._engines():
            engine.abandon(error)

    def cancel_pending(self) -> int:
        """Cancel all requests whose call has not started, and end all lists.

        Return the number of cancelled requests.
        """
        with self._starting:
            lists = list(self._lists)
        for each in lists:
            each.end()
        return sum(engine.cancel_pending() for engine in self._engines())

    def flush(self) -> None:
        """Close all windows, so that their requests are sent."""
        engine = self.engine
        if engine is not None:
            engine.flush()

    def on_own_thread(self) -> bool:
        """Return True if called from a user's observer or middleware, which run on a worker."""
        return any(engine.dispatcher.on_own_thread() for engine in self._engines())

    # -- status ----------------------------------------------------------------------------------------------

    @property
    def counts(self) -> RequestCounts:
        """Requests by state since the last start, also available after a stop."""
        engine = next(iter(self._engines()), None)
        return evolve(self._counts) if engine is None else engine.counts()

    @property
    def state(self) -> str:
        """``idle`` before the first start, ``running``, or ``stopped``."""
        if self._is_stopped:
            return "stopped"
        return "idle" if self.engine is None else "running"

    @property
    def waiting(self) -> int:
        """Number of requests ahead of a new one; read without a lock, for forecasts."""
        engine = self.engine
        return 0 if engine is None else engine.queue.counts.waiting

    def stopped_prefixes(self, model: OpenedModel) -> Mapping[str, StopReason]:
        """Return why shared prefixes of a model's prompts have not been marked since the start, by key."""
        engine = self.engine
        return {} if engine is None else engine.stopped_prefixes(model)

    def guard_budget(self, work: Callable[[], _T]) -> _T:
        """Call ``work`` under the lock of :attr:`budget`, which is also the lock of the monitor.

        A context manager written in Python could leave the lock held if Ctrl-C interrupted it before the
        block.
        """
        with self._lock:
            return work()

    def await_budget(self, work: Callable[[], bool]) -> None:
        """Call ``work`` under the budget's lock, again after each new lease, until it returns True.

        Raises:
            ClientClosed: the work would have to wait, and the client was stopped.
        """
        if self._config.budget_scope != "client":
            self._running()  # only an engine leases shares

        def done() -> bool:
            self._check_not_stopped()
            return work()

        with self._leased:
            self._leased.wait_for(done)

    # -- inside ----------------------------------------------------------------------------------------------

    def _engines(self) -> list[RealtimeEngine]:
        running = self.engine  # read first; see stop
        stopping = reversed(self._stopping)
        return [*stopping] if running is None else [running, *stopping]

    @property
    def _has_ended(self) -> bool:
        return self.engine is None and not any(engine.queue.live for engine in self._stopping)

    def _running(self) -> RealtimeEngine:
        engine = self.engine
        return self.start() if engine is None else engine

    def _check_not_stopped(self) -> None:
        if self._is_stopped:
            raise ClientClosed("the client was stopped; call start() to use it again")
