"""*Errors*: what failed, by kind and message, since when, and one example of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from smartbatch._html import Child, Html, el, fragment
from smartbatch.dashboard.job_rows import moment_of
from smartbatch.dashboard.page import Page, PageSection, Query, no_store_yet
from smartbatch.dashboard.source import Source
from smartbatch.jobs.summary_records import ErrorGroup
from smartbatch.reports import components

EVERY = 2.0
"""Seconds between two looks while somebody watches; what is shown is written every few seconds."""
SHOWN = 100
"""Groups of a page."""
_HEAD = ("kind", "message", "failed", "first seen (UTC)", "last seen (UTC)", "model", "example")


def page(source: Source, query: Query) -> Page:
    """Return the page."""
    if source.store is None and source.client is None:
        told = el("p", no_store_yet(source))
        return Page("Errors", (PageSection("errors", "Errors", told),))
    groups = source.error_groups()
    kind = query.values.get("kind", "")
    return Page(
        "Errors",
        (
            PageSection("kinds", "Kinds", _kinds(groups, kind, query)),
            PageSection(
                "errors", "Errors", _errors([each for each in groups if kind in ("", each.kind)], query)
            ),
        ),
        every=EVERY,
    )


def _kinds(groups: Iterable[ErrorGroup], chosen: str, query: Query) -> Html:
    """Return how many failed by kind; each is a link to its messages alone."""
    counts: dict[str, int] = {}
    for group in groups:
        counts[group.kind] = counts.get(group.kind, 0) + group.count
    if not counts:
        return el("p", components.state("No request has failed, as far as is known.", "good"))
    rows: list[tuple[Child, Child]] = [
        (_kind(kind, chosen, query), f"{count:,}")
        for kind, count in sorted(counts.items(), key=lambda each: -each[1])
    ]
    every = el("p", el("a", "All kinds", href=query.again(kind=None))) if chosen else None
    return fragment(
        components.table("Requests that failed, by kind", ("kind", "failed"), rows, numbers=(1,)), every
    )


def _kind(kind: str, chosen: str, query: Query) -> Html:
    here = "true" if kind == chosen else None
    return el("a", kind, href=query.again(kind=kind), aria_current=here)


def _errors(groups: Sequence[ErrorGroup], query: Query) -> Html:
    if not groups:
        return el("p", "There is none.", class_="soft")
    rows = [_row(group, query) for group in groups[:SHOWN]]
    caption = "Errors by kind and message, those seen last first"
    note = "In messages # stands for a number or an id. Only what failed for good is counted."
    if len(groups) > SHOWN:
        note += f" {len(groups) - SHOWN:,} further messages were seen earlier: choose a kind."
    return fragment(components.table(caption, _HEAD, rows, numbers=(2,)), el("p", note, class_="soft"))


def _row(group: ErrorGroup, query: Query) -> tuple[Child, ...]:
    example: Child = "of a job that was forgotten" if group.request_id is None else group.request_id
    if group.job_id is not None:
        job = el("a", group.job_id, href=query.link("jobs", group.job_id))
        example = fragment(el("div", example), el("div", "row ", f"{group.row} of ", job, class_="soft"))
    return (
        components.state(group.kind, "bad"),
        group.message or "(no text)",
        f"{group.count:,}",
        moment_of(group.first_at),
        moment_of(group.last_at),
        group.model,
        example,
    )
