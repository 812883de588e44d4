"""Token buckets, and the limits that the user configured."""

from __future__ import annotations

_USED_CAPACITY_SHARE = 0.99
_USED_RATE_SHARE = 0.995
"""Shares of a limit's size and rate that are used, so that this bucket never holds more than the server's,
which refills by another clock."""

_COUNTED_RATE_SHARE, _FIRST_WAY_SECONDS = 0.998, 0.05
"""The used share of the refill if counts are exact instead of estimated, and the seconds that the first call
may take to reach the server, whose clock starts then."""

_CATCH_UP_SHARE = 0.01
"""Share of the spacing by which the call after a late one may start earlier, at least 10 ms, so that late
wake-ups do not lower the rate."""

_SLACK_UNITS = 1e-3
"""Units that may be missing when a call starts: without this tolerance, rounding in ``now + wait`` could
refuse a caller at the very time that was returned to it. Missing units remain as debt, so the rate is never
exceeded.
"""


class Bucket:
    """Holds up to ``capacity`` units, refilled at ``rate`` units per second; it may go into debt.

    At most ``capacity + rate * w`` units (plus a thousandth) are taken within ``w`` seconds. A cost above
    the capacity waits for a full bucket and leaves a debt.

    Args:
        capacity: maximum units held, above 0.
        rate: units per second, above 0.
        now: monotonic seconds.
        level: units held at the start; full if ``None``.
    """

    __slots__ = ("at", "capacity", "level", "rate")

    def __init__(self, capacity: float, rate: float, now: float, level: float | None = None) -> None:
        self.capacity = capacity
        self.rate = rate
        self.at = now
        self.level = capacity if level is None else level

    def look(self, now: float, cost: float) -> float:
        level = self.level
        if now > self.at:
            level += (now - self.at) * self.rate
            if level > self.capacity:
                level = self.capacity
            self.level = level
            self.at = now
        need = cost if cost < self.capacity else self.capacity
        return now if level + _SLACK_UNITS >= need else now + (need - level) / self.rate

    def take(self, now: float, cost: float) -> None:
        """Take ``cost`` units; the level may fall below zero."""
        if now > self.at:
            self.look(now, 0.0)
        self.level -= cost

    def return_surplus(self, now: float, surplus: float) -> None:
        """Return ``surplus`` units, or take more if it is negative."""
        if now > self.at:
            self.look(now, 0.0)
        level = self.level + surplus
        self.level = level if level < self.capacity else self.capacity

    def reshape(self, now: float, capacity: float, rate: float) -> None:
        """Change capacity and rate; a debt remains, and a level above the new capacity falls to it."""
        self.look(now, 0.0)
        self.capacity, self.rate = capacity, rate
        self.level = min(self.level, capacity)


def spaced_capacity(rate: float) -> float:
    return max(1.0 + _CATCH_UP_SHARE, _CATCH_UP_SHARE * rate)


def used_capacity(limit: float) -> float:
    return max(1.0, _USED_CAPACITY_SHARE * limit)


def used_rate(limit: float) -> float:
    """Return the used units per second of a ``limit`` per minute."""
    return _USED_RATE_SHARE * limit / 60.0


def limit_bucket(
    bucket: Bucket | None, limit: float | None, now: float, *, counted: bool = False
) -> Bucket | None:
    """Return ``bucket``, or a new full one, shaped to ``limit`` per minute; ``None`` without a limit.

    Exact counts, unlike estimated tokens, use nearly the whole limit; ``counted`` marks them.
    """
    if limit is None:
        return None
    capacity, rate = used_capacity(limit), used_rate(limit)
    if counted:
        capacity, rate = (
            max(capacity, limit - 1.0 - _FIRST_WAY_SECONDS * limit / 60.0),
            _COUNTED_RATE_SHARE * limit / 60.0,
        )
    if bucket is None:
        return Bucket(capacity, rate, now)
    bucket.reshape(now, capacity, rate)
    return bucket


class ConfiguredLimits:
    """The buckets of requests and tokens. A limit that is not configured delays nothing."""

    def __init__(self) -> None:
        self.requests: Bucket | None = None  # None for no limit
        self.tokens: Bucket | None = None
        self.rate: float | None = None  # requests per second
        # last configured, for requests and tokens
        self._latest: tuple[Bucket | None, Bucket | None] = (None, None)

    @property
    def were_set(self) -> bool:
        return self._latest != (None, None)

    def configure(self, max_rpm: float | None, max_tpm: float | None, now: float) -> None:
        """Set the limits per minute; a debt remains even if a limit is removed and set again."""
        requests, tokens = self._latest
        self.requests = limit_bucket(requests, max_rpm, now, counted=True)
        self.tokens = limit_bucket(tokens, max_tpm, now)
        self._latest = (self.requests or requests, self.tokens or tokens)
        self.rate = None if max_rpm is None else max_rpm / 60.0

    def look(self, now: float, tokens: float) -> float:
        at = now
        if self.requests is not None:
            at = self.requests.look(now, 1.0)
        if self.tokens is not None:
            at = max(at, self.tokens.look(now, tokens))
        return at

    def take(self, now: float, tokens: float) -> None:
        if self.requests is not None:
            self.requests.take(now, 1.0)
        if self.tokens is not None:
            self.tokens.take(now, tokens)

    def return_surplus(self, now: float, surplus: float) -> None:
        if self.tokens is not None:
            self.tokens.return_surplus(now, surplus)

    def drop(self, now: float, tokens: float) -> None:
        self.return_surplus(now, tokens)
        if self.requests is not None:
            self.requests.return_surplus(now, 1.0)
