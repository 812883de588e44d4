"""One limit as the provider reports it: the amount per minute, and the remaining part.

A report describes the server's state when it admitted a call. It does not include later calls of this
client, so the level becomes *remaining, plus the refill since, minus the amount sent since*, between two
bounds:

* the **likely** level subtracts the amount sent after the reported call. The level is lowered to it if
  other clients use the limit or the server charges more than expected;
* the **certain** level subtracts everything that the server may have charged since, without any refill. The
  level is raised to it if the server charges less than expected.

The caller holds one lock.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from smartbatch.core.limits.token_bucket import Bucket, spaced_capacity, used_capacity, used_rate

_MINUTE_SECONDS = 60.0
_MAX_MINUTE_SECONDS = 66.0
"""A limit per minute refills within 60 s. One that takes longer than this, which allows 10 % for clock
differences, is counted over a longer period, such as the requests per day of some tiers, and refills at
the reset."""

_HOUR_SECONDS, _DAY_SECONDS = 3600.0, 25 * 3600.0
"""Maximum seconds that a call waits: an hour, or 25 hours for a limit per day. A longer reset is a mistake.
"""

_MAX_UNITS = 1e15
"""Servers without a limit report larger numbers, whose squares would exceed the range of floats."""

_SMALLER_CAPACITY_SHARE = 0.9
"""If a reset implies less than this share of the limit, it reveals the server's true capacity; above it, the
difference is due to rounding."""

_SAME_END_SHARE = 0.25
"""Share of the refill by which two resets may differ and still name the same moment, the end of a window."""

_ROUNDED_TO = 1000.0
_ROUNDING_SHARE = 0.05
"""Anthropic rounds remaining tokens to the nearest thousand, so its figure may be off by 500. No error above
5 % of the limit is assumed, or small limits would never admit a call."""

_PRIOR_SHARE = 0.01
"""Weight of the prior ratio of 1 between charged and expected tokens, as a share of the limit."""

_REMEMBERED_CALLS = 8.0
"""The ratio is measured over the most recent calls, between half and one limit's worth, or over this
multiple of the amount in flight, so that late charges do not look like missing ones."""

_CHARGED_MORE_RATIO = 1.15
"""Above this ratio, a call takes the amount that the server charges; below it, reports correct the level in
time."""

_MAX_RATIO = 50.0
"""A server that charges an output cap of 4,096 tokens when about 80 were expected reaches this ratio."""

_LONE_DECREASE, _DECREASE = 0.95, 0.7
_LONE_SECONDS = 10.0
_MIN_CLAIM = 0.05
"""A single refusal may mean that the level was estimated slightly too high. A client that is refused again
within ten seconds shares the limit, and reduces its claim to 0.7 of it."""

_RECLAIMED_SHARE, _RECLAIM_SCALE_SECONDS = 0.01, 8.0
"""After ``t`` seconds, 1 % of the limit per second, times ``1 + (t / 8 s)²``, is claimed again."""


class LimitReading(NamedTuple):
    limit: float | None
    remaining: float | None
    reset: float | None  # seconds until the bucket is full
    rounded_to: float = 0.0  # seconds by which the reset may be too long


def believed_reset(reset: float | None) -> float | None:
    """Return the reset in seconds, an hour if it is beyond a day, or ``None`` if it is negative or not a
    number."""
    if reset is None or not reset >= 0.0:
        return None
    return reset if reset <= _DAY_SECONDS else _HOUR_SECONDS


def believed_count(count: float | None) -> float | None:
    """Return a limit or its remainder, or ``None`` if it is negative or not a number."""
    return None if count is None or not count >= 0.0 else min(count, _MAX_UNITS)


class SentAround(NamedTuple):
    """The amounts that this client sent before and after the reported call, in the units of one limit."""

    started: float
    order: int
    mark: float  # sent up to and including this call
    since: float
    open: float  # sent later, or unanswered when it was sent: the server may have charged this since
    held: float  # not answered yet
    calls_since: int
    calls_open: int
    blurred: bool  # later calls were refused, and are at most partly charged


class ReportedBucket:
    """The bucket of one limit (units per minute), whose level follows the server's.

    Args:
        rounded: whether remaining figures may be rounded; the first unrounded one disproves it.
        charged_at_end: whether calls are charged when they end, as output is, instead of when they are
            admitted.
    """

    def __init__(
        self, limit: float, now: float, *, rounded: bool = False, charged_at_end: bool = False
    ) -> None:
        self.limit = limit
        self.learned_at = now  # when the limit last changed
        # last reported remainder, and when the reported call was sent
        self.remaining, self.admitted = 0.0, -math.inf
        self.uncharged = 0.0  # amount in flight at that time and charged later
        self.ends = -math.inf  # time of the reported reset
        self.is_window = False  # nothing refills before the reset
        self._charge_ratio = 1.0  # units charged per expected unit
        self._charge_per_call = 0.0  # units charged per call
        self._charged_more = self._per_call = False
        self._ratio_error = self._per_call_error = 0.0
        self.bucket = Bucket(used_capacity(limit), used_rate(limit), now, level=0.0)
        self._capacity, self._rate = limit, limit / _MINUTE_SECONDS
        self._charged_at_end = charged_at_end
        self._claimed_share = 1.0  # share of the refill
        self._gave_way_at = -math.inf
        self._reported_at = now
        self._counted_from = 0  # order of the first call included in the level
        self._follows_server = False
        self._longest_wait = _HOUR_SECONDS
        self._rounding = min(_ROUNDED_TO / 2.0, _ROUNDING_SHARE * limit) if rounded else 0.0
        self._last_order = -1
        self._last_reading: tuple[float, SentAround] | None = None
        self._charged = self._expected = self._calls = 0.0

    def look(self, now: float, cost: float) -> float:
        """Return the earliest time a call may be sent.

        A debt that would delay the call for hours is written off, because no limit per minute causes such a
        delay.
        """
        ready = self.bucket.look(now, self.needed(cost) if self._charged_more else cost)
        too_long = ready - now - self._longest_wait
        if too_long <= 0.0:
            return ready
        self.bucket.level += too_long * self.bucket.rate
        return now + self._longest_wait

    def take(self, now: float, cost: float) -> None:
        self.bucket.take(now, self.needed(cost) if self._charged_more else cost)

    def correct(self, now: float, order: int, expected: float, actual: float) -> None:
        """Correct the amount taken by call number ``order`` to the amount used, 0 if it was never admitted.

        Nothing is returned if the server charges more than that.
        """
        if order < self._counted_from:
            return
        taken = self.needed(expected)
        if self._charged_more and actual > 0.0:
            actual = max(actual, taken)
        self.bucket.return_surplus(now, taken - actual)

    def lacks(self, reading: LimitReading, cost: float) -> bool:
        return reading.remaining is not None and reading.remaining < self.needed(cost) + self._rounding

    def needed(self, cost: float) -> float:
        return self._price(cost, 1.0) if self._charged_more else cost

    def _price(self, cost: float, calls: float) -> float:
        if self._charged_more and self._per_call:
            return self._charge_per_call * calls
        return self._charge_ratio * cost

    def learn(self, reading: LimitReading, trace: SentAround, now: float, *, alone: bool = True) -> None:
        """Follow a report. Only a process that is ``alone`` can infer from it how much the server charges per
        call."""
        if trace.order < self._last_order:  # the call is older than that of the last report
            return
        self._last_order = trace.order
        if reading.limit is not None and reading.limit != self.limit:
            self._adopt_limit(reading.limit, now)
        if reading.remaining is None:
            return
        if reading.remaining % _ROUNDED_TO:
            self._rounding = 0.0
        if reading.reset:
            self._compare_ends(reading.remaining, trace.started + reading.reset, reading.rounded_to)
        self.remaining, self.admitted = max(0.0, reading.remaining - self._rounding), trace.started
        self.uncharged = trace.open - trace.since if self._charged_at_end else 0.0
        self._resize(reading, now)
        if alone:
            self._measure_charges(reading.remaining, trace)
        else:
            self._last_reading = None
        self._correct_level(reading.remaining, trace, now)

    def _compare_ends(self, remaining: float, ends: float, rounded_to: float) -> None:
        """Distinguish a window from a bucket; each call postpones the time at which a bucket is full.

        Unless many units were used, the delay may be less than the rounding of a reset.
        """
        used = self.remaining - remaining
        if used >= 1.0 and abs(ends - self.ends) + rounded_to < _SAME_END_SHARE * used / self._rate:
            self.is_window = True
        self.ends = ends

    def _adopt_limit(self, limit: float, now: float) -> None:
        self.limit = self._capacity = limit
        self._rate = limit / _MINUTE_SECONDS
        self.learned_at = now
        self._last_reading = None
        self._charged = self._expected = self._calls = 0.0
        self._claimed_share = 1.0
        self._shape(now)

    def empty(self, now: float, sent: int) -> None:
        self.bucket.look(now, 0.0)
        self.bucket.level = min(self.bucket.level, 0.0)
        self._counted_from = sent + 1

    def give_way(self, now: float) -> None:
        """Claim less of the limit, because a refusal that the level does not explain shows that others use
        it too.

        Units that they do not use are not lost, because the reports show them.
        """
        lone = now - self._gave_way_at > _LONE_SECONDS
        self._gave_way_at = now
        self._claimed_share = max(_MIN_CLAIM, (_LONE_DECREASE if lone else _DECREASE) * self._claimed_share)
        self._shape(now)

    @property
    def is_spaced(self) -> bool:
        return self.bucket.capacity <= spaced_capacity(self.bucket.rate)

    def space(self, now: float) -> None:
        self.bucket.reshape(now, spaced_capacity(self.bucket.rate), self.bucket.rate)

    def _resize(self, reading: LimitReading, now: float) -> None:
        assert reading.remaining is not None
        rate, size = self.limit / _MINUTE_SECONDS, self.limit
        if reading.reset is not None:
            self._longest_wait = _DAY_SECONDS if reading.reset > _HOUR_SECONDS else _HOUR_SECONDS
            used = self.limit - reading.remaining
            # 1. The limit is counted over a longer period, so it refills more slowly.
            if reading.reset > _MAX_MINUTE_SECONDS and used > 0.0:
                rate = min(rate, used / reading.reset)
            # 2. The full bucket is well below the limit, so that is its capacity.
            else:
                full = reading.remaining + rate * reading.reset
                if full < _SMALLER_CAPACITY_SHARE * self.limit:
                    size = max(full, 1.0)
        if size != self._capacity or rate != self._rate or self._claimed_share < 1.0:
            self._capacity, self._rate = size, rate
            if self._claimed_share < 1.0:
                self._reclaim(now)
            self._shape(now)
        self._reported_at = max(self._reported_at, now)

    def _reclaim(self, now: float) -> None:
        """Claim more again; the claim grows faster the longer no refusal occurs."""
        more = _RECLAIMED_SHARE * (1.0 + ((now - self._gave_way_at) / _RECLAIM_SCALE_SECONDS) ** 2)
        # A thread that read the clock before another one must not lower the claim.
        passed = min(max(0.0, now - self._reported_at), 1.0)
        self._claimed_share = min(1.0, self._claimed_share + more * passed)

    def _shape(self, now: float) -> None:
        self.bucket.reshape(
            now, used_capacity(self._capacity), self._claimed_share * used_rate(self._rate * _MINUTE_SECONDS)
        )

    def _measure_charges(self, remaining: float, trace: SentAround) -> None:
        """Compare the charged amount between two reports with the expected one.

        The server charges in proportion to the expected units, or per call if it charges an output cap. The
        explanation with the smaller squared error applies.
        """
        last, self._last_reading = self._last_reading, None if trace.blurred else (remaining, trace)
        if last is None or trace.blurred:
            return
        before, earlier = last
        refilled = before + max(0.0, trace.started - earlier.started) * self._rate
        charged = min(refilled, self._capacity) - remaining
        cost, calls = trace.mark - earlier.mark, trace.order - earlier.order
        if self._calls:
            self._ratio_error += (charged - self._charge_ratio * cost) ** 2
            self._per_call_error += (charged - self._charge_per_call * calls) ** 2
        self._charged += charged
        self._expected += cost
        self._calls += calls
        if self._expected > max(self.limit, _REMEMBERED_CALLS * trace.held):
            self._charged /= 2.0
            self._expected /= 2.0
            self._calls /= 2.0
            self._ratio_error /= 2.0
            self._per_call_error /= 2.0
        prior = _PRIOR_SHARE * self.limit
        self._charge_ratio = min(max(0.0, self._charged + prior) / (self._expected + prior), _MAX_RATIO)
        self._charge_per_call = max(0.0, self._charged / self._calls) if self._calls else 0.0
        self._charged_more = self._charge_ratio > _CHARGED_MORE_RATIO
        self._per_call = self._per_call_error < self._ratio_error

    def _correct_level(self, remaining: float, trace: SentAround, now: float) -> None:
        """Move the level into the range from certain to likely, as described in the module docstring."""
        bucket = self.bucket
        bucket.look(now, 0.0)
        rounding = self._rounding
        likely = remaining + (now - trace.started) * bucket.rate - self._price(trace.since, trace.calls_since)
        likely = max(likely, -self._capacity)  # no server's debt exceeds one minute's refill
        most = self._price(trace.open, trace.calls_open) if self._charged_more else trace.open
        certain = remaining - rounding - most
        if not self._follows_server:  # only one figure is known so far
            self._follows_server = True
            bucket.level = certain if self._charged_at_end else likely - rounding
            self._counted_from = 0 if self._charged_at_end else trace.order + 1
        elif bucket.level > likely + rounding:
            bucket.level = likely + rounding
        if certain > bucket.level:
            bucket.level = certain
        bucket.level = min(bucket.level, bucket.capacity)
