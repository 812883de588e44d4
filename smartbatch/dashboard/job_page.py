"""One job: how it stands, its batches on a time line, what went wrong, and its results."""

from __future__ import annotations

from smartbatch._html import Html, el
from smartbatch.dashboard.page import Page, Query, Section
from smartbatch.dashboard.source import Source
from smartbatch.errors import JobNotFound
from smartbatch.jobs.records import JobRow
from smartbatch.jobs.status import JobStatus
from smartbatch.reports import html


def page(source: Source, query: Query) -> Page:
    """Return the page.

    Raises:
        JobNotFound: the store has no such job.
    """
    store = source.store
    row = None if store is None else store.jobs.get(query.argument)
    if row is None:
        raise JobNotFound(f"The store {source.place} has no job {query.argument!r:.80}.")
    status = source.jobs.job(row.id).status()
    return Page(f"Job {row.key or row.id}", (Section("job", "How it stands", _facts(row, status)),))


def _facts(row: JobRow, status: JobStatus) -> Html:
    return html.facts(
        [
            ("id", el("code", row.id)),
            ("model", row.model),
            ("state", html.state(status.state)),
            ("requests", f"{status.finished:,} of {status.total:,}"),
            ("cost", f"{status.cost:.6f} USD"),
        ]
    )
