"""The window: when do gathered requests go, and what may a batch become next.

:class:`BatchAccumulator` answers a question, it does not act: given what waits in a lane, may a batch be
sent now, and if not, when to look again. :class:`Batch` is what is sent; its states follow one table.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import Generic, TypeVar

from attrs import define, field, frozen

from smartbatch.errors import SmartbatchError

T = TypeVar("T")


class BatchState(enum.Enum):
    """Where a batch stands; see :data:`TRANSITIONS` for what may follow."""

    ACCUMULATING = "accumulating"
    READY = "ready"
    SENDING = "sending"
    AWAITING_RESPONSE = "awaiting_response"
    PROCESSING_RESPONSE = "processing_response"
    COMPLETED = "completed"
    FAILED = "failed"


class IllegalTransition(SmartbatchError):
    """A batch was asked to become what it cannot become from where it is."""


_S = BatchState
TRANSITIONS: dict[BatchState, frozenset[BatchState]] = {
    # full, window over, max wait reached, urgent, idle lane or flushed; or all its requests were cancelled
    _S.ACCUMULATING: frozenset({_S.READY, _S.FAILED}),
    # permits were taken and a worker has it; or the client stopped first
    _S.READY: frozenset({_S.SENDING, _S.FAILED}),
    # the call is being made; or every request was cancelled or timed out before it
    _S.SENDING: frozenset({_S.AWAITING_RESPONSE, _S.FAILED}),
    # an answer or an error came back
    _S.AWAITING_RESPONSE: frozenset({_S.PROCESSING_RESPONSE, _S.FAILED}),
    # every request has its verdict; at least one was answered, or none was
    _S.PROCESSING_RESPONSE: frozenset({_S.COMPLETED, _S.FAILED}),
    # ends: a batch ends once
    _S.COMPLETED: frozenset(),
    _S.FAILED: frozenset(),
}


@define(eq=False)
class Batch(Generic[T]):
    """Requests that travel in one call.

    Attributes:
        id: names the batch in events and errors.
        opened: when its first request came, monotonic seconds.
        items: what it carries, most urgent first.
        tokens: estimated input and output tokens of all items.
    """

    id: str
    opened: float
    items: list[T] = field(factory=list)
    tokens: int = 0
    state: BatchState = BatchState.ACCUMULATING

    def __len__(self) -> int:
        return len(self.items)

    def age(self, now: float) -> float:
        """Seconds since the first request came."""
        return now - self.opened

    def move(self, after: BatchState) -> None:
        """Go on to ``after``.

        Raises:
            IllegalTransition: when the table does not allow it.
        """
        if after not in TRANSITIONS[self.state]:
            raise IllegalTransition(
                f"batch {self.id} cannot go from {self.state.value} to {after.value}", batch_id=self.id
            )
        self.state = after

    def fill(self, items: Sequence[T], tokens: int) -> None:
        """Take ``items`` along; only while accumulating."""
        if self.state is not BatchState.ACCUMULATING:
            raise IllegalTransition(
                f"batch {self.id} is {self.state.value}: it takes no more requests", batch_id=self.id
            )
        self.items.extend(items)
        self.tokens += tokens


@frozen
class Window:
    """The settings of a window.

    Args:
        seconds: how long requests wait for company.
        max_size: most requests in a batch; 1 means the lane cannot share calls.
        min_size: how many are enough for an early send, see :class:`BatchAccumulator`.
        max_wait: longest wait of any request, seconds; a request may carry its own.
    """

    seconds: float = 0.1
    max_size: int = 10
    min_size: int = 2
    max_wait: float = 5.0


@frozen
class Waiting:
    """What a lane holds, as the accumulator needs to know it.

    Attributes:
        count: requests waiting.
        opened: when the oldest of them came; seconds.
        must_start: the earliest end of a request's own ``max_wait``; seconds.
        urgent: True when one of them skips the window.
        in_flight: requests in calls under way.
        flushed: True when the client is stopping or was asked to flush.
        expected: how many travelled in the call that ended last: about as many may come back for more.
        newest: when the newest of them came, or the last call ended, whichever was later; seconds.
        last_finished: when the last call ended; seconds.
        latency: what a call of this lane takes, seconds; 0 while unknown.
    """

    count: int
    opened: float
    must_start: float
    urgent: bool
    in_flight: int
    flushed: bool = False
    expected: int = 0
    newest: float = 0.0
    last_finished: float = -math.inf
    latency: float = 0.0


class BatchAccumulator:
    """Decides when the waiting requests of a lane become a batch.

    A batch goes when it is full, when a waiting request is urgent, when the client flushes, when the window
    is over, or when the oldest has reached its max wait. It goes before that

    - when nothing is under way: an idle system adds no latency. If a call of many has just ended, its askers
      are about to come back, and get a moment for it, so that the first of them does not leave alone;
    - when those of a call that ended are all back and are no fewer than those still under way: to wait for
      the others would cost more than it gains;
    - when ``min_size`` of them wait and the oldest has waited two fifths of what a call takes: small groups
      join the next large one, and askers who come back at different times fall into step.
    """

    GAP = 0.004
    """Seconds without a newcomer after which nobody else is expected; threads that were woken together
    submit again within some 0.1 ms of each other, or after another thread's turn with the interpreter."""
    MOMENT = 0.02
    """Most seconds that askers are given to come back."""
    SHARE = 0.4
    """The part of a call's time that is worth waiting for company: with 64 askers and 50 ms a call, a fifth
    left groups of 20 apart for ever, two fifths made groups of 30 to 50 at the same throughput
    (``benchmarks/embeddings.py``)."""

    def __init__(self, window: Window) -> None:
        self.window = window

    def ready(self, now: float, waiting: Waiting) -> float:
        """Return the time at which the batch may go: ``<= now`` for now, ``math.inf`` when nothing waits."""
        window, count = self.window, waiting.count
        if count == 0:
            return math.inf
        if window.max_size == 1 or count >= window.max_size or waiting.urgent or waiting.flushed:
            return now
        majority = waiting.expected > 1 and count >= waiting.in_flight
        if count >= waiting.expected and (waiting.in_flight == 0 or majority):
            return now
        due = min(waiting.opened + min(window.seconds, window.max_wait), waiting.must_start)
        if waiting.in_flight == 0:
            return min(waiting.newest + self.GAP, waiting.last_finished + self.MOMENT, due)
        if count >= window.min_size and waiting.latency > 0:
            due = min(due, waiting.opened + self.SHARE * waiting.latency)
        return due
