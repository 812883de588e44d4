"""A decision in words and figures that can be checked by hand."""

from __future__ import annotations

from collections.abc import Iterator

from smartbatch.core.routing.choice import Decision, Option
from smartbatch.core.routing.offers import AnswerLengths, Cost

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
    counts as. The last column says why a route was ruled out or not open. Seconds and USD are printed with as
    many digits as the comparison used.
    """
    rows = option_rows(decision)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    lines = [*asked(decision), "", *(line.rstrip() for line in table), "", *chosen_words(decision)]
    return "\n".join(lines)


def asked(decision: Decision) -> Iterator[str]:
    """Yield what the list is, and what was asked for it, in words."""
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
    if answers.by_schema:
        return f"none seen yet: {answers.tokens:,.0f} tokens each are expected by the schema"
    if answers.unlimited:
        return f"no max_tokens and none seen yet: {answers.tokens:,.0f} tokens each are assumed"
    return f"none seen yet: {answers.tokens:,.0f} tokens each are assumed, or max_tokens where that is less"


def option_rows(decision: Decision) -> list[tuple[str, ...]]:
    """Return the table of the options, its head first."""
    rows = [_HEAD, *(_row(option, option is decision.chosen) for option in decision.options)]
    rows += [(f"  {route.value}", *[""] * (len(_HEAD) - 2), why) for route, why in decision.closed]
    if decision.constraints.deadline is None:
        rows = [(*row[: _OF_DEADLINE.start], *row[_OF_DEADLINE.stop :]) for row in rows]
    return rows


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


def chosen_words(decision: Decision) -> Iterator[str]:
    """Yield what was chosen, and why."""
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
