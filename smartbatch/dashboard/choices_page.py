"""*Choices*: each decision on a route with its forecast, what it took, and what it saved or lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from attrs import define, field, frozen

from smartbatch._html import Child, Html, el, fragment
from smartbatch.core.routing.outcome import Measured
from smartbatch.dashboard.job_rows import moment_of
from smartbatch.dashboard.jobs_page import number_of
from smartbatch.dashboard.page import Page, PageSection, Query, no_store_yet
from smartbatch.dashboard.source import Source
from smartbatch.jobs.store import SqlStore
from smartbatch.jobs.summary_records import StoredDecision
from smartbatch.reports import charts, components
from smartbatch.reports.axes import Axis, seconds, share, usd
from smartbatch.reports.decision_view import decision_view
from smartbatch.types import Route

EVERY = 2.0
"""Seconds between two looks while somebody watches; what is shown is written every few seconds."""
PAGE = 50
"""Decisions of a page."""
SUMMED = 1_000
"""The latest decisions, over which is summed."""
UNKNOWN = "unknown"
_HEAD = (
    "when (UTC)",
    "model",
    "requests",
    "route",
    "forecast: half, 95 %",
    "took",
    "forecast USD",
    "USD",
    "against always-individual",
    "against always-batch",
)
_SUMS = ("route", "decisions", "requests", "USD", "against always-individual", "against always-batch")
_TIME = Axis("seconds to the last answer", seconds, log=True)
_NOTE = (
    "Nobody knows what always-individual and always-batch would have come to. By the tokens used: what the "
    "tokens that were really used cost by that route. By forecast: what was forecast when the route was "
    "chosen. What the list really cost and took is subtracted from either. Nothing is compared where it "
    "went by that route itself, or that route was not forecast: there is no Batch API for it, or it was not "
    "to be used."
)


def page(source: Source, query: Query) -> Page:
    """Return the page."""
    store = source.store
    if store is None:
        return _alone("Choices", no_store_yet(source))
    figures = store.summaries.decisions(limit=SUMMED)
    return Page(
        "Choices",
        (
            PageSection("calibration", "Forecasts and what came", _calibration(figures)),
            PageSection("saved", "Saved and lost, by route", _saved(figures)),
            PageSection("decisions", "Decisions", _decisions(store, query)),
        ),
        every=EVERY,
    )


def page_of_one(source: Source, query: Query) -> Page:
    """Return the page of one decision: its table of routes, and what it took."""
    store, no = source.store, number_of(query.argument)
    one = None if store is None or no is None else store.summaries.numbered(no)
    if one is None:
        return _alone("Choice", "There is no such decision; of those on lists only the latest are kept.")
    return Page(
        f"Choice of {one.route} for {one.requests:,} requests",
        (
            PageSection("outcome", "Forecast and outcome", _outcome(one, query)),
            PageSection("routes", "Routes that were compared", _routes(one)),
        ),
    )


def _alone(title: str, text: str) -> Page:
    return Page(title, (PageSection("decisions", "Decisions", el("p", text)),))


# -- sums ----------------------------------------------------------------------------------------------------


def _calibration(figures: Sequence[StoredDecision]) -> Html:
    """Return how often what came lay within the forecast, and each forecast against what came."""
    known = [(one, one.measured) for one in figures if one.measured is not None]
    if not known:
        return el("p", "No decision was measured yet.", class_="soft")
    half = sum(measured.seconds <= one.p50 for one, measured in known)
    most = sum(measured.seconds <= one.p95 for one, measured in known)
    rows: list[tuple[str, Child]] = [
        ("decisions measured", f"{len(known):,}"),
        ("within the forecast of half (50 % would be right)", share(half / len(known))),
        ("within the forecast of 95 % (95 % would be right)", share(most / len(known))),
    ]
    met = [measured.seconds <= one.deadline for one, measured in known if one.deadline is not None]
    if met:
        rows.append(("deadlines met", f"{sum(met):,} of {len(met):,}"))
    points = [
        charts.Forecast(f"{one.route}, {one.requests:,} requests", one.p50, one.p95, measured.seconds)
        for one, measured in known
    ]
    plot = charts.calibration("Forecast of half the lists against what came", points, _TIME)
    return fragment(components.facts(rows), plot)


@frozen
class _Gain:
    """What was saved against another route; negative where it was lost, ``None`` where nothing is known.

    Attributes:
        usd: by what the tokens that were really used cost there.
        forecast_usd: by its forecast, where that is all there is.
        seconds: by its forecast.
        compared: decisions of which that is known.
    """

    usd: float | None = None
    forecast_usd: float | None = None
    seconds: float | None = None
    compared: int = 0

    def __add__(self, other: _Gain) -> _Gain:
        return _Gain(
            _sum(self.usd, other.usd),
            _sum(self.forecast_usd, other.forecast_usd),
            _sum(self.seconds, other.seconds),
            self.compared + other.compared,
        )


@define
class _Sums:
    """What decisions for one route came to, as far as it is known."""

    decisions: int = 0
    requests: int = 0
    paid: float = 0.0
    individual: _Gain = field(factory=_Gain)
    batch: _Gain = field(factory=_Gain)


def _gains(one: StoredDecision, measured: Measured) -> tuple[_Gain, _Gain]:
    """Return what was saved against always-individual and against always-batch."""
    individual = measured.individual_cost, one.individual_cost, one.individual_p50
    batch = measured.batch_cost, one.batch_cost, one.batch_p50
    return _gain(one, Route.INDIVIDUAL, measured, *individual), _gain(one, Route.BATCH, measured, *batch)


def _gain(
    one: StoredDecision,
    other: Route,
    measured: Measured,
    used: float | None,
    cost: float | None,
    p50: float | None,
) -> _Gain:
    """Return what was saved against another route.

    Args:
        used: USD of the tokens that were really used, by that route.
        cost, p50: forecast of it.
    """
    if one.route == other.value or p50 is None:
        return _Gain()
    seconds = p50 - measured.seconds
    if measured.cost is None:
        return _Gain(seconds=seconds, compared=1)
    if used is not None:
        return _Gain(usd=used - measured.cost, seconds=seconds, compared=1)
    forecast = None if cost is None else cost - measured.cost
    return _Gain(forecast_usd=forecast, seconds=seconds, compared=1)


def _sum(one: float | None, other: float | None) -> float | None:
    return one if other is None else other if one is None else one + other


def _saved(figures: Iterable[StoredDecision]) -> Html:
    """Return what was saved and lost by route, against the plain routes."""
    by_route: dict[str, _Sums] = {}
    for one in figures:
        if one.measured is None:
            continue
        sums = by_route.setdefault(one.route, _Sums())
        sums.decisions += 1
        sums.requests += one.requests
        sums.paid += one.measured.cost or 0.0
        individual, batch = _gains(one, one.measured)
        sums.individual = sums.individual + individual
        sums.batch = sums.batch + batch
    if not by_route:
        return el("p", "No decision was measured yet.", class_="soft")
    rows = [
        (
            route,
            f"{sums.decisions:,}",
            f"{sums.requests:,}",
            usd(sums.paid),
            _in_words(sums.individual, of=sums.decisions),
            _in_words(sums.batch, of=sums.decisions),
        )
        for route, sums in sorted(by_route.items(), key=lambda each: -each[1].decisions)
    ]
    caption = f"The latest {SUMMED:,} decisions that were measured, by route"
    return fragment(components.table(caption, _SUMS, rows, numbers=(1, 2, 3)), el("p", _NOTE, class_="soft"))


def _in_words(gain: _Gain, of: int = 1) -> Child:
    """Say what was saved and what was lost, and whether that is known; never by a sign alone. Of several
    decisions also of how many, where not all could be compared."""
    if gain.seconds is None:
        return "–"
    lines = []
    if gain.usd is not None:
        lines.append((_difference(gain.usd, usd), "by the tokens used"))
    if gain.forecast_usd is not None:
        lines.append((_difference(gain.forecast_usd, usd), "by forecast"))
    if not lines:
        lines.append((UNKNOWN, ""))
    lines.append((_difference(gain.seconds, seconds), "by forecast"))
    if gain.compared < of:
        lines.append(("", f"of {gain.compared:,} of these {of:,} decisions"))
    return fragment(el("div", told, " ", el("span", how, class_="soft")) for told, how in lines)


def _difference(saved: float, words: Callable[[float], str]) -> str:
    told = words(abs(saved))
    return f"{told} {'saved' if saved >= 0 else 'lost'}" if told != words(0.0) else "the same"


# -- each ----------------------------------------------------------------------------------------------------


def _decisions(store: SqlStore, query: Query) -> Html:
    """Return a page of decisions; it is named by the one before it, so it costs the same wherever it is."""
    before = number_of(query.values.get("before"))
    found = store.summaries.decisions(before=before, limit=PAGE + 1)
    if not found:
        return el("p", "No route was chosen yet.", class_="soft")
    table = components.table(
        "Decisions, newest first", _HEAD, [_row(one, query) for one in found[:PAGE]], numbers=(2, 6, 7)
    )
    links = []
    if before is not None:
        links.append(el("li", el("a", "Newest decisions", href=query.again(before=None))))
    if len(found) > PAGE:
        older = query.again(before=found[PAGE - 1].no)
        links.append(el("li", el("a", "Older decisions", href=older)))
    pages = el("nav", el("ul", links), aria_label="Pages of decisions") if links else None
    return fragment(table, pages)


def _row(one: StoredDecision, query: Query) -> tuple[Child, ...]:
    measured = one.measured
    return (
        el("a", moment_of(one.at), href=query.link("choices", str(one.no))),
        one.model,
        f"{one.requests:,}",
        one.route,
        f"{seconds(one.p50)}, {seconds(one.p95)}",
        "–" if measured is None else _took(one, measured),
        _usd(one.cost),
        "–" if measured is None else _usd(measured.cost),
        *_against(one),
    )


def _took(one: StoredDecision, measured: Measured) -> Child:
    took = measured.seconds
    within = "within half" if took <= one.p50 else "within 95 %" if took <= one.p95 else "beyond 95 %"
    parts: list[Child] = [el("div", seconds(took)), el("div", within, class_="soft")]
    if one.deadline is not None:
        met = took <= one.deadline
        parts.append(components.state("deadline met" if met else "deadline missed", "good" if met else "bad"))
    return fragment(parts)


def _against(one: StoredDecision) -> tuple[Child, Child]:
    """Return what always-individual and always-batch were forecast to come to, or what was saved by then."""
    if one.measured is not None:
        individual, batch = _gains(one, one.measured)
        return _in_words(individual), _in_words(batch)
    by_batch = "not forecast" if one.batch_p50 is None else _forecast(one.batch_cost, one.batch_p50)
    return _forecast(one.individual_cost, one.individual_p50), by_batch


def _forecast(cost: float | None, p50: float) -> str:
    return f"{_usd(cost)}, {seconds(p50)} forecast"


def _outcome(one: StoredDecision, query: Query) -> Html:
    rows: list[tuple[str, Child]] = [
        ("when (UTC)", moment_of(one.at)),
        ("model", one.model),
        ("route", one.route),
        ("time to the last answer", f"forecast {seconds(one.p50)}, 95 % within {seconds(one.p95)}"),
        ("cost", f"forecast {_usd(one.cost)}"),
    ]
    if one.job_id is not None:
        rows.insert(1, ("job", el("a", one.job_id, href=query.link("jobs", one.job_id))))
    if one.measured is None:
        return fragment(components.facts(rows), el("p", "Its last answer is not there yet.", class_="soft"))
    measured = one.measured
    rows += [
        ("took", _took(one, measured)),
        ("cost really", _usd(measured.cost)),
        ("the same tokens in real time", _usd(measured.individual_cost)),
        ("the same tokens by batch", _usd(measured.batch_cost)),
    ]
    rows += zip(("against always-individual", "against always-batch"), _against(one), strict=True)
    return fragment(components.facts(rows), el("p", _NOTE, class_="soft"))


def _routes(one: StoredDecision) -> Html:
    if one.decision is None:
        return el("p", "A newer smartbatch made this decision: update to see its table.", class_="soft")
    return decision_view(one.decision)


def _usd(value: float | None) -> str:
    return UNKNOWN if value is None else usd(value)
