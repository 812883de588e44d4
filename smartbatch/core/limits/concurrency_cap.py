"""A limit on calls at once that nobody names, found out from which calls were refused.

Some servers refuse with a 429 what exceeds so many calls at once. Calls that are spaced by a rate use such a
limit badly, as latencies vary; and the burst of a rate looks like such a limit at first. What tells the two
apart: beyond a cap one call more is refused however long one waits, and below it none is. So when refusals
prove a limit, a cap just below the lowest of them is supposed first, and a few calls find out.
"""

from __future__ import annotations

import math

from attrs import define, field

from smartbatch.core.limits.header_limits import Reservation

_LEAST = 2
"""Calls at once below which a cap is not supposed: one call after the other looks like a low rate."""

PROBES = 2
"""Calls that find out whether a supposed cap holds: refused, they say no; one answer says yes."""

_EXTRA = 2
"""So many calls beyond the cap, one after the other, of which none is refused, say that there is none."""

_FIRST_GAP, _LONGEST_GAP = 1.0, 64.0
"""Seconds until a call more than the cap is tried; doubled by each that is refused."""

_REFUSAL_TIMES, _PROBE_TIMES = 2.0, 4.0
"""A call beyond the cap that is not refused within so many times what a refusal took has passed; and one that
probes: answers may take minutes."""

_AGAIN = 60.0
"""Seconds after which a cap is supposed again where none was."""

_NEAR = 0.8
"""A refusal of a call that began with this share of the cap in flight, or more, is the cap's. And there is no
cap below this share of what was in flight when a call began that was answered within the last minute."""

_LONE, _DISPROOF, _FORGET = 1.0, 3.0, 0.08
"""So many refusals that the cap explains, of which 12 answers outweigh one, show that it is none: what it
lets through is refused as well."""


@define(eq=False)
class ConcurrencyCap:
    """The most calls at once, as far as known; infinity while there is no cap.

    Attributes:
        limit: calls in flight at most.
    """

    limit: float = field(default=math.inf, init=False)
    _levels: set[int] = field(factory=set, init=False)  # in flight when refused calls began, these included
    _known_from: int = field(default=0, init=False)  # the last call sent before the cap was set, by its order
    _answered: tuple[int, float] = field(default=(0, -math.inf), init=False)  # the highest level, and when
    _supposed: int = field(default=0, init=False)
    _probing: bool = field(default=False, init=False)
    _probes: int = field(default=0, init=False)  # that may still go
    _probed_at: float = field(default=math.inf, init=False)  # when the latest probe counts as passed
    _doubted: int = field(default=0, init=False)  # refused probes until there is none
    _against: float = field(default=0.0, init=False)  # refusals that speak against it
    _not_before: float = field(default=-math.inf, init=False)
    _refusal_time: float = field(default=0.0, init=False)
    _extra: Reservation | None = field(default=None, init=False)  # the call beyond the cap, until it passed
    _extra_at: float = field(default=math.inf, init=False)  # when it passed, or the next one may go
    _gap: float = field(default=_FIRST_GAP, init=False)
    _passed: int = field(default=0, init=False)  # calls beyond the cap in a row

    def look(self, now: float, in_flight: int) -> float:
        """Return when one call more may go; infinity for not until one ends."""
        if in_flight < self.limit:
            return max(now, self._probed_at) if self._probing and self._probes <= 0 else now
        return math.inf if self._extra is not None else max(now, self._extra_at)

    def take(self, call: Reservation, now: float) -> None:
        """Count a call that goes."""
        if call.held[0] > self.limit:
            self._extra, self._extra_at = call, now + _REFUSAL_TIMES * self._refusal_time
        if self._probing:
            self._probes -= 1
            self._probed_at = now + _PROBE_TIMES * self._refusal_time

    def has_passed(self, now: float) -> bool:
        """Return whether calls beyond the cap showed that there is none: each makes it one call wider.
        A call that probes passes in time as well."""
        if self._probing and self._probes <= 0 and now >= self._probed_at:
            self._probing = False
        if self._extra is not None and now >= self._extra_at:
            self._passes(now)
        return self._passed >= _EXTRA and self.limit > self._supposed + 1

    def accepted(self, call: Reservation, now: float) -> None:
        """The call was answered: a cap that was supposed before it holds."""
        level, at = self._answered
        if call.held[0] >= level or now - at > _AGAIN:
            self._answered = call.held[0], now
        if self.limit == math.inf:
            return
        if call.order > self._known_from:
            self._probing = False
        if call is self._extra:
            self._passes(now)
        self._against = max(0.0, self._against - _FORGET)

    def ended(self, call: Reservation) -> None:
        """The call says nothing about limits: another one may probe in its place."""
        if self._probing and call.order > self._known_from:
            self._probes += 1
        if call is self._extra:
            self._extra = None

    def refused(self, call: Reservation, now: float, sent: int) -> bool:
        """Return whether the refusal of ``call`` is explained by the cap.

        1. No cap: note how many calls were in flight.
        2. It was sent before the cap was supposed or lowered: the same event.
        3. A call beyond the cap: it holds, and the next one is tried later.
        4. A call that probed: not explained, and the second one shows that there is no cap.
        5. As many were in flight as the cap lets, or nearly: a lone refusal may be a random one. After a
           second one the cap is a little lower; a third one is not explained, and shows that there is none.
           The call beyond the cap goes at once: if it passes, the refusal was no cap's.
        6. Fewer were: not explained.

        Args:
            sent: calls sent until now.
        """
        level = call.held[0]
        if self.limit == math.inf:
            self._levels.add(level)
            self._refusal_time = now - call.started
            return False
        if call.order <= self._known_from:
            return True
        if call is self._extra:
            self._extra, self._probing, self._passed = None, False, 0
            self._gap = min(2.0 * self._gap, _LONGEST_GAP)
            self._extra_at = now + self._gap
            return True
        if self._probing:
            self._doubted -= 1
            if not self._doubted:
                self.leave(now)
            return False
        if level < _NEAR * self.limit:
            return False
        self._against += 1.0
        self._extra_at = min(self._extra_at, now)
        if self._against >= _DISPROOF:
            self.leave(now)
            return False
        if self._against > _LONE:
            self.limit = max(float(_LEAST), min(self.limit, level) - 1.0)
            self._known_from = sent
            self._extra, self._passed = None, 0
        return True

    def suppose(self, now: float, sent: int, asked: float | None, probes: int) -> bool:
        """Refusals prove a limit: suppose a cap; False where there was none a while ago, it is too low, or
        more calls at once were answered.

        Args:
            sent: calls sent until now.
            asked: seconds that the server asked to wait.
            probes: calls that find out.
        """
        supposed = _lowest(self._levels) - 1
        self._levels.clear()
        level, at = self._answered
        answered = now - at <= _AGAIN and supposed < _NEAR * level
        if supposed < _LEAST or answered or now < self._not_before:
            return False
        self._supposed, self.limit, self._known_from = supposed, float(supposed), sent
        self._probing, self._probes, self._doubted = True, probes, probes
        self._against, self._passed, self._extra = 0.0, 0, None
        self._gap = max(_FIRST_GAP, asked or 0.0)
        self._extra_at = now + self._gap
        return True

    def leave(self, now: float) -> None:
        """It is no cap that calls are refused for."""
        self.limit, self._probing, self._passed, self._extra = math.inf, False, 0, None
        self._levels.clear()
        self._not_before = now + _AGAIN

    def _passes(self, now: float) -> None:
        self._extra, self._probing = None, False
        self.limit += 1.0
        self._passed += 1
        self._gap = _FIRST_GAP
        self._extra_at = now + (0.0 if self._against else self._gap)


def _lowest(levels: set[int]) -> int:
    """Return the lowest level that is no lone one: a refusal far below the others is a random one."""
    return min(
        (level for level in levels if not levels.isdisjoint((level + 1, level + 2))), default=min(levels)
    )
