"""A dashboard page and the request for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias
from urllib.parse import quote, urlencode

from attrs import field, frozen

from smartbatch.dashboard.source import Source
from smartbatch.views.model import Link, Links, View

DEFAULT_REFRESH_SECONDS = 1.5  # time between updates of an open page: changes appear within two seconds
_MAX_DIGITS = 18  # maximum digits of a number in an address, so that databases accept it
Granted: TypeAlias = Literal["all", "read"]
"""What a visitor may do: view and act, or view only."""


@frozen(kw_only=True)
class Query:
    path: str = ""  # without slashes; empty for the first page
    argument: str = ""  # rest of the path, such as the id of a job
    values: Mapping[str, str] = field(factory=dict)  # from the query string; the last value of each name
    granted: Granted = "read"
    root: str = ""  # mount path of the application, without a trailing slash

    def link(self, /, *path: str, **values: str | int | None) -> str:
        """Return an address in this application; values that are ``None`` or empty are left out."""
        given = {name: str(value) for name, value in values.items() if value not in (None, "")}
        place = "/".join([self.root, *(quote(part, safe="") for part in path or ("",))])
        return place + (f"?{urlencode(given)}" if given else "")

    def again(self, /, **changes: str | int | None) -> str:
        path = [part for part in (self.path, self.argument) if part]
        changed: dict[str, Any] = {**self.values, **changes}
        return self.link(*path, **changed)


@frozen
class Page:
    """A page, rendered completely on the server so that it also works without JavaScript."""

    view: View
    refresh_seconds: float = DEFAULT_REFRESH_SECONDS  # longer for pages that are slow to make


PageOf: TypeAlias = Callable[[Source, Query], Page]
"""Makes a page; raises JobNotFound for an unknown job."""


def no_store_yet(source: Source) -> str:
    return f"There is no store at {source.place} yet: the first job creates it."


def number_of(text: str | None) -> int | None:
    """Parse a number from an address; ``None`` for anything else."""
    if text is not None and text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS:
        return int(text)
    return None


def pages_of(
    what: str, query: Query, name: str, older: int | None, words: tuple[str, str] = ("Newest", "Older")
) -> Links | None:
    """Return links to the pages of a list.

    Args:
        name: the query parameter that selects a page.
        older: the parameter's value for the next page; ``None`` on the last page.
    """
    links = []
    if name in query.values:
        links.append(Link(f"{words[0]} {what}", query.again(**{name: None})))
    if older is not None:
        links.append(Link(f"{words[1]} {what}", query.again(**{name: older})))
    return Links(f"Pages of {what}", tuple(links)) if links else None
