"""Whether calls are refused for their rate, or at random: calls at a much higher rate find out.

A rate is learned from refusals, and some services refuse a part of all calls, whatever their rate. Below a
limit nothing is refused for it; so a rate that was lowered to what had been accepted, and is refused all the
same, is in doubt. Beyond a limit nearly all is refused: a few calls, sent much faster for a moment, tell.
"""

from __future__ import annotations

from attrs import define, field

from smartbatch.core.limits.header_limits import Reservation

_DOUBTS, _FORGET = 3.0, 0.005
"""Refusals at a lowered rate that bring about a trial; 200 successes outweigh one. Doubled by each trial that
showed the limit to be there, but the first."""

_TOLERATED, _TOLERATED_FORGET = 3.0, 0.15
"""After the second one, so many refusals lower the rate; seven successes outweigh one."""

_FASTER = 4.0
"""Times the rate of before: three of four calls are beyond the limit, if there is one."""

_REFUSED, _OUTWEIGHED = 4.0, 0.25
"""Refusals that end a trial: there is a limit. Four successes outweigh one, so a fifth may be refused at
random."""

_PASSED, _LASTS, _LASTS_THEN = 12, 1.0, 0.25
"""Successes and seconds that a step of a trial takes: a limit that is counted each second shows within one.
After the first step the limit that was supposed is none, and the others find the rate at which calls go."""


@define(eq=False)
class RateTrial:
    """Doubts about a learned rate, and the trial that ends them.

    Attributes:
        good: calls a second that passed before the present step; 0 while there is no trial.
    """

    good: float = field(default=0.0, init=False)
    _needed: float = field(default=_DOUBTS, init=False)
    _doubts: float = field(default=0.0, init=False)
    _confirmed: int = field(default=0, init=False)  # trials that showed a limit
    _tolerated: float = field(default=0.0, init=False)
    _first: int = field(default=0, init=False)  # the order of the first call of the step
    _until: float = field(default=0.0, init=False)  # the step lasts at least
    _passed: int = field(default=0, init=False)
    _refused: float = field(default=0.0, init=False)

    @property
    def is_noisy(self) -> bool:
        """Whether calls are refused at random below a limit."""
        return self._confirmed > 1

    def doubt(self, rate: float, calls: int, now: float) -> float:
        """A call was refused at a lowered rate; return the rate of a trial that begins with the next call, or
        0."""
        self._doubts += 1.0
        if self._doubts < self._needed:
            return 0.0
        self._step(rate, calls, now + _LASTS)
        return _FASTER * rate

    def trust(self) -> None:
        """There is a limit: no doubt, and no trial."""
        self.good = self._doubts = 0.0

    def accepted(self, call: Reservation, rate: float, calls: int, now: float) -> float:
        """A call passed at this rate; return the rate of the next step if this one has passed, else 0."""
        if not self.good:
            self._tolerated = max(0.0, self._tolerated - _TOLERATED_FORGET)
            self._doubts = max(0.0, self._doubts - _FORGET)
            return 0.0
        if call.order < self._first:
            return 0.0
        self._passed += 1
        self._refused = max(0.0, self._refused - _OUTWEIGHED)
        if self._passed < _PASSED or now < self._until:
            return 0.0
        self._step(rate, calls, now + _LASTS_THEN)
        return _FASTER * rate

    def refused(self, call: Reservation) -> bool:
        """A call was refused during a trial; return whether it is over: there is a limit."""
        if call.order < self._first:
            return False
        self._refused += 1.0
        if self._refused < _REFUSED:
            return False
        self._confirmed += 1
        if self.is_noisy:
            self._needed *= 2.0
        self.trust()
        return True

    def tolerates(self) -> bool:
        """A call was refused, where some are at random; return whether it is one of those."""
        self._tolerated += 1.0
        if self._tolerated < _TOLERATED:
            return True
        self._tolerated = 0.0
        return False

    def _step(self, rate: float, calls: int, until: float) -> None:
        self.good, self._first, self._until = rate, calls + 1, until
        self._passed, self._refused = 0, 0.0
