"""Adds up the actual cost and routes of results, for comparison with their plan."""

from __future__ import annotations

from collections.abc import Collection

from attrs import define, field, frozen

from smartbatch.core.routing.choice import Decision
from smartbatch.core.routing.workload import Rates
from smartbatch.types import Result, Route

_STANDARD = (Route.INDIVIDUAL, Route.SHARED)
_BATCH = (Route.BATCH,)
_REALTIME = (*_STANDARD, Route.FLEX)


@define
class ActualCost:
    """Adds up results in constant memory. All amounts are USD."""

    paid: float | None = 0.0  # cost of the results; None if any cost is unknown
    individual: float | None = 0.0  # cost of their tokens in real time; None if unknown
    by_batch: float | None = 0.0  # cost of their tokens as a batch; None if unknown
    answered: int = 0  # successful results
    batched: int = 0  # requests sent as a batch
    realtime: int = 0  # requests sent in real time

    def add(self, result: Result, standard: Rates | None = None, batch: Rates | None = None) -> None:
        """Add a result. A result that took no call, or that shares an answer, adds nothing.

        Args:
            standard: real-time prices of its model; ``None`` if unknown.
            batch: batch prices of its model; ``None`` if unknown.
        """
        self.answered += result.ok
        if result.paid_before:
            return
        if not result.deduplicated:
            self.batched += result.route in _BATCH
            self.realtime += result.route in _REALTIME
        cost = result.cost
        self.paid = None if self.paid is None or cost is None else self.paid + cost
        if self.individual is not None:
            cost = _cost_of(result, standard, _STANDARD)
            self.individual = None if cost is None else self.individual + cost
        if self.by_batch is not None:
            cost = _cost_of(result, batch, _BATCH)
            self.by_batch = None if cost is None else self.by_batch + cost


def rescue_in_words(decision: Decision, actual: ActualCost, reason: str | None) -> str | None:
    """Describe how many requests that were planned for a batch were sent in real time, and why; ``None`` if
    none were.
    """
    chosen = decision.chosen
    rescued = actual.realtime - chosen.first
    if not chosen.route.by_batch or rescued <= 0:
        return None
    planned = f"{rescued + actual.batched:,} requests were planned as a batch"
    return f"{planned}, {rescued:,} of them were sent in real time" + (f": {reason}" if reason else "")


def _cost_of(result: Result, rates: Rates | None, routes: Collection[Route]) -> float | None:
    """Return the amount paid if the result took one of the ``routes``; otherwise its cost at their prices."""
    if result.route in routes:
        return result.cost
    if not result.usage.total_tokens:
        return 0.0
    return None if rates is None else rates.cost(result.usage)


@frozen(kw_only=True)
class Measured:
    seconds: float  # from the submission to the last answer
    cost: float | None  # USD paid; None if a price is unknown
    individual_cost: float | None = None  # USD of the same tokens in real time; None if unknown
    batch_cost: float | None = None  # USD of the same tokens as a batch; None if unknown


@define(eq=False)
class ListDecision:
    """The decision on a list without a job, to be stored."""

    at: float  # Unix seconds
    model: str  # ``provider:model``
    decision: Decision = field(repr=False)
    measured: Measured | None = None  # actual time and cost, once known
    # how many requests were sent in real time instead of by batch, and why; set with ``measured``
    rescue: str | None = None
    no: int | None = None  # its number in the store, once stored

    @property
    def route(self) -> str:
        return self.decision.chosen.route.value
