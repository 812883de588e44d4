"""The container in which requests travel from the window through the dispatcher to the router.

A :class:`Batch` is filled, sent as one call, and completed: all its requests at once, one by one, or with an
error. Its states follow one table.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

from attrs import define, field

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
