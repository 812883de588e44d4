"""Whether packing pays in a lane: when too many answers have to be asked again alone, it turns itself off."""

from __future__ import annotations

import math
from collections import deque

__all__ = ["PackingHealth"]


class PackingHealth:
    """Watches how many items of the latest packs had to be asked again alone.

    Each such item was paid twice, so above a fifth packing costs more than it usually saves: it turns itself
    off for a pause, which doubles each time. After a pause a single bad pack is enough to turn it off again.
    """

    ITEMS = 50
    """Items of the latest packs that are looked at."""
    PACKS = 3
    """Packs before a verdict: the first may have been bad luck."""
    RATE = 0.2
    """Share of items asked again above which packing is off."""
    PAUSE = 60.0
    """First pause, seconds."""
    MAX_PAUSE = 3600.0
    """Longest pause, seconds."""

    def __init__(self) -> None:
        self._packs: deque[tuple[int, int]] = deque()
        self._off_until = -math.inf
        self._on = True
        self._trial = False
        self._pause = self.PAUSE

    def off_until(self, now: float) -> float:
        """Return until when nothing is packed; ``now`` when packing is on."""
        return max(now, self._off_until)

    def resume(self, now: float) -> str | None:
        """Note that a pause is over; return the reason, once."""
        if self._on or now < self._off_until:
            return None
        self._on, self._trial = True, True
        return "the pause is over; the next pack is a trial"

    def observe(self, now: float, items: int, missing: int) -> str | None:
        """Book a pack; return the reason when this turns packing off.

        Args:
            now: monotonic seconds.
            items: requests it carried.
            missing: those of them that have to be asked again alone.
        """
        if not self._on:
            return None  # it was under way when packing was turned off
        packs = self._packs
        packs.append((items, missing))
        while len(packs) > 1 and sum(n for n, _ in packs) - packs[0][0] >= self.ITEMS:
            packs.popleft()
        asked, again = sum(n for n, _ in packs), sum(n for _, n in packs)
        bad = again > self.RATE * asked
        if not bad and asked >= self.ITEMS:
            self._trial, self._pause = False, self.PAUSE
        if not bad or (len(packs) < self.PACKS and not self._trial):
            return None
        pause, self._pause = self._pause, min(2 * self._pause, self.MAX_PAUSE)
        self._off_until = now + pause
        self._on = False
        packs.clear()
        return (
            f"{again} of the last {asked} packed requests had to be asked again alone; "
            f"nothing is packed for {pause:g} s"
        )
