"""The connections of one process to an SQLite file: one reads, one writes, and a fork closes both."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

from smartbatch._clock import RealClock
from smartbatch._fork import around_fork

FORK_WAIT = 5.0
"""Seconds that a fork waits for a read, and for a write, of other threads. One that takes longer may wait for
the very thread that forks; then the child may find the file locked."""
_abandoned: list[sqlite3.Connection] = []
"""Connections of the parent, kept in a forked child: closing one there could disturb the parent's log."""


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
