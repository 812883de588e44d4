"""One job: how it stands, its batches on a time line, what went wrong, and its results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from smartbatch._html import Child, Html, el, fragment
from smartbatch.dashboard import act_forms
from smartbatch.dashboard.downloads import formats, may_download
from smartbatch.dashboard.job_rows import deadline_of, moment_of, progress_of, state_of, time_of
from smartbatch.dashboard.jobs_page import number_of
from smartbatch.dashboard.outlook import course, outlook, risk_of
from smartbatch.dashboard.page import Page, PageSection, Query
from smartbatch.dashboard.source import Source
from smartbatch.errors import JobNotFound, kind_name
from smartbatch.jobs.batch_timeline import timeline_rows
from smartbatch.jobs.incident_titles import incident_title
from smartbatch.jobs.payload import decode_result
from smartbatch.jobs.records import IncidentRow, ShardRow, ShardState
from smartbatch.jobs.status import span
from smartbatch.jobs.store import SqlStore
from smartbatch.jobs.store.job_overview import FailedRequest, JobLine
from smartbatch.reports import charts, components
from smartbatch.reports.axes import Axis, seconds, usd

BATCHES = 100
"""Batches in the table; the time line draws fewer."""
FAILED = 50
"""Failed requests that are shown."""
INCIDENTS = 50
FORMATS = (("jsonl", "JSON lines"), ("csv", "CSV"), ("parquet", "Parquet"))
_TINY = 1e-9


def page(source: Source, query: Query) -> Page:
    """Return the page.

    Raises:
        JobNotFound: the store has no such job.
    """
    store = source.store
    line = None if store is None else store.overview.get(query.argument)
    if store is None or line is None:
        raise JobNotFound(f"The store {source.place} has no job {query.argument!r:.80}.")
    shards = store.overview.shards([line])[line.id]
    return Page(
        f"Job {line.key or line.id}",
        (
            PageSection("job", "How it stands", _facts(source, store, line, shards)),
            PageSection("batches", "Batches", _batches(source, line, shards)),
            PageSection(
                "incidents", "Incidents", _incidents(store.overview.incidents(line.id, limit=INCIDENTS))
            ),
            PageSection("failed", "Failed requests", _failed(store, line, query)),
            PageSection("results", "Results", _downloads(source, line, query)),
            PageSection("act", "Act", act_forms.of_job(line, query), live=False),
        ),
    )


def _facts(source: Source, store: SqlStore, line: JobLine, shards: Sequence[ShardRow]) -> Html:
    now, times = source.now(), source.history.turnaround(line.model)
    forecast = store.overview.forecasts([line]).get(line.no)
    rows: list[tuple[str, Child]] = [
        ("state", state_of(line)),
        ("requests", progress_of(line)),
        ("time", time_of(line, forecast, outlook(line, shards, times, now), now)),
        ("deadline", deadline_of(line, risk_of(line, shards, times, now), now)),
        ("cost", _cost(line)),
        ("budget", _budget(line)),
        ("tokens", _tokens(line)),
        ("route", "–" if line.policy.route is None else line.policy.route.value),
        ("model", line.model),
        ("kind", line.kind),
        ("accepted (UTC)", moment_of(line.created_at)),
        ("id", el("code", line.id)),
    ]
    if line.key is not None:
        rows.append(("key", el("code", line.key)))
    rows += [(f"label {name}", str(value)) for name, value in sorted(line.metadata.items())]
    note = el("p", line.note, class_="notice") if line.note is not None else None
    return fragment(note, components.facts(rows))


def _cost(line: JobLine) -> str:
    saved = line.realtime_cost - line.cost
    words = usd(line.cost)
    if abs(saved) > _TINY:
        words += f", {usd(abs(saved))} {'less' if saved > 0 else 'more'} than in real time"
    return words + (f"; the cost of {line.unpriced:,} is unknown" if line.unpriced else "")


def _tokens(line: JobLine) -> str:
    """Return the tokens; never 0 if they are unknown."""
    if line.unpriced and not line.input_tokens + line.output_tokens:
        return "unknown"
    return f"{line.input_tokens:,} in, {line.output_tokens:,} out"


def _budget(line: JobLine) -> Child:
    budget = line.policy.budget
    if budget is None:
        return "none"
    reserved = f", {usd(line.reserved)} reserved" if line.reserved > _TINY else ""
    return fragment(
        components.progress("budget of the job", line.cost, budget), f" of {usd(budget)}{reserved}"
    )


# -- batches -------------------------------------------------------------------------------------------------


def _batches(source: Source, line: JobLine, shards: Sequence[ShardRow]) -> Html:
    if not shards:
        return el("p", "The job has no batch: its requests go in real time.", class_="soft")
    now, times = source.now(), source.history.turnaround(line.model)
    ahead = [
        (one.at, one.median - line.created_at, one.late - line.created_at)
        for one in course(line, shards, times, now)
    ]
    came = None if line.finished_at is None else line.finished_at - line.created_at
    axis = Axis("seconds from acceptance to the end", seconds, low=0.0)
    head = ("batch", "state", "requests", "done", "id at the provider", "sent (UTC)", "took", "cost", "note")
    rows = [_batch(shard, now) for shard in shards[-BATCHES:]]
    return fragment(
        charts.timeline("When batches ran", timeline_rows(line.created_at, shards, line.finished_at or now)),
        charts.band("How the forecast of its end moved", ahead, axis, came=came) if ahead else None,
        components.table(f"Batches, the last {BATCHES} at most", head, rows, numbers=(2, 3, 6, 7)),
    )


def _batch(shard: ShardRow, now: float) -> tuple[Child, ...]:
    ended = shard.ended_at or shard.died_at
    took = None if shard.submitted_at is None else max(0.0, (ended or now) - shard.submitted_at)
    unknown = shard.state in (ShardState.UNCERTAIN, ShardState.PROVISIONAL, ShardState.FENCED)
    kind = "bad" if unknown else "good" if shard.state is ShardState.SETTLED else ""
    return (
        f"{shard.no}",
        components.state(shard.state.value, kind),
        f"{shard.size:,}",
        "–" if shard.remote.done is None else f"{shard.remote.done:,}",
        "–" if shard.batch_id is None else el("code", shard.batch_id),
        "–" if shard.submitted_at is None else moment_of(shard.submitted_at),
        "–" if took is None else span(took),
        "–" if shard.cost is None else usd(shard.cost),
        shard.note or "",
    )


# -- what went wrong, and results ----------------------------------------------------------------------------


def _incidents(incidents: Sequence[IncidentRow]) -> Html:
    if not incidents:
        return el("p", components.state("Nothing happened that should not.", "good"))
    rows = [
        (
            moment_of(one.at),
            incident_title(one.kind),
            one.detail,
            "–" if one.money is None else usd(one.money),
        )
        for one in incidents
    ]
    return components.table(
        "What should not have happened", ("when (UTC)", "what", "in words", "cost"), rows, numbers=(3,)
    )


def _failed(store: SqlStore, line: JobLine, query: Query) -> Html:
    """Return a page of failed requests; it is named by the position from which it goes on."""
    first = min(number_of(query.values.get("failed")) or 0, line.total)
    rows = store.overview.failed(line, first=first, limit=FAILED + 1)
    links = []
    if first:
        links.append(el("li", el("a", "First failed requests", href=query.again(failed=None))))
    if len(rows) > FAILED:
        more = query.again(failed=rows[FAILED].ix)
        links.append(el("li", el("a", "Further failed requests", href=more)))
    pages = el("nav", el("ul", links), aria_label="Pages of failed requests") if links else None
    if not rows:
        told = "No further request has failed." if first else "No request has failed."
        return fragment(el("p", told, class_="soft"), pages)
    head = ("row", "id", "error", "reason")
    table = components.table("Failed requests", head, list(_reasons(rows[:FAILED])), numbers=(0,))
    return fragment(table, pages)


def _reasons(rows: Sequence[FailedRequest]) -> Iterator[tuple[Child, ...]]:
    for row in rows:
        result = decode_result(row.body, request_id=row.user_id or "")
        error = result.error
        kind, why = (row.outcome, "") if error is None else (kind_name(error), error.message)
        yield f"{row.ix:,}", row.user_id or "–", kind, why


def _downloads(source: Source, line: JobLine, query: Query) -> Html:
    """Return links to files of results, for those who may have answers."""
    if not may_download(source, query):
        told = "Results hold answers: those who may act can download them, or all where content is shown."
        return el("p", told, class_="soft")
    links = (
        el("li", el("a", name, href=query.link("download", line.id, format=kind), download=True))
        for kind, name in FORMATS
        if kind in formats()
    )
    return fragment(el("p", f"{line.finished:,} of {line.total:,} requests have results."), el("ul", links))
