"""What a decision really took: cost and routes of the results of a list, compared with its plan."""

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
    """Adds up results in constant memory. All amounts are USD.

    Attributes:
        paid: what the results cost; ``None`` once one of them has no known cost.
        individual: what the tokens they used cost in real time; ``None`` where that is unknown.
        by_batch: what these tokens cost by batch, likewise.
        answered: results that are answers.
        batched: requests that were sent by batch.
        realtime: requests that were sent in real time.
    """

    paid: float | None = 0.0
    individual: float | None = 0.0
    by_batch: float | None = 0.0
    answered: int = 0
    batched: int = 0
    realtime: int = 0

    def add(self, result: Result, standard: Rates | None = None, batch: Rates | None = None) -> None:
        """Add a result; one that took no call, or got the answer of another request, adds nothing.

        Args:
            standard: prices of its model in real time; ``None`` if they are unknown.
            batch: its prices by batch, likewise.
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
    """Return how many requests that were planned for a batch were sent in real time, and why.

    Returns:
        the words; ``None`` if there are no such requests.
    """
    chosen = decision.chosen
    rescued = actual.realtime - chosen.first
    if not chosen.route.by_batch or rescued <= 0:
        return None
    planned = f"{rescued + actual.batched:,} requests were planned as a batch"
    return f"{planned}, {rescued:,} of them were sent in real time" + (f": {reason}" if reason else "")


def _cost_of(result: Result, rates: Rates | None, routes: Collection[Route]) -> float | None:
    """Return what a result costs by the prices of ``routes``: what was paid where it came by one of them."""
    if result.route in routes:
        return result.cost
    if not result.usage.total_tokens:
        return 0.0
    return None if rates is None else rates.cost(result.usage)


@frozen(kw_only=True)
class Measured:
    """What a decision really took.

    Attributes:
        seconds: from the submission to the last answer.
        cost: USD that was paid; ``None`` where a price is unknown.
        individual_cost: USD the tokens that were really used cost in real time; ``None`` where it is unknown.
        batch_cost: USD the same tokens cost by batch, likewise.
    """

    seconds: float
    cost: float | None
    individual_cost: float | None = None
    batch_cost: float | None = None


@define(eq=False)
class ListDecision:
    """The decision on a list that no job was made of, on its way to the store.

    Attributes:
        at: Unix seconds.
        model: ``provider:model``.
        measured: what it took, once that is known.
        rescue: how many of its requests were sent in real time instead of by batch, and why; likewise.
        no: its number in the store, once it is there.
    """

    at: float
    model: str
    decision: Decision = field(repr=False)
    measured: Measured | None = None
    rescue: str | None = None
    no: int | None = None

    @property
    def route(self) -> str:
        """That was chosen."""
        return self.decision.chosen.route.value
