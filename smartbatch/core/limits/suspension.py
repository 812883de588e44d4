"""Leaving a feature off for a while after it failed: the pause doubles until a trial succeeds."""

from __future__ import annotations

import math

__all__ = ["Suspension"]


class Suspension:
    """Whether a feature is in use, suspended, or on trial.

    It starts in use. :meth:`begin` suspends it; once the pause is over :meth:`end` puts it on trial, and
    :meth:`proven` ends the trial. A suspension that follows a trial lasts twice as long as the one before.
    """

    FIRST = 60.0
    """Seconds of the first suspension."""
    LONGEST = 3600.0
    """Seconds of the longest suspension."""

    __slots__ = ("_next", "_until", "active", "trial")

    def __init__(self) -> None:
        self.active = False
        """True from :meth:`begin` to :meth:`end`."""
        self.trial = False
        """True from :meth:`end` to :meth:`proven`."""
        self._until = -math.inf
        self._next = self.FIRST

    def until(self, now: float) -> float:
        """Return the time the suspension is over; ``now`` when there is none. Monotonic seconds."""
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
