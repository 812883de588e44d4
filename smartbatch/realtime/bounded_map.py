"""Sends a list in real time. Requests are submitted as results are read, up to a limit."""

from __future__ import annotations

import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from contextvars import copy_context
from functools import partial
from types import GeneratorType
from typing import Generic, TypeVar
from weakref import WeakMethod

from attrs import evolve, frozen

from smartbatch._clock import Clock
from smartbatch._fork import run_after_collection
from smartbatch.core.limits.budget import Budget
from smartbatch.core.limits.failures import EqualFailures
from smartbatch.errors import InvalidRequest, QueueFull, RequestCancelled, SmartbatchError, WrongProcess
from smartbatch.observe.list_progress import ListDisplay
from smartbatch.realtime.ticket import ResultFuture
from smartbatch.types import Request, Result, Route

_T = TypeVar("_T")

_MAX_AHEAD = 64


class ReadAhead(Iterator[_T], Generic[_T]):
    """Reads items on a daemon thread, in the caller's context, and only as many as requested.

    The thread starts with the first request for items and ends after the last item or :meth:`close`. It
    cannot be interrupted while it reads an item; the interpreter does not wait for it.

    Args:
        given: the iterable that the items come from, closed as well if it is a generator.
    """

    def __init__(self, items: Iterator[_T], given: object, clock: Clock) -> None:
        self._items = items
        self._given = given
        self._clock = clock
        self._monitor = clock.monitor()
        self._read: deque[_T] = deque()
        self._granted = 0
        self._reading = False
        self._ended = False
        self._closed = False
        self._error: BaseException | None = None
        self._wake: Callable[[], None] | None = None
        self._process = os.getpid()

    @property
    def is_ready(self) -> bool:
        return bool(self._read) or self._ended

    def request_items(self, room: int, wake: Callable[[], None]) -> None:
        """Request items until ``room`` items are ready; the thread calls ``wake`` after each."""
        with self._monitor:
            granted = min(room, _MAX_AHEAD) - len(self._read) - self._reading
            self._granted = max(0, granted)
            if self._granted:
                self._monitor.notify()
        if self._wake is None:
            self._wake = wake
            self._clock.spawned()
            run = copy_context().run
            threading.Thread(target=run, args=(self._run,), name="smartbatch-prompts", daemon=True).start()

    def __next__(self) -> _T:
        if self._read:
            return self._read.popleft()
        if self._error is not None:
            raise self._error
        raise StopIteration

    def close(self) -> None:
        """Stop reading. Returns immediately; the thread closes the items."""
        if os.getpid() != self._process:  # a forked child has no reading thread, and the lock may be held
            return
        with self._monitor:
            self._closed, self._granted = True, 0
            self._read.clear()
            self._monitor.notify()
        if self._wake is None:  # the thread was never started
            self._close_items()

    def _run(self) -> None:
        self._clock.began()
        try:
            while self._may_read():
                try:
                    item = next(self._items)
                except BaseException as error:
                    self._end(error)
                    break
                with self._monitor:
                    self._reading = False
                    if not self._closed:
                        self._read.append(item)
                self._notify()
            self._close_items()
        finally:
            self._clock.ended()

    def _may_read(self) -> bool:
        """Wait until an item is requested. Return False after :meth:`close`."""
        with self._monitor:
            self._monitor.wait_for(lambda: self._granted or self._closed)
            self._granted -= 1
            self._reading = not self._closed
            return self._reading

    def _end(self, error: BaseException) -> None:
        if not isinstance(error, StopIteration):
            if "thread" in str(error).lower():
                error.add_note(
                    "prompts are read on a separate thread; use read_ahead=False to read them on the thread "
                    "that reads the results"
                )
            self._error = error
        with self._monitor:
            self._ended = True
        self._notify()

    def _notify(self) -> None:
        if self._wake is not None:
            self._wake()

    def _close_items(self) -> None:
        for each in (self._items, self._given):
            if isinstance(each, GeneratorType):
                each.close()


_MAX_RESULTS_PER_WAKE = 64
"""Maximum number of results collected before the reader is woken."""

_WAKES_PER_QUEUE = 4
"""Number of times the reader wakes while the queue drains; each wake-up interrupts a worker."""

_MAX_UNREAD_RATIO = 10
"""Limit on the results that wait behind a slow request, as a multiple of the read-ahead."""


@frozen
class ListOptions:
    own_budget: Budget | None = None  # the list's budget, within the client's; None for no limit
    route: Route | None = None  # None uses the settings
    raising: bool = False  # raise for a failed request instead of yielding its result
    ordered: bool = True  # yield results in the order of the requests
    ahead: int | None = None  # maximum requests in progress; None uses the queue's capacity
    calls: int = 1
    # stops the list if its first requests all fail in the same way; None never stops it
    stop: EqualFailures | None = None
    whole: bool = False  # wake the reader when all results are available, not for each one
    display: ListDisplay | None = None


class BoundedMap(Iterator[Result]):
    """Submits requests as results are read, and yields the results. Only one thread may read it.

    If a request cannot be read or submitted, earlier results are yielded before the error is raised. If other
    requests fill the queue, reading waits only while some of this list's results are outstanding.

    Args:
        requests: validated requests, read lazily.
        submit: queues a request and calls its second argument with the result.
        options: ``ahead`` must be set.
        abandon: cancels unread futures later. It is called by the finalizer, so it must neither run user code
            nor wait for a lock.
    """

    def __init__(
        self,
        requests: Iterable[Request],
        submit: Callable[[Request, Callable[[Result], None]], ResultFuture],
        clock: Clock,
        options: ListOptions,
        abandon: Callable[[list[ResultFuture]], None],
    ) -> None:
        self._under_way: dict[int, ResultFuture] = {}
        self._abandon = abandon
        self._requests = iter(requests)
        self._source = requests if isinstance(requests, ReadAhead) else None
        self._is_whole = isinstance(requests, Sized)
        self._submit = submit
        self._stop = options.stop
        self._inbox = _Arrivals(clock, options.stop, WeakMethod(self._cancel_all))
        self._ahead = options.ahead or 1
        self._calls = options.calls
        self._ordered = options.ordered
        self._raising = options.raising
        self._whole = options.whole
        self._display = options.display
        self._finished: dict[int, Result] = {}
        self._places: dict[int, Request] = {}
        self._handed: dict[int, Result] = {}
        self._unread: dict[int, Result] = {}
        self._in_flight: dict[int, ResultFuture] = {}
        self._next_request: Request | None = None
        self._failure: Exception | None = None
        self._submitted = 0
        self._yielded = 0
        self._exhausted = False
        self._cancelled = False
        self._process = os.getpid()

    def __next__(self) -> Result:
        if os.getpid() != self._process:
            raise WrongProcess("the list belongs to the parent process; start a new one in this process")
        try:
            result = self._next()
        except BaseException:
            self.close()
            raise
        if self._raising and result.error is not None:
            self.close()
            raise result.error
        return result

    def close(self) -> None:
        """Cancel requests whose call has not started, and stop reading."""
        self._exhausted = True
        self._failure = self._next_request = None
        self._unread.update(self._finished)
        self._finished.clear()
        self._in_flight.update(self._under_way)
        if self._source is not None:
            self._source.close()
        for future in list(self._under_way.values()):
            future.cancel()
        self._under_way.clear()

    def end(self) -> None:
        """Stop submitting requests; any thread may call this. The caller cancels those already submitted.

        If the number of requests is known, each remaining request gets a cancelled result. Otherwise the list
        ends after the last submitted request.
        """
        self._cancelled = True
        self._inbox.wake()

    def unread(self) -> dict[int, Result]:
        """Return the unread results by position, after :meth:`close`.

        They include results of calls that were in flight at the time, and a result that the reader missed
        because of an interrupt.
        """
        ended = {at: future.outcome for at, future in list(self._in_flight.items())}
        came = {at: result for at, result in ended.items() if result is not None}
        return {at: self._placed(at, one) for at, one in {**came, **self._unread, **self._handed}.items()}

    def was_sent(self, position: int) -> bool:
        """Return whether the call of a request without a result was in flight at :meth:`close`."""
        future = self._in_flight.get(position)
        return future is not None and not future.cancelled()

    def arrived(self) -> int:
        return self._yielded - len(self._handed) + len(self.unread())

    def __del__(self) -> None:
        if getattr(self, "_under_way", None):  # Ctrl-C may interrupt the constructor
            self._abandon(list(self._under_way.values()))
        if (source := getattr(self, "_source", None)) is not None and not self._exhausted:
            run_after_collection(source.close)

    def _next(self) -> Result:
        self._handed = {}
        is_watched = self._display is not None and self._display.is_watched()
        while True:
            self._feed()
            position = self._yielded if self._ordered else next(iter(self._finished), -1)
            result = self._finished.get(position)
            if result is not None:
                result = self._placed(position, result)
                self._handed = {position: result}
                del self._finished[position]
                self._places.pop(position, None)
                self._yielded += 1
                return result
            if not self._under_way and (self._exhausted or self._source is None):
                raise self._failure or StopIteration
            wanted = -1 if self._whole else position
            enough = self._results_per_wake(is_watched=is_watched)
            for arrival in self._inbox.take(wanted, enough, self._can_submit):
                self._receive(*arrival)

    def _results_per_wake(self, *, is_watched: bool) -> float:
        """Return the number of results that wake the reader even if the next one it needs has not arrived."""
        under_way = len(self._under_way)
        # 1. Progress is shown, or results are read as they arrive: wake the reader for each result.
        if is_watched or not (self._ordered or self._whole):
            return 1
        # 2. Requests remain to be submitted: wake the reader every few results, so that workers stay busy.
        if not self._exhausted:
            return max(1, min(_MAX_RESULTS_PER_WAKE, (under_way - self._calls) // _WAKES_PER_QUEUE))
        # 3. The reader waits for all results: wake it for groups of results, which leaves little work after
        # the last one. Otherwise, wake it only for its next result.
        return min(_MAX_RESULTS_PER_WAKE, under_way) if self._whole else math.inf

    def _feed(self) -> None:
        while not self._exhausted and len(self._under_way) < self._ahead:
            if len(self._finished) >= _MAX_UNREAD_RATIO * self._ahead:
                return
            readable = self._finished and (not self._ordered or self._yielded in self._finished)
            if readable and len(self._under_way) + len(self._finished) >= self._ahead // 2:
                return  # enough requests are in progress or unread
            try:
                submitted = self._submit_next()
            except Exception as error:
                self._exhausted, self._failure = True, error
                nameless = isinstance(error, InvalidRequest) and error.row is None  # rejected by a hook
                if nameless or not isinstance(error, SmartbatchError):
                    error.add_note(f"raised while prompt {self._submitted} (counted from 0) was read")
                return
            if not submitted:
                return
            if len(self._inbox):
                for arrival in self._inbox.take():
                    self._receive(*arrival)

    def _submit_next(self) -> bool:
        if self._cancelled and not self._is_whole:
            self._exhausted, self._next_request = True, None
            if self._source is not None:
                self._source.close()
            return False
        if self._next_request is None and self._source is not None:
            self._source.request_items(self._ahead - len(self._under_way), self._inbox.wake)
            if not self._source.is_ready:
                return False
        request = self._next_request or next(self._requests, None)
        if request is None:
            self._exhausted = True
            return False
        self._next_request = request
        position = self._submitted
        if (error := self._reason_not_to_send(request)) is not None:
            self._next_request = None
            self._submitted += 1
            result = Result(
                request.id or "",
                error=error,
                cost=0.0,
                context=request.context,
                row=request.row,
                sample=request.sample,
            )
            self._finished[position] = result
            self._show_progress(result)
            return True
        try:
            future = self._submit(request, partial(self._inbox.put, position))
        except QueueFull:
            if not self._under_way:
                raise
            return False
        self._next_request = None
        self._submitted += 1
        if request.row is not None:
            self._places[position] = request
        self._under_way[position] = future
        if self._cancelled:  # cancelled by another thread during the submission
            future.cancel()
        return True

    def _reason_not_to_send(self, request: Request) -> SmartbatchError | None:
        """Return an error if the list was stopped or cancelled.

        Raises:
            ListStopped: the list has stopped, and its number of requests is unknown.
        """
        if self._cancelled:
            return RequestCancelled("the request was cancelled before it was sent", request_id=request.id)
        if self._stop is None or self._stop.reason is None:
            return None
        if self._stop.total is None:
            raise self._stop.of_the_rest()
        return self._stop.error(request.id)

    def _can_submit(self) -> bool:
        waits = self._source is not None and not self._exhausted and self._next_request is None
        has_places = len(self._finished) < _MAX_UNREAD_RATIO * self._ahead
        has_room = len(self._under_way) < self._ahead and has_places
        return waits and has_room and self._source is not None and self._source.is_ready

    def _receive(self, position: int, result: Result) -> None:
        if position in self._under_way:
            # stored before it is removed, so that an interrupt cannot lose it
            self._finished[position] = result
            del self._under_way[position]
            self._show_progress(result)

    def _placed(self, position: int, result: Result) -> Result:
        request = self._places.get(position)
        return result if request is None else evolve(result, row=request.row, sample=request.sample)

    def _cancel_all(self) -> None:
        for future in list(self._under_way.values()):
            future.cancel()

    def _show_progress(self, result: Result) -> None:
        if self._display is not None:
            self._display.advance(result)


class _Arrivals:
    """Results in order of arrival, with the positions of their requests.

    Args:
        stop: decides whether a result stops the list.
        on_stop: called without a lock when the list stops; the list may have been garbage-collected.
    """

    def __init__(
        self, clock: Clock, stop: EqualFailures | None, on_stop: WeakMethod[Callable[[], None]]
    ) -> None:
        self._on_stop = on_stop
        self._monitor = clock.monitor()
        self._stop = stop
        self._arrived: list[tuple[int, Result]] = []
        self._wanted = -1
        self._enough = math.inf
        self._waited = False

    def put(self, position: int, result: Result) -> None:
        """Deliver a result without blocking; workers call this."""
        stops = False
        with self._monitor:
            if self._stop is not None:
                stops, result = self._stop.stops_with(result), self._stop.unsent(result)
            self._arrived.append((position, result))
            enough = stops or len(self._arrived) >= self._enough
            if self._waited and (position == self._wanted or enough):
                self._waited = False
                self._monitor.notify()
        on_stop = self._on_stop() if stops else None
        if on_stop is not None:
            on_stop()

    def wake(self) -> None:
        with self._monitor:
            if self._waited:
                self._waited = False
                self._monitor.notify()

    def take(
        self, wanted: int = -1, enough: float = 1, is_ready: Callable[[], bool] = lambda: False
    ) -> list[tuple[int, Result]]:
        """Return the results that have arrived.

        If there are none and ``is_ready`` returns False, wait for the result at position ``wanted``, for
        ``enough`` results, or for :meth:`wake`.
        """
        with self._monitor:
            self._wanted, self._enough = wanted, enough
            self._waited = not self._arrived and not is_ready()
            self._monitor.wait_for(lambda: not self._waited)
            arrived, self._arrived = self._arrived, []
            return arrived

    def __len__(self) -> int:
        return len(self._arrived)
