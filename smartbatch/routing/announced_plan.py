"""A plan that observers were told of, compared with what it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from attrs import define, field

from smartbatch._clock import Clock
from smartbatch.core.routing.choice import Decision
from smartbatch.core.routing.outcome import ActualCost
from smartbatch.core.routing.workload import Rates, expected_usd
from smartbatch.events import Event, RouteChosen, RouteScored
from smartbatch.types import Result, Route

Prices: TypeAlias = "tuple[Rates | None, Rates | None]"
"""What a model costs in real time and by batch; ``None`` if it is unknown."""


@define(eq=False, repr=False)
class AnnouncedPlan:
    """Adds up the results of a plan that is carried out, and scores its forecast. One thread uses it.

    Making it tells observers of the plan.

    Args:
        prices_of: returns the prices of the model that answered.
        tell: takes events.

    Attributes:
        actual: what the results added cost, and what their tokens cost in real time and by batch.
    """

    _id: str
    _model: str
    _decision: Decision
    _purpose: str | None
    _prices_of: Callable[[Result], Prices]
    _clock: Clock
    _tell: Callable[[Event], None]
    actual: ActualCost = field(factory=ActualCost, init=False)

    def __attrs_post_init__(self) -> None:
        decision = self._decision
        chosen = decision.chosen
        self._tell(
            RouteChosen(
                at=self._clock.now(),
                decision_id=self._id,
                model=self._model,
                purpose=self._purpose,
                requests=decision.load.requests,
                route=chosen.route,
                first=chosen.first,
                reason=decision.reason,
                p50=chosen.p50,
                p95=chosen.p95,
                cost=expected_usd(chosen.cost),
                options=tuple(
                    (each.route.value, each.p50, each.p95, expected_usd(each.cost), each.feasible)
                    for each in decision.options
                ),
            )
        )

    @property
    def route(self) -> Route:
        return self._decision.chosen.route

    def add(self, result: Result) -> None:
        self.actual.add(result, *self._prices_of(result))

    def score(self, seconds: float, actual: ActualCost | None = None) -> RouteScored | None:
        """Tell observers what the plan really took; return it, or ``None`` if nothing was answered: how soon
        that is known says nothing of any route.

        Args:
            seconds: from the submission to the last answer.
            actual: what it cost, if its results were not added here.
        """
        actual, decision = actual or self.actual, self._decision
        if not actual.answered:
            return None
        chosen, deadline = decision.chosen, decision.constraints.deadline
        alone, batch = decision.alone, decision.batch
        scored = RouteScored(
            at=self._clock.now(),
            decision_id=self._id,
            model=self._model,
            requests=decision.load.requests,
            route=chosen.route,
            seconds=seconds,
            cost=actual.paid,
            forecast_p50=chosen.p50,
            forecast_p95=chosen.p95,
            forecast_cost=expected_usd(chosen.cost),
            individual_seconds=seconds if alone is chosen else alone.p50,
            individual_cost=actual.individual,
            batch_seconds=None if batch is None else seconds if batch is chosen else batch.p50,
            batch_cost=None if batch is None else actual.by_batch,
            met=None if deadline is None else seconds <= deadline,
        )
        self._tell(scored)
        return scored
