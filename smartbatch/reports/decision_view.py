"""A decision on a page: the table of routes as ``Plan.explain()`` has it, time against cost, the reason."""

from __future__ import annotations

from smartbatch._html import Html, el, fragment
from smartbatch.core.routing.choice import Decision
from smartbatch.core.routing.explanation import asked, chosen_words, option_rows
from smartbatch.reports.charts import Mark, trade_off
from smartbatch.reports.components import table


def decision_view(decision: Decision) -> Html:
    """Return what was asked, every route with its forecast, and why one was chosen."""
    head, *rows = option_rows(decision)
    chosen = next((at for at, option in enumerate(decision.options) if option is decision.chosen), None)
    titles = [title or "problem" for title in head]
    numbers = range(1, len(titles) - 1)
    return fragment(
        (el("p", words) for words in asked(decision)),
        table("routes and their forecasts", titles, rows, numbers=numbers, chosen=chosen),
        trade_off_of(decision),
        (el("p", words) for words in chosen_words(decision)),
    )


def trade_off_of(decision: Decision) -> Html:
    """Return the chart of time against cost of the routes whose prices are known."""
    return trade_off(
        [
            Mark(
                option.route.value,
                option.p50,
                option.p95,
                cost.low,
                cost.expected,
                cost.high,
                option is decision.chosen,
            )
            for option in decision.options
            if (cost := option.cost) is not None
        ]
    )
