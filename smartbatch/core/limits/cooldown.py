"""Pauses after failures: of one request, of all calls after a refusal, and of a feature that did not work."""

from __future__ import annotations

import math
from collections import deque
from typing import Protocol

from attrs import define, field, frozen

from smartbatch._words import duration
from smartbatch.core.limits.reported_limits import Reservation

_EXTRA_SHARE = 0.1
_MAX_EXTRA_SECONDS = 1.0
"""Maximum seconds added to a server's Retry-After, so that clients given the same time do not return
together."""

_MIN_SECONDS = 0.2
"""Minimum seconds before a retry, up to half of it jitter, even if the server asks for none."""

FIRST_REFUSAL_SECONDS, MAX_REFUSAL_SECONDS = 1.0, 60.0


class RandomSource(Protocol):
    def random(self) -> float: ...


@frozen
class Cooldown:
    seconds: float
    consecutive: int  # cooldowns without a success in between
    fresh: bool  # False if the refused call was sent before the cooldown began, as part of the same event


def exponential(retry: int, initial: float, multiplier: float, longest: float) -> float:
    """Return ``min(initial * multiplier ** retry, longest)`` seconds; ``retry`` counts from 0."""
    try:
        return float(min(initial * multiplier**retry, longest))
    except OverflowError:
        return longest


def jittered(seconds: float, rng: RandomSource) -> float:
    """Return between 50 % and 100 % of ``seconds``.

    Jitter of only a quarter leaves four fifths of 1,000 clients in the same tenth of a second (measured
    peak: 807).
    """
    return seconds * (0.5 + 0.5 * rng.random())


def jittered_minimum(retry_after: float, rng: RandomSource) -> float:
    """Add up to a tenth, at most a second, to the server's ``retry_after``."""
    return retry_after + min(_EXTRA_SHARE * retry_after, _MAX_EXTRA_SECONDS) * rng.random()


def shortest(rng: RandomSource) -> float:
    return jittered(_MIN_SECONDS, rng)


def backoff(
    failures: int, rng: RandomSource, *, first: float, longest: float, asked: float | None = None
) -> float:
    """Return the seconds to wait after ``failures`` consecutive failures (1 or more), half of it jitter.

    Args:
        first: seconds after the first failure; doubled with each further one.
        longest: maximum seconds.
        asked: minimum seconds named by the server, capped at ``longest``.
    """
    return min(longest, max(jittered(exponential(failures - 1, first, 2.0, longest), rng), asked or 0.0))


def after_refusals(refusals: int, asked: float | None, rng: RandomSource) -> float:
    """Return the seconds to wait after ``refusals`` consecutive rate-limit refusals (1 or more).

    Args:
        asked: seconds named by the server, already clamped.
    """
    if asked is None:  # 1. the server named no time: a backoff
        return backoff(refusals, rng, first=FIRST_REFUSAL_SECONDS, longest=MAX_REFUSAL_SECONDS)
    if refusals == 1:  # 2. it named a time: that long, but never less than the minimum
        least = shortest(rng)
    else:  # 3. its previous time was too short: at least the backoff
        least = backoff(refusals - 1, rng, first=FIRST_REFUSAL_SECONDS, longest=MAX_REFUSAL_SECONDS)
    return max(jittered_minimum(asked, rng), least)


@define(eq=False)
class CommonCooldown:
    # refusals of calls sent earlier belong to this cooldown
    began: float = field(default=-math.inf, init=False)
    until: float = field(default=-math.inf, init=False)
    consecutive: int = field(default=0, init=False)  # cooldowns without a success in between
    _resets_since: float = field(default=-math.inf, init=False)  # a later success resets the count

    def succeeded(self, call: Reservation) -> None:
        if call.started >= self._resets_since:
            self.consecutive = 0

    def refused(self, now: float, retry_after: float | None, rng: RandomSource, *, fresh: bool) -> Cooldown:
        """Start a cooldown, longer than the last, if the refusal is ``fresh``; otherwise its Retry-After may
        lengthen the current one."""
        if fresh:
            # Refusals arrive sooner than answers: a success of a call sent between two cooldowns still resets
            # the count; a success of a call sent before the first one does not.
            self._resets_since = self.began if self.consecutive else now
            self.consecutive += 1
            self.began = now
            self.until = max(self.until, now + after_refusals(self.consecutive, retry_after, rng))
        elif retry_after is not None:
            self.until = max(self.until, now + jittered_minimum(retry_after, rng))
        return Cooldown(max(0.0, self.until - now), self.consecutive, fresh)

    def follow(self, until: float, now: float) -> None:
        self._resets_since = self.began = now
        self.until = until
        self.consecutive = max(self.consecutive, 1)


class Suspension:
    """Whether a feature is in use, suspended, or on trial.

    A suspension is followed by a trial, which ends when the feature is proven to work. A suspension that
    follows a trial lasts twice as long as the one before.
    """

    FIRST_SECONDS = 60.0
    MAX_SECONDS = 3600.0

    def __init__(self) -> None:
        self.active = False
        self.trial = False
        self._until = -math.inf
        self._next = self.FIRST_SECONDS

    def until(self, now: float) -> float:
        return max(now, self._until)

    def begin(self, now: float, *, longest: bool = False) -> float:
        """Begin a suspension and return its seconds; ``longest`` makes it as long as possible."""
        seconds = self.MAX_SECONDS if longest else self._next
        self._next = min(2 * self._next, self.MAX_SECONDS)
        self._until = now + seconds
        self.active = True
        return seconds

    def end(self, now: float) -> bool:
        """Begin a trial if the suspension is over; return True once per suspension."""
        if not self.active or now < self._until:
            return False
        self.active, self.trial = False, True
        return True

    def proven(self) -> None:
        self.trial, self._next = False, self.FIRST_SECONDS


class FlexHealth:
    """Health of a model's slower tier, which is suspended after consecutive refusals.

    A refused request is sent at the standard price instead, so a refusal costs only time. Refusals arrive
    sooner than answers, so at least half as many consecutive refusals as there are calls in flight are
    needed. On trial, a single refusal is enough.
    """

    REFUSALS = 3
    """Consecutive refusals that suspend the tier."""

    def __init__(self) -> None:
        self._suspension = Suspension()
        self._in_a_row = 0

    def is_open(self, now: float) -> bool:
        return self._suspension.until(now) <= now

    def resume(self, now: float) -> str | None:
        if not self._suspension.end(now):
            return None
        self._in_a_row = 0
        return "the pause is over; the next request is a trial"

    def answered(self) -> None:
        if not self._suspension.active:
            self._in_a_row = 0
            self._suspension.proven()

    def refused(self, now: float, why: str, *, in_flight: int = 0, permanent: bool = False) -> str | None:
        """Record a refusal by the tier; return the reason if this suspends it.

        Args:
            in_flight: unfinished calls to the tier.
            permanent: the model or account does not have the tier, so it is suspended for the longest time.
        """
        if self._suspension.active:
            return None  # the call started before the suspension
        self._in_a_row += 1
        enough = max(1 if self._suspension.trial else self.REFUSALS, (in_flight + 1) // 2)
        if self._in_a_row < enough and not permanent:
            return None
        seconds = self._suspension.begin(now, longest=permanent)
        return f"{why}; the tier is not used for {duration(seconds)}"


class PackingHealth:
    """Whether packing pays off in a lane. Packing is suspended if too many packed requests had to be sent
    again alone.

    Each such request is paid for twice, so above a fifth, packing usually costs more than it saves. On
    trial, a single bad pack suspends packing again.
    """

    JUDGED_ITEMS = 50
    """Number of latest packed requests that are judged."""
    MIN_PACKS = 3
    """Packs before a verdict, except on trial."""
    MAX_RESENT_SHARE = 0.2
    """Share of requests sent again above which packing is suspended."""

    def __init__(self) -> None:
        self._packs: deque[tuple[int, int]] = deque()
        self._suspension = Suspension()

    def off_until(self, now: float) -> float:
        return self._suspension.until(now)

    def resume(self, now: float) -> str | None:
        return "the pause is over; the next pack is a trial" if self._suspension.end(now) else None

    def observe(self, now: float, items: int, missing: int) -> str | None:
        """Return the reason if this pack suspends packing."""
        if self._suspension.active:
            return None  # the call started before the suspension
        packs = self._packs
        packs.append((items, missing))
        while len(packs) > 1 and sum(n for n, _ in packs) - packs[0][0] >= self.JUDGED_ITEMS:
            packs.popleft()
        asked, again = sum(n for n, _ in packs), sum(n for _, n in packs)
        bad = again > self.MAX_RESENT_SHARE * asked
        if not bad and asked >= self.JUDGED_ITEMS:
            self._suspension.proven()
        if not bad or (len(packs) < self.MIN_PACKS and not self._suspension.trial):
            return None
        seconds = self._suspension.begin(now)
        packs.clear()
        return (
            f"{again} of the last {asked} packed requests had to be sent again alone; "
            f"no requests are packed for {duration(seconds)}"
        )
