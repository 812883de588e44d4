"""What waits and travels inside: a ticket is one call's worth of work, its claims are who gets the answer."""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import TYPE_CHECKING, Any

from smartbatch.core.limits.retry import RetryCount
from smartbatch.errors import SmartbatchError, WrongProcess
from smartbatch.types import Priority, Request, Result, Usage

if TYPE_CHECKING:
    from smartbatch.core.limits.budget import Budget
    from smartbatch.realtime.answer_validation import Repair
    from smartbatch.realtime.lane import Lane
    from smartbatch.realtime.text_stream import ChunkBox

__all__ = ["PATIENCE", "ResultFuture", "Ticket", "TicketState", "Waiter", "latest_start"]

PATIENCE: dict[Priority, float] = {
    Priority.URGENT: -86_400.0,
    Priority.HIGH: 1.0,
    Priority.NORMAL: 10.0,
    Priority.LOW: 120.0,
    Priority.DEFERRABLE: 600.0,
}
"""Seconds after its arrival at which a request of each priority should have started, at the latest.

The order of service is the order of these moments, so a request ages by itself and none starves: a low one
yields to normal ones that come within two minutes of it, and to no later ones. An urgent one goes before
everything that has waited less than a day.
"""


def latest_start(arrival: float, priority: Priority, deadline: float | None) -> float:
    """Return the moment that decides the order of service: patience, or the own deadline if sooner."""
    start = arrival + PATIENCE[priority]
    return start if deadline is None or deadline > start else deadline


class TicketState(enum.Enum):
    """Where a ticket stands. WAITING and IN_FLIGHT alternate while it is retried; DONE is for ever."""

    WAITING = "waiting"
    IN_FLIGHT = "in_flight"
    DONE = "done"


class ResultFuture(Future[Result]):
    """A ``concurrent.futures.Future`` whose callbacks run on a thread of their own.

    A callback may therefore block, wait for another future, submit, or stop the client, without holding up
    the workers. One added after the end runs at once on the caller's thread, as the standard library has it.

    Attributes:
        outcome: the whole result, failures included, once it is settled.
    """

    def __init__(
        self,
        run_later: Callable[[Callable[[], Any]], None],
        on_cancel: Callable[[ResultFuture], None],
        on_interrupt: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__()
        self.outcome: Result | None = None
        self.waiter: Waiter | None = None
        self._run_later = run_later
        self._on_cancel = on_cancel
        self._on_interrupt = on_interrupt

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the result; Ctrl-C meanwhile cancels every request of the client that has not started.

        Args:
            timeout: seconds; ``None`` waits as long as it takes.

        Raises:
            SmartbatchError: what the request failed with.
            TimeoutError: it is not over yet.
            CancelledError: it was cancelled.
        """
        try:
            return super().result(timeout)
        except KeyboardInterrupt:
            self._on_interrupt()
            raise
        finally:
            del self  # an error raised here has this frame in its traceback, and the future has the error

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait as :meth:`result` does and return the error, or ``None`` for an answered request."""
        try:
            return super().exception(timeout)
        except KeyboardInterrupt:
            self._on_interrupt()
            raise

    def cancel(self) -> bool:
        """Cancel the request if its call has not started; returns whether it is cancelled."""
        cancelled = super().cancel()
        if cancelled:
            self._on_cancel(self)
        return cancelled

    def add_done_callback(self, fn: Callable[[Future[Result]], object]) -> None:
        """Call ``fn(future)`` when the request ends."""
        if self.done():
            super().add_done_callback(fn)
            return
        run_later = self._run_later
        super().add_done_callback(lambda future: run_later(lambda: fn(future)))

    def settle(self, result: Result) -> None:
        """End the future with ``result``, unless it was cancelled before its call started."""
        self.outcome = result
        self.waiter = None  # the ticket is done with; a future must not keep it alive
        try:
            if result.error is None:
                self.set_result(result)
            else:
                self.set_exception(result.error)
        except InvalidStateError:  # somebody else ended it, who must not
            pass

    def abandon(self, error: WrongProcess) -> None:
        """End the copy a forked child holds. No other thread of the child can know this future.

        The condition may have been locked by a thread that does not exist here, so it is made anew;
        callbacks belong to the parent and are forgotten.
        """
        self._condition = threading.Condition()
        vars(self)["_done_callbacks"] = []
        if not self.done():
            self.set_exception(error)


class Waiter:
    """One request's share in a ticket: its future, and what only concerns this asker.

    Attributes:
        ticket: whose claim it is, once the queue has taken it in.
    """

    __slots__ = (
        "deadline",
        "future",
        "joined",
        "request",
        "request_id",
        "running",
        "sink",
        "submitted",
        "ticket",
    )

    def __init__(
        self,
        request: Request,
        request_id: str,
        future: ResultFuture,
        submitted: float,
        deadline: float | None,
        sink: Callable[[Result], None] | None,
    ) -> None:
        self.request = request
        self.request_id = request_id
        self.future = future
        self.submitted = submitted
        self.deadline = deadline
        self.sink = sink
        self.joined = False
        self.running = False
        self.ticket: Ticket | None = None

    def begin(self) -> bool:
        """Move the future to running, so that the result can end it; False when it is over already."""
        self.running = True
        try:
            return self.future.set_running_or_notify_cancel()
        except RuntimeError:  # somebody else moved or ended it, who must not
            return not self.future.done()

    def end(self, result: Result) -> None:
        """Tell ``result`` to whoever waits for it. No lock may be held; a second time does nothing more."""
        self.future.settle(result)
        self.ticket = None  # which has this claim: neither shall wait for the garbage collector
        if self.sink is not None:
            self.sink(result)


class Ticket:
    """A request on its way, with everything that was tried so far.

    A ticket settles once. While it waits, it belongs to the queue and is changed under the monitor; while it
    is in flight, it belongs to the worker that carries it, but for its claims.
    """

    __slots__ = (
        "alone",
        "attempts",
        "batch_key",
        "charged",
        "cost",
        "due",
        "entry",
        "estimate",
        "final",
        "fingerprint",
        "group",
        "input_estimate",
        "keep",
        "key",
        "lane",
        "last_error",
        "must_start",
        "original",
        "own_budget",
        "paused",
        "raw",
        "repair",
        "repairs",
        "request",
        "reserve",
        "retry_count",
        "started",
        "state",
        "stream",
        "urgent",
        "usage",
        "waiters",
    )

    def __init__(
        self,
        request: Request,
        lane: Lane,
        waiter: Waiter,
        fingerprint: bytes | None,
        stream: ChunkBox | None = None,
    ) -> None:
        self.request = request
        self.lane = lane
        self.waiters = [waiter]
        self.fingerprint = fingerprint
        self.original = request
        self.repair: Repair | None = None
        self.repairs = 0  # times the request was sent again for an answer that did not fit its schema
        self.key = latest_start(waiter.submitted, request.priority, waiter.deadline)
        self.due = waiter.submitted
        self.must_start = waiter.submitted + (
            lane.accumulator.window.max_wait if request.max_wait is None else request.max_wait
        )
        self.entry = 0
        self.paused = False
        self.raw = False  # True when its result is post-processed by somebody else, later
        self.state = TicketState.WAITING
        self.urgent = request.priority is Priority.URGENT
        self.stream = stream
        self.alone = request.call is not None or stream is not None  # these make calls of their own
        self.batch_key = lane.batch_key(request)
        self.group: object | None = None
        self.final = False  # the call under way is the last, whatever comes of it
        self.attempts = 0
        self.charged = False
        self.retry_count = RetryCount()
        self.usage = Usage()
        self.cost: float | None = 0.0
        self.keep: bytes | None = None
        self.input_estimate = 0
        self.estimate = 0
        self.reserve = 0.0
        self.own_budget: Budget | None = None  # pays for it, where that is not the client's budget
        self.started = 0.0
        self.last_error: SmartbatchError | None = None

    @property
    def request_id(self) -> str:
        waiter = next(iter(self.waiters), None)
        return "cancelled" if waiter is None else waiter.request_id

    @property
    def deadline(self) -> float | None:
        """The moment after which nobody waits any more, or ``None``."""
        latest = 0.0
        for waiter in self.waiters:
            if waiter.deadline is None:
                return None
            latest = max(latest, waiter.deadline)
        return latest or None
