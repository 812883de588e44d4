"""Jobs as rows of a table: how each stands, what it costs, and when it will be done."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from smartbatch._html import Child, Html, el, fragment
from smartbatch.dashboard.outlook import Outlook, outlook, risk_of
from smartbatch.dashboard.page import Query
from smartbatch.dashboard.source import Source
from smartbatch.jobs.records import JobState
from smartbatch.jobs.status import span
from smartbatch.jobs.store.job_overview import AcceptedForecast, JobLine
from smartbatch.reports import components
from smartbatch.reports.axes import usd
from smartbatch.results import defects_in_words

HEAD = ("job", "model", "state", "requests", "route", "forecast and came", "cost", "real time", "deadline")
_KINDS = {JobState.ACTIVE: "", JobState.HELD: "bad", JobState.DONE: "good"}


def jobs_table(caption: str, lines: Sequence[JobLine], source: Source, query: Query) -> Html:
    """Return a table of jobs; two questions to the store besides that for the jobs themselves."""
    store = source.store
    if store is None:
        return fragment()
    told, now = store.overview.forecasts(lines), source.now()
    going = [line for line in lines if line.state is not JobState.DONE]
    shards = store.overview.shards(going)
    history = source.history
    times = {model: history.turnaround(model) for model in {line.model for line in going}}
    rows = []
    for line in lines:
        ends, risk = None, None
        if line.id in shards:
            of_job = shards[line.id], times[line.model], now
            ends, risk = outlook(line, *of_job), risk_of(line, *of_job)
        rows.append(_row(line, told.get(line.no), ends, risk, now, query))
    return components.table(caption, HEAD, rows, numbers=(6, 7))


def _row(
    line: JobLine,
    forecast: AcceptedForecast | None,
    ends: Outlook | None,
    risk: float | None,
    now: float,
    query: Query,
) -> tuple[Child, ...]:
    return (
        fragment(
            el("a", line.key or line.id, href=query.link("jobs", line.id)),
            el("div", moment_of(line.created_at), class_="soft"),
        ),
        line.model,
        state_of(line),
        progress_of(line),
        "–" if line.policy.route is None else line.policy.route.value,
        time_of(line, forecast, ends, now),
        usd(line.cost) + (" + ?" if line.unpriced else ""),
        usd(line.realtime_cost),
        deadline_of(line, risk, now),
    )


def state_of(line: JobLine) -> Html:
    """Return the state of a job in words."""
    if line.cancel_requested and line.state is not JobState.DONE:
        return components.state("is being cancelled", "warn")
    return components.state(line.state.value, _KINDS[line.state])


def progress_of(line: JobLine) -> Html:
    """Return how many requests have their results, and how many of them are flawed or failed."""
    shown = components.progress(
        f"requests of {line.key or line.id} that have results", line.finished, line.total
    )
    counts = f"{line.finished:,} of {line.total:,}"
    failed = el("div", components.state(f"{line.failed:,} failed", "bad")) if line.failed else None
    defects = defects_in_words(line)
    flawed = el("div", components.state(defects, "warn")) if defects else None
    return fragment(shown, el("div", counts, class_="soft"), flawed, failed)


def time_of(line: JobLine, forecast: AcceptedForecast | None, ends: Outlook | None, now: float) -> Html:
    """Return what was forecast for a job, and what it took or what is left."""
    parts = []
    if forecast is not None:
        parts.append(f"forecast {span(forecast.p50)}, 95 % within {span(forecast.p95)}")
    if line.finished_at is not None:
        parts.append(f"took {span(line.finished_at - line.created_at)}")
    elif ends is not None:
        late = f", 95 % within {span(ends.late - now)}" if ends.late > ends.median + 1 else ""
        parts.append(f"about {span(max(0.0, ends.median - now))} left{late}")
    else:
        parts.append(f"{span(max(0.0, now - line.created_at))} so far")
    return fragment(el("div", part) for part in parts)


def deadline_of(line: JobLine, risk: float | None, now: float) -> Child:
    """Return a job's deadline, and how probable its batches miss it."""
    deadline = line.policy.deadline
    if deadline is None:
        return "–"
    if line.state is JobState.DONE:
        late = (line.finished_at or now) - deadline
        return (
            components.state(f"missed by {span(late)}", "bad")
            if late > 0
            else components.state("met", "good")
        )
    if now > deadline:
        return components.state(f"missed {span(now - deadline)} ago", "bad")
    words = f"in {span(deadline - now)}"
    if risk is None:
        return words
    return fragment(el("div", words), components.state(f"risk {risk:.0%}", "warn" if risk > 0.05 else ""))


def moment_of(at: float) -> Html:
    """Return a time in UTC."""
    found = datetime.fromtimestamp(at, UTC)
    return el("time", f"{found:%Y-%m-%d %H:%M:%S}", datetime=found.isoformat(timespec="seconds"))
