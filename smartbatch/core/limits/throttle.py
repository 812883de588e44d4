"""The adaptive throttle: the rate at which calls are sent while some of them fail.

The provider is either overloaded, so that fewer calls fail less often, or it fails at random, so that fewer
calls only take longer. A trial distinguishes the two: the rate is lowered for one measurement, and stays
lower only if the share of accepted calls rises by at least half of the rise that an overload would cause.

docs/decisions/0042 compares this in simulations with the two usual rules: AIMD, which sends a third of the
possible calls if 30 % fail at random, and the SRE book's client-side throttling, which with K = 2 stops if
more than half fail.
"""

from __future__ import annotations

import math

from attrs import define, field

from smartbatch.core.limits.token_bucket import Bucket, spaced_capacity

_USUAL_SHARE = 0.1
"""Maximum share of failures at which no trial begins."""

_MIN_CALLS, _MIN_ACCEPTED, _MIN_FAILURES = 40, 20, 10
"""Minimum calls and accepted calls per measurement, and minimum failures before a trial."""

_PRECISION_CALLS = 20.0
"""A trial has this many calls divided by the share of failures, so a share of 10 % is measured to within
about 2 %."""

_MAX_SECONDS, _MAX_LATENCIES = 5.0, 5.0
"""A measurement with fewer calls ends after this many seconds plus this many times the usual latency."""

_MIN_RATE_SHARE = 0.4
"""Minimum share of the previous rate during a trial."""

_MIN_RATE = 0.2
"""Minimum calls per second."""

_FAST_GROWTH, _CAREFUL_GROWTH = 1.4, 0.05
"""Growth of a lowered rate per good measurement: 40 % if far from the rate that was too high; near it 5 %,
doubled by each further one."""

_FULL_SHARE = 0.999
"""A bucket filled to this share of its capacity delayed nothing."""

_ENDED_SHARE = 0.9
"""Share of a cohort's calls that must have ended, because some take many times as long as others."""

_NEAR_SHARES = (0.75, 1.2)
"""A rate between these shares of the one that was too high counts as near it; above them, that rate is
forgotten."""

_PAUSE_FACTOR, _MAX_PAUSE_FACTOR = 4.0, 64.0
"""After a useless trial, the next one waits for this many times the trial's duration. The factor doubles with
each useless trial and is reset by a helpful one, so useless trials soon cost less than 1 %."""

_LATENCY_WEIGHT = 0.1
"""Weight of the latest call in the mean latency."""


@define
class _Cohort:
    """The calls that began within one period, and their outcomes.

    Failures arrive sooner than answers, so calls that ended together would contain too many of them.
    """

    began: float = math.inf  # when its first call began
    ended: float = math.inf
    calls: int = 0
    delayed: int = 0  # calls delayed by the rate
    accepted: int = 0
    failed: int = 0

    @property
    def outcomes(self) -> int:
        return self.accepted + self.failed

    @property
    def rate(self) -> float:
        return self.calls / max(self.ended - self.began, 1e-9)


@define(eq=False)
class AdaptiveThrottle:
    """Limits calls to a rate that it determines, or not at all."""

    latency: float = field(default=0.0, init=False)  # mean seconds of accepted calls; 0 while unknown
    _bucket: Bucket | None = field(default=None, init=False)
    _cohort: _Cohort = field(init=False, factory=_Cohort)
    _before: tuple[Bucket | None, float, float] | None = field(default=None, init=False)
    _too_high: float = field(default=math.inf, init=False)
    _next_trial: float = field(default=-math.inf, init=False)
    _pause: float = field(default=_PAUSE_FACTOR, init=False)
    _good: int = field(default=0, init=False)  # consecutive good measurements

    @property
    def rate(self) -> float | None:
        """Calls per second; ``None`` without a limit."""
        return None if self._bucket is None else self._bucket.rate

    def look(self, now: float) -> float:
        return now if self._bucket is None else self._bucket.look(now, 1.0)

    def take(self, now: float) -> None:
        cohort, bucket = self._cohort, self._bucket
        if cohort.calls == 0:
            cohort.began = now
        if cohort.ended == math.inf:
            cohort.calls += 1
            cohort.delayed += bucket is not None and bucket.level < _FULL_SHARE * bucket.capacity
        if bucket is not None:
            bucket.take(now, 1.0)

    def end(self, began: float, now: float, *, accepted: bool | None) -> None:
        """Count the end of a call; the last one of a cohort decides on the rate.

        Args:
            began: when the call was taken.
            accepted: ``None`` if it was never made, or shows nothing about the provider's health.
        """
        if accepted:
            self.latency += (now - began - self.latency) * (_LATENCY_WEIGHT if self.latency else 1.0)
        cohort = self._cohort
        if not cohort.began <= began < cohort.ended:  # the call belongs to another cohort
            return
        if accepted is None:
            cohort.calls -= 1
        else:
            cohort.accepted += accepted
            cohort.failed += not accepted
        if cohort.ended == math.inf:
            if not self._is_enough(cohort, now):
                return
            cohort.ended = now
        # at most a tenth of its calls may still be in flight; they count as accepted
        if cohort.outcomes >= _ENDED_SHARE * cohort.calls:
            self._judge(cohort, now)
            self._cohort = _Cohort()

    def restart(self) -> None:
        """Discard the measurement, because results before and after a breaker's change of state are not
        comparable."""
        if self._before is not None:
            self._bucket = self._before[0]
            self._before = None
        self._cohort = _Cohort()

    def _is_enough(self, cohort: _Cohort, now: float) -> bool:
        seconds, needed = now - cohort.began, float(_MIN_CALLS)
        if self._before is not None and not self._is_clear(cohort, seconds):
            needed = max(needed, _PRECISION_CALLS / self._before[2])
        if cohort.outcomes >= needed and cohort.accepted >= _MIN_ACCEPTED:
            return seconds >= self.latency
        return cohort.outcomes >= _MIN_CALLS / 2 and seconds >= _MAX_SECONDS + _MAX_LATENCIES * self.latency

    def _is_clear(self, cohort: _Cohort, seconds: float) -> bool:
        """Whether the result of a trial already exceeds twice the standard error."""
        if self._before is None or not cohort.outcomes:
            return False
        _, rate, failed = self._before
        accepted = cohort.accepted / cohort.outcomes
        error = math.sqrt(failed * (1.0 - failed) / cohort.outcomes)
        reduction = rate * seconds / max(cohort.calls, cohort.outcomes)
        return abs(accepted - _wanted(reduction, failed)) > 2.0 * error

    def _judge(self, cohort: _Cohort, now: float) -> None:
        share = cohort.failed / max(cohort.calls, 1)
        if self._before is not None:
            bucket, rate, failed = self._before
            self._before = None
            # 1. The trial did not help: return to the previous rate; the next trial follows after a pause.
            if not (1.0 - share) >= _wanted(rate / cohort.rate, failed) or rate <= cohort.rate:
                self._bucket = bucket
                self._next_trial = now + self._pause * (now - cohort.began)
                self._pause = min(2.0 * self._pause, _MAX_PAUSE_FACTOR)
                return
            # 2. The trial helped: keep the lower rate; case 3 may follow.
            self._too_high, self._pause, self._good = rate, _PAUSE_FACTOR, 0
        if share > _USUAL_SHARE:
            self._good = 0
            # 3. Too many fail: try the rate of accepted calls, or 40 % of all calls if that is more.
            if now >= self._next_trial:
                if cohort.failed >= _MIN_FAILURES:
                    self._before = (self._bucket, cohort.rate, share)
                    self._set(max(_MIN_RATE_SHARE, 1.0 - share) * cohort.rate, now)
            # 4. Too many fail, but a lower rate did not help recently: a lowered rate grows quickly.
            elif self._bucket is not None:
                self._set(self._bucket.rate * _FAST_GROWTH, now)
        # 5. Few fail and the rate delayed calls: it grows, faster the longer this lasts.
        elif self._bucket is not None and cohort.delayed > 0.6 * cohort.calls:
            low, high = (self._too_high * near for near in _NEAR_SHARES)
            rate = self._bucket.rate
            carefully = min(1.0 + _CAREFUL_GROWTH * 2.0**self._good, _FAST_GROWTH)
            self._set(rate * (carefully if low < rate < high else _FAST_GROWTH), now)
            self._good += 1
            if rate > high:
                self._too_high = math.inf
        # 6. Few fail and the rate delayed nothing: remove the limit.
        else:
            self._bucket = None

    def _set(self, rate: float, now: float) -> None:
        rate = max(rate, _MIN_RATE)
        level = 0.0 if self._bucket is None else self._bucket.level
        self._bucket = Bucket(spaced_capacity(rate), rate, now, level=level)


def _wanted(reduction: float, failed: float) -> float:
    """Return the share of accepted calls from which reducing the rate by ``reduction`` counts as helpful."""
    return (1.0 + (reduction - 1.0) / 2.0) * (1.0 - failed)
