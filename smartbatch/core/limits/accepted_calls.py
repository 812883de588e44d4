"""The calls that were accepted since a limit was proven: until it is proven again, they measure it."""

from __future__ import annotations

import math

from attrs import define, field

from smartbatch.core.limits.header_limits import Reservation
from smartbatch.core.limits.lease import LimitLease

_LONGEST = 120.0
"""Two proofs at most this many seconds apart measure the rate."""

_LEAST, _LEAST_SHARED = 1.0, 0.5
"""Seconds in which calls were accepted, at least: a limit that is counted each second lets a second's worth
through at once. Half of it where processes share it, as each of them sees a part."""

_TURN = 0.2
"""Seconds for which a process has calls go at least, while the others wait for their turn."""


@define(eq=False)
class AcceptedCalls:
    """Calls accepted since a limit was proven.

    Attributes:
        since: when that was; minus infinity before.
        at_proof: calls a second at first contact, where a cap on calls at once was supposed then; else 0.
        is_untried: whether the rate that was refused last was that of a burst, and processes share it.
    """

    since: float = field(default=-math.inf, init=False)
    at_proof: float = field(default=0.0, init=False)
    is_untried: bool = field(default=False, init=False)
    _calls: int = field(default=0, init=False)

    def restart(self, now: float) -> None:
        """Another process judged the refusals until now, and what was accepted before measures nothing."""
        self.since, self.at_proof, self._calls = now, 0.0, 0

    def proven(self, now: float) -> None:
        """A limit was proven; what was accepted before the first answer measures nothing."""
        if self._calls:
            self.restart(now)

    def accept(self, call: Reservation, *, alone: bool) -> None:
        """A call was accepted; one that was sent before the proof counts only for a process that is alone."""
        if alone or call.started >= self.since:
            self._calls += 1

    def measures(self, now: float, *, alone: bool) -> bool:
        """Whether anything was measured."""
        return (self._calls > 0 or not alone) and now - self.since <= _LONGEST

    def take_at_proof(self, now: float, *, alone: bool) -> float:
        """Return, once, the rate at first contact; 0 where it is not known or was long ago."""
        rate, self.at_proof = self.at_proof, 0.0
        return rate if self.measures(now, alone=alone) else 0.0

    def rate(self, until: float, under_way: int, lease: LimitLease | None, *, spaced: bool) -> float:
        """Return the calls a second that were accepted until then. The cases, in order:

        1. Processes share it, and it was a burst that was measured before: they have their turns, and one
           call more would have been accepted at most.
        2. The others did not tell yet what they had answered, at first contact: as much, each.
        3. Otherwise what this process and the others had answered.

        Args:
            under_way: calls in flight that count as accepted.
            spaced: whether calls are spaced.
        """
        seconds, calls = until - self.since, self._calls + under_way
        own = calls / max(seconds, _LEAST if lease is None or lease.members == 1 else _LEAST_SHARED)
        if lease is None:
            return own
        if self.is_untried:
            return (calls + 1) / max(seconds, _TURN)
        others = lease.others_rate(self.since)
        return own + (others if others or spaced else (lease.members - 1) * own)
