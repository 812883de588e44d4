"""Leaving a feature off for a while after it failed: the pause doubles until a trial succeeds.

Times are monotonic seconds.
"""

from __future__ import annotations

import math
from collections import deque


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
