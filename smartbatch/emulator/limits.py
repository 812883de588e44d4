"""Request and token limits as the services enforce them.

Tests compare the library's limiter with these limits, so the two share no code. Time is an argument.
"""

from __future__ import annotations

import math
from typing import Protocol

from attrs import frozen

from smartbatch.emulator.settings import EmulatorSettings

_REFILL_TOLERANCE = 1e-9  # tolerance for floating-point errors of a refill


def go_duration(seconds: float) -> str:
    """Format seconds in Go's notation, rounded up to milliseconds, as in the service's reset headers.

    Examples: ``0s``, ``12ms``, ``1.5s``, ``6m0s``, ``1h0m0s``.
    """
    total = math.ceil(max(0.0, seconds) * 1000 - 1e-6)
    if total <= 0:
        return "0s"
    if total < 1000:
        return f"{total}ms"
    minutes, milliseconds = divmod(total, 60_000)
    text = f"{milliseconds / 1000:g}s"
    if not minutes:
        return text
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{text}" if hours else f"{minutes}m{text}"


def retry_after_seconds(wait: float | None) -> str:
    """Return the value of ``Retry-After`` in whole seconds, rounded up. ``None`` means no wait."""
    return str(math.ceil(max(0.0, wait or 0.0) - 1e-6))


@frozen
class LimitExceeded:
    """The reason why a request was not admitted."""

    what: str  # ``requests``, ``tokens`` or ``output``
    limit: int  # per minute
    used: int  # the part already used
    requested: int  # amount needed by the request
    # seconds until it would be admitted; ``None`` if the request is larger than the limit
    wait: float | None
    # False for an injected fault, which enforces no such limit: clients must not learn a limit from it
    real: bool = True


@frozen
class Level:
    """The current level of a limit."""

    what: str  # see :class:`LimitExceeded`
    limit: int  # per minute
    remaining: int  # amount left
    full_in: float  # seconds until the whole limit is available


class _Meter(Protocol):
    """The state of one limit. Times are monotonic seconds."""

    capacity: float

    def left(self, now: float) -> float: ...

    def take(self, now: float, cost: float) -> None: ...

    def wait(self, now: float, cost: float) -> float: ...

    def full_in(self, now: float) -> float: ...

    def allowed(self, first: float, now: float) -> float:
        """Return the total that the limit allowed from ``first`` to ``now``."""


class TokenBucket:
    def __init__(self, per_minute: float, capacity: float) -> None:
        self.capacity = capacity
        self._rate = per_minute / 60
        self._level = capacity
        self._at = -math.inf

    def left(self, now: float) -> float:
        if now > self._at:
            passed = 0.0 if self._at == -math.inf else now - self._at
            self._level = min(self.capacity, self._level + passed * self._rate)
            self._at = now
        return self._level

    def take(self, now: float, cost: float) -> None:
        self._level = max(self.left(now) - cost, -self.capacity)

    def wait(self, now: float, cost: float) -> float:
        return max(0.0, cost - self.left(now)) / self._rate

    def full_in(self, now: float) -> float:
        return (self.capacity - self.left(now)) / self._rate

    def allowed(self, first: float, now: float) -> float:
        return self.capacity + self._rate * (now - first)


class _SecondWindows:
    """Fixed windows of one second of the server's clock, each with a sixtieth of the limit."""

    def __init__(self, per_minute: float) -> None:
        self._rate = per_minute / 60
        self.capacity = max(1.0, self._rate)
        self._window = -1
        self._used = 0.0

    def _window_limit(self, window: int) -> float:
        # The cumulative sum is rounded: 90 per minute are 1, 2, 1, 2 … per second.
        return math.floor((window + 1) * self._rate + _REFILL_TOLERANCE) - math.floor(
            window * self._rate + _REFILL_TOLERANCE
        )

    def left(self, now: float) -> float:
        if (window := math.floor(now)) != self._window:
            self._window, self._used = window, 0.0
        return self._window_limit(self._window) - self._used

    def take(self, now: float, cost: float) -> None:
        self.left(now)
        self._used += cost

    def wait(self, now: float, cost: float) -> float:
        if self.left(now) + _REFILL_TOLERANCE >= cost:
            return 0.0
        window = math.floor(now) + 1
        while self._window_limit(window) < min(cost, math.floor(self.capacity)):
            window += 1
        return window - now

    def full_in(self, now: float) -> float:
        self.left(now)
        return math.floor(now) + 1 - now if self._used else 0.0

    def allowed(self, first: float, now: float) -> float:
        start, end = math.floor(first), math.floor(now) + 1
        return math.floor(end * self._rate + _REFILL_TOLERANCE) - math.floor(
            start * self._rate + _REFILL_TOLERANCE
        )


class Limits:
    """The rate limits of one emulator.

    Args:
        settings: ``rpm``, ``tpm``, ``otpm``, ``burst``, ``enforce`` and ``count_refused``.
    """

    def __init__(self, settings: EmulatorSettings) -> None:
        self._count_refused = settings.count_refused
        self._first: float | None = None
        self._meters: dict[str, tuple[_Meter, float]] = {}
        for what, limit in (("requests", settings.rpm), ("tokens", settings.tpm), ("output", settings.otpm)):
            if limit is None:
                continue
            meter: _Meter
            if settings.enforce == "second":
                meter = _SecondWindows(limit)
            else:
                capacity = settings.burst if what == "requests" and settings.burst else limit
                meter = TokenBucket(limit, capacity)
            self._meters[what] = (meter, limit)

    def __bool__(self) -> bool:
        return bool(self._meters)

    def admit(self, now: float, tokens: int) -> LimitExceeded | None:
        """Charge one request and its tokens to all limits, or to none.

        Returns:
            ``None`` if the request is admitted, otherwise the first limit that is exceeded.
        """
        if self._first is None:
            self._first = now
        # Output tokens are charged by spend() when they are known; admission requires one free token.
        costs = {"requests": 1, "tokens": tokens, "output": 1}
        for what, (meter, limit) in self._meters.items():
            left, cost = meter.left(now), costs[what]
            if left + _REFILL_TOLERANCE >= cost:
                continue
            if self._count_refused and "requests" in self._meters:
                self._meters["requests"][0].take(now, 1)
            wait = None if cost > meter.capacity else meter.wait(now, cost)
            used = max(0, math.ceil(meter.capacity - left))
            return LimitExceeded(what, int(limit), used, cost, wait)
        for what, (meter, _) in self._meters.items():
            if what != "output":
                meter.take(now, costs[what])
        return None

    def spend(self, now: float, output: int) -> None:
        """Charge the output tokens of an admitted request. The level may become negative."""
        if "output" in self._meters:
            self._meters["output"][0].take(now, output)

    def levels(self, now: float) -> list[Level]:
        return [
            Level(
                what, int(limit), max(0, math.floor(meter.left(now) + _REFILL_TOLERANCE)), meter.full_in(now)
            )
            for what, (meter, limit) in self._meters.items()
        ]

    def headers(self, now: float) -> list[tuple[str, str]]:
        headers: list[tuple[str, str]] = []
        for level in self.levels(now):
            if level.what != "output":
                headers += [
                    (f"x-ratelimit-limit-{level.what}", str(level.limit)),
                    (f"x-ratelimit-remaining-{level.what}", str(level.remaining)),
                    (f"x-ratelimit-reset-{level.what}", go_duration(level.full_in)),
                ]
        return headers

    def allowed_requests(self, now: float) -> float:
        """Return the number of requests that could have been admitted since the first one.

        This is the full bucket plus its refill since then or, with fixed windows, the sum of their limits. It
        is infinite without a request limit, and 0 before the first request.
        """
        if self._first is None:
            return 0.0
        if "requests" not in self._meters:
            return math.inf
        return self._meters["requests"][0].allowed(self._first, now)
