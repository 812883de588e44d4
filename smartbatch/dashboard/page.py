"""What a page of the dashboard is, and what it is asked with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias
from urllib.parse import quote, urlencode

from attrs import field, frozen

from smartbatch._html import Html
from smartbatch.dashboard.source import Source

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
class PageSection:
    """A part of a page whose body is replaced as a whole when it has changed.

    Attributes:
        id: unique in its page; letters and dashes.
        title: its heading.
        body: its content.
        live: whether it is renewed while somebody looks; forms that are filled in are not.
    """

    id: str
    title: str
    body: Html
    live: bool = True


@frozen
class Page:
    """A page: complete on the server, also for browsers without JavaScript.

    Attributes:
        title: its heading.
        sections: from top to bottom.
        every: seconds between two looks at it while somebody watches; more for one that costs more to make.
    """

    title: str
    sections: tuple[PageSection, ...]
    every: float = EVERY


PageOf: TypeAlias = Callable[[Source, Query], Page]
"""Makes a page. Raises JobNotFound where it is about a job that is not there."""


def no_store_yet(source: Source) -> str:
    """Return what a page says where there is no store."""
    return f"There is no store yet at {source.place}: the first job makes it."
