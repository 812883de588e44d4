"""SQLite connections of a process are not affected by a fork."""

from __future__ import annotations

import gc
import sqlite3
import weakref

import pytest
from forked import exit_code_of_child
from levels import sampled

from smartbatch._database import SqliteConnections


class Referable(sqlite3.Connection):
    """A connection to which there are weak references."""


@pytest.mark.full
@pytest.mark.parametrize("noticed", sampled(["by the hooks", "by the number of the process"], keep=1))
def test_a_child_neither_closes_nor_drops_the_connections_of_its_parent(noticed, tmp_path, monkeypatch):
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

        assert exit_code_of_child(left_alone) == 0
        connections.writer().execute("COMMIT")
        assert connections.writer().execute("SELECT x FROM t").fetchall() == [(1,)]
    connections.close()
