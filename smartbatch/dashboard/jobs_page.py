"""The page *Jobs*: a paged table of jobs with the time left, filtered by state, model or name."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from attrs import frozen

from smartbatch._words import UNKNOWN, duration, money, share
from smartbatch.core.forecast import Times
from smartbatch.dashboard.action_forms import job_list_forms
from smartbatch.dashboard.page import Page, Query, no_store_yet, number_of, pages_of
from smartbatch.dashboard.source import Source
from smartbatch.jobs.records import JobRow, JobState
from smartbatch.jobs.shard_records import OPEN_SHARDS, UNSENT_SHARDS, ShardRow
from smartbatch.jobs.status import shown_state
from smartbatch.jobs.store import SqlStore
from smartbatch.jobs.store.job_overview import MAX_COUNTED, AcceptedForecast, JobFilter
from smartbatch.results import defects_in_words
from smartbatch.views.model import (
    Cell,
    DataTable,
    Field,
    Form,
    Link,
    Moment,
    ProgressBar,
    Section,
    State,
    Tile,
    Value,
    View,
)

JOBS_PER_PAGE = 40
REFRESH_SECONDS = 1.75  # changes appear within two seconds, and a full page takes less than 1 % of a core
MAX_FORECAST_BATCHES = 40  # newest unfinished batches to forecast; these end last
_STATES = (("", "all"), ("unfinished", "running"), *((state.value, state.value) for state in JobState))
_EMPTY = "No jobs found. Show all of them, or submit one: client.submit_batch(prompts, key=…)."
_COLUMNS = "job, model/4, state, requests, route/6, time, cost:money, deadline/5"
_HIGH_RISK = 0.05
_MIN_USD = 1e-9  # smaller differences are rounding errors
_MAX_SHARE = 1 - 1e-9


def page(source: Source, query: Query) -> Page:
    store = source.store
    if store is None:
        return Page(View("Jobs", (Section("jobs", "All jobs", (), empty=no_store_yet(source)),)))
    chosen, before = filter_of(query), number_of(query.values.get("before"))
    lines = store.overview.page(chosen, before=before, limit=JOBS_PER_PAGE + 1)
    older = lines[JOBS_PER_PAGE - 1].no if len(lines) > JOBS_PER_PAGE else None
    table = jobs_table("Jobs, newest first", lines[:JOBS_PER_PAGE], source, query)
    forms = job_list_forms(chosen, query)
    sections = [
        Section("filter", "Filter", (_filter_form(query),), is_live=False),
        Section("jobs", "Jobs", (table, pages_of("jobs", query, "before", older)), empty=_EMPTY),
        *([Section("actions", "Actions on these jobs", forms, is_live=False)] if forms else []),
    ]
    return Page(View("Jobs", tuple(sections), tiles=_tiles(store, query)), REFRESH_SECONDS)


def filter_of(query: Query) -> JobFilter:
    """Return the filter in a query; an unknown state means all states."""
    state, model = query.values.get("state", ""), query.values.get("model", "")
    return JobFilter(
        state=JobState(state) if state in {each.value for each in JobState} else None,
        unfinished=state == "unfinished",
        model=model.replace("\0", " ") or None,  # database text columns cannot store NUL
        name=query.values.get("name") or None,
    )


def _tiles(store: SqlStore, query: Query) -> tuple[Tile, ...]:
    counts = [(state, store.overview.count(state)) for state in JobState]
    return tuple(
        Tile(
            state.value.capitalize(),
            f"{MAX_COUNTED:,}+" if count > MAX_COUNTED else f"{count:,}",
            tone="bad" if state is JobState.HELD and count else "",
            href=query.link("jobs", state=state.value),
        )
        for state, count in counts
    )


def _filter_form(query: Query) -> Form:
    values = query.values
    fields = (
        Field("state", "State", values.get("state", ""), kind="select", options=_STATES),
        _search_field("model", "Model", "provider:model", query),
        _search_field("name", "Id or key", "job-… or a key", query),
    )
    return Form(query.link("jobs"), "Show", fields, is_search=True)


def _search_field(name: str, label: str, hint: str, query: Query) -> Field:
    return Field(name, label, query.values.get(name, ""), hint, kind="search", is_required=False)


# -- rows ----------------------------------------------------------------------------------------------------


def jobs_table(caption: str, lines: Sequence[JobRow], source: Source, query: Query) -> DataTable | None:
    """Return a table of jobs, using two queries for any number of jobs."""
    store = source.store
    if store is None or not lines:
        return None
    forecasts, now = store.overview.forecasts(lines), source.now()
    running = [line for line in lines if line.state is not JobState.DONE]
    shards = store.overview.shards(running)
    history = source.history
    times = {model: history.turnaround(model) for model in {line.model for line in running}}
    rows = []
    for line in lines:
        ends, risk = None, None
        if line.id in shards:
            of_job = shards[line.id], times[line.model], now
            ends, risk = outlook(line, *of_job), risk_of(line, *of_job)
        rows.append(_row(line, forecasts.get(line.no), ends, risk, now, query))
    return DataTable.of(caption, _COLUMNS, rows)


def _row(
    line: JobRow,
    forecast: AcceptedForecast | None,
    ends: Outlook | None,
    risk: float | None,
    now: float,
    query: Query,
) -> tuple[Cell, ...]:
    cancelling = line.cancel_requested and line.state is not JobState.DONE
    return (
        (Link(line.key or line.id, query.link("jobs", line.id)), Moment(line.created_at)),
        line.model,
        shown_state(line.state.value, cancelling=cancelling, failed=line.failed),
        _progress(line),
        None if line.policy.route is None else line.policy.route.value,
        time_of(line, forecast, ends, now),
        _cost(line),
        deadline_of(line, risk, now),
    )


def _progress(line: JobRow) -> tuple[Value, ...]:
    bar = ProgressBar(f"requests of {line.key or line.id} that have results", line.finished, line.total)
    defects = defects_in_words(line)
    return (
        bar,
        f"{line.finished:,} of {line.total:,}",
        *([State(defects, "warn")] if defects else []),
        *([State(f"{line.failed:,} failed", "bad")] if line.failed else []),
    )


def _cost(line: JobRow) -> tuple[Value, ...]:
    saved = line.realtime_cost - line.cost
    compared = f"{money(abs(saved))} {'saved' if saved > 0 else 'more than in real time'}"
    return (
        UNKNOWN if line.unpriced and not line.cost else line.cost,
        *([compared] if abs(saved) > _MIN_USD else []),
        *([f"{line.unpriced:,} without a price"] if line.unpriced else []),
    )


def time_of(
    line: JobRow, forecast: AcceptedForecast | None, ends: Outlook | None, now: float
) -> tuple[Value, ...]:
    texts: list[Value] = []
    if line.finished_at is not None:
        texts.append(f"took {duration(line.finished_at - line.created_at)}")
    elif ends is not None:
        texts.append(f"about {duration(max(0.0, ends.median - now))} left")
        if ends.late > ends.median + 1:
            texts.append(f"up to {duration(ends.late - now)}")
    else:
        texts.append(f"{duration(max(0.0, now - line.created_at))} so far")
    if forecast is not None:
        texts.append(f"expected {duration(forecast.p50)}, up to {duration(forecast.p95)}")
    return tuple(texts)


def deadline_of(line: JobRow, risk: float | None, now: float) -> Cell:
    deadline = line.policy.deadline
    if deadline is None:
        return None
    if line.state is JobState.DONE:
        late = (line.finished_at or now) - deadline
        return State(f"missed by {duration(late)}", "bad") if late > 0 else State("met", "good")
    if now > deadline:
        return State(f"missed {duration(now - deadline)} ago", "bad")
    text = f"in {duration(deadline - now)}"
    return text if risk is None else (text, State(f"risk {share(risk)}", "warn" if risk > _HIGH_RISK else ""))


# -- time left -----------------------------------------------------------------------------------------------


@frozen
class Outlook:
    median: float
    late: float  # 95th percentile


def outlook(line: JobRow, shards: Sequence[ShardRow], times: Times, now: float) -> Outlook | None:
    """Return when a job is expected to end, or ``None``.

    The estimate is computed from batches rather than rows, so large jobs take no longer than small ones.
    """
    # 1. The job has finished, is held, or has no requests: no estimate.
    if line.state is JobState.HELD or line.total == 0 or (line.finished_at or now + 1) <= now:
        return None
    known = [shard for shard in shards if shard.submitted_at is not None and shard.submitted_at <= now]
    # 2. The job is sent in real time: assume its throughput so far.
    if not known and not any(shard.state in UNSENT_SHARDS for shard in shards):
        return _by_throughput(line, now)
    # 3. The job is sent in batches: it ends with the last batch. Batches of one model tend to be slow at the
    # same time, so the job's bound is that of its slowest batch. Requests that are not in a batch yet need
    # another batch.
    running = [shard for shard in known if (_ended_at(shard) or now + 1) > now]
    unsent = max(0, line.total - sum(shard.size for shard in known))
    ages = [(now - (shard.submitted_at or now), shard.size) for shard in running]
    ends = []
    for part in (0.5, 0.95):
        left = [
            _seconds_left(times, age, size, part) for age, size in heapq.nsmallest(MAX_FORECAST_BATCHES, ages)
        ]
        more = times.quantile(part, max(1, min(unsent, 50_000))) if unsent else 0.0
        ends.append(now + max(left, default=0.0) + more)
    return Outlook(*ends)


def risk_of(line: JobRow, shards: Sequence[ShardRow], times: Times, now: float) -> float | None:
    """Return the probability that a job's batches miss its deadline if no requests are withdrawn and sent in
    real time; ``None`` without a deadline or a forecast.
    """
    deadline = line.policy.deadline
    if deadline is None or line.state is JobState.DONE:
        return None
    if deadline <= now:
        return 1.0
    running = [
        (now - shard.submitted_at, shard.size)
        for shard in shards
        if shard.state in OPEN_SHARDS and shard.submitted_at is not None and _ended_at(shard) is None
    ]
    if not running:
        return None
    youngest = heapq.nsmallest(MAX_FORECAST_BATCHES, running)
    return max(_risk(times, age, size, deadline - now) for age, size in youngest)


def _ended_at(shard: ShardRow) -> float | None:
    return shard.ended_at or shard.died_at


def _seconds_left(times: Times, age: float, size: int, part: float) -> float:
    done = times.chance(age, size)
    return max(0.0, times.quantile(min(_MAX_SHARE, done + part * (1 - done)), size) - age)


def _risk(times: Times, age: float, size: int, left: float) -> float:
    done = times.chance(age, size)
    return 1.0 if done >= 1.0 else (1 - times.chance(age + left, size)) / (1 - done)


def _by_throughput(line: JobRow, now: float) -> Outlook | None:
    answered, taken = line.finished, now - line.created_at
    if not answered or taken <= 0:
        return None
    end = now + (line.total - answered) * taken / answered
    return Outlook(end, end)
