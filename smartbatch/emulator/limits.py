"""Request and token limits as the service enforces them.

This is the judge of the library's own limiter, so it shares no code with it. Time is an argument.
"""

from __future__ import annotations

import math
from typing import Protocol

from attrs import frozen

from smartbatch.emulator.settings import Settings

__all__ = ["Level", "Limits", "Refusal", "go_duration"]

_SLACK = 1e-9  # a refill that is exact on paper may be this much short in floating point


def go_duration(seconds: float) -> str:
    """Return seconds in Go's notation, rounded up to milliseconds, as the service's reset headers have it.

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


@frozen
class Refusal:
    """Why a request was not admitted.

    Attributes:
        what: ``requests``, ``tokens`` or ``output``.
        limit: the limit a minute.
        used: what is used of it.
        requested: what the request needs.
        wait: seconds until there is room; ``None`` when the request is larger than the limit.
        real: False for a fault: no such limit is enforced, and naming one would be believed.
    """

    what: str
    limit: int
    used: int
    requested: int
    wait: float | None
    real: bool = True


@frozen
class Level:
    """How far a limit is used.

    Attributes:
        what: as in :class:`Refusal`.
        limit: the limit a minute.
        remaining: what is left now.
        full_in: seconds until nothing is used.
    """

    what: str
    limit: int
    remaining: int
    full_in: float


class _Meter(Protocol):
    """One limit: how much is left, and when."""

    capacity: float

    def left(self, now: float) -> float:
        """What may be taken at once."""

    def take(self, now: float, cost: float) -> None:
        """Take it, below zero if need be."""

    def wait(self, now: float, cost: float) -> float:
        """Seconds until ``cost`` may be taken."""

    def full_in(self, now: float) -> float:
        """Seconds until nothing is used."""

    def allowed(self, first: float, now: float) -> float:
        """The most that could have been taken between ``first`` and ``now``."""


class _Bucket:
    """A token bucket, full at the start."""

    def __init__(self, a_minute: float, capacity: float) -> None:
        self.capacity = capacity
        self._rate = a_minute / 60
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


class _Seconds:
    """A sixtieth of the limit in each second of the server's clock, and nothing carried over."""

    def __init__(self, a_minute: float) -> None:
        self._rate = a_minute / 60
        self.capacity = max(1.0, self._rate)
        self._window = -1
        self._used = 0.0

    def _share(self, window: int) -> float:
        # Rounded over the sum, so that 90 a minute are 1, 2, 1, 2 … a second.
        return math.floor((window + 1) * self._rate + _SLACK) - math.floor(window * self._rate + _SLACK)

    def left(self, now: float) -> float:
        if (window := math.floor(now)) != self._window:
            self._window, self._used = window, 0.0
        return self._share(self._window) - self._used

    def take(self, now: float, cost: float) -> None:
        self.left(now)
        self._used += cost

    def wait(self, now: float, cost: float) -> float:
        if self.left(now) + _SLACK >= cost:
            return 0.0
        window = math.floor(now) + 1
        while self._share(window) < min(cost, math.floor(self.capacity)):
            window += 1
        return window - now

    def full_in(self, now: float) -> float:
        self.left(now)
        return math.floor(now) + 1 - now if self._used else 0.0

    def allowed(self, first: float, now: float) -> float:
        begin, end = math.floor(first), math.floor(now) + 1
        return math.floor(end * self._rate + _SLACK) - math.floor(begin * self._rate + _SLACK)


class Limits:
    """The limits of one emulator.

    Args:
        settings: ``rpm``, ``tpm``, ``otpm``, ``burst``, ``enforce`` and ``count_refused``.
    """

    def __init__(self, settings: Settings) -> None:
        self._count_refused = settings.count_refused
        self._first: float | None = None
        self._meters: dict[str, tuple[_Meter, float]] = {}
        for what, limit in (
            ("requests", settings.rpm),
            ("tokens", settings.tpm),
            ("output", settings.otpm),
        ):
            if limit is None:
                continue
            meter: _Meter
            if settings.enforce == "second":
                meter = _Seconds(limit)
            else:
                capacity = settings.burst if what == "requests" and settings.burst else limit
                meter = _Bucket(limit, capacity)
            self._meters[what] = (meter, limit)

    def __bool__(self) -> bool:
        return bool(self._meters)

    def admit(self, now: float, tokens: int) -> Refusal | None:
        """Take one request and its tokens, all or nothing.

        Args:
            now: monotonic seconds.
            tokens: what the request is charged for.

        Returns:
            ``None`` when the request is admitted.
        """
        if self._first is None:
            self._first = now
        # Output is counted as it is made: room for one token is asked for here, spend() takes what it was.
        costs = {"requests": 1, "tokens": tokens, "output": 1}
        for what, (meter, limit) in self._meters.items():
            left, cost = meter.left(now), costs[what]
            if left + _SLACK >= cost:
                continue
            if self._count_refused and "requests" in self._meters:
                self._meters["requests"][0].take(now, 1)
            wait = None if cost > meter.capacity else meter.wait(now, cost)
            used = max(0, math.ceil(meter.capacity - left))
            return Refusal(what, int(limit), used, cost, wait)
        for what, (meter, _) in self._meters.items():
            if what != "output":
                meter.take(now, costs[what])
        return None

    def spend(self, now: float, output: int) -> None:
        """Charge the tokens an admitted request has put out; the meter may go below zero."""
        if "output" in self._meters:
            self._meters["output"][0].take(now, output)

    def levels(self, now: float) -> list[Level]:
        """Return how far each limit is used; resets are times until the limit is unused."""
        return [
            Level(what, int(limit), max(0, math.floor(meter.left(now) + _SLACK)), meter.full_in(now))
            for what, (meter, limit) in self._meters.items()
        ]

    def headers(self, now: float) -> list[tuple[str, str]]:
        """Return the ``x-ratelimit-*`` headers of an answer of OpenAI's."""
        found: list[tuple[str, str]] = []
        for level in self.levels(now):
            if level.what != "output":
                found += [
                    (f"x-ratelimit-limit-{level.what}", str(level.limit)),
                    (f"x-ratelimit-remaining-{level.what}", str(level.remaining)),
                    (f"x-ratelimit-reset-{level.what}", go_duration(level.full_in)),
                ]
        return found

    def allowed_requests(self, now: float) -> float:
        """Return how many requests a perfect client could have had admitted since the first one.

        The full bucket at the start plus the refill since (or, second by second, the sum of the shares);
        infinite without a request limit, 0 before the first request.
        """
        if self._first is None:
            return 0.0
        if "requests" not in self._meters:
            return math.inf
        return self._meters["requests"][0].allowed(self._first, now)
