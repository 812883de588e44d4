"""A token bucket that answers with a time, carries debt, and never mints."""

from __future__ import annotations

__all__ = ["Bucket", "limit_bucket", "spaced_capacity", "used_capacity", "used_rate"]

_FULL = 0.99
_REFILL = 0.995
"""Shares of a told limit that are used: a server that refills by its own clock is then never ahead of us."""

_CATCH_UP = 0.01
"""A paced call that started late lets the next one start earlier, by 1 % of the spacing or by 10 ms if the
spacing is shorter than that, so that late wake-ups do not add up to a lower rate."""

_SLACK = 1e-3
"""How far below its need a taker may be let go: rounding in ``now + wait`` must not turn a waiter away at the
very time it was told. What is lacking stays as debt, so nothing is minted by it."""


class Bucket:
    """Holds up to ``capacity`` units, refilled by ``rate`` units a second.

    Held for every order of calls: what is taken within ``w`` seconds is at most ``capacity + rate * w``
    (plus a thousandth of a unit). A cost above the capacity waits for a full bucket and leaves a debt.

    Args:
        capacity: most units held, above 0.
        rate: units a second, above 0.
        now: monotonic seconds.
        level: units held at the start; full when ``None``.
    """

    __slots__ = ("at", "capacity", "level", "rate")

    def __init__(self, capacity: float, rate: float, now: float, level: float | None = None) -> None:
        self.capacity = capacity
        self.rate = rate
        self.at = now
        self.level = capacity if level is None else level

    def look(self, now: float, cost: float) -> float:
        """Return the earliest time ``cost`` units may be taken; ``now`` when they may be now."""
        level = self.level
        if now > self.at:
            level += (now - self.at) * self.rate
            if level > self.capacity:
                level = self.capacity
            self.level = level
            self.at = now
        need = cost if cost < self.capacity else self.capacity
        return now if level + _SLACK >= need else now + (need - level) / self.rate

    def take(self, now: float, cost: float) -> None:
        """Take ``cost`` units; the level may fall below zero."""
        self.look(now, 0.0)
        self.level -= cost

    def settle(self, now: float, surplus: float) -> None:
        """Return ``surplus`` units that were taken and not used, or take more when it is negative."""
        self.look(now, 0.0)
        self.level = min(self.level + surplus, self.capacity)

    def reshape(self, now: float, capacity: float, rate: float) -> None:
        """Change size and speed; what is owed stays owed, and a lower roof spills what is above it."""
        self.look(now, 0.0)
        self.capacity, self.rate = capacity, rate
        self.level = min(self.level, capacity)


def spaced_capacity(rate: float) -> float:
    """Return the size of a bucket that spaces calls evenly, ``rate`` a second."""
    return max(1.0 + _CATCH_UP, _CATCH_UP * rate)


def used_capacity(limit: float) -> float:
    """Return how much of a full bucket of ``limit`` units is used."""
    return max(1.0, _FULL * limit)


def used_rate(limit: float) -> float:
    """Return how much of ``limit`` units a minute is used each second."""
    return _REFILL * limit / 60.0


def limit_bucket(bucket: Bucket | None, limit: float | None, now: float) -> Bucket | None:
    """Return ``bucket``, or a new full one, shaped to ``limit`` a minute; ``None`` without a limit."""
    if limit is None:
        return None
    capacity, rate = used_capacity(limit), used_rate(limit)
    if bucket is None:
        return Bucket(capacity, rate, now)
    bucket.reshape(now, capacity, rate)
    return bucket
