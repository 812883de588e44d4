"""The cooldown after refusals that prove a limit or are explained by one, common to all calls of a quota."""

from __future__ import annotations

import math

from attrs import define, field

from smartbatch.core.limits.backoff import Cooldown, RandomSource, after_refusals, jittered_minimum
from smartbatch.core.limits.header_limits import Reservation


@define(eq=False)
class CommonCooldown:
    """When no call may go, and which refusals belong to one event.

    Attributes:
        began: when the latest one began; a refusal of a call sent before belongs to it.
        until: when it ends.
        consecutive: cooldowns without a success between them.
    """

    began: float = field(default=-math.inf, init=False)
    until: float = field(default=-math.inf, init=False)
    consecutive: int = field(default=0, init=False)
    _before: float = field(default=-math.inf, init=False)  # a success of a call sent since then resets it
    _judged: bool = field(default=False, init=False)  # once a cooldown is enough

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
            self._judged = False
            self.until = max(self.until, now + after_refusals(self.consecutive, retry_after, rng))
        elif retry_after is not None:
            self.until = max(self.until, now + jittered_minimum(retry_after, rng))
        return Cooldown(max(0.0, self.until - now), self.consecutive, fresh)

    def judge(self) -> bool:
        """Whether nothing was proven in this cooldown before; it is from now on."""
        judged, self._judged = self._judged, True
        return not judged

    def follow(self, until: float, now: float) -> None:
        """Another process was refused: as if a call of this one had been. It has judged what that proves."""
        self._before = self.began = now
        self.until = until
        self.consecutive = max(self.consecutive, 1)
        self._judged = True
