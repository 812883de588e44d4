"""The store of a simulation: the real tables and transactions, on a database that lies in memory."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from smartbatch.jobs.store import JobFiles, SqlStore, open_store
from smartbatch.jobs.store.database import Database, Row, Transaction
from smartbatch.jobs.store.leases import FileLocks
from smartbatch.jobs.store.outcomes import JOB_NUMBER
from smartbatch.jobs.store.sqlite import SqliteTransaction

_T = TypeVar("_T")


class Disk:
    """What outlives a process: the database, and a folder for files on their way and locks."""

    def __init__(self, folder: Path) -> None:
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        self.connection.deserialize(_empty(str(folder.parent)))
        self.spool = str(folder / "spool")

    def close(self) -> None:
        self.connection.close()

    def next_deletion(self, scope: str) -> float | None:
        """Return the Unix time at which something is deleted at the provider."""
        next_due = "SELECT min(due_at) FROM remote_object WHERE scope = ?"
        [(due,)] = self.connection.execute(next_due, (scope,))
        return None if due is None else float(due)

    def files(self) -> list[str]:
        there = os.listdir(self.spool) if os.path.isdir(self.spool) else ()
        return sorted(name for name in there if name != "owners")


@cache
def _empty(folder: str) -> bytes:
    place = os.path.join(folder, f"smartbatch-sim-template-{os.getpid()}.db")
    try:
        open_store(place, wall=lambda: 0.0, rng=Random(0)).close()
        made = sqlite3.connect(place)
        made.execute("PRAGMA journal_mode = DELETE")  # a database in memory has no log
        whole = made.serialize()
        made.close()
        return whole
    finally:
        Path(place).unlink(missing_ok=True)


class _Database(Database):
    def __init__(self, disk: Disk, wall: Callable[[], float]) -> None:
        self.place = "memory"
        self._disk = disk.connection
        self._wall = wall
        self._transaction = SqliteTransaction(disk.connection)
        self._numbers: dict[str, list[Row]] = {}

    def open(self) -> None:
        """It is there."""

    def rows(self, statement: str, *values: Any) -> list[Row]:
        if statement != JOB_NUMBER:
            return self._transaction.rows(statement, *values)
        # looked up once: it never changes, and every third statement would ask for it
        known = self._numbers.get(values[0]) or self._transaction.rows(statement, *values)
        self._numbers[values[0]] = known
        return known

    def write(self, work: Callable[[Transaction], _T]) -> _T:
        self._disk.execute("BEGIN IMMEDIATE")
        try:
            done = work(SqliteTransaction(self._disk))
            self._disk.commit()
            return done
        except BaseException:
            self._disk.rollback()
            raise

    def now(self) -> float:
        return self._wall()

    def reclaim(self) -> None:
        """Memory has room."""

    def give_up(self) -> None:
        """Memory never hangs."""

    def close(self) -> None:
        """The disk outlives the process."""

    def abandon(self) -> None:
        self._disk.rollback()


class SimStore(SqlStore):
    def __init__(self, disk: Disk, *, wall: Callable[[], float], rng: Random) -> None:
        locks = FileLocks(os.path.join(disk.spool, "owners"))
        files = JobFiles(f"{disk.spool}.files", shared=True)
        super().__init__(_Database(disk, wall), locks, disk.spool, files, wall=wall, rng=rng, counted=None)
