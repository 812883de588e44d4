"""The dispatcher: workers that carry batches to the provider and bring the verdicts back.

A worker is a loop over one step: take a batch, make its call, route what came back, take the next. The thread
pool is only handed a batch when fewer than all its threads are busy, so its own queue stays empty and
priorities hold to the last moment. Workers never sleep: what has to wait, waits in the queue.
"""

from __future__ import annotations

import concurrent.futures.thread
import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from attrs import define

from smartbatch._clock import Clock
from smartbatch.core.batching.window import BatchState
from smartbatch.errors import ClientClosed, ProviderError
from smartbatch.events import CallFinished, CallStarted, Event
from smartbatch.realtime.accounting import cost_of, route_of
from smartbatch.realtime.call.layers import CallSpec, Outcome
from smartbatch.realtime.collector import Collector
from smartbatch.realtime.effects import DeferredEffects
from smartbatch.realtime.queue import RequestQueue
from smartbatch.realtime.router import InFlightCall, Reading, ResponseRouter
from smartbatch.types import Answer, Route, Usage

__all__ = ["BatchDispatcher"]


@define(eq=False)
class _Errand:
    """What a thread is started for; ``void`` once another thread was started for it."""

    flight: InFlightCall
    void: bool = False


class BatchDispatcher:
    """A ``ThreadPoolExecutor`` of at most ``workers`` threads, and one thread that watches the time.

    Args:
        workers: most calls at once.
        call_timeout: total seconds a call may take.
        tell: tells an event to all observers; never raises.
    """

    def __init__(
        self,
        clock: Clock,
        queue: RequestQueue,
        collector: Collector,
        router: ResponseRouter,
        *,
        workers: int,
        call_timeout: float,
        tell: Callable[[Event], None],
    ) -> None:
        self._clock = clock
        self._queue = queue
        self._monitor = queue.monitor
        self._collector = collector
        self._router = router
        self._workers = workers
        self._call_timeout = call_timeout
        self._tell = tell
        self._busy = 0
        self._wakes_at = -math.inf
        self._stopping = False
        self._mine = threading.local()
        self._pool: ThreadPoolExecutor | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the collector's thread; workers start when there is work."""
        self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix="smartbatch-worker")
        self._thread = threading.Thread(target=self._watch, name="smartbatch-collector", daemon=True)
        self._clock.spawned()
        self._thread.start()

    def stop(self) -> None:
        """End the collector's thread and the idle workers. Workers in a call end when it returns."""
        with self._monitor:
            self._stopping = True
            self._monitor.notify_all()
        if self._pool is not None:
            self._pool.shutdown(wait=False)

    def on_own_thread(self) -> bool:
        """Whether the caller runs on the collector's thread or a worker's, in a hook of the user's."""
        return getattr(self._mine, "here", False)

    def wake_locked(self) -> None:
        """Have the collector look, if a worker's look will not do."""
        if self._busy < self._workers:
            self._wakes_at = -math.inf
            self._monitor.notify()

    def wake(self) -> None:
        """Have the collector look: something changed outside this client."""
        with self._monitor:
            self.wake_locked()

    def wake_before_locked(self, at: float) -> None:
        """Have the collector look at ``at`` at the latest."""
        if at < self._wakes_at:
            self._monitor.notify()

    def _watch(self) -> None:
        self._clock.began()
        self._mine.here = True
        try:
            while True:
                effects = DeferredEffects(self._queue)
                with self._monitor:
                    if self._stopping:
                        return
                    wake = self._step_locked(effects)
                    if not effects:
                        self._wakes_at = wake
                        timeout = None if wake == math.inf else wake - self._clock.now()
                        if timeout is None or timeout > 0:
                            self._monitor.wait(timeout)
                        self._wakes_at = -math.inf
                effects.perform(self._tell)
        finally:
            self._clock.ended()

    def _step_locked(self, effects: DeferredEffects) -> float:
        """Expire what is late, start workers for what is ready; return when to look again."""
        now = self._clock.now()
        deadline = self._collector.expire_locked(now, effects)
        while self._busy < self._workers:
            found = self._collector.take_locked(now, effects)
            if not isinstance(found, InFlightCall):
                return min(found, deadline)
            if not self._spawn_locked(found, effects):
                break
        return deadline  # a worker that ends looks for itself

    def _spawn_locked(self, flight: InFlightCall, effects: DeferredEffects) -> bool:
        """Start a worker with ``flight``; False when no thread could be had.

        Only this daemon thread asks the pool for threads: theirs inherit being daemons, so that a call that
        never returns cannot keep the interpreter from exiting.
        """
        assert self._pool is not None
        self._busy += 1
        self._clock.spawned()
        refusal = self._start_worker(self._pool, flight)
        if refusal is not None:
            self._busy -= 1
            self._clock.unspawned()
            self._without_thread_locked(flight, refusal, effects)
        _leave_exit_alone(self._pool)
        return refusal is None

    def _start_worker(self, pool: ThreadPoolExecutor, flight: InFlightCall) -> RuntimeError | None:
        """Have a thread of the pool work, or a thread of its own; return why neither could be had.

        The pool takes nothing any more once the main thread has ended, although threads of the user and exit
        hooks may still ask and wait. And it queues what it cannot start a thread for, hence the errand.
        """
        errand = _Errand(flight)
        try:
            pool.submit(self._run, errand)
        except RuntimeError:
            errand.void = True
            thread = threading.Thread(
                target=self._run, args=(_Errand(flight),), name="smartbatch-worker", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as refusal:
                return refusal
        return None

    def _without_thread_locked(
        self, flight: InFlightCall, refusal: RuntimeError, effects: DeferredEffects
    ) -> None:
        """The system has no thread left: the workers there are do the work; without any, it fails."""
        now = self._clock.now()
        if self._busy:
            self._router.return_locked(flight, now, effects)
            return
        closed = ClientClosed(f"no thread could be started, so nothing was sent: {refusal}")
        self._router.drop_locked(flight, closed, now, effects)

    def _run(self, errand: _Errand) -> None:
        if not errand.void:
            self._work(errand.flight)

    def _work(self, flight: InFlightCall) -> None:
        self._clock.began()
        self._mine.here = True
        carried: InFlightCall | None = flight
        try:
            while carried is not None:
                effects = DeferredEffects(self._queue)
                carried = self._carry(carried, effects)
                effects.perform(self._tell)
        finally:
            self._clock.ended()

    def _carry(self, flight: InFlightCall, effects: DeferredEffects) -> InFlightCall | None:
        """Make the call of ``flight``, route it, and return the next flight."""
        lane = flight.permit.lane
        outcomes: Sequence[Outcome]
        readings: Sequence[Reading]
        try:
            outcomes = self._call(flight)
            now = self._clock.now()
            readings = self._router.prepare(flight, outcomes, now)
        except BaseException as mistake:  # ours; whoever waits for the answer must hear of it all the same
            now = self._clock.now()
            outcomes = readings = _mistaken(flight, mistake)
        with self._monitor:
            try:
                self._router.route_locked(flight, outcomes, readings, now, effects)
            except Exception as mistake:
                self._router.give_up_locked(flight, _verdict(flight, mistake), now, effects)
            following = self._next_locked(effects)
        lane.quota.wake_others(self._queue)
        return following

    def _next_locked(self, effects: DeferredEffects) -> InFlightCall | None:
        """Take the next batch, or let this worker go; the collector is told when to look."""
        if not self._stopping:
            found = self._collector.take_locked(self._clock.now(), effects)
            if isinstance(found, InFlightCall):
                if self._busy < self._workers and self._queue.counts.waiting:
                    self._monitor.notify()  # a gate may just have opened for more than this one
                return found
            if found < self._wakes_at:
                self._monitor.notify()
        self._busy -= 1
        return None

    def _call(self, flight: InFlightCall) -> list[Outcome]:
        batch, lane = flight.batch, flight.permit.lane
        batch.move(BatchState.SENDING)
        now = flight.started = self._clock.now()
        deadline = now + self._call_timeout
        limits = [ticket.deadline for ticket in batch.items]
        if None not in limits:  # who has less time than the others is told by the collector when it is over
            deadline = min(deadline, max(limit for limit in limits if limit is not None))
        spec = CallSpec(
            batch.id,
            tuple(ticket.request for ticket in batch.items),
            lane.label,
            batch.items[0].attempts,
            deadline,
            batch.items[0].stream,
        )
        size = len(batch)
        self._tell(
            CallStarted(
                at=now,
                batch_id=batch.id,
                model=lane.label,
                size=size,
                attempt=spec.attempt,
                in_flight=self._busy,
                waited=now - batch.opened,
            )
        )
        batch.move(BatchState.AWAITING_RESPONSE)
        outcomes = list(lane.call(spec))
        self._tell(self._finished(flight, outcomes))
        return outcomes

    def _finished(self, flight: InFlightCall, outcomes: list[Outcome]) -> CallFinished:
        now = self._clock.now()
        usage: Usage | None = None
        cost: float | None = 0.0
        error: ProviderError | None = None
        for outcome in outcomes:
            if isinstance(outcome, ProviderError):
                error = outcome
            if outcome is not None and outcome.usage is not None:
                usage = outcome.usage if usage is None else usage + outcome.usage
            cost = _plus(cost, cost_of(flight.permit.lane, outcome))
        if any(isinstance(outcome, Answer) for outcome in outcomes):
            error = None
        return CallFinished(
            at=now,
            batch_id=flight.batch.id,
            model=flight.permit.lane.label,
            size=len(flight.batch),
            seconds=now - flight.started,
            usage=usage or Usage(),
            cost=cost,
            error=None if error is None else error.kind.value,
            maybe_billed=error is not None and error.maybe_billed,
            route=_route(flight, outcomes),
        )


def _route(flight: InFlightCall, outcomes: list[Outcome]) -> Route | None:
    """Return the route a call takes; ``None`` for a function of the user's."""
    if any(ticket.request.call is not None for ticket in flight.batch.items):
        return None
    size, lane = len(flight.batch), flight.permit.lane
    return Route.PACKED if size > 1 and lane.packing_health is not None else route_of(lane, outcomes[0], size)


def _mistaken(flight: InFlightCall, mistake: BaseException) -> list[ProviderError]:
    """Return the outcome for every request of a call that an error of this library broke off."""
    batch = flight.batch
    if batch.state is BatchState.SENDING:
        batch.move(BatchState.AWAITING_RESPONSE)
    return [_verdict(flight, mistake)] * len(batch)


def _verdict(flight: InFlightCall, mistake: BaseException) -> ProviderError:
    verdict = ProviderError(
        f"an error inside smartbatch ({type(mistake).__name__}); please report it with its cause",
        batch_id=flight.batch.id,
    )
    verdict.__cause__ = mistake
    return verdict


def _plus(total: float | None, cost: float | None) -> float | None:
    return None if total is None or cost is None else total + cost


def _leave_exit_alone(pool: ThreadPoolExecutor) -> None:
    """Keep the standard library from joining these daemon threads at exit, where a call could hold it up.

    ``concurrent.futures`` joins every pool thread it has booked before ``atexit`` handlers run; the client's
    own exit handler gives pending work its grace instead.
    """
    booked = getattr(concurrent.futures.thread, "_threads_queues", None)
    if booked is not None:
        for thread in list(pool._threads):
            booked.pop(thread, None)
