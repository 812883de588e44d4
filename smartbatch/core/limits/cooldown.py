"""Pauses after failures: of one request, of all calls after a refusal, and of a feature that did not work.

Times are monotonic seconds.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Protocol

from attrs import define, field, frozen

from smartbatch.core.limits.reported_limits import Reservation

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


class Suspension:
    """Whether a feature is in use, suspended, or on trial.

    It starts in use. :meth:`begin` suspends it; once the pause is over :meth:`end` puts it on trial, and
    :meth:`proven` ends the trial. A suspension that follows a trial lasts twice as long as the one before.
    """

    FIRST = 60.0
    """Seconds of the first suspension."""
    LONGEST = 3600.0
    """Seconds of the longest suspension."""

    def __init__(self) -> None:
        self.active = False
        """True from :meth:`begin` to :meth:`end`."""
        self.trial = False
        """True from :meth:`end` to :meth:`proven`."""
        self._until = -math.inf
        self._next = self.FIRST

    def until(self, now: float) -> float:
        """Return the time the suspension is over; ``now`` when there is none."""
        return max(now, self._until)

    def begin(self, now: float, *, longest: bool = False) -> float:
        """Suspend the feature and return for how many seconds; ``longest`` skips the doubling."""
        seconds = self.LONGEST if longest else self._next
        self._next = min(2 * self._next, self.LONGEST)
        self._until = now + seconds
        self.active = True
        return seconds

    def end(self, now: float) -> bool:
        """Begin the trial if the suspension is over; True once for each suspension."""
        if not self.active or now < self._until:
            return False
        self.active, self.trial = False, True
        return True

    def proven(self) -> None:
        """The feature works: the trial is over, and the next suspension is as short as the first."""
        self.trial, self._next = False, self.FIRST


class FlexHealth:
    """Whether a model's slower tier is worth asking: after refusals in a row it is not used for a while.

    A refused request goes on at the standard price. A refusal costs no money, only the time until it
    arrives. Refusals arrive sooner than answers, so the first results of many calls that started together say
    little: half as many as are in flight must be refused in a row. On trial a single refusal is enough.
    """

    REFUSALS = 3
    """Refusals in a row before the tier is suspended: its capacity varies."""

    def __init__(self) -> None:
        self._suspension = Suspension()
        self._in_a_row = 0

    def is_open(self, now: float) -> bool:
        return self._suspension.until(now) <= now

    def resume(self, now: float) -> str | None:
        """Begin a trial if a suspension is over; return the reason, once."""
        if not self._suspension.end(now):
            return None
        self._in_a_row = 0
        return "the pause is over; the next request is a trial"

    def answered(self) -> None:
        if not self._suspension.active:
            self._in_a_row = 0
            self._suspension.proven()

    def refused(self, now: float, why: str, *, in_flight: int = 0, permanent: bool = False) -> str | None:
        """Note that the tier refused a request; return the reason when this suspends it.

        Args:
            in_flight: calls to the tier that have not ended.
            permanent: the model, or the account, does not have the tier; suspends it for the longest time.
        """
        if self._suspension.active:
            return None  # the call started before the suspension
        self._in_a_row += 1
        enough = max(1 if self._suspension.trial else self.REFUSALS, (in_flight + 1) // 2)
        if self._in_a_row < enough and not permanent:
            return None
        seconds = self._suspension.begin(now, longest=permanent)
        return f"{why}; nothing goes there for {seconds:g} s"


class PackingHealth:
    """Whether packing pays in a lane: suspended when too many packed requests had to be sent again alone.

    Each such request was paid twice, so above a fifth packing costs more than it usually saves. On trial
    after a suspension a single bad pack suspends packing again.
    """

    ITEMS = 50
    """Requests of the latest packs that are looked at."""
    PACKS = 3
    """Packs before a verdict, other than on trial."""
    RATE = 0.2
    """Share of requests sent again above which packing is suspended."""

    def __init__(self) -> None:
        self._packs: deque[tuple[int, int]] = deque()
        self._suspension = Suspension()

    def off_until(self, now: float) -> float:
        """Return until when nothing is packed; ``now`` when packing is on."""
        return self._suspension.until(now)

    def resume(self, now: float) -> str | None:
        """Begin a trial if a suspension is over; return the reason, once."""
        return "the pause is over; the next pack is a trial" if self._suspension.end(now) else None

    def observe(self, now: float, items: int, missing: int) -> str | None:
        """Count a pack of ``items`` requests, of which those ``missing`` have to be sent again alone; return
        the reason when this suspends packing.
        """
        if self._suspension.active:
            return None  # the call started before the suspension
        packs = self._packs
        packs.append((items, missing))
        while len(packs) > 1 and sum(n for n, _ in packs) - packs[0][0] >= self.ITEMS:
            packs.popleft()
        asked, again = sum(n for n, _ in packs), sum(n for _, n in packs)
        bad = again > self.RATE * asked
        if not bad and asked >= self.ITEMS:
            self._suspension.proven()
        if not bad or (len(packs) < self.PACKS and not self._suspension.trial):
            return None
        seconds = self._suspension.begin(now)
        packs.clear()
        return (
            f"{again} of the last {asked} packed requests had to be asked again alone; "
            f"nothing is packed for {seconds:g} s"
        )
