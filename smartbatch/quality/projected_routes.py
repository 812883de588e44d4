"""Time and cost of the remaining rows for each available route, based on the answers to a sample."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import frozen

from smartbatch._words import UNKNOWN, money_range, number, plural
from smartbatch.core.routing.options import Option
from smartbatch.core.routing.workload import Load
from smartbatch.plan import Plan
from smartbatch.quality.projection import Projection, Range
from smartbatch.types import Route
from smartbatch.views.model import DataTable, Note, Part
from smartbatch.views.terminal import UNLIMITED_WIDTH, table_lines


@frozen
class ProjectedRoute:
    """One route for the rows that a sample left out.

    Attributes:
        route: the route.
        first: rows of a hybrid that are sent in real time first.
        p50, p95: seconds until the last answer, which half of such lists and 95 % of them do not exceed.
        cost: USD; ``None`` if the price is unknown.
        chosen: whether the plan chose it.
        problem: why it does not meet the constraints; empty if it does.
    """

    route: Route
    first: int
    p50: float
    p95: float
    cost: Range | None
    chosen: bool
    problem: str


def projected_routes(projection: Projection, plan: Plan) -> list[ProjectedRoute]:
    """Return the routes that the plan considered.

    The cost of a route is the projected cost in real time, multiplied by the planned cost of the route and
    divided by the planned cost in real time. Without a projection, it is the planned cost.

    Args:
        plan: a plan of the remaining rows.
    """
    return [
        ProjectedRoute(
            option.route,
            option.first,
            option.p50,
            option.p95,
            _cost(option, projection, plan),
            option is plan.decision.chosen,
            option.problem or option.ruled_out,
        )
        for option in plan.options
    ]


def _cost(option: Option, projection: Projection, plan: Plan) -> Range | None:
    planned, alone, load = option.cost, plan.decision.alone.cost, plan.decision.load
    if projection.rest is None:
        return None if planned is None else Range(planned.expected, planned.low, planned.high)
    if option.route is Route.INDIVIDUAL:
        return projection.rest.times(_paid_share(load))
    if planned is None or alone is None:
        return None
    price = planned.expected / alone.expected if alone.expected else 1.0
    return projection.rest.times(_paid_share(load) * price)


def _paid_share(load: Load) -> float:
    """Return the share of the rows that cost something: identical and cached requests are part of the
    projection but cost nothing.
    """
    requests = load.requests + load.duplicates + load.cached
    return load.requests / requests if requests else 0.0


def routes_table(routes: Sequence[ProjectedRoute]) -> DataTable:
    rows = [
        (
            each.route.value + (f" ({number(each.first)} at once)" if each.first else ""),
            each.p50,
            each.p95,
            UNKNOWN if each.cost is None else each.cost.amount,
            None if each.cost is None else _range(each.cost),
            each.problem or None,
        )
        for each in routes
    ]
    chosen = next((at for at, each in enumerate(routes) if each.chosen), None)
    columns = "route, p50:duration, p95:duration, cost:money, 90 % range, note/1"
    return DataTable.of("Routes of the other rows", columns, rows, chosen=chosen)


def _range(cost: Range) -> str | None:
    if cost.low is None or cost.high is None:
        return None
    return money_range(cost.low, cost.high)


def _notes(projection: Projection, load: Load) -> Iterator[str]:
    """Yield sentences about the cost of the remaining rows and about the answers from which it is
    projected.
    """
    if projection.unanswered:
        are = "is" if projection.unanswered == 1 else "are"
        rows = plural(projection.unanswered, "sampled row")
        yield f"{rows} without an answer {are} expected to be sent again."
    answers = plural(projection.answers, "answer")
    if not projection.remaining:
        yield f"All {plural(projection.rows, 'row')} are answered."
    elif not projection.answers:
        yield "No sampled row has an answer with known tokens, so the cost is not projected from the sample."
    elif projection.rest is None:
        yield f"The price is unknown; {_tokens_in_words(projection)}, projected from {answers}."
    else:
        cost = projection.rest.times(_paid_share(load))
        rows = plural(projection.remaining, "row")
        if load.duplicates:
            rows += f" ({plural(load.duplicates, 'duplicate')})"
        yield f"In real time, the other {rows} would cost {cost}, projected from {answers}."


def _tokens_in_words(projection: Projection) -> str:
    tokens, rows = projection.output_tokens, plural(projection.remaining, "row")
    if tokens is None:
        return f"the output tokens of the other {rows} are unknown as well"
    words = f"the other {rows} would take about {tokens.expected:,.0f} output tokens"
    if tokens.low is not None and tokens.high is not None:
        words += f" (90 %: {tokens.low:,.0f} to {tokens.high:,.0f})"
    return words


def projection_parts(projection: Projection, plan: Plan) -> Iterator[Part]:
    """Yield the parts of a page: the projected cost in words, and the table of routes."""
    yield from map(Note, _notes(projection, plan.decision.load))
    if projection.remaining:
        yield routes_table(projected_routes(projection, plan))


def projection_lines(projection: Projection, plan: Plan, width: int = UNLIMITED_WIDTH) -> Iterator[str]:
    """Yield the same as lines for a terminal, ``width`` characters wide. ``>`` marks the chosen route."""
    yield from _notes(projection, plan.decision.load)
    if projection.remaining:
        table = routes_table(projected_routes(projection, plan))
        rows = [
            (f"{'>' if at == table.chosen else ' '} {first}", *rest)
            for at, (first, *rest) in enumerate(table.rows)
        ]
        yield from table_lines(table.columns, rows, width)
