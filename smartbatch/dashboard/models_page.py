"""The page *Models*: pauses and limits set by users, durations of calls and batches, known limits, and
prices.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import get_args

from attrs import define, field

from smartbatch.dashboard.action_forms import model_forms, unpause_form
from smartbatch.dashboard.page import Page, Query, no_store_yet, number_of, pages_of
from smartbatch.dashboard.source import SharedView, Source
from smartbatch.jobs.records import Action
from smartbatch.jobs.store import SqlStore
from smartbatch.jobs.summary_records import topic_of
from smartbatch.observe.participants import LaneStatus
from smartbatch.prices import Processing
from smartbatch.types import Route
from smartbatch.views.drawings import quantile
from smartbatch.views.model import BarsOverTime, Cell, DataTable, Link, Note, Part, Section, View

REFRESH_SECONDS = 5.0  # figures are published every few seconds
ACTIONS_PER_PAGE = 50
MAX_MODELS = 60  # pairs of model and route
MAX_SAMPLE = 500  # calls or batches per model
MAX_CHARTS = 8  # models with the most batches only
PRICED_SECONDS = 7 * 24 * 3600.0  # prices are shown for models used in this time
_HOUR_SECONDS = 3600.0
_PROCESSINGS: tuple[Processing, ...] = get_args(Processing)
_TOKENS_PER_PRICE = 1e6
_DURATION_COLUMNS = (
    "model, route, seen:number, p50:duration, p95:duration, p99:duration, abandoned:number, latest (UTC):time"
)
_LIMIT_COLUMNS = (
    "model, requests:number, tokens:number, input tokens:number, output tokens:number, "
    "paced at:number, processes:number"
)
_PRICE_COLUMNS = "model, tier, prompts above, input:number, cached input:number, output:number, source"


@define
class _Durations:
    model: str
    route: Route
    took: list[tuple[int, float, float]] = field(factory=list)  # requests, seconds, Unix end; newest first
    unfinished: int = 0  # abandoned calls or batches


def page(source: Source, query: Query) -> Page:
    store = source.store
    times, left_out = ([], 0) if store is None else _times(store)
    shared = source.participants()
    models = sorted(_models(source, times, shared))
    sections = (
        *_controls(store, query),
        Section(
            "latency",
            "Duration of calls and batches",
            _latency(times, left_out),
            empty="No calls yet. Clients with a store (store=…) record their calls here.",
        ),
        Section(
            "turnaround", "Batches by hour of creation", _turnaround(times), empty="No batch has ended yet."
        ),
        Section(
            "limits",
            "Known limits per minute",
            _limits(shared),
            empty="No limits known. Processes that share limits (shared=…) publish them while they run.",
        ),
        Section("prices", "Prices", _prices(source, models), empty="No model was used in the last week."),
        _actions(source, store, query),
    )
    return Page(View("Models", sections), REFRESH_SECONDS)


# -- controls and actions ------------------------------------------------------------------------------------


def _controls(store: SqlStore | None, query: Query) -> Iterator[Section]:
    if store is not None:
        controls = store.controls.controls()
        paused: list[tuple[Cell, ...]] = [
            (one.model, one.reason, one.by, one.since, unpause_form(one.model, query))
            for one in controls.pauses.values()
        ]
        limits: list[tuple[Cell, ...]] = [
            (one.model, _limit(one.requests_per_minute), _limit(one.tokens_per_minute), one.by, one.since)
            for one in controls.limits.values()
        ]
        pauses = DataTable.of("Paused models", "model, reason, by, since (UTC):time, ", paused)
        columns = "model, requests per minute, tokens per minute, by, since (UTC):time"
        parts = (pauses if paused else None, DataTable.of("Set limits", columns, limits) if limits else None)
        empty = "No model is paused, and the configured limits apply."
        yield Section("paused", "Paused and limited", parts, empty=empty)
    yield Section("forms", "Pause or limit a model", model_forms(query), is_live=False)


def _limit(number: float | None) -> Cell:
    return "as configured" if number is None else f"{number:,.6g}"


def _actions(source: Source, store: SqlStore | None, query: Query) -> Section:
    if store is None:
        return Section("actions", "Actions", (), empty=no_store_yet(source))
    actions = store.controls.latest(before=number_of(query.values.get("before")), limit=ACTIONS_PER_PAGE + 1)
    older = actions[ACTIONS_PER_PAGE - 1].number if len(actions) > ACTIONS_PER_PAGE else None
    columns = "at (UTC):time, by, action, target, changed:number, left:number, details"
    rows = [_action_row(one, query) for one in actions[:ACTIONS_PER_PAGE]]
    table = DataTable.of("Actions, newest first", columns, rows) if rows else None
    parts = (table, pages_of("actions", query, "before", older))
    return Section("actions", "Actions", parts, empty="No actions yet.")


def _action_row(action: Action, query: Query) -> tuple[Cell, ...]:
    target: Cell = action.target
    if action.job_id is not None and action.name != "forget":
        target = Link(action.job_id, query.link("jobs", action.job_id))
    return (
        action.at,
        action.by,
        action.name.replace("_", " "),
        target,
        action.count,
        action.left_out or None,
        action.detail,
    )


# -- durations -----------------------------------------------------------------------------------------------


def _times(store: SqlStore) -> tuple[list[_Durations], int]:
    """Return the durations, and the number of further pairs of model and route that are left out."""
    found: dict[tuple[str, Route], _Durations] = {}
    names = store.facts.topics()
    for name in names[: 2 * MAX_MODELS]:
        topic = topic_of(name)
        if topic is None or topic.route is None:
            continue
        times = found.setdefault((topic.model, topic.route), _Durations(topic.model, topic.route))
        rows = [
            (size, took, at)
            for size, took, at in store.facts.turnarounds(name, limit=MAX_SAMPLE)
            if 0 <= took < math.inf and math.isfinite(at)
        ]
        if topic.ended:
            times.took = rows
        else:
            times.unfinished = len(rows)
    return list(found.values()), max(0, len(names) - 2 * MAX_MODELS)


def _latency(times: Iterable[_Durations], left_out: int) -> tuple[Part, ...]:
    rows = [_latency_row(each) for each in times if each.took]
    if not rows:
        return ()
    note = f"At most the latest {MAX_SAMPLE}: a sample of the calls, and all batches."
    if left_out:
        note += f" {left_out:,} further names are left out."
    return DataTable.of("Calls and batches", _DURATION_COLUMNS, rows), Note(note)


def _latency_row(times: _Durations) -> tuple[Cell, ...]:
    took = sorted(each for _, each, _ in times.took)
    quantiles = (quantile(took, q) for q in (0.5, 0.95, 0.99))
    return (
        times.model,
        times.route.value,
        len(took),
        *quantiles,
        times.unfinished,
        max(at for _, _, at in times.took),
    )


def _turnaround(times: Iterable[_Durations]) -> tuple[Part, ...]:
    batches = [each for each in times if each.route is Route.BATCH and each.took]
    batches.sort(key=lambda each: -len(each.took))
    charts = [_by_hour(each) for each in batches[:MAX_CHARTS]]
    left = len(batches) - MAX_CHARTS
    return (*charts, *([Note(f"{left:,} further models are left out.")] if left > 0 else []))


def _by_hour(times: _Durations) -> BarsOverTime:
    hours: dict[int, list[float]] = {}
    for _, took, at in times.took:
        if took > 0:
            hours.setdefault(datetime.fromtimestamp(at - took, UTC).hour, []).append(took)
    bars = tuple((hour * _HOUR_SECONDS, quantile(sorted(hours[hour]), 0.5)) for hour in sorted(hours))
    title = f"{times.model}: p50 of {len(times.took):,} batches by hour of creation (UTC)"
    return BarsOverTime(
        title, _HOUR_SECONDS, bars, "duration", low=0.0, high=24 * _HOUR_SECONDS, ticks="hours"
    )


# -- limits and prices ---------------------------------------------------------------------------------------


def _limits(shared: SharedView) -> tuple[Part, ...]:
    rows: list[tuple[Cell, ...]] = [
        (lane.model, *(value or None for value in _limits_of(lane)), lane.processes)
        for lane in _lanes(shared)
        if any(_limits_of(lane))
    ]
    return (DataTable.of("Limits per minute", _LIMIT_COLUMNS, rows),) if rows else ()


def _lanes(shared: SharedView) -> list[LaneStatus]:
    """Return the latest published lane of each limit."""
    lanes: dict[tuple[str, str], LaneStatus] = {}
    for one in reversed(shared.found.processes):  # so that the latest report wins
        for lane in one.realtime.lanes:
            lanes[lane.model, lane.quota] = lane
    return [lanes[key] for key in sorted(lanes)]


def _limits_of(lane: LaneStatus) -> tuple[float, ...]:
    return (
        lane.requests_per_minute,
        lane.tokens_per_minute,
        lane.input_tokens_per_minute,
        lane.output_tokens_per_minute,
        lane.spaced_per_minute,
    )


def _models(source: Source, times: Iterable[_Durations], shared: SharedView) -> set[str]:
    models = {each.model for each in times} | {lane.model for lane in _lanes(shared)}
    return models | {each.model for each in source.spending(source.now() - PRICED_SECONDS)}


def _prices(source: Source, models: Sequence[str]) -> tuple[Part, ...]:
    rows = [row for model in models[:MAX_MODELS] for row in _price_rows(source, model)]
    return (DataTable.of("USD per million tokens", _PRICE_COLUMNS, rows),) if rows else ()


def _price_rows(source: Source, model: str) -> Iterator[tuple[Cell, ...]]:
    provider, _, name = model.partition(":")
    known = False
    for processing in _PROCESSINGS:
        card = source.prices.rates(provider, name, source.now(), processing)
        for band in () if card is None else card.bands:
            known = True
            above = f"{band.above:,} tokens" if band.above > 0 else None
            usd = (rate * _TOKENS_PER_PRICE for rate in (band.input, band.cached, band.output))
            yield model, processing, above, *usd, None if card is None else card.source
    if not known:
        yield model, "no known price", None, None, None, None, None
