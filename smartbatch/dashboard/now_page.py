"""*Now*: whether anything needs a person, what runs, how full the limits are, and what it costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from smartbatch._words import duration, money, number, plural
from smartbatch.dashboard.attention import Need, needs_of
from smartbatch.dashboard.job_rows import jobs_table
from smartbatch.dashboard.page import Page, Query, no_store_yet
from smartbatch.dashboard.shared_view import SharedView, failures_of
from smartbatch.dashboard.source import Source
from smartbatch.jobs.records import JobRow, JobState
from smartbatch.jobs.store import SqlStore
from smartbatch.jobs.store.job_overview import JobFilter
from smartbatch.jobs.summary_records import Spending
from smartbatch.observe.participants import LaneStatus, Participant, RealtimeStatus, merged
from smartbatch.views.model import (
    BarsOverTime,
    Bullets,
    Cell,
    DataTable,
    Facts,
    Folded,
    Link,
    Links,
    Note,
    Part,
    ProgressBar,
    Section,
    State,
    Tile,
    Value,
    View,
)

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
SHOWN = 30 * MINUTE
"""Seconds of calls that are shown."""
HOURS = 24
"""Hours of spending that are shown."""
RUNNING = 5
"""Running jobs that are shown."""
BUDGETS = 6
"""Running jobs whose budgets are shown."""
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
    shared, store = source.participants(), source.store
    status = merged([one.realtime for one in shared.found.living])
    needs = list(needs_of(source, shared))
    no_jobs = no_store_yet(source) if store is None else "No job is running."
    off = "Processes publish nothing of themselves: set shared=… to see all of them here."
    sections = (
        Section("attention", "Action required", _attention(needs, query), empty="Nothing to do."),
        Section("running", "Running jobs", _running(source, store, query), empty=no_jobs),
        Section("limits", "Limits", _limits(status, shared), empty="No process publishes limits now."),
        Section("queue", "Requests in real time", _queue(status), empty="No requests are waiting."),
        Section("rates", "Calls and tokens", _rates(source, status), empty="No calls in the last half hour."),
        Section("money", "Money", _money(source, store, shared, query)),
        Section("failures", "Failures", _failures(shared), empty="No call has failed."),
        Section("processes", "Processes", _processes(shared), empty=off),
    )
    state = State("action required", "bad") if needs else State("all good", "good")
    return Page(View("Now", sections, state, tiles=_tiles(source, store, status, query)))


def _tiles(source: Source, store: SqlStore | None, status: RealtimeStatus, query: Query) -> tuple[Tile, ...]:
    """Return the key figures."""
    now = source.now()
    today = now // DAY * DAY
    spent = [one for one in source.spending(today) if one.hour >= today]
    paid, saved = sum(one.usd for one in spent), sum(one.realtime_usd - one.usd for one in spent)
    failing = [one for one in source.error_groups() if one.last_at > now - HOUR]
    jobs = 0 if store is None else store.overview.count(JobState.ACTIVE)
    return (
        Tile(
            "Running",
            plural(jobs, "job"),
            f"{status.in_flight:,} requests in flight",
            href=query.link("jobs"),
        ),
        Tile(
            "Waiting",
            number(status.waiting),
            f"the oldest for {duration(status.oldest_wait)}" if status.waiting else "requests in real time",
        ),
        Tile("Done per minute", number(status.sent), "requests sent in the last minute"),
        Tile("Spent today", money(paid), f"{money(saved)} saved" if saved > 0.005 else "since midnight UTC"),
        Tile(
            "Failing",
            plural(len(failing), "error") if failing else "0",
            "in the last hour",
            tone="bad" if failing else "",
            href=query.link("errors"),
        ),
    )


def _attention(needs: Sequence[Need], query: Query) -> tuple[Part, ...]:
    """Return what does not continue by itself."""
    rows: list[tuple[Value, ...]] = [
        (need.text,)
        if need.job_id is None
        else (need.text, Link(need.name, query.link("jobs", need.job_id)), need.note)
        for need in needs
    ]
    return (Bullets(tuple(rows), "bad"),) if rows else ()


def _running(source: Source, store: SqlStore | None, query: Query) -> tuple[Part | None, ...]:
    if store is None:
        return ()
    lines = store.overview.page(JobFilter(unfinished=True), limit=RUNNING + 1)
    more = Links("More jobs", (Link("All running jobs", query.link("jobs", state="unfinished")),))
    table = jobs_table("Running jobs, newest first", lines[:RUNNING], source, query)
    return table, more if len(lines) > RUNNING else None


# -- real time -----------------------------------------------------------------------------------------------


def _limits(status: RealtimeStatus, shared: SharedView) -> tuple[Part, ...]:
    """Return how full each limit is, and who waits for what."""
    if not status.lanes:
        return ()
    columns = (
        "model, requests per minute, tokens per minute, waiting:number, in flight:number, waits for, "
        "processes:number"
    )
    left_out = sum(one.realtime.lanes_left_out for one in shared.found.living)
    more = f" {plural(left_out, 'further model is', 'further models are')} left out." if left_out else ""
    note = "The last minute of each. A limit that was not used before allows up to twice as much at first."
    table = DataTable.of(
        "Limits, and what waits for them", columns, [_limit_row(lane) for lane in status.lanes]
    )
    return table, Note(note + more)


def _limit_row(lane: LaneStatus) -> tuple[Cell, ...]:
    tokens = _fill(lane.model, "tokens", lane.tokens_used, lane.tokens_per_minute, lane.tokens_left)
    if not lane.tokens_per_minute and (lane.input_tokens_per_minute or lane.output_tokens_per_minute):
        left, right = lane.input_tokens_left, lane.output_tokens_left
        tokens = (
            *_fill(lane.model, "tokens in", lane.input_tokens_used, lane.input_tokens_per_minute, left),
            *_fill(lane.model, "tokens out", lane.output_tokens_used, lane.output_tokens_per_minute, right),
        )
    return (
        lane.model,
        _fill(lane.model, "requests", lane.requests_used, lane.requests_per_minute, lane.requests_left),
        tokens,
        lane.waiting,
        lane.in_flight,
        _waits_for(lane),
        lane.processes,
    )


def _fill(model: str, what: str, used: float, limit: float, left: float) -> tuple[Value, ...]:
    """Return what the last minute took of a limit; of a shared one also what no process has leased of it."""
    if not limit:
        return f"{used:,.0f}", "no known limit"
    bar = ProgressBar(f"{what} of {model} in the last minute", used, limit)
    free = f", {max(0.0, left):,.0f} free" if left else ""
    return bar, f"{used:,.0f} of {limit:,.0f}{free}"


def _waits_for(lane: LaneStatus) -> Cell:
    words: list[Value] = []
    if lane.breaker != "closed":
        words.append(State(f"breaker {lane.breaker}", "bad"))
    if lane.cooldown:
        words.append(State(f"cooldown {duration(lane.cooldown)}", "warn"))
    if lane.is_lost:
        words.append(State("own share only: the shared place is unavailable", "warn"))
    if lane.waits_for:
        words.append(WAITS.get(lane.waits_for, lane.waits_for))
    return tuple(words) if words else None


def _queue(status: RealtimeStatus) -> tuple[Part, ...]:
    unfinished = status.waiting + status.in_flight
    if not unfinished and not status.blocked:
        return ()
    facts: list[tuple[str, Cell]] = [
        ("waiting", f"{status.waiting:,}"),
        ("in flight", f"{status.in_flight:,}"),
        ("oldest wait", duration(status.oldest_wait) if status.waiting else None),
        ("time left at this rate", _time_left(unfinished, status.sent)),
        ("threads that make calls", f"{status.workers:,}"),
        ("threads that wait for room", f"{status.blocked:,}"),
    ]
    priorities = [
        (name, count, status.oldest_waits.get(name)) for name, count in sorted(status.pending.items())
    ]
    waits = sorted(status.waits.items(), key=lambda each: -each[1])
    parts: list[Part] = [Facts(tuple(facts))]
    if priorities:
        columns = "priority, requests:number, oldest wait:duration"
        parts.append(DataTable.of("Unfinished requests by priority", columns, priorities))
    if waits:
        rows = [(WAITS.get(name, name), count) for name, count in waits]
        parts.append(DataTable.of("What requests wait for", "waiting for, requests:number", rows))
    return tuple(parts)


def _time_left(requests: int, sent: float) -> str | None:
    """Return how long requests take at the rate of the last minute."""
    if not requests:
        return None
    return f"about {duration(requests / sent * MINUTE)}" if sent >= 1 else "unknown: nothing was sent"


def _rates(source: Source, status: RealtimeStatus) -> tuple[Part, ...]:
    """Return calls and tokens of each minute, as processes counted them; the current minute comes last."""
    minute = source.now() // MINUTE * MINUTE
    calls = [(each.at, float(each.calls)) for each in status.minutes if each.at < minute]
    tokens = [(each.at, float(each.tokens)) for each in status.minutes if each.at < minute]
    if status.minutes and (lately := sum(lane.requests_used for lane in status.lanes)):
        calls.append((minute, lately))
        tokens.append((minute, sum(lane.tokens_used for lane in status.lanes)))
    low, high = minute - SHOWN, minute + MINUTE
    return (
        BarsOverTime("Calls per minute", MINUTE, tuple(calls), low=low, high=high),
        BarsOverTime("Tokens per minute", MINUTE, tuple(tokens), low=low, high=high),
    )


# -- money, failures, processes ------------------------------------------------------------------------------


def _money(source: Source, store: SqlStore | None, shared: SharedView, query: Query) -> tuple[Part, ...]:
    """Return what was spent, by hour and from each budget."""
    status = merged([one.realtime for one in shared.found.living])
    spending = source.spending(source.now() - HOURS * HOUR)
    paid, realtime = sum(one.usd for one in spending), sum(one.realtime_usd for one in spending)
    facts = Facts(
        (
            (f"spent in {HOURS} hours", money(paid)),
            ("saved compared with real time", money(realtime - paid)),
            ("spent in real time by running processes", money(status.spent)),
        )
    )
    lines = [] if store is None else store.overview.page(JobFilter(unfinished=True), limit=BUDGETS)
    budgets = [*_budgets_of_processes(shared), *_budgets_of_jobs(lines, query)]
    columns = "budget of, spent, budget:money, left:money, reserved:money"
    table = DataTable.of("Budgets", columns, budgets)
    return facts, _by_hour(spending, source.now()), *([table] if budgets else [])


def _by_hour(spending: Sequence[Spending], now: float) -> BarsOverTime:
    hours: dict[float, float] = {}
    for one in spending:
        hours[one.hour] = hours.get(one.hour, 0.0) + one.usd
    hour = now // HOUR * HOUR
    bars = tuple(sorted(hours.items()))
    low = hour - (HOURS - 1) * HOUR
    return BarsOverTime("Spent per hour", HOUR, bars, "money", low=low, high=hour + HOUR)


def _budgets_of_processes(shared: SharedView) -> Iterator[tuple[Cell, ...]]:
    for one in shared.found.living:
        if one.realtime.budget:
            name = f"process {one.host} {one.pid}"
            yield _budget(name, name, one.realtime.spent, one.realtime.budget, one.realtime.unconfirmed)


def _budgets_of_jobs(lines: Iterable[JobRow], query: Query) -> Iterator[tuple[Cell, ...]]:
    for line in lines:
        if line.policy.budget is not None:
            name = line.key or line.id
            link = Link(f"job {name}", query.link("jobs", line.id))
            yield _budget(name, link, line.cost, line.policy.budget, line.reserved)


def _budget(name: str, shown: Cell, spent: float, budget: float, reserved: float) -> tuple[Cell, ...]:
    bar = ProgressBar(f"budget of {name} that is spent", spent, budget)
    return shown, (bar, money(spent)), budget, max(0.0, budget - spent), reserved


def _failures(shared: SharedView) -> tuple[Part, ...]:
    rows: list[tuple[Cell, ...]] = [
        (one.kind, one.calls, one.requests, None if one.age is None else f"{duration(one.age)} ago")
        for one in failures_of(shared)
    ]
    columns = "error, calls:number, requests failed for good:number, last"
    return (DataTable.of("Failures by kind", columns, rows),) if rows else ()


def _processes(shared: SharedView) -> tuple[Part, ...]:
    """Return living and lost processes; those that ended are folded."""
    processes = shared.found.processes
    shown = [one for one in processes if not one.ended]
    ended = [one for one in processes if one.ended]
    parts: list[Part] = [_process_table("Processes", shown)] if shown else []
    if ended:
        words = plural(len(ended), "process that ended", "processes that ended")
        parts.append(Folded(f"{words} in the last ten minutes", (_process_table("Ended processes", ended),)))
    return tuple(parts)


def _process_table(caption: str, processes: Sequence[Participant]) -> DataTable:
    rows = [_process(one) for one in processes]
    columns = "process, state, version, waiting:number, in flight:number, spent:money"
    return DataTable.of(caption, columns, rows)


def _process(one: Participant) -> tuple[Cell, ...]:
    dead = State("ended") if one.ended else State("lost", "bad")
    state = State("running", "good") if one.is_alive else dead
    realtime = one.realtime
    process = f"{one.host} {one.pid}"
    return process, state, one.library, realtime.waiting, realtime.in_flight, realtime.spent
