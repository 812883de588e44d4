"""Who owns which job: owners and their locks, leases of jobs, and writes under them.

Each store object that carries jobs on is an owner: it has a row, and holds a lock that is free when its
process dies. On one machine the lock is a ``flock`` on a file: the kernel frees it on any death, and neither
clocks nor suspends matter. The descriptor is closed on exec, and in a forked child: a copy there would keep
the lock of a dead parent.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import threading
from collections.abc import Callable, Collection, Iterable
from random import Random
from typing import Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar

from smartbatch._files import lock_file, own_folder
from smartbatch.errors import StoreError
from smartbatch.jobs.records import JobLease, JobRow, LeaseLost, StoredCounts
from smartbatch.jobs.store.database import Database, Transaction
from smartbatch.jobs.store.outcomes import delete_items, end_in_flight
from smartbatch.jobs.store.schema import JOBS, job_row

Counted: TypeAlias = Callable[[str, StoredCounts], object]
"""Told what was counted of a job, by the job's id."""

_CLAIMABLE = (
    JOBS
    + """WHERE (j.owner IS NULL OR j.owner <> ?) AND (j.state <> {done} OR EXISTS (
    SELECT 1 FROM shard s WHERE s.job = j.no AND s.cleaned_up = 0
    AND (s.state NOT IN ({settled}, {dead})
        OR s.file_id IS NOT NULL OR s.batch_id IS NOT NULL)))
    ORDER BY CASE WHEN j.state = {done} THEN 1 ELSE 0 END, j.no"""
)
JOB_OF_LEASE = "SELECT no FROM job WHERE id = ? AND epoch = ? AND owner = ?{for_update}"
_POLL_NOW = "UPDATE shard SET due_at = 0 WHERE job = ? AND state = {submitted} AND tries = 0"
RENEW = "UPDATE job SET lease_until = ? WHERE id = ? AND epoch = ? AND owner = ?"

_P = ParamSpec("_P")
_T = TypeVar("_T")
ATTEMPTS = 100
"""Ids that are drawn before giving up; the second is needed once in 2**64."""


class LeaseTable:
    """Who owns which job, for how long.

    Args:
        owner: the owner that this store object is.
        counted: called with a job's id and what was counted of it, after each commit that stores results.
    """

    def __init__(self, database: Database, owner: Owner, counted: Counted | None) -> None:
        self._db = database
        self._owner = owner
        self._counted = counted

    def claimable(self) -> list[JobRow]:
        """Return jobs with something left to do that nobody alive owns: unfinished ones, and finished ones
        with shards to clean up. Those this store object owns already are left out."""
        now = self._db.now()
        held: dict[str | None, bool] = {}
        found: list[JobRow] = []
        for row in self._db.rows(_CLAIMABLE, self._owner.id or ""):
            job, lease_until = job_row(row), row[-1]
            if lease_until > now and job.owner not in held:
                held[job.owner] = self._owner.sees_alive(job.owner)
            if lease_until <= now or not held[job.owner]:
                found.append(job)
        return found

    def claim(self, job_id: str, seconds: float, *, unknown: bytes | None = None) -> JobLease | None:
        """Take a job for ``seconds``. The cases, in order:

        1. There is no such job, or another process is claiming it now: ``None``.
        2. This store object owns it already: ``None``.
        3. Somebody alive owns it: ``None``. Alive is whose lease runs by the database's clock, unless the
           system knows that the process has died.
        4. Else it is taken, with an epoch that makes every older lease invalid. Items found ``IN_FLIGHT`` are
           set back to ``REALTIME`` with one try more, and an incident ``maybe_billed`` is written for them.
           Batches that run are polled at once: whoever takes a job up wants to know how it stands. One whose
           poll failed keeps its pause.

        Args:
            unknown: the body of the result with which items found ``IN_FLIGHT`` end as failed instead, for a
                job that sends nothing again whose outcome is unknown.
        """
        me = self._owner.enter()

        def work(tx: Transaction) -> tuple[JobLease | None, list[StoredCounts]]:
            found = tx.row("SELECT no, owner, lease_until FROM job WHERE id = ?{skip_locked}", job_id)
            if found is None:
                return None, []
            no, owner, lease_until = found
            now = self._db.now()
            if owner == me or (lease_until > now and self._owner.sees_alive(owner)):
                return None, []
            claim = (
                "UPDATE job SET owner = ?, epoch = epoch + 1, lease_until = ? WHERE no = ? RETURNING epoch"
            )
            [(epoch,)] = tx.rows(claim, me, now + seconds, no)
            lease = JobLease(job_id, int(epoch))
            tx.change(_POLL_NOW, no)
            end_in_flight(tx, lease, no, unknown, now)
            return lease, tx.counted

        lease, counted = self._db.write(work)
        self.tell_counts(job_id, counted)
        return lease

    def renew(self, leases: Collection[JobLease], seconds: float) -> list[JobLease]:
        """Prolong leases; return those that are still held."""
        if not leases:
            return []
        me = self._owner.enter()
        until = self._db.now() + seconds
        # in one order, so that two who renew never wait for each other
        order = sorted(leases, key=lambda lease: lease.job_id)
        return self._db.write(
            lambda tx: [lease for lease in order if tx.change(RENEW, until, lease.job_id, lease.epoch, me)]
        )

    def release(self, lease: JobLease) -> None:
        """Give a job back, so that another process may take it at once. Never raises ``LeaseLost``."""
        given_back = "UPDATE job SET owner = NULL WHERE id = ? AND epoch = ? AND owner = ?"
        self._db.change(given_back, lease.job_id, lease.epoch, self._owner.id)

    def write(self, lease: JobLease, work: Callable[[Transaction, int], _T]) -> _T:
        """Do ``work`` in a transaction that locks the job of ``lease``; it is given the job's number.

        Raises:
            LeaseLost: somebody else owns it now, or nobody.
        """

        def checked(tx: Transaction) -> tuple[_T, list[StoredCounts]]:
            found = tx.row(JOB_OF_LEASE, lease.job_id, lease.epoch, self._owner.id)
            if found is None:
                raise LeaseLost(
                    f"job {lease.job_id} was taken over or given back since lease {lease.epoch};"
                    " nothing was written"
                )
            [no] = found
            return work(tx, int(no)), tx.counted

        done, counted = self._db.write(checked)
        self.tell_counts(lease.job_id, counted)
        return done

    def tell_counts(self, job_id: str, counted: Iterable[StoredCounts]) -> None:
        """Tell what transactions counted of a job, after their commit."""
        if self._counted is not None:
            for counts in counted:
                self._counted(job_id, counts)


class _Part(Protocol):
    """A part of the store that writes under leases."""

    @property
    def leases(self) -> LeaseTable: ...


_Written = TypeVar("_Written", bound=_Part)


def leased(
    verb: Callable[Concatenate[_Written, Transaction, int, _P], _T],
) -> Callable[Concatenate[_Written, JobLease, _P], _T]:
    """Make one transaction of a method, under the lease that is given to it first.

    The method itself takes that transaction and the number of the lease's job instead.
    """

    @functools.wraps(verb)
    def under_lease(self: _Written, lease: JobLease, /, *given: _P.args, **named: _P.kwargs) -> _T:
        return self.leases.write(lease, lambda tx, job: verb(self, tx, job, *given, **named))

    return under_lease


class OwnerLocks(Protocol):
    """The locks of owners. At most one of them is this process's own."""

    def require_folder(self) -> None:
        """Make the folder of the locks, where they have one.

        Raises:
            StoreError: it cannot be made, or is another user's.
        """
        ...

    def take(self, owner: str) -> bool:
        """Lock ``owner`` as one's own; False when somebody has it.

        Raises:
            StoreError: the lock cannot be had.
        """
        ...

    def keep(self) -> None:
        """Make sure that the own lock is still held."""
        ...

    def alive(self, owner: str) -> bool:
        """Return False only when the system knows that the owner is dead."""
        ...

    def leave(self) -> None:
        """Release the own lock, and delete what stands for it."""
        ...

    def abandon(self) -> None:
        """Drop the own lock without telling anybody: a forked child closes its copy of it only."""
        ...

    def sweep(self, known: Collection[str]) -> None:
        """Delete what dead owners left, but for the ``known``."""
        ...


class Owner:
    """The owner that one store object is, and what the table ``owner`` says of others.

    Args:
        wall: Unix seconds.
        rng: random numbers for ids.

    Attributes:
        id: ``None`` before the first claim.
    """

    def __init__(
        self, database: Database, locks: OwnerLocks, *, wall: Callable[[], float], rng: Random
    ) -> None:
        self._db = database
        self._locks = locks
        self._wall = wall
        self._rng = rng
        self._entering = threading.Lock()
        self.id: str | None = None

    def require_folder(self) -> None:
        """As :meth:`OwnerLocks.require_folder`."""
        self._locks.require_folder()

    def enter(self) -> str:
        """Return the own id as an owner; take its lock and store its row first, if need be."""
        with self._entering:
            if self.id is None:
                self.id = self._enter()
                self._sweep(self.id)
            self._locks.keep()
            return self.id

    def _enter(self) -> str:
        host, process = socket.gethostname(), os.getpid()
        entry = "INSERT INTO owner (id, host, pid, since) VALUES (?, ?, ?, ?) ON CONFLICT (id) DO NOTHING"
        for _ in range(ATTEMPTS):
            owner = f"{host[:40]}-{process}-{self._rng.getrandbits(64):016x}"
            if not self._locks.take(owner):
                continue
            try:
                new = self._db.change(entry, owner, host, process, self._wall())
            except BaseException:
                self._locks.leave()
                raise
            if new:
                return owner
            self._locks.leave()
        raise StoreError(
            f"no owner's id is free in the store {self._db.place}: the random source repeats itself"
        )

    def _sweep(self, own: str) -> None:
        """Delete what dead owners left: rows, locks, and items that never came to a job."""
        with_jobs = {owner for (owner,) in self._db.rows("SELECT DISTINCT owner FROM job") if owner}
        incomplete = self._db.rows("SELECT no, owner FROM incomplete_job")
        listed = {owner for (owner,) in self._db.rows("SELECT id FROM owner")}
        for no, owner in incomplete:  # one that left is not listed, and may have no lock left to look at
            if owner != own and not (owner in listed and self._locks.alive(owner)):
                delete_items(self._db, no, owner)
        kept = {owner for owner in listed if owner == own or owner in with_jobs or self._locks.alive(owner)}
        if listed > kept:
            self._db.change("DELETE FROM owner WHERE id IN {texts}", sorted(listed - kept))
        self._locks.sweep(kept | with_jobs | {own})

    def sees_alive(self, owner: str | None) -> bool:
        """Whether there is an owner whose process is not known to have died."""
        return owner is not None and self._locks.alive(owner)

    def leave(self) -> None:
        """Give all jobs and the own lock back."""
        own, self.id = self.id, None
        try:
            if own is not None:
                self._db.write(lambda tx: _drop(tx, own))
        except StoreError:
            pass  # that the lock is free says the same
        finally:
            self._locks.leave()

    def abandon(self) -> None:
        """In a forked child: forget the own id without touching the parent's lock."""
        self._entering = threading.Lock()  # a thread of the parent may have held it
        self.id = None
        self._locks.abandon()


def _drop(tx: Transaction, owner: str) -> None:
    tx.change("UPDATE job SET owner = NULL WHERE owner = ?", owner)
    tx.change("DELETE FROM owner WHERE id = ?", owner)


class FileLocks(OwnerLocks):
    """Locks of owners on one machine, each on a file in ``folder``, inside a folder of the store's own."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._own: str
        self._descriptor: int | None = None

    def _not_written(self, error: OSError) -> StoreError:
        return StoreError(
            f"the folder {self._folder} cannot be written ({error.strerror}): the store keeps its locks"
            " there; make it writable, or name another store"
        )

    def require_folder(self) -> None:
        try:
            own_folder(os.path.dirname(self._folder))
            own_folder(self._folder)
        except OSError as error:
            raise self._not_written(error) from None

    def take(self, owner: str) -> bool:
        path = self._path(owner)
        self.require_folder()
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._not_written(error) from None
        try:
            lock_file(lock)
            ours = os.fstat(lock).st_ino == os.stat(path).st_ino  # else another process deleted it meanwhile
        except OSError:
            ours = False
        if not ours:
            os.close(lock)
            return False
        self._descriptor, self._own = lock, path
        return True

    def keep(self) -> None:
        """The kernel keeps it."""

    def alive(self, owner: str) -> bool:
        """Look whether the lock is free. A file that is missing proves nothing: then the lease decides."""
        try:
            lock = os.open(self._path(owner), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return True
        try:
            # shared: two who look at the same time must not take each other for the owner
            lock_file(lock, shared=True)
            return False
        except OSError:
            return True
        finally:
            os.close(lock)

    def leave(self) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._own)
        self.abandon()

    def abandon(self) -> None:
        lock, self._descriptor = self._descriptor, None
        if lock is not None:
            os.close(lock)  # never LOCK_UN: that would free the parent's lock as well

    def sweep(self, known: Collection[str]) -> None:
        kept = {self._path(owner) for owner in known}
        with contextlib.suppress(OSError):
            for name in os.listdir(self._folder):
                path = os.path.join(self._folder, name)
                if name.endswith(".lock") and path not in kept:
                    self._delete_dead(path)

    def _delete_dead(self, path: str) -> None:
        with contextlib.suppress(OSError):
            lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                lock_file(lock)
                os.unlink(path)
            finally:
                os.close(lock)

    def _path(self, owner: str) -> str:
        return os.path.join(self._folder, f"{owner}.lock")
