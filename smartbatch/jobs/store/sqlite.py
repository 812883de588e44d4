"""A store's database in one SQLite file: one machine, any number of processes and threads.

Write-ahead log with ``synchronous=FULL``: what was committed survives a loss of power. Every write begins
with ``BEGIN IMMEDIATE``: a read that turns into a write would be refused at once when somebody else wrote
meanwhile. One connection reads and one writes, each by one thread at a time, so that a read never waits
for a writer.

The file is never opened but by SQLite: closing any descriptor of it would drop the locks of this process.

A fork closes the connections first, see :mod:`smartbatch._fork`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from smartbatch._fork import FileLocks
from smartbatch.errors import StoreError
from smartbatch.jobs.store import checks
from smartbatch.jobs.store.database import Database, Row
from smartbatch.jobs.store.migrations import MIGRATIONS, Step, migrate, refuse_newer

__all__ = ["BUSY_TIMEOUT", "SqliteDatabase", "SqliteTransaction"]

BUSY_TIMEOUT = 10.0
"""Seconds that a write waits for other writers."""
APPLICATION = 0x736D6A62
"""``smjb``: marks the file as a store of jobs, in the header's field for that."""
OLDEST = (3, 35, 0)
"""The first SQLite with ``RETURNING``."""
CHECKED_AT_OPEN = 8 << 20
"""Bytes up to which a file is checked as a whole when it is opened; a larger one is checked after the first
error, because the check reads all of it."""
VACUUM_PAGES = 5_000
"""Pages given back to the system in one transaction."""

_TYPES = {
    "key": "INTEGER PRIMARY KEY",
    "serial": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "int": "INTEGER",
    "real": "REAL",
    "bytes": "BLOB",
}
_abandoned: list[sqlite3.Connection] = []
"""Connections of the parent, kept in a forked child: closing one there could disturb the parent's log."""


class SqliteDatabase(Database):
    """The file and its two connections.

    Args:
        path: the file; made, with its folder, when it is not there.
        wall: Unix seconds.
        busy_timeout: seconds that a write waits for other writers.
        steps: the migrations, in tests.
    """

    words: Mapping[str, str] = {
        "numbers": "(SELECT value FROM json_each(?))",
        "texts": "(SELECT value FROM json_each(?))",
        "for_update": "",
        "skip_locked": "",
    }

    def __init__(
        self,
        path: str,
        *,
        wall: Callable[[], float],
        busy_timeout: float = BUSY_TIMEOUT,
        steps: Sequence[Step] = MIGRATIONS,
    ) -> None:
        super().__init__()
        self.place = path
        self._path = path
        self._wall = wall
        self._busy_timeout = busy_timeout
        self._steps = steps
        self._damage: str | None = None
        self._closed = False
        self._file: tuple[int, int] | None = None
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._process = os.getpid()
        self._locks = FileLocks(self._cut)
        self._reader: sqlite3.Connection | None = None
        self._writer: sqlite3.Connection | None = None
        self._log: tuple[int, int] | None = None

    # -- opening ---------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Make or check the file, and bring its tables to the present version."""
        if sqlite3.sqlite_version_info < OLDEST:
            raise StoreError(
                f"the store needs SQLite {'.'.join(map(str, OLDEST[:2]))} or newer, and this Python has"
                f" {sqlite3.sqlite_version}; use a newer Python, or PostgreSQL"
            )
        checks.prepare_folder(self._path)
        try:
            made = os.path.exists(self._path) and os.path.getsize(self._path) > 0
            if not (made and self._opened(alone=False)):
                with self._alone():
                    self._opened(alone=True)
        except (sqlite3.Error, OSError) as error:
            raise self._explained(error) from None

    def _opened(self, *, alone: bool) -> bool:
        """Check the file, and make it if ``alone``; return False when it is still to be made."""
        with self._locks.reading:
            connection = self._connect()
            try:
                version = self._version(connection, alone)
            finally:
                connection.close()
        if version is None:
            return False
        if version < len(self._steps):
            migrate(self, _TYPES, self._steps)
        self._file = checks.inode(self._path)
        return True

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Let one process at a time make the file."""
        lock = os.open(f"{self._path}.new", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)  # held by others for the few milliseconds that making it takes
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            yield
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{self._path}.new")
        finally:
            os.close(lock)

    def _version(self, connection: sqlite3.Connection, alone: bool) -> int | None:
        """Return the version of the tables after checking that the file is a whole store; ``None`` when
        it is a new one, and making it needs ``alone``."""
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
        marks = [
            connection.execute(f"PRAGMA {mark}").fetchone()[0] for mark in ("application_id", "user_version")
        ]
        if not tables and marks == [0, 0]:  # nothing was ever put in: it is new, or its maker died at once
            if not alone:
                return None
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("VACUUM")  # else it does not hold for a file that has its first page
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
        elif marks[0] != APPLICATION:
            raise StoreError(
                f"the file {self._path} is an SQLite database, but no store of jobs: it was not touched; name"
                " another file as the store"
            )
        if os.path.getsize(self._path) <= CHECKED_AT_OPEN:
            checks.check_whole(connection, self._path)
        if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            connection.execute("PRAGMA journal_mode = WAL")
        if "schema_version" not in tables:
            return 0
        found = connection.execute("SELECT version FROM schema_version").fetchone()
        version = 0 if found is None else int(found[0])
        refuse_newer(version, self._path, self._steps)
        return version

    def _connect(self) -> sqlite3.Connection:
        if self._closed:
            raise StoreError(f"the store {self.place} was closed; open it again")
        connection = sqlite3.connect(
            self._path, timeout=self._busy_timeout, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA journal_size_limit = 67108864")  # bytes a log that grew once may keep
        return connection

    # -- reading ---------------------------------------------------------------------------------------------

    def rows(self, statement: str, *values: object) -> list[Row]:
        self._check_process()
        with self._locks.reading:
            try:
                self._check_file()
                if self._reader is None:
                    self._reader = self._connect()
                    self._reader.execute("PRAGMA query_only = ON")
                return self._reader.execute(self.spell(statement), values).fetchall()
            except (sqlite3.Error, UnicodeEncodeError) as error:
                raise self._explained(error) from None

    def now(self) -> float:
        return self._wall()

    def many(self, values: Collection[int] | Collection[str]) -> str:
        return json.dumps(list(values))

    # -- writing ---------------------------------------------------------------------------------------------

    @contextmanager
    def writing(self) -> Iterator[SqliteTransaction]:
        self._check_process()
        with self._locks.writing:
            self._locks.writer = threading.get_ident()
            connection = self._begin()
            try:
                yield SqliteTransaction(self, connection)
                self._check_file()
                connection.execute("COMMIT")
            except BaseException as error:
                self._undo(connection)
                if isinstance(error, sqlite3.Error | UnicodeEncodeError):
                    raise self._explained(error) from None
                raise

    def _begin(self) -> sqlite3.Connection:
        if self._damage is not None:
            raise StoreError(self._damage)
        try:
            self._check_file()
            if self._writer is None:
                self._writer = self._connect()
            self._writer.execute("BEGIN IMMEDIATE")
            if self._log is None:  # it is there from a connection's first transaction to its end
                self._log = checks.inode(f"{self._path}-wal")
            return self._writer
        except (sqlite3.Error, OSError) as error:
            if self._writer is not None:
                self._undo(self._writer)
            raise self._explained(error) from None

    def _check_file(self) -> None:
        """Raise StoreError when the file or its log is no longer the one that was opened."""
        known = ((self._path, self._file), (f"{self._path}-wal", self._log))
        if any(inode is not None and checks.inode(path) != inode for path, inode in known):
            raise StoreError(checks.GONE.format(path=self._path))

    def _undo(self, connection: sqlite3.Connection) -> None:
        """Roll back; a connection that cannot is given up, and its transaction with it."""
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._writer = self._log = None
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def _explained(self, error: Exception) -> StoreError:
        """Return what an error means for people; after a sign of damage nothing is written any more."""
        told = checks.explained(error, self._path, self._busy_timeout)
        if checks.is_damage(error):
            self._damage = str(told)
        return told

    # -- life ------------------------------------------------------------------------------------------------

    def give_back(self) -> None:
        # somebody else may read or write: then the room is used again by what comes next
        with self._locks.writing, contextlib.suppress(sqlite3.Error):
            connection = self._writer
            if connection is None:
                return
            free, before = connection.execute("PRAGMA freelist_count").fetchone()[0], None
            while free and free != before:
                # as a script: it works page by page, and execute() stops after the first
                connection.executescript(f"PRAGMA incremental_vacuum({VACUUM_PAGES})")
                free, before = connection.execute("PRAGMA freelist_count").fetchone()[0], free
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        if self._process != os.getpid():
            self.abandon()
        self._closed = True
        with self._locks.writing, self._locks.reading:
            self._cut()

    def _cut(self) -> None:
        connections = self._reader, self._writer
        self._reader = self._writer = self._log = None
        for connection in connections:
            if connection is not None:
                with contextlib.suppress(sqlite3.Error):
                    connection.close()

    def abandon(self) -> None:
        if self._process == os.getpid():
            self._cut()
        else:
            _abandoned.extend(c for c in (self._reader, self._writer) if c is not None)
        self._begin_anew()

    def _check_process(self) -> None:
        if self._process != os.getpid():  # a child made without the hooks of os.fork
            self.abandon()


class SqliteTransaction:
    """Implements :class:`~smartbatch.jobs.store.database.Transaction`."""

    def __init__(self, database: SqliteDatabase, connection: sqlite3.Connection) -> None:
        self._database = database
        self._connection = connection

    def rows(self, statement: str, *values: object) -> list[Row]:
        return self._connection.execute(self._database.spell(statement), values).fetchall()

    def row(self, statement: str, *values: object) -> Row | None:
        found = self.rows(statement, *values)  # all of them: an open cursor would hold up the commit
        return found[0] if found else None

    def change(self, statement: str, *values: object) -> int:
        return self._connection.execute(self._database.spell(statement), values).rowcount

    def insert(self, table: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        marks = ", ".join("?" * len(columns))
        self._connection.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", rows)

    def lock(self, name: str) -> None:
        """A write is alone as it is."""
