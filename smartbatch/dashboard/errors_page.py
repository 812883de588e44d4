"""The page *Errors*: final failures by kind and message, with an example of each."""

from __future__ import annotations

from collections import Counter

from smartbatch._words import plural
from smartbatch.dashboard.page import Page, Query, no_store_yet
from smartbatch.dashboard.source import Source
from smartbatch.jobs.summary_records import ErrorGroup
from smartbatch.views.model import Cell, DataTable, Link, Links, Note, Part, Section, State, Tile, View

REFRESH_SECONDS = 2.0  # figures are published every few seconds
MAX_GROUPS = 100
_HOUR_SECONDS = 3600.0
_COLUMNS = "error, message, failed:number, first seen (UTC):time, last seen (UTC):time, model, example"
_NOTE = "In messages, # stands for a number or an id. Requests that succeeded after a retry are not counted."


def page(source: Source, query: Query) -> Page:
    if source.store is None and source.client is None:
        return Page(View("Errors", (Section("errors", "Errors", (), empty=no_store_yet(source)),)))
    groups, kind = source.error_groups(), query.values.get("kind", "")
    shown = [each for each in groups if kind in ("", each.kind)]
    lately = sum(each.last_at > source.now() - _HOUR_SECONDS for each in groups)
    tiles = (
        Tile("Failed requests", f"{sum(each.count for each in groups):,}"),
        Tile("Different errors", f"{len(groups):,}"),
        Tile("Seen in the last hour", f"{lately:,}", tone="bad" if lately else ""),
    )
    sections = (
        Section("kinds", "By kind", _kinds(groups, kind, query), empty="No request has failed."),
        Section("errors", "By message", _errors(shown, query), empty="Nothing to show."),
    )
    return Page(View("Errors", sections, tiles=tiles), REFRESH_SECONDS)


def _kinds(groups: list[ErrorGroup], chosen: str, query: Query) -> tuple[Part, ...]:
    counts: Counter[str] = Counter()
    for group in groups:
        counts[group.kind] += group.count
    if not counts:
        return ()
    rows: list[tuple[Cell, ...]] = [
        (Link(kind, query.again(kind=kind), is_current=kind == chosen), count)
        for kind, count in counts.most_common()
    ]
    every = Links("Kinds", (Link("All kinds", query.again(kind=None)),)) if chosen else None
    table = DataTable.of("Failed requests by kind", "error, failed:number", rows)
    return (table,) if every is None else (table, every)


def _errors(groups: list[ErrorGroup], query: Query) -> tuple[Part, ...]:
    if not groups:
        return ()
    rows = [_row(group, query) for group in groups[:MAX_GROUPS]]
    left = len(groups) - MAX_GROUPS
    more = f" {plural(left, 'older message is', 'older messages are')} left out: choose a kind."
    table = DataTable.of("Errors, latest first", _COLUMNS, rows)
    return table, Note(_NOTE + (more if left > 0 else ""))


def _row(group: ErrorGroup, query: Query) -> tuple[Cell, ...]:
    example: Cell = group.request_id or "from a forgotten job"
    if group.job_id is not None and group.request_id is not None:
        job = Link(f"row {group.row} of {group.job_id}", query.link("jobs", group.job_id))
        example = (group.request_id, job)
    message = group.message or "(no text)"
    return State(group.kind, "bad"), message, group.count, group.first_at, group.last_at, group.model, example
