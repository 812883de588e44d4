"""Where the store of a command is, and whether it is there: none is made just to be looked at."""

from __future__ import annotations

import os

from smartbatch.jobs.store.opening import default_place

__all__ = ["missing_store"]


def missing_store(place: str | None) -> str | None:
    """Return the path of a store that has not been made yet; ``None`` where there is one, or a server.

    Args:
        place: the setting ``store``.
    """
    place = place or default_place()
    if "postgres" in place.partition("://")[0]:
        return None
    path = os.path.expanduser(place.removeprefix("sqlite:///"))
    return None if os.path.exists(path) else path
