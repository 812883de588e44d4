"""What a form of the dashboard does: each act is a public verb."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from attrs import frozen

from smartbatch.dashboard.page import Query
from smartbatch.dashboard.source import Source


@frozen(kw_only=True)
class Asked:
    """An act that somebody may do, sent by a page of the dashboard.

    Attributes:
        form: the fields, the last of each name; ``back`` is the page to go back to.
        by: the user the server names, or ``token``.
        query: of the request.
    """

    form: Mapping[str, str]
    by: str
    query: Query


Act: TypeAlias = Callable[[Source, Asked], str]
"""Does it, and returns in words what was done. Raises SmartbatchError where it is refused."""

ACTS: Mapping[str, Act] = {}
"""By the name in the address of the form, ``act/NAME``."""
