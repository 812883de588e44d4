"""Whether packing pays in a lane: suspended when too many packed requests had to be sent again alone."""

from __future__ import annotations

from collections import deque

from smartbatch.core.limits.suspension import Suspension

__all__ = ["PackingHealth"]


class PackingHealth:
    """Watches how many requests of the latest packs had to be sent again alone.

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
        """Return until when nothing is packed; ``now`` when packing is on. Monotonic seconds."""
        return self._suspension.until(now)

    def resume(self, now: float) -> str | None:
        """Begin a trial if a suspension is over; return the reason, once."""
        return "the pause is over; the next pack is a trial" if self._suspension.end(now) else None

    def observe(self, now: float, items: int, missing: int) -> str | None:
        """Count a pack; return the reason when this suspends packing.

        Args:
            now: monotonic seconds.
            items: requests it carried.
            missing: those of them that have to be sent again alone.
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
