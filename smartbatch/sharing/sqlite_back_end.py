"""Shared limits in an SQLite file, for processes on one machine; changes are ``IMMEDIATE`` transactions."""

from __future__ import annotations

import os
import secrets
import socket
import sqlite3
from collections.abc import Callable, Mapping
from typing import TypeVar

from smartbatch._clock import RealClock
from smartbatch._database import SqliteConnections, connect_sqlite
from smartbatch._files import check_logs, check_own, inode_of, new_file, private_folder
from smartbatch.core.limits.shared_limit import CLOCK_STEP_SECONDS
from smartbatch.errors import StoreError
from smartbatch.observe.participants import RETENTION_SECONDS
from smartbatch.sharing.back_end import (
    RECORD_VERSION,
    TIMEOUT_SECONDS,
    BackEnd,
    BackEndBusy,
    BackEndUnavailable,
    Incompatible,
    Published,
    RecordUpdate,
    check_version,
)

_T = TypeVar("_T")

APPLICATION_ID = 0x736D736C
"""``smsl``, the application id of files with shared limits."""

HOST_SECONDS = 600.0
"""Seconds without use after which a machine no longer counts as using the file. Each container has its own
host name."""

_TABLES_SQL = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS records (key TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS participants (
    member TEXT PRIMARY KEY, seen REAL NOT NULL, record TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sums (name TEXT PRIMARY KEY, value REAL NOT NULL) WITHOUT ROWID;
"""


_FACT_ROWS = 4
"""Number of rows in ``facts``: version, salt, host, and when the host was last seen."""


class SqliteBackEnd(BackEnd):
    """Limits in one file.

    Args:
        path: the file; created with its folder if missing, readable only by its owner.
        now: returns monotonic seconds, by a clock that the processes of a machine share.
    """

    def __init__(self, path: str, *, now: Callable[[], float]) -> None:
        self.place = path
        self._now = now
        self._host = socket.gethostname()
        self._recorded_at = 0.0
        self._file = (0, 0)
        self._connections = SqliteConnections(self._connect)

    def prepare(self) -> bytes:
        try:
            private_folder(os.path.dirname(self.place))
            # Only SQLite may open an existing file, because closing it otherwise would release SQLite's
            # locks.
            if not os.path.exists(self.place):
                os.close(new_file(self.place))
            check_own(self.place)
            check_logs(self.place)
            with self._connections.writing():
                self._file = inode_of(self.place)
                return self._prepared(self._connections.writer())
        except (sqlite3.Error, OSError, StoreError) as error:
            raise self._unavailable(error) from None

    def _prepared(self, connection: sqlite3.Connection) -> bytes:
        """Return the salt. If the file is complete, it is only read, so no writer has to wait."""
        found = _facts_in(connection)
        if len(found) < _FACT_ROWS:
            found = self._filled(connection)
        check_version(found["version"], self.place, "file")
        self._recorded_at = float(found["host_seen"])
        if found["host"] != self._host and self._is_host_recorded_within(HOST_SECONDS):
            raise Incompatible(
                f"the file {self.place} is used by the machine {found['host']}, and this is {self._host}:"
                " machines cannot share an SQLite file; name a Redis or PostgreSQL server"
            )
        if found["host"] != self._host or not self._is_host_recorded_within(HOST_SECONDS / 4):
            self._record_host(connection)
        return bytes.fromhex(found["salt"])

    def _filled(self, connection: sqlite3.Connection) -> dict[str, str]:
        """Create missing tables and facts in the file; return all facts."""
        # in this order, because other processes also mark the file before they create tables
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        [(application,)] = connection.execute("PRAGMA application_id")
        if application != APPLICATION_ID and (application or tables):
            raise Incompatible(
                f"the file {self.place} is an SQLite database, but does not contain shared limits"
            )
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(_TABLES_SQL)
        facts = {
            "version": str(RECORD_VERSION),
            "salt": secrets.token_hex(16),
            "host": self._host,
            "host_seen": repr(RealClock.wall()),
        }
        connection.executemany("INSERT OR IGNORE INTO facts VALUES (?, ?)", facts.items())
        return _facts_in(connection)

    def _is_host_recorded_within(self, seconds: float) -> bool:
        """Whether the host was recorded less than ``seconds`` ago, or by a clock ahead by less than that."""
        return abs(RealClock.wall() - self._recorded_at) < seconds

    def _record_host(self, connection: sqlite3.Connection) -> None:
        self._recorded_at = RealClock.wall()
        facts = [("host", self._host), ("host_seen", repr(self._recorded_at))]
        connection.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", facts)

    def update(self, key: str, decide: RecordUpdate[_T], *, is_durable: bool) -> _T:
        def updated(connection: sqlite3.Connection) -> _T:
            row = connection.execute("SELECT record FROM records WHERE key = ?", (key,)).fetchone()
            text, decided = decide(None if row is None else row[0], self._now())
            if not self._is_host_recorded_within(HOST_SECONDS / 4):
                self._record_host(connection)
            connection.execute("INSERT OR REPLACE INTO records VALUES (?, ?)", (key, text))
            return decided

        return self._in_transaction(updated, is_durable=is_durable)

    def publish(self, member: str, record: str, before: Mapping[str, float]) -> None:
        def kept(connection: sqlite3.Connection) -> None:
            now = self._now()
            # a machine's clock restarts when it boots, and no process survives that
            connection.execute(
                "DELETE FROM participants WHERE seen < ? OR seen > ?",
                (now - RETENTION_SECONDS, now + CLOCK_STEP_SECONDS),
            )
            row = connection.execute("SELECT record FROM participants WHERE member = ?", (member,)).fetchone()
            connection.executemany(
                "INSERT INTO sums VALUES (?, ?) ON CONFLICT DO UPDATE SET value = value + excluded.value",
                self._gains(record, None if row is None else row[0], before).items(),
            )
            connection.execute("INSERT OR REPLACE INTO participants VALUES (?, ?, ?)", (member, now, record))

        self._in_transaction(kept, is_durable=False)

    def published(self) -> Published:
        try:
            with self._connections.reading():
                connection = self._connections.reader()
                rows = connection.execute(
                    "SELECT seen, record FROM participants ORDER BY seen DESC"
                ).fetchall()
                sums = dict(connection.execute("SELECT name, value FROM sums").fetchall())
        except sqlite3.Error as error:
            raise self._unavailable(error) from None
        now = self._now()
        heard = [
            (now - seen, record)
            for seen, record in rows
            if -CLOCK_STEP_SECONDS <= now - seen <= RETENTION_SECONDS
        ]
        return Published(heard, sums)

    def _in_transaction(self, act: Callable[[sqlite3.Connection], _T], *, is_durable: bool) -> _T:
        """Run ``act`` in one transaction.

        A file that was deleted or replaced since it was prepared is not used, because other processes use
        the new one.
        """
        try:
            with self._connections.writing():
                if inode_of(self.place) != self._file:
                    raise OSError("the file was deleted or replaced")
                connection = self._connections.writer()
                # spent money must survive a power failure; a rate does not have to
                connection.execute(f"PRAGMA synchronous = {'FULL' if is_durable else 'NORMAL'}")
                connection.execute("BEGIN IMMEDIATE")
                try:
                    done = act(connection)
                    connection.execute("COMMIT")
                except BaseException:
                    self._connections.undo()
                    raise
                return done
        except (sqlite3.Error, OSError) as error:
            raise self._unavailable(error) from None

    def _unavailable(self, error: Exception) -> BackEndUnavailable:
        self._connections.close()  # the file may have been replaced
        busy = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
        kind = BackEndBusy if busy else BackEndUnavailable
        return kind(f"the file {self.place} cannot be used: {error}")

    def close(self) -> None:
        self._connections.close()

    def _connect(self) -> sqlite3.Connection:
        return connect_sqlite(self.place, timeout=TIMEOUT_SECONDS)


def _facts_in(connection: sqlite3.Connection) -> dict[str, str]:
    """Return the facts of a file by name; none if it is a different database, or is not complete yet."""
    [(application,)] = connection.execute("PRAGMA application_id")
    if application != APPLICATION_ID:
        return {}
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'facts'").fetchone() is None:
        return {}  # another process is creating it
    return dict(connection.execute("SELECT name, value FROM facts"))
