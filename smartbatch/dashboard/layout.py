"""Pages as HTML documents: the view, the navigation, and the script that updates the page."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from attrs import evolve, frozen

from smartbatch.dashboard import (
    decisions_page,
    errors_page,
    job_page,
    jobs_page,
    models_page,
    now_page,
)
from smartbatch.dashboard.live import Rendered
from smartbatch.dashboard.page import Page, PageOf, Query
from smartbatch.views.html import render, source_of, styles
from smartbatch.views.model import Link


@frozen
class PageEntry:
    name: str  # shown in the navigation
    page: PageOf
    of_one: PageOf | None = None  # makes the page of a single item, such as a job


PAGES: Mapping[str, PageEntry] = {
    "": PageEntry("Now", now_page.page),
    "jobs": PageEntry("Jobs", jobs_page.page, of_one=job_page.page),
    "decisions": PageEntry("Decisions", decisions_page.page, of_one=decisions_page.page_of_one),
    "models": PageEntry("Models", models_page.page),
    "errors": PageEntry("Errors", errors_page.page),
}
"""The pages by the first part of their path, in the order of the navigation."""

_LOCAL_PATH = re.compile(r"/(?![/\\])[!-~]*")  # a path and query of this application, encoded as in links


@cache
def static_file(name: str) -> bytes:
    return files("smartbatch.dashboard").joinpath("static", name).read_bytes()


@cache
def policy() -> str:
    """Allow nothing from other hosts, and no inline scripts or styles."""
    return (
        f"default-src 'none'; script-src 'self'; style-src {source_of(styles())}; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )


def document(page: Page, query: Query) -> bytes:
    place = evolve(query, root="").again()
    version = Rendered.of(page).version
    return _rendered("dashboard.html", query, view=page.view, root=query.root, page=place, version=version)


def message(title: str, text: str, query: Query, *, back: str = "") -> bytes:
    """Return a page with a single message; ``back`` is the local path it links to."""
    place = query.root + (back if _LOCAL_PATH.fullmatch(back) else "/")
    return _rendered("message.html", query, title=title, text=text, back=Link("Back", place))


def _rendered(template: str, query: Query, **values: Any) -> bytes:
    links = [(Link(entry.name, query.link(path)), path == query.path) for path, entry in PAGES.items()]
    places = {name.partition(".")[0]: _static_link(query, name) for name in ("icon.svg", "live.js")}
    text = render(template, navigation=links, places=places, styles=styles(), **values)
    return text.encode()


def _static_link(query: Query, name: str) -> str:
    digest = hashlib.blake2s(static_file(name), digest_size=6).hexdigest()
    return query.link("static", name, v=digest)
