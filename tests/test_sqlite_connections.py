"""The connections of one process to an SQLite file: what a fork and other threads leave alone."""

from __future__ import annotations

import gc
import os
import signal
import sqlite3
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
from levels import sampled

from smartbatch._database import SqliteConnections
from smartbatch.jobs.store import open_store
from smartbatch.realtime.cache import ResponseCache
from smartbatch.types import Answer


class Referable(sqlite3.Connection):
    """A connection to which there are weak references."""


def code_of_child(work: Callable[[], bool]) -> int:
    """Return 0 when ``work`` holds in a forked child, which is ended when it hangs."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(15)
        try:
            os._exit(0 if work() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.full
@pytest.mark.parametrize("noticed", sampled(["by the hooks", "by the number of the process"], keep=1))
def test_a_child_neither_closes_nor_drops_the_connections_of_its_parent(
    noticed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing them would roll back what the parent is writing, and clean up a log that it uses."""

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(
            tmp_path / "file.db", factory=Referable, isolation_level=None, check_same_thread=False
        )

    connections = SqliteConnections(connect)
    if noticed != "by the hooks":
        monkeypatch.setattr(SqliteConnections, "after_fork", lambda self: None)
    with connections.writing():
        connection = connections.writer()
        connection.execute("CREATE TABLE t (x)")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO t VALUES (1)")
        inherited = weakref.ref(connection)
        del connection

        def left_alone() -> bool:
            with connections.reading():
                fresh = connections.reader()
                gc.collect()
                known = inherited()
                return known is not None and fresh is not known and known.in_transaction

        assert code_of_child(left_alone) == 0
        connections.writer().execute("COMMIT")
        assert connections.writer().execute("SELECT x FROM t").fetchall() == [(1,)]
    connections.close()


def test_each_read_and_write_of_a_store_and_a_cache_holds_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork waits for these locks: its child would copy a connection in the middle of a read."""
    reader, writer = SqliteConnections.reader, SqliteConnections.writer
    held: list[tuple[str, bool]] = []

    def reading(self: SqliteConnections) -> sqlite3.Connection:
        held.append(("read", self.reading().locked()))
        return reader(self)

    def writing(self: SqliteConnections) -> sqlite3.Connection:
        held.append(("write", self.writing().locked()))
        return writer(self)

    monkeypatch.setattr(SqliteConnections, "reader", reading)
    monkeypatch.setattr(SqliteConnections, "writer", writing)
    store = open_store(str(tmp_path / "jobs.db"))
    assert store.jobs.latest() == []
    store.close()
    assert set(held) == {("read", True), ("write", True)}
    held.clear()
    cache = ResponseCache(str(tmp_path / "cache.db"), ttl=60.0, max_bytes=10_000, wall=lambda: 1.0)
    assert cache.put(b"key", Answer("text"))
    assert cache.get(b"key") is not None
    assert set(held) == {("read", True), ("write", True)}
