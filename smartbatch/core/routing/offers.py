"""The available routes, real time and the Batch API, with their speeds and prices."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

from attrs import evolve, field, frozen

from smartbatch._words import money
from smartbatch.core.forecast import EXPIRY_SECONDS, Times
from smartbatch.core.routing.workload import Cost
from smartbatch.types import Route

# Gauss-Legendre quadrature of the mean of a distribution from five quantiles
_FIVE_POINTS = ((0.0469, 0.1185), (0.2308, 0.2393), (0.5, 0.2844), (0.7692, 0.2393), (0.9531, 0.1185))
# standard deviation of log seconds; in a wider distribution, nearly all calls are shorter than the mean
_MAX_LOG_DEVIATION = 2.0
_MAX_LEVEL = 1 - 1e-9
_NORMAL = NormalDist()
_MAX_COUNTED_ROUNDS = 1000  # rounds that are counted one by one
_USD_TOLERANCE = 1e-9  # USD; rounding error of sums


@frozen
class Throughput:
    """The speed of a real-time route."""

    call: Times  # seconds per call with ``per_call`` requests
    parallelism: int  # concurrent calls
    per_call: int = 1
    ahead: int = 0  # requests already waiting, which are sent first
    tokens: float = 0.0  # input and output tokens per request
    rpm: float = math.inf  # calls per minute; infinity if no limit is known
    tpm: float = math.inf  # tokens per minute; infinity if no limit is known

    def calls(self, requests: int) -> int:
        return math.ceil(requests / self.per_call)

    def quota(self, requests: int) -> float | None:
        """Return the share of the rate limits that ``requests`` use; ``None`` without a limit."""
        if self.rpm == self.tpm == math.inf or not requests:
            return None
        # limits are per minute, so a shorter list does not use a larger share
        minutes = max(self.finish(requests, 0.5) / 60, 1.0)
        shares = self.calls(requests) / (self.rpm * minutes), requests * self.tokens / (self.tpm * minutes)
        return min(1.0, max(shares))

    def finish(self, requests: int, q: float) -> float:
        """Return the seconds within which a share ``q`` of such lists is answered.

        1. At most as many calls as workers: the time of the slowest of independent calls.
        2. More calls than workers: the time until the last call begins, plus the time from then until the
           slowest call in flight finishes. The first is a sum and modelled as lognormal. An error in the mean
           of a call adds up over the list instead of averaging out, so it is part of the spread. The two
           parts deviate from their medians independently, so their squares add up.
        3. Rate limits are the bottleneck: the time until they allow the last call to begin, plus that call.
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
        """Return the mean duration of such lists. The mean of the slowest call is computed from five
        quantiles.
        """
        if requests <= 0:
            return 0.0
        size = min(self.per_call, requests)
        calls = self.calls(self.ahead + requests)
        if calls <= self.parallelism:
            working = sum(part * self.call.quantile(q ** (1 / calls), size) for q, part in _FIVE_POINTS)
        else:
            middle, sigma, width = self._before_last(calls, size)
            levels = [(_end(q, calls, self.parallelism, width), part) for q, part in _FIVE_POINTS]
            working = middle * math.exp(sigma * sigma / 2)
            working += sum(part * self.call.quantile(level, size) for level, part in levels)
        return max(working, self._limited(calls, requests) + self.call.expected(size))

    def _before_last(self, calls: int, size: int) -> tuple[float, float, float]:
        """Return the median and log deviation of the time until the last of ``calls`` begins, and the log
        deviation of one call.

        All calls together take ``calls`` means. What remains when the last call begins is subtracted: that
        call, and the rest of each other call in flight, which is ``(1 + variance / mean ** 2) / 2`` means on
        average.
        """
        each, uncertainty = self.call.expected(size), self.call.uncertainty()
        middle, high = self.call.quantile(0.5, size), self.call.quantile(0.95, size)
        width = round(20 * math.log(high / middle) / normal_quantile(0.95)) / 20 if middle > 0 else 0.0
        width = min(_MAX_LOG_DEVIATION, width)
        spread = math.expm1(width * width)
        begun = calls - 1 - (self.parallelism - 1) * min(calls / self.parallelism, (1 + spread) / 2)
        sigma = math.sqrt(uncertainty * uncertainty + math.log1p(spread / calls))
        return begun / self.parallelism * each * math.exp(-sigma * sigma / 2), sigma, width

    def _limited(self, calls: int, requests: int) -> float:
        """Return the seconds until the rate limits allow the last call to begin."""
        tokens = (self.ahead + requests) * self.tokens
        by_calls = max(0.0, calls - 1) * 60 / self.rpm
        by_tokens = max(0.0, tokens - tokens / max(1, calls)) * 60 / self.tpm
        return max(by_calls, by_tokens)


@lru_cache(maxsize=64)
def normal_quantile(q: float) -> float:
    """Return a quantile of the standard normal distribution. Cached, because computing one takes
    microseconds.
    """
    return _NORMAL.inv_cdf(q)


def _end(q: float, calls: int, workers: int, width: float) -> float:
    """Return the quantile of call times within which a share ``q`` of lists finishes after the last call
    began.

    It never exceeds the quantile for the slowest of all calls. With many calls, those in flight have less
    time left.
    """
    return float(min(q ** (1 / calls), _left(q, workers, width)))


@lru_cache(maxsize=4096)
def _left(q: float, workers: int, width: float) -> float:
    """Return the quantile within which all calls in flight finish after the last one began, in a share ``q``
    of cases.

    The last call takes its full time. Of the other calls, a share of ``(mean beyond x) / mean`` has more than
    ``x`` left. Solved by bisection for lognormal times.
    """
    low, high = -8.0, 8.0
    for _ in range(30):
        z = (low + high) / 2
        longer = _NORMAL.cdf(width - z) - math.exp(width * z - width * width / 2) * _NORMAL.cdf(-z)
        within = _NORMAL.cdf(z) * (1 - min(1.0, max(0.0, longer))) ** (workers - 1)
        low, high = (low, z) if within > q else (z, high)
    return min(_MAX_LEVEL, max(1 - _MAX_LEVEL, _NORMAL.cdf(high)))


@frozen
class Offer:
    route: Route
    throughput: Throughput
    cost: Cost | None  # of the whole list; None if the price is unknown
    share: float = 1.0  # price relative to the standard price; ranks routes with unknown prices
    open: bool = True  # false if the route is only compared


@frozen
class BatchOffer:
    times: Times  # seconds from the creation of a batch to its results
    cost: Cost | None  # of the requests that a job sends; None if the price is unknown
    # real-time cost of those requests, if less than that of the list
    alone: Cost | None = field(default=None, kw_only=True)
    # seconds until a cancelled batch finishes; None if batches cannot be cancelled
    cancelling: Times | None = None
    most: int = 5000  # requests per batch
    at_a_time: float = math.inf  # concurrent batches that the enqueued quota allows
    share: float = 0.5  # price relative to the standard price
    seen: bool = True  # a batch has been observed; otherwise one is tried if it is likely to be better

    def cancel(self, sure: float) -> float:
        """Return the seconds within which a share ``sure`` of cancelled batches finishes."""
        return 0.0 if self.cancelling is None else self.cancelling.quantile(sure, 1)

    def batches(self, requests: int) -> int:
        return math.ceil(requests / self.most)

    def _schedule(self, requests: int) -> tuple[int, int]:
        """Return the numbers of concurrent batches and of rounds."""
        batches = self.batches(requests)
        parallel = int(min(batches, self.at_a_time))
        return parallel, math.ceil(batches / parallel)

    def finish(self, requests: int, q: float) -> float:
        """Return the seconds within which a share ``q`` of such lists is answered. At all providers, a batch
        finishes or expires within a day.
        """
        parallel, rounds = self._schedule(requests)
        slowest = self.times.quantile(q ** (1 / parallel), min(requests, self.most))
        return rounds * min(slowest, EXPIRY_SECONDS)

    def expected(self, requests: int) -> float:
        """Return the mean of five quantiles. The slowest tenth is included with its shortest time: it is
        rarely observed, and an assumption about it must not outweigh a dozen observed batches.
        """
        return sum(self.finish(requests, q) for q in (0.1, 0.3, 0.5, 0.7, 0.9)) / 5

    def chance(self, seconds: float, requests: int) -> float:
        """Return the probability that all ``requests`` are answered within ``seconds``."""
        parallel, rounds = self._schedule(requests)
        return self.times.chance(seconds / rounds, min(requests, self.most)) ** parallel

    def part(self, seconds: float, requests: int) -> float:
        """Return the expected share of ``requests`` answered within ``seconds``."""
        _, rounds = self._schedule(requests)
        return self.times.chance(seconds / rounds, min(requests, self.most))


@frozen
class Rounds:
    """The rounds of batches into which a budget divides a list.

    The budget must cover the maximum cost of every request in a batch. As many requests as it covers are sent
    first; answers usually cost less than the maximum, which leaves money for more. The calculation follows
    :mod:`smartbatch.jobs.job_budget`, with requests of average cost.
    """

    room: float  # USD that may be reserved
    most: float  # USD reserved per request
    fit: int  # requests in the first round
    count: int  # number of rounds
    unsent: int  # requests that the budget will never cover

    def cut(self, offer: BatchOffer, requests: int) -> BatchOffer:
        """Return the offer with the resulting number of batches, in total and at a time."""
        if self.count <= 1:
            return offer
        sizes = (math.ceil(requests / self.count), max(1, requests // self.count))
        each = min(sizes, key=lambda size: abs(math.ceil(requests / size) - self.count))
        parallel = math.ceil(each / offer.most)
        return evolve(offer, most=min(each, offer.most), at_a_time=min(parallel, offer.at_a_time))

    def in_words(self) -> str:
        """Describe the rounds; empty if the budget covers all requests at once."""
        if self.count == 1 and not self.unsent:
            return ""
        held = f"up to {money(self.most)} is reserved per request, out of {money(self.room)}"
        if not self.fit:
            return f"{held}, which is too little for any request"
        text = f"{held}, so batches are sent in {self.count:,} rounds, the first with {self.fit:,} requests"
        return f"{text}; about {self.unsent:,} requests will exceed the budget" if self.unsent else text


def rounds_of(requests: int, room: float, most: float, each: float) -> Rounds:
    """Return the rounds in which ``requests`` are sent as batches within ``room`` USD.

    Args:
        most: maximum USD per request.
        each: expected USD per request.
    """
    each, done, count, fit = min(each, most), 0, 0, 0
    first = _fitting(room, most, requests)
    while done < requests:
        fit = _fitting(room - done * each, most, requests - done)
        if not fit:
            break
        done, count = done + fit, count + 1
        if count >= _MAX_COUNTED_ROUNDS:
            count, done = count + math.ceil((requests - done) / fit), requests
    return Rounds(room, most, first, count, requests - done)


def _fitting(room: float, most: float, requests: int) -> int:
    if most * requests <= room + _USD_TOLERANCE:
        return requests
    return max(0, math.floor((room + _USD_TOLERANCE) / most))
