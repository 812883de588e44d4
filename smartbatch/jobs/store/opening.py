"""Opening the store a setting names."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from random import Random
from typing import Any

from smartbatch.jobs.store.leases import Counted
from smartbatch.jobs.store.owners import FileLocks
from smartbatch.jobs.store.sql_store import SqlStore

__all__ = ["default_place", "open_store"]


def open_store(
    place: str | None = None,
    *,
    wall: Callable[[], float] = time.time,
    rng: Random | None = None,
    counted: Counted | None = None,
    **database: Any,
) -> SqlStore:
    """Open the store at ``place``, and make it when it is not there.

    Args:
        place: a path, or ``sqlite:///path``; or ``postgresql://…`` for several machines, where
            ``?schema=name`` says which of the database's schemas (default ``smartbatch``). ``None`` is
            :func:`default_place`.
        wall: Unix seconds.
        rng: random numbers for owners' ids.
        counted: see :class:`.SqlStore`.
        database: further arguments of the database, in tests.

    Raises:
        StoreError: it cannot be used; the text says why and what to do, and never the password.
        ConfigError: the address of a server is malformed, or ``postgresql://`` needs the extra ``postgres``,
            which is not installed.
    """
    place = place or default_place()
    rng = rng or Random()
    if place.startswith(("postgresql://", "postgres://")):
        from smartbatch.jobs.store.postgres import Address, PostgresDatabase, SessionLocks

        server = PostgresDatabase(Address.of(place), **database)
        spool = os.path.join(_state_folder(), f"spool-{server.address.digest}")
        return SqlStore(server, SessionLocks(server), spool, wall=wall, rng=rng, counted=counted)
    from smartbatch.jobs.store.sqlite import SqliteDatabase

    # sqlite:///relative, sqlite:////absolute or a plain path
    path = os.path.realpath(os.path.expanduser(place.removeprefix("sqlite:///")))
    spool = f"{path}.spool"
    file = SqliteDatabase(path, wall=wall, **database)
    locks = FileLocks(os.path.join(spool, "owners"))
    return SqlStore(file, locks, spool, wall=wall, rng=rng, counted=counted)


def _state_folder() -> str:
    """Return this user's folder for what programs keep (XDG base directories, ``XDG_STATE_HOME``)."""
    base = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(base):  # the specification: a relative path is to be ignored
        base = os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(base, "smartbatch")


def default_place() -> str:
    """Return the path of the store of a user who names none."""
    return os.path.join(_state_folder(), "jobs.db")
