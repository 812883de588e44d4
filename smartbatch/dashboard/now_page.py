"""*Now*: what needs a person, then what runs, how full the limits are, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator

from smartbatch._html import Child, Html, el, fragment
from smartbatch.dashboard.page import Page, Query, Section
from smartbatch.dashboard.source import SharedView, Source
from smartbatch.jobs.records import JobState
from smartbatch.jobs.store.job_overview import JobFilter
from smartbatch.reports import html


def page(source: Source, query: Query) -> Page:
    """Return the page."""
    shared = source.participants()
    return Page(
        "Now",
        (
            Section("attention", "Needs a person", _attention(source, query, shared)),
            Section("processes", "Processes", _processes(shared)),
        ),
    )


def _attention(source: Source, query: Query, shared: SharedView) -> Html:
    """Return what does not go on by itself."""
    found = [el("li", each) for each in _needs(source, query, shared)]
    return el("ul", found) if found else el("p", html.state("Nothing needs a person.", "good"))


def _needs(source: Source, query: Query, shared: SharedView) -> Iterator[Child]:
    """Yield each need in words, the most urgent first."""
    store = source.store
    if store is not None:
        for shard in store.overview.unknown_creations():
            job = el("a", shard.job_id, href=query.link("jobs", shard.job_id))
            yield fragment(
                f"Nobody knows whether batch {shard.no} was created at the provider ({shard.state.value}): ",
                job,
            )
        for line in store.overview.page(JobFilter(state=JobState.HELD), limit=20):
            job = el("a", line.key or line.id, href=query.link("jobs", line.id))
            yield fragment("Held: ", job, f" – {line.note or 'it waits for a person'}")
    if shared.problem is not None:
        yield f"The place where processes share limits cannot be read: {shared.problem}"
    for one in shared.found.lost:
        yield f"Process {one.pid} on {one.host} is not heard any more, and did not say that it ended."


def _processes(shared: SharedView) -> Html:
    rows = [
        (f"{one.host} {one.pid}", one.realtime.waiting, one.realtime.in_flight, f"{one.realtime.spent:.4f}")
        for one in shared.found.living
    ]
    return html.table(
        "Processes that share limits",
        ("process", "waiting", "in flight", "USD spent"),
        rows,
        numbers=(1, 2, 3),
    )
