"""How long to wait after a failure: backoff with jitter, and the cooldown of all calls after a refusal."""

from __future__ import annotations

import math
from typing import Protocol

from attrs import define, field, frozen

from smartbatch.core.limits.header_limits import Reservation

_EXTRA_SHARE = 0.1
_EXTRA_MOST = 1.0
"""A server's Retry-After is a minimum; up to a tenth of it, at most a second, is added so that clients that
were told the same time do not return together."""

_SHORTEST = 0.2
"""Seconds, of which up to half is jitter: a server that asks for no wait at all gets one."""

REFUSED, REFUSED_MOST = 1.0, 60.0
"""Seconds of the first and the longest wait after a refusal for the rate limit that names no time."""


class RandomSource(Protocol):
    """The part of :class:`random.Random` that the core uses; the caller passes it in."""

    def random(self) -> float:
        """Return a float in [0, 1)."""
        ...


@frozen
class Cooldown:
    """The pause that follows a refusal.

    Attributes:
        seconds: until it ends.
        consecutive: cooldowns without a success between them.
        fresh: False when the refused call was sent before the cooldown began: it is the same event.
    """

    seconds: float
    consecutive: int
    fresh: bool


def exponential(retry: int, initial: float, multiplier: float, longest: float) -> float:
    """Return ``min(initial * multiplier ** retry, longest)`` seconds; ``retry`` counts from 0."""
    try:
        return float(min(initial * multiplier**retry, longest))
    except OverflowError:
        return longest


def jittered(seconds: float, rng: RandomSource) -> float:
    """Return between 50 % and 100 % of ``seconds``.

    A wait shortened by a quarter at most leaves four fifths of 1,000 clients in the same tenth of a second
    (measured peak 807); half the wait is wide enough to separate them and still keeps a real wait.
    """
    return seconds * (0.5 + 0.5 * rng.random())


def jittered_minimum(retry_after: float, rng: RandomSource) -> float:
    """Return ``retry_after`` seconds, which a server asked for, and up to a tenth or a second more."""
    return retry_after + min(_EXTRA_SHARE * retry_after, _EXTRA_MOST) * rng.random()


def shortest(rng: RandomSource) -> float:
    """Return the least seconds between a failed call and the next try of its request, 0.1 to 0.2."""
    return jittered(_SHORTEST, rng)


def backoff(
    failures: int, rng: RandomSource, *, first: float, longest: float, asked: float | None = None
) -> float:
    """Return the seconds to wait after ``failures`` failures in a row (1 or more), half of it jitter.

    Args:
        first: seconds after the first failure; doubled with every further one.
        longest: seconds that are never exceeded.
        asked: seconds the server asked to wait; the wait is no shorter, up to ``longest``.
    """
    return min(longest, max(jittered(exponential(failures - 1, first, 2.0, longest), rng), asked or 0.0))


def after_refusals(refusals: int, asked: float | None, rng: RandomSource) -> float:
    """Return the seconds to wait after so many refusals for the rate limit in a row.

    1. The server named no time: a backoff.
    2. It named one: that, and never none at all.
    3. What it named before was followed by another refusal: it is not enough, so the backoff holds as well.

    Args:
        refusals: 1 or more.
        asked: seconds the server asked to wait, already clamped.
    """
    if asked is None:
        return backoff(refusals, rng, first=REFUSED, longest=REFUSED_MOST)
    again = refusals > 1
    least = backoff(refusals - 1, rng, first=REFUSED, longest=REFUSED_MOST) if again else shortest(rng)
    return max(jittered_minimum(asked, rng), least)


@define(eq=False)
class CommonCooldown:
    """The cooldown after refusals that prove a limit or are explained by one, common to all calls of a quota.

    It says when no call may go, and which refusals belong to one event.

    Attributes:
        began: when the latest one began; a refusal of a call sent before belongs to it.
        until: when it ends.
        consecutive: cooldowns without a success between them.
    """

    began: float = field(default=-math.inf, init=False)
    until: float = field(default=-math.inf, init=False)
    consecutive: int = field(default=0, init=False)
    _before: float = field(default=-math.inf, init=False)  # a success of a call sent since then resets it

    def succeeded(self, call: Reservation) -> None:
        if call.started >= self._before:
            self.consecutive = 0

    def refused(self, now: float, retry_after: float | None, rng: RandomSource, *, fresh: bool) -> Cooldown:
        """Begin a cooldown if the refusal is ``fresh``, longer than the last one; else a Retry-After may
        lengthen the one to which it belongs.
        """
        if fresh:
            # Refusals arrive sooner than answers. A success among the calls sent between two cooldowns still
            # resets the count of consecutive ones; a success of a call sent before the first does not.
            self._before = self.began if self.consecutive else now
            self.consecutive += 1
            self.began = now
            self.until = max(self.until, now + after_refusals(self.consecutive, retry_after, rng))
        elif retry_after is not None:
            self.until = max(self.until, now + jittered_minimum(retry_after, rng))
        return Cooldown(max(0.0, self.until - now), self.consecutive, fresh)

    def follow(self, until: float, now: float) -> None:
        """Another process was refused: as if a call of this one had been."""
        self._before = self.began = now
        self.until = until
        self.consecutive = max(self.consecutive, 1)
