"""A limit on calls at once that nobody names, found out from which calls were refused.

Some servers refuse with a 429 what exceeds so many calls at once. Calls that are spaced by a rate use such a
limit badly, as latencies vary. What tells the two apart: beyond a cap only calls are refused that began while
many were in flight, and below it none. So when refusals prove a limit, a cap just below the lowest of them is
supposed first, and two calls find out whether it holds.
"""

from __future__ import annotations

import math

from attrs import define, field

from smartbatch.core.limits.header_limits import Reservation

_LEAST = 2
"""Calls at once below which a cap is not supposed: one call after the other looks like a low rate."""

_PROBES = 2
"""Calls that find out whether a supposed cap holds: refused, they say no; one answer says yes."""

_AGAIN = 60.0
"""Seconds after which a cap is supposed again where none was."""

_NEAR = 0.8
"""A refusal of a call that began with this share of the cap in flight, or more, is the cap's."""

_DISPROOF, _FORGET = 3.0, 0.04
"""So many refusals that the cap explains, of which 25 answers outweigh one, show that it is none: what it
lets through is refused as well."""

_ROUNDS = 10.0
"""Rounds of answers after which one call more is tried; half as many after each that is not refused."""

_SEARCH = 0.25
"""Calls more for each answer, so a quarter more each round, until one is refused: what was supposed may be
the burst of a rate, and far too low."""


@define(eq=False)
class ConcurrencyCap:
    """The most calls at once, as far as known; infinity while there is no cap.

    Attributes:
        limit: calls in flight at most.
    """

    limit: float = field(default=math.inf, init=False)
    _lowest: int = field(default=0, init=False)  # in flight when a refused call began, itself included
    _since: float = field(default=-math.inf, init=False)  # when the cap was supposed
    _probing: bool = field(default=False, init=False)
    _probes: int = field(default=0, init=False)  # that may still go
    _refused: int = field(default=0, init=False)
    _against: float = field(default=0.0, init=False)  # refusals that speak against it
    _not_before: float = field(default=-math.inf, init=False)
    _rounds: float = field(default=_ROUNDS, init=False)
    _searching: bool = field(default=False, init=False)
    _lowered_at: float = field(default=-math.inf, init=False)

    def admits(self, in_flight: int) -> bool:
        """Whether one call more may go."""
        return in_flight < self.limit and not (self._probing and self._probes <= 0)

    def take(self) -> None:
        """Count a call that goes."""
        self._probes -= self._probing

    def accepted(self, call: Reservation) -> None:
        """The call was answered: a cap that was supposed before it holds, and after some rounds it grows."""
        if self.limit == math.inf:
            return
        if call.started >= self._since:
            self._probing = False
        self._against = max(0.0, self._against - _FORGET)
        if call.held[0] > self.limit - 1.0:
            before = math.floor(self.limit)
            self.limit += _SEARCH if self._searching else 1.0 / (self._rounds * self.limit)
            if math.floor(self.limit) > before:
                self._rounds /= 2.0

    def ended(self, call: Reservation) -> None:
        """The call says nothing about limits: another one may probe in its place."""
        if self._probing and call.started >= self._since:
            self._probes += 1

    def refused(self, call: Reservation, now: float) -> bool:
        """Return whether the refusal of ``call`` is explained by the cap.

        1. No cap: note how many calls were in flight.
        2. A call that probed: not explained, and the second one shows that there is no cap.
        3. It was sent before the cap was supposed or lowered: the same event.
        4. As many were in flight as the cap lets, or nearly: it is a little lower. If that comes too often it
           is no cap, and not explained.
        5. Fewer were: not explained.
        """
        level = call.held[0]
        if self.limit == math.inf:
            self._lowest = min(self._lowest, level) if self._lowest else level
            return False
        if self._probing and call.started >= self._since:
            self._refused += 1
            if self._refused >= _PROBES:
                self.leave(now)
            return False
        if call.started < max(self._since, self._lowered_at):
            return True
        if level < _NEAR * self.limit:
            return False
        self._against += 1.0
        if self._against >= _DISPROOF:
            self.leave(now)
            return False
        self.limit = max(float(_LEAST), min(math.floor(self.limit), level) - 0.5)
        self._rounds, self._searching, self._lowered_at = _ROUNDS, False, now
        return True

    def suppose(self, now: float) -> bool:
        """Refusals prove a limit: suppose a cap; False where there was none a while ago, or it is too low."""
        supposed, self._lowest = self._lowest - 1, 0
        if supposed < _LEAST or now < self._not_before:
            return False
        self.limit, self._since = float(supposed), now
        self._probing, self._probes, self._refused = True, _PROBES, 0
        self._rounds, self._searching, self._against = _ROUNDS, True, 0.0
        return True

    def leave(self, now: float) -> None:
        """It is no cap that calls are refused for."""
        self.limit, self._probing, self._lowest = math.inf, False, 0
        self._not_before = now + _AGAIN
