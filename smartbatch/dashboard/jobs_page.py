"""*Jobs*: every job, by pages, and by state, model or name."""

from __future__ import annotations

from smartbatch.dashboard import act_forms
from smartbatch.dashboard.job_rows import jobs_table
from smartbatch.dashboard.page import Page, Query, no_store_yet, number_of, pages_of
from smartbatch.dashboard.source import Source
from smartbatch.jobs.records import JobState
from smartbatch.jobs.store import SqlStore
from smartbatch.jobs.store.job_overview import MAX_COUNTED, JobFilter
from smartbatch.views.model import Field, Form, Section, Tile, View

PAGE = 40
"""Jobs of a page."""
EVERY = 1.75
"""Seconds between two looks while somebody watches: so many jobs take less than a hundredth of a core, and a
change is seen within two seconds."""
_STATES = (("", "all"), ("unfinished", "running"), *((state.value, state.value) for state in JobState))
_EMPTY = "No jobs found. Show all of them, or submit one: client.submit_batch(prompts, key=…)."


def page(source: Source, query: Query) -> Page:
    """Return the page."""
    store = source.store
    if store is None:
        return Page(View("Jobs", (Section("jobs", "All jobs", (), empty=no_store_yet(source)),)))
    chosen, before = filter_of(query), number_of(query.values.get("before"))
    lines = store.overview.page(chosen, before=before, limit=PAGE + 1)
    older = lines[PAGE - 1].no if len(lines) > PAGE else None
    table = jobs_table("Jobs, newest first", lines[:PAGE], source, query)
    forms = act_forms.of_jobs(chosen, query)
    sections = [
        Section("filter", "Filter", (_filter(query),), is_live=False),
        Section("jobs", "Jobs", (table, pages_of("jobs", query, "before", older)), empty=_EMPTY),
        *([Section("act", "Actions on these jobs", forms, is_live=False)] if forms else []),
    ]
    return Page(View("Jobs", tuple(sections), tiles=_tiles(store, query)), every=EVERY)


def filter_of(query: Query) -> JobFilter:
    """Return which jobs the address asks for; an unknown state means all."""
    state, model = query.values.get("state", ""), query.values.get("model", "")
    return JobFilter(
        state=JobState(state) if state in {each.value for each in JobState} else None,
        unfinished=state == "unfinished",
        model=model.replace("\0", " ") or None,  # which a text column refuses
        name=query.values.get("name") or None,
    )


def _tiles(store: SqlStore, query: Query) -> tuple[Tile, ...]:
    counts = [(state, store.overview.count(state)) for state in JobState]
    return tuple(
        Tile(
            state.value.capitalize(),
            count_in_words(count),
            tone="bad" if state is JobState.HELD and count else "",
            href=query.link("jobs", state=state.value),
        )
        for state, count in counts
    )


def count_in_words(count: int) -> str:
    """Return a number; of more jobs than are counted, that there are more."""
    return f"{MAX_COUNTED:,}+" if count > MAX_COUNTED else f"{count:,}"


def _filter(query: Query) -> Form:
    """Return the form that narrows the list; it works without JavaScript."""
    values = query.values
    fields = (
        Field("state", "State", values.get("state", ""), kind="select", options=_STATES),
        _search("model", "Model", "provider:model", query),
        _search("name", "Id or key", "job-… or a key", query),
    )
    return Form(query.link("jobs"), "Show", fields, is_search=True)


def _search(name: str, label: str, hint: str, query: Query) -> Field:
    return Field(name, label, query.values.get(name, ""), hint, kind="search", is_required=False)
