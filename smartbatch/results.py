"""Lists of requests: a stream of results with bounded read-ahead, and the list with its sums."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

from smartbatch._clock import Clock
from smartbatch.errors import AllRequestsFailed, InvalidRequest, QueueFull, SmartbatchError, WrongProcess
from smartbatch.realtime.inbox import ResultInbox
from smartbatch.realtime.ticket import ResultFuture
from smartbatch.types import Request, Result, Usage

__all__ = ["BoundedMap", "ResultList"]

_BUFFERED = 10
"""A straggler at the head may let this many times the read-ahead finish behind it before reading pauses."""


class BoundedMap(Iterator[Result]):
    """Submits requests as results are taken, and yields the results; one thread reads it.

    When the requests end with an error, or one cannot be submitted, the results of those before it come
    first. A queue that is full of others' requests is waited for as long as own results are outstanding.

    Args:
        requests: checked requests; read lazily.
        submit: puts a request into the queue; its second argument is told the result.
        clock: time and waiting.
        ahead: most requests under way.
        ordered: whether results come in the order of the requests.
        raising: whether a failed request raises instead of being yielded.
        forsake: cancels futures from a finaliser, which may run while this very thread holds a lock.
    """

    def __init__(
        self,
        requests: Iterable[Request],
        submit: Callable[[Request, Callable[[Result], None]], ResultFuture],
        clock: Clock,
        *,
        ahead: int,
        ordered: bool,
        raising: bool,
        abandon_futures: Callable[[Iterable[ResultFuture]], None] = lambda futures: _cancel_quietly(futures),
    ) -> None:
        self._under_way: dict[int, ResultFuture] = {}
        self._abandon_futures = abandon_futures
        self._requests = iter(requests)
        self._submit = submit
        self._inbox = ResultInbox(clock)
        self._ahead = ahead
        self._ordered = ordered
        self._raising = raising
        self._finished: dict[int, Result] = {}
        self._next_request: Request | None = None
        self._failure: Exception | None = None
        self._submitted = 0
        self._yielded = 0
        self._exhausted = False
        self._process = os.getpid()

    def __next__(self) -> Result:
        if os.getpid() != self._process:
            raise WrongProcess("the list belongs to the parent process; ask for one of your own in this one")
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
        """Cancel what has not started and read no further. Called by itself when the loop breaks off."""
        self._exhausted = True
        self._failure = self._next_request = None
        self._finished.clear()
        for future in list(self._under_way.values()):
            future.cancel()
        self._under_way.clear()

    def __del__(self) -> None:
        if self._under_way:
            self._abandon_futures(list(self._under_way.values()))

    def _next(self) -> Result:
        while True:
            self._feed()
            position = self._yielded if self._ordered else next(iter(self._finished), -1)
            result = self._finished.pop(position, None)
            if result is not None:
                self._yielded += 1
                return result
            if not self._under_way:
                raise self._failure or StopIteration
            self._receive(*self._inbox.take())

    def _feed(self) -> None:
        """Submit until enough is under way; what has arrived meanwhile makes room at once."""
        while not self._exhausted and len(self._under_way) < self._ahead:
            if len(self._finished) >= _BUFFERED * self._ahead:
                return
            readable = self._finished and (not self._ordered or self._yielded in self._finished)
            if readable and len(self._under_way) >= self._ahead // 2:
                return  # enough is under way: let the reader have its result first
            try:
                submitted = self._submit_next()
            except Exception as error:
                self._exhausted, self._failure = True, error
                nameless = isinstance(error, InvalidRequest) and error.row is None  # refused by a hook
                if nameless or not isinstance(error, SmartbatchError):
                    error.add_note(f"raised while prompt {self._submitted} (counted from 0) was read")
                return
            if not submitted:
                return
            while len(self._inbox):
                self._receive(*self._inbox.take())

    def _submit_next(self) -> bool:
        """Submit the next request; False when there is none, or no room for it now."""
        request = self._next_request or next(self._requests, None)
        if request is None:
            self._exhausted = True
            return False
        self._next_request = request
        position = self._submitted
        try:
            future = self._submit(request, partial(self._inbox.put, position))
        except QueueFull:
            if not self._under_way:
                raise
            return False
        self._next_request = None
        self._submitted += 1
        self._under_way[position] = future
        return True

    def _receive(self, position: int, result: Result) -> None:
        if self._under_way.pop(position, None) is not None:
            self._finished[position] = result


def _cancel_quietly(futures: Iterable[ResultFuture]) -> None:
    """Cancel without taking the queue's lock: whoever meets the futures there strikes them."""
    for future in futures:
        Future.cancel(future)


class ResultList(list[Result]):
    """Results in the order of the requests, with sums over the whole.

    Attributes:
        wall: seconds from the first submission to the last result.
    """

    wall: float = 0.0

    @property
    def succeeded(self) -> int:
        """Requests that were answered."""
        return sum(result.ok for result in self)

    @property
    def failed(self) -> int:
        """Requests that were not."""
        return len(self) - self.succeeded

    @property
    def texts(self) -> list[str | None]:
        """The answers' texts; ``None`` where a request failed."""
        return [result.text for result in self]

    @property
    def vectors(self) -> Any:
        """The vectors, in order: a float32 matrix where NumPy is installed and every text has its vector,
        else a list with ``None`` where a request failed."""
        vectors = [result.embedding for result in self]
        if not vectors or any(vector is None for vector in vectors):
            return vectors
        try:
            import numpy
        except ImportError:
            return vectors
        return numpy.array(vectors, dtype=numpy.float32)

    @property
    def usage(self) -> Usage:
        """Tokens of all attempts of all requests."""
        total = Usage()
        for result in self:
            total = total + result.usage
        return total

    @property
    def cost(self) -> float | None:
        """USD of the whole; ``None`` when a price is unknown."""
        costs = [result.cost for result in self]
        return None if None in costs else sum(cost for cost in costs if cost is not None)

    @property
    def total_latency(self) -> float:
        """Seconds the answering calls took one after another: about the time a sequential loop needs."""
        return sum(result.latency for result in self)

    @property
    def mean_latency(self) -> float:
        """Mean seconds of an answering call; 0 when nothing was answered."""
        return self.total_latency / self.succeeded if self.succeeded else 0.0

    @property
    def speed_up(self) -> float:
        """How many times faster than one call after the other; 0 when nothing was timed."""
        return self.total_latency / self.wall if self.wall > 0 else 0.0

    def raise_if_all_failed(self) -> None:
        """Raise ``AllRequestsFailed`` when there are requests and not one was answered."""
        if self and not self.succeeded:
            first = self[0].error
            raise AllRequestsFailed(
                f"all {len(self)} requests failed; the first with: {first}",
                kind=first.kind if first is not None else None,
                request_id=self[0].request_id,
                results=tuple(self),
            ) from first
