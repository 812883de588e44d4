"""A plan: how long a list would take, what it would cost, by which route and why. It can be run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic

from attrs import asdict, evolve

from smartbatch._display import paragraph, table
from smartbatch.core.routing.choice import Decision, Option
from smartbatch.core.routing.offers import AnswerLengths, Cost, expected_usd
from smartbatch.errors import ConfigError
from smartbatch.interrupted import as_interrupted
from smartbatch.results import ResultList
from smartbatch.types import Route, T

__all__ = ["Plan", "explain"]

_HEAD = (
    "route",
    "half done in",
    "95 of 100 in",
    "expected",
    "cost in USD",
    "range",
    "with waiting",
    "in time",
    "late cost",
    "",
)
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
_OF_DEADLINE = slice(_HEAD.index("in time"), _HEAD.index("late cost") + 1)


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
            mean; see :class:`~smartbatch.core.routing.offers.AnswerLengths`. ``None`` where nothing is
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
        cost = "price unknown" if self.cost is None else f"about {self.cost:.6f} USD"
        return f"<Plan {self.requests:,} requests, {self.route.value}, {self.p50:.0f} s, {cost}>"

    def _repr_html_(self) -> str:
        decision = self.decision
        head, *rows = _rows(decision)
        chosen = next(at for at, option in enumerate(decision.options) if option is decision.chosen)
        return (
            "".join(map(paragraph, _asked(decision)))
            + table(head, ([cell.strip("> ") for cell in row] for row in rows), chosen)
            + _trade_off(decision)
            + "".join(map(paragraph, _chosen(decision)))
        )

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
        a plan in real time stays within ``cost_high``. Requests beyond that fail with ``BudgetExceeded``, and
        finished ones are kept. For a plan with a batch ``cost_high`` would be too low a limit, since the most
        that each request can cost is reserved.

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
        # checked as that of a list
        limit: Any = decision.constraints.budget if budget is None else budget
        if limit is None and self.route not in (Route.BATCH, Route.HYBRID):
            limit = self.cost_high
        decision = evolve(decision, constraints=evolve(decision.constraints, budget=limit))
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


def explain(decision: Decision) -> str:
    """Return the options as a table, the choice, and its reason.

    ``with waiting`` is the expected cost plus ``time_value`` times the expected hours. Where there is a
    deadline, ``in time`` is how likely it is met, and ``late cost`` what the chance of a batch to miss it
    counts as. The last column says why a route was ruled out or not open. Seconds and USD are printed with as
    many digits as the comparison used.
    """
    rows = _rows(decision)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    lines = [*_asked(decision), "", *(line.rstrip() for line in table), "", *_chosen(decision)]
    return "\n".join(lines)


def _asked(decision: Decision) -> Iterator[str]:
    load, constraints = decision.load, decision.constraints
    cached = f", {load.cached:,} more from the cache" if load.cached else ""
    equal = f", {load.duplicates:,} more equal to one of them" if load.duplicates else ""
    if load.repeats:
        equal += f", {load.repeats:,} of them equal to one far ahead, which a job pays once"
    yield (
        f"{load.requests:,} requests{equal}{cached}: about {load.tokens_in:,.0f} tokens in, "
        f"{load.tokens_out:,.0f} out"
    )
    if load.answers is not None:
        yield f"answers: {_lengths(load.answers)}"
    deadline = "no deadline"
    if constraints.deadline is not None:
        cost = decision.alone.cost
        counts = (
            "" if cost is None else f" (to miss it counts {decision.late_penalty * cost.expected:.6f} USD)"
        )
        deadline = f"deadline in {constraints.deadline:.1f} s{counts}"
    budget = "no budget" if constraints.budget is None else f"budget {constraints.budget:g} USD"
    yield (
        f"strategy {constraints.strategy.value}, prefer {constraints.prefer}, {deadline}, {budget}, "
        f"an hour of waiting is worth {constraints.time_value:g} USD"
    )


def _lengths(answers: AnswerLengths) -> str:
    """Say what the expected lengths of answers, and with them the costs and their ranges, rest on."""
    if answers.seen:
        return f"{answers.seen:,} seen, of {answers.tokens:,.0f} tokens on average"
    if answers.unlimited:
        return f"no max_tokens and none seen yet: {answers.tokens:,.0f} tokens each are assumed"
    return f"none seen yet: {answers.tokens:,.0f} tokens each are assumed, or max_tokens where that is less"


def _rows(decision: Decision) -> list[tuple[str, ...]]:
    """Return the table of the options, its head first."""
    rows = [_HEAD, *(_row(option, option is decision.chosen) for option in decision.options)]
    rows += [(f"  {route.value}", *[""] * (len(_HEAD) - 2), why) for route, why in decision.closed]
    if decision.constraints.deadline is None:
        rows = [(*row[: _OF_DEADLINE.start], *row[_OF_DEADLINE.stop :]) for row in rows]
    return rows


def _trade_off(decision: Decision) -> str:
    from smartbatch.reports.charts import Mark, trade_off  # late: only a notebook shows it

    chosen = decision.chosen
    return trade_off(
        [
            Mark(each.route.value, each.p50, each.p95, cost.low, cost.expected, cost.high, each is chosen)
            for each in decision.options
            if (cost := each.cost) is not None
        ]
    )


def _row(option: Option, chosen: bool) -> tuple[str, ...]:
    first = f" ({option.first:,} at once)" if option.first else ""
    return (
        f"{'> ' if chosen else '  '}{option.route.value}{first}",
        f"{option.p50:.1f} s",
        f"{option.p95:.1f} s",
        f"{option.expected:.1f} s",
        "unknown" if option.cost is None else f"{option.cost.expected:.6f}",
        _range(option.cost),
        f"{option.weight:.6f}",
        f"{option.odds:.3%}",
        f"{option.late_cost:.6f}",
        option.problem or option.ruled_out,
    )


def _range(cost: Cost | None) -> str:
    return "" if cost is None else f"{cost.low:.6f} to {cost.high:.6f}"


def _chosen(decision: Decision) -> Iterator[str]:
    option = decision.chosen
    sent = [f"{option.calls:,} calls"] if option.calls else []
    sent += [f"{option.batches:,} batches" if option.batches > 1 else "1 batch"] if option.batches else []
    yield f"chosen: {option.route.value}, {' and '.join(sent) or 'no call'}"
    yield f"because: {decision.reason}"
    if option.quota is not None:
        yield f"quota: {option.quota:.0%} of what the limits allow in that time"
    if option.rescue_at is not None:
        yield (
            f"rescue: what has not come after {option.rescue_at:.1f} s is taken back and asked in real time, "
            f"{option.rescue_needs:.1f} s before the deadline"
        )
