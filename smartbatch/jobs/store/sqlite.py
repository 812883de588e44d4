"""A store's database in one SQLite file, for any number of processes and threads on one machine.

It uses a write-ahead log with ``synchronous=FULL``: committed data survives a loss of power. Every write
begins with ``BEGIN IMMEDIATE``: a read transaction that becomes a write would be refused if another process
had written since.

Only SQLite opens the file: closing any other descriptor of it would drop the locks of this process.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeVar

from smartbatch._clock import RealClock
from smartbatch._database import SqliteConnections, connect_sqlite
from smartbatch._files import check_logs, check_own, inode_of, lock_file, new_file, private_folder
from smartbatch._words import duration
from smartbatch.errors import StoreError, scrub
from smartbatch.jobs.records import StoredCounts
from smartbatch.jobs.store.database import STATES, Database, Row, Transaction
from smartbatch.jobs.store.schema import create_tables, has_tables

BUSY_SECONDS = 10.0  # maximum wait of a write for other writers
RETRY_SECONDS = 0.1  # longest wait inside SQLite, after which a closed store stops waiting
APPLICATION_ID = 0x736D6A62  # "smjb" in the file's header marks it as a store of jobs
MIN_SQLITE = (3, 35, 0)  # the first version with RETURNING
MAX_CHECKED_BYTES = 8 << 20
"""Files up to this size are checked completely when they are opened. Larger ones are checked after the first
error, because the check reads the whole file.
"""
VACUUM_PAGES = 5_000  # pages returned to the system per transaction

_TYPES = {
    "key": "INTEGER PRIMARY KEY",
    "serial": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "int": "INTEGER",
    "real": "REAL",
    "bytes": "BLOB",
}
_DIALECT_WORDS = STATES | {
    "numbers": "(SELECT value FROM json_each(?))",
    "texts": "(SELECT value FROM json_each(?))",
    "for_update": "",
    "skip_locked": "",
}


_T = TypeVar("_T")
NETWORK_FILE_SYSTEMS = re.compile(
    r"9p|afs|beegfs|ceph|cifs|gfs2|glusterfs|gpfs|lustre|ncpfs|nfs4?|ocfs2|orangefs|panfs|smb3|smbfs|vboxsf"
    r"|fuse\.(ceph|cephfs|gcsfuse|glusterfs|juicefs|mount\.glusterfs|rclone|s3fs|sshfs)"
)
"""File systems without locks and shared memory across machines, which SQLite's write-ahead log needs
(sqlite.org/wal.html: "all processes using a database must be on the same host computer")."""
FILE_REPLACED_ERROR = (
    "the store's file {path} was deleted or replaced while it was in use: nothing was written, and nothing is"
    " sent; restore the file together with its -wal file, or restart with another store"
)
_MOUNTS_FILE = "/proc/self/mountinfo"
_ESCAPED = re.compile(r"\\([0-7]{3})")  # escaped characters in the list of mounts, such as spaces


@functools.cache
def _spelled(statement: str) -> str:
    return statement.format_map(_DIALECT_WORDS)


def _execute(connection: sqlite3.Connection, statement: str, values: Iterable[Any]) -> sqlite3.Cursor:
    bound = [json.dumps(value) if isinstance(value, list) else value for value in values]
    return connection.execute(_spelled(statement), bound)


class SqliteDatabase(Database):
    """One SQLite file.

    Args:
        path: the file, created with its folder if it is missing.
        wall: returns Unix seconds.
        busy_timeout: maximum seconds that a write waits for other writers.
    """

    def __init__(self, path: str, *, wall: Callable[[], float], busy_timeout: float = BUSY_SECONDS) -> None:
        self.place = path
        self._wall = wall
        self._busy_timeout = busy_timeout
        self._damage: str | None = None
        self._closed = False
        self._file: tuple[int, int] | None = None
        self._log: tuple[int, int] | None = None
        self._connections = SqliteConnections(self._connect)

    # -- opening ---------------------------------------------------------------------------------------------

    def open(self) -> None:
        if sqlite3.sqlite_version_info < MIN_SQLITE:
            raise StoreError(
                f"the store needs SQLite {'.'.join(map(str, MIN_SQLITE[:2]))} or newer, but this Python has"
                f" {sqlite3.sqlite_version}; use a newer Python or PostgreSQL"
            )
        prepare_folder(self.place)
        try:
            made = os.path.exists(self.place) and os.path.getsize(self.place) > 0
            if not (made and self._opened(alone=False)):
                self._make()
        except (sqlite3.Error, OSError) as error:
            raise self._explained(error) from None

    def _opened(self, *, alone: bool) -> bool:
        """Check the file, and create its tables; return false if it is empty and ``alone`` is false."""
        with self._connections.reading():
            connection = self._connect()
            try:
                found = self._examine(connection, alone)
            finally:
                connection.close()
        if found == "unmade":
            return False
        if found == "no tables":
            create_tables(self, _TYPES)
        self._file = self._inode(self.place)
        return True

    def _make(self) -> None:
        """Create the file under a lock, because other processes may do the same."""
        lock = new_file(f"{self.place}.new")
        try:
            lock_file(lock, wait=True)  # other processes hold the lock for a few milliseconds
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.place, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            check_own(self.place)  # another user may have put an empty file there
            self._opened(alone=True)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{self.place}.new")
        finally:
            os.close(lock)

    def _examine(
        self, connection: sqlite3.Connection, alone: bool
    ) -> Literal["unmade", "no tables", "whole"]:
        """Check that the file can be a store. An empty file becomes a store only if ``alone`` is true."""
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        [(application,)] = connection.execute("PRAGMA application_id")
        [(version,)] = connection.execute("PRAGMA user_version")
        if not tables and application == version == 0:
            if not alone:  # it is empty: new, or its creator died immediately
                return "unmade"
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("VACUUM")  # applies auto_vacuum to a file that already has pages
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        elif application != APPLICATION_ID:
            raise StoreError(
                f"the file {self.place} is an SQLite database but not a store of jobs; it was not changed."
                " Use another file as the store"
            )
        if os.path.getsize(self.place) <= MAX_CHECKED_BYTES:
            check_whole(connection, self.place)
        [(mode,)] = connection.execute("PRAGMA journal_mode")
        if mode != "wal":
            connection.execute("PRAGMA journal_mode = WAL")
        if "schema_version" not in tables or not has_tables(SqliteTransaction(connection), self.place):
            return "no tables"
        return "whole"

    def _connect(self) -> sqlite3.Connection:
        if self._closed:
            raise StoreError(f"the store {self.place} was closed; open it again")
        check_logs(self.place)
        connection = connect_sqlite(self.place, timeout=min(RETRY_SECONDS, self._busy_timeout))
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA journal_size_limit = 67108864")  # bytes to which a large log is truncated
        return connection

    # -- reading ---------------------------------------------------------------------------------------------

    def rows(self, statement: str, *values: Any) -> list[Row]:
        with self._connections.reading():
            try:
                self._check_file()
                return self._waiting(
                    lambda: _execute(self._connections.reader(), statement, values).fetchall()
                )
            except (sqlite3.Error, UnicodeEncodeError) as error:
                raise self._explained(error) from None

    def now(self) -> float:
        return self._wall()

    # -- writing ---------------------------------------------------------------------------------------------

    def write(self, work: Callable[[Transaction], _T]) -> _T:
        with self._connections.writing():
            try:
                connection = self._begin()
                done = work(SqliteTransaction(connection))
                self._check_file()
                connection.execute("COMMIT")
                return done
            except BaseException as error:
                self._connections.undo()
                if isinstance(error, sqlite3.Error | UnicodeEncodeError):
                    raise self._explained(error) from None
                raise

    def _begin(self) -> sqlite3.Connection:
        if self._damage is not None:
            raise StoreError(self._damage)
        self._check_file()
        self._connections.undo()  # left over by a second Ctrl-C while the first was handled
        if not self._connections.has_writer:
            self._log = None
        connection = self._connections.writer()
        self._waiting(lambda: connection.execute("BEGIN IMMEDIATE"))
        if self._log is None:  # it exists from a connection's first transaction until it is closed
            self._log = self._inode(f"{self.place}-wal")
        return connection

    def _waiting(self, act: Callable[[], _T]) -> _T:
        """Repeat an action that other processes may block, until the busy timeout or until the store is
        closed.
        """
        until = RealClock.now() + self._busy_timeout
        while True:
            try:
                return act()
            except sqlite3.OperationalError as error:
                busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                if self._closed or not busy or RealClock.now() >= until:
                    raise

    def _check_file(self) -> None:
        """Raise ``StoreError`` if the file or its log is no longer the one that was opened."""
        log = self._log if self._connections.has_writer else None
        known = ((self.place, self._file), (f"{self.place}-wal", log))
        if any(inode is not None and self._inode(path) != inode for path, inode in known):
            raise StoreError(FILE_REPLACED_ERROR.format(path=self.place))

    def _inode(self, path: str) -> tuple[int, int] | None:
        try:
            return inode_of(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._explained(error) from None

    def _explained(self, error: Exception) -> StoreError:
        """Explain an error. If it is a sign of damage, nothing more is written."""
        problem = explained(error, self.place, self._busy_timeout)
        if is_damage(error):
            self._damage = str(problem)
        return problem

    # -- closing ---------------------------------------------------------------------------------------------

    def reclaim(self) -> None:
        # if another process reads or writes, this has no effect, and the space is reused later
        with self._connections.writing(), contextlib.suppress(sqlite3.Error):
            if not self._connections.has_writer:
                return
            connection = self._connections.writer()
            free, before = connection.execute("PRAGMA freelist_count").fetchone()[0], None
            while free and free != before:
                # as a script, since execute() stops after the first page
                connection.executescript(f"PRAGMA incremental_vacuum({VACUUM_PAGES})")
                free, before = connection.execute("PRAGMA freelist_count").fetchone()[0], free
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def give_up(self) -> None:
        self._closed = True  # a thread that waits for a lock checks this

    def close(self) -> None:
        self._closed = True
        self._connections.close()

    def abandon(self) -> None:
        self._connections.abandon()


class SqliteTransaction(Transaction):
    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.counted: list[StoredCounts] = []

    def rows(self, statement: str, *values: Any) -> list[Row]:
        # all rows: an open cursor would block the commit
        return _execute(self.connection, statement, values).fetchall()

    def change(self, statement: str, *values: Any) -> int:
        return _execute(self.connection, statement, values).rowcount

    def at_commit(self, statement: str, *values: Any) -> None:
        # no need to delay the statement: writes are exclusive, and there is no round trip
        self.change(statement, *values)

    def insert(self, table: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        marks = ", ".join("?" * len(columns))
        self.connection.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", rows)

    def lock(self, name: str) -> None:
        """Writes are exclusive, so no lock is needed."""


# -- checks and errors ---------------------------------------------------------------------------------------


def prepare_folder(path: str, mounts: Iterable[str] | None = None) -> None:
    """Create the folder of the file ``path`` if it is missing, for its owner only.

    ``mounts`` are lines of ``/proc/self/mountinfo``.

    Raises:
        StoreError: the folder cannot be created, or is on a network file system.
    """
    folder = os.path.dirname(path)
    kind = file_system(folder, _mounts() if mounts is None else mounts)
    if kind is not None and NETWORK_FILE_SYSTEMS.fullmatch(kind):
        raise StoreError(
            f"the store {path} would be on a network file system ({kind}), where SQLite's locks do not work,"
            " so that jobs could be lost or sent twice; use a path on a local disk (SMARTBATCH_STORE), or a"
            " PostgreSQL server to share jobs between machines"
        )
    try:
        private_folder(folder)
    except OSError as error:
        raise explained(error, path, 0.0) from None
    if os.path.isdir(path):
        raise StoreError(f"the store {path} is a folder; use a file in it, such as {path}/jobs.db")


def file_system(folder: str, mounts: Iterable[str]) -> str | None:
    """Return the type of the file system that contains ``folder``; ``None`` if it is unknown.

    In the lines, described in proc(5), the mount point is the fifth word and the type follows ``-``.
    """
    folder = os.path.realpath(folder)
    best, kind = "", None
    for line in mounts:
        words = line.split()
        if len(words) < 5 or "-" not in words:
            continue
        point = _ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), words[4])
        inside = folder == point or folder.startswith(point.rstrip("/") + "/")
        # a later mount on the same point hides the earlier one
        if inside and len(point) >= len(best):
            best, kind = point, words[words.index("-") + 1]
    return kind


def _mounts() -> list[str]:
    try:
        with open(_MOUNTS_FILE, encoding="utf-8", errors="replace") as lines:
            return lines.readlines()
    except OSError:
        return []


def check_whole(connection: sqlite3.Connection, path: str) -> None:
    """Raise ``StoreError`` if SQLite finds the file damaged."""
    found = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found is None or found[0] != "ok":
        raise StoreError(_damaged(path, scrub(str(found[0] if found else "no answer"))))


def is_damage(error: Exception) -> bool:
    """Whether nothing may be written to the file after this error."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _damaged(path: str, reason: str) -> str:
    return (
        f"the store's file {path} is damaged ({reason}) and was not changed; make a copy of it with its -wal"
        " file, restore a backup or try `sqlite3 FILE .recover`, and use another store until then"
    )


def explained(error: Exception, path: str, waited: float) -> StoreError:
    """Convert an error of SQLite or of the system to one that says what happened and what to do.

    ``waited`` is the busy timeout in seconds.
    """
    reason = scrub(str(error))
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if isinstance(error, UnicodeEncodeError):
        return StoreError(f"the store {path} rejected text with a lone surrogate")
    if isinstance(error, OSError):
        return StoreError(
            f"the store {path} cannot be used ({error.strerror}): check its folder and permissions"
        )
    if is_damage(error):
        return StoreError(_damaged(path, reason))
    what = {
        sqlite3.SQLITE_BUSY: f"is locked: another process has been writing for more than {duration(waited)};"
        " find the process that hangs (`fuser` lists it), or try again",
        sqlite3.SQLITE_FULL: "cannot grow: the disk is full; free some space. Reading still works",
        sqlite3.SQLITE_READONLY: "is read-only: make the file and its folder writable, or use another store",
        sqlite3.SQLITE_CANTOPEN: "cannot be opened: make sure the file and its folder exist and are writable",
        sqlite3.SQLITE_PERM: "cannot be opened: make the file and its folder writable, or use another store",
        sqlite3.SQLITE_IOERR: "cannot be written: the disk is full or failing, or a file size limit was"
        " reached; nothing was written",
    }.get(code, "rejected a statement")
    return StoreError(f"the store {path} {what} ({reason})")
