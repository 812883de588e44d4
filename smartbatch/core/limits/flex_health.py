"""Whether a model's slower tier is worth asking: after some refusals in a row it is left alone a while."""

from __future__ import annotations

import math

__all__ = ["FlexHealth"]


class FlexHealth:
    """Counts how often the tier sent requests away. Such a request goes on at the standard price.

    A refusal costs no money, but the time until it comes. It comes sooner than an answer, so the first ones
    of many calls that began together say little: half as many as are under way must be refused in a row.
    After a pause a single one is enough, and the next pause is twice as long.
    """

    REFUSALS = 3
    """In a row, before the tier is left alone: capacity comes and goes."""
    PAUSE = 60.0
    """First pause, seconds."""
    MAX_PAUSE = 3600.0
    """Longest pause, seconds; also the pause after the tier was refused for the model as such."""

    def __init__(self) -> None:
        self._off_until = -math.inf
        self._on = True
        self._trial = False
        self._row = 0
        self._pause = self.PAUSE

    def is_open(self, now: float) -> bool:
        """Whether requests may go there; ``now`` is monotonic seconds."""
        return now >= self._off_until

    def resume(self, now: float) -> str | None:
        """Note that a pause is over; return the reason, once."""
        if self._on or not self.is_open(now):
            return None
        self._on, self._trial, self._row = True, True, 0
        return "the pause is over; the next request is a trial"

    def answered(self) -> None:
        """Note that the tier answered a request."""
        if self._on:
            self._row, self._pause, self._trial = 0, self.PAUSE, False

    def refused(self, now: float, why: str, *, in_flight: int = 0, permanent: bool = False) -> str | None:
        """Note that the tier sent a request away; return the reason when this turns it off.

        Args:
            now: monotonic seconds.
            why: what it said, in a few words.
            beside: calls to the tier that are under way.
            permanent: it said that the model, or the account, does not have the tier.
        """
        if not self._on:
            return None  # it was under way when the tier was turned off
        self._row += 1
        enough = max(1 if self._trial else self.REFUSALS, (in_flight + 1) // 2)
        if self._row < enough and not permanent:
            return None
        pause = self.MAX_PAUSE if permanent else self._pause
        self._pause = min(2 * self._pause, self.MAX_PAUSE)
        self._off_until = now + pause
        self._on = False
        return f"{why}; nothing goes there for {pause:g} s"
