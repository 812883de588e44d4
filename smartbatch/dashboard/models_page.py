"""*Models*: how long calls and batches took, the limits that were learned, and the prices that are used."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

from attrs import define, field

from smartbatch._html import Child, Html, el, fragment
from smartbatch.dashboard.job_rows import moment_of
from smartbatch.dashboard.page import Page, PageSection, Query
from smartbatch.dashboard.shared_view import SharedView
from smartbatch.dashboard.source import Source
from smartbatch.jobs.store import SqlStore
from smartbatch.jobs.turnaround_log import topic_of
from smartbatch.observe.participants import LaneStatus
from smartbatch.prices import Processing
from smartbatch.reports import charts, components
from smartbatch.reports.axes import Axis, seconds
from smartbatch.types import Route

EVERY = 5.0
"""Seconds between two looks while somebody watches; what is shown is written every few seconds."""
TOPICS = 60
"""Models and routes of a page; of each what the store keeps, some hundred calls or batches."""
SAMPLE = 500
DRAWN = 8
"""Models whose batches are drawn by the hour, those with the most of them."""
SPENT_ON = 7 * 24 * 3600.0
"""Seconds back from now; of models that were used since, the prices are shown."""
_HOURS = Axis("hour of the day of the creation (UTC)", "{:.0f}".format, low=0.0, high=23.0)
_TOOK = Axis("turnaround", seconds, log=True)
_PROCESSINGS: tuple[Processing, ...] = ("standard", "batch", "flex")
_MILLION = 1e6


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


def page(source: Source, query: Query) -> Page:  # noqa: ARG001 - the same for all
    """Return the page."""
    store = source.store
    times, left_out = ([], 0) if store is None else _times(store)
    shared = source.participants()
    return Page(
        "Models",
        (
            PageSection("latency", "How long calls took", _latency(times, left_out)),
            PageSection("turnaround", "How long batches took, by the hour of the day", _turnaround(times)),
            PageSection("limits", "Limits that were told or learned", _limits(shared)),
            PageSection("prices", "Prices", _prices(source, sorted(_models(source, times, shared)))),
        ),
        every=EVERY,
    )


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


def quantile(values: Sequence[float], q: float) -> float:
    """Return the value that a share ``q`` of sorted values does not exceed."""
    return values[max(0, math.ceil(q * len(values)) - 1)]


def _latency(times: Iterable[_Times], left_out: int) -> Html:
    rows = [_latency_row(each) for each in times if each.took]
    if not rows:
        return el("p", "No call or batch was seen yet by a client with this store.", class_="soft")
    head = ("model", "route", "seen", "half within", "95 % within", "99 % within", "given up", "latest (UTC)")
    note = f"Of each the latest, at most {SAMPLE}: a sample of the calls, and all batches."
    if left_out:
        note += f" {left_out:,} further names are left out."
    table = components.table("Seconds of calls and batches", head, rows, numbers=range(2, 7))
    return fragment(table, el("p", note, class_="soft"))


def _latency_row(times: _Times) -> tuple[Child, ...]:
    took = sorted(each for _, each, _ in times.took)
    return (
        times.model,
        times.route.value,
        f"{len(took):,}",
        *(seconds(quantile(took, q)) for q in (0.5, 0.95, 0.99)),
        f"{times.given_up:,}",
        moment_of(max(at for _, _, at in times.took)),
    )


def _turnaround(times: Iterable[_Times]) -> Html:
    """Return the turnaround of batches by the hour of the day in which they were created."""
    batches = [each for each in times if each.route is Route.BATCH and each.took]
    if not batches:
        return el("p", "No batch has ended yet.", class_="soft")
    batches.sort(key=lambda each: -len(each.took))
    drawn = [charts.band(_title(each), _by_hour(each), _TOOK, x=_HOURS) for each in batches[:DRAWN]]
    more = len(batches) - DRAWN
    note = f"Of {more:,} further models nothing is drawn." if more > 0 else None
    return fragment(drawn, el("p", note, class_="soft") if note else None)


def _title(times: _Times) -> str:
    return f"{times.model}: half and 95 % of {len(times.took):,} batches, by the hour of their creation (UTC)"


def _by_hour(times: _Times) -> list[tuple[float, float, float]]:
    hours: dict[int, list[float]] = {}
    for _, took, at in times.took:
        if took > 0:
            hours.setdefault(datetime.fromtimestamp(at - took, UTC).hour, []).append(took)
    return [
        (float(hour), quantile(found, 0.5), quantile(found, 0.95))
        for hour, found in ((hour, sorted(hours[hour])) for hour in sorted(hours))
    ]


# -- limits --------------------------------------------------------------------------------------------------


def _limits(shared: SharedView) -> Html:
    rows = [_limit_row(lane) for lane in _lanes(shared) if any(_limits_of(lane))]
    if not rows:
        told = "No limit is known now: processes that share limits tell of them while they run."
        return el("p", told, class_="soft")
    head = ("model", "requests", "tokens", "input tokens", "output tokens", "evenly spaced to", "processes")
    return components.table("Limits a minute", head, rows, numbers=range(1, 7))


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


def _limit_row(lane: LaneStatus) -> tuple[Child, ...]:
    told = (f"{value:,.0f}" if value else "–" for value in _limits_of(lane))
    return (lane.model, *told, f"{lane.processes:,}")


# -- prices --------------------------------------------------------------------------------------------------


def _models(source: Source, times: Iterable[_Times], shared: SharedView) -> set[str]:
    """Return the models that were used lately."""
    models = {each.model for each in times} | {lane.model for lane in _lanes(shared)}
    return models | {each.model for each in source.spending(source.now() - SPENT_ON)}


def _prices(source: Source, models: Sequence[str]) -> Html:
    if not models:
        return el("p", "No model was used yet.", class_="soft")
    rows = [row for model in models[:TOPICS] for row in _price_rows(source, model)]
    head = ("model", "tier", "of prompts above", "input", "cached input", "output", "from")
    caption = "USD for a million tokens, as requests are counted now"
    return components.table(caption, head, rows, numbers=range(2, 6))


def _price_rows(source: Source, model: str) -> Iterator[tuple[Child, ...]]:
    provider, _, name = model.partition(":")
    known = False
    for processing in _PROCESSINGS:
        card = source.prices.rates(provider, name, source.now(), processing)
        for band in () if card is None else card.bands:
            known = True
            above = f"{band.above:,} tokens" if band.above > 0 else "–"
            usd = (f"{rate * _MILLION:,.4g}" for rate in (band.input, band.cached, band.output))
            yield model, processing, above, *usd, "" if card is None else card.source
    if not known:
        yield model, "no price is known", "–", "–", "–", "–", "–"
