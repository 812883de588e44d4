"""Opening the store a setting names."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from random import Random

from smartbatch.jobs.store.base import Store

__all__ = ["default_place", "open_store", "state_folder"]


def open_store(
    place: str | None = None, *, wall: Callable[[], float] = time.time, rng: Random | None = None
) -> Store:
    """Open the store at ``place``, and make it when it is not there.

    Args:
        place: a path, or ``sqlite:///path``; or ``postgresql://…`` for several machines, where
            ``?schema=name`` says which of the database's schemas (default ``smartbatch``). ``None`` is
            :func:`default_place`.
        wall: Unix seconds.
        rng: dice for owners' ids.

    Raises:
        StoreError: it cannot be used; the text says why and what to do.
        ConfigError: ``postgresql://`` needs the extra ``postgres``, which is not installed.
    """
    place = place or default_place()
    rng = rng or Random()
    if place.startswith(("postgresql://", "postgres://")):
        from smartbatch.jobs.store.postgres import PostgresStore

        return PostgresStore(place, wall=wall, rng=rng, state_folder=state_folder())
    from smartbatch.jobs.store.sqlite import SqliteStore

    return SqliteStore(_path(place), wall=wall, rng=rng)


def _path(place: str) -> str:
    """Return the path of ``sqlite:///relative``, ``sqlite:////absolute`` or a plain path."""
    return place.removeprefix("sqlite:///") if place.startswith("sqlite:///") else place


def state_folder() -> str:
    """Return this user's folder for what programs keep (XDG base directories, ``XDG_STATE_HOME``)."""
    base = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(base):  # the specification: a relative path is to be ignored
        base = os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(base, "smartbatch")


def default_place() -> str:
    """Return the path of the store of a user who names none."""
    return os.path.join(state_folder(), "jobs.db")
