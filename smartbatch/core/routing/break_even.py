"""From how many requests on a batch pays: the threshold that moves with what is observed."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from smartbatch.core.routing.choice import Infeasible, choose
from smartbatch.core.routing.constraints import Constraints
from smartbatch.core.routing.offers import BatchOffer, Load, Offer
from smartbatch.types import Route, Strategy

__all__ = ["MOST", "break_even"]

MOST = 1_000_000
"""Requests of the longest list that is looked at."""


def break_even(
    load: Load, offers: Sequence[Offer], batch: BatchOffer, constraints: Constraints
) -> int | None:
    """Return the fewest requests, alike those of ``load``, that go by batch; ``None`` when none do.

    Args:
        load: what such requests take on average.
        offers, batch: as for :func:`~smartbatch.core.routing.choice.choose`; their costs are of ``load``.
        constraints: without a deadline and a budget, which are about one list.
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
    while high - low > 1:  # it pays for more when it pays for fewer, nearly always
        middle = (low + high) // 2
        low, high = (low, middle) if pays(middle) else (middle, high)
    return high
