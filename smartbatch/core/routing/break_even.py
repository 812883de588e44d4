"""From how many requests on a batch pays: a threshold that moves with what is observed."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from smartbatch.core.routing.choice import Infeasible, choose
from smartbatch.core.routing.constraints import Constraints
from smartbatch.core.routing.offers import BatchOffer, Load, Offer
from smartbatch.types import Route, Strategy

__all__ = ["MOST", "break_even"]

MOST = 1_000_000
"""Requests of the longest list that is considered."""


def break_even(
    load: Load, offers: Sequence[Offer], batch: BatchOffer, constraints: Constraints
) -> int | None:
    """Return the fewest requests, each like those of ``load`` on average, that go by batch or as a hybrid;
    ``None`` when no list does.

    Args:
        load: requests to scale up and down.
        offers, batch: as for :func:`~smartbatch.core.routing.choice.choose`; their costs are of ``load``.
        constraints: deadline and budget are left out, as they belong to one list.
    """
    free = evolve(constraints, deadline=None, budget=None, strategy=Strategy.AUTO)

    def pays(requests: int) -> bool:
        share = requests / load.requests
        scaled = Load(requests, load.tokens_in * share, load.tokens_out * share)
        priced = [
            evolve(offer, cost=None if offer.cost is None else offer.cost.of(share)) for offer in offers
        ]
        cost = None if batch.cost is None else batch.cost.of(share)
        try:
            decision = choose(scaled, priced, evolve(batch, cost=cost), free)
        except Infeasible:
            return False
        return decision.chosen.route in (Route.BATCH, Route.HYBRID)

    if load.requests < 1 or not pays(MOST):
        return None
    low, high = free.at_once, MOST
    while high - low > 1:  # bisection: what pays for fewer requests nearly always pays for more
        middle = (low + high) // 2
        low, high = (low, middle) if pays(middle) else (middle, high)
    return high
