"""*Models*: pauses and limits set by people, times of calls and batches, known limits, and prices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

from attrs import define, field

from smartbatch.dashboard import act_forms
from smartbatch.dashboard.page import Page, Query, no_store_yet, number_of, pages_of
from smartbatch.dashboard.shared_view import SharedView
from smartbatch.dashboard.source import Source
from smartbatch.jobs.records import Act
from smartbatch.jobs.store import SqlStore
from smartbatch.jobs.summary_records import topic_of
from smartbatch.observe.participants import LaneStatus
from smartbatch.prices import Processing
from smartbatch.types import Route
from smartbatch.views.drawings import quantile
from smartbatch.views.model import BarsOverTime, Cell, DataTable, Link, Note, Part, Section, View

EVERY = 5.0
"""Seconds between two looks while somebody watches; what is shown is written every few seconds."""
ACTS = 50
"""Actions of a page."""
TOPICS = 60
"""Models and routes of a page; of each what the store keeps, some hundred calls or batches."""
SAMPLE = 500
DRAWN = 8
"""Models whose batches are drawn by the hour, those with the most of them."""
USED_WITHIN = 7 * 24 * 3600.0
"""Seconds back from now; prices of models used since then are shown."""
_HOUR = 3600.0
_PROCESSINGS: tuple[Processing, ...] = ("standard", "batch", "flex")
_MILLION = 1e6
_TIMES = (
    "model, route, seen:number, p50:duration, p95:duration, p99:duration, given up:number, latest (UTC):time"
)
_LIMITS = (
    "model, requests:number, tokens:number, input tokens:number, output tokens:number, "
    "evenly spaced to:number, processes:number"
)
_PRICES = "model, tier, prompts above, input:number, cached input:number, output:number, source"


@define
class _Times:
    """What was seen of one model by one route.

    Attributes:
        took: requests, seconds and Unix time of the end of each, newest first.
        given_up: as many were given up before they ended.
    """

    model: str
    route: Route
    took: list[tuple[int, float, float]] = field(factory=list)
    given_up: int = 0


def page(source: Source, query: Query) -> Page:
    """Return the page."""
    store = source.store
    times, left_out = ([], 0) if store is None else _times(store)
    shared = source.participants()
    models = sorted(_models(source, times, shared))
    sections = (
        *_controls(store, query),
        Section(
            "latency",
            "Time of calls and batches",
            _latency(times, left_out),
            empty="No calls yet: clients with a store (store=…) record theirs.",
        ),
        Section(
            "turnaround",
            "Batches by the hour of their creation",
            _turnaround(times),
            empty="No batch has ended yet.",
        ),
        Section(
            "limits",
            "Known limits per minute",
            _limits(shared),
            empty="No limits known: processes that share limits (shared=…) publish them while they run.",
        ),
        Section("prices", "Prices", _prices(source, models), empty="No model was used yet."),
        _acts(source, store, query),
    )
    return Page(View("Models", sections), every=EVERY)


# -- controls and actions ------------------------------------------------------------------------------------


def _controls(store: SqlStore | None, query: Query) -> Iterator[Section]:
    """Yield what people paused and limited, and the forms for it."""
    if store is not None:
        controls = store.controls.controls()
        paused: list[tuple[Cell, ...]] = [
            (one.model, one.reason, one.by, one.since, act_forms.unpause(one.model, query))
            for one in controls.pauses.values()
        ]
        limits: list[tuple[Cell, ...]] = [
            (one.model, _limit(one.requests_per_minute), _limit(one.tokens_per_minute), one.by, one.since)
            for one in controls.limits.values()
        ]
        pauses = DataTable.of("Paused models", "model, reason, by, since (UTC):time, ", paused)
        columns = "model, requests per minute, tokens per minute, by, since (UTC):time"
        parts = (pauses if paused else None, DataTable.of("Set limits", columns, limits) if limits else None)
        empty = "Nothing is paused, and the configured limits apply."
        yield Section("paused", "Paused and limited", parts, empty=empty)
    yield Section("forms", "Pause or limit a model", act_forms.of_models(query), is_live=False)


def _limit(number: float | None) -> Cell:
    return "as configured" if number is None else f"{number:,.6g}"


def _acts(source: Source, store: SqlStore | None, query: Query) -> Section:
    """Return who did what, by pages."""
    if store is None:
        return Section("acts", "Actions", (), empty=no_store_yet(source))
    acts = store.controls.latest(before=number_of(query.values.get("before")), limit=ACTS + 1)
    older = acts[ACTS - 1].number if len(acts) > ACTS else None
    columns = "at (UTC):time, by, action, target, changed:number, left:number, details"
    rows = [_act_row(one, query) for one in acts[:ACTS]]
    table = DataTable.of("Actions, newest first", columns, rows) if rows else None
    parts = (table, pages_of("actions", query, "before", older))
    return Section("acts", "Actions", parts, empty="No actions yet.")


def _act_row(act: Act, query: Query) -> tuple[Cell, ...]:
    target: Cell = act.target
    if act.job_id is not None and act.name != "forget":
        target = Link(act.job_id, query.link("jobs", act.job_id))
    return act.at, act.by, act.name.replace("_", " "), target, act.count, act.left_out or None, act.detail


# -- times ---------------------------------------------------------------------------------------------------


def _times(store: SqlStore) -> tuple[list[_Times], int]:
    """Return what the store knows of calls and batches, and how many further names are left out."""
    found: dict[tuple[str, Route], _Times] = {}
    names = store.facts.topics()
    for name in names[: 2 * TOPICS]:
        topic = topic_of(name)
        if topic is None or topic.route is None:
            continue
        times = found.setdefault((topic.model, topic.route), _Times(topic.model, topic.route))
        rows = [
            (size, took, at)
            for size, took, at in store.facts.turnarounds(name, limit=SAMPLE)
            if 0 <= took < math.inf and math.isfinite(at)
        ]
        if topic.ended:
            times.took = rows
        else:
            times.given_up = len(rows)
    return list(found.values()), max(0, len(names) - 2 * TOPICS)


def _latency(times: Iterable[_Times], left_out: int) -> tuple[Part, ...]:
    rows = [_latency_row(each) for each in times if each.took]
    if not rows:
        return ()
    note = f"The latest {SAMPLE} at most: a sample of the calls, and all batches."
    if left_out:
        note += f" {left_out:,} further names are left out."
    return DataTable.of("Calls and batches", _TIMES, rows), Note(note)


def _latency_row(times: _Times) -> tuple[Cell, ...]:
    took = sorted(each for _, each, _ in times.took)
    quantiles = (quantile(took, q) for q in (0.5, 0.95, 0.99))
    return (
        times.model,
        times.route.value,
        len(took),
        *quantiles,
        times.given_up,
        max(at for _, _, at in times.took),
    )


def _turnaround(times: Iterable[_Times]) -> tuple[Part, ...]:
    """Return the turnaround of batches by the hour of the day in which they were created."""
    batches = [each for each in times if each.route is Route.BATCH and each.took]
    batches.sort(key=lambda each: -len(each.took))
    charts = [_by_hour(each) for each in batches[:DRAWN]]
    left = len(batches) - DRAWN
    return (*charts, *([Note(f"{left:,} further models are left out.")] if left > 0 else []))


def _by_hour(times: _Times) -> BarsOverTime:
    hours: dict[int, list[float]] = {}
    for _, took, at in times.took:
        if took > 0:
            hours.setdefault(datetime.fromtimestamp(at - took, UTC).hour, []).append(took)
    bars = tuple((hour * _HOUR, quantile(sorted(hours[hour]), 0.5)) for hour in sorted(hours))
    title = f"{times.model}: p50 of {len(times.took):,} batches by hour of creation (UTC)"
    return BarsOverTime(title, _HOUR, bars, "duration", low=0.0, high=24 * _HOUR, ticks="hours")


# -- limits and prices ---------------------------------------------------------------------------------------


def _limits(shared: SharedView) -> tuple[Part, ...]:
    rows: list[tuple[Cell, ...]] = [
        (lane.model, *(value or None for value in _limits_of(lane)), lane.processes)
        for lane in _lanes(shared)
        if any(_limits_of(lane))
    ]
    return (DataTable.of("Limits per minute", _LIMITS, rows),) if rows else ()


def _lanes(shared: SharedView) -> list[LaneStatus]:
    """Return the lanes that processes told of, one for each limit: the latest."""
    lanes: dict[tuple[str, str], LaneStatus] = {}
    for one in reversed(shared.found.processes):  # the latest is the last
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


def _models(source: Source, times: Iterable[_Times], shared: SharedView) -> set[str]:
    """Return the models that were used lately."""
    models = {each.model for each in times} | {lane.model for lane in _lanes(shared)}
    return models | {each.model for each in source.spending(source.now() - USED_WITHIN)}


def _prices(source: Source, models: Sequence[str]) -> tuple[Part, ...]:
    rows = [row for model in models[:TOPICS] for row in _price_rows(source, model)]
    return (DataTable.of("USD per million tokens", _PRICES, rows),) if rows else ()


def _price_rows(source: Source, model: str) -> Iterator[tuple[Cell, ...]]:
    provider, _, name = model.partition(":")
    known = False
    for processing in _PROCESSINGS:
        card = source.prices.rates(provider, name, source.now(), processing)
        for band in () if card is None else card.bands:
            known = True
            above = f"{band.above:,} tokens" if band.above > 0 else None
            usd = (rate * _MILLION for rate in (band.input, band.cached, band.output))
            yield model, processing, above, *usd, None if card is None else card.source
    if not known:
        yield model, "no known price", None, None, None, None, None
