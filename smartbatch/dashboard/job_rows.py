"""Jobs as rows of a table: state, progress, cost, and when they will be done."""

from __future__ import annotations

from collections.abc import Sequence

from smartbatch._words import duration, money, share
from smartbatch.dashboard.outlook import Outlook, outlook, risk_of
from smartbatch.dashboard.page import Query
from smartbatch.dashboard.source import Source
from smartbatch.jobs.records import JobRow, JobState
from smartbatch.jobs.status import shown_state
from smartbatch.jobs.store.job_overview import AcceptedForecast
from smartbatch.results import defects_in_words
from smartbatch.views.model import Cell, DataTable, Link, Moment, ProgressBar, State, Value

_COLUMNS = "job, model/4, state, requests, route/6, time, cost:money, deadline/5"
_RISKY = 0.05
_TINY = 1e-9


def jobs_table(caption: str, lines: Sequence[JobRow], source: Source, query: Query) -> DataTable | None:
    """Return a table of jobs; two questions to the store besides that for the jobs themselves."""
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
        progress_of(line),
        None if line.policy.route is None else line.policy.route.value,
        time_of(line, forecast, ends, now),
        _cost(line),
        deadline_of(line, risk, now),
    )


def progress_of(line: JobRow) -> tuple[Value, ...]:
    """Return how many requests have their results, and how many of them are flawed or failed."""
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
    compared = f"{money(abs(saved))} {'saved' if saved > 0 else 'more'}"
    return (
        line.cost,
        *([compared] if abs(saved) > _TINY else []),
        *([f"{line.unpriced:,} without a price"] if line.unpriced else []),
    )


def time_of(
    line: JobRow, forecast: AcceptedForecast | None, ends: Outlook | None, now: float
) -> tuple[Value, ...]:
    """Return what a job took or what is left, and what was forecast."""
    if line.finished_at is not None:
        first = f"took {duration(line.finished_at - line.created_at)}"
    elif ends is not None:
        late = f", p95 {duration(ends.late - now)}" if ends.late > ends.median + 1 else ""
        first = f"about {duration(max(0.0, ends.median - now))} left{late}"
    else:
        first = f"{duration(max(0.0, now - line.created_at))} so far"
    if forecast is None:
        return (first,)
    return first, f"forecast {duration(forecast.p50)}, p95 {duration(forecast.p95)}"


def deadline_of(line: JobRow, risk: float | None, now: float) -> Cell:
    """Return a job's deadline, and the probability that its batches miss it."""
    deadline = line.policy.deadline
    if deadline is None:
        return None
    if line.state is JobState.DONE:
        late = (line.finished_at or now) - deadline
        return State(f"missed by {duration(late)}", "bad") if late > 0 else State("met", "good")
    if now > deadline:
        return State(f"missed {duration(now - deadline)} ago", "bad")
    words = f"in {duration(deadline - now)}"
    return words if risk is None else (words, State(f"risk {share(risk)}", "warn" if risk > _RISKY else ""))
