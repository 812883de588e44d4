"""One limit as the provider itself reports it: how much a minute, and how much is left.

A report is news from the moment the server admitted a call. What this client sent later is not in it, so the
level is corrected to *remaining, plus the refill since, less what was sent since*. Two such figures bracket
the truth:

* the **likely** level counts what left after the reported call. The own level never stays above it, whoever
  used the difference: other clients, or a server that charges more than was expected;
* the **certain** level takes off whatever the server may have charged since then, without any refill. The own
  level is raised to it, for a server that charges less than was expected.

No threads and no clock here: the caller holds one lock and passes ``now``.
"""

from __future__ import annotations

from typing import NamedTuple

from smartbatch.core.limits.bucket import Bucket, spaced_capacity, used_capacity, used_rate

__all__ = ["ReportedBucket", "Said", "Trace"]

_MINUTE = 60.0
_LONGER = 66.0
"""A minute's limit is full again within 60 s. One that needs more than 66 s (10 % for clocks that differ)
is counted over a longer time, as some tiers' requests a day are, and refills by what the reset says."""

_SMALLER = 0.9
"""A reset that leaves the bucket below this share of the limit tells its true size; above, it is rounding."""

_GRAIN = 1000.0
_ROUNDED = 0.05
"""Anthropic rounds the tokens that remain to the nearest thousand, so what it says is right to 500. For that
matter no figure of a limit is doubted by more than 5 % of it, or small limits would never open."""

_DOUBT = 0.01
"""Share of the limit that must be used before the ratio of charged to expected is worth half a belief."""

_REMEMBERED = 8.0
"""The ratio rests on the last half to one limit's worth of calls, or on this many times what is in flight,
so that charges that come late do not look like charges that are not there."""

_DEARER = 1.15
"""From this ratio on calls are booked at what the server charges; below, its reports correct it in time."""

_DEAREST = 50.0
"""An output cap of 4,096 tokens that the server charges against some 80 expected."""

_DECREASE = 0.7
_REGAIN = 0.01
_LEAST = 0.05
"""Clients that share a limit claim 0.7 of what they claimed after a refusal, and 1 % of the limit more with
each second: between two clients that is a refusal each 15 s."""


class Said(NamedTuple):
    """What a report says about one limit: a minute's limit, what is left, seconds until it is full."""

    limit: float | None
    remaining: float | None
    reset: float | None


class Trace(NamedTuple):
    """What this client had sent around the call a report came with, in the units of one limit.

    Attributes:
        started: when the call left.
        order: its number among all calls of the quota.
        mark: what was sent until then, this call included.
        since: what was sent after it.
        open: what was sent after it, or was unanswered when it left: all the server may have charged since.
        held: what is unanswered now.
        calls_since, calls_open: ``since`` and ``open`` in calls.
        blurred: whether calls were refused since it left. Those are not charged, or not in full.
    """

    started: float
    order: int
    mark: float
    since: float
    open: float
    held: float
    calls_since: int
    calls_open: int
    blurred: bool


class ReportedBucket:
    """The bucket of one limit, following the server's.

    Attributes:
        bucket: what :meth:`look` and :meth:`take` ask; its level is the server's as far as it is known.
        limit: a minute.
        learned_at: when the limit was last news.

    Args:
        limit: a minute.
        now: monotonic seconds.
        rounded: whether what remains may be rounded; a figure that is not ends the doubt.
        late: whether calls are charged when they end, as output is, and not when they are admitted.
    """

    __slots__ = (
        "_booked_from",
        "_calls",
        "_charged",
        "_counted",
        "_dear",
        "_each",
        "_flat",
        "_follows",
        "_heard_at",
        "_last",
        "_late",
        "_missed",
        "_missed_flat",
        "_order",
        "_part",
        "_rate",
        "_ratio",
        "_rounding",
        "_size",
        "bucket",
        "learned_at",
        "limit",
    )

    def __init__(self, limit: float, now: float, *, rounded: bool = False, late: bool = False) -> None:
        self.limit = limit
        self.learned_at = now
        self._ratio = 1.0  # charged for each unit expected
        self._each = 0.0  # charged for each call
        self._dear = self._flat = False
        self._missed = self._missed_flat = 0.0
        self.bucket = Bucket(used_capacity(limit), used_rate(limit), now, level=0.0)
        self._size, self._rate = limit, limit / _MINUTE
        self._late = late
        self._part = 1.0  # of the refill that is claimed
        self._heard_at = now
        self._booked_from = 0  # number of the first call that is in the level
        self._follows = False
        self._rounding = min(_GRAIN / 2.0, _ROUNDED * limit) if rounded else 0.0
        self._order = -1
        self._last: tuple[float, Trace] | None = None  # remaining
        self._charged = self._counted = self._calls = 0.0

    def look(self, now: float, cost: float) -> float:
        """Return the earliest time a call that is expected to need ``cost`` may go."""
        return self.bucket.look(now, self._price(cost, 1.0) if self._dear else cost)

    def take(self, now: float, cost: float) -> None:
        """Book a call."""
        self.bucket.take(now, self._price(cost, 1.0) if self._dear else cost)

    def settle(self, now: float, order: int, expected: float, actual: float) -> None:
        """Correct a booked call to what it used; a server that charges more than that does not give back."""
        if order < self._booked_from:
            return
        booked = expected
        if self._dear:
            booked = self._price(expected, 1.0)
            if actual > 0.0:
                actual = max(actual, booked)
        self.bucket.settle(now, booked - actual)

    def lacks(self, said: Said, cost: float) -> bool:
        """Whether ``said`` explains that a call that needs ``cost`` was refused."""
        needed = self._price(cost, 1.0) if self._dear else cost
        return said.remaining is not None and said.remaining < needed + self._rounding

    def _price(self, cost: float, calls: float) -> float:
        """Return what the server will charge for so many calls that are expected to need ``cost``."""
        return self._each * calls if self._dear and self._flat else self._ratio * cost

    def learn(self, said: Said, trace: Trace, now: float) -> None:
        """Follow a report. One older than another that was heard already is no news."""
        if trace.order < self._order:
            return
        self._order = trace.order
        if said.limit is not None and said.limit != self.limit:
            self._adopt(said.limit, now)
        if said.remaining is None:
            return
        if said.remaining % _GRAIN:
            self._rounding = 0.0
        self._resize(said, now)
        self._weigh(said.remaining, trace)
        self._correct(said.remaining, trace, now)

    def _adopt(self, limit: float, now: float) -> None:
        self.limit = self._size = limit
        self._rate = limit / _MINUTE
        self.learned_at = now
        self._last = None
        self._charged = self._counted = self._calls = 0.0
        self._part = 1.0
        self._shape(now)

    def empty(self, now: float, sent: int) -> None:
        """The server refused and says no more than its limit: nothing is left for any of the calls sent."""
        self.bucket.look(now, 0.0)
        self.bucket.level = min(self.bucket.level, 0.0)
        self._booked_from = sent + 1

    def give_way(self, now: float) -> None:
        """Refused although the level allowed the call: others use the limit, too, so claim less of it.

        What they leave is not lost: the reports show it.
        """
        self._part = max(_LEAST, _DECREASE * self._part)
        self._shape(now)

    def space(self, now: float) -> None:
        """The server's bucket does not fill up: no bursts."""
        self.bucket.reshape(now, spaced_capacity(self.bucket.rate), self.bucket.rate)

    def _resize(self, said: Said, now: float) -> None:
        """Find the bucket's own size and speed, where the reset shows that they are not the limit's."""
        assert said.remaining is not None
        rate, size = self.limit / _MINUTE, self.limit
        if said.reset is not None:
            used = self.limit - said.remaining
            if said.reset > _LONGER and used > 0.0:
                rate = min(rate, used / said.reset)
            else:
                full = said.remaining + rate * said.reset
                if full < _SMALLER * self.limit:
                    size = max(full, 1.0)
        if size != self._size or rate != self._rate or self._part < 1.0:
            self._size, self._rate = size, rate
            self._part = min(1.0, self._part + _REGAIN * min(now - self._heard_at, 1.0))
            self._shape(now)
        self._heard_at = now

    def _shape(self, now: float) -> None:
        self.bucket.reshape(now, used_capacity(self._size), self._part * used_rate(self._rate * _MINUTE))

    def _weigh(self, remaining: float, trace: Trace) -> None:
        """Compare what the server charged between two reports with what was expected."""
        last, self._last = self._last, None if trace.blurred else (remaining, trace)
        if last is None or trace.blurred:
            return
        before, earlier = last
        refilled = before + max(0.0, trace.started - earlier.started) * self._rate
        charged = min(refilled, self._size) - remaining
        cost, calls = trace.mark - earlier.mark, trace.order - earlier.order
        if self._calls:
            self._missed += (charged - self._ratio * cost) ** 2
            self._missed_flat += (charged - self._each * calls) ** 2
        self._charged += charged
        self._counted += cost
        self._calls += calls
        if self._counted > max(self.limit, _REMEMBERED * trace.held):
            self._charged /= 2.0
            self._counted /= 2.0
            self._calls /= 2.0
            self._missed /= 2.0
            self._missed_flat /= 2.0
        doubt = _DOUBT * self.limit
        self._ratio = min(max(0.0, self._charged + doubt) / (self._counted + doubt), _DEAREST)
        self._each = max(0.0, self._charged / self._calls) if self._calls else 0.0
        self._dear = self._ratio > _DEARER
        # what is charged beyond the expectation is often the same for all, as an output cap is
        self._flat = self._missed_flat < self._missed

    def _correct(self, remaining: float, trace: Trace, now: float) -> None:
        bucket = self.bucket
        bucket.look(now, 0.0)
        rounding = self._rounding
        likely = remaining + (now - trace.started) * bucket.rate - self._price(trace.since, trace.calls_since)
        likely = max(likely, -self._size)  # a server is not in debt for more than it gives in a minute
        most = self._price(trace.open, trace.calls_open) if self._dear else trace.open
        certain = remaining - rounding - most
        if not self._follows:  # the first figure is all there is to know
            self._follows = True
            bucket.level = certain if self._late else likely - rounding
            self._booked_from = 0 if self._late else trace.order + 1
        elif bucket.level > likely + rounding:
            bucket.level = likely + rounding
        if certain > bucket.level:
            bucket.level = certain
        bucket.level = min(bucket.level, bucket.capacity)
