"""The requests that share one call, and the decision on when to send them.

A :class:`Batch` is filled, sent as one call, and completed. :class:`BatchAccumulator` decides when the
waiting requests of a lane become a batch.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

from attrs import define, field, frozen

from smartbatch.core.batching.packing import Packed
from smartbatch.errors import SmartbatchError

T = TypeVar("T")
R = TypeVar("R")


class BatchState(enum.StrEnum):
    ACCUMULATING = "accumulating"
    READY = "ready"
    SENDING = "sending"
    AWAITING_RESPONSE = "awaiting_response"
    PROCESSING_RESPONSE = "processing_response"
    COMPLETED = "completed"
    FAILED = "failed"


class IllegalTransition(SmartbatchError):
    """A state change that :data:`TRANSITIONS` does not allow."""


_S = BatchState
TRANSITIONS: dict[BatchState, tuple[BatchState, ...]] = {
    # full, window elapsed, maximum wait reached, urgent, idle lane or flushed; or all its requests were
    # cancelled
    _S.ACCUMULATING: (_S.READY, _S.FAILED),
    # permits were taken and a worker runs it; or the client stopped first
    _S.READY: (_S.SENDING, _S.FAILED),
    # the call is being made; or every request was cancelled or timed out beforehand
    _S.SENDING: (_S.AWAITING_RESPONSE, _S.FAILED),
    # an outcome arrived, or an error interrupted the call
    _S.AWAITING_RESPONSE: (_S.PROCESSING_RESPONSE, _S.FAILED),
    # every request has its outcome; at least one was answered, or none was
    _S.PROCESSING_RESPONSE: (_S.COMPLETED, _S.FAILED),
    # final
    _S.COMPLETED: (),
    _S.FAILED: (),
}


@define(eq=False)
class Batch(Generic[T, R]):
    """The requests of one call, the content sent for them, and the outcome of each.

    One thread at a time owns it: the collector fills it; a worker sends, completes and closes it.
    """

    id: str  # names the batch in events and errors
    model: str  # ``provider:model``
    opened: float  # submission of its first request, monotonic seconds
    # properties common to its requests: isolation key and, for packed prompts, all parameters
    key: Hashable = None
    items: list[T] = field(factory=list)  # most urgent first
    tokens: int = 0  # estimated input and output tokens of all items
    # the packed prompt; None if each request is sent as it is
    compiled: Packed | None = field(default=None, repr=False)
    # Provider answers by the fingerprint of the sent request; empty unless a middleware may share answers.
    recorded: dict[bytes, R] = field(factory=dict, repr=False)
    state: BatchState = BatchState.ACCUMULATING
    _outcomes: dict[int, R] = field(factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.items)

    @property
    def outcomes(self) -> list[R]:
        return list(map(self._outcomes.__getitem__, sorted(self._outcomes)))

    @property
    def ended(self) -> bool:
        return not TRANSITIONS[self.state]

    def age(self, now: float) -> float:
        return now - self.opened

    def fill(self, items: Sequence[T], tokens: int) -> None:
        if self.state is not BatchState.ACCUMULATING:
            raise self._illegal(f"is {self.state.value}: it takes no more requests")
        self.items.extend(items)
        self.tokens += tokens

    def move(self, after: BatchState) -> None:
        if after not in TRANSITIONS[self.state]:
            raise self._illegal(f"cannot go from {self.state.value} to {after.value}")
        self.state = after

    def complete(self, position: int, outcome: R) -> None:
        if self.state is not BatchState.PROCESSING_RESPONSE:
            self.move(BatchState.PROCESSING_RESPONSE)
        if position in self._outcomes:
            raise self._illegal(f"has completed item {position} before")
        self._outcomes[position] = outcome

    def complete_all(self, outcomes: Sequence[R]) -> None:
        for position, (_, outcome) in enumerate(zip(self.items, outcomes, strict=True)):
            self.complete(position, outcome)

    def fail(self, error: R) -> None:
        """Close the batch with ``error`` as the outcome of all items that have none yet."""
        self.move(BatchState.FAILED)
        for position in range(len(self.items)):
            self._outcomes.setdefault(position, error)

    def close(self, *, answered: bool) -> None:
        """Close the batch when every item has its outcome; a failed batch stays failed."""
        if self.state is not BatchState.FAILED:
            self.move(BatchState.COMPLETED if answered else BatchState.FAILED)

    def _illegal(self, problem: str) -> IllegalTransition:
        return IllegalTransition(f"batch {self.id} {problem}", batch_id=self.id)


MIN_SHARED_REQUESTS = 2  # minimum requests of a shared call


@frozen
class Window:
    seconds: float  # seconds that a request waits for others to share its call
    max_size: int  # maximum requests per batch; 1 if the lane cannot share calls
    min_size: int | None  # requests sent without waiting; if None, the calls in flight decide
    max_wait: float  # maximum seconds that any request waits; a request may have its own maximum


@frozen
class Waiting:
    """Times are monotonic seconds."""

    count: int
    opened: float  # submission of the oldest
    must_start: float  # when the first request reaches its maximum wait
    urgent: bool  # one of them skips the window
    flushed: bool  # the client is stopping or was asked to flush
    # requests of the last finished call plus those waiting when it finished: as many may soon wait together
    expected: int
    newest: float  # submission of the newest, or end of the last call, whichever is later
    last_finished: float  # end of the last call
    latency: float  # seconds per call of this lane; 0 if unknown
    calls: Sequence[tuple[float, int]]  # expected end and number of requests of each call in flight


class BatchAccumulator:
    """Decides when the waiting requests of a lane become a batch (group commit).

    An idle lane adds no latency; a busy lane fills its calls while others are in flight.
    """

    GAP_SECONDS, GAP_SHARE = 0.004, 0.1
    """Seconds without a new request, or share of a call's latency if longer, after which no further request
    is expected. Threads that are woken together submit within about 0.1 ms of each other, or after another
    thread has held the interpreter."""
    # seconds, or share of a call's latency, that callers of a finished call have to submit again
    RETURN_SECONDS, RETURN_SHARE = 0.02, 0.25
    BUSY_WAIT_SHARE = 0.4
    """Share of a call's latency that requests wait for others while a larger call is in flight. The delay
    moves each call closer to the larger one until both coincide."""
    PATIENCE_SHARE = 0.75
    """Share of a call's latency that requests wait for another call of at least the same size. Its callers
    then share one call with them from then on."""

    def __init__(self, window: Window) -> None:
        self.window = window

    def ready(self, now: float, waiting: Waiting) -> float:
        """Return the time at which the batch may be sent; ``math.inf`` if nothing is waiting."""
        window, count = self.window, waiting.count
        # 1. Nothing is waiting: never.
        if count == 0:
            return math.inf
        # 2. The lane cannot share calls, the batch is full, a request is urgent, or the client flushes: now.
        if window.max_size == 1 or count >= window.max_size or waiting.urgent or waiting.flushed:
            return now
        # No case below waits beyond this time.
        due = min(waiting.opened + min(window.seconds, window.max_wait), waiting.must_start)
        # 3. ``min_size`` is set: now if enough requests are waiting, even if nothing is in flight; otherwise
        #    when due.
        if window.min_size is not None:
            return now if count >= window.min_size else due
        # 4. Nothing is in flight: now, or after a moment in which the callers of a call that has just
        #    finished may submit again.
        if not waiting.calls:
            return self._when_back(now, waiting, due)
        latency = waiting.latency
        # 5. Only one request waits, or the duration of a call is unknown: when due.
        if count < MIN_SHARED_REQUESTS or latency <= 0:
            return due
        # 6. A call finishes soon, and waiting for it costs no more than one call of its size: when it
        #    finishes, because its callers return together with these.
        longest = min(due, waiting.opened + self.PATIENCE_SHARE * latency)
        if any(end <= longest and (end - now) * count <= latency * size for end, size in waiting.calls):
            return longest
        # 7. No call in flight is larger: as in case 4. Otherwise when the oldest has waited two fifths of a
        #    call's latency, which brings callers together that submit at different times.
        if count >= max(size for _, size in waiting.calls):
            return self._when_back(now, waiting, longest)
        return min(due, waiting.opened + self.BUSY_WAIT_SHARE * latency)

    def _when_back(self, now: float, waiting: Waiting, due: float) -> float:
        if waiting.count >= waiting.expected:
            return now
        gap = max(self.GAP_SECONDS, self.GAP_SHARE * waiting.latency)
        moment = max(self.RETURN_SECONDS, self.RETURN_SHARE * waiting.latency)
        return min(waiting.newest + gap, waiting.last_finished + moment, due)


@frozen
class GatherWindow:
    """Decides when requests that may wait for the Batch API have waited long enough for others."""

    most: int  # number of requests that are sent without further waiting
    quiet: float = 10.0  # seconds without a new request after which no further one is expected
    longest: float = 240.0  # maximum wait of any request in seconds

    def closes(self, count: int, opened: float, newest: float, leave_by: float) -> float:
        """Return when the window closes. ``leave_by`` is the time at which one of the requests has to be sent
        because of its timeout.
        """
        if count >= self.most:
            return opened
        return min(newest + self.quiet, opened + self.longest, leave_by)
