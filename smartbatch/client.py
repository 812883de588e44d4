"""The front door: a client builds the rooms, wires them, and hands out futures."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

from attrs import evolve

from smartbatch._clock import Clock, RealClock
from smartbatch._fork import on_exit, on_fork
from smartbatch.config import BatchingConfig
from smartbatch.core.limits.budget import Budget
from smartbatch.core.limits.classifiers import Classifier, Classifiers
from smartbatch.core.preparation import validation
from smartbatch.errors import ClientClosed, InvalidRequest, WrongProcess
from smartbatch.events import (
    ClientStarted,
    ClientStopped,
    Event,
    Observer,
    RequestSubmitted,
)
from smartbatch.observe import logs
from smartbatch.observe.metrics import BatchMetrics
from smartbatch.observe.reporters import status_summary
from smartbatch.providers.base import Provider
from smartbatch.realtime.admission import (
    GENERATION,
    Admission,
    Preprocess,
    generation,
    open_model,
    with_settings,
)
from smartbatch.realtime.call.layers import Middleware
from smartbatch.realtime.engine import RealtimeEngine
from smartbatch.realtime.lane import Lane
from smartbatch.realtime.lane_factory import LaneFactory
from smartbatch.realtime.queue import RequestCounts
from smartbatch.realtime.router import PostProcess
from smartbatch.realtime.signals import on_main_thread, reentered
from smartbatch.realtime.submission import Delivery, Keys, RequestDemand, Submission
from smartbatch.realtime.text_stream import ChunkBox, TextStream
from smartbatch.realtime.ticket import ResultFuture
from smartbatch.routing.history import ForecastHistory
from smartbatch.routing.list_calls import ListCalls
from smartbatch.types import Answer, Embedding, Generation, Prompt, Request, Result, Route

__all__ = ["BatchingClient", "Preprocess"]


class BatchingClient(ListCalls):
    """Sends many requests from any number of threads and returns a ``concurrent.futures.Future`` for each.

    The client starts with its first request, or with :meth:`start` or ``with``. A forked child finds it empty
    and working: it has the settings, and none of the parent's threads, sockets or requests.

    Args:
        model: ``provider:model``, such as ``openai:gpt-5-mini`` or ``sim:demo``; or a :class:`Provider` of
            your own, or a callable ``fn(request, attempt)``.
        config: settings; read from ``SMARTBATCH_*`` variables when ``None``.
        provider: an adapter made by hand, for ``model`` names without a prefix.
        provider_options: arguments of the adapter that the prefix names, such as ``base_url`` or, for
            ``openai:``, ``api="responses"``.
        preprocess: hooks run in order on each request before it is queued.
        post_process: called with each answered result on a worker; returns it, or a changed one.
        middleware: layers around each call, outermost first.
        observers: called with every event.
        classifiers: own verdicts on errors, asked before the provider's.
        clock, rng: time and dice, for tests.
        params: generation parameters for all requests (``system``, ``max_tokens``, ``temperature``,
            ``top_p``, ``stop``, ``seed``, ``response_format``, ``schema``, ``extra``), and settings of
            :class:`BatchingConfig` by name, which win over ``config``.

    Raises:
        ConfigError: for settings out of range or contradicting, an unknown prefix, or a missing key.
        InvalidRequest: for generation parameters out of range.
    """

    config: BatchingConfig
    metrics: BatchMetrics
    _engine: RealtimeEngine | None
    _leaving: RealtimeEngine | None
    _starting: threading.Lock

    def __init__(
        self,
        model: str | Provider | Callable[[Request, int], Any],
        config: BatchingConfig | None = None,
        *,
        provider: Provider | None = None,
        provider_options: Mapping[str, Any] | None = None,
        preprocess: Sequence[Preprocess] = (),
        post_process: PostProcess | None = None,
        middleware: Sequence[Middleware] = (),
        observers: Sequence[Observer] = (),
        classifiers: Sequence[Classifier] = (),
        clock: Clock | None = None,
        rng: random.Random | None = None,
        **params: Any,
    ) -> None:
        settings = {name: params.pop(name) for name in list(params) if name not in GENERATION}
        if config is None:
            config = BatchingConfig.load(**settings)
        elif settings:
            config = with_settings(config, settings)
        self.config = config
        self._clock: Clock = clock or RealClock()
        self._given_rng = rng
        self._defaults = generation(Generation(), params)
        self._post_process = post_process
        self._classifiers = Classifiers(classifiers)
        self._observers: tuple[Observer, ...] = (logs.LogObserver(), *observers)
        self._providers: dict[str, Provider] = {}
        self._stopped = False
        self._middleware = tuple(middleware)
        self._provider, self.model = self._open(model, provider, provider_options)
        self._second = None if config.fallback_model is None else self._open(config.fallback_model)
        self._admission = Admission(
            self._provider, self.model, config, self._clock, self._defaults, preprocess
        )
        self._service = self._new_service()
        self._history = ForecastHistory(self._clock, self._tell, store=lambda: self._service.store)
        self._advisor = self._new_advisor()
        self._new_process()
        trial = self._new_lanes(lambda _: None)  # what cannot be used is refused here, not on a worker
        for usable in filter(None, ((self._provider, self.model), self._second)):
            trial.of(*usable)
        on_fork(self)
        on_exit(self)

    # -- asking ----------------------------------------------------------------------------------------------

    def submit(self, prompt: Prompt, **params: Any) -> ResultFuture:
        """Queue one request and return its future.

        Args:
            prompt: a text, a list of chat messages, or a :class:`Request`.
            params: fields of :class:`Request` (``priority``, ``context``, ``timeout``, …) and of
                :class:`Generation` (``system``, ``max_tokens``, …); they win over the client's.

        Returns:
            a future of :class:`Result`; it raises the error of a request that failed.

        Raises:
            InvalidRequest: the request could not be sent; the text names the field.
            QueueFull: the queue is full and ``queue_full`` is ``"raise"``, or ``queue_timeout`` is over.
            ClientClosed: the client was stopped.
        """
        return self._submit(validation.normalise(prompt, self._defaults, **params), None)

    def submit_urgent(self, prompt: Prompt, **params: Any) -> ResultFuture:
        """As :meth:`submit`, on the next free slot and without a window."""
        return self.submit(prompt, **{"priority": "urgent", **params})

    def submit_background(self, prompt: Prompt, **params: Any) -> ResultFuture:
        """As :meth:`submit`, after everything that is in more of a hurry."""
        return self.submit(prompt, **{"priority": "deferrable", **params})

    def submit_embedding(
        self, text: str, *, task_type: str | None = None, dimensions: int | None = None, **params: Any
    ) -> ResultFuture:
        """Queue one text for its vector and return the future of its :class:`Result`.

        Requests from any threads that wait at the same time share a call, up to what the provider takes; one
        that comes to an idle client goes at once.

        Args:
            text: what to embed.
            task_type: what the vector is for, in the provider's words, such as ``RETRIEVAL_QUERY``.
            dimensions: length of the vector; the model's own when ``None``.
            params: fields of :class:`Request`, such as ``priority`` and ``context``.

        Returns:
            a future; ``result().embedding`` is an ``array('f')`` with exactly the numbers that were sent.

        Raises:
            InvalidRequest: also when the provider has no embeddings.
        """
        return self.submit(text, embedding=Embedding(task_type, dimensions), **params)

    def stream(self, prompt: Prompt, **params: Any) -> TextStream:
        """Queue one request and return its answer as a stream of text chunks, as they are made.

        It passes the same queue, limits, breaker and budget as any other, and is tried again until its first
        chunk; never after it. Where the provider cannot stream, the answer comes as one chunk. A reader that
        is slow slows the call down; what has not been read when ``call_timeout`` is over is lost.

        Args:
            prompt: as in :meth:`submit`.
            params: as in :meth:`submit`.

        Returns:
            an iterator of texts; its ``result`` has usage, cost and ``time_to_first_chunk`` afterwards.

        Raises:
            InvalidRequest: as :meth:`submit`; also for a request that asks for a vector.
            QueueFull: as :meth:`submit`.
            ClientClosed: as :meth:`submit`.
        """
        request = validation.normalise(prompt, self._defaults, **params)
        if request.embedding is not None:
            raise InvalidRequest("a vector does not come in pieces; use submit_embedding", field="embedding")
        box = ChunkBox(self._clock)
        self._submit(request, box.end, box)
        return TextStream(box)

    # -- life ------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the threads; also after a stop. Starting twice is fine."""
        with self._starting:
            self._stopped = False
        self._service.open()
        self._running()
        return self

    def stop(self, timeout: float | None = None, *, cancel_waiting: bool = False) -> None:
        """Take nothing more, finish what is pending, end the threads. Stopping twice is fine.

        Args:
            timeout: seconds to finish in; what is unanswered then fails with ``ClientClosed``.
                ``None`` waits for everything.
            cancel_waiting: cancel what has not started, and finish only what is in flight.

        Called where the main thread is inside this library, as in a signal handler that interrupted a
        submit, or on one of the client's own threads, as in an observer or a middleware, it returns at once
        and the client stops in the background: to wait there could be for ever.
        """
        engine = self._engine
        on_own_thread = engine is not None and engine.dispatcher.on_own_thread()
        if on_own_thread or self._service.on_own_thread() or reentered():
            threading.Thread(
                target=self._stop_now, args=(timeout, cancel_waiting), name="smartbatch-stop", daemon=True
            ).start()
            return
        self._stop_now(timeout, cancel_waiting)

    def _stop_now(self, timeout: float | None, cancel_waiting: bool) -> None:
        if cancel_waiting:
            self.cancel_pending()
        self._stop(timeout, "the client was stopped")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finish what is pending; after an exception, only what is in flight, within ``exit_grace``."""
        if kind is None:
            self.stop()
            return
        self.cancel_pending()
        self._stop(self.config.exit_grace, f"the with block ended with {kind.__name__}")

    def cancel_pending(self) -> int:
        """Cancel every request whose call has not started; return how many."""
        engine = self._engine
        return 0 if engine is None else engine.cancel_pending()

    def flush(self) -> None:
        """Send what waits in windows now."""
        if self._engine is not None:
            self._engine.flush()

    # -- looking ---------------------------------------------------------------------------------------------

    @property
    def queue_size(self) -> int:
        """Requests that wait, those between two tries included."""
        return self.counts.waiting

    @property
    def counts(self) -> RequestCounts:
        """Requests by where they are, since the client started in this process; always balanced."""
        engine = self._engine
        return RequestCounts() if engine is None else engine.counts()

    @property
    def spent(self) -> float:
        """USD of all calls so far, as far as prices are known."""
        return self._budget.spent

    def status_summary(self) -> str:
        """Return a few lines for people: what came, what waits, what it cost."""
        return status_summary(self.metrics.snapshot())

    def observe(self, observer: Observer) -> None:
        """Have ``observer`` called with every event from now on."""
        self._observers = (*self._observers, observer)

    def __repr__(self) -> str:
        state = "stopped" if self._stopped else ("running" if self._engine else "idle")
        return f"<BatchingClient {self._provider.name}:{self.model} {state}>"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            "a BatchingClient cannot be pickled: it has threads and connections. Make one in each process"
        )

    # -- inside ----------------------------------------------------------------------------------------------

    def _submit(
        self,
        request: Request,
        sink: Callable[[Result], None] | None,
        stream: ChunkBox | None = None,
        *,
        own_budget: Budget | None = None,
        alone: bool = False,
        flex: bool = False,
    ) -> ResultFuture:
        admission = self._admission
        prepared = admission.preprocessed(request)
        if isinstance(prepared, Answer):
            return self._settled(request, admission.settled(request, prepared, Route.LOCAL), sink, stream)
        admission.check(prepared)
        return self._enqueue(
            prepared,
            sink,
            stream,
            provider=self._provider,
            model=self.model,
            own_budget=own_budget,
            alone=alone or prepared.purpose in self.config.prefer_individual_for,
            flex=flex,
        )

    def _enqueue(
        self,
        request: Request,
        sink: Callable[[Result], None] | None,
        stream: ChunkBox | None = None,
        *,
        provider: Provider,
        model: str,
        raw: bool = False,
        own_budget: Budget | None = None,
        alone: bool = False,
        flex: bool = False,
    ) -> ResultFuture:
        """Queue a request that was checked; see :meth:`smartbatch.realtime.engine.RealtimeEngine.submit`."""
        admission = self._admission
        own = provider is self._provider and model == self.model
        mixed = raw and self._post_process is not None  # others that join would get it raw as well
        key = None if stream is not None or mixed or not own else admission.fingerprint(request)
        known = admission.recalled(request, key)
        if known is not None:
            return self._settled(request, self._process(known), sink, stream)
        engine = self._running()
        lane = engine.lane_of(provider, model, request.embedding, flex=flex and stream is None)
        if stream is None:
            lane = lane.lane_for(request, self._clock.now())
        # who pays for speed must not wait for an answer of the slower tier
        twin = key + b"flex" if key is not None and lane.standard is not None else key
        (given, whole), reserve = admission.demand(lane, request, priced=own_budget is not None)
        return engine.submit(
            Submission(
                request,
                admission.id_of(request),
                lane,
                Keys(
                    fingerprint=twin if self.config.deduplicate else None,
                    cache=key if admission.cache is not None else None,
                ),
                RequestDemand(given, whole, reserve, own_budget),
                Delivery(sink, stream, raw),
                alone,
            )
        )

    def _settled(
        self,
        request: Request,
        result: Result,
        sink: Callable[[Result], None] | None,
        stream: ChunkBox | None,
    ) -> ResultFuture:
        """Settle a request that needs no call: no queue, no cost, but counted like any other."""
        engine, now = self._running(), self._clock.now()
        if stream is not None:
            result = evolve(result, time_to_first_chunk=0.0)
        future = ResultFuture(engine.callbacks.run_later, lambda _: None)
        future.set_running_or_notify_cancel()
        label = f"{self._provider.name}:{self.model}"
        self._tell(
            RequestSubmitted(
                at=now, request_id=result.request_id, priority=request.priority, model=label, joined=False
            )
        )
        future.settle(result)
        if sink is not None:
            sink(result)
        self._tell(self._admission.finished(request, result, now))
        return future

    def _abandon_futures(self, futures: Iterable[ResultFuture]) -> None:
        """Cancel what nobody waits for any more; called by a finaliser, in the middle of anything.

        If the queue's lock is free, this thread does not hold it. If not, it may, so the lock is not taken:
        the collector strikes the cancelled futures when it looks, or a worker that meets them before.
        """
        engine = self._engine
        for future in futures:
            if engine is None or not engine.queue.monitor.lock.locked():
                future.cancel()
            elif Future.cancel(future):
                engine.queue.abandoned.append(future)

    def _running(self) -> RealtimeEngine:
        engine = self._engine
        if engine is not None:
            return engine
        with self._starting:
            if self._engine is None:
                if self._stopped:
                    raise ClientClosed("the client was stopped; call start() to use it again")
                engine = self._engine = self._start_engine()
            running = self._engine
        if engine is not None:
            self._tell(ClientStarted(at=self._clock.now(), workers=self.config.parallelism))
            self._carry_on_jobs()
        return running

    def _start_engine(self) -> RealtimeEngine:
        for provider in self._providers.values():
            provider.open(self.config.parallelism)
        engine = RealtimeEngine(
            self.config,
            clock=self._clock,
            budget=self._budget,
            rng=self._rng,
            tell=self._tell,
            report=self._callback_raised,
            fallback=lambda lane: self._fallback(engine, lane),
            post_process=self._post_process,
            keep=None if self._admission.cache is None else self._admission.cache.put,
        )
        # LaneFactory belong to one engine: another one may still be stopping, under a lock of its own.
        engine.lane_of = self._new_lanes(lambda lane: self._attach(lane, engine)).of
        return engine

    def _new_lanes(self, opened: Callable[[Lane], None]) -> LaneFactory:
        return LaneFactory(
            self.config,
            self._clock,
            self._classifiers,
            self._middleware,
            opened,
            self._history.calibration,
        )

    def _attach(self, lane: Lane, engine: RealtimeEngine) -> None:
        engine.queue.add_lane(lane)
        lane.quota.attach(
            engine.queue,
            self.config.max_rpm,
            self.config.max_tpm,
            now=self._clock.now(),
            wake=engine.dispatcher.wake,
        )
        if engine.queue.closed is not None:  # stopped meanwhile: its limits must not outlive it
            lane.quota.detach(engine.queue, self._clock.now())

    def _stop(self, timeout: float | None, reason: str) -> None:
        began = self._clock.now()
        self._history.save()
        self._service.halt()
        try:
            self._stop_engine(timeout, reason)
        finally:
            self._finish_jobs(timeout, began)
            self._close_providers()

    def _stop_engine(self, timeout: float | None, reason: str) -> None:
        with self._starting:
            engine, self._engine = self._engine, None
            self._stopped = True
            leaving = self._leaving
            if engine is not None:
                self._leaving = engine
        if engine is None:
            if leaving is not None:  # another thread is stopping it: help it, for as long as we may wait
                leaving.stop(timeout, reason=reason, release=self._close_providers)
            return
        failed = 0
        try:
            failed = engine.stop(timeout, reason=reason, release=self._close_providers)
        finally:
            if self._leaving is engine:
                self._leaving = None
            now = self._clock.now()
            for lane in engine.queue.lanes:
                lane.quota.detach(engine.queue, now)
            self._tell(ClientStopped(at=now, failed=failed))

    def _close_providers(self) -> None:
        """Close what no engine uses any more; one may have been started while another was stopping."""
        with self._starting:
            if self._engine is None:
                for provider in self._providers.values():
                    provider.close()

    def after_fork(self) -> None:
        """In a forked child: start empty. The hook of the library calls it; users need not."""
        engines = [engine for engine in (self._engine, self._leaving) if engine is not None]
        error = WrongProcess(
            "the request belongs to the parent process; a forked child starts with an empty client"
        )
        self._new_process()
        for provider in self._providers.values():
            provider.abandon()
        for engine in engines:
            engine.abandon(error)
        self._fork_jobs(error)

    def at_exit(self, waited: float, *, interrupted: bool) -> None:
        """At the interpreter's end: give what is pending its grace, fail the rest. Users need not call it."""
        if interrupted:
            self.cancel_pending()
        self._stop(max(0.0, self.config.exit_grace - waited), "the interpreter is exiting")

    def _new_process(self) -> None:
        """Begin with no thread, no lock, no request, no money held and no dice of another process."""
        self._engine = self._leaving = None
        self._new_budget()
        self._rng = self._given_rng or random.Random()
        self._starting = threading.Lock()
        self.metrics = BatchMetrics(max_batch_size=self.config.max_batch_size, now=self._clock.now)
        self._admission.renew()
        self._history.renew()

    def _open(
        self,
        model: str | Provider | Callable[[Request, int], Any],
        provider: Provider | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> tuple[Provider, str]:
        opened, name = open_model(model, provider, options, self._clock)
        self._providers[f"{opened.name}:{name}"] = opened
        return opened, name

    def _fallback(self, engine: RealtimeEngine, lane: Lane) -> Lane | None:
        """Return the lane of the fallback model; called under the monitor."""
        if self._second is None or lane.provider is self._second[0]:
            return None
        return engine.lane_of(*self._second, None)

    def _tell(self, event: Event) -> None:
        """Tell all observers; whatever one of them raises is logged and hurts nobody."""
        self.metrics(event)
        self._history(event)
        self._advisor.learned(event)
        for observer in self._observers:
            try:
                observer(event)
            except BaseException as error:  # an exit asked for on a worker would only end the worker
                if not isinstance(error, Exception) and on_main_thread():
                    raise  # a signal's: the user wants to stop, and the observer just happened to run
                logs.warn("observer_raised", observed=event.name, error=type(error).__name__)

    def _callback_raised(self, error: BaseException) -> None:
        logs.warn("callback_raised", error=type(error).__name__)
