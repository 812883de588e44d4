"""What can be chosen from now: routes in real time and the Batch API, each with its speed and price."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

from attrs import evolve, field, frozen

from smartbatch.core.forecast import LATEST, Times
from smartbatch.core.routing.workload import Cost
from smartbatch.types import Route

_FIVE = ((0.0469, 0.1185), (0.2308, 0.2393), (0.5, 0.2844), (0.7692, 0.2393), (0.9531, 0.1185))
"""Levels and weights of Gauss-Legendre quadrature: the mean of a distribution by five quantiles."""
_WIDEST = 2.0
"""The widest standard deviation of log seconds; wider ones have a mean that few calls would reach."""
_HIGHEST = 1 - 1e-9
_NORMAL = NormalDist()
_MANY = 1000
"""Rounds that are counted one by one."""
_TINY = 1e-9
"""USD by which sums of floats may miss."""


@frozen
class Throughput:
    """How fast a route in real time answers.

    Attributes:
        call: how long one call takes that carries ``per_call`` requests.
        parallelism: calls at a time.
        per_call: requests a call, 1 or more.
        ahead: requests that wait already and go first.
        tokens: tokens of one request, input and output.
        rpm, tpm: calls and tokens a minute; infinity where no limit is known.
    """

    call: Times
    parallelism: int
    per_call: int = 1
    ahead: int = 0
    tokens: float = 0.0
    rpm: float = math.inf
    tpm: float = math.inf

    def calls(self, requests: int) -> int:
        return math.ceil(requests / self.per_call)

    def quota(self, requests: int) -> float | None:
        """Return the share of the limits that ``requests`` use while they run; ``None`` without a limit."""
        if self.rpm == self.tpm == math.inf or not requests:
            return None
        # limits are per minute: a shorter list uses no larger share
        minutes = max(self.finish(requests, 0.5) / 60, 1.0)
        shares = self.calls(requests) / (self.rpm * minutes), requests * self.tokens / (self.tpm * minutes)
        return min(1.0, max(shares))

    def finish(self, requests: int, q: float) -> float:
        """Return the seconds within which a share ``q`` of such lists is answered.

        1. No more calls than workers: the slowest of independent calls.
        2. More calls than workers: the time until the last call begins plus the time until the slowest of the
           calls in flight then ends. The first is a sum, taken as lognormal; the error of a call's mean adds
           up over the list instead of evening out, so it is part of its spread. The deviations of the two
           from their medians are independent, so their squares add up.
        3. Rate limits are the bottleneck: the time at which they let the last call begin, plus that call.
        """
        if requests <= 0:
            return 0.0
        size = min(self.per_call, requests)
        calls = self.calls(self.ahead + requests)
        if calls <= self.parallelism:
            working = self.call.quantile(q ** (1 / calls), size)
        else:
            middle, sigma, width = self._before_last(calls, size)
            slow = self.call.quantile(_end(0.5, calls, self.parallelism, width), size)
            slowest = self.call.quantile(_end(q, calls, self.parallelism, width), size)
            off = math.hypot(middle * math.expm1(normal_quantile(q) * sigma), slowest - slow)
            working = max(0.0, middle + slow + math.copysign(off, q - 0.5))
        return max(working, self._limited(calls, requests) + self.call.quantile(q, size))

    def expected(self, requests: int) -> float:
        """Return the mean of what :meth:`finish` says; that of the slowest call by five points."""
        if requests <= 0:
            return 0.0
        size = min(self.per_call, requests)
        calls = self.calls(self.ahead + requests)
        if calls <= self.parallelism:
            working = sum(part * self.call.quantile(q ** (1 / calls), size) for q, part in _FIVE)
        else:
            middle, sigma, width = self._before_last(calls, size)
            levels = [(_end(q, calls, self.parallelism, width), part) for q, part in _FIVE]
            working = middle * math.exp(sigma * sigma / 2)
            working += sum(part * self.call.quantile(level, size) for level, part in levels)
        return max(working, self._limited(calls, requests) + self.call.expected(size))

    def _before_last(self, calls: int, size: int) -> tuple[float, float, float]:
        """Return the median and the log deviation of the time until the last of ``calls`` begins, and the log
        deviation of one call.

        All calls together take ``calls`` means. Subtracted is what remains when the last one begins: that
        call, and of each other in flight its rest, which is ``(1 + variance / mean ** 2) / 2`` means on
        average.
        """
        each, uncertainty = self.call.expected(size), self.call.uncertainty()
        middle, high = self.call.quantile(0.5, size), self.call.quantile(0.95, size)
        width = round(20 * math.log(high / middle) / normal_quantile(0.95)) / 20 if middle > 0 else 0.0
        width = min(_WIDEST, width)
        spread = math.expm1(width * width)
        begun = calls - 1 - (self.parallelism - 1) * min(calls / self.parallelism, (1 + spread) / 2)
        sigma = math.sqrt(uncertainty * uncertainty + math.log1p(spread / calls))
        return begun / self.parallelism * each * math.exp(-sigma * sigma / 2), sigma, width

    def _limited(self, calls: int, requests: int) -> float:
        """Return the seconds until the rate limits let the last call begin."""
        tokens = (self.ahead + requests) * self.tokens
        by_calls = max(0.0, calls - 1) * 60 / self.rpm
        by_tokens = max(0.0, tokens - tokens / max(1, calls)) * 60 / self.tpm
        return max(by_calls, by_tokens)


@lru_cache(maxsize=64)
def normal_quantile(q: float) -> float:
    """Return a quantile of the standard normal distribution; computing one takes microseconds."""
    return _NORMAL.inv_cdf(q)


def _end(q: float, calls: int, workers: int, width: float) -> float:
    """Return the quantile of a call's time within which a share ``q`` of lists ends after its last call
    began.

    It is never beyond the slowest of all calls; of many calls, the rest of those in flight is less.
    """
    return float(min(q ** (1 / calls), _left(q, workers, width)))


@lru_cache(maxsize=4096)
def _left(q: float, workers: int, width: float) -> float:
    """Return the quantile within which all calls in flight end, in a share ``q`` of cases, when the last
    begins.

    The last call is as long as any. Of the others the rest remains, of which a share of
    ``(mean beyond x) / mean`` is longer than ``x``. Solved by bisection for lognormal times.
    """
    low, high = -8.0, 8.0
    for _ in range(30):
        z = (low + high) / 2
        longer = _NORMAL.cdf(width - z) - math.exp(width * z - width * width / 2) * _NORMAL.cdf(-z)
        within = _NORMAL.cdf(z) * (1 - min(1.0, max(0.0, longer))) ** (workers - 1)
        low, high = (low, z) if within > q else (z, high)
    return min(_HIGHEST, max(1 - _HIGHEST, _NORMAL.cdf(high)))


@frozen
class Offer:
    """A route in real time that is open now.

    Attributes:
        cost: of the whole list; ``None`` where the price is unknown.
        share: its price as a share of the standard one, which ranks routes whose price is unknown.
        open: False for a route that is not offered, only compared with.
    """

    route: Route
    throughput: Throughput
    cost: Cost | None
    share: float = 1.0
    open: bool = True


@frozen
class BatchOffer:
    """The Batch API, open now.

    Attributes:
        times: of one batch, from its creation until its results are there.
        cost: of the requests that a job sends; as in :class:`Offer`.
        alone: what these cost in real time; of importance where it is less than the list does.
        cancelling: how long a cancelled batch takes to end; ``None`` for none.
        most: most requests of one batch.
        at_a_time: batches the enqueued quota takes at a time.
        share: as in :class:`Offer`.
        seen: whether any batch was observed; where none was, one is tried if it is likely to be better.
    """

    times: Times
    cost: Cost | None
    alone: Cost | None = field(default=None, kw_only=True)
    cancelling: Times | None = None
    most: int = 5000
    at_a_time: float = math.inf
    share: float = 0.5
    seen: bool = True

    def cancel(self, sure: float) -> float:
        """Return the seconds within which a share ``sure`` of cancelled batches has ended."""
        return 0.0 if self.cancelling is None else self.cancelling.quantile(sure, 1)

    def batches(self, requests: int) -> int:
        return math.ceil(requests / self.most)

    def _schedule(self, requests: int) -> tuple[int, int]:
        """Return how many batches run at a time, and how many rounds of them it takes."""
        batches = self.batches(requests)
        parallel = int(min(batches, self.at_a_time))
        return parallel, math.ceil(batches / parallel)

    def finish(self, requests: int, q: float) -> float:
        """Return the seconds within which a share ``q`` of such lists is answered: by the slowest batch.

        A batch ends within a day at all providers, if need be by its expiry.
        """
        parallel, rounds = self._schedule(requests)
        slowest = self.times.quantile(q ** (1 / parallel), min(requests, self.most))
        return rounds * min(slowest, LATEST)

    def expected(self, requests: int) -> float:
        """Return the mean by five points. The longest tenth counts as its shortest: little of it is ever
        observed, and a prior about it must not outweigh a dozen observed batches."""
        return sum(self.finish(requests, q) for q in (0.1, 0.3, 0.5, 0.7, 0.9)) / 5

    def chance(self, seconds: float, requests: int) -> float:
        """Return how likely all of ``requests`` are answered within ``seconds``."""
        parallel, rounds = self._schedule(requests)
        return self.times.chance(seconds / rounds, min(requests, self.most)) ** parallel

    def part(self, seconds: float, requests: int) -> float:
        """Return the share of ``requests`` that are answered within ``seconds``, on average."""
        _, rounds = self._schedule(requests)
        return self.times.chance(seconds / rounds, min(requests, self.most))


@frozen
class Rounds:
    """How a budget cuts a list that goes by batch: what it can cost at most is held back, so not all fits at
    once. What fits is sent, and as it turns out cheaper, more is.

    This is the arithmetic of :mod:`smartbatch.jobs.job_budget`, with every request taken for an average one.

    Attributes:
        room: USD that may be held back.
        most: USD that is held back for a request.
        fit: requests that there is room for at first.
        count: how often something is sent.
        unsent: requests that there will be no room for.
    """

    room: float
    most: float
    fit: int
    count: int
    unsent: int

    def cut(self, offer: BatchOffer, requests: int) -> BatchOffer:
        """Return the offer with as many batches, and at a time, as there will be."""
        if self.count <= 1:
            return offer
        sizes = (math.ceil(requests / self.count), max(1, requests // self.count))
        each = min(sizes, key=lambda size: abs(math.ceil(requests / size) - self.count))
        parallel = math.ceil(each / offer.most)
        return evolve(offer, most=min(each, offer.most), at_a_time=min(parallel, offer.at_a_time))

    def told(self) -> str:
        """Return it in words, with the figures; nothing where all fits at once."""
        if self.count == 1 and not self.unsent:
            return ""
        held = f"up to {self.most:.6f} USD is held back for each, out of {self.room:.6f} USD"
        if not self.fit:
            return f"{held}, so there is no room for any"
        text = f"{held}, so {self.fit:,} go first, and all in {self.count:,} rounds of batches"
        return f"{text}, but for about {self.unsent:,} no room will be left" if self.unsent else text


def rounds_of(requests: int, room: float, most: float, each: float) -> Rounds:
    """Return how ``requests`` go by batch within ``room`` USD, each of which costs ``most`` at most and
    ``each`` as expected.
    """
    each, done, count, fit = min(each, most), 0, 0, 0
    first = _fitting(room, most, requests)
    while done < requests:
        fit = _fitting(room - done * each, most, requests - done)
        if not fit:
            break
        done, count = done + fit, count + 1
        if count >= _MANY:
            count, done = count + math.ceil((requests - done) / fit), requests
    return Rounds(room, most, first, count, requests - done)


def _fitting(room: float, most: float, requests: int) -> int:
    if most * requests <= room + _TINY:
        return requests
    return max(0, math.floor((room + _TINY) / most))
