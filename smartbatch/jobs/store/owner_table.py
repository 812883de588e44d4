"""Owners as rows, each with the lock that tells whether it is alive."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable

from smartbatch.errors import StoreError
from smartbatch.jobs.records import JobRow
from smartbatch.jobs.store import statements as sql
from smartbatch.jobs.store.database import Database
from smartbatch.jobs.store.job_table import JobTable
from smartbatch.jobs.store.owners import Owners
from smartbatch.jobs.store.rows import job_row

__all__ = ["OwnerTable"]

ATTEMPTS = 100
"""Ids that are drawn before giving up; the second is needed once in 2**64."""


class OwnerTable:
    """The table ``owner``, and the owner that this store object is.

    Args:
        owners: the locks.
        jobs: deletes the items that dead owners left incomplete.
        wall: Unix seconds.
    """

    def __init__(self, database: Database, owners: Owners, jobs: JobTable, wall: Callable[[], float]) -> None:
        self._db = database
        self._owners = owners
        self._jobs = jobs
        self._wall = wall
        self._entering = threading.Lock()

    @property
    def own(self) -> str | None:
        """The own id as an owner; ``None`` before the first claim."""
        return self._owners.own

    def enter(self) -> str:
        """Return the own id as an owner; take its lock and store its row first, if need be."""
        with self._entering:
            if self._owners.own is None:
                self._enter()
            self._owners.keep()
            return str(self._owners.own)

    def _enter(self) -> None:
        for _ in range(ATTEMPTS):
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
            f"no owner's id is free in the store {self._db.place}: the random source repeats itself"
        )

    def _sweep(self, own: str) -> None:
        """Delete what dead owners left: rows, locks, and items that never came to a job."""
        with_jobs = {row[0] for row in self._db.rows(sql.OWNERS_WITH_JOBS)}
        for no, owner in self._db.rows(sql.ALL_INCOMPLETE):
            if owner != own and not (owner and self._owners.alive(owner)):
                self._jobs.delete_items(no)
        listed = {row[0] for row in self._db.rows(sql.OWNERS)}
        kept = {owner for owner in listed if owner == own or owner in with_jobs or self._owners.alive(owner)}
        if listed > kept:
            with self._db.writing() as tx:
                for owner in sorted(listed - kept):
                    tx.change(sql.DROP_OWNER, owner)
        self._owners.sweep(kept | with_jobs)

    def holds(self, owner: str | None, lease_until: float, now: float) -> bool:
        """Whether somebody alive owns a job: its lease runs, and its process is not known to have died."""
        return owner is not None and lease_until > now and self._owners.alive(owner)

    def claimable(self, limit: int) -> list[JobRow]:
        """Return jobs with something left to do that nobody alive owns, and that are not the own ones."""
        now = self._db.now()
        held: dict[str | None, bool] = {}
        found = []
        for row in self._db.rows(sql.CLAIMABLE_OF, self.own or ""):
            job, lease_until = job_row(row), row[-1]
            if lease_until > now and job.owner not in held:
                held[job.owner] = self.holds(job.owner, lease_until, now)
            if lease_until > now and held[job.owner]:
                continue
            found.append(job)
            if len(found) == limit:
                break
        return found

    def leave(self) -> None:
        """Give all jobs and the own lock back."""
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

    def abandon(self) -> None:
        """In a forked child: forget the own id without touching the parent's lock."""
        self._entering = threading.Lock()  # a thread of the parent may have held it
        self._owners.abandon()
