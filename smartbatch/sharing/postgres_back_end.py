"""Shared limits on a PostgreSQL server, for any number of machines; changes use ``SELECT … FOR UPDATE``.

The tables are in the schema of the store, ``?schema=name`` in the address. Requires PostgreSQL 14 or newer.
Statements are pipelined, so an exchange takes two round trips.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Mapping
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen

from smartbatch._clock import RealClock
from smartbatch._database import SCHEMA_LOCK, Address
from smartbatch.errors import scrub
from smartbatch.observe.participants import RETENTION_SECONDS
from smartbatch.sharing.back_end import (
    RECORD_VERSION,
    TIMEOUT_SECONDS,
    BackEnd,
    BackEndBusy,
    BackEndUnavailable,
    Published,
    RecordUpdate,
    check_version,
)

_T = TypeVar("_T")

EXTRA_SECONDS = 0.5
"""Seconds beyond :data:`TIMEOUT_SECONDS` for which a session waits for an answer, so that the server can
first report a lock held by others."""

_TABLES_SQL = """
CREATE TABLE IF NOT EXISTS {schema}.shared_facts (name text PRIMARY KEY, value text NOT NULL);
CREATE TABLE IF NOT EXISTS {schema}.shared_limits (key text PRIMARY KEY, record text);
CREATE TABLE IF NOT EXISTS {schema}.shared_participants (
    member text PRIMARY KEY, seen float8 NOT NULL, record text NOT NULL);
CREATE TABLE IF NOT EXISTS {schema}.shared_sums (name text PRIMARY KEY, value float8 NOT NULL);
"""

_NOW_SQL = "extract(epoch FROM clock_timestamp())::float8"

_STATEMENTS = {
    # the time is read after the row has been locked
    "lock record": f"SELECT record, {_NOW_SQL}"
    " FROM (SELECT record FROM {schema}.shared_limits WHERE key = %s FOR UPDATE) AS locked",
    "new record": "INSERT INTO {schema}.shared_limits VALUES (%s, NULL) ON CONFLICT DO NOTHING",
    "write record": "UPDATE {schema}.shared_limits SET record = %s WHERE key = %s",
    "last publication": "SELECT record FROM {schema}.shared_participants"
    f" WHERE member = %s AND seen >= {_NOW_SQL} - %s FOR UPDATE",
    "add to sums": "INSERT INTO {schema}.shared_sums AS total SELECT * FROM unnest(%s::text[], %s::float8[])"
    " ON CONFLICT (name) DO UPDATE SET value = total.value + excluded.value",
    "publish": f"INSERT INTO {{schema}}.shared_participants VALUES (%s, {_NOW_SQL}, %s)"
    " ON CONFLICT (member) DO UPDATE SET seen = excluded.seen, record = excluded.record",
    "remove old": f"DELETE FROM {{schema}}.shared_participants WHERE seen < {_NOW_SQL} - %s",
    "all published": f"SELECT age, record FROM (SELECT {_NOW_SQL} - seen AS age, record"
    " FROM {schema}.shared_participants) AS published WHERE age <= %s ORDER BY age",
    "all sums": "SELECT name, value FROM {schema}.shared_sums",
}


def _within(seconds: float, steps: PQGen[_T]) -> PQGen[_T]:
    """Run the steps of a statement, some of which wait for the server.

    Raises:
        psycopg.OperationalError: the server has not answered within ``seconds``.
    """
    until = RealClock.now() + seconds
    try:
        step = next(steps)
        while True:
            ready = yield step  # empty if nothing arrives within a tenth of a second
            if not ready and RealClock.now() >= until:
                raise psycopg.OperationalError(f"no answer within {seconds} s")
            step = steps.send(ready)
    except StopIteration as end:
        value: _T = end.value
        return value


def _row(pipeline: psycopg.Pipeline, cursor: psycopg.Cursor[Any]) -> Any:
    """Return the row found by a statement of a pipeline.

    Without the sync, the server would not treat a session that stops after reading as idle, and would keep
    its locks.
    """
    pipeline.sync()
    return cursor.fetchone()


class _Session(psycopg.Connection[Any]):
    """A session that waits a limited time for each answer, even if the server or the network hangs."""

    def wait(self, gen: PQGen[_T], *args: Any, **more: Any) -> _T:
        return super().wait(_within(TIMEOUT_SECONDS + EXTRA_SECONDS, gen), *args, **more)


class PostgresBackEnd(BackEnd):
    """Limits on one server.

    Raises:
        ConfigError: the address is invalid; it is not shown, because it may contain a password.
    """

    def __init__(self, address: str) -> None:
        self._address = Address.of(address, "shared")
        self.place = self._address.place
        self._process = -1
        self._session: _Session | None = None
        schema = self._address.schema
        self._statements = {name: text.format(schema=schema).encode() for name, text in _STATEMENTS.items()}

    def _connected(self) -> _Session:
        """Return the session of this process: a forked child must not use its parent's."""
        if self._session is None or self._session.closed or self._process != os.getpid():
            parameters = {**self._address.parameters, "connect_timeout": int(TIMEOUT_SECONDS)}
            self._process = os.getpid()
            self._session = _Session.connect(**parameters, autocommit=True)
            milliseconds = int(TIMEOUT_SECONDS * 1000)
            self._session.execute(
                f"SET lock_timeout TO {milliseconds};"
                # a process that freezes between read and write loses its lock, and its write is refused
                f" SET idle_in_transaction_session_timeout TO {milliseconds};"
                # commits are faster, and a rate may be lost in a power failure
                " SET synchronous_commit TO off; SET client_min_messages TO warning".encode()
            )
        return self._session

    def prepare(self) -> bytes:
        schema = self._address.schema
        try:
            session = self._connected()
            with session.transaction():
                session.execute("SELECT pg_advisory_xact_lock(%s)", (SCHEMA_LOCK,))
                made = session.execute("SELECT to_regclass(%s)", (f"{schema}.shared_facts",)).fetchone()
                if made == (None,):
                    self._make(session)
            rows = session.execute(f"SELECT name, value FROM {schema}.shared_facts".encode()).fetchall()
        except psycopg.Error as error:
            raise self._unavailable(error) from None
        found = dict(rows)
        check_version(found["version"], self.place, "schema")
        return bytes.fromhex(found["salt"])

    def _make(self, session: _Session) -> None:
        schema = self._address.schema
        # checked first, because creating a schema, even an existing one, requires a privilege on the whole
        # database
        known = session.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema,)).fetchone()
        if known is None:
            session.execute(f"CREATE SCHEMA {schema}".encode())
        session.execute(_TABLES_SQL.format(schema=schema).encode())
        for fact in (("version", str(RECORD_VERSION)), ("salt", secrets.token_hex(16))):
            session.execute(f"INSERT INTO {schema}.shared_facts VALUES (%s, %s)".encode(), fact)

    def update(self, key: str, decide: RecordUpdate[_T], *, is_durable: bool) -> _T:
        statements = self._statements
        try:
            session = self._connected()
            with session.pipeline() as pipeline, session.transaction():
                if is_durable:
                    session.execute("SET LOCAL synchronous_commit TO on")
                row = _row(pipeline, session.execute(statements["lock record"], (key,)))
                if row is None:
                    session.execute(statements["new record"], (key,))
                    row = _row(pipeline, session.execute(statements["lock record"], (key,)))
                assert row is not None
                text, decided = decide(*row)
                session.execute(statements["write record"], (text, key))
        except psycopg.Error as error:
            raise self._unavailable(error) from None
        return decided

    def publish(self, member: str, record: str, before: Mapping[str, float]) -> None:
        statements = self._statements
        try:
            session = self._connected()
            with session.pipeline() as pipeline, session.transaction():
                row = _row(
                    pipeline, session.execute(statements["last publication"], (member, RETENTION_SECONDS))
                )
                more = self._gains(record, None if row is None else row[0], before)
                session.execute(statements["add to sums"], (list(more), list(more.values())))
                session.execute(statements["publish"], (member, record))
                session.execute(statements["remove old"], (RETENTION_SECONDS,))
        except psycopg.Error as error:
            raise self._unavailable(error) from None

    def published(self) -> Published:
        try:
            session = self._connected()
            records = session.execute(self._statements["all published"], (RETENTION_SECONDS,)).fetchall()
            sums = session.execute(self._statements["all sums"]).fetchall()
        except psycopg.Error as error:
            raise self._unavailable(error) from None
        return Published(records, dict(sums))

    def _unavailable(self, error: Exception) -> BackEndUnavailable:
        self.close()
        lines = str(error).strip().splitlines()
        reason = scrub(lines[0] if lines else type(error).__name__, *self._address.secrets)
        kind = BackEndBusy if isinstance(error, psycopg.errors.LockNotAvailable) else BackEndUnavailable
        return kind(f"the PostgreSQL server {self.place} cannot be used ({reason})")

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None and self._process == os.getpid():
            with contextlib.suppress(psycopg.Error):
                session.close()
