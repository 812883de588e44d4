"""*Jobs*: how each stands, by pages, and which ones are meant."""

from __future__ import annotations

from smartbatch._html import Html, el, fragment
from smartbatch.dashboard import act_forms
from smartbatch.dashboard.job_rows import jobs_table
from smartbatch.dashboard.page import Page, PageSection, Query, no_store_yet
from smartbatch.dashboard.source import Source
from smartbatch.jobs.records import JobState
from smartbatch.jobs.store import SqlStore
from smartbatch.jobs.store.job_overview import COUNTED, JobFilter, JobLine
from smartbatch.reports import components

PAGE = 40
"""Jobs of a page."""
EVERY = 1.75
"""Seconds between two looks while somebody watches: so many jobs take less than a hundredth of a core, and a
change is seen within two seconds."""
_STATES = (
    ("", "all"),
    ("unfinished", "going on"),
    *((state.value, state.value) for state in JobState),
)
_MOST_DIGITS = 18
"""Digits of a number in an address that a database takes."""


def page(source: Source, query: Query) -> Page:
    """Return the page."""
    store = source.store
    if store is None:
        told = el("p", no_store_yet(source))
        return Page("Jobs", (PageSection("jobs", "Jobs", told),))
    forms = act_forms.of_jobs(filter_of(query), query)
    return Page(
        "Jobs",
        (
            PageSection("counts", "How many", _counts(store)),
            PageSection("filter", "Which", _form(query), live=False),
            PageSection("jobs", "Jobs", _jobs(source, store, query)),
            *(() if forms is None else (PageSection("act", "Act on them", forms, live=False),)),
        ),
        every=EVERY,
    )


def filter_of(query: Query) -> JobFilter:
    """Return which jobs the address asks for; what is no state is all."""
    state, model = query.values.get("state", ""), query.values.get("model", "")
    return JobFilter(
        state=JobState(state) if state in {each.value for each in JobState} else None,
        unfinished=state == "unfinished",
        model=model.replace("\0", " ") or None,  # which a text column refuses
        name=query.values.get("name") or None,
    )


def _counts(store: SqlStore) -> Html:
    return components.facts(
        [(state.value, count_in_words(store.overview.count(state))) for state in JobState]
    )


def count_in_words(count: int) -> str:
    """Return a number; of more jobs than are counted, that there are more."""
    return f"{COUNTED:,}+" if count > COUNTED else f"{count:,}"


def _form(query: Query) -> Html:
    """Return what narrows the list; it works without JavaScript."""
    chosen = query.values.get("state", "")
    options = (el("option", name, value=value, selected=value == chosen) for value, name in _STATES)
    return el(
        "form",
        el("label", "State", el("select", options, name="state")),
        el("label", "Model", _input("model", "provider:model", query)),
        el("label", "Id or key", _input("name", "job-… or a key", query)),
        el("button", "Show", type="submit"),
        el("a", "All jobs", href=query.link("jobs")),
        method="get",
        action=query.link("jobs"),
        role="search",
    )


def _input(name: str, hint: str, query: Query) -> Html:
    value = query.values.get(name, "")
    return el("input", type="search", name=name, value=value, placeholder=hint, maxlength=1_024)


def _jobs(source: Source, store: SqlStore, query: Query) -> Html:
    """Return a page of jobs; it is named by the job before it, so it costs the same wherever it is."""
    before = number_of(query.values.get("before"))
    lines = store.overview.page(filter_of(query), before=before, limit=PAGE + 1)
    if not lines:
        return el("p", "No job is there that is meant.", class_="soft")
    return fragment(
        jobs_table("Jobs, newest first", lines[:PAGE], source, query), _pages(lines, before, query)
    )


def _pages(lines: list[JobLine], before: int | None, query: Query) -> Html | None:
    links = []
    if before is not None:
        links.append(el("li", el("a", "Newest jobs", href=query.again(before=None))))
    if len(lines) > PAGE:
        links.append(el("li", el("a", "Older jobs", href=query.again(before=lines[PAGE - 1].no))))
    return el("nav", el("ul", links), aria_label="Pages of jobs") if links else None


def number_of(text: str | None) -> int | None:
    """Return a number of an address; ``None`` for what is none."""
    is_one = text is not None and text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
    return int(text) if is_one and text is not None else None
