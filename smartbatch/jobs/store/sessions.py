"""Sessions on a PostgreSQL server: forked children, and owners whose locks are sessions."""

from __future__ import annotations

import contextlib
import hashlib
import os
from random import Random
from typing import Protocol

from smartbatch.errors import ConfigError
from smartbatch.jobs.store.database import Row
from smartbatch.jobs.store.dsn import Address
from smartbatch.jobs.store.owners import Owners

try:
    import psycopg
except ImportError as missing:
    raise ConfigError(
        "store: a PostgreSQL server needs the package psycopg; install it with"
        f" pip install 'smartbatch-llm[postgres]' ({missing.name or 'its libpq'} is missing)"
    ) from None

__all__ = ["SessionOwners", "leave_to_parent", "lock_number", "psycopg"]

_abandoned: list[psycopg.Connection[Row]] = []
"""Connections of the parent, kept in a forked child: collecting one would end the parent's session."""


class _Server(Protocol):
    address: Address

    def connect(self) -> psycopg.Connection[Row]: ...

    def row(self, statement: str, *values: object) -> Row | None: ...


def lock_number(schema: str, name: str) -> int:
    """Return the 64-bit number of a name's advisory lock; the server's locks are common to all schemas."""
    digest = hashlib.blake2b(f"smartbatch {schema} {name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def leave_to_parent(session: psycopg.Connection[Row] | None) -> None:
    """In a forked child: drop the copy of the parent's socket without sending anything to the server.

    The copy would keep the session, and its locks, after the parent's death. The descriptor's number stays
    taken, so that what is left of the session can do no harm.
    """
    if session is not None and not session.closed:
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(nothing, session.fileno(), inheritable=False)
        os.close(nothing)
    if session is not None:
        _abandoned.append(session)


class SessionOwners(Owners):
    """Owners on any machine, each with a session that holds an advisory lock."""

    def __init__(self, database: _Server, rng: Random) -> None:
        super().__init__(rng)
        self._database = database
        self._session: psycopg.Connection[Row] | None = None
        self._process = os.getpid()

    def become(self, owner: str) -> bool:
        session = self._database.connect()
        if not self._lock(session, owner):
            session.close()
            return False
        self._session, self.own, self._process = session, owner, os.getpid()
        return True

    def keep(self) -> None:
        """Check the session; where it was lost, open another and take the lock again.

        While that is not possible the lease alone says that this process lives.
        """
        if self._session is None or self.own is None:
            return
        try:
            self._session.execute("SELECT 1")
        except psycopg.Error:
            with contextlib.suppress(psycopg.Error):
                self._session.close()
            session = self._database.connect()
            self._lock(session, self.own)
            self._session = session

    def _lock(self, session: psycopg.Connection[Row], owner: str) -> bool:
        number = lock_number(self._database.address.schema, owner)
        return session.execute("SELECT pg_try_advisory_lock(%s)", (number,)).fetchone() == (True,)

    def alive(self, owner: str) -> bool:
        number = lock_number(self._database.address.schema, owner)
        # shared, and for this statement only: two who look must not take each other for the owner
        return self._database.row("SELECT pg_try_advisory_xact_lock_shared(?)", number) != (True,)

    def leave(self) -> None:
        session, self._session, self.own = self._session, None, None
        if session is not None:
            with contextlib.suppress(psycopg.Error):
                session.close()

    def abandon(self) -> None:
        if self._process == os.getpid():
            return self.leave()
        leave_to_parent(self._session)
        self._session = self.own = None
        return None
