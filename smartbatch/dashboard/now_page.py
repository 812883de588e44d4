"""*Now*: what needs a person, then what runs, how full the limits are, and what it costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from attrs import evolve

from smartbatch._html import Child, Html, el, fragment
from smartbatch.dashboard.attention import Need, needs_of
from smartbatch.dashboard.job_rows import jobs_table
from smartbatch.dashboard.page import Page, PageSection, Query, no_store_yet
from smartbatch.dashboard.shared_view import SharedView, failures_of
from smartbatch.dashboard.source import Source
from smartbatch.jobs.status import span
from smartbatch.jobs.store import SqlStore
from smartbatch.jobs.store.job_overview import JobFilter, JobLine
from smartbatch.jobs.summary_records import Spending
from smartbatch.observe.participants import LaneStatus, RealtimeStatus, merged
from smartbatch.reports import charts, components
from smartbatch.reports.axes import TIME, Axis, usd

MINUTE = 60.0
SHOWN = 30 * MINUTE
"""Seconds of calls that are shown."""
HOUR = 3600.0
HOURS = 24
"""Hours of spending that are shown."""
GOING = 5
"""Jobs under way that are shown."""
BUDGETS = 20
"""Jobs under way whose budgets are shown."""
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
    return Page(
        "Now",
        (
            PageSection("attention", "Needs a person", _attention(source, query, shared)),
            PageSection("going", "Jobs under way", _going(source, store, query)),
            PageSection("limits", "Limits", _limits(status, shared)),
            PageSection("queue", "Requests in real time", _queue(status)),
            PageSection("rates", "Requests and tokens", _rates(source, status)),
            PageSection("money", "Money", _money(source, store, shared, query)),
            PageSection("failures", "Failures", _failures(shared)),
            PageSection("processes", "Processes", _processes(shared)),
        ),
    )


def _attention(source: Source, query: Query, shared: SharedView) -> Html:
    """Return what does not go on by itself."""
    found = [el("li", _need(each, query)) for each in needs_of(source, shared)]
    if not found:
        return el("p", components.state("Nothing needs a person.", "good"))
    return el("ul", found, class_="notice bad")


def _need(need: Need, query: Query) -> Html:
    if need.job_id is None:
        return fragment(need.text)
    return fragment(need.text, el("a", need.name, href=query.link("jobs", need.job_id)), need.note)


def _going(source: Source, store: SqlStore | None, query: Query) -> Html:
    if store is None:
        return el("p", no_store_yet(source), class_="soft")
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
    note = "The last minute of each; a limit that was not used before gives up to twice as much at first."
    if left_out:
        note += f" {left_out:,} further models are not told."
    table = components.table("Limits, and what waits for them", head, rows, numbers=(3, 4, 6))
    return fragment(table, el("p", note, class_="soft"))


def _limit_row(lane: LaneStatus) -> tuple[Child, ...]:
    total = lane.tokens_used, lane.tokens_per_minute, lane.tokens_left
    tokens: Child = _fill(lane.model, "tokens", *total)
    if not lane.tokens_per_minute and (lane.input_tokens_per_minute or lane.output_tokens_per_minute):
        both = (
            ("in", lane.input_tokens_used, lane.input_tokens_per_minute, lane.input_tokens_left),
            ("out", lane.output_tokens_used, lane.output_tokens_per_minute, lane.output_tokens_left),
        )
        tokens = [el("div", f"{name} ", _fill(lane.model, f"tokens {name}", *each)) for name, *each in both]
    return (
        lane.model,
        _fill(lane.model, "requests", lane.requests_used, lane.requests_per_minute, lane.requests_left),
        tokens,
        f"{lane.waiting:,}",
        f"{lane.in_flight:,}",
        _waits_for(lane),
        f"{lane.processes:,}",
    )


def _fill(model: str, what: str, used: float, limit: float, left: float) -> Child:
    """Return what the last minute took of a limit; of a shared one also what no process has leased of it."""
    if not limit:
        return fragment(f"{used:,.0f}", el("div", "no limit known", class_="soft"))
    free = el("div", f"{max(0.0, left):,.0f} free now", class_="soft") if left else None
    bar = components.progress(f"{what} of {model} in the last minute", used, limit)
    return fragment(bar, el("div", f"{used:,.0f} of {limit:,.0f}"), free)


def _waits_for(lane: LaneStatus) -> Child:
    words = []
    if lane.breaker != "closed":
        words.append(components.state(f"breaker {lane.breaker}", "bad"))
    if lane.cooldown:
        words.append(components.state(f"cooldown {span(lane.cooldown)}", "warn"))
    if lane.is_lost:
        words.append(components.state("own share only: the shared place is unavailable", "warn"))
    if lane.waits_for:
        words.append(el("span", WAITS.get(lane.waits_for, lane.waits_for)))
    return [el("div", word) for word in words] or "–"


def _queue(status: RealtimeStatus) -> Html:
    unended = status.waiting + status.in_flight
    facts = components.facts(
        [
            ("waiting", f"{status.waiting:,}"),
            ("in flight", f"{status.in_flight:,}"),
            ("oldest wait", span(status.oldest_wait) if status.waiting else "–"),
            ("time left, as in the last minute", _time_left(unended, status.sent)),
            ("threads that make calls", f"{status.workers:,}"),
            ("threads that wait for room", f"{status.blocked:,}"),
        ]
    )
    priorities = [
        (name, f"{count:,}", span(status.oldest_waits[name]) if name in status.oldest_waits else "–")
        for name, count in sorted(status.pending.items())
    ]
    waits = sorted(status.waits.items(), key=lambda each: -each[1])
    return fragment(
        facts,
        _listed("Not ended yet, by priority", ("priority", "requests", "oldest wait"), priorities),
        _listed(
            "Waiting, by what for",
            ("for", "requests"),
            [(WAITS.get(name, name), f"{count:,}") for name, count in waits],
        ),
    )


def _time_left(requests: int, sent: float) -> str:
    """Return how long requests take at the rate of the last minute."""
    if not requests:
        return "–"
    return f"about {span(requests / sent * MINUTE)}" if sent >= 1 else "unknown: nothing was sent"


def _listed(caption: str, head: Sequence[str], rows: Sequence[tuple[str, ...]]) -> Html | None:
    return components.table(caption, head, rows, numbers=range(1, len(head))) if rows else None


def _rates(source: Source, status: RealtimeStatus) -> Html:
    """Return calls and tokens of each minute, as processes counted them; at last those of the last minute."""
    if not status.minutes:
        return el("p", "No call in the last half hour, as far as processes told.", class_="soft")
    now = source.now()
    begun = [each for each in status.minutes if each.at + MINUTE <= now]
    calls = [(each.at, each.calls) for each in begun]
    tokens = [(each.at, each.tokens) for each in begun]
    if lately := sum(lane.requests_used for lane in status.lanes):
        calls.append((now, lately))
        tokens.append((now, sum(lane.tokens_used for lane in status.lanes)))
    time = evolve(TIME, low=now // MINUTE * MINUTE - SHOWN, high=now // MINUTE * MINUTE + MINUTE)
    return fragment(
        charts.series("Calls", [charts.Curve("calls", calls)], Axis("calls a minute"), x=time),
        charts.series("Tokens", [charts.Curve("tokens", tokens)], Axis("tokens a minute"), x=time),
    )


# -- money, failures, processes ------------------------------------------------------------------------------


def _money(source: Source, store: SqlStore | None, shared: SharedView, query: Query) -> Html:
    """Return what was spent, by hour and against each budget."""
    status = merged([one.realtime for one in shared.found.living])
    spending = source.spending(source.now() - HOURS * HOUR)
    paid, realtime = sum(one.usd for one in spending), sum(one.realtime_usd for one in spending)
    rows: list[tuple[str, Child]] = [
        ("spent in real time", usd(status.spent)),
        (f"spent in {HOURS} hours", usd(paid)),
        ("saved against real time", usd(realtime - paid)),
    ]
    lines = [] if store is None else store.overview.page(JobFilter(unfinished=True), limit=BUDGETS)
    budgets = [*_budgets_of_processes(shared), *_budgets_of_jobs(lines, query)]
    head = ("budget of", "spent", "of", "left", "reserved")
    table = components.table("Budgets", head, budgets, numbers=range(2, len(head))) if budgets else None
    return fragment(components.facts(rows), _by_hour(spending, status.budget, source.now()), table)


def _by_hour(spending: Sequence[Spending], budget: float, now: float) -> Html | None:
    """Return the chart of what was spent in each hour, and of their sum against the budget of processes."""
    hours: dict[float, float] = {}
    for one in spending:
        hours[one.hour] = hours.get(one.hour, 0.0) + one.usd
    if not hours:
        return None
    each = sorted(hours.items())
    sums = accumulate(spent for _, spent in each)
    curves = [
        charts.Curve("in the hour", each),
        charts.Curve(
            "sum of these hours", [(hour, whole) for (hour, _), whole in zip(each, sums, strict=True)]
        ),
    ]
    hour = now // HOUR * HOUR
    time = evolve(TIME, low=hour - HOURS * HOUR, high=hour)
    axis = Axis("USD", usd)
    return charts.series("Spending by hour", curves, axis, x=time, limit=budget or None, of="budget")


def _budgets_of_processes(shared: SharedView) -> Iterator[tuple[Child, ...]]:
    for one in shared.found.living:
        if one.realtime.budget:
            name = f"process {one.host} {one.pid}"
            held = usd(one.realtime.unconfirmed) if one.realtime.unconfirmed else "–"
            yield _budget(name, name, one.realtime.spent, one.realtime.budget, held)


def _budgets_of_jobs(lines: Iterable[JobLine], query: Query) -> Iterator[tuple[Child, ...]]:
    for line in lines:
        if line.policy.budget is not None:
            name = line.key or line.id
            link = fragment("job ", el("a", name, href=query.link("jobs", line.id)))
            yield _budget(name, link, line.cost, line.policy.budget, usd(line.reserved))


def _budget(name: str, shown: Child, spent: float, budget: float, reserved: str) -> tuple[Child, ...]:
    bar = components.progress(f"budget of {name} that is spent", spent, budget)
    return shown, fragment(bar, " ", usd(spent)), usd(budget), usd(max(0.0, budget - spent)), reserved


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
    return components.table("Failures by kind", head, rows, numbers=(1, 2))


def _processes(shared: SharedView) -> Html:
    if shared.is_off and not shared.found.processes:
        return el("p", "Processes share nothing, so they tell nothing of themselves.", class_="soft")
    head = ("process", "state", "version", "waiting", "in flight", "USD")
    rows = list(_process_rows(shared))
    return components.table("Processes of the last ten minutes", head, rows, numbers=(3, 4, 5))


def _process_rows(shared: SharedView) -> Iterator[tuple[Child, ...]]:
    for one in shared.found.processes:
        state = components.state("ended") if one.ended else components.state("lost", "bad")
        yield (
            f"{one.host} {one.pid}",
            components.state("living", "good") if one.is_alive else state,
            one.library,
            f"{one.realtime.waiting:,}",
            f"{one.realtime.in_flight:,}",
            f"{one.realtime.spent:.4f}",
        )
