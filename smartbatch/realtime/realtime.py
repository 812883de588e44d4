"""The real-time part of a client: requests go in, futures come out, from any number of threads.

It lives as long as its client does in one process, over any number of starts and stops. The threads, the
queue and the gates of one run belong to its :class:`~smartbatch.realtime.engine.RealtimeEngine`.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from attrs import evolve, field, frozen

from smartbatch._clock import Clock
from smartbatch._fork import something_ended, something_started
from smartbatch.config import BatchingConfig
from smartbatch.core.limits.budget import Budget
from smartbatch.core.preparation.preparer import RequestPreparer
from smartbatch.core.preparation.tokens import Calibration, estimate_request
from smartbatch.errors import ClientClosed, InvalidRequest, WrongProcess
from smartbatch.events import ClientStarted, ClientStopped, Event, RequestSubmitted
from smartbatch.providers.base import Provider
from smartbatch.providers.model import OpenedModel
from smartbatch.realtime.admission import Admission
from smartbatch.realtime.bounded_map import BoundedMap
from smartbatch.realtime.callbacks import CallbackThread
from smartbatch.realtime.effects import request_finished
from smartbatch.realtime.engine import RealtimeEngine, UserHooks
from smartbatch.realtime.queue import RequestCounts
from smartbatch.realtime.submission import Delivery, Keys, RequestDemand, Submission
from smartbatch.realtime.text_stream import ChunkBox, TextStream
from smartbatch.realtime.ticket import ResultFuture
from smartbatch.types import Answer, Kind, Request, Result, Route

__all__ = ["Call", "ListOptions", "Realtime", "stored_future"]


@frozen
class Call:
    """How one request is asked, besides what the request itself says.

    Attributes:
        model: that answers.
        delivery: where the answer goes.
        own_budget: pays for it, within the client's budget; ``None`` where the client's budget pays.
        alone: whether it shares its call with no other request.
        flex: whether it goes in the provider's slower tier, where there is one.
    """

    model: OpenedModel
    delivery: Delivery = field(factory=Delivery)
    own_budget: Budget | None = None
    alone: bool = False
    flex: bool = False


@frozen
class ListOptions:
    """How a list is answered in real time.

    Attributes:
        own_budget: what the list may spend, within the client's budget; ``None`` for no limit of its own.
        route: that was chosen; ``None`` leaves it to the settings.
        raising: whether a failed request raises instead of being yielded.
        ordered: whether results come in the order of the requests.
        ahead: most requests under way; ``None`` for the queue's capacity.
    """

    own_budget: Budget | None = None
    route: Route | None = None
    raising: bool = False
    ordered: bool = True
    ahead: int | None = None


def stored_future(callbacks: CallbackThread) -> ResultFuture:
    """Return a future that somebody else settles, from a store; its callbacks run on ``callbacks``."""

    def cancelled(future: ResultFuture) -> None:
        """Tell those in ``concurrent.futures.wait``, too."""
        future.set_running_or_notify_cancel()

    return ResultFuture(callbacks.run_later, cancelled)


class Realtime:
    """Answers requests one by one, or several in a call, while its callers wait.

    Args:
        config: checked settings.
        clock: time and waiting.
        rng: jitter of retries and backoff.
        model: that answers requests; items of jobs name their own.
        fallback: that answers while the breaker of ``model`` is open; ``None`` where there is none.
        preparer: prepares what callers pass.
        hooks: what the user adds.
        calibration: returns what is known of a model's tokens, by label and kind; lanes go on teaching it.
        tell: takes events; never raises.
        report: told what a user's callback raised.

    Attributes:
        model: as given.
        budget: the client's money, which outlives a stop.
        admission: ids, fingerprints and the cache.
    """

    def __init__(
        self,
        config: BatchingConfig,
        clock: Clock,
        *,
        rng: random.Random,
        model: OpenedModel,
        fallback: OpenedModel | None,
        preparer: RequestPreparer,
        hooks: UserHooks,
        calibration: Callable[[str, Kind], Calibration],
        tell: Callable[[Event], None],
        report: Callable[[BaseException], None],
    ) -> None:
        self._config = config
        self._clock = clock
        self._rng = rng
        self.model = model
        self._fallback = fallback
        self._preparer = preparer
        self._hooks = hooks
        self._calibration = calibration
        self._tell = tell
        self._report = report
        self.budget = Budget(config.budget)
        self.admission = Admission(model, config, clock)
        self._providers: dict[int, Provider] = {}
        for opened in filter(None, (model, fallback)):
            self._providers[id(opened.provider)] = opened.provider
        self._opening = threading.Lock()
        self._starting = threading.Lock()
        self._engine: RealtimeEngine | None = None
        self._stopping: RealtimeEngine | None = None
        self._stopped = False

    # -- requests --------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> ResultFuture:
        """Queue one normalised request of a user and return its future.

        Raises:
            InvalidRequest: a hook refuses it, or the provider cannot take it.
            QueueFull: see :class:`~smartbatch.realtime.queue.RequestQueue`.
            ClientClosed: the client was stopped.
        """
        return self._submit(request, Call(self.model))

    def stream(self, request: Request) -> TextStream:
        """Queue one normalised request and return its answer as a stream.

        Raises:
            InvalidRequest: as :meth:`submit`; also for a request that asks for a vector.
            QueueFull, ClientClosed: as :meth:`submit`.
        """
        if request.embedding is not None:
            raise InvalidRequest("a vector does not come in pieces; use submit_embedding", field="embedding")
        box = ChunkBox(self._clock)
        self._submit(request, Call(self.model, Delivery(sink=box.end, stream=box)))
        return TextStream(box)

    def map(self, requests: Iterable[Request], options: ListOptions) -> BoundedMap:
        """Return the results of checked requests, which are submitted as results are taken."""
        route = options.route

        def submit(request: Request, sink: Callable[[Result], None]) -> ResultFuture:
            alone = route is Route.INDIVIDUAL or self.never_waits(request)
            call = Call(self.model, Delivery(sink=sink), options.own_budget, alone, route is Route.FLEX)
            return self._submit(request, call)

        return BoundedMap(
            requests,
            submit,
            self._clock,
            ahead=options.ahead or self._config.queue_capacity,
            ordered=options.ordered,
            raising=options.raising,
            abandon=self._abandon_futures,
        )

    def never_waits(self, request: Request) -> bool:
        """Whether a request is asked in a call of its own, and never by batch, because of its purpose."""
        return request.purpose in self._config.prefer_individual_for

    def ask(self, request: Request, call: Call) -> ResultFuture:
        """Queue a request that was checked and preprocessed before.

        Raises:
            QueueFull, ClientClosed: as :meth:`submit`.
        """
        admission, delivery, hooks = self.admission, call.delivery, self._hooks
        stream = delivery.stream
        mixed = delivery.raw and hooks.post_process is not None  # others that join would get it raw as well
        own = self.model.is_same(call.model.provider, call.model.name)
        key = None if stream is not None or mixed or not own else admission.fingerprint(request)
        known = admission.recalled(request, key)
        if known is not None:
            return self._settled(request, hooks.process(known), delivery)
        engine = self._running()  # once: a lane belongs to one engine, and another may have started since
        lane = engine.lanes.of(
            call.model.provider, call.model.name, request.embedding, flex=call.flex and stream is None
        )
        if stream is None:
            lane = lane.lane_for(request, self._clock.now())
        # who pays for speed must not wait for an answer of the slower tier
        shared = key + b"flex" if key is not None and lane.standard is not None else key
        estimated = estimate_request(request)
        # without a budget nothing depends on the cost: it is not computed
        priced = call.own_budget is not None or self._config.budget is not None
        tokens, reserve = lane.demand(request, estimated, priced=priced)
        return engine.submit(
            Submission(
                request,
                admission.id_of(request),
                lane,
                Keys(
                    fingerprint=shared if self._config.deduplicate else None,
                    cache=key if admission.cache is not None else None,
                ),
                RequestDemand(estimated, tokens, reserve, call.own_budget),
                delivery,
                call.alone,
            )
        )

    def process(self, result: Result) -> Result:
        """Return what the user's ``post_process`` makes of an answered result."""
        return self._hooks.process(result)

    def drop(self, future: Any) -> None:
        """Cancel a request of :meth:`ask` whose call has not started, waiting for a further try included."""
        engine = self._engine
        if engine is None:
            future.cancel()
        elif isinstance(future, ResultFuture):
            engine.drop(future)

    def _submit(self, request: Request, call: Call) -> ResultFuture:
        prepared = self._preparer.preprocessed(request)
        if isinstance(prepared, Answer):
            known = self.admission.settled(request, prepared, Route.LOCAL)
            return self._settled(request, known, call.delivery)
        self._preparer.check(prepared)
        if self.never_waits(prepared):
            call = evolve(call, alone=True)
        return self.ask(prepared, call)

    def _settled(self, request: Request, result: Result, delivery: Delivery) -> ResultFuture:
        """Settle a request that needs no call: no queue, no cost, but counted like any other."""
        engine, now = self._running(), self._clock.now()
        if delivery.stream is not None:
            result = evolve(result, time_to_first_chunk=0.0)
        future = ResultFuture(engine.callbacks.run_later, lambda _: None)
        future.set_running_or_notify_cancel()
        self._tell(
            RequestSubmitted(
                at=now,
                request_id=result.request_id,
                priority=request.priority,
                model=self.model.label,
                joined=False,
            )
        )
        future.settle(result)
        if delivery.sink is not None:
            delivery.sink(result)
        self._tell(request_finished(request, result, model=self.model.label, now=now))
        return future

    def _abandon_futures(self, futures: list[ResultFuture]) -> None:
        """Cancel what nobody waits for any more. Called by a finaliser: runs no user code, takes no lock."""
        engine = self._engine
        if engine is not None:
            engine.abandon_futures(futures)

    # -- life ------------------------------------------------------------------------------------------------

    @property
    def engine(self) -> RealtimeEngine | None:
        """The threads, the queue and the gates that run now; ``None`` while none do."""
        return self._engine

    @property
    def is_running(self) -> bool:
        """Whether the threads run."""
        return self._engine is not None

    @property
    def is_stopped(self) -> bool:
        """Whether it was stopped and not started again."""
        return self._stopped

    def allow_start(self) -> None:
        """Let the next request start the threads, also after a stop."""
        with self._starting:
            self._stopped = False

    def start(self) -> None:
        """Start the threads, unless they run already.

        Raises:
            ClientClosed: it was stopped; see :meth:`allow_start`.
        """
        self._start()

    def serve(self, provider: Provider) -> None:
        """Open and close a further provider with the threads: one that items of jobs need."""
        if id(provider) in self._providers:
            return
        self._providers[id(provider)] = provider
        if self._engine is not None:
            provider.open(self._config.parallelism)

    def stop(self, timeout: float | None, reason: str) -> None:
        """Finish what is pending within ``timeout`` seconds, fail the rest, and end the threads.

        Args:
            timeout: seconds; ``None`` waits for everything.
            reason: goes into the errors of the rest.
        """
        with self._starting:
            engine, self._engine = self._engine, None
            self._stopped = True
            stopping = self._stopping
            if engine is not None:
                self._stopping = engine
        if engine is None:
            if stopping is not None:  # another thread is stopping it: help it, for as long as we may wait
                stopping.stop(timeout, reason=reason, release=self.close_providers)
            return
        failed = 0
        try:
            failed = engine.stop(timeout, reason=reason, release=self.close_providers)
        finally:
            if self._stopping is engine:
                self._stopping = None
            engine.detach()
            something_ended()
            self._tell(ClientStopped(at=self._clock.now(), failed=failed))

    def close_providers(self) -> None:
        """Close what no engine uses any more; one may have been started while another was stopping."""
        with self._opening, self._starting:
            if self._engine is None:
                for provider in list(self._providers.values()):
                    provider.close()

    def abandon(self, error: WrongProcess) -> None:
        """In a forked child: end the copies of the parent's futures. Takes no inherited lock."""
        for provider in self._providers.values():
            provider.abandon()
        for engine in (self._engine, self._stopping):
            if engine is not None:
                engine.abandon(error)

    def cancel_pending(self) -> int:
        """Cancel every request whose call has not started; return how many."""
        engine = self._engine
        return 0 if engine is None else engine.cancel_pending()

    def flush(self) -> None:
        """Send what waits in windows at once."""
        engine = self._engine
        if engine is not None:
            engine.flush()

    def on_own_thread(self) -> bool:
        """Whether the caller runs on a worker, in an observer or a middleware of the user's."""
        engine = self._engine
        return engine is not None and engine.dispatcher.on_own_thread()

    # -- looking ---------------------------------------------------------------------------------------------

    @property
    def counts(self) -> RequestCounts:
        """Requests by where they are, since the last start; always balanced."""
        engine = self._engine
        return RequestCounts() if engine is None else engine.counts()

    @property
    def waiting(self) -> int:
        """Requests that are ahead of any new one; read without a lock, for forecasts."""
        engine = self._engine
        return 0 if engine is None else engine.queue.counts.waiting

    @contextmanager
    def money_guard(self) -> Iterator[None]:
        """Hold what guards :attr:`budget`: the monitor of the calls, while there are any."""
        with self._starting:
            engine = self._engine or self._stopping
            if engine is None:
                yield
                return
        with engine.queue.monitor:
            yield

    # -- inside ----------------------------------------------------------------------------------------------

    def _running(self) -> RealtimeEngine:
        engine = self._engine
        return self._start() if engine is None else engine

    def _start(self) -> RealtimeEngine:
        """Return the engine, which is started if none runs.

        Providers are opened under a lock of its own, since that may import an SDK: whoever needs no start
        does not wait for it.
        """
        with self._opening:
            engine = self._engine
            if engine is not None:
                return engine
            self._check_not_stopped()
            for provider in list(self._providers.values()):
                provider.open(self._config.parallelism)
            with self._starting:
                self._check_not_stopped()
                engine = self._engine = self._new_engine()
        something_started()
        self._tell(ClientStarted(at=self._clock.now(), workers=self._config.parallelism))
        return engine

    def _check_not_stopped(self) -> None:
        if self._stopped:
            raise ClientClosed("the client was stopped; call start() to use it again")

    def _new_engine(self) -> RealtimeEngine:
        cache = self.admission.cache
        return RealtimeEngine(
            self._config,
            clock=self._clock,
            budget=self.budget,
            rng=self._rng,
            tell=self._tell,
            report=self._report,
            hooks=self._hooks,
            calibration=self._calibration,
            fallback=self._fallback,
            keep=None if cache is None else cache.put,
        )
