"""How much refusals say of a limit: one says nothing, as shared services refuse at random."""

from __future__ import annotations

from collections import deque

from attrs import define, field

_PROOF, _PROOF_SHARE, _FORGET = 3.0, 0.25, 0.07
"""Refusals prove a limit when three of them, and a quarter of the calls in flight, came together; 14
successes outweigh one refusal. So up to 6 % may be refused at random, and no more than that in excess of a
limit, without a pause for all."""

_FORGET_MORE = 0.14
"""Seven successes outweigh one after a limit was proven that turned out to be none, until the next proof."""

_ROW = 4
"""So do four refusals of calls that were sent one after the other: where 4 % are refused at random, that
happens once in 400,000 calls."""

_REPEATED = 2.0
"""Evidence at which a refusal is not a lone one: two within some 25 successes."""


@define(eq=False)
class RefusalEvidence:
    """The refusals since a limit was proven last, of those that no known limit explains.

    Attributes:
        peak: most calls in flight since they began.
    """

    peak: int = field(default=1, init=False)
    _weight: float = field(default=0.0, init=False)
    _orders: deque[int] = field(factory=lambda: deque(maxlen=16), init=False)
    _forget: float = field(default=_FORGET, init=False)
    _in_row: bool = field(default=False, init=False)

    def add(self, order: int) -> None:
        """Count a refusal of the call of this order among all calls."""
        self._weight += 1.0
        self._orders.append(order)
        row, first, last = set(self._orders), order, order
        while first - 1 in row:
            first -= 1
        while last + 1 in row:
            last += 1
        self._in_row = last - first + 1 >= _ROW

    def seen(self, in_flight: int) -> None:
        """Note how many calls were in flight as one was refused, explained or not."""
        self.peak = max(self.peak, in_flight) if self._weight > 1.0 else in_flight

    def forget(self) -> None:
        """A call was answered."""
        if self._weight > 0.0:
            self._weight -= self._forget

    def disprove(self) -> None:
        """What was proven turned out to be no limit: for the next proof it takes more."""
        self.clear()
        self._forget = _FORGET_MORE

    def clear(self) -> None:
        self._weight, self._in_row = 0.0, False
        self._orders.clear()

    @property
    def is_proof(self) -> bool:
        """Whether they prove a limit."""
        return self._in_row or self._weight >= max(_PROOF, _PROOF_SHARE * self.peak)

    @property
    def is_lone(self) -> bool:
        """Whether 25 calls were answered since the one before."""
        return self._weight <= 1.0

    @property
    def is_repeated(self) -> bool:
        """Whether the last one was not a lone one."""
        return self._weight >= _REPEATED
