"""*Now*: what needs a person, then what runs, how full the limits are, and what it costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from smartbatch._html import Child, Html, el, fragment
from smartbatch.dashboard.attention import Need, needs_of
from smartbatch.dashboard.job_rows import jobs_table
from smartbatch.dashboard.page import Page, Query, Section
from smartbatch.dashboard.shared_view import SharedView, failures_of
from smartbatch.dashboard.source import Source
from smartbatch.jobs.status import span
from smartbatch.jobs.store import SqlStore
from smartbatch.jobs.store.job_overview import JobFilter
from smartbatch.jobs.summary_records import Spending
from smartbatch.observe.participants import LaneStatus, RealtimeStatus, merged
from smartbatch.reports import charts, html
from smartbatch.reports.axes import Axis, usd

HOUR = 3600.0
HOURS = 24
"""Hours of spending that are shown."""
GOING = 5
"""Jobs under way that are shown."""
WAITS = {
    "pause": "a person, who paused the model",
    "window": "the window: requests are gathered for one call",
    "breaker": "the breaker: the provider is down",
    "cooldown": "the pause after a refusal",
    "budget": "the budget",
    "limit": "the limit of requests or tokens",
    "slot": "a free slot",
    "retry": "the time between two tries",
}
"""What requests wait for, in words."""


def page(source: Source, query: Query) -> Page:
    """Return the page."""
    shared = source.participants()
    store = source.store
    status = merged([one.realtime for one in shared.found.living])
    spending = () if store is None else store.summaries.spending(source.now() - HOURS * HOUR)
    return Page(
        "Now",
        (
            Section("attention", "Needs a person", _attention(source, query, shared)),
            Section("going", "Jobs under way", _going(source, store, query)),
            Section("limits", "Limits", _limits(status, shared)),
            Section("queue", "Requests in real time", _queue(status)),
            Section("rates", "Requests and tokens", _rates(shared)),
            Section("money", "Money", _money(status, spending)),
            Section("failures", "Failures", _failures(shared)),
            Section("processes", "Processes", _processes(shared)),
        ),
    )


def _attention(source: Source, query: Query, shared: SharedView) -> Html:
    """Return what does not go on by itself."""
    found = [el("li", _need(each, query)) for each in needs_of(source, shared)]
    if not found:
        return el("p", html.state("Nothing needs a person.", "good"))
    return el("ul", found, class_="notice bad")


def _need(need: Need, query: Query) -> Html:
    if need.job_id is None:
        return fragment(need.text)
    return fragment(need.text, el("a", need.name, href=query.link("jobs", need.job_id)), need.note)


def _going(source: Source, store: SqlStore | None, query: Query) -> Html:
    if store is None:
        return el("p", f"There is no store yet at {source.place}: the first job makes it.", class_="soft")
    lines = store.overview.page(JobFilter(unfinished=True), limit=GOING + 1)
    if not lines:
        return el("p", "No job is under way.", class_="soft")
    more = el("p", el("a", "All that go on", href=query.link("jobs", state="unfinished")))
    shown = jobs_table("Jobs under way, newest first", lines[:GOING], source, query)
    return fragment(shown, more if len(lines) > GOING else None)


# -- real time -----------------------------------------------------------------------------------------------


def _limits(status: RealtimeStatus, shared: SharedView) -> Html:
    """Return how full each limit is, and who waits for what."""
    if not status.lanes:
        return el("p", "No process tells of limits now.", class_="soft")
    head = ("model", "requests a minute", "tokens a minute", "waiting", "in flight", "waits for", "processes")
    rows = [_limit_row(lane) for lane in status.lanes]
    left_out = sum(one.realtime.lanes_left_out for one in shared.found.living)
    note = el("p", f"{left_out:,} further models are not told.", class_="soft") if left_out else None
    return fragment(html.table("Limits, and what waits for them", head, rows, numbers=(3, 4, 6)), note)


def _limit_row(lane: LaneStatus) -> tuple[Child, ...]:
    tokens: Child = _fill(lane.model, "tokens", lane.tokens_left, lane.tokens_per_minute)
    if not lane.tokens_per_minute and (lane.input_tokens_per_minute or lane.output_tokens_per_minute):
        both = (
            ("in", lane.input_tokens_left, lane.input_tokens_per_minute),
            ("out", lane.output_tokens_left, lane.output_tokens_per_minute),
        )
        tokens = [el("div", f"{name} ", _fill(lane.model, f"tokens {name}", a, b)) for name, a, b in both]
    return (
        lane.model,
        _fill(lane.model, "requests", lane.requests_left, lane.requests_per_minute),
        tokens,
        f"{lane.waiting:,}",
        f"{lane.in_flight:,}",
        _waits_for(lane),
        f"{lane.processes:,}",
    )


def _fill(model: str, what: str, left: float, limit: float) -> Child:
    """Return how much of a limit is leased or used up; a limit that no process shares has no level."""
    if not limit:
        return el("span", "no limit known", class_="soft")
    if not left:
        return f"of {limit:,.0f}"
    return fragment(html.progress(f"{what} of {model} in use", limit - left, limit), f" of {limit:,.0f}")


def _waits_for(lane: LaneStatus) -> Child:
    words = []
    if lane.breaker != "closed":
        words.append(html.state(f"breaker {lane.breaker}", "bad"))
    if lane.cooldown:
        words.append(html.state(f"cooldown {span(lane.cooldown)}", "warn"))
    if lane.is_lost:
        words.append(html.state("own share only: the shared place is away", "warn"))
    if lane.waits_for:
        words.append(el("span", WAITS.get(lane.waits_for, lane.waits_for)))
    return [el("div", word) for word in words] or "–"


def _queue(status: RealtimeStatus) -> Html:
    facts = html.facts(
        [
            ("waiting", f"{status.waiting:,}"),
            ("in flight", f"{status.in_flight:,}"),
            ("oldest wait", span(status.oldest_wait) if status.waiting else "–"),
            ("threads that make calls", f"{status.workers:,}"),
            ("threads that wait for room", f"{status.blocked:,}"),
        ]
    )
    priorities = sorted(status.pending.items())
    waits = sorted(status.waits.items(), key=lambda each: -each[1])
    return fragment(
        facts,
        _pairs("Not ended yet, by priority", "priority", priorities),
        _pairs("Waiting, by what for", "for", [(WAITS.get(name, name), count) for name, count in waits]),
    )


def _pairs(caption: str, name: str, rows: Iterable[tuple[str, int]]) -> Html | None:
    shown = [(each, f"{count:,}") for each, count in rows]
    return html.table(caption, (name, "requests"), shown, numbers=(1,)) if shown else None


def _rates(shared: SharedView) -> Html:
    requests = [(rate.at, rate.requests) for rate in shared.rates]
    tokens = [(rate.at, rate.tokens) for rate in shared.rates]
    if not requests:
        return el("p", "Shown some seconds after processes told of themselves.", class_="soft")
    return fragment(
        charts.series("Calls", [charts.Curve("calls", requests)], Axis("calls a minute")),
        charts.series("Tokens", [charts.Curve("tokens", tokens)], Axis("tokens a minute")),
    )


# -- money, failures, processes ------------------------------------------------------------------------------


def _money(status: RealtimeStatus, spending: Sequence[Spending]) -> Html:
    rows: list[tuple[str, Child]] = []
    if status.budget:
        rows.append(("budget of processes", html.progress("budget spent", status.spent, status.budget)))
        rows.append(("left", usd(max(0.0, status.budget - status.spent))))
    rows.append(("spent in real time", usd(status.spent)))
    paid, realtime = sum(one.usd for one in spending), sum(one.realtime_usd for one in spending)
    rows.append((f"spent in {HOURS} hours", usd(paid)))
    rows.append(("saved against real time", usd(realtime - paid)))
    hours: dict[float, float] = {}
    for one in spending:
        hours[one.hour] = hours.get(one.hour, 0.0) + one.usd
    line = charts.Curve("USD an hour", sorted(hours.items()))
    return fragment(
        html.facts(rows), charts.series("Spending by hour", [line], Axis("USD", usd)) if hours else None
    )


def _failures(shared: SharedView) -> Html:
    rows = [
        (
            one.kind,
            f"{one.calls:,.0f}",
            f"{one.requests:,.0f}",
            "–" if one.age is None else f"{span(one.age)} ago",
        )
        for one in failures_of(shared)
    ]
    if not rows:
        return el("p", "No call has failed, as far as processes told.", class_="soft")
    head = ("kind", "calls", "requests failed for good", "last")
    return html.table("Failures by kind", head, rows, numbers=(1, 2))


def _processes(shared: SharedView) -> Html:
    if shared.is_off and not shared.found.processes:
        return el("p", "Processes share nothing, so they tell nothing of themselves.", class_="soft")
    head = ("process", "state", "version", "waiting", "in flight", "USD")
    rows = list(_process_rows(shared))
    return html.table("Processes of the last ten minutes", head, rows, numbers=(3, 4, 5))


def _process_rows(shared: SharedView) -> Iterator[tuple[Child, ...]]:
    for one in shared.found.processes:
        state = html.state("ended") if one.ended else html.state("lost", "bad")
        yield (
            f"{one.host} {one.pid}",
            html.state("living", "good") if one.is_alive else state,
            one.library,
            f"{one.realtime.waiting:,}",
            f"{one.realtime.in_flight:,}",
            f"{one.realtime.spent:.4f}",
        )
