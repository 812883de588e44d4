"""The page *Now*: required actions, running jobs, limits, spending, failures and processes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

from attrs import frozen

from smartbatch._words import duration, known_money, money, number, plural
from smartbatch.dashboard.jobs_page import jobs_table
from smartbatch.dashboard.page import Page, Query, no_store_yet
from smartbatch.dashboard.source import SharedView, Source, failures_of
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
RATES_SECONDS = 30 * MINUTE  # period for which calls and tokens are shown
SPENDING_HOURS = 24
MAX_RUNNING_JOBS = 5
MAX_JOB_BUDGETS = 6
MAX_NOTICED_JOBS = 5  # jobs listed for one reason
MIN_COOLDOWN_SECONDS = 60.0  # shorter cooldowns are not listed
SPENT_SHARE = 0.98  # share from which a budget counts as fully spent
MIN_FREE_BYTES = 256 << 20  # below which the disk of the store is nearly full
WAIT_REASONS = {
    "pause": "a user to resume the model",
    "window": "the window that gathers requests for one call",
    "breaker": "the breaker: the provider is down",
    "cooldown": "the end of a cooldown",
    "budget": "the budget",
    "limit": "the limit on requests or tokens",
    "slot": "a free slot",
    "retry": "the next retry",
}


def page(source: Source, query: Query) -> Page:
    shared, store = source.participants(), source.store
    status = merged([one.realtime for one in shared.found.living])
    notices = list(notices_of(source, shared))
    no_jobs = no_store_yet(source) if store is None else "No job is running."
    off = "No process publishes its figures: set shared=… to see all of them here."
    sections = (
        Section("attention", "Action required", _attention(notices, query), empty="Nothing to do."),
        Section("running", "Running jobs", _running(source, store, query), empty=no_jobs),
        Section("limits", "Limits", _limits(status, shared), empty="No process publishes limits."),
        Section("queue", "Real-time requests", _queue(status), empty="No requests are waiting."),
        Section("rates", "Calls and tokens", _rates(source, status), empty="No calls in the last half hour."),
        Section("money", "Spending", _money(source, store, shared, query)),
        Section("failures", "Failures", _failures(shared), empty="No call has failed."),
        Section("processes", "Processes", _processes(shared), empty=off),
    )
    state = State("action required", "bad") if notices else State("all good", "good")
    return Page(View("Now", sections, state, tiles=_tiles(source, store, status, query)))


def _tiles(source: Source, store: SqlStore | None, status: RealtimeStatus, query: Query) -> tuple[Tile, ...]:
    now = source.now()
    today = now // DAY * DAY
    spent = [one for one in source.spending(today) if one.hour >= today]
    saved = sum(one.realtime_usd - one.usd for one in spent)
    failing = [one for one in source.error_groups() if one.last_at > now - HOUR]
    jobs = 0 if store is None else store.overview.count(JobState.ACTIVE)
    return (
        Tile(
            "Running",
            plural(jobs, "job"),
            f"{plural(status.in_flight, 'request')} in flight",
            href=query.link("jobs"),
        ),
        Tile(
            "Waiting",
            number(status.waiting),
            f"the oldest for {duration(status.oldest_wait)}" if status.waiting else "real-time requests",
        ),
        Tile("Done per minute", number(status.sent), "requests sent in the last minute"),
        Tile("Spent today", _paid(spent), f"{money(saved)} saved" if saved > 0.005 else "since midnight UTC"),
        Tile(
            "Failing",
            plural(len(failing), "error") if failing else "0",
            "in the last hour",
            tone="bad" if failing else "",
            href=query.link("errors"),
        ),
    )


# -- required actions ----------------------------------------------------------------------------------------


@frozen
class Notice:
    """Something that requires action by the user; ``note`` follows the name of the job."""

    text: str
    job_id: str | None = None
    job_name: str = ""
    note: str = ""


def notices_of(source: Source, shared: SharedView) -> Iterator[Notice]:
    store = source.store
    if store is not None:
        for shard in store.overview.unknown_creations(limit=MAX_NOTICED_JOBS):
            batch = f"batch {shard.no} ({shard.state.value})"
            text = f"It is unclear whether the provider created {batch} of job "
            yield Notice(text, shard.job_id, shard.job_id, f" – {shard.note or 'searching the provider'}")
        yield from _storage(source)
        for pause in store.controls.controls().pauses.values():
            yield Notice(f"{pause}. Nothing new is sent to it until it is resumed.")
        held = store.overview.page(JobFilter(state=JobState.HELD), limit=MAX_NOTICED_JOBS + 1)
        for line in held[:MAX_NOTICED_JOBS]:
            yield _job_notice("Held: job ", line, line.note or "resume or cancel it")
        if len(held) > MAX_NOTICED_JOBS:
            yield Notice("Further jobs are held: see Jobs.")
    if shared.problem is not None:
        yield Notice(f"The shared limits cannot be read: {shared.problem}")
    for one in shared.found.living:
        if one.realtime.budget and one.realtime.spent >= SPENT_SHARE * one.realtime.budget:
            spent = f"{money(one.realtime.spent)} of {money(one.realtime.budget)}"
            yield Notice(f"The budget of process {one.pid} on {one.host} is spent: {spent}.")
    for lane in merged([one.realtime for one in shared.found.living]).lanes:
        yield from _provider(lane)
    if store is not None:
        for line in store.overview.waiting(limit=MAX_NOTICED_JOBS):
            if line.note is not None:
                yield _job_notice("Waiting: job ", line, line.note)
            elif not line.policy.attended:
                yield _job_notice("No process is running job ", line, "resume it, or start a client")
            else:
                yield _job_notice("Interrupted run: job ", line, "run the same command again to continue")
    for one in shared.found.lost:
        silent = f"has been silent for {duration(one.age)} and has not reported its end"
        yield Notice(f"Process {one.pid} on {one.host} {silent}.")


def _storage(source: Source) -> Iterator[Notice]:
    """Warn if the disk is nearly full. The disk of a database server is not checked."""
    if source.file is not None:
        disk = os.statvfs(source.file)
        free = disk.f_bavail * disk.f_frsize
        if free < MIN_FREE_BYTES:
            yield Notice(f"The disk of the store {source.file} has {free / 2**20:,.0f} MiB left.")


def _provider(lane: LaneStatus) -> Iterator[Notice]:
    if lane.breaker != "closed":
        yield Notice(f"{lane.model}: the provider is down (breaker {lane.breaker}).")
    if lane.cooldown >= MIN_COOLDOWN_SECONDS:
        yield Notice(f"{lane.model}: the provider refused a call; no calls for {duration(lane.cooldown)}.")
    if lane.is_lost:
        yield Notice(f"{lane.model}: shared limits are unavailable; each process keeps to its own share.")


def _job_notice(text: str, line: JobRow, note: str) -> Notice:
    return Notice(text, line.id, line.key or line.id, f" – {note}")


def _attention(notices: Sequence[Notice], query: Query) -> tuple[Part, ...]:
    rows: list[tuple[Value, ...]] = [
        (one.text,)
        if one.job_id is None
        else (one.text, Link(one.job_name, query.link("jobs", one.job_id)), one.note)
        for one in notices
    ]
    return (Bullets(tuple(rows), "bad"),) if rows else ()


def _running(source: Source, store: SqlStore | None, query: Query) -> tuple[Part | None, ...]:
    if store is None:
        return ()
    lines = store.overview.page(JobFilter(unfinished=True), limit=MAX_RUNNING_JOBS + 1)
    more = Links("More jobs", (Link("All running jobs", query.link("jobs", state="unfinished")),))
    table = jobs_table("Running jobs, newest first", lines[:MAX_RUNNING_JOBS], source, query)
    return table, more if len(lines) > MAX_RUNNING_JOBS else None


# -- real time -----------------------------------------------------------------------------------------------


def _limits(status: RealtimeStatus, shared: SharedView) -> tuple[Part, ...]:
    if not status.lanes:
        return ()
    columns = (
        "model, requests per minute, tokens per minute/3, waiting:number/1, in flight:number/1, waits for/4, "
        "processes:number/5"
    )
    left_out = sum(one.realtime.lanes_left_out for one in shared.found.living)
    more = f" {plural(left_out, 'further model is', 'further models are')} left out." if left_out else ""
    note = "Usage in the last minute. A limit that was idle may be used up to twice as fast at first."
    table = DataTable.of(
        "Limits, and what waits for them", columns, [_limit_row(lane) for lane in status.lanes]
    )
    return table, Note(note + more)


def _limit_row(lane: LaneStatus) -> tuple[Cell, ...]:
    tokens = _used_of_limit(lane.model, "tokens", lane.tokens_used, lane.tokens_per_minute, lane.tokens_left)
    if not lane.tokens_per_minute and (lane.input_tokens_per_minute or lane.output_tokens_per_minute):
        inputs = (lane.input_tokens_used, lane.input_tokens_per_minute, lane.input_tokens_left)
        outputs = (lane.output_tokens_used, lane.output_tokens_per_minute, lane.output_tokens_left)
        tokens = (
            *_used_of_limit(lane.model, "input tokens", *inputs),
            *_used_of_limit(lane.model, "output tokens", *outputs),
        )
    requests = (lane.requests_used, lane.requests_per_minute, lane.requests_left)
    return (
        lane.model,
        _used_of_limit(lane.model, "requests", *requests),
        tokens,
        lane.waiting,
        lane.in_flight,
        _waits_for(lane),
        lane.processes,
    )


def _used_of_limit(model: str, what: str, used: float, limit: float, left: float) -> tuple[Value, ...]:
    """Return the used part of a limit; for a shared limit, also the part that no process has leased."""
    if not limit:
        return f"{used:,.0f}", "no known limit"
    bar = ProgressBar(f"{what} of {model} in the last minute", used, limit)
    free = f", {max(0.0, left):,.0f} free" if left else ""
    return bar, f"{used:,.0f} of {limit:,.0f}{free}"


def _waits_for(lane: LaneStatus) -> Cell:
    values: list[Value] = []
    if lane.breaker != "closed":
        values.append(State(f"breaker {lane.breaker}", "bad"))
    if lane.cooldown:
        values.append(State(f"cooldown {duration(lane.cooldown)}", "warn"))
    if lane.is_lost:
        values.append(State("own share only: shared limits are unavailable", "warn"))
    if lane.waits_for:
        values.append(WAIT_REASONS.get(lane.waits_for, lane.waits_for))
    return tuple(values) if values else None


def _queue(status: RealtimeStatus) -> tuple[Part, ...]:
    unfinished = status.waiting + status.in_flight
    if not unfinished and not status.blocked:
        return ()
    facts: list[tuple[str, Cell]] = [
        ("waiting", f"{status.waiting:,}"),
        ("in flight", f"{status.in_flight:,}"),
        ("oldest wait", duration(status.oldest_wait) if status.waiting else None),
        ("time left at this rate", _time_left(unfinished, status.sent)),
        ("threads making calls", f"{status.workers:,}"),
        ("threads waiting to submit", f"{status.blocked:,}"),
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
        rows = [(WAIT_REASONS.get(name, name), count) for name, count in waits]
        parts.append(DataTable.of("What requests wait for", "waiting for, requests:number", rows))
    return tuple(parts)


def _time_left(requests: int, sent: float) -> str | None:
    if not requests:
        return None
    return f"about {duration(requests / sent * MINUTE)}" if sent >= 1 else "unknown: nothing was sent"


def _rates(source: Source, status: RealtimeStatus) -> tuple[Part, ...]:
    """Return charts of calls and tokens per minute; the current minute comes last."""
    minute = source.now() // MINUTE * MINUTE
    calls = [(each.at, float(each.calls)) for each in status.minutes if each.at < minute]
    tokens = [(each.at, float(each.tokens)) for each in status.minutes if each.at < minute]
    if status.minutes and (lately := sum(lane.requests_used for lane in status.lanes)):
        calls.append((minute, lately))
        tokens.append((minute, sum(lane.tokens_used for lane in status.lanes)))
    low, high = minute - RATES_SECONDS, minute + MINUTE
    return (
        BarsOverTime("Calls per minute", MINUTE, tuple(calls), low=low, high=high),
        BarsOverTime("Tokens per minute", MINUTE, tuple(tokens), low=low, high=high),
    )


# -- money, failures, processes ------------------------------------------------------------------------------


def _money(source: Source, store: SqlStore | None, shared: SharedView, query: Query) -> tuple[Part, ...]:
    status = merged([one.realtime for one in shared.found.living])
    spending = source.spending(source.now() - SPENDING_HOURS * HOUR)
    saved = sum(one.realtime_usd - one.usd for one in spending)
    facts = Facts(
        (
            (f"spent in {SPENDING_HOURS} hours", _paid(spending)),
            ("saved compared with real time", money(saved)),
            ("spent in real time by running processes", money(status.spent)),
        )
    )
    lines = [] if store is None else store.overview.page(JobFilter(unfinished=True), limit=MAX_JOB_BUDGETS)
    budgets = [*_budgets_of_processes(shared), *_budgets_of_jobs(lines, query)]
    columns = "budget of, spent, budget:money/1, left:money/2, reserved:money/3"
    table = DataTable.of("Budgets", columns, budgets)
    return facts, _spent_by_hour(spending, source.now()), *([table] if budgets else [])


def _paid(spending: Sequence[Spending]) -> str:
    return known_money(sum(one.usd for one in spending), sum(one.unpriced for one in spending))


def _spent_by_hour(spending: Sequence[Spending], now: float) -> BarsOverTime:
    hours: dict[float, float] = {}
    for one in spending:
        hours[one.hour] = hours.get(one.hour, 0.0) + one.usd
    hour = now // HOUR * HOUR
    low = hour - (SPENDING_HOURS - 1) * HOUR
    return BarsOverTime("Spent per hour", HOUR, tuple(sorted(hours.items())), "money", low, hour + HOUR)


def _budgets_of_processes(shared: SharedView) -> Iterator[tuple[Cell, ...]]:
    for one in shared.found.living:
        if one.realtime.budget:
            name = f"process {one.host} {one.pid}"
            yield _budget_row(name, name, one.realtime.spent, one.realtime.budget, one.realtime.unconfirmed)


def _budgets_of_jobs(lines: Iterable[JobRow], query: Query) -> Iterator[tuple[Cell, ...]]:
    for line in lines:
        if line.policy.budget is not None:
            name = line.key or line.id
            link = Link(f"job {name}", query.link("jobs", line.id))
            yield _budget_row(name, link, line.cost, line.policy.budget, line.reserved)


def _budget_row(name: str, shown: Cell, spent: float, budget: float, reserved: float) -> tuple[Cell, ...]:
    bar = ProgressBar(f"spent from the budget of {name}", spent, budget)
    return shown, (bar, money(spent)), budget, max(0.0, budget - spent), reserved


def _failures(shared: SharedView) -> tuple[Part, ...]:
    rows: list[tuple[Cell, ...]] = [
        (one.kind, one.calls, one.requests, None if one.age is None else f"{duration(one.age)} ago")
        for one in failures_of(shared)
    ]
    columns = "error, failed calls:number, failed requests:number, last/1"
    return (DataTable.of("Failures by kind", columns, rows),) if rows else ()


def _processes(shared: SharedView) -> tuple[Part, ...]:
    """Return tables of processes; the table of ended processes is collapsed."""
    processes = shared.found.processes
    shown = [one for one in processes if not one.ended]
    ended = [one for one in processes if one.ended]
    parts: list[Part] = [_process_table("Processes", shown)] if shown else []
    if ended:
        count = plural(len(ended), "process", "processes")
        summary = f"{count} ended in the last ten minutes"
        parts.append(Folded(summary, (_process_table("Ended processes", ended),)))
    return tuple(parts)


def _process_table(caption: str, processes: Sequence[Participant]) -> DataTable:
    rows = [_process(one) for one in processes]
    columns = "process, state, version/3, waiting:number/1, in flight:number/1, spent:money/2"
    return DataTable.of(caption, columns, rows)


def _process(one: Participant) -> tuple[Cell, ...]:
    if one.is_alive:
        state = State("running", "good")
    else:
        state = State("ended") if one.ended else State("lost", "bad")
    realtime = one.realtime
    process = f"{one.host} {one.pid}"
    return process, state, one.library, realtime.waiting, realtime.in_flight, realtime.spent
