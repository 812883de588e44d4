"""Route decisions for tests."""

from __future__ import annotations

from typing import Any

from smartbatch.core.forecast import Forecaster
from smartbatch.core.routing.choice import Decision, choose
from smartbatch.core.routing.offers import BatchOffer, Offer, Throughput
from smartbatch.core.routing.options import Constraints
from smartbatch.core.routing.workload import Cost, Load
from smartbatch.routing.history import BATCH_PRIOR, CALL_PRIOR
from smartbatch.types import Route, Strategy


def decision(
    requests: int = 400, *, usd: float = 1.0, strategy: str = "auto", **constraints: Any
) -> Decision:
    call, times = Forecaster(CALL_PRIOR).at(0.0), Forecaster(BATCH_PRIOR).at(0.0)
    cost = Cost(0.9 * usd, usd, 1.2 * usd)
    offers = [Offer(Route.INDIVIDUAL, Throughput(call, parallelism=8), cost)]
    batch = BatchOffer(times, cost.of(0.5), alone=cost, cancelling=times)
    return choose(
        Load(requests, 1e5, 2e4), offers, batch, Constraints(strategy=Strategy(strategy), **constraints)
    )
