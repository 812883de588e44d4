"""SQLite connections of one process, and addresses of PostgreSQL servers."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sqlite3
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast
from urllib.parse import unquote

from attrs import field, frozen

from smartbatch._clock import RealClock
from smartbatch._fork import around_fork
from smartbatch.errors import ConfigError

FORK_WAIT_SECONDS = 5.0
"""How long a fork waits for reads and writes of other threads. Operations that take longer may be waiting for
the forking thread; the fork then proceeds, and the child may find the file locked.
"""
_abandoned: list[sqlite3.Connection] = []
"""Connections of the parent that a forked child keeps open, because closing one could damage the parent's
log.
"""
DEFAULT_SCHEMA = "smartbatch"
"""A separate schema avoids conflicts with the user's table names."""
SCHEMA_LOCK = 7_310_294_563_017_112
"""Advisory lock for creating a schema, because jobs and shared limits may do so at the same time."""
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_DEFAULTS: dict[str, Any] = {
    "application_name": "smartbatch",
    "connect_timeout": 10,
    # detects within a minute that a server has disappeared without notice
    "keepalives_idle": 20,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 50_000,
}
"""Default libpq parameters, in seconds; the last one in milliseconds."""
_SECRET = ("password", "sslpassword", "passfile", "sslkey")

_T = TypeVar("_T")


def connect_sqlite(path: str, *, timeout: float) -> sqlite3.Connection:
    """Open a connection that any thread may use, without implicit transactions.

    Args:
        timeout: seconds SQLite itself waits for a lock.
    """
    monkey = sys.modules.get("gevent.monkey")
    green = monkey is not None and monkey.is_module_patched("threading")
    return sqlite3.connect(
        path,
        timeout=timeout,
        isolation_level=None,
        check_same_thread=False,
        factory=_GreenConnection if green else sqlite3.Connection,
    )


class _GreenConnection(sqlite3.Connection):
    """Runs statements on native threads: waiting for a lock or the disk would block all green threads.

    Inside a transaction the locks are held, so statements run directly, which saves 0.2 ms each.
    """

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        if self.in_transaction and statement != "COMMIT":
            return super().execute(statement, *values)
        return _natively(super().execute, statement, *values)

    def executescript(self, script: str, /) -> sqlite3.Cursor:
        return _natively(super().executescript, script)


def _natively(act: Callable[..., _T], *arguments: Any) -> _T:
    """Call ``act`` on a native thread while other green threads continue, or directly in gevent's hub."""
    gevent: Any = sys.modules["gevent"]
    hub = gevent.get_hub()
    if gevent.getcurrent() is hub:
        return act(*arguments)
    done, error = hub.threadpool.apply(_outcome, (act, arguments))
    if error is not None:
        raise error
    return cast(_T, done)


def _outcome(act: Callable[..., _T], arguments: tuple[Any, ...]) -> tuple[_T | None, Exception | None]:
    """Return errors instead of raising them: gevent prints errors raised on its threads."""
    try:
        return act(*arguments), None
    except Exception as error:
        return None, error


class SqliteConnections:
    """One connection for reads and one for writes, each used by one thread at a time, so reads never wait for
    writes.

    A fork copies SQLite's record of open files, locks and mutexes, which would be wrong in the child. So a
    fork waits for reads and writes in progress and closes the connections
    (https://sqlite.org/howtocorrupt.html, 2.6); they are reopened at the next use. A child starts with none.
    """

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._begin_anew()
        around_fork(self)

    def _begin_anew(self) -> None:
        self._process = os.getpid()
        self._read_lock, self._write_lock = threading.Lock(), threading.Lock()
        self._reader: sqlite3.Connection | None = None
        self._writer: sqlite3.Connection | None = None
        self._writing_thread: int | None = None
        self._forking: int | None = None

    def reading(self) -> threading.Lock:
        """Return the lock that a thread must hold to read.

        The lock itself is returned, because Ctrl-C inside a context manager written in Python could leave it
        locked.
        """
        self._check_process()
        return self._read_lock

    def writing(self) -> threading.Lock:
        self._check_process()
        return self._write_lock

    def reader(self) -> sqlite3.Connection:
        """Return the read connection. The caller must hold the lock of :meth:`reading`."""
        if self._reader is None:
            self._reader = self._connect()
            self._reader.execute("PRAGMA query_only = ON")
        return self._reader

    def writer(self) -> sqlite3.Connection:
        """Return the write connection. The caller must hold the lock of :meth:`writing`."""
        self._writing_thread = threading.get_ident()
        if self._writer is None:
            self._writer = self._connect()
        return self._writer

    @property
    def has_writer(self) -> bool:
        return self._writer is not None

    def undo(self) -> None:
        """Roll back; if that fails, drop the connection and its transaction."""
        writer = self._writer
        try:
            if writer is not None and writer.in_transaction:
                writer.execute("ROLLBACK")
        except sqlite3.Error:
            self._writer = None
            _close(writer)

    def close(self) -> None:
        """Close both connections once the read and the write in progress have finished."""
        self._check_process()
        with self._write_lock, self._read_lock:
            self._cut()

    def abandon(self) -> None:
        """Close both immediately, as if the process had died; a child leaves them to its parent."""
        self._cut()
        self._begin_anew()

    def _cut(self) -> None:
        connections, self._reader, self._writer = (self._reader, self._writer), None, None
        for connection in connections:
            if self._process == os.getpid():
                _close(connection)
            elif connection is not None:
                _abandoned.append(connection)

    def before_fork(self) -> None:
        """Wait for other threads, close the connections, and prevent new ones until the fork is over."""
        me = threading.get_ident()
        if self._process != os.getpid():
            return
        # the forking thread is in the middle of a write
        if self._write_lock.locked() and self._writing_thread == me:
            return
        if not RealClock.acquire(self._write_lock, FORK_WAIT_SECONDS):
            return
        if not RealClock.acquire(self._read_lock, FORK_WAIT_SECONDS):
            self._write_lock.release()
            return
        self._cut()
        self._forking = me

    def after_fork_in_parent(self) -> None:
        if self._forking == threading.get_ident():
            self._forking = None
            self._read_lock.release()
            self._write_lock.release()

    def after_fork(self) -> None:
        self.abandon()

    def _check_process(self) -> None:
        if self._process != os.getpid():  # a child forked without Python's fork hooks
            self.abandon()


def _close(connection: sqlite3.Connection | None) -> None:
    if connection is not None:
        with contextlib.suppress(sqlite3.Error):
            # otherwise the last connection to close waits to empty the log
            connection.execute("PRAGMA busy_timeout = 0")
        with contextlib.suppress(sqlite3.Error):
            connection.close()


@frozen
class Address:
    """A PostgreSQL server and the schema used on it."""

    parameters: dict[str, Any] = field(repr=False)  # libpq parameters
    schema: str
    place: str  # the address without secrets, as shown to users
    secrets: tuple[str, ...] = field(repr=False)  # never shown

    @classmethod
    def of(cls, dsn: str, setting: str = "store") -> Address:
        """Parse a DSN, the value of ``setting``.

        Raises:
            ConfigError: the DSN is invalid, or psycopg is missing. The message omits the DSN, which may
                contain a password.
        """
        require_psycopg()
        from psycopg import Error
        from psycopg.conninfo import conninfo_to_dict

        try:
            server, _, asked = dsn.partition("?")
            before, _, path = server.partition("://")[2].partition("/")
            # part of the password would be parsed as host or database
            if before.count("@") > 1 or "@" in path:
                raise ValueError
            words = asked.split("&") if asked else []
            schema = next((unquote(w[7:]) for w in words if w.startswith("schema=")), DEFAULT_SCHEMA)
            rest = "&".join(word for word in words if not word.startswith("schema="))
            given = conninfo_to_dict(f"{server}?{rest}" if rest else server)
        except (ValueError, Error):
            raise ConfigError(
                f"{setting}: the address of the PostgreSQL server cannot be read; it should look like"
                " postgresql://user:password@host:5432/database?schema=smartbatch, with special characters"
                " written as %XX"
            ) from None
        if not _SCHEMA.fullmatch(schema):
            raise ConfigError(
                f"{setting}: the schema {schema!r} cannot be used; a name consists of lower-case letters,"
                " digits and _, and does not begin with a digit"
            )
        place = "postgresql://{user}{host}{port}/{dbname}?schema={schema}".format(
            user=f"{given['user']}@" if given.get("user") else "",
            host=given.get("host", ""),
            port=f":{given['port']}" if given.get("port") else "",
            dbname=given.get("dbname", ""),
            schema=schema,
        )
        secrets = tuple(str(given[name]) for name in _SECRET if given.get(name))
        return cls(parameters={**_DEFAULTS, **given}, schema=schema, place=place, secrets=secrets)

    @property
    def digest(self) -> str:
        """Twelve characters that identify the address."""
        return hashlib.blake2b(self.place.encode(), digest_size=6).hexdigest()


def require_psycopg() -> None:
    try:
        import psycopg  # noqa: F401
    except ImportError as missing:
        raise ConfigError(
            "a PostgreSQL server needs the package psycopg; install it with"
            f" pip install 'smartbatch-llm[postgres]' ({missing.name or 'its libpq'} is missing)"
        ) from None
