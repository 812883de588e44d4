"""The results of a list in real time: requests are submitted as results are read, a bounded number ahead."""

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
"""Items read and not yet taken: enough to keep the reader busy."""


class ReadAhead(Iterator[_T], Generic[_T]):
    """Reads items on one thread, in the caller's context, and never more than were requested.

    The thread starts with the first request for items and ends with the items, or after :meth:`close`. It
    cannot be interrupted within an item; it is a daemon, so the interpreter does not wait for it.

    Args:
        items: read and closed by the thread.
        given: the iterable behind them; closed as well if it is a generator.
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
        """Whether the next item, or the end, can be taken without waiting."""
        return bool(self._read) or self._ended

    def ask(self, room: int, wake: Callable[[], None]) -> None:
        """Have items read, at most ``room`` including those not taken yet.

        Args:
            wake: called by the thread whenever there is something to take.
        """
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
        """Stop reading; the thread closes the items. Returns at once."""
        if os.getpid() != self._process:  # a forked child has no such thread, and may not take its lock
            return
        with self._monitor:
            self._closed, self._granted = True, 0
            self._read.clear()
            self._monitor.notify()
        if self._wake is None:  # no thread has begun
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
        """Wait until an item is requested; False once this is closed."""
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
"""Results that wake a reader who wants all results of a list, and none before the others."""

_WAKES_PER_QUEUE = 4
"""While requests remain to be submitted, the reader is woken this many times per queue behind the calls under
way: each wake-up takes the interpreter from a worker."""

_MAX_UNREAD_RATIO = 10
"""Results that may wait behind a slow first request before reading pauses, as a multiple of the read-ahead.
"""


@frozen
class ListOptions:
    """How a list is answered in real time."""

    own_budget: Budget | None = None  # what the list may spend, within the client's budget; None for no limit
    route: Route | None = None  # None leaves it to the settings
    raising: bool = False  # whether a failed request raises instead of being yielded
    ordered: bool = True  # whether results are yielded in the order of the requests
    ahead: int | None = None  # maximum requests under way; None for the queue's capacity
    calls: int = 1  # maximum calls under way
    stop: EqualFailures | None = None  # stops the list if its first requests fail alike; None to send all
    whole: bool = False  # whether the reader wants all results, and none before the others
    display: ListDisplay | None = None  # shows and counts each result, on the thread that reads the list


class BoundedMap(Iterator[Result]):
    """Submits requests as results are read, and yields the results; one thread reads it.

    If the requests end with an error, or one cannot be submitted, the results of those before it come first.
    If the queue is full of other requests, it waits as long as results of its own are outstanding.

    Args:
        requests: checked requests; read lazily, on this thread or ahead of it.
        submit: queues a request; its second argument gets the result.
        options: with ``ahead`` set.
        abandon: cancels futures that have no reader any more, later; called by the finaliser, so it runs no
            user code and waits for no lock.
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
        """Cancel requests that have not started, and stop reading. Called when the loop is left early."""
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
        """Submit nothing more; any thread may call it, and cancels the submitted requests.

        If all requests are known, the rest get cancelled results. Otherwise the list ends with the submitted
        ones.
        """
        self._cancelled = True
        self._inbox.wake()

    def unread(self) -> dict[int, Result]:
        """Return, after :meth:`close`, the results that arrived and were not read, by position.

        Includes calls that were in flight then and have finished since, and a result that an interrupt kept
        from its reader.
        """
        ended = {at: future.outcome for at, future in list(self._in_flight.items())}
        came = {at: result for at, result in ended.items() if result is not None}
        return {at: self._placed(at, one) for at, one in {**came, **self._unread, **self._handed}.items()}

    def was_sent(self, position: int) -> bool:
        """Whether, after :meth:`close`, a request without a result was sent: its call was in flight."""
        future = self._in_flight.get(position)
        return future is not None and not future.cancelled()

    def came(self) -> int:
        """Return how many results arrived, including those read."""
        return self._yielded - len(self._handed) + len(self.unread())

    def __del__(self) -> None:
        if getattr(self, "_under_way", None):  # Ctrl-C may come before it is set
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
            enough = self._worth_waking(is_watched=is_watched)
            for arrival in self._inbox.take(wanted, enough, self._can_submit):
                self._receive(*arrival)

    def _worth_waking(self, *, is_watched: bool) -> float:
        """Return how many results wake the reader, if not its next one."""
        under_way = len(self._under_way)
        # 1. Each result is reported, or results are read in order of arrival: each.
        if is_watched or not (self._ordered or self._whole):
            return 1
        # 2. Requests remain to be submitted: a few, so that all workers have work.
        if not self._exhausted:
            return max(1, min(_MAX_RESULTS_PER_WAKE, (under_way - self._calls) // _WAKES_PER_QUEUE))
        # 3. The reader wants all: some, so that the last ones leave little to do. Else only the next one
        #    counts.
        return min(_MAX_RESULTS_PER_WAKE, under_way) if self._whole else math.inf

    def _feed(self) -> None:
        """Submit until enough is under way; results that arrive meanwhile make room at once."""
        while not self._exhausted and len(self._under_way) < self._ahead:
            if len(self._finished) >= _MAX_UNREAD_RATIO * self._ahead:
                return
            readable = self._finished and (not self._ordered or self._yielded in self._finished)
            if readable and len(self._under_way) + len(self._finished) >= self._ahead // 2:
                return  # enough is under way or unread: the reader gets its result first
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
        """Submit the next request; False if there is none, or no room for it now."""
        if self._cancelled and not self._is_whole:
            self._exhausted, self._next_request = True, None
            if self._source is not None:
                self._source.close()
            return False
        if self._next_request is None and self._source is not None:
            self._source.ask(self._ahead - len(self._under_way), self._inbox.wake)
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
            self._tell(result)
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
        if self._cancelled:  # by another thread, while this request was submitted
            future.cancel()
        return True

    def _reason_not_to_send(self, request: Request) -> SmartbatchError | None:
        """Return the error of a request whose list stopped or was cancelled.

        Raises:
            ListStopped: the list stopped, and its number of requests is unknown.
        """
        if self._cancelled:
            return RequestCancelled("the request was cancelled before it was sent", request_id=request.id)
        if self._stop is None or self._stop.reason is None:
            return None
        if self._stop.total is None:
            raise self._stop.of_the_rest()
        return self._stop.error(request.id)

    def _can_submit(self) -> bool:
        """Whether a request that was waited for has been read."""
        waits = self._source is not None and not self._exhausted and self._next_request is None
        has_places = len(self._finished) < _MAX_UNREAD_RATIO * self._ahead
        has_room = len(self._under_way) < self._ahead and has_places
        return waits and has_room and self._source is not None and self._source.is_ready

    def _receive(self, position: int, result: Result) -> None:
        if position in self._under_way:
            self._finished[position] = result  # first: after an interrupt it is in one of the two
            del self._under_way[position]
            self._tell(result)

    def _placed(self, position: int, result: Result) -> Result:
        request = self._places.get(position)
        return result if request is None else evolve(result, row=request.row, sample=request.sample)

    def _cancel_all(self) -> None:
        for future in list(self._under_way.values()):
            future.cancel()

    def _tell(self, result: Result) -> None:
        if self._display is not None:
            self._display.advance(result)


class _Arrivals:
    """Results in order of arrival, each with the position of its request.

    Args:
        stop: decides whether a result stops the list.
        on_stop: called then, with no lock held; its list may have been collected before.
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
        """Deliver a result; called by workers, never blocks."""
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
        """Return what has arrived. If nothing has, wait for the result of position ``wanted``, for ``enough``
        results, or for :meth:`wake`, unless ``is_ready`` already.
        """
        with self._monitor:
            self._wanted, self._enough = wanted, enough
            self._waited = not self._arrived and not is_ready()
            self._monitor.wait_for(lambda: not self._waited)
            arrived, self._arrived = self._arrived, []
            return arrived

    def __len__(self) -> int:
        return len(self._arrived)
