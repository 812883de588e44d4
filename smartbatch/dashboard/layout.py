"""What stands around the sections of each page: head, navigation, and where news are told."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files

from attrs import evolve

from smartbatch._html import Html, el, fragment
from smartbatch.dashboard.navigation import PAGES
from smartbatch.dashboard.page import Page, Query
from smartbatch.reports import components


@cache
def static_file(name: str) -> bytes:
    """Return a file that pages load.

    Raises:
        FileNotFoundError: there is none of that name.
    """
    return files("smartbatch.dashboard").joinpath("static", name).read_bytes()


@cache
def styles() -> str:
    """Return the style sheet. It stands in each page: for a file of its own, painting would wait."""
    return components.style_sheet() + static_file("dashboard.css").decode()


@cache
def policy() -> str:
    """Return the policy of all answers: nothing of another host, and no script or style of a document."""
    return (
        f"default-src 'none'; script-src 'self'; style-src {components.source_of(styles())}; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )


def document(page: Page, query: Query, version: str) -> bytes:
    """Return a page as a document.

    Args:
        version: of its live sections, with which a browser asks for news.
    """
    body = (
        components.section(one.id, one.title, el("div", one.body, id=f"{one.id}-body"))
        for one in page.sections
    )
    live = el(
        "p",
        "This page renews itself with JavaScript; without it, reload it.",
        id="news",
        class_="soft",
        role="status",
        data_root=query.root,
        data_page=evolve(query, root="").again(),
        data_version=version,
    )
    return _whole(page.title, query, fragment(el("h1", page.title), live, *body), script=True)


_INSIDE = re.compile(r"/(?![/\\])[!-~]*")
"""A path and query in this application, encoded as in links; no other address, and no other character."""


def message(title: str, text: str, query: Query, *, back: str = "") -> bytes:
    """Return a document that says one thing.

    Args:
        back: the path of the page to go back to, in this application; another address is not taken.
    """
    place = query.root + (back if _INSIDE.fullmatch(back) else "/")
    said = (el("h1", title), el("p", text, role="status"), el("p", el("a", "Back", href=place)))
    return _whole(title, query, fragment(*said), script=False)


def _whole(title: str, query: Query, body: Html, *, script: bool) -> bytes:
    head = [
        el("style", Html(styles())),
        el("link", rel="icon", href=_place(query, "icon.svg")),
    ]
    if script:
        head.append(el("script", src=_place(query, "live.js"), defer=True))
    skip = el("a", "Skip to the content", href="#content", class_="skip")
    main = el("main", body, id="content", tabindex=-1)
    return components.document(
        f"{title} – smartbatch", skip, _navigation(query), main, head=fragment(*head)
    ).encode()


def _navigation(query: Query) -> Html:
    links = (
        el(
            "li",
            el("a", entry.name, href=query.link(path), aria_current="page" if path == query.path else None),
        )
        for path, entry in PAGES.items()
    )
    return el("header", el("nav", el("ul", links), aria_label="Pages"))


def _place(query: Query, name: str) -> str:
    digest = hashlib.blake2s(static_file(name), digest_size=6).hexdigest()
    return query.link("static", name, v=digest)
