"""Whether a model's slower tier is worth asking: after refusals in a row it is not used for a while."""

from __future__ import annotations

from smartbatch.core.limits.suspension import Suspension

__all__ = ["FlexHealth"]


class FlexHealth:
    """Counts how often the slower tier refused requests. A refused request goes on at the standard price.

    A refusal costs no money, only the time until it arrives. Refusals arrive sooner than answers, so the
    first results of many calls that started together say little: half as many as are in flight must be
    refused in a row. On trial after a suspension a single refusal is enough.
    """

    REFUSALS = 3
    """Refusals in a row before the tier is suspended: its capacity varies."""

    def __init__(self) -> None:
        self._suspension = Suspension()
        self._in_a_row = 0

    def is_open(self, now: float) -> bool:
        """Whether requests may be sent to the tier; ``now`` is monotonic seconds."""
        return self._suspension.until(now) <= now

    def resume(self, now: float) -> str | None:
        """Begin a trial if a suspension is over; return the reason, once."""
        if not self._suspension.end(now):
            return None
        self._in_a_row = 0
        return "the pause is over; the next request is a trial"

    def answered(self) -> None:
        """Note that the tier answered a request."""
        if not self._suspension.active:
            self._in_a_row = 0
            self._suspension.proven()

    def refused(self, now: float, why: str, *, in_flight: int = 0, permanent: bool = False) -> str | None:
        """Note that the tier refused a request; return the reason when this suspends it.

        Args:
            now: monotonic seconds.
            why: what the provider said, in a few words.
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
