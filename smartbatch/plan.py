"""A plan: duration, cost, route and reasons for a list that has not been sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic

from attrs import asdict, evolve

from smartbatch._words import duration, money, plural
from smartbatch.core.routing.choice import Decision
from smartbatch.core.routing.explanation import (
    IN_PYTHON,
    cache_saving,
    decision_parts,
    explain,
    files_in_words,
)
from smartbatch.core.routing.options import Option
from smartbatch.core.routing.workload import expected_usd
from smartbatch.errors import ConfigError
from smartbatch.results import ResultList, as_interrupted
from smartbatch.types import Route, T
from smartbatch.views.model import Section, View

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
    """The plan of a list, returned by ``client.plan``. Nothing has been sent.

    Attributes:
        decision: the decision with everything it is based on.
        route: the chosen route.
        reason: why it was chosen, with the figures.
        p50, p95: seconds until the last answer, for half of such lists and for 95 %.
        cost: expected USD; ``None`` if the price is unknown.
        cost_low, cost_high: range in USD that contains the cost of 90 % of such lists; ``None`` if the
            price is unknown.
        cache_saving, cache_saving_low, cache_saving_high: expected USD that the provider's cache saves on
            shared prefixes of prompts, and its range; the costs above take it into account.
        answers: the basis of the expected answer lengths and cost: the number of observed answers and their
            mean length; see :class:`~smartbatch.core.routing.workload.AnswerLengths`. ``None`` if nothing is
            generated.
        calls, batches: the number of each to be sent.
        first: requests of a hybrid that are sent in real time first.
        requests: requests to be answered by the provider, by the chosen route.
        cached: further requests that the cache answers.
        duplicates: further requests that share the answer of an identical one in the list.
        files: number, bytes and expected tokens of the files in the requests; see
            :class:`~smartbatch.core.routing.workload.FileLoad`. ``None`` if there are none.
        quota: share of the known limits used while the list runs; ``None`` if no limit is known.
        options: all routes considered, see :class:`~smartbatch.core.routing.choice.Option`.
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
        self.cache_saving = 0.0 if cost is None else cost.saved
        self.cache_saving_low = 0.0 if cost is None else cost.saved_low
        self.cache_saving_high = 0.0 if cost is None else cost.saved_high
        self.calls, self.batches, self.first = chosen.calls, chosen.batches, chosen.first
        load = decision.load
        self.requests = load.by_job if chosen.batches else load.requests
        self.cached, self.duplicates = load.cached, load.duplicates + load.requests - self.requests
        self.answers = decision.load.answers
        self.files = load.files
        self.quota = chosen.quota
        self.options: tuple[Option, ...] = decision.options

    def __repr__(self) -> str:
        cost = "price unknown" if self.cost is None else money(self.cost)
        requests = plural(self.requests, "request")
        if self.files is not None:
            requests += f" with {files_in_words(self.files)}"
        saved = "" if self.decision.chosen.cost is None else cache_saving(self.decision.chosen.cost)
        saved = f", shared prefixes save {saved}" if saved else ""
        return f"<Plan {requests}, {self.route.value}, about {duration(self.p50)}, {cost}{saved}>"

    def _repr_html_(self) -> str:
        from smartbatch.views.html import notebook  # imported late: only notebooks use it

        parts = tuple(decision_parts(self.decision, voice=IN_PYTHON))
        return notebook(View(repr(self).strip("<>"), (Section("routes", "Routes", parts),)))

    def explain(self, *, details: bool = False) -> str:
        """Return the plan in a few sentences: what will happen, the time, the cost, and the reason.

        Args:
            details: adds the forecast of each route (``p50``: half of such lists are done by then, ``p95``:
                95 % are), the constraints, and the figures behind the decision.
        """
        return explain(self.decision, details=details)

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as plain values that can be written as JSON."""
        constraints = self.decision.constraints
        return {
            "route": self.route.value,
            "reason": self.reason,
            "requests": self.requests,
            "cached": self.cached,
            "duplicates": self.duplicates,
            "tokens_in": self.decision.load.tokens_in,
            "tokens_out": self.decision.load.tokens_out,
            "files": None if self.files is None else asdict(self.files),
            "answers": None if self.answers is None else asdict(self.answers),
            "deadline": constraints.deadline,
            "budget": constraints.budget,
            "time_value": constraints.time_value,
            "options": [_plain(option) for option in self.options],
            "closed": {route.value: why for route, why in self.decision.closed},
        }

    def run(self, *, budget: float | str | None = None, progress: bool | None = None) -> ResultList[T]:
        """Run the list by the planned route.

        A deadline counts from now. Spending stays within the plan's budget. Without a budget, a plan in real
        time may spend ``cost_high`` plus the highest possible cost of the requests in flight; requests
        beyond that fail with ``BudgetExceeded``, and completed ones are kept. A plan with a batch has no
        such limit, as the highest possible cost of each request is reserved.

        Args:
            budget: USD, or a string such as ``"5 USD"``; replaces the plan's budget.
            progress: see :meth:`~smartbatch.BatchingClient.map`.

        Raises:
            ConfigError: the budget is invalid, or the plan is a forecast whose prompts were not kept.
            AllRequestsFailed: no request was answered.
            Interrupted: Ctrl-C was pressed; the error has the results so far.
        """
        if self._run is None:
            raise ConfigError(
                "this plan is a forecast whose prompts were not kept: use client.plan() instead, or store "
                "the prompts as a job with client.submit_run(prompts, plan)"
            )
        decision = self.decision
        if budget is not None:
            given: Any = budget  # checked when the list is sent
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
        "cache_saving": None if cost is None else cost.saved,
        "cache_saving_low": None if cost is None else cost.saved_low,
        "cache_saving_high": None if cost is None else cost.saved_high,
        **{name: getattr(option, name) for name in _PLAIN},
    }
