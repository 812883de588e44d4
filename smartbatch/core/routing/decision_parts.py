"""A decision as parts of a view: what was asked, every route with its forecast, and why one was chosen."""

from __future__ import annotations

from collections.abc import Iterator

from smartbatch.core.routing.choice import Decision
from smartbatch.core.routing.explanation import asked, chosen_words
from smartbatch.core.routing.options import Option
from smartbatch.core.routing.workload import Cost
from smartbatch.views.model import Cell, DataTable, Note, Part
from smartbatch.views.words import UNKNOWN, money, share


def decision_parts(decision: Decision) -> Iterator[Part]:
    """Yield the words and the table of a decision."""
    yield from map(Note, asked(decision))
    with_deadline = decision.constraints.deadline is not None
    rows = [_row(option, with_deadline=with_deadline) for option in decision.options]
    empty = (None,) * (5 if with_deadline else 4)
    rows += [(route.value, *empty, why) for route, why in decision.closed]
    chosen = next((at for at, option in enumerate(decision.options) if option is decision.chosen), None)
    columns = "route, p50:duration, p95:duration, cost:money, range"
    columns += ", in time" if with_deadline else ""
    yield DataTable.of("Routes and their forecasts", f"{columns}, note", rows, chosen=chosen)
    yield from map(Note, chosen_words(decision))


def _row(option: Option, *, with_deadline: bool) -> tuple[Cell, ...]:
    first = f" ({option.first:,} at once)" if option.first else ""
    cost = option.cost
    odds = (share(option.odds),) if with_deadline else ()
    return (
        f"{option.route.value}{first}",
        option.p50,
        option.p95,
        UNKNOWN if cost is None else cost.expected,
        None if cost is None else _range(cost),
        *odds,
        option.problem or option.ruled_out or None,
    )


def _range(cost: Cost) -> str:
    return f"{money(cost.low)} to {money(cost.high)}"
