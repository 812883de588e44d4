"""Databases: the connections of one process to an SQLite file, and addresses of PostgreSQL servers."""

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

FORK_WAIT = 5.0
"""Seconds that a fork waits for a read, and for a write, of other threads. One that takes longer may wait for
the very thread that forks; then the child may find the file locked."""
_abandoned: list[sqlite3.Connection] = []
"""Connections of the parent, kept in a forked child: closing one there could disturb the parent's log."""
DEFAULT_SCHEMA = "smartbatch"
"""A schema of our own, because tables of such plain names could meet the user's."""
SCHEMA_LOCK = 7_310_294_563_017_112
"""Number of the advisory lock under which a schema is made: jobs and shared limits may begin in one
at the same time."""
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_DEFAULTS: dict[str, Any] = {
    "application_name": "smartbatch",
    "connect_timeout": 10,
    # a server that vanished without a word is noticed within a minute
    "keepalives_idle": 20,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 50_000,
}
"""Parameters of libpq where the DSN says nothing else: seconds, and the last in milliseconds."""
_SECRET = ("password", "sslpassword", "passfile", "sslkey")

_T = TypeVar("_T")


def connect_sqlite(path: str, *, timeout: float) -> sqlite3.Connection:
    """Open a connection without implicit transactions that any thread may use.

    Args:
        timeout: seconds that SQLite itself waits for a lock of others.
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
    """Waits on native threads: a statement that waits for a lock or the disk would stop all green ones.

    What is inside a transaction has its locks already, and goes without the 0.2 ms that the way there takes.
    """

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        if self.in_transaction and statement != "COMMIT":
            return super().execute(statement, *values)
        return _natively(super().execute, statement, *values)

    def executescript(self, script: str, /) -> sqlite3.Cursor:
        return _natively(super().executescript, script)


def _natively(act: Callable[..., _T], *arguments: Any) -> _T:
    """Call ``act`` on a native thread while other green threads go on; as it is, where none may."""
    gevent: Any = sys.modules["gevent"]
    hub = gevent.get_hub()
    if gevent.getcurrent() is hub:
        return act(*arguments)
    done, error = hub.threadpool.apply(_outcome, (act, arguments))
    if error is not None:
        raise error
    return cast(_T, done)


def _outcome(act: Callable[..., _T], arguments: tuple[Any, ...]) -> tuple[_T | None, Exception | None]:
    """Return what ``act`` returns or raises: gevent prints what is raised on its threads."""
    try:
        return act(*arguments), None
    except Exception as error:
        return None, error


class SqliteConnections:
    """One connection that reads and one that writes, each by one thread at a time: no read waits for a write.

    A fork copies what SQLite itself knows of open files, their locks and its own mutexes: in the child they
    would be locked for ever, or taken for its own. So a fork waits for the reads and writes under way and
    closes the connections first (https://sqlite.org/howtocorrupt.html, 2.6); they are opened again when they
    are needed. A child begins with none.

    Args:
        connect: opens a connection that any thread may use.
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
        """Return the lock that lets one thread at a time read.

        The lock itself: a generator around it would keep it after a Ctrl-C between lock and block.
        """
        self._check_process()
        return self._read_lock

    def writing(self) -> threading.Lock:
        """Return the lock that lets one thread at a time write."""
        self._check_process()
        return self._write_lock

    def reader(self) -> sqlite3.Connection:
        """Return the connection that reads; called inside :meth:`reading`."""
        if self._reader is None:
            self._reader = self._connect()
            self._reader.execute("PRAGMA query_only = ON")
        return self._reader

    def writer(self) -> sqlite3.Connection:
        """Return the connection that writes; called inside :meth:`writing`."""
        self._writing_thread = threading.get_ident()
        if self._writer is None:
            self._writer = self._connect()
        return self._writer

    @property
    def has_writer(self) -> bool:
        """Whether the connection that writes is open."""
        return self._writer is not None

    def undo(self) -> None:
        """Roll back; a connection that cannot is given up, and its transaction with it."""
        writer = self._writer
        try:
            if writer is not None and writer.in_transaction:
                writer.execute("ROLLBACK")
        except sqlite3.Error:
            self._writer = None
            _close(writer)

    def close(self) -> None:
        """Close both, after the read and the write under way."""
        self._check_process()
        with self._write_lock, self._read_lock:
            self._cut()

    def abandon(self) -> None:
        """Close both at once, as the death of the process would; a child leaves them to its parent."""
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
        """Wait for the others, close the connections, and let nobody open one before the fork is over."""
        me = threading.get_ident()
        if self._process != os.getpid():
            return
        if self._write_lock.locked() and self._writing_thread == me:  # in the middle of its own write
            return
        if not RealClock.acquire(self._write_lock, FORK_WAIT):
            return
        if not RealClock.acquire(self._read_lock, FORK_WAIT):
            self._write_lock.release()
            return
        self._cut()
        self._forking = me

    def after_fork_in_parent(self) -> None:
        """Go on, in the process that forked."""
        if self._forking == threading.get_ident():
            self._forking = None
            self._read_lock.release()
            self._write_lock.release()

    def after_fork(self) -> None:
        """Begin anew, in the child."""
        self.abandon()

    def _check_process(self) -> None:
        if self._process != os.getpid():  # a child made without the hooks of os.fork
            self.abandon()


def _close(connection: sqlite3.Connection | None) -> None:
    if connection is not None:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("PRAGMA busy_timeout = 0")  # the last one to close would wait to empty the log
        with contextlib.suppress(sqlite3.Error):
            connection.close()


@frozen
class Address:
    """Where something is kept on a server.

    Attributes:
        parameters: of libpq.
        schema: the schema of its tables.
        place: the address for people, without secrets.
        secrets: what must not be shown.
    """

    parameters: dict[str, Any] = field(repr=False)
    schema: str
    place: str
    secrets: tuple[str, ...] = field(repr=False)

    @classmethod
    def of(cls, dsn: str, setting: str = "store") -> Address:
        """Read a DSN, which a ``setting`` names.

        Raises:
            ConfigError: it cannot be read, or psycopg is missing. The address is not shown, because it may
                contain a password.
        """
        require_psycopg()
        from psycopg import Error
        from psycopg.conninfo import conninfo_to_dict

        try:
            server, _, asked = dsn.partition("?")
            before, _, path = server.partition("://")[2].partition("/")
            if before.count("@") > 1 or "@" in path:  # a part of the password would be host or database
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
                f"{setting}: the schema {schema!r} is not usable; a name has small letters, digits and _, and"
                " begins with no digit"
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
        """Twelve characters that tell this address from others."""
        return hashlib.blake2b(self.place.encode(), digest_size=6).hexdigest()


def require_psycopg() -> None:
    """Raise ConfigError if psycopg is not installed."""
    try:
        import psycopg  # noqa: F401
    except ImportError as missing:
        raise ConfigError(
            "a PostgreSQL server needs the package psycopg; install it with"
            f" pip install 'smartbatch-llm[postgres]' ({missing.name or 'its libpq'} is missing)"
        ) from None
