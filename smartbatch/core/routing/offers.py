"""What can be chosen from now: routes in real time and the Batch API, each with its throughput and price."""

from __future__ import annotations

import math

from attrs import field, frozen

from smartbatch.core.forecast.turnaround import LATEST
from smartbatch.core.routing.throughput import Throughput, Times
from smartbatch.types import Route


@frozen
class Cost:
    """USD of a whole list: 5 of 100 such lists cost less than ``low``, and 5 more than ``high``."""

    low: float
    expected: float
    high: float

    def of(self, share: float) -> Cost:
        return Cost(self.low * share, self.expected * share, self.high * share)

    def plus(self, other: Cost) -> Cost:
        return Cost(self.low + other.low, self.expected + other.expected, self.high + other.high)


def expected_usd(cost: Cost | None) -> float | None:
    """Return what is expected to be paid; ``None`` where the price is unknown."""
    return None if cost is None else cost.expected


@frozen
class AnswerLengths:
    """What the expected lengths of answers rest on.

    Attributes:
        seen: answers of the same model to the same kind of request, since their lengths last changed; 0 where
            the length is assumed.
        tokens: the length of one on average, before ``max_tokens`` limits it.
        unlimited: requests of the list without ``max_tokens``.
        by_schema: whether the answers follow a schema.
    """

    seen: int
    tokens: float
    unlimited: int = 0
    by_schema: bool = False


@frozen
class Load:
    """What a list takes of the provider, in expected tokens.

    Attributes:
        cached: further requests, from the cache.
        duplicates: further requests, with the answers of equal ones.
        repeats: of the requests, those that equal another one far ahead: a job pays them once, real time may
            pay them twice.
        answers: what ``tokens_out`` rests on; ``None`` where nothing is generated.
    """

    requests: int
    tokens_in: float = 0.0
    tokens_out: float = 0.0
    cached: int = 0
    answers: AnswerLengths | None = None
    duplicates: int = 0
    repeats: int = 0

    @property
    def by_job(self) -> int:
        """Requests that are sent where all go in one job."""
        return self.requests - self.repeats


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
