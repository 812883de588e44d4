"""A decision in words, in figures that can be checked by hand, and as the text that a store keeps."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator
from typing import Any

from attrs import asdict, fields_dict

from smartbatch._words import UNKNOWN, money, share
from smartbatch.core.routing.choice import Decision
from smartbatch.core.routing.options import Constraints, Option
from smartbatch.core.routing.workload import AnswerLengths, Cost, Load
from smartbatch.types import Route, Strategy
from smartbatch.views.model import Cell, DataTable, Note, Part

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
VERSION = 1
"""Of the form; it grows with every change of the fields of the records in it."""


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


def decision_text(decision: Decision) -> str:
    """Return a decision as ASCII text, a kilobyte or two; fields that have their default are left out."""
    options = list(decision.options)
    form = {
        "version": VERSION,
        "load": _form(decision.load),
        "constraints": _form(decision.constraints),
        "options": [_form(option) for option in options],
        "chosen": _place(decision.chosen, options),
        "alone": _place(decision.alone, options),
        "batch": None if decision.batch is None else _place(decision.batch, options),
        "closed": [[route.value, why] for route, why in decision.closed],
        "reason": decision.reason,
    }
    return json.dumps(form, separators=(",", ":"))


def decision_of(text: str) -> Decision | None:
    """Return the decision of :func:`decision_text`; ``None`` where a newer release wrote it, or it is
    damaged: it is only shown, so nothing depends on it.
    """
    try:
        form = json.loads(text)
        if form["version"] > VERSION:
            return None
        load, constraints = form["load"], form["constraints"]
        if "answers" in load:
            load["answers"] = AnswerLengths(**load["answers"])
        if "strategy" in constraints:
            constraints["strategy"] = Strategy(constraints["strategy"])
        options = [_option(each) for each in form["options"]]
        batch = form["batch"]
        return Decision(
            load=Load(**load),
            constraints=Constraints(**constraints),
            options=tuple(options),
            chosen=_at(form["chosen"], options),
            reason=str(form["reason"]),
            alone=_at(form["alone"], options),
            batch=None if batch is None else _at(batch, options),
            closed=tuple((Route(route), str(why)) for route, why in form["closed"]),
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError):
        return None


def _form(record: Any) -> dict[str, Any]:
    """Return what is not as by default of a record, and of the records in it."""
    defaults = {name: attribute.default for name, attribute in fields_dict(type(record)).items()}
    plain = asdict(record, value_serializer=_plain)
    return {name: value for name, value in plain.items() if getattr(record, name) != defaults[name]}


def _plain(_record: object, _field: object, value: Any) -> Any:
    return value.value if isinstance(value, enum.Enum) else value


def _place(option: Option, options: list[Option]) -> int | dict[str, Any]:
    """Return which of the options it is, or what it is, where it is none of them."""
    return options.index(option) if option in options else _form(option)


def _at(place: int | dict[str, Any], options: list[Option]) -> Option:
    return options[place] if isinstance(place, int) else _option(place)


def _option(form: dict[str, Any]) -> Option:
    cost = form.get("cost")
    return Option(**{**form, "route": Route(form["route"]), "cost": None if cost is None else Cost(**cost)})


def decision_parts(decision: Decision) -> Iterator[Part]:
    """Yield the words and the table of a decision, for a page."""
    yield from map(Note, asked(decision))
    with_deadline = decision.constraints.deadline is not None
    rows: list[tuple[Cell, ...]] = []
    for option in decision.options:
        at_once = f" ({option.first:,} at once)" if option.first else ""
        cost = option.cost
        rows.append(
            (
                f"{option.route.value}{at_once}",
                option.p50,
                option.p95,
                UNKNOWN if cost is None else cost.expected,
                None if cost is None else f"{money(cost.low)} to {money(cost.high)}",
                *((share(option.odds),) if with_deadline else ()),
                option.problem or option.ruled_out or None,
            )
        )
    empty = (None,) * (5 if with_deadline else 4)
    rows += [(route.value, *empty, why) for route, why in decision.closed]
    chosen = next((at for at, option in enumerate(decision.options) if option is decision.chosen), None)
    columns = "route, p50:duration, p95:duration, cost:money, range"
    columns += ", in time" if with_deadline else ""
    yield DataTable.of("Routes and their forecasts", f"{columns}, note", rows, chosen=chosen)
    yield from map(Note, chosen_words(decision))
