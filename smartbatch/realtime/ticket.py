"""A request in progress: its submission, its ticket, and its waiters with their futures.

A ticket lists its waiters, a waiter refers to its future and its ticket, and a cancelled future refers to its
waiter.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable
from concurrent.futures import Future, InvalidStateError
from contextvars import Context, copy_context
from typing import Any

from attrs import define, field, frozen

from smartbatch._fork import notice_fork
from smartbatch.core.limits.budget import Budget
from smartbatch.core.limits.retry import RetryCount
from smartbatch.errors import SmartbatchError, UnusableAnswer, WrongProcess
from smartbatch.providers.registry import OpenedModel
from smartbatch.realtime.lane import Lane
from smartbatch.realtime.text_stream import ChunkBox
from smartbatch.results import Interrupted
from smartbatch.types import NO_USAGE, Priority, Request, Result, Route, T, Usage


@frozen
class CallOptions:
    """How to send one request, in addition to its own fields."""

    model: OpenedModel
    # receives the result before threads that wait for the future continue
    sink: Callable[[Result], None] | None = None
    stream: ChunkBox | None = None
    raw: bool = False  # skip hooks, which run when the result is read
    # a budget within the client's; None if only the client's is charged
    own_budget: Budget | None = None
    alone: bool = False  # never shares its call
    flex: bool = False  # use the provider's flex tier, if there is one
    keeps_going: bool = False  # sent even if the provider refuses the key, account or model


@frozen
class Submission:
    """A validated request and how to process it."""

    request: Request
    request_id: str  # the request's own id, or a generated one
    lane: Lane
    options: CallOptions
    fingerprint: bytes | None  # equal for requests that may share an answer; None if it must not
    # cache key for the requested model; None if it is not cached
    cache_key: bytes | None = None
    input_tokens: int = 0
    tokens: int = 0  # expected input and output, as estimated by its lane
    reserve: float = 0.0  # maximum cost, USD


PATIENCE_SECONDS: dict[Priority, float] = {
    Priority.URGENT: -86_400.0,
    Priority.HIGH: 1.0,
    Priority.NORMAL: 10.0,
    Priority.LOW: 120.0,
    Priority.DEFERRABLE: 240.0,
}
"""Seconds after arrival by which a request of each priority should start.

Requests are served in the order of these times, so that none starves: a LOW request is overtaken only by
NORMAL ones that arrive less than two minutes later. URGENT ones precede all others, except in the turns that
:class:`~smartbatch.realtime.lane_queue.Turns` reserves.
"""


def latest_start(arrival: float, priority: Priority, deadline: float | None) -> float:
    """Return the time that decides the order of service, from the priority or an earlier deadline."""
    start = arrival + PATIENCE_SECONDS[priority]
    return start if deadline is None or deadline > start else deadline


class TicketState(enum.Enum):
    """A retried ticket alternates between WAITING and IN_FLIGHT. DONE is final."""

    WAITING = "waiting"
    IN_FLIGHT = "in_flight"
    DONE = "done"


def _nothing(*_: object) -> None: ...


class ResultFuture(Future[Result[T]]):
    """A ``concurrent.futures.Future`` whose callbacks run on a separate thread.

    A callback may therefore block, wait for another future, submit a request, or stop the client without
    blocking a worker. A callback added to a complete future runs immediately on the caller's thread, as in
    the standard library. In a forked child, the future raises :class:`~smartbatch.WrongProcess`.

    Attributes:
        outcome: the complete result, even if it failed; ``None`` until the future is complete.
        withdraw: called first by :meth:`cancel`; returns False if the request cannot be cancelled.
    """

    def __init__(
        self,
        run_later: Callable[[Callable[[], Any]], None],
        on_cancel: Callable[[ResultFuture[T]], None],
        on_interrupt: Callable[[], object] = _nothing,
    ) -> None:
        super().__init__()
        self.outcome: Result[T] | None = None
        self.waiter: Waiter | None = None
        self._run_later = run_later
        self._on_cancel = on_cancel
        self._on_interrupt = on_interrupt
        self.withdraw: Callable[[ResultFuture[T]], bool] | None = None

    def result(self, timeout: float | None = None) -> Result[T]:
        """Wait for the result. Ctrl-C during the wait cancels all requests whose call has not started.

        Raises:
            SmartbatchError: the request failed.
            TimeoutError: the request did not finish within ``timeout`` seconds.
            CancelledError: the request was cancelled.
            Interrupted: Ctrl-C was pressed.
        """
        notice_fork()
        on_interrupt = self._on_interrupt  # the future may finish while it is interrupted
        try:
            return super().result(timeout)
        except KeyboardInterrupt:
            on_interrupt()
        finally:
            del self  # breaks the cycle between this frame, the error's traceback and the future
        raise _interrupted()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait as :meth:`result` does and return the error, or ``None`` for an answered request."""
        notice_fork()
        on_interrupt = self._on_interrupt
        try:
            return super().exception(timeout)
        except KeyboardInterrupt:
            on_interrupt()
        raise _interrupted()

    def done(self) -> bool:
        """Return whether the request has finished or was cancelled."""
        notice_fork()
        return super().done()

    def running(self) -> bool:
        """Return whether the request's call is in progress."""
        notice_fork()
        return super().running()

    def cancelled(self) -> bool:
        """Return whether the request was cancelled."""
        notice_fork()
        return super().cancelled()

    def cancel(self) -> bool:
        """Cancel the request if its call has not started; return whether it is cancelled."""
        notice_fork()
        withdraw = self.withdraw
        if withdraw is not None and not self.done() and not withdraw(self):
            return False
        cancelled = super().cancel()
        if cancelled:
            self._on_cancel(self)
            self._let_go()
        return cancelled

    def add_done_callback(self, fn: Callable[[Future[Result]], object]) -> None:
        """Call ``fn(future)`` when the request finishes."""
        if self.done():
            super().add_done_callback(fn)
            return
        run_later, under = self._run_later, copy_context().run
        super().add_done_callback(lambda future: run_later(lambda: under(fn, future)))

    def complete(self, result: Result) -> None:
        """Complete the future, unless it was cancelled before its call started."""
        self.outcome = result
        self.waiter = None  # the future must not keep its ticket alive
        try:
            if result.error is None:
                self.set_result(result)
            else:
                self.set_exception(result.error)
        except InvalidStateError:  # another thread completed it, against the rules of concurrent.futures
            pass
        self._let_go()

    def _let_go(self) -> None:
        self._on_cancel = self._on_interrupt = _nothing
        self.withdraw = None

    def abandon(self, error: WrongProcess) -> None:
        """Complete the copy of the future in a forked child, where no other thread can use it.

        The future is initialized again, because a thread that does not exist in the child may hold its lock.
        Callbacks belong to the parent and are dropped.
        """
        has_ended = self._on_cancel is _nothing
        super().__init__()
        if self.outcome is not None:
            self.complete(self.outcome)
        elif has_ended:
            super().cancel()
        else:
            self.set_exception(error)


def wrong_process_error() -> WrongProcess:
    return WrongProcess(
        "the request belongs to the parent process; a forked child starts with an empty client"
    )


def _interrupted() -> Interrupted:
    return Interrupted("interrupted; calls in flight continue, and completed futures have their results")


@define(eq=False, repr=False)
class Waiter:
    """The part of a ticket that belongs to one request, including its future.

    Only copies of ``variables`` are entered, because two threads cannot enter one context at the same time.
    """

    request: Request
    request_id: str
    future: ResultFuture
    submitted: float
    deadline: float | None  # monotonic seconds; None for no timeout
    sink: Callable[[Result], None] | None
    raw: bool = False
    joined: bool = False  # it joined the ticket of an identical request
    running: bool = False  # its future can no longer be cancelled
    ticket: Ticket | None = None
    variables: Context = field(factory=copy_context)

    @classmethod
    def of(cls, submission: Submission, future: ResultFuture, submitted: float) -> Waiter:
        request, options = submission.request, submission.options
        deadline = None if request.timeout is None else submitted + request.timeout
        waiter = cls(request, submission.request_id, future, submitted, deadline, options.sink, options.raw)
        future.waiter = waiter
        return waiter

    def begin(self) -> bool:
        """Move the future to running, so that it can be completed.

        Return False if it has finished already.
        """
        self.running = True
        try:
            return self.future.set_running_or_notify_cancel()
        except RuntimeError:  # another thread changed its state, against the rules
            return not self.future.done()

    def end(self, result: Result) -> None:
        """Complete the future and call the sink, once. No lock may be held."""
        self.future.complete(result)
        self.ticket = None
        if self.sink is not None:
            self.sink(result)


@define(eq=False, repr=False)
class Ticket:
    """A request in progress, with a record of its tries. It is completed once.

    A waiting ticket belongs to the queue and is changed under the monitor. In flight, it belongs to its
    worker, except for its waiters.
    """

    submission: Submission  # as submitted; the ticket's own fields may change later
    waiters: list[Waiter]  # the first one is charged
    request: Request  # the request to send next; replaced after an answer that does not fit
    lane: Lane  # changes if the request moves to the standard tier or the fallback model
    key: float  # latest start, which decides the order of service
    due: float  # earliest time of its next call, monotonic seconds
    must_start: float  # end of its window, monotonic seconds
    urgent: bool
    alone: bool  # never shares its call
    keeps_going: bool  # sent even if the provider refuses the key, account or model
    batch_key: Hashable  # equal for requests that may share a call
    fingerprint: bytes | None
    stream: ChunkBox | None
    own_budget: Budget | None
    input_tokens: int
    tokens: int
    reserve: float
    state: TicketState = TicketState.WAITING
    entry: int = 0  # number of its valid entry in the lane's heaps; 0 for none, negative while removed
    paused: bool = False  # waits for a retry, or until its budget has room
    group: object | None = None  # equal for requests in the same half of a split call
    final: bool = False  # the call in flight is certainly the last
    attempts: int = 0
    repairs: int = 0
    refused: UnusableAnswer | None = None  # why the last answer was rejected, with its text
    retry_count: RetryCount = field(factory=RetryCount)
    usage: Usage = NO_USAGE
    cost: float | None = 0.0  # USD of all tries with a known cost; None once a price is unknown
    unconfirmed: float = 0.0  # maximum USD of the other tries
    calling: bool = False  # a call is in flight, so its cost is unknown
    started: float = 0.0
    last_error: SmartbatchError | None = None
    seconds: float = 0.0
    route: Route | None = None  # route of the latest call, including one in flight
    dropped: tuple[tuple[str, str], ...] = ()  # parameters omitted by repairs, with the reasons

    @classmethod
    def of(cls, submission: Submission, waiter: Waiter) -> Ticket:
        request, lane, options = submission.request, submission.lane, submission.options
        arrival, window = waiter.submitted, request.max_wait
        return cls(
            submission,
            [waiter],
            request,
            lane,
            key=latest_start(arrival, request.priority, waiter.deadline),
            due=arrival,
            must_start=arrival + (lane.accumulator.window.max_wait if window is None else window),
            urgent=request.priority is Priority.URGENT,
            # user functions and streams never share a call
            alone=options.alone or request.call is not None or options.stream is not None,
            keeps_going=options.keeps_going,
            batch_key=lane.batch_key(request),
            fingerprint=submission.fingerprint,
            stream=options.stream,
            own_budget=options.own_budget,
            input_tokens=submission.input_tokens,
            tokens=submission.tokens,
            reserve=submission.reserve,
        )

    def move(self, lane: Lane, *, priced: bool) -> None:
        self.lane = lane
        self.batch_key = lane.batch_key(self.request)
        self.tokens, self.reserve = lane.demand(self.request, self.input_tokens, priced=priced)

    @property
    def prefix(self) -> str | None:
        """The longest prefix that it shares with other requests."""
        mark = self.request.cache
        return mark.prefixes[-1].key if mark is not None and mark.prefixes else None

    @property
    def request_id(self) -> str:
        waiter = next(iter(self.waiters), None)
        return "cancelled" if waiter is None else waiter.request_id

    def down_for(self, since: float, now: float) -> float:
        """Return the seconds for which an outage that began at ``since`` has affected the request."""
        waiter = next(iter(self.waiters), None)
        return now - (since if waiter is None else max(since, waiter.submitted))

    @property
    def deadline(self) -> float | None:
        """When the last waiter times out; ``None`` if one of them has no timeout."""
        latest = 0.0
        for waiter in self.waiters:
            if waiter.deadline is None:
                return None
            latest = max(latest, waiter.deadline)
        return latest or None
