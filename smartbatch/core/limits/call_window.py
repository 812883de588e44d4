"""The window: a limit on calls in flight that grows with success, for as long as nothing better is known."""

from __future__ import annotations

import math

from attrs import define, field

_FIRST, _PROVING = 4.0, 0.5
"""A configured limit starts with 4 calls in flight beyond its even rate and half a call more for each
success, x1.5 a round trip: some ten calls are refused until it is known that a server honours no burst."""

_RESTART, _DOUBLING, _DOUBLES_EVERY = 2.0, 1.0, 1.0
_DECREASE = 0.7
"""After a cooldown the window starts at 2 and doubles each round trip or each second, up to 0.7 of the calls
in flight when a limit was proven; then one call more a round. 0.7 is CUBIC's decrease (RFC 9438, 4.6)."""

_WIDE = 4096.0
"""A window this wide limits nobody (workers are at most 1,024) and is dropped."""


@define(eq=False)
class CallWindow:
    """The most calls in flight.

    Attributes:
        size: infinity while there is no window.
        narrowed_at: when it, or a rate in its place, was lowered last, without a cooldown.
    """

    size: float = field(default=math.inf, init=False)
    narrowed_at: float = field(default=-math.inf, init=False)
    _narrowed_to: float = field(default=_RESTART, init=False)
    _filled_at: float = field(default=-math.inf, init=False)
    _growth: float = field(default=_DOUBLING, init=False)
    _threshold: float = field(default=math.inf, init=False)  # doubling below, one a round above

    @property
    def is_proving(self) -> bool:
        """Whether it finds out if the burst of a configured limit is honoured."""
        return self._growth == _PROVING

    def prove_burst(self) -> None:
        self.size, self._growth, self._threshold = _FIRST, _PROVING, math.inf

    def open(self) -> None:
        """Limit nothing any more."""
        self.size, self._growth = math.inf, _DOUBLING

    def took(self, in_flight: int, now: float) -> None:
        """Count a call, the last of so many in flight."""
        if in_flight >= self.size:
            self._filled_at = now

    def let_through(self, started: float) -> None:
        """A call that was sent then was not refused. One that was sent when the window was not full proves
        nothing.
        """
        if started > self._filled_at:
            return
        self.size += self._growth if self.size < self._threshold else 1.0 / self.size
        if self.size > _WIDE:
            self.size = math.inf

    def opens(self, now: float, in_flight: int, cool_until: float) -> float:
        """Return when the full window lets the next call go, unless a success widens it sooner.

        Answers may take a minute, and a restart that waited only for them would take many: the window also
        doubles each second.
        """
        if self.is_proving or in_flight >= self._threshold:
            return math.inf
        doublings = math.log2((in_flight + 1) / self._narrowed_to)
        return max(now, max(cool_until, self.narrowed_at) + _DOUBLES_EVERY * doublings)

    def narrow(self, in_flight: float, now: float) -> None:
        """Let so many calls be in flight from now on."""
        self.size = self._narrowed_to = in_flight
        self.narrowed_at = now

    def give_way(self, in_flight: int, now: float) -> None:
        """A call was refused, of so many in flight, and it stands alone."""
        self.narrow(max(_RESTART, _DECREASE * min(in_flight, self.size)), now)

    def restart(self, peak: int, *, first: bool) -> None:
        """Begin again slowly after a cooldown. After the first one in a row near a limit that was proven
        before, it only shrinks to 0.7 of the calls in flight.
        """
        again = first and self._threshold != math.inf
        self.size = max(_RESTART, _DECREASE * peak if again else 0.0)
        self._narrowed_to, self._growth = _RESTART, _DOUBLING

    def proven(self, peak: int) -> None:
        """A limit was proven with so many calls in flight."""
        self._threshold = max(_RESTART, _DECREASE * peak)
