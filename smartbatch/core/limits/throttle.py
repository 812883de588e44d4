"""The adaptive throttle: a rate at which calls are sent while a part of them fails.

A provider that fails a part of the calls is either overloaded, and then fewer calls fail fewer, or it fails
at random, and then fewer calls only take longer. Which of the two it is, is found out by a trial: the rate is
lowered for one measurement, and stays lower only where the share of accepted calls rose by at least half of
what an overload would make it rise.

The two usual rules do not tell the cases apart. Additive increase, multiplicative decrease (AIMD, as in TCP)
sends a third of what passes when 30 % fail at random; the SRE book's client-side throttling with K = 2 stops
when more than half fail. Both were simulated next to this one: see docs/decisions/0042.
"""

from __future__ import annotations

import math

from attrs import define, field

from smartbatch.core.limits.token_bucket import Bucket, spaced_capacity

_USUAL = 0.1
"""Share of failures up to which nothing is tried."""

_CALLS, _ACCEPTED, _FAILURES = 40, 20, 10
"""A measurement has so many calls and accepted ones; a trial needs so many failures as its reason."""

_PRECISION = 20.0
"""A trial has this many calls by share of failures, so that a share of 10 % is measured to some 2 %."""

_LONGEST, _LATENCIES = 5.0, 5.0
"""A measurement with fewer calls ends after this many seconds and this many times the usual latency."""

_LOWEST_SHARE = 0.4
"""Of the rate sent before, which a trial keeps at least."""

_SLOWEST = 0.2
"""Calls a second, at least."""

_QUICKLY, _CAREFULLY = 1.4, 0.05
"""Growth of a lowered rate with each good measurement: by 40 % far from the rate that was too high; near it
by 5 %, and twice as much with each further good one."""

_FULL = 0.999
"""Share of its capacity that a bucket holds which held nothing back."""

_KNOWN = 0.9
"""Share of a cohort's calls whose ends are waited for: some take many times as long as others."""

_NEAR = (0.75, 1.2)
"""Near, in shares of that rate; beyond it is forgotten."""

_PAUSE, _LONGEST_PAUSE = 4.0, 64.0
"""After a trial that did not help, the next one waits for so many times as long as the trial took; doubled by
each, reset by one that helped. So trials that do not help cost at most some 8 %, and soon less than 1 %."""

_WEIGHT = 0.1
"""Of the latest call in the mean latency."""


@define
class _Cohort:
    """The calls that began in one span of time, and how they ended.

    Only calls that began together are compared: failures arrive sooner than answers, so among those that
    ended together there are too many of them.
    """

    began: float = math.inf  # when its first call did
    ended: float = math.inf
    calls: int = 0
    delayed: int = 0  # by the rate
    accepted: int = 0
    failed: int = 0

    @property
    def outcomes(self) -> int:
        return self.accepted + self.failed

    @property
    def rate(self) -> float:
        """Calls a second."""
        return self.calls / max(self.ended - self.began, 1e-9)


@define(eq=False)
class AdaptiveThrottle:
    """Holds calls back to a rate that it finds, or not at all. Every call that began ends once.

    Attributes:
        latency: mean seconds of accepted calls; 0 while there was none.
    """

    latency: float = field(default=0.0, init=False)
    _bucket: Bucket | None = field(default=None, init=False)
    _cohort: _Cohort = field(init=False, factory=_Cohort)
    _before: tuple[Bucket | None, float, float] | None = field(default=None, init=False)
    _too_high: float = field(default=math.inf, init=False)
    _next_trial: float = field(default=-math.inf, init=False)
    _pause: float = field(default=_PAUSE, init=False)
    _good: int = field(default=0, init=False)  # measurements in a row

    @property
    def rate(self) -> float | None:
        """Calls a second that go at most; ``None`` without a bound."""
        return None if self._bucket is None else self._bucket.rate

    def look(self, now: float) -> float:
        """Return the earliest time a call may go."""
        return now if self._bucket is None else self._bucket.look(now, 1.0)

    def take(self, now: float) -> None:
        """Count a call that begins now."""
        cohort, bucket = self._cohort, self._bucket
        if cohort.calls == 0:
            cohort.began = now
        if cohort.ended == math.inf:
            cohort.calls += 1
            cohort.delayed += bucket is not None and bucket.level < _FULL * bucket.capacity
        if bucket is not None:
            bucket.take(now, 1.0)

    def end(self, began: float, now: float, *, accepted: bool | None) -> None:
        """Count the end of a call; the last one of a cohort decides on the rate.

        1. The call belongs to another cohort: it does not count.
        2. The cohort is open: it closes when it has enough calls and lasted a latency, or after some seconds.
        3. It is closed and more than a tenth of its calls are under way: wait for them.
        4. The rest counts as accepted: judge it (:meth:`_judge`), and begin the next one.

        Args:
            began: when it was taken.
            accepted: ``None`` when it was never made, or says nothing about the provider's health.
        """
        if accepted:
            self.latency += (now - began - self.latency) * (_WEIGHT if self.latency else 1.0)
        cohort = self._cohort
        if not cohort.began <= began < cohort.ended:
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
        if cohort.outcomes >= _KNOWN * cohort.calls:
            self._judge(cohort, now)
            self._cohort = _Cohort()

    def restart(self) -> None:
        """Forget what is being measured: the breaker changed its state, and nothing compares over that."""
        if self._before is not None:
            self._bucket = self._before[0]
            self._before = None
        self._cohort = _Cohort()

    def _is_enough(self, cohort: _Cohort, now: float) -> bool:
        seconds, needed = now - cohort.began, float(_CALLS)
        if self._before is not None and not self._is_clear(cohort, seconds):
            needed = max(needed, _PRECISION / self._before[2])
        if cohort.outcomes >= needed and cohort.accepted >= _ACCEPTED:
            return seconds >= self.latency
        return cohort.outcomes >= _CALLS / 2 and seconds >= _LONGEST + _LATENCIES * self.latency

    def _is_clear(self, cohort: _Cohort, seconds: float) -> bool:
        """Whether a trial shows already, by twice the standard error, whether it helps."""
        if self._before is None or not cohort.outcomes:
            return False
        _, rate, failed = self._before
        accepted = cohort.accepted / cohort.outcomes
        error = math.sqrt(failed * (1.0 - failed) / cohort.outcomes)
        reduction = rate * seconds / max(cohort.calls, cohort.outcomes)
        return abs(accepted - _wanted(reduction, failed)) > 2.0 * error

    def _judge(self, cohort: _Cohort, now: float) -> None:
        """Decide on the rate. The cases, in order:

        1. A trial that helped: the lower rate stays, and case 3 may follow at once.
        2. A trial that did not: the rate of before, and the next trial after a pause.
        3. Too many fail: a trial, at the rate of accepted calls, or 40 % of the calls where that is more.
        4. Too many fail, and a lower rate did not help lately: a rate that was lowered before grows quickly.
        5. Few fail and the rate held calls back: it grows, the quicker the longer that lasts.
        6. Few fail and the rate held nothing back: no bound any more.
        """
        share = cohort.failed / max(cohort.calls, 1)
        if self._before is not None:
            bucket, rate, failed = self._before
            self._before = None
            if not (1.0 - share) >= _wanted(rate / cohort.rate, failed) or rate <= cohort.rate:
                self._bucket = bucket
                self._next_trial = now + self._pause * (now - cohort.began)
                self._pause = min(2.0 * self._pause, _LONGEST_PAUSE)
                return
            self._too_high, self._pause, self._good = rate, _PAUSE, 0
        if share > _USUAL:
            self._good = 0
            if now >= self._next_trial:
                if cohort.failed >= _FAILURES:
                    self._before = (self._bucket, cohort.rate, share)
                    self._set(max(_LOWEST_SHARE, 1.0 - share) * cohort.rate, now)
            elif self._bucket is not None:
                self._set(self._bucket.rate * _QUICKLY, now)
        elif self._bucket is not None and cohort.delayed > 0.6 * cohort.calls:
            low, high = (self._too_high * near for near in _NEAR)
            rate = self._bucket.rate
            carefully = min(1.0 + _CAREFULLY * 2.0**self._good, _QUICKLY)
            self._set(rate * (carefully if low < rate < high else _QUICKLY), now)
            self._good += 1
            if rate > high:
                self._too_high = math.inf
        else:
            self._bucket = None

    def _set(self, rate: float, now: float) -> None:
        rate = max(rate, _SLOWEST)
        level = 0.0 if self._bucket is None else self._bucket.level
        self._bucket = Bucket(spaced_capacity(rate), rate, now, level=level)


def _wanted(reduction: float, failed: float) -> float:
    """Return the share of accepted calls that shows that so many times fewer calls helped."""
    return (1.0 + (reduction - 1.0) / 2.0) * (1.0 - failed)
