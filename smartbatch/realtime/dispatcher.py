"""Worker threads that send batches to the provider and pass the answers to the router.

A worker makes a call, routes its outcomes and takes the next batch. The thread pool receives a call only
while a thread is free, so its own queue stays empty and priorities apply until the last moment. Workers never
sleep.
"""

from __future__ import annotations

import concurrent.futures.thread
import math
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from attrs import define, evolve, frozen

from smartbatch._clock import Clock, Monitor
from smartbatch.core.batching.request_batch import BatchState
from smartbatch.core.prefixes.leads import Lead
from smartbatch.errors import ClientClosed, ProviderError
from smartbatch.events import CalledRequest, CallFinished, CallStarted
from smartbatch.observe import logs
from smartbatch.realtime.answer_reader import Reading
from smartbatch.realtime.call import CallSpec, Outcome
from smartbatch.realtime.collector import Collector
from smartbatch.realtime.effects import DeferredEffects
from smartbatch.realtime.in_flight import NO_BILL, InFlightCall, bill, is_from_cache, route_of
from smartbatch.realtime.lane import Lane
from smartbatch.realtime.queue import RequestQueue
from smartbatch.realtime.router import ResponseRouter
from smartbatch.realtime.setup import RealtimeSetup
from smartbatch.shared_prefixes import CacheMark
from smartbatch.types import NO_USAGE, Answer, Kind, Request, Route


@define(eq=False)
class _HandOver:
    call: InFlightCall
    void: bool = False


@frozen
class _Wait:
    timeout: float | None  # seconds; None waits for a notification
    idle: bool  # the timeout only ends unused threads
    holds: bool


IDLE_SECONDS = 30.0
"""Workers end after this time without calls."""


class BatchDispatcher:
    """A ``ThreadPoolExecutor`` with one thread per call in flight, and the collector's thread."""

    def __init__(
        self, setup: RealtimeSetup, queue: RequestQueue, collector: Collector, router: ResponseRouter
    ) -> None:
        self._clock = setup.clock
        self.publish_event = setup.publish_event
        self._parallelism = setup.parallelism
        self._call_timeout = setup.config.call_timeout
        self._queue = queue
        self._monitor = queue.monitor
        self._collector = collector
        self._router = router
        self._busy = 0
        self._idle_since = -math.inf
        self._wakes_at = -math.inf
        self._stopping = False
        self._mine = threading.local()
        self._pool: ThreadPoolExecutor | None = None
        self._listed = 0

    def start(self) -> None:
        """Start the collector's thread. Workers start with the first calls."""
        given = (weakref.ref(self), self._clock, self._monitor)
        thread = threading.Thread(target=self._watch, args=given, name="smartbatch-collector", daemon=True)
        self._clock.spawned()
        thread.start()

    def stop(self) -> None:
        """End the collector's thread and idle workers. A worker in a call ends when the call returns."""
        with self._monitor:
            self._stopping = True
            self._end_workers_locked()
            self._monitor.notify_all()

    def resize(self) -> None:
        """Apply a new parallelism to later calls. Calls in flight continue in the old pool."""
        with self._monitor:
            self._end_workers_locked()
            self._wakes_at = -math.inf
            self._monitor.notify_all()

    def on_own_thread(self) -> bool:
        """Return True if called from a user hook; hooks run on the collector's thread or on a worker."""
        return getattr(self._mine, "here", False)

    def wake_locked(self) -> None:
        if self._busy < self._parallelism.calls:
            self._wakes_at = -math.inf
            self._monitor.notify()

    def wake(self) -> None:
        with self._monitor:
            self.wake_locked()

    def wake_before_locked(self, at: float) -> None:
        if at < self._wakes_at:
            self._monitor.notify()

    @staticmethod
    def _watch(of: weakref.ref[BatchDispatcher], clock: Clock, monitor: Monitor) -> None:
        """Check the queue whenever there may be something to do, until the client stops.

        While no request is pending, this thread holds no reference to the client, which can then be
        garbage-collected and stopped.
        """
        clock.began()
        try:
            while (dispatcher := of()) is not None:
                effects = dispatcher.effects()
                with monitor:
                    found = dispatcher.look_locked(effects)
                    if found is None:
                        return
                    if isinstance(found, _Wait) and not effects:
                        _held = dispatcher if found.holds else None
                        del dispatcher, effects
                        if found.timeout is None or found.timeout > 0:
                            monitor.wait(found.timeout, idle=found.idle)
                        continue
                if isinstance(found, InFlightCall):
                    dispatcher.hand_over(found, effects)
                effects.perform(dispatcher.publish_event)
                del dispatcher, effects, found
        finally:
            clock.ended()

    def effects(self) -> DeferredEffects:
        return DeferredEffects(self._queue, self._clock.now())

    def look_locked(self, effects: DeferredEffects) -> _Wait | InFlightCall | None:
        """Take a step. Return a call, the time to wait if nothing happened, or ``None`` at the end.

        The collector checks again after every wait, because a notification may coincide with the timeout.
        """
        self._mine.here = True
        if self._stopping:
            return None
        self._wakes_at = -math.inf
        found = self._step_locked(effects)
        if isinstance(found, InFlightCall):
            return found
        if not effects:
            self._wakes_at = found
        return self._wait_locked(found)

    def _wait_locked(self, wake: float) -> _Wait:
        """Return how long to wait, and end workers that have been idle for :data:`IDLE_SECONDS`.

        A worker that finds no call does not wake the collector, so the collector checks again after that
        time.
        """
        now, holds = self._clock.now(), bool(self._queue.live)
        if wake < math.inf:
            return _Wait(wake - now, idle=False, holds=holds)
        timeout: float | None = None
        if self._pool is not None:
            timeout = IDLE_SECONDS if self._busy else self._idle_since + IDLE_SECONDS - now
            if timeout <= 0:
                self._end_workers_locked()
                timeout = None
        return _Wait(timeout, idle=True, holds=holds)

    def _end_workers_locked(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False)
            self._pool = None

    def _step_locked(self, effects: DeferredEffects) -> InFlightCall | float:
        """Fail requests that timed out. Return a call for a worker, or the time of the next check."""
        effects.now = self._clock.now()
        deadline = self._collector.expire_locked(effects)
        if self._busy >= self._parallelism.calls:
            return deadline  # a worker checks the queue after its call
        found = self._collector.take_locked(effects)
        if not isinstance(found, InFlightCall):
            return min(found, deadline)
        self._busy += 1
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._parallelism.calls, thread_name_prefix="smartbatch-worker")
            self._listed = 0
        return found

    def hand_over(self, call: InFlightCall, effects: DeferredEffects) -> None:
        """Pass ``call`` to a worker. Takes the monitor, but not while a thread starts.

        Only this daemon thread submits to the pool, so the pool's threads are daemons too. A call that never
        returns therefore cannot keep the interpreter from exiting. The cases, in order:

        1. The pool has a thread, or starts one.
        2. The pool rejects the call because the main thread has ended, although user threads and exit hooks
           may still submit requests: start a separate thread. If the pool queued the call before it raised,
           the queued entry is voided.
        3. The system has no thread left, but there are workers: queue the batch again. A worker takes it
           after its current call, or the next check finds an idle worker.
        4. There are no workers: fail the batch.
        """
        self._clock.spawned()
        refusal = self._start_worker(call)
        if refusal is None:
            return
        self._clock.unspawned()
        with self._monitor:
            self._busy -= 1
            effects.now = self._clock.now()
            if self._busy or self._listed:
                self._router.return_locked(call, effects)
            else:
                closed = ClientClosed(f"no thread could be started, so nothing was sent: {refusal}")
                self._router.drop_locked(call, closed, effects)

    def _start_worker(self, call: InFlightCall) -> RuntimeError | None:
        """Use a thread of the pool or a new one. Return the error if neither could be started."""
        pool, hand_over = self._pool, _HandOver(call)
        if pool is not None:  # None if the client was stopped or resized
            try:
                pool.submit(self._work, hand_over)
            except RuntimeError:
                hand_over.void = True
            self._listed = _unlist_threads(pool, self._listed)
            if not hand_over.void:
                return None
        thread = threading.Thread(
            target=self._work, args=(_HandOver(call),), name="smartbatch-worker", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as refusal:
            return refusal
        return None

    def _work(self, hand_over: _HandOver) -> None:
        if hand_over.void:
            return
        self._clock.began()
        self._mine.here = True
        call: InFlightCall | None = hand_over.call
        try:
            while call is not None:
                effects = DeferredEffects(self._queue, self._clock.now())
                call = self._make_call(call, effects)
                effects.perform(self.publish_event)
        finally:
            self._clock.ended()

    def _make_call(self, call: InFlightCall, effects: DeferredEffects) -> InFlightCall | None:
        """Make ``call``, route its outcomes, and return the next call.

        An internal error fails the requests of the call.
        """
        lane = call.permit.lane
        readings: Sequence[Reading]
        try:
            call.variables().run(self._send, call)
            effects.now = self._clock.now()
            readings = self._router.prepare(call, effects.now)
            self._router.end_quota(call, effects.now)
        except BaseException as error:
            effects.now = self._clock.now()
            failure = _internal_error(call, error)
            if call.bill is NO_BILL:
                call.bill = bill(call, (failure,) * len(call.batch))
            call.batch.fail(failure)
            readings = [failure] * len(call.batch)
        with self._monitor:
            try:
                self._router.route_locked(call, readings, effects)
            except Exception as error:
                self._router.give_up_locked(call, _internal_error(call, error), effects)
            following = self._next_locked(effects)
        lane.quota.wake_others(self._queue)
        return following

    def _next_locked(self, effects: DeferredEffects) -> InFlightCall | None:
        """Take the next batch. If there is none, release this worker and set the collector's next check."""
        if not self._stopping and self._busy <= self._parallelism.calls:
            effects.now = self._clock.now()
            found = self._collector.take_locked(effects)
            if isinstance(found, InFlightCall):
                if self._busy < self._parallelism.calls and self._queue.counts.waiting:
                    self._monitor.notify()
                return found
            if found < self._wakes_at:
                self._monitor.notify()
        self._busy -= 1
        self._idle_since = self._clock.now()
        return None

    def _send(self, call: InFlightCall) -> None:
        batch, lane = call.batch, call.permit.lane
        batch.move(BatchState.SENDING)
        now = call.started = self._clock.now()
        deadline = now + self._call_timeout
        limits = [ticket.deadline for ticket in batch.items]
        if None not in limits:  # the collector fails requests that time out earlier
            deadline = min(deadline, max(limit for limit in limits if limit is not None))
        begun = None if call.cached.lead is None else partial(self._answer_began, lane, call.cached.lead)
        spec = CallSpec(
            batch,
            tuple([_with_mark(ticket.request, call.cached.mark) for ticket in batch.items]),
            lane.label,
            batch.items[0].attempts,
            deadline,
            batch.items[0].stream,
            begun,
        )
        size = len(batch.items)
        call.requests = _called_requests(call)
        self.publish_event(
            CallStarted(
                at=now,
                batch_id=batch.id,
                model=lane.label,
                size=size,
                attempt=spec.attempt,
                in_flight=self._busy,
                waited=batch.age(now),
                kind=_kind(spec.requests[0]),
                own_code=spec.requests[0].call is not None or lane.provider.own_code,
                requests=call.requests,
            )
        )
        batch.move(BatchState.AWAITING_RESPONSE)
        for ticket in batch.items:
            ticket.calling, ticket.route = True, route_of(lane, None, size)
        outcomes = lane.call(spec)
        batch.complete_all(outcomes)
        call.bill = bill(call, outcomes)
        self.publish_event(self._finished(call, outcomes))

    def _answer_began(self, lane: Lane, lead: Lead) -> None:
        """Send the requests that waited for a cache entry, which is readable once the answer has begun."""
        if lane.cache is not None and not lead.released:
            with self._monitor:
                lane.cache.began(lead, self._clock.now())
                self.wake_locked()

    def _finished(self, call: InFlightCall, outcomes: Sequence[Outcome]) -> CallFinished:
        now, lane, batch = self._clock.now(), call.permit.lane, call.batch
        error: ProviderError | None = None
        for outcome in outcomes:
            if isinstance(outcome, Answer):
                error = None
                break
            if isinstance(outcome, ProviderError):
                error = outcome
        return CallFinished(
            at=now,
            batch_id=batch.id,
            model=lane.label,
            size=len(outcomes),
            seconds=now - call.started,
            usage=call.bill.usage or NO_USAGE,
            cost=call.bill.cost,
            error=None if error is None else error.kind.value,
            maybe_billed=error is not None and error.maybe_billed,
            route=_route(call, outcomes),
            requests=call.requests,
        )


def _with_mark(request: Request, mark: CacheMark | None) -> Request:
    return request if request.cache is mark else evolve(request, cache=mark)


def _kind(request: Request) -> Kind:
    if request.call is not None:
        return Kind.CALL
    return Kind.GENERATE if request.embedding is None else Kind.EMBED


def _called_requests(call: InFlightCall) -> tuple[CalledRequest, ...]:
    return tuple(
        [
            CalledRequest(
                request_id=waiter.request_id,
                purpose=waiter.request.purpose,
                context=waiter.request.context,
                submitted=waiter.submitted,
                variables=waiter.variables,
            )
            for ticket in call.batch.items
            for waiter in list(ticket.waiters)
        ]
    )


def _route(call: InFlightCall, outcomes: Sequence[Outcome]) -> Route | None:
    """Return ``None`` if the call was a user's function, or if no call was made."""
    sent = [outcome for outcome in outcomes if not is_from_cache(outcome)]
    # a request with its own function never shares its call
    if not sent or call.batch.items[0].request.call is not None:
        return None
    size, lane = len(sent), call.permit.lane
    return Route.PACKED if size > 1 and lane.packing_health is not None else route_of(lane, sent[0], size)


def _internal_error(call: InFlightCall, cause: BaseException) -> ProviderError:
    logs.warn("internal_error", error=type(cause).__name__, batch_id=call.batch.id)
    error = ProviderError(
        f"an error inside smartbatch ({type(cause).__name__}); please report it with its cause",
        batch_id=call.batch.id,
        maybe_billed=True,
    )
    error.__cause__ = cause
    return error


def _unlist_threads(pool: ThreadPoolExecutor, known: int) -> int:
    """Keep the standard library from joining these daemon threads at exit. Return their number.

    ``concurrent.futures`` joins all listed threads before ``atexit`` handlers run, so a call could delay the
    exit. The client's exit handler gives pending requests their grace period instead. The first ``known``
    threads were handled before.
    """
    threads = getattr(pool, "_threads", ())
    if len(threads) == known:
        return known
    listed = getattr(concurrent.futures.thread, "_threads_queues", None)
    if listed is not None:
        for thread in list(threads):
            listed.pop(thread, None)
    return len(threads)
