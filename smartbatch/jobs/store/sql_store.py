"""The ground all chapters of the book of jobs stand on: a database, its owners, the guard of every write."""

from __future__ import annotations

import os
import socket
import threading
import weakref
from collections.abc import Callable

from smartbatch.errors import JobNotFound, StoreError
from smartbatch.jobs.records import JobLease, LeaseLost
from smartbatch.jobs.store import statements as sql
from smartbatch.jobs.store.base import Store
from smartbatch.jobs.store.checks import private_folder
from smartbatch.jobs.store.database import Database, Transaction
from smartbatch.jobs.store.owners import Owners
from smartbatch.jobs.store.rows import first_of, unpacked

__all__ = ["Book"]

_PAGE = 10_000
"""Rows deleted in one transaction."""
_DRAWS = 100
"""Ids an owner draws before it gives up; the second is needed once in 2**64."""


class Book(Store):
    """A store on an SQL database.

    Args:
        database: where it is.
        owners: the locks of those who own jobs.
        spool: the folder for files on their way.
        wall: Unix seconds.
    """

    def __init__(self, database: Database, owners: Owners, spool: str, wall: Callable[[], float]) -> None:
        self._db = database
        self._owners = owners
        self._spool = spool
        self._wall = wall
        self._entering = threading.Lock()
        self.place = database.place
        _stores.add(self)
        try:
            database.open()
        except BaseException:
            database.close()
            raise

    @property
    def spool(self) -> str:
        try:
            private_folder(self._spool)
        except OSError as error:
            raise StoreError(
                f"the folder {self._spool} cannot be made ({error.strerror}): files on their way to and from"
                " the provider lie there; make room for it, or name another store"
            ) from None
        return self._spool

    def close(self) -> None:
        own = self._owners.own
        try:
            if own is not None:
                with self._db.writing() as tx:
                    tx.change(sql.RELEASE_ALL, own)
                    tx.change(sql.DROP_OWNER, own)
        except StoreError:
            pass  # the lock that falls free says the same
        finally:
            self._owners.leave()
            self._db.close()

    def abandon(self) -> None:
        self._entering = threading.Lock()  # a thread of the parent may have held it
        self._owners.abandon()
        self._db.abandon()

    # -- for the chapters ------------------------------------------------------------------------------------

    def _me(self) -> str:
        """Return the own id as an owner; lock and write it down first, if need be."""
        with self._entering:
            if self._owners.own is None:
                self._enter()
            self._owners.keep()
            return str(self._owners.own)

    def _enter(self) -> None:
        for _ in range(_DRAWS):
            owner = self._owners.new_id()
            if not self._owners.become(owner):
                continue
            try:
                with self._db.writing() as tx:
                    new = tx.change(sql.NEW_OWNER, owner, socket.gethostname(), os.getpid(), self._wall())
            except BaseException:
                self._owners.leave()
                raise
            if new:
                return self._sweep(owner)
            self._owners.leave()
        raise StoreError(
            f"no owner's id is free in the store {self.place}: its dice fall the same every time"
        )

    def _sweep(self, own: str) -> None:
        """Delete what the dead left behind: their rows and locks, and items that never came to a job."""
        with_jobs = {row[0] for row in self._db.rows(sql.OWNERS_WITH_JOBS)}
        for no, owner in self._db.rows(sql.ALL_INCOMPLETE):
            if owner != own and not (owner and self._owners.alive(owner)):
                self._drop_items(no)
        listed = {row[0] for row in self._db.rows(sql.OWNERS)}
        kept = {owner for owner in listed if owner == own or owner in with_jobs or self._owners.alive(owner)}
        if listed > kept:
            with self._db.writing() as tx:
                for owner in sorted(listed - kept):
                    tx.change(sql.DROP_OWNER, owner)
        self._owners.sweep(kept | with_jobs)

    def _drop_items(self, job: int) -> None:
        """Delete the items of a number no job has, in transactions that let others in between."""
        end = first_of(job + 1)
        for table in sql.ITEM_TABLES:
            drop = sql.DROP_RANGE.replace("{table}", table)
            first = self._first(table, first_of(job), end)
            while first is not None:
                last = min(first + _PAGE, end)
                with self._db.writing() as tx:
                    tx.change(drop, first, last)
                first = self._first(table, last, end)
        with self._db.writing() as tx:
            tx.change(sql.DROP_INCOMPLETE, job)

    def _first(self, table: str, start: int, end: int) -> int | None:
        """Return the first number in a table from ``start`` on and before ``end``."""
        found = self._db.row(sql.FIRST_OF_RANGE.replace("{table}", table), start, end)
        return None if found is None else found[0]

    def _number(self, job_id: str) -> int:
        found = self._db.row(sql.JOB_NUMBER, job_id)
        if found is None:
            raise JobNotFound(f"the store {self.place} has no job {job_id!r}; see: smartbatch jobs list")
        return int(found[0])

    def _hold(self, tx: Transaction, lease: JobLease) -> int:
        """Lock the job of ``lease`` for this transaction; return its number.

        Raises:
            LeaseLost: somebody else owns it now, or nobody.
        """
        found = tx.row(sql.GRASP, lease.job_id, lease.epoch, self._owners.own)
        if found is None:
            raise LeaseLost(
                f"job {lease.job_id} was taken over or given back since lease {lease.epoch};"
                " nothing was written"
            )
        return int(found[0])

    def _positions(self, shard_id: str) -> tuple[int, memoryview]:
        """Return the number of a shard's job, and the positions in it of the shard's items."""
        found = self._db.row(sql.SHARD_POSITIONS, shard_id)
        if found is None:
            return 0, memoryview(unpacked(b""))
        return found[0], memoryview(unpacked(found[1]))


_stores: weakref.WeakSet[Book] = weakref.WeakSet()


def _abandon_all() -> None:
    """Run in a forked child before anything else, so by one thread; takes no lock."""
    for store in list(_stores):
        store.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)
