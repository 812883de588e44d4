"""The page *Decisions*: each chosen route with its forecast, its outcome, and its savings or losses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from attrs import define, field, frozen

from smartbatch._words import UNKNOWN, duration, moment, money, share
from smartbatch.core.routing.explanation import decision_parts
from smartbatch.core.routing.outcome import Measured
from smartbatch.dashboard.page import Page, Query, no_store_yet, number_of, pages_of
from smartbatch.dashboard.source import Source
from smartbatch.jobs.store import SqlStore
from smartbatch.jobs.summary_records import StoredDecision
from smartbatch.types import Route
from smartbatch.views.model import (
    Cell,
    DataTable,
    Facts,
    Link,
    Moment,
    Note,
    Part,
    Section,
    State,
    Tile,
    Value,
    ValueDistribution,
    View,
)

REFRESH_SECONDS = 2.0  # figures are published every few seconds
DECISIONS_PER_PAGE = 50
MAX_SUMMED_DECISIONS = 1_000  # latest decisions included in totals
_COLUMNS = (
    "at (UTC), model, requests:number, route, time, cost:money, compared with individual, compared with batch"
)
_TOTAL_COLUMNS = (
    "route, decisions:number, requests:number, cost:money, compared with individual, compared with batch"
)
_NOTE = (
    "Alternatives were not run. Their cost is computed from the tokens actually used (by tokens used) or, if "
    "that is unknown, taken from the forecast (by forecast); their duration is always a forecast. A route "
    "without a forecast, such as a batch without a Batch API, is not compared."
)
_NO_OUTCOME = "No outcome yet: the requests are still running."
_NO_DECISIONS = "No decisions yet. Send a list with generate(…, deadline=…) or smartbatch run."


def page(source: Source, query: Query) -> Page:
    store = source.store
    if store is None:
        return _alone("Decisions", no_store_yet(source))
    figures = store.summaries.decisions(limit=MAX_SUMMED_DECISIONS)
    sections = (
        Section("calibration", "Forecasts and outcomes", _calibration(figures), empty=_NO_OUTCOME),
        Section("saved", "Saved and lost by route", _saved(figures), empty=_NO_OUTCOME),
        Section("decisions", "Decisions", _decisions(store, query), empty=_NO_DECISIONS),
    )
    return Page(View("Decisions", sections, tiles=_tiles(figures)), REFRESH_SECONDS)


def page_of_one(source: Source, query: Query) -> Page:
    store, no = source.store, number_of(query.argument)
    one = None if store is None or no is None else store.summaries.numbered(no)
    if one is None:
        return _alone("Decision", "There is no such decision; only the latest decisions on lists are kept.")
    routes = tuple(decision_parts(one.decision)) if one.decision is not None else ()
    sections = (
        Section("outcome", "Forecast and outcome", _outcome(one, query)),
        Section(
            "routes",
            "Compared routes",
            routes,
            empty="This decision was made by a newer smartbatch: update to see its routes.",
        ),
    )
    return Page(View(f"{one.route.capitalize()} for {one.requests:,} requests", sections, subtitle=one.model))


def _alone(title: str, text: str) -> Page:
    return Page(View(title, (Section("decisions", "Decisions", (), empty=text),)))


# -- totals --------------------------------------------------------------------------------------------------


def _tiles(figures: Sequence[StoredDecision]) -> tuple[Tile, ...]:
    known = [(one, one.measured) for one in figures if one.measured is not None]
    tiles = [Tile("Decisions", f"{len(figures):,}", f"{len(known):,} measured")]
    if known:
        half = sum(measured.seconds <= one.p50 for one, measured in known) / len(known)
        most = sum(measured.seconds <= one.p95 for one, measured in known) / len(known)
        tiles.append(Tile("Within p50", share(half), "ideal: 50 %"))
        tiles.append(Tile("Within p95", share(most), "ideal: 95 %"))
    met = [measured.seconds <= one.deadline for one, measured in known if one.deadline is not None]
    if met:
        tiles.append(Tile("Deadlines met", f"{sum(met):,} of {len(met):,}", tone="" if all(met) else "bad"))
    return tuple(tiles)


def _calibration(figures: Sequence[StoredDecision]) -> tuple[Part, ...]:
    ratios = tuple(
        one.measured.seconds / one.p50 for one in figures if one.measured is not None and one.p50 > 0
    )
    if not ratios:
        return ()
    return (
        ValueDistribution("Duration as a multiple of its p50 forecast", ratios, marks=(("forecast", 1.0),)),
    )


@frozen
class _Gain:
    """Savings compared with another route; negative for a loss, ``None`` if unknown."""

    usd: float | None = None  # computed from the tokens actually used
    forecast_usd: float | None = None  # computed from the forecast, if the actual tokens are unknown
    seconds: float | None = None  # computed from the forecast
    compared: int = 0  # number of decisions compared

    def __add__(self, other: _Gain) -> _Gain:
        return _Gain(
            _sum(self.usd, other.usd),
            _sum(self.forecast_usd, other.forecast_usd),
            _sum(self.seconds, other.seconds),
            self.compared + other.compared,
        )


@define
class _Sums:
    decisions: int = 0
    requests: int = 0
    paid: float = 0.0
    individual: _Gain = field(factory=_Gain)
    batch: _Gain = field(factory=_Gain)


def _gains(one: StoredDecision, measured: Measured) -> tuple[_Gain, _Gain]:
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
    """Compare a decision with another route. ``used`` is the cost of the tokens actually used, at that
    route's price; ``cost`` and ``p50`` are its forecast.
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


def _saved(figures: Iterable[StoredDecision]) -> tuple[Part, ...]:
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
        return ()
    rows: list[tuple[Cell, ...]] = [
        (
            route,
            sums.decisions,
            sums.requests,
            sums.paid,
            _in_words(sums.individual, of=sums.decisions),
            _in_words(sums.batch, of=sums.decisions),
        )
        for route, sums in sorted(by_route.items(), key=lambda each: -each[1].decisions)
    ]
    caption = f"Measured decisions among the latest {MAX_SUMMED_DECISIONS:,}, by route"
    return DataTable.of(caption, _TOTAL_COLUMNS, rows), Note(_NOTE)


def _in_words(gain: _Gain, of: int = 1) -> Cell:
    if gain.seconds is None:
        return None
    lines = []
    if gain.usd is not None:
        lines.append(f"{_difference(gain.usd, money)} by tokens used")
    if gain.forecast_usd is not None:
        lines.append(f"{_difference(gain.forecast_usd, money)} by forecast")
    lines = lines or [UNKNOWN]
    lines.append(f"{_difference(gain.seconds, duration)} by forecast")
    if gain.compared < of:
        lines.append(f"of {gain.compared:,} of these {of:,} decisions")
    return tuple(lines)


def _difference(saved: float, words: Callable[[float], str]) -> str:
    amount = words(abs(saved))
    return f"{amount} {'saved' if saved >= 0 else 'lost'}" if amount != words(0.0) else "the same"


# -- single decisions ----------------------------------------------------------------------------------------


def _decisions(store: SqlStore, query: Query) -> tuple[Part, ...]:
    found = store.summaries.decisions(
        before=number_of(query.values.get("before")), limit=DECISIONS_PER_PAGE + 1
    )
    rows = [_row(one, query) for one in found[:DECISIONS_PER_PAGE]]
    table = DataTable.of("Decisions, newest first", _COLUMNS, rows) if rows else None
    older = found[DECISIONS_PER_PAGE - 1].no if len(found) > DECISIONS_PER_PAGE else None
    links = pages_of("decisions", query, "before", older)
    return tuple(part for part in (table, links) if part is not None)


def _row(one: StoredDecision, query: Query) -> tuple[Cell, ...]:
    measured = one.measured
    return (
        Link(moment(one.at)[:16], query.link("decisions", str(one.no))),
        one.model,
        one.requests,
        one.route,
        (*(() if measured is None else _took(one, measured)), _time_forecast(one)),
        (*(() if measured is None else (money(measured.cost),)), f"forecast {money(one.cost)}"),
        *_against(one),
    )


def _time_forecast(one: StoredDecision) -> str:
    return f"forecast {duration(one.p50)}, p95 {duration(one.p95)}"


def _took(one: StoredDecision, measured: Measured) -> tuple[Value, ...]:
    took = measured.seconds
    within = "within p50" if took <= one.p50 else "within p95" if took <= one.p95 else "beyond p95"
    if one.deadline is None:
        return duration(took), within
    met = took <= one.deadline
    state = State("deadline met" if met else "deadline missed", "good" if met else "bad")
    return duration(took), within, state


def _against(one: StoredDecision) -> tuple[Cell, Cell]:
    """Return the forecasts of the two plain routes or, after the outcome, the gains compared with them."""
    if one.measured is not None:
        individual, batch = _gains(one, one.measured)
        return _in_words(individual), _in_words(batch)
    by_batch = "no forecast" if one.batch_p50 is None else _forecast(one.batch_cost, one.batch_p50)
    return _forecast(one.individual_cost, one.individual_p50), by_batch


def _forecast(cost: float | None, p50: float) -> str:
    return f"{money(cost)}, {duration(p50)} forecast"


def _outcome(one: StoredDecision, query: Query) -> tuple[Part, ...]:
    rows: list[tuple[str, Cell]] = [
        ("at (UTC)", Moment(one.at)),
        *([("job", Link(one.job_id, query.link("jobs", one.job_id)))] if one.job_id is not None else []),
        ("model", one.model),
        ("route", one.route),
        ("time", _time_forecast(one)),
        ("cost forecast", money(one.cost)),
    ]
    if one.measured is None:
        return Facts(tuple(rows)), Note("Its last answer has not arrived yet.")
    measured = one.measured
    rows += [
        ("took", _took(one, measured)),
        ("cost", money(measured.cost)),
        ("the same tokens in real time", money(measured.individual_cost)),
        ("the same tokens by batch", money(measured.batch_cost)),
    ]
    rows += zip(("compared with individual", "compared with batch"), _against(one), strict=True)
    return Facts(tuple(rows)), Note(_NOTE)
