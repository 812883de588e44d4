"""SQLite stores, and connections that fail like those of a broken disk."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import Any

import pytest
from jobs.stores import Bench, led, result, started

from smartbatch.jobs.shard_records import ShardState


@pytest.fixture
def bench(tmp_path):
    made = Bench("sqlite", str(tmp_path / "jobs.db"), tmp_path)
    yield made
    made.close()


class Watched(sqlite3.Connection):
    failing: frozenset[str] | set[str] = frozenset()
    done = False

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        if statement in self.failing:
            if self.done:
                super().execute(statement, *values)
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise error
        return super().execute(statement, *values)


@pytest.fixture
def connections(monkeypatch):
    made: list[Watched] = []
    connect = sqlite3.connect

    def watched(*args: Any, **settings: Any) -> Watched:
        made.append(connect(*args, **{**settings, "factory": Watched}))
        return made[-1]

    monkeypatch.setattr(sqlite3, "connect", watched)
    return made


def writer(connections: list[Watched]) -> Watched:
    for connection in reversed(connections):
        with contextlib.suppress(sqlite3.ProgrammingError):  # it is closed
            if connection.execute("PRAGMA query_only").fetchone() == (0,):
                return connection
    raise LookupError("no connection writes")


def filled(bench: Bench, count: int = 500) -> str:
    store = bench.open()
    _, lease = started(store, bench, count)
    shard = led(store, lease, store.shards.plan(lease, bench.shard(*range(count // 2))), ShardState.INGESTING)
    store.shards.ingest(lease, shard, [result(ix) for ix in range(count // 4)], at=1.0)
    store.leases.release(lease)
    store.close()
    return bench.place
