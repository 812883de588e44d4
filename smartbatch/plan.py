"""A plan: how long a list would take, what it would cost, by which route and why. It can be run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic

from attrs import asdict, evolve

from smartbatch._words import money
from smartbatch.core.routing.choice import Decision
from smartbatch.core.routing.explanation import explain
from smartbatch.core.routing.options import Option
from smartbatch.core.routing.workload import expected_usd
from smartbatch.errors import ConfigError
from smartbatch.interrupted import as_interrupted
from smartbatch.results import ResultList
from smartbatch.types import Route, T

__all__ = ["Plan"]

_PLAIN = (
    "weight",
    "calls",
    "batches",
    "first",
    "quota",
    "odds",
    "late_cost",
    "feasible",
    "problem",
    "ruled_out",
)


class Plan(Generic[T]):
    """Made by ``client.plan``; nothing was sent for it.

    Attributes:
        decision: the choice with all that it rests on.
        route: the route that was chosen.
        reason: why, in words.
        p50, p95: seconds within which half and 95 of 100 such lists have their last answer.
        cost: USD expected; ``None`` where the price is unknown.
        cost_low, cost_high: what 90 of 100 such lists cost between; ``None`` where the price is unknown.
        answers: what the expected lengths of answers rest on, and so the cost: how many were seen, and their
            mean; see :class:`~smartbatch.core.routing.workload.AnswerLengths`. ``None`` where nothing is
            generated.
        calls, batches: how many are made.
        first: requests of a hybrid that go individually at once.
        requests: how many the provider has to answer, by the route that was chosen.
        cached: further requests, which the cache answers.
        duplicates: further requests, which share the answer of an equal one of the list.
        quota: share of the known limits it uses while it runs; ``None`` where none is known.
        options: every route that was open, see :class:`~smartbatch.core.routing.choice.Option`.
    """

    def __init__(
        self, decision: Decision, run: Callable[[Decision, bool | None], ResultList] | None = None
    ) -> None:
        self.decision = decision
        self._run = run
        chosen, cost = decision.chosen, decision.chosen.cost
        self.route: Route = chosen.route
        self.reason = decision.reason
        self.p50, self.p95 = chosen.p50, chosen.p95
        self.cost = expected_usd(cost)
        self.cost_low = None if cost is None else cost.low
        self.cost_high = None if cost is None else cost.high
        self.calls, self.batches, self.first = chosen.calls, chosen.batches, chosen.first
        load = decision.load
        self.requests = load.by_job if chosen.batches else load.requests
        self.cached, self.duplicates = load.cached, load.duplicates + load.requests - self.requests
        self.answers = decision.load.answers
        self.quota = chosen.quota
        self.options: tuple[Option, ...] = decision.options

    def __repr__(self) -> str:
        cost = "price unknown" if self.cost is None else f"about {money(self.cost)}"
        return f"<Plan {self.requests:,} requests, {self.route.value}, {self.p50:.0f} s, {cost}>"

    def _repr_html_(self) -> str:
        from smartbatch.core.routing.explanation import decision_parts  # late: only a notebook shows it
        from smartbatch.views.model import Section, View
        from smartbatch.views.notebook import in_cell

        parts = tuple(decision_parts(self.decision))
        return in_cell(View(repr(self).strip("<>"), (Section("routes", "Routes", parts),)))

    def explain(self) -> str:
        """Return the plan in words and figures that can be checked by hand."""
        return explain(self.decision)

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as plain values, fit for JSON."""
        constraints = self.decision.constraints
        return {
            "route": self.route.value,
            "reason": self.reason,
            "requests": self.requests,
            "cached": self.cached,
            "duplicates": self.duplicates,
            "tokens_in": self.decision.load.tokens_in,
            "tokens_out": self.decision.load.tokens_out,
            "answers": None if self.answers is None else asdict(self.answers),
            "deadline": constraints.deadline,
            "budget": constraints.budget,
            "time_value": constraints.time_value,
            "options": [_plain(option) for option in self.options],
            "closed": {route.value: why for route, why in self.decision.closed},
        }

    def run(self, *, budget: float | str | None = None, progress: bool | None = None) -> ResultList[T]:
        """Run the list by the planned route.

        The deadline, if there is one, counts from now. Spending stays within the plan's budget; without one,
        a plan in real time stays within ``cost_high`` and the most that the requests in flight can cost.
        Requests beyond that fail with ``BudgetExceeded``, and finished ones are kept. A plan with a batch has
        no such limit, since the most that each request can cost is reserved.

        Args:
            budget: USD to stay within instead, or as ``"5 USD"``.
            progress: as for :meth:`~smartbatch.BatchingClient.map`.

        Raises:
            ConfigError: the budget is none, or the plan is a forecast, whose prompts were not kept.
            AllRequestsFailed: when not one request was answered.
            Interrupted: Ctrl-C; it has the results so far.
        """
        if self._run is None:
            raise ConfigError(
                "this plan is a forecast: its prompts were read once and not kept; make it with "
                "client.plan(), or store the prompts as a job by it with client.submit_run(prompts, plan)"
            )
        decision = self.decision
        if budget is not None:
            given: Any = budget  # checked as that of a list
            decision = evolve(decision, constraints=evolve(decision.constraints, budget=given))
        try:
            return self._run(decision, progress)
        except KeyboardInterrupt as error:
            raise as_interrupted(error) from None


def _plain(option: Option) -> dict[str, Any]:
    cost = option.cost
    return {
        "route": option.route.value,
        **{name: getattr(option, name) for name in ("p50", "p95", "expected")},
        "cost": expected_usd(cost),
        "cost_low": None if cost is None else cost.low,
        "cost_high": None if cost is None else cost.high,
        **{name: getattr(option, name) for name in _PLAIN},
    }
