"""One run of a client: its queue, gates, collector, router, dispatcher and callbacks.

A client creates an engine when it starts, and discards it when it stops or is in a forked child. An engine is
never reset.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from typing import Any

from attrs import evolve

from smartbatch._clock import Clock
from smartbatch._fork import run_after_collection
from smartbatch.core.limits.budget import Budget
from smartbatch.core.limits.model_controls import ModelControls
from smartbatch.core.prefixes.entries import StopReason
from smartbatch.core.prefixes.rendering import rendering_of
from smartbatch.errors import ClientClosed, RequestCancelled, SmartbatchError, WrongProcess
from smartbatch.events import Event
from smartbatch.observe.participants import RealtimeStatus
from smartbatch.providers.registry import OpenedModel
from smartbatch.realtime.cache import ResponseCache
from smartbatch.realtime.collector import Collector
from smartbatch.realtime.dispatcher import BatchDispatcher
from smartbatch.realtime.effects import DeferredEffects, request_submitted
from smartbatch.realtime.gates import Gates
from smartbatch.realtime.lane import Lane, LaneFactory
from smartbatch.realtime.live_status import status_of
from smartbatch.realtime.queue import RequestCounts, RequestQueue
from smartbatch.realtime.router import ResponseRouter
from smartbatch.realtime.setup import RealtimeSetup
from smartbatch.realtime.shared_quota import Sharing
from smartbatch.realtime.text_stream import ChunkBox, TextStream
from smartbatch.realtime.ticket import ResultFuture, Submission, Ticket, TicketState, Waiter
from smartbatch.sharing.limit_leases import leases_of
from smartbatch.types import Request, Result, RunCallback, call_now


class CallbackThread:
    """Runs callables in order, on a daemon thread that starts with the first one.

    Args:
        report: receives everything a callback raises, including ``SystemExit`` and ``KeyboardInterrupt``.
        run: calls each callable.
    """

    def __init__(
        self, clock: Clock, report: Callable[[BaseException], None], run: RunCallback = call_now
    ) -> None:
        self._clock = clock
        self._report = report
        self._run_callback = run
        self._monitor = clock.monitor()
        self._idle = clock.monitor(self._monitor.lock)
        self._todo: deque[Callable[[], Any]] = deque()
        self._thread: threading.Thread | None = None
        self._busy = False
        self._closing = False

    def run_later(self, fn: Callable[[], Any]) -> None:
        todo: list[Callable[[], Any]] = []
        with self._monitor:
            self._todo.append(fn)
            self._monitor.notify()
            if self._thread is not None:
                return
            self._thread = threading.Thread(target=self._run, name="smartbatch-callbacks", daemon=True)
            self._clock.spawned()
            try:
                self._thread.start()
            except RuntimeError:
                # no thread can be started, for example at interpreter exit: use an existing one, or the
                # current one
                self._thread = None
                self._clock.unspawned()
                if run_after_collection(self._run_all):
                    return
                todo = list(self._todo)
                self._todo.clear()
        for each in todo:
            self._call(each)

    def _run_all(self) -> None:
        while True:
            with self._monitor:
                self._busy = bool(self._todo)
                if not self._busy:
                    self._idle.notify_all()
                    return
                fn = self._todo.popleft()
            self._call(fn)

    def drain(self, timeout: float | None) -> bool:
        """Wait until every callback has run. Returns immediately if called from a callback."""
        if threading.current_thread() is self._thread:
            return True
        with self._idle:
            return bool(self._idle.wait_for(lambda: not (self._busy or self._todo), timeout))

    def close(self) -> None:
        """End the thread once it has nothing left to do. Later callbacks still run."""
        with self._monitor:
            self._closing = True
            self._monitor.notify()

    def _run(self) -> None:
        self._clock.began()
        try:
            while True:
                fn = self._next()
                if fn is None:
                    return
                self._call(fn)
                del fn
        finally:
            self._clock.ended()

    def _next(self) -> Callable[[], Any] | None:
        with self._monitor:
            self._busy = False
            while not self._todo:
                self._idle.notify_all()
                if self._closing:
                    self._thread = None
                    return None
                self._monitor.wait()
            self._busy = True
            return self._todo.popleft()

    def _call(self, fn: Callable[[], Any]) -> None:
        try:
            self._run_callback(fn)
        except BaseException as error:
            self._report(error)


def stored_future(callbacks: CallbackThread) -> ResultFuture:
    def cancelled(future: ResultFuture) -> None:
        """Also notify ``concurrent.futures.wait``."""
        future.set_running_or_notify_cancel()

    return ResultFuture(callbacks.run_later, cancelled)


def stored_stream(clock: Clock, future: Future[Result], cancel: Callable[[], None]) -> TextStream:
    """Return the stream of an answer that arrives complete, from a store."""
    box = ChunkBox(clock)

    def ended(done: Future[Result]) -> None:
        if isinstance(done, ResultFuture) and done.outcome is not None:
            box.end(done.outcome)
        else:
            box.end(Result("", error=_error_of(done)))

    def drop() -> None:
        cancel()
        box.end(Result(box.request_id, error=RequestCancelled("the stream was closed before it ended")))

    box.drop = drop
    future.add_done_callback(ended)
    return TextStream(box)


def _error_of(future: Future[Result]) -> SmartbatchError:
    error = None if future.cancelled() else future.exception()
    return error if isinstance(error, SmartbatchError) else RequestCancelled("the request was cancelled")


LAST_CALLBACK_SECONDS = 0.25
"""Time for callbacks and observers after a stop timed out, so that they can report failed requests."""


class RealtimeEngine:
    """The threads of one client, from its start to its stop.

    Args:
        budget: the client's budget, which outlives the engine.
        lock: guards the budget; also the lock of the monitor.
        controls: the user's settings for models at the start.
    """

    def __init__(
        self,
        setup: RealtimeSetup,
        budget: Budget,
        lock: threading.Lock,
        cache: ResponseCache | None,
        controls: ModelControls,
    ) -> None:
        config, clock = setup.config, setup.clock
        self._setup = setup
        self._controls = controls
        self._clock = clock
        self.queue = RequestQueue(
            clock,
            capacity=config.queue_capacity,
            urgent_reserve=config.urgent_reserve,
            block=config.queue_full == "block",
            patience=config.queue_timeout,
            lock=lock,
        )
        self.gates = Gates(budget, setup.rng)
        self.callbacks = CallbackThread(clock, setup.report, setup.hooks.run_callback)
        keep = None if cache is None else cache.put
        self.router = ResponseRouter(setup, self.queue, self.gates, keep, self._fallback_lane)
        self.collector = Collector(setup, self.queue, self.gates, self.router, self._fallback_lane)
        self.dispatcher = BatchDispatcher(setup, self.queue, self.collector, self.router)
        self.lanes = LaneFactory(setup, self._attach, cache)
        if setup.fallback is not None:  # its lane is created under the monitor, where no file may be read
            self.lanes.read(setup.fallback.provider, setup.fallback.name)
        # bound once for all futures
        self._run_later, self._cancelled = self.callbacks.run_later, self.cancelled
        self._interrupted = self.cancel_pending
        self._wake = partial(_wake, weakref.ref(self.dispatcher))
        self.failed = self.lost = 0
        self.dispatcher.start()

    def admit(self, submission: Submission, future: ResultFuture | None = None) -> ResultFuture:
        """Queue a validated request and return its future; raises the errors of the queue.

        A caller that passes a ``future`` must call :meth:`cancelled` when it is cancelled.
        """
        now, known = self._clock.now(), future is not None
        if future is None:
            future = ResultFuture(self._run_later, self._cancelled, self._interrupted)
        waiter = Waiter.of(submission, future, now)
        waiter.running = known and future.running()
        ticket = Ticket.of(submission, waiter)
        if ticket.stream is not None:
            ticket.stream.request_id = submission.request_id
            ticket.stream.drop = partial(self.drop, future)
        try:
            with self.queue.monitor:
                joined = self.queue.admit_locked(ticket, now)
                # a request that joined a waiting one may be more urgent
                if not (joined and waiter.running) or waiter.deadline is not None:
                    self.dispatcher.wake_locked()
                if waiter.deadline is not None:
                    self.dispatcher.wake_before_locked(waiter.deadline)
            request, label = submission.request, submission.lane.label
            self._setup.publish_event(
                request_submitted(request, submission.request_id, label, now, joined=joined)
            )
        except BaseException:  # Ctrl-C, or a signal handler that exits, at any point
            if not known:  # the owner of a known future fails it with the reason
                future.cancel()  # it may be half admitted, and the caller never sees it
            raise
        if known and future.cancelled():  # it was cancelled before its request could be removed
            self.cancelled(future)
        return future

    def recognized(self, lane: Lane, request: Request) -> Request:
        """Note the prefix of a request. Mark a single request if earlier ones had the same prefix."""
        if lane.cache is None:
            return request
        if request.cache is not None:
            with self.queue.monitor:
                expected = lane.cache.expect(request.cache, self._clock.now())
            return request if expected is request.cache else evolve(request, cache=expected)
        rendering = rendering_of(request)
        if rendering is None:
            return request
        least = lane.cache.rules.min_tokens
        ends = [prefix for prefix in rendering.ends() if prefix.tokens >= least]
        turns = tuple(rendering.turns()) if lane.cache.rules.by == "marks" else ()
        with self.queue.monitor:
            mark = lane.cache.recognize(
                ends, self._clock.now(), turns=turns, ends_prompt=rendering.ends_with_part
            )
        return request if mark is None else evolve(request, cache=mark)

    def stopped_prefixes(self, model: OpenedModel) -> Mapping[str, StopReason]:
        """Return why shared prefixes of a model's prompts are no longer marked, by key."""
        cache = self.lanes.cache_of(model.provider, model.name)
        if cache is None:
            return {}
        with self.queue.monitor:
            return cache.stopped

    def counts(self) -> RequestCounts:
        """Return a consistent copy of the counts."""
        with self.queue.monitor:
            return evolve(self.queue.counts)

    def status(self, hide: Callable[[str], str]) -> RealtimeStatus:
        scope = self._setup.config.budget_scope
        return status_of(self.queue, self.gates.budget, self._clock.now(), hide, budget_scope=scope)

    def flush(self) -> None:
        """Close all windows, so that their requests are sent."""
        with self.queue.monitor:
            now = self._clock.now()
            for lane_queue in self.queue.lanes.values():
                lane_queue.flush(now)
            self.dispatcher.wake_locked()

    def abandon_futures(self, futures: list[ResultFuture]) -> None:
        """Cancel requests whose results will not be read when the collector next runs.

        Finalisers call this at any point, so it runs no user code and waits for no lock. None of the calls
        starts before the collector runs. The collector is woken on another thread, because a lock acquired
        in a finalizer could stay locked after Ctrl-C.
        """
        self.queue.abandoned.extend(futures)
        run_after_collection(self.dispatcher.wake)

    def detach(self) -> None:
        """Stop using quotas shared with other clients, so that this client no longer lowers their limits."""
        now = self._clock.now()
        for lane in self.queue.lanes:
            lane.quota.detach(self.queue, now)

    def control(self, controls: ModelControls) -> None:
        """Apply the user's settings for models. No lock may be held."""
        now = self._clock.now()
        with self.queue.monitor:
            self._controls = controls
            for lane in self.queue.lanes:
                lane.provider_health.pause = controls.pause_of(lane.label)
            self.dispatcher.wake_locked()
        for lane in self.queue.lanes:
            lane.quota.limit(self.queue, *self._limits(lane, controls), now)

    def _limits(self, lane: Lane, controls: ModelControls) -> tuple[float | None, float | None]:
        """Return the user's limits for the model, or else those of the settings, per minute."""
        config, set_ = self._setup.config, controls.limits.get(lane.label)
        rpm = config.max_rpm if set_ is None else set_.requests_per_minute or config.max_rpm
        tpm = config.max_tpm if set_ is None else set_.tokens_per_minute or config.max_tpm
        return rpm, tpm

    def _attach(self, lane: Lane) -> None:
        self.queue.add_lane(lane)
        while True:  # the controls may change in the meantime, because no lock may be held here
            controls = self._controls
            lane.provider_health.pause = controls.pause_of(lane.label)
            max_rpm, max_tpm = self._limits(lane, controls)
            lane.quota.attach(
                self.queue,
                max_rpm,
                max_tpm,
                now=self._clock.now(),
                wake=self._wake,
                sharing=self._sharing(lane),
                has_account=lane.provider.capabilities.priced,
            )
            if controls is self._controls:
                break
        if self.queue.closed is not None:  # the engine has stopped, and its limits must not outlive it
            lane.quota.detach(self.queue, self._clock.now())

    def _sharing(self, lane: Lane) -> Sharing | None:
        config = self._setup.config
        leases = leases_of(config.shared, self._clock, has_account=lane.provider.capabilities.priced)
        if leases is None:
            return None
        return Sharing(
            leases,
            lane.provider.scope,
            lane.model,
            config.shared_lost,
            partial(_publish_later, weakref.ref(self)),
        )

    def _fallback_lane(self, lane: Lane) -> Lane | None:
        fallback = self._setup.fallback
        if fallback is None or lane.provider is fallback.provider:
            return None
        return self.lanes.of(fallback.provider, fallback.name)

    def stop(self, timeout: float | None, *, reason: str, release: Callable[[], None]) -> None:
        """Finish pending requests within ``timeout`` seconds, fail the rest, and end the threads.

        No more requests are accepted, and all windows close. After the timeout or Ctrl-C, the rest fails with
        ``reason``, and ``release`` aborts the calls in flight. Callbacks run for the remaining time.
        """
        with self.queue.monitor:
            if self.queue.closed is None:
                self.queue.closed = ClientClosed(f"{reason}; the request was not accepted")
            self.queue.wake_blocked_locked()
            self.queue.flushing = True
            self.dispatcher.wake_locked()
            streams = [ticket.stream for ticket in self.queue.live if ticket.stream is not None]
        for stream in streams:
            stream.lift()
        began = self._clock.now()
        try:
            idle = self.queue.wait_idle(timeout)
        except BaseException:
            self.cancel_pending()
            self._end(reason, release)
            self.callbacks.close()
            raise
        if not idle:
            self._end(reason, release)
        self.dispatcher.stop()
        self._publish_abandoned()
        if timeout is not None:
            timeout = max(timeout - (self._clock.now() - began), LAST_CALLBACK_SECONDS)
        self.callbacks.drain(timeout)
        self.callbacks.close()

    def _end(self, reason: str, release: Callable[[], None]) -> None:
        error = ClientClosed(f"{reason} before the request was answered")
        effects = self._effects()
        with self.queue.monitor:
            for ticket in list(self.queue.live):
                before = len(effects.settlements)
                self.router.fail_locked(ticket, error, effects)
                ended = effects.settlements[before:]
                self.failed += len(ended)
                if ticket.stream is None:
                    self.lost += sum(not waiter.raw for waiter, _ in ended)
        effects.perform(self.publish_later)
        release()
        self.dispatcher.stop()

    def _publish_abandoned(self) -> None:
        """Cancel requests that finalizers abandoned after the collector's last check."""
        effects = self._effects()
        with self.queue.monitor:
            for ticket, waiter in self.queue.remove_abandoned_locked():
                effects.cancelled(ticket, waiter)
        effects.perform(self.publish_later)

    def publish_later(self, event: Event) -> None:
        """Send an event on the callback thread.

        A stop waits for that thread only until the stop's timeout, so an observer that never returns cannot
        block the stop.
        """
        under = copy_context().run
        self.callbacks.run_later(lambda: under(self._setup.publish_event, event))

    def abandon(self, error: WrongProcess) -> None:
        """Complete a forked child's copies of its parent's futures, without acquiring an inherited lock."""
        for ticket in list(self.queue.live):
            for waiter in list(ticket.waiters):
                waiter.future.abandon(error)
        # the thread that was completing these futures does not exist in the child
        for effects in list(self.queue.settling):
            assert isinstance(effects, DeferredEffects)
            for waiter, _ in effects.settlements:
                waiter.future.abandon(error)

    def cancel_pending(self) -> int:
        """Cancel every request whose call has not started, and all retries. Return their number.

        A later identical request does not join a cancelled one.
        """
        effects = self._effects()
        with self.queue.monitor:
            futures = [waiter.future for ticket in self.queue.live for waiter in ticket.waiters]
            for ticket in list(self.queue.live):
                if ticket.state is TicketState.IN_FLIGHT:
                    ticket.final = True
                    self.queue.refuse_joining_locked(ticket)
                elif ticket.last_error is not None:
                    self.router.fail_locked(ticket, ticket.last_error, effects)
        effects.perform(self._setup.publish_event)
        return sum(future.cancel() for future in futures)

    def cancelled(self, future: ResultFuture) -> None:
        """Remove the request of a cancelled future and report it."""
        waiter = future.waiter
        if waiter is None:
            return
        effects = self._effects()
        with self.queue.monitor:
            ticket = waiter.ticket
            known = ticket is not None and self.queue.has_lane_of(ticket)
            first = ticket is not None and known and self.queue.cancelled_locked(ticket, waiter)
            if ticket is not None and first:
                effects.cancelled(ticket, waiter)
                self.dispatcher.wake_locked()  # other requests may be waiting for its place
        effects.perform(self._setup.publish_event)
        if first and waiter.sink is not None:
            error = _cancellation(waiter)
            waiter.sink(Result(waiter.request_id, error=error, cost=0.0, context=waiter.request.context))

    def drop(self, future: ResultFuture) -> None:
        """Cancel a request whose call has not started, or that waits for a retry."""
        waiter = future.waiter
        if future.cancel() or waiter is None:
            return
        effects = self._effects()
        with self.queue.monitor:
            ticket = waiter.ticket
            if ticket is None or not self.queue.has_lane_of(ticket):
                return
            alone = len(ticket.waiters) == 1  # other waiters still need the call
            if alone and ticket.state is TicketState.WAITING:
                self.router.fail_locked(ticket, _cancellation(waiter), effects)
                self.dispatcher.wake_locked()
        effects.perform(self._setup.publish_event)

    def _effects(self) -> DeferredEffects:
        return DeferredEffects(self.queue, self._clock.now())


def _wake(dispatcher: weakref.ref[BatchDispatcher]) -> None:
    """Wake the collector if its client still exists. Quotas must not keep clients alive."""
    found = dispatcher()
    if found is not None:
        found.wake()


def _publish_later(engine: weakref.ref[RealtimeEngine], event: Event) -> None:
    found = engine()
    if found is not None:
        found.publish_later(event)


def _cancellation(waiter: Waiter) -> SmartbatchError:
    return RequestCancelled("the request was cancelled before its call", request_id=waiter.request_id)
