"""What is on disk before an exchange is answered: money, but not rates."""

from __future__ import annotations

import sqlite3
from typing import Any

import psycopg
from psycopg.rows import scalar_row
from sharing.servers import address_of

from smartbatch._database import Address
from smartbatch.core.limits.shared_limit import LeaseAsk, MemberLimits, QuotaKind, first
from smartbatch.sharing import sqlite_back_end
from smartbatch.sharing.addresses import open_back_end
from smartbatch.sharing.back_end import BackEnd

NORMAL, FULL = 1, 2
"""The log is synced before it is written to the file; the log is also synced at each commit."""

_NOTES = """
CREATE TABLE {schema}.noted (place serial, commits text);
CREATE FUNCTION {schema}.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO {schema}.noted (commits) VALUES (current_setting('synchronous_commit')); RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER noted AFTER UPDATE ON {schema}.shared_limits
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {schema}.note();
"""
"""Records how each exchange commits."""


def exchange_all(back_end: BackEnd) -> None:
    """Exchange a rate, money and a rate."""
    for kind in (QuotaKind.RATE, QuotaKind.BUDGET, QuotaKind.RATE):
        back_end.exchange(kind.value, LeaseAsk("one", limits=MemberLimits(caps=first(1.0)), kind=kind))


def test_a_file_holds_money_before_it_is_granted(tmp_path, monkeypatch):
    levels: list[int] = []

    class Noting(sqlite3.Connection):
        """Records how each transaction is written when it is committed."""

        def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
            if statement == "COMMIT":
                levels.append(super().execute("PRAGMA synchronous").fetchone()[0])
            return super().execute(statement, *values)

    def connect(path: str, **how: Any) -> sqlite3.Connection:
        return sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=Noting, **how)

    monkeypatch.setattr(sqlite_back_end, "connect_sqlite", connect)
    back_end = open_back_end(f"sqlite:///{tmp_path}/limits.db", lambda: 0.0)
    back_end.prepare()
    levels.clear()
    exchange_all(back_end)
    back_end.publish("one", '{"sums": {}}', {})
    back_end.close()
    assert levels == [NORMAL, FULL, NORMAL, NORMAL]


def test_postgresql_waits_for_the_disk_only_for_money(request, tmp_path):
    text = address_of("postgresql", request, tmp_path)
    address = Address.of(text, "shared")
    back_end = open_back_end(text, lambda: 0.0)
    back_end.prepare()
    with psycopg.connect(**address.parameters, autocommit=True, row_factory=scalar_row) as session:
        session.execute(_NOTES.format(schema=address.schema).encode())
        exchange_all(back_end)
        noted = session.execute(f"SELECT commits FROM {address.schema}.noted ORDER BY place".encode())
        assert noted.fetchall() == ["off", "on", "off"]
    back_end.close()
