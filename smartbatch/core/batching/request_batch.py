"""The container in which requests travel from the window through the dispatcher to the router.

A :class:`Batch` is filled, sent as one call, and completed: all its requests at once, one by one, or with an
error. Its states follow one table.
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
    """The state of a batch; :data:`TRANSITIONS` says which may follow."""

    ACCUMULATING = "accumulating"
    READY = "ready"
    SENDING = "sending"
    AWAITING_RESPONSE = "awaiting_response"
    PROCESSING_RESPONSE = "processing_response"
    COMPLETED = "completed"
    FAILED = "failed"


class IllegalTransition(SmartbatchError):
    """A batch was asked for a change of state that :data:`TRANSITIONS` does not allow."""


_S = BatchState
TRANSITIONS: dict[BatchState, tuple[BatchState, ...]] = {
    # full, window over, max wait reached, urgent, idle lane or flushed; or all its requests were cancelled
    _S.ACCUMULATING: (_S.READY, _S.FAILED),
    # permits were taken and a worker runs it; or the client stopped first
    _S.READY: (_S.SENDING, _S.FAILED),
    # the call is being made; or every request was cancelled or timed out before it
    _S.SENDING: (_S.AWAITING_RESPONSE, _S.FAILED),
    # an outcome came back, or an error broke the call off
    _S.AWAITING_RESPONSE: (_S.PROCESSING_RESPONSE, _S.FAILED),
    # every request has its verdict; at least one was answered, or none was
    _S.PROCESSING_RESPONSE: (_S.COMPLETED, _S.FAILED),
    # final: a batch ends once
    _S.COMPLETED: (),
    _S.FAILED: (),
}


@define(eq=False)
class Batch(Generic[T, R]):
    """Requests that travel in one call, what is sent for them, and what came back for each.

    Owned by one thread at a time: the collector fills it, a worker sends, completes and closes it.

    Attributes:
        id: names the batch in events and errors.
        model: ``provider:model``.
        opened: when its first request was submitted, monotonic seconds.
        key: what its requests agree in: their isolation key, and all parameters where prompts are packed.
        items: what it carries, most urgent first.
        tokens: estimated input and output tokens of all items.
        must_start: when the first of its requests may wait no longer, monotonic seconds.
        compiled: the one prompt that several were made into; ``None`` where each is sent as it is.
        said: the provider's own answers by the fingerprint of what was sent, below a middleware that may be
            shared; empty elsewhere.
    """

    id: str
    model: str
    opened: float
    key: Hashable = None
    items: list[T] = field(factory=list)
    tokens: int = 0
    must_start: float = math.inf
    compiled: Packed | None = field(default=None, repr=False)
    said: dict[bytes, R] = field(factory=dict, repr=False)
    state: BatchState = BatchState.ACCUMULATING
    _outcomes: dict[int, R] = field(factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.items)

    @property
    def outcomes(self) -> list[R]:
        """What became of the items that are completed, in their order."""
        return list(map(self._outcomes.__getitem__, sorted(self._outcomes)))

    @property
    def ended(self) -> bool:
        """Whether its state is final."""
        return not TRANSITIONS[self.state]

    def age(self, now: float) -> float:
        """Return the seconds since its first request was submitted."""
        return now - self.opened

    def should_force_send(self, now: float) -> bool:
        """Whether one of its requests has waited as long as it may, so the batch is sent, full or not."""
        return now >= self.must_start

    def fill(self, items: Sequence[T], tokens: int) -> None:
        """Add ``items``, while the batch is accumulating."""
        if self.state is not BatchState.ACCUMULATING:
            raise self._illegal(f"is {self.state.value}: it takes no more requests")
        self.items.extend(items)
        self.tokens += tokens

    def move(self, after: BatchState) -> None:
        """Change the state to ``after``."""
        if after not in TRANSITIONS[self.state]:
            raise self._illegal(f"cannot go from {self.state.value} to {after.value}")
        self.state = after

    def complete(self, position: int, outcome: R) -> None:
        """Complete one item with what the call brought for it."""
        if self.state is not BatchState.PROCESSING_RESPONSE:
            self.move(BatchState.PROCESSING_RESPONSE)
        if position in self._outcomes:
            raise self._illegal(f"has completed item {position} before")
        self._outcomes[position] = outcome

    def complete_all(self, outcomes: Sequence[R]) -> None:
        """Complete every item; there is one outcome for each."""
        for position, (_, outcome) in enumerate(zip(self.items, outcomes, strict=True)):
            self.complete(position, outcome)

    def fail(self, error: R) -> None:
        """End the batch with ``error``, which completes the items that have no outcome yet."""
        self.move(BatchState.FAILED)
        for position in range(len(self.items)):
            self._outcomes.setdefault(position, error)

    def close(self, *, answered: bool) -> None:
        """End the batch when every item has its verdict; one that has failed stays failed.

        Args:
            answered: whether at least one item was answered.
        """
        if self.state is not BatchState.FAILED:
            self.move(BatchState.COMPLETED if answered else BatchState.FAILED)

    def _illegal(self, problem: str) -> IllegalTransition:
        return IllegalTransition(f"batch {self.id} {problem}", batch_id=self.id)


PAIR = 2
"""Requests that make a call shared."""


@frozen
class Window:
    """The settings of a window.

    Args:
        seconds: how long a request waits for others to share its call.
        max_size: most requests in a batch; 1 means the lane cannot share calls.
        min_size: requests that are sent at once, while fewer wait for the window; ``None`` lets the calls in
            flight decide, see :class:`BatchAccumulator`.
        max_wait: longest wait of any request, seconds; a request may carry its own.
    """

    seconds: float
    max_size: int
    min_size: int | None
    max_wait: float


@frozen
class Waiting:
    """What waits in a lane, as far as the accumulator needs to know it. Times are monotonic seconds.

    Attributes:
        count: requests waiting.
        opened: when the oldest of them was submitted.
        must_start: the earliest end of a request's own ``max_wait``.
        urgent: True when one of them skips the window.
        flushed: True when the client is stopping or was asked to flush.
        expected: requests of the call that ended last, and those that waited when it ended: as many may soon
            wait together.
        newest: when the newest of them was submitted, or the last call ended, whichever is later.
        last_finished: when the last call ended.
        latency: seconds that a call of this lane takes; 0 while unknown.
        calls: of each call in flight, when it is expected to end, and its requests.
    """

    count: int
    opened: float
    must_start: float
    urgent: bool
    flushed: bool
    expected: int
    newest: float
    last_finished: float
    latency: float
    calls: Sequence[tuple[float, int]]


class BatchAccumulator:
    """Decides when the waiting requests of a lane become a batch (group commit).

    An idle lane adds no latency; a busy lane fills its calls while others are in flight.
    """

    GAP, GAP_SHARE = 0.004, 0.1
    """Seconds without a new request, or that part of a call's latency where it is longer, after which no
    further one is expected; threads that were woken together submit again within some 0.1 ms of each other,
    or after another thread's turn with the interpreter."""
    MOMENT, MOMENT_SHARE = 0.02, 0.25
    """Most seconds that the callers of an ended call are given to submit again; likewise."""
    SHARE = 0.4
    """The part of a call's latency that is worth waiting for further requests while a larger call is in
    flight: so much later it comes each time, until it meets it."""
    PATIENCE = 0.75
    """The part of a call's latency that is worth waiting for the end of another call that is not smaller,
    whose callers then come back and share one call for good."""

    def __init__(self, window: Window) -> None:
        self.window = window

    def ready(self, now: float, waiting: Waiting) -> float:
        """Return the time at which the batch may go: ``<= now`` for now, ``math.inf`` when nothing waits.

        The cases, in order:

        1. Nothing waits: never.
        2. The lane cannot share calls, the batch is full, a request is urgent, or the client flushes: now.
        3. A ``min_size`` was asked for: as many go now, and fewer wait as in case 7, also where nothing is in
           flight.
        4. Nothing is in flight: at once, but for a moment in which the callers of the call that has just
           ended may submit again, until as many wait as are expected.
        5. One alone waits, or no call has told how long one takes: as in case 8.
        6. A call ends soon, and waiting for it costs those who wait no more than one call of its size:
           then, as its callers come back together with them.
        7. No call in flight is larger: as in case 4. Else when the oldest has waited two fifths of a call's
           latency, so that callers who submit at different times come together.
        8. When the window is over, or a request's ``max_wait``, whichever comes first.

        No case goes beyond the time of case 8.
        """
        window, count = self.window, waiting.count
        if count == 0:
            return math.inf
        if window.max_size == 1 or count >= window.max_size or waiting.urgent or waiting.flushed:
            return now
        due = min(waiting.opened + min(window.seconds, window.max_wait), waiting.must_start)
        if window.min_size is not None:
            return now if count >= window.min_size else due
        if not waiting.calls:
            return self._when_back(now, waiting, due)
        latency = waiting.latency
        if count < PAIR or latency <= 0:
            return due
        longest = min(due, waiting.opened + self.PATIENCE * latency)
        if any(end <= longest and (end - now) * count <= latency * size for end, size in waiting.calls):
            return longest
        if count >= max(size for _, size in waiting.calls):
            return self._when_back(now, waiting, longest)
        return min(due, waiting.opened + self.SHARE * latency)

    def _when_back(self, now: float, waiting: Waiting, due: float) -> float:
        """Return when the callers of the call that ended last are back, or have had their time."""
        if waiting.count >= waiting.expected:
            return now
        gap = max(self.GAP, self.GAP_SHARE * waiting.latency)
        moment = max(self.MOMENT, self.MOMENT_SHARE * waiting.latency)
        return min(waiting.newest + gap, waiting.last_finished + moment, due)


@frozen
class GatherWindow:
    """When requests that may wait for the Batch API have waited long enough for others.

    Args:
        most: requests that are enough.
        quiet: seconds without a new request after which no further one is expected.
        longest: seconds that any request waits at most.
    """

    most: int
    quiet: float = 10.0
    longest: float = 240.0

    def closes(self, count: int, opened: float, newest: float, leave_by: float) -> float:
        """Return the time at which the requests go.

        The cases, in order:

        1. There are enough: when the first came, which is over.
        2. Otherwise when none has come for a while, when the first has waited long enough, or when one has
           to leave, whichever comes first.

        Args:
            count: requests that wait.
            opened, newest: when the first and the last of them came.
            leave_by: when one of them has to go, because of its time-out.
        """
        if count >= self.most:
            return opened
        return min(newest + self.quiet, opened + self.longest, leave_by)
