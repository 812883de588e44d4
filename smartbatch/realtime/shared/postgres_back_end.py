"""Shared limits on a PostgreSQL server: any number of machines. One statement an exchange, by its clock.

The tables stand in the schema of the store, ``?schema=name`` in the address. PostgreSQL 14 or newer.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, TypeVar

import psycopg
from attrs import asdict
from psycopg.abc import PQGen

from smartbatch._clock import RealClock
from smartbatch._postgres import SCHEMA_LOCK, Address
from smartbatch.core.limits.shared_record import LeaseAsk, LeaseGrant
from smartbatch.errors import scrub
from smartbatch.observe.participants import KEPT
from smartbatch.realtime.shared.back_end import (
    TIMEOUT,
    VERSION,
    BackEnd,
    BackEndUnavailable,
    Published,
    check_version,
)

_Value = TypeVar("_Value")

_TABLES = """
CREATE TABLE IF NOT EXISTS {schema}.shared_facts (name text PRIMARY KEY, value text NOT NULL);
CREATE TABLE IF NOT EXISTS {schema}.shared_participants (
    member text PRIMARY KEY, seen float8 NOT NULL, record json NOT NULL);
CREATE TABLE IF NOT EXISTS {schema}.shared_sums (name text PRIMARY KEY, value float8 NOT NULL);
CREATE TABLE IF NOT EXISTS {schema}.shared_members (
    key text, member text, seen float8 NOT NULL, held float8[] NOT NULL, caps float8[] NOT NULL,
    rates float8[] NOT NULL, least float8[] NOT NULL, urgent int NOT NULL, since float8 NOT NULL,
    accepted float8 NOT NULL, PRIMARY KEY (key, member));
CREATE TABLE IF NOT EXISTS {schema}.shared_accounts (
    key text, member text, seen float8 NOT NULL, number bigint NOT NULL, drawn float8 NOT NULL,
    given float8 NOT NULL, held float8 NOT NULL, PRIMARY KEY (key, member));
CREATE TABLE IF NOT EXISTS {schema}.shared_limits (
    key text PRIMARY KEY, at float8 NOT NULL DEFAULT 0, generation int NOT NULL DEFAULT 0,
    caps float8[] NOT NULL DEFAULT '{{0,0,0,0}}', rates float8[] NOT NULL DEFAULT '{{0,0,0,0}}',
    learned_caps float8[] NOT NULL DEFAULT '{{0,0,0,0}}',
    learned_rates float8[] NOT NULL DEFAULT '{{0,0,0,0}}',
    levels float8[] NOT NULL DEFAULT '{{0,0,0,0}}', granted float8[] NOT NULL DEFAULT '{{0,0,0,0}}',
    cool_until float8 NOT NULL DEFAULT 0, spaced float8 NOT NULL DEFAULT 0,
    found int NOT NULL DEFAULT 0, next_slot float8 NOT NULL DEFAULT 0,
    outage int NOT NULL DEFAULT 0, opened float8 NOT NULL DEFAULT 0);
DO $$ BEGIN
    CREATE TYPE {schema}.shared_ask AS (
        member text, version int, generation int, caps float8[], rates float8[], learned_caps float8[],
        learned_rates float8[], at_most float8[], at_least float8[], "then" float8[], kept float8[],
        returned float8[], least float8[], wanted float8[], slots float8, urgent int, accepted float8,
        cooled float8, spaced float8, lowered int, found int, outage int, opened float8, money int,
        lasting int, number bigint, drawn float8, given float8, leaving int);
EXCEPTION WHEN duplicate_object THEN NULL; END $$;
"""

_PUBLISHED = """
SELECT (SELECT json_agg(json_build_array(age, record) ORDER BY age) FROM (
            SELECT extract(epoch FROM clock_timestamp())::float8 - seen AS age, record
            FROM {schema}.shared_participants) AS told WHERE age <= %s),
       (SELECT json_object_agg(name, value) FROM {schema}.shared_sums)
"""


def _within(seconds: float, steps: PQGen[_Value]) -> PQGen[_Value]:
    """Take the steps of a statement, of which some wait for the server.

    Raises:
        psycopg.OperationalError: the server has not answered within ``seconds``.
    """
    until = RealClock.now() + seconds
    try:
        step = next(steps)
        while True:
            ready = yield step  # nothing where a tenth of a second is over without news
            if not ready and RealClock.now() >= until:
                raise psycopg.OperationalError(f"no answer within {seconds} s")
            step = steps.send(ready)
    except StopIteration as end:
        value: _Value = end.value
        return value


class _Session(psycopg.Connection[Any]):
    """A session that waits for :data:`TIMEOUT` seconds for each statement.

    The server's own limit ends no statement while the server stands still, or the network does.
    """

    def wait(self, gen: PQGen[_Value], *args: Any, **more: Any) -> _Value:
        return super().wait(_within(TIMEOUT, gen), *args, **more)


class PostgresBackEnd(BackEnd):
    """The server.

    Raises:
        ConfigError: the address cannot be read; it is not shown, because it may contain a password.
    """

    def __init__(self, address: str) -> None:
        self._address = Address.of(address, "shared")
        self.place = self._address.place
        self._process = -1
        self._session: _Session | None = None
        schema = self._address.schema
        self._statement = f"SELECT {schema}.shared_exchange_v3(%s, %s)"
        self._lasting = f"{self._statement}, set_config('synchronous_commit', 'on', true)"
        self._publish = f"SELECT {schema}.shared_publish_v1(%s, %s, %s, %s)"
        self._published = _PUBLISHED.format(schema=schema)

    def _connected(self) -> _Session:
        """Return the session of this process: a forked child must not use its parent's."""
        if self._session is None or self._session.closed or self._process != os.getpid():
            parameters = {**self._address.parameters, "connect_timeout": int(TIMEOUT)}
            self._process = os.getpid()
            self._session = _Session.connect(**parameters, autocommit=True)
            self._session.execute(
                f"SET statement_timeout TO {int(TIMEOUT * 1000)}; SET client_min_messages TO warning;"
                # processes wait for each other's commits: a rate may be lost with the server's power
                " SET synchronous_commit TO off".encode()
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
        folder = files(__package__)
        functions = [folder.joinpath(f"{name}.sql").read_text("utf-8") for name in ("exchange", "publish")]
        # asked first: to make one, even one that is there, wants a right to the whole database
        known = session.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema,)).fetchone()
        if known is None:
            session.execute(f"CREATE SCHEMA {schema}".encode())
        for text in (_TABLES, *functions):
            session.execute(text.format(schema=schema).encode())
        for fact in (("version", str(VERSION)), ("salt", secrets.token_hex(16))):
            session.execute(f"INSERT INTO {schema}.shared_facts VALUES (%s, %s)".encode(), fact)

    def exchange(self, key: str, ask: LeaseAsk) -> LeaseGrant:
        asked = json.dumps(asdict(ask))
        statement = self._lasting if ask.money else self._statement  # what was spent must survive
        try:
            row = self._connected().execute(statement.encode(), (key, asked)).fetchone()
        except psycopg.Error as error:
            raise self._unavailable(error) from None
        assert row is not None
        return LeaseGrant(**row[0])

    def publish(self, member: str, record: str, before: Mapping[str, float]) -> None:
        try:
            self._connected().execute(self._publish.encode(), (member, record, json.dumps(before), KEPT))
        except psycopg.Error as error:
            raise self._unavailable(error) from None

    def published(self) -> Published:
        try:
            row = self._connected().execute(self._published.encode(), (KEPT,)).fetchone()
        except psycopg.Error as error:
            raise self._unavailable(error) from None
        assert row is not None
        return Published([(age, json.dumps(record)) for age, record in row[0] or ()], row[1] or {})

    def _unavailable(self, error: Exception) -> BackEndUnavailable:
        self.close()
        lines = str(error).strip().splitlines()
        reason = scrub(lines[0] if lines else type(error).__name__, *self._address.secrets)
        return BackEndUnavailable(f"the PostgreSQL server {self.place} cannot be used ({reason})")

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None and self._process == os.getpid():
            with contextlib.suppress(psycopg.Error):
                session.close()
