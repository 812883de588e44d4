"""What a page of the dashboard is, and what it is asked with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias
from urllib.parse import quote, urlencode

from attrs import field, frozen

from smartbatch.dashboard.source import Source
from smartbatch.views.model import Link, Links, View

TICK = 1.0
"""Seconds after which a stream notices at the latest that its server ends."""
EVERY = 1.5
"""Seconds between two looks at a page that is watched: a change is seen within two."""
Granted: TypeAlias = Literal["all", "read"]
"""What a request may do: act and look, or only look."""


@frozen(kw_only=True)
class Query:
    """What a request asks of a page.

    Attributes:
        path: of the page, without the slash before it; ``""`` is the first one.
        argument: what the path names behind the page, such as the id of a job; empty for the page itself.
        values: of the query string, the last of each name.
        granted: what the request may do; forms of acts are shown where it is ``"all"``.
        root: where the application is mounted, without a slash at its end.
    """

    path: str = ""
    argument: str = ""
    values: Mapping[str, str] = field(factory=dict)
    granted: Granted = "read"
    root: str = ""

    def link(self, /, *path: str, **values: str | int | None) -> str:
        """Return the address of a page of the dashboard; values that are ``None`` or empty are left out."""
        told = {name: str(value) for name, value in values.items() if value not in (None, "")}
        place = "/".join([self.root, *(quote(part, safe="") for part in path or ("",))])
        return place + (f"?{urlencode(told)}" if told else "")

    def again(self, /, **changes: str | int | None) -> str:
        """Return the address of the same page with some values changed."""
        path = [part for part in (self.path, self.argument) if part]
        changed: dict[str, Any] = {**self.values, **changes}
        return self.link(*path, **changed)


@frozen
class Page:
    """A page: complete on the server, also for browsers without JavaScript.

    Attributes:
        view: what it shows.
        every: seconds between two looks at it while somebody watches; more for one that costs more to make.
    """

    view: View
    every: float = EVERY


PageOf: TypeAlias = Callable[[Source, Query], Page]
"""Makes a page. Raises JobNotFound where it is about a job that is not there."""


_MAX_DIGITS = 18
"""Digits of a number in an address that a database takes."""


def no_store_yet(source: Source) -> str:
    """Return what a page says where there is no store."""
    return f"There is no store yet at {source.place}: the first job creates it."


def number_of(text: str | None) -> int | None:
    """Return a number of an address; ``None`` for anything else."""
    is_one = text is not None and text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
    return int(text) if is_one and text is not None else None


def pages_of(
    what: str, query: Query, name: str, older: int | None, words: tuple[str, str] = ("Newest", "Older")
) -> Links | None:
    """Return the links between the pages of a list; the value ``name`` of the address names the page.

    Args:
        what: is listed.
        older: the value of the next page; ``None`` for the last.
    """
    links = []
    if name in query.values:
        links.append(Link(f"{words[0]} {what}", query.again(**{name: None})))
    if older is not None:
        links.append(Link(f"{words[1]} {what}", query.again(**{name: older})))
    return Links(f"Pages of {what}", tuple(links)) if links else None
