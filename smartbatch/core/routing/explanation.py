"""A decision printed in words and figures that can be checked by hand."""

from __future__ import annotations

from collections.abc import Iterator

from smartbatch.core.routing.choice import Decision, Option
from smartbatch.core.routing.offers import Cost

__all__ = ["explain"]

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
_OF_DEADLINE = slice(_HEAD.index("in time"), _HEAD.index("late cost") + 1)


def explain(decision: Decision) -> str:
    """Return the options as a table, the choice, and its reason.

    ``with waiting`` is the expected cost plus ``time_value`` times the expected hours. Where there is a
    deadline, ``in time`` is how likely it is met, and ``late cost`` what the chance of a batch to miss it
    counts as. Seconds and USD are printed with as many digits as the comparison used.
    """
    rows = [_HEAD, *(_row(option, option is decision.chosen) for option in decision.options)]
    if decision.constraints.deadline is None:
        rows = [(*row[: _OF_DEADLINE.start], *row[_OF_DEADLINE.stop :]) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    lines = [*_asked(decision), "", *(line.rstrip() for line in table), "", *_chosen(decision)]
    return "\n".join(lines)


def _asked(decision: Decision) -> Iterator[str]:
    load, constraints = decision.load, decision.constraints
    cached = f", {load.cached:,} more from the cache" if load.cached else ""
    yield (
        f"{load.requests:,} requests{cached}: about {load.tokens_in:,.0f} tokens in, "
        f"{load.tokens_out:,.0f} out"
    )
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
        option.problem,
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
            f"rescue: what has not come after {option.rescue_at:.1f} s is taken back and asked in real time; "
            f"{option.rescue_needs:.1f} s are kept for that"
        )
