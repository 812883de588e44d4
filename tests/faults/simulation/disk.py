"""The store of a simulation: the real tables and transactions, on a database that lies in memory.

It outlives the processes of a run, as a disk does: what one committed the next one finds, what it had not
committed is rolled back. What only a real file needs (two connections, its locks, looking whether it was
replaced or damaged) is left to tests of its own and to the kill loop; it would take most of the time here.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random

from smartbatch.jobs.store import SqlStore, open_store
from smartbatch.jobs.store.database import Row
from smartbatch.jobs.store.migrations import MIGRATIONS
from smartbatch.jobs.store.owners import FileOwners
from smartbatch.jobs.store.sqlite import SqliteDatabase

__all__ = ["Disk", "SimStore"]


class Disk:
    """What outlives a process: the database, and a folder for files on their way and locks.

    Attributes:
        connection: the only one.
        spool: the folder.
    """

    def __init__(self, folder: Path) -> None:
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        self.connection.deserialize(_empty(str(folder.parent)))
        self.spool = str(folder / "spool")

    def close(self) -> None:
        self.connection.close()


@cache
def _empty(beside: str) -> bytes:
    """Return an empty store as the real one makes it."""
    place = os.path.join(beside, f"smartbatch-sim-template-{os.getpid()}.db")
    try:
        open_store(place, wall=lambda: 0.0, rng=Random(0)).close()
        made = sqlite3.connect(place)
        made.execute("PRAGMA journal_mode = DELETE")  # a database in memory has no log
        whole = made.serialize()
        made.close()
        return whole
    finally:
        Path(place).unlink(missing_ok=True)


class _Database(SqliteDatabase):
    def __init__(self, disk: Disk, wall: Callable[[], float]) -> None:
        super().__init__("memory", wall=wall, busy_timeout=0.0, steps=MIGRATIONS)
        self._disk = disk.connection

    def open(self) -> None:
        """It is there."""

    def rows(self, statement: str, *values: object) -> list[Row]:
        return self._disk.execute(self.spell(statement), values).fetchall()

    def _begin(self) -> sqlite3.Connection:
        self._disk.execute("BEGIN IMMEDIATE")
        return self._disk

    def _check_file(self) -> None:
        """Nobody replaces it."""


class SimStore(SqlStore):
    """A process's store."""

    def __init__(self, disk: Disk, *, wall: Callable[[], float], rng: Random) -> None:
        owners = FileOwners(os.path.join(disk.spool, "owners"), rng)
        super().__init__(_Database(disk, wall), owners, disk.spool, wall)
        self._disk = disk.connection
        # looked up once: it never changes, and every third statement would ask for it
        self._jobs.number = cache(self._jobs.number)  # type: ignore[method-assign]

    def abandon(self) -> None:
        self._disk.rollback()
        super().abandon()
