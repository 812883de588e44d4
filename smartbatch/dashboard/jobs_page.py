"""*Jobs*: how each stands, by pages, and which ones are meant."""

from __future__ import annotations

from smartbatch._html import Child, Html, el, fragment
from smartbatch.dashboard.page import Page, Query, Section
from smartbatch.dashboard.source import Source
from smartbatch.jobs.records import JobState
from smartbatch.jobs.store import SqlStore
from smartbatch.jobs.store.job_overview import JobFilter, JobLine
from smartbatch.reports import html

PAGE = 50
"""Jobs of a page."""
_HEAD = ("job", "model", "state", "done", "requests", "USD")


def page(source: Source, query: Query) -> Page:
    """Return the page."""
    store = source.store
    if store is None:
        return Page("Jobs", (Section("jobs", "Jobs", el("p", f"There is no store yet at {source.place}.")),))
    return Page("Jobs", (Section("jobs", "Jobs", _jobs(store, query)),))


def _jobs(store: SqlStore, query: Query) -> Html:
    lines = store.overview.page(_filter(query), before=_number(query.values.get("before")), limit=PAGE + 1)
    older = el("a", "Older jobs", href=query.again(before=lines[PAGE - 1].no)) if len(lines) > PAGE else None
    rows = [_row(line, query) for line in lines[:PAGE]]
    return fragment(html.table("Jobs, newest first", _HEAD, rows, numbers=(4, 5)), older)


def _row(line: JobLine, query: Query) -> tuple[Child, ...]:
    return (
        el("a", line.key or line.id, href=query.link("jobs", line.id)),
        line.model,
        html.state(line.state.value),
        html.progress(f"{line.id} done", line.finished, line.total),
        f"{line.total:,}",
        f"{line.cost:.4f}",
    )


def _filter(query: Query) -> JobFilter:
    """Return which jobs are asked for; what is no state is all."""
    state = query.values.get("state", "")
    return JobFilter(
        state=JobState(state) if state in {each.value for each in JobState} else None,
        unfinished=state == "unfinished",
        model=query.values.get("model") or None,
        name=query.values.get("name") or None,
    )


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 19 else None
