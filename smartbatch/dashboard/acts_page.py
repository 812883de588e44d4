"""*Acts*: what is paused and limited by people, and who did what."""

from __future__ import annotations

from collections.abc import Sequence

from smartbatch._html import Child, Html, el
from smartbatch.dashboard import act_forms
from smartbatch.dashboard.job_rows import moment_of
from smartbatch.dashboard.jobs_page import number_of
from smartbatch.dashboard.page import Page, PageSection, Query, no_store_yet
from smartbatch.dashboard.source import Source
from smartbatch.jobs.act_records import Act
from smartbatch.jobs.store import SqlStore
from smartbatch.reports import components

ACTS = 50
"""Acts of a page."""


def page(source: Source, query: Query) -> Page:
    """Return the page."""
    store = source.store
    forms = PageSection("forms", "Pause a model, or limit it", act_forms.of_models(query), live=False)
    if store is None:
        told = el("p", no_store_yet(source))
        return Page("Acts", (PageSection("acts", "Who did what", told), forms))
    controls = store.controls.controls()
    paused = [
        (one.model, one.reason or "–", one.by, moment_of(one.since), act_forms.unpause(one.model, query))
        for one in controls.pauses.values()
    ]
    limits = [
        (
            one.model,
            _limit(one.requests_per_minute),
            _limit(one.tokens_per_minute),
            one.by,
            moment_of(one.since),
        )
        for one in controls.limits.values()
    ]
    return Page(
        "Acts",
        (
            PageSection("paused", "Paused", _table("Paused models", _PAUSED, paused, "No model is paused.")),
            PageSection("limits", "Limits", _table("Limits", _LIMITS, limits, "The settings' limits hold.")),
            forms,
            PageSection("acts", "Who did what", _acts(store, query)),
        ),
    )


_PAUSED = ("model", "reason", "by", "since (UTC)", "")
_LIMITS = ("model", "requests a minute", "tokens a minute", "by", "since (UTC)")
_HEAD = ("when (UTC)", "who", "what", "of what", "how many", "left", "in words")


def _limit(number: float | None) -> str:
    return "as configured" if number is None else f"{number:,.6g}"


def _table(title: str, head: tuple[str, ...], rows: Sequence[tuple[Child, ...]], empty: str) -> Html:
    return components.table(title, head, rows) if rows else el("p", empty, class_="soft")


def _acts(store: SqlStore, query: Query) -> Html:
    before = number_of(query.values.get("before"))
    acts = store.controls.latest(before=before, limit=ACTS + 1)
    if not acts:
        return el("p", "Nobody did anything yet.", class_="soft")
    table = components.table(
        "Acts, newest first", _HEAD, [_row(one, query) for one in acts[:ACTS]], numbers=(4, 5)
    )
    older = query.again(before=acts[ACTS - 1].number) if len(acts) > ACTS else None
    more = older and el("p", el("a", "Older acts", href=older))
    return el("div", table, more)


def _row(act: Act, query: Query) -> tuple[Child, ...]:
    target: Child = act.target
    if act.job_id is not None and act.name != "forget":
        target = el("a", act.job_id, href=query.link("jobs", act.job_id))
    what = act.name.replace("_", " ")
    left = f"{act.left_out:,}" if act.left_out else "–"
    return moment_of(act.at), act.by, what, target, f"{act.count:,}", left, act.detail or ""
