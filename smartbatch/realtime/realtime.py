"""The real-time part of a client: accepts requests from any number of threads and returns futures.

It lives as long as its client in one process, over any number of starts and stops. The threads, the queue and
the gates of one run belong to its :class:`~smartbatch.realtime.engine.RealtimeEngine`.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from attrs import evolve

from smartbatch._fork import something_ended, something_started
from smartbatch.core.limits.budget import Budget
from smartbatch.core.limits.model_controls import ModelControls
from smartbatch.core.preparation.fingerprint import object_key
from smartbatch.core.preparation.preparer import RequestPreparer
from smartbatch.core.preparation.tokens import estimate_request
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
from smartbatch.sharing.budget_share import BudgetShare
from smartbatch.sharing.limit_leases import SharedLeases, leases_of, shared_leases
from smartbatch.types import Answer, Request, Result, Route

_T = TypeVar("_T")


def _status(realtime: weakref.ref[Realtime], hide: Callable[[str], str]) -> RealtimeStatus | None:
    """Return the status of a client's requests if the client still exists, without holding it."""
    found = realtime()
    return None if found is None else found.status(hide)


class Realtime:
    """Answers requests one by one, or several per call, while their callers wait.

    Args:
        model: answers requests, except items of jobs, which name their own model.
        preparer: prepares prompts that callers pass.
    """

    def __init__(self, setup: RealtimeSetup, model: OpenedModel, preparer: RequestPreparer) -> None:
        self._setup = setup
        self._config = setup.config
        self._clock = setup.clock
        self._preparer = preparer
        self.model = model
        shares_budget = setup.config.budget_scope != "client"
        # the client's, which outlives a stop
        self.budget = Budget(0.0 if shares_budget else setup.config.budget)
        self._lock = threading.Lock()  # guards the budget and each engine's monitor; there may be two engines
        self._budget_share: BudgetShare | None = None
        self._leased = setup.clock.monitor(self._lock)
        self.admission = Admission(model, setup)
        opened = (one.provider for one in (model, setup.fallback) if one is not None)
        self._providers: dict[int, Provider] = {id(provider): provider for provider in opened}
        self._opening = threading.Lock()
        self._starting = threading.Lock()
        self._lists: weakref.WeakSet[BoundedMap] = weakref.WeakSet()
        self.engine: RealtimeEngine | None = None  # None while no threads run
        self._stopping: tuple[RealtimeEngine, ...] = ()  # engines being stopped, in order of their stop
        self._counts = RequestCounts()  # counts of the last engine that stopped
        self._controls = ModelControls()
        self._published_to: SharedLeases | None = None  # where other processes see its status
        self._is_stopped = self._has_warned = False

    # -- requests --------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> ResultFuture:
        """Queue one normalised request of a user and return its future.

        Raises:
            InvalidRequest: a hook rejects it, or the provider cannot accept it.
            QueueFull, ClientClosed: see :class:`~smartbatch.realtime.queue.RequestQueue`.
        """
        return self._submit(request, CallOptions(self.model))

    def stream(self, request: Request) -> TextStream:
        """Queue one normalised request and return its answer as a stream.

        Raises:
            InvalidRequest: as :meth:`submit`; also for a request for a vector.
            QueueFull, ClientClosed: as :meth:`submit`.
        """
        if request.embedding is not None:
            raise InvalidRequest("embeddings cannot be streamed; use submit_embedding", field="embedding")
        box = ChunkBox(self._clock)
        self._submit(request, CallOptions(self.model, sink=box.end, stream=box))
        return TextStream(box)

    def map(self, requests: Iterable[Request], options: ListOptions) -> BoundedMap:
        """Return the results of checked requests, which are submitted as results are read."""

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
        """Whether a request gets a separate call and is never sent by batch, because of its purpose."""
        return request.purpose in self._config.prefer_individual_for

    def ask(self, request: Request, options: CallOptions, future: ResultFuture | None = None) -> ResultFuture:
        """Queue a request that was checked and preprocessed; errors as :meth:`submit`.

        Args:
            future: receives the result, if the caller already has one; ``None`` creates a new one.
        """
        # 1. The cache has its answer, and no middleware needs to see it: complete it immediately.
        admission, hooks, config = self.admission, self._setup.hooks, self._config
        model = options.model.of(request)
        streamed = options.stream is not None
        own = self.model.of(request).is_same(model.provider, model.name)
        shared, kept = (None, None) if streamed or not own else admission.keys(request)
        if hooks.middleware:  # middleware sees cached answers as well: see AnswerSharing
            kept = None
        known = admission.recalled(request, kept)
        if known is not None:
            result = hooks.process(known) if known.ok and not options.raw else known
            return self._settled(request, result, options, future)
        # 2. It is streamed: it waits in the standard lane, and does not share its answer.
        # 3. It waits in the lane for its kind, or in that of the slower tier if the options ask for it.
        engine = self._running()  # read once: a lane belongs to one engine, and another may start at any time
        flex = options.flex and not streamed
        lane = engine.lanes.of(model.provider, model.name, request.embedding, flex=flex)
        if not streamed:
            lane = lane.lane_for(request, self._clock.now())
        if shared is not None:
            shared = object_key(shared, request)
            if lane.standard is not None:
                shared += b"flex"  # a request that pays for speed must not join one in the slower tier
        estimated = estimate_request(request)
        # without a budget nothing depends on the cost
        priced = options.own_budget is not None or config.budget is not None
        tokens, reserve = lane.demand(request, estimated, priced=priced)
        if priced:
            self.warn_of_unbounded(request)
        return engine.submit(
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
        """Return the result after the user's ``post_process``."""
        return self._setup.hooks.process(result)

    def drop(self, future: Any) -> None:
        """Cancel a request of :meth:`ask` whose call has not started, even if it waits for a further try."""
        engines = self._engines()
        if not engines:
            future.cancel()
        elif isinstance(future, ResultFuture):
            for engine in engines:
                engine.drop(future)

    def submit_prepared(
        self, request: Request, prepared: Request | Answer, future: ResultFuture | None = None
    ) -> ResultFuture:
        """Queue a preprocessed request; ``future`` and errors as :meth:`ask` and :meth:`submit`."""
        return self._submit_prepared(request, prepared, CallOptions(self.model), future)

    def cancelled(self, future: ResultFuture) -> None:
        """Remove the request of a cancelled future that was passed to :meth:`ask`."""
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
            known = self.admission.local(request, prepared)
            return self._settled(request, self.process(known) if known.ok else known, options, future)
        self._preparer.check(prepared)
        if not options.alone and self.never_waits(prepared):
            options = evolve(options, alone=True)
        return self.ask(prepared, options, future)

    def _settled(
        self, request: Request, result: Result, options: CallOptions, future: ResultFuture | None
    ) -> ResultFuture:
        """Complete a request that needs no call: it is not queued and costs nothing, but it counts."""
        engine, now, label = self._running(), self._clock.now(), self.model.of(request).label
        if options.stream is not None:
            result = evolve(result, time_to_first_chunk=0.0)
        if future is None:
            future = ResultFuture(engine.callbacks.run_later, lambda _: None)
        if not future.running():
            future.set_running_or_notify_cancel()
        self._setup.tell(request_submitted(request, result.request_id, label, now, joined=False))
        future.settle(result)
        if options.sink is not None:
            options.sink(result)
        for dropped in parameters_dropped(request, result, now):
            self._setup.tell(dropped)
        self._setup.tell(request_finished(request, result, label, now, now, of_job=options.raw))
        return future

    def _abandon_futures(self, futures: list[ResultFuture]) -> None:
        """Cancel requests that are no longer read. For finalisers: it runs no user code and takes no lock."""
        for engine in self._engines():
            engine.abandon_futures(futures)

    # -- lifecycle -------------------------------------------------------------------------------------------

    def allow_start(self) -> None:
        """Let the next request start the threads, even after a stop."""
        with self._starting:
            self._is_stopped = False

    def start(self) -> RealtimeEngine:
        """Return the engine, starting it if none runs.

        Providers are opened under a separate lock: requests that need no start do not wait for it.

        Raises:
            ClientClosed: it was stopped; see :meth:`allow_start`.
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
            self._setup.read_controls()  # a pause applies from the first request on
            if share is not None:  # before any request can wait for the shared budget
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
        self._setup.tell(ClientStarted(at=self._clock.now(), workers=self._setup.parallelism.calls))
        return engine

    def _shared_budget(self) -> BudgetShare | None:
        """Return the client's part of a budget that processes share, if there is one.

        Raises:
            ConfigError: the address of the shared place cannot be read.
        """
        config = self._config
        if config.budget_scope == "client" or config.budget is None:
            return None
        if self._budget_share is None:
            leases = shared_leases(config.shared, self._clock)
            self._budget_share = BudgetShare(leases, config.budget_scope, config.budget, self)
        return self._budget_share

    def control(self, controls: ModelControls) -> None:
        """Apply user settings of models from now on."""
        with self._starting:
            self._controls = controls
            engines = self._engines()
        for engine in engines:
            engine.control(controls)

    def resize(self, calls: int) -> None:
        """Apply a change of the parallelism; calls in flight are not interrupted."""
        with self._opening:
            engine = self.engine
            if engine is not None:
                for provider in list(self._providers.values()):
                    provider.open(calls)
        if engine is not None:
            engine.dispatcher.resize()

    def look_again(self) -> None:
        """Check requests that wait for the budget again."""
        with self._leased:
            self._leased.notify_all()
        for engine in self._engines():
            engine.dispatcher.wake()

    def tell(self, event: Event) -> None:
        self._setup.tell(event)

    def serve(self, provider: Provider) -> None:
        """Open and close one more provider together with the threads, for items of jobs."""
        if id(provider) in self._providers:
            return
        self._providers[id(provider)] = provider
        if self.engine is not None:
            provider.open(self._setup.parallelism.calls)

    def stop(self, timeout: float | None, reason: str) -> int:
        """Finish what is pending within ``timeout`` seconds, fail the rest, and end the threads.

        ``None`` waits for everything; errors of the rest contain ``reason``. Returns how many of the rest
        are lost: someone waits for them, and no one will send them again.
        """
        began = self._clock.now()
        with self._starting:
            engine, stopping = self.engine, self._stopping
            if engine is not None:
                self._stopping = (*stopping, engine)
            self.engine = None  # last, so that a reader without a lock finds the engine in either place
            self._is_stopped = True
        self.look_again()
        # 1. No engine runs: help the other threads that stop one, for at most ``timeout`` seconds.
        if engine is None:
            for each in stopping:
                left = None if timeout is None else max(0.0, began + timeout - self._clock.now())
                each.stop(left, reason=reason, release=self.close_providers)
            return sum(each.lost for each in stopping)
        # 2. An engine runs: stop it. Then, in any case, leave what is shared, report the end, and wait for
        #    callbacks.
        try:
            engine.stop(timeout, reason=reason, release=self.close_providers)
        finally:
            self._counts = engine.counts()
            with self._starting:
                self._stopping = tuple(each for each in self._stopping if each is not engine)
            engine.detach()
            with self._opening:  # otherwise an engine that starts now would join before this one leaves
                if self._budget_share is not None and not self._engines():
                    self._budget_share.leases.leave(self._budget_share)
            something_ended()
            engine.tell_later(ClientStopped(at=self._clock.now(), failed=engine.failed))
            if timeout is not None:  # minus the time that the engine took
                timeout = max(0.0, began + timeout + LAST_CALLBACK_SECONDS - self._clock.now())
            engine.callbacks.drain(timeout)
        return engine.lost

    def status(self, hide: Callable[[str], str] = lambda _: "") -> RealtimeStatus:
        """Return the status of the requests, without metrics.

        Args:
            hide: returns a name that reveals nothing about a quota or a budget; by default there is none.
        """
        engine = next(iter(self._engines()), None)
        return RealtimeStatus() if engine is None else engine.status(hide)

    def publish(self) -> None:
        """Show this client to the processes that share limits.

        Raises:
            ConfigError: the address of the shared place cannot be read.
        """
        self._publish_at(self._leases())

    def _leases(self) -> SharedLeases | None:
        """Return the leases of the client; ``None`` if it shares nothing. Errors as :meth:`publish`."""
        has_account = any(provider.capabilities.priced for provider in self._providers.values())
        return leases_of(self._config.shared, self._clock, has_account=has_account)

    def _publish_at(self, leases: SharedLeases | None) -> None:
        if leases is not None and self._setup.metrics is not None:
            self._published_to = leases
            leases.publish_client(self._setup.metrics, partial(_status, weakref.ref(self)))

    def unpublish(self) -> None:
        """Publish the client's counts one last time."""
        metrics = self._setup.metrics
        with self._opening:  # otherwise it could end one that starts now
            if self._published_to is not None and metrics is not None and self._has_ended:
                leases, self._published_to = self._published_to, None
                leases.unpublish_client(metrics)

    def close_providers(self) -> None:
        """Close providers that no engine uses; one may have started while another was stopping."""
        with self._opening, self._starting:
            if self._has_ended:
                for provider in list(self._providers.values()):
                    provider.close()

    def abandon(self, error: WrongProcess) -> None:
        """In a forked child: end the copies of the parent's futures. Must not take an inherited lock."""
        for provider in self._providers.values():
            provider.abandon()
        for engine in self._engines():
            engine.abandon(error)

    def cancel_pending(self) -> int:
        """Cancel all requests whose call has not started, and end their lists; return how many."""
        with self._starting:
            lists = list(self._lists)
        for each in lists:
            each.end()
        return sum(engine.cancel_pending() for engine in self._engines())

    def flush(self) -> None:
        """Send requests that wait in windows immediately."""
        engine = self.engine
        if engine is not None:
            engine.flush()

    def on_own_thread(self) -> bool:
        """Whether the caller runs on a worker, in one of the user's observers or middleware."""
        return any(engine.dispatcher.on_own_thread() for engine in self._engines())

    # -- status ----------------------------------------------------------------------------------------------

    @property
    def counts(self) -> RequestCounts:
        """Requests by state since the last start, even after a stop; always balanced."""
        engine = next(iter(self._engines()), None)
        return evolve(self._counts) if engine is None else engine.counts()

    @property
    def state(self) -> str:
        """``idle`` before its start, ``running``, or ``stopped`` and not started again."""
        if self._is_stopped:
            return "stopped"
        return "idle" if self.engine is None else "running"

    @property
    def waiting(self) -> int:
        """Requests ahead of any new one; read without a lock, for forecasts."""
        engine = self.engine
        return 0 if engine is None else engine.queue.counts.waiting

    def guard_budget(self, work: Callable[[], _T]) -> _T:
        """Do ``work`` under the lock of :attr:`budget`, which is also the lock of the engine's monitor.

        A function, not a context manager: one written in Python leaves the lock taken if Ctrl-C comes between
        its beginning and the block.
        """
        with self._lock:
            return work()

    def await_budget(self, work: Callable[[], bool]) -> None:
        """Do ``work`` like :meth:`guard_budget`, and again when more of a shared budget may have been leased,
        until it returns True.

        Raises:
            ClientClosed: it would have to wait, and the client was stopped.
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
        """Return the engines that may have requests, the latest first."""
        running = self.engine  # read first; see :meth:`stop`
        stopping = reversed(self._stopping)
        return [*stopping] if running is None else [running, *stopping]

    @property
    def _has_ended(self) -> bool:
        """Whether no engine runs and none that is stopping has a request left."""
        return self.engine is None and not any(engine.queue.live for engine in self._stopping)

    def _running(self) -> RealtimeEngine:
        engine = self.engine
        return self.start() if engine is None else engine

    def _check_not_stopped(self) -> None:
        if self._is_stopped:
            raise ClientClosed("the client was stopped; call start() to use it again")
