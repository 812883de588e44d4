"""Pages as documents: the view, with the navigation before it and the script that renews it."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import Any

from attrs import evolve

from smartbatch.dashboard.live import Rendered
from smartbatch.dashboard.navigation import PAGES
from smartbatch.dashboard.page import Page, Query
from smartbatch.views.html import render, source_of, styles
from smartbatch.views.model import Link


@cache
def static_file(name: str) -> bytes:
    """Return a file that pages load.

    Raises:
        FileNotFoundError: there is none of that name.
    """
    return files("smartbatch.dashboard").joinpath("static", name).read_bytes()


@cache
def policy() -> str:
    """Return the policy of all answers: nothing of another host, and no script or style of a document."""
    return (
        f"default-src 'none'; script-src 'self'; style-src {source_of(styles())}; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )


def document(page: Page, query: Query) -> bytes:
    """Return a page as a document."""
    place = evolve(query, root="").again()
    version = Rendered.of(page).version
    return _whole("dashboard.html", query, view=page.view, root=query.root, page=place, version=version)


_INSIDE = re.compile(r"/(?![/\\])[!-~]*")
"""A path and query in this application, encoded as in links; no other address, and no other character."""


def message(title: str, text: str, query: Query, *, back: str = "") -> bytes:
    """Return a document that says one thing.

    Args:
        back: the path of the page to go back to, in this application; another address is not taken.
    """
    place = query.root + (back if _INSIDE.fullmatch(back) else "/")
    return _whole("message.html", query, title=title, text=text, back=Link("Back", place))


def _whole(template: str, query: Query, **values: Any) -> bytes:
    links = [(Link(entry.name, query.link(path)), path == query.path) for path, entry in PAGES.items()]
    places = {name.partition(".")[0]: _place(query, name) for name in ("icon.svg", "live.js")}
    text = render(template, navigation=links, places=places, styles=styles(), **values)
    return text.encode()


def _place(query: Query, name: str) -> str:
    digest = hashlib.blake2s(static_file(name), digest_size=6).hexdigest()
    return query.link("static", name, v=digest)
