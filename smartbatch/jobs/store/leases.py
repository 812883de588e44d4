"""Ownership of jobs: owners and their locks, leases, and writes under a lease.

Each store object that runs jobs is an owner: it has a row, and holds a lock that is released when its process
dies. On one machine the lock is a ``flock`` on a file: the kernel releases it however the process dies, and
clock changes and suspends have no effect. The descriptor is closed on exec and in a forked child, since a
copy there would keep the lock after the parent's death.
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
from smartbatch.providers.batch_api import RemoteKind

Counted: TypeAlias = Callable[[str, StoredCounts], object]
"""Called with a job's id and its new counts."""

_SELECT_CLAIMABLE = (
    JOBS
    + """WHERE (j.owner IS NULL OR j.owner <> ?) AND (j.state <> {done} OR EXISTS (
    SELECT 1 FROM shard s WHERE s.job = j.no AND s.cleaned_up = 0
    AND (s.state NOT IN ({settled}, {dead})
        OR s.file_id IS NOT NULL OR s.batch_id IS NOT NULL)))
    ORDER BY CASE WHEN j.state = {done} THEN 1 ELSE 0 END, j.no"""
)
JOB_OF_LEASE = "SELECT no FROM job WHERE id = ? AND epoch = ? AND owner = ?{for_update}"
_OWNERS_WITH_WORK = f"""SELECT owner FROM job
    UNION SELECT sender FROM remote_object WHERE id = '' OR kind = '{RemoteKind.CACHE.value}'"""
_POLL_NOW = "UPDATE shard SET due_at = 0 WHERE job = ? AND state = {submitted} AND tries = 0"
RENEW_LEASE = "UPDATE job SET lease_until = ? WHERE id = ? AND epoch = ? AND owner = ?"

_P = ParamSpec("_P")
_T = TypeVar("_T")
MAX_ID_TRIES = 100  # a second attempt is needed once in 2**64 cases


class LeaseTable:
    """Leases of jobs.

    Args:
        owner: the owner that this store object represents.
        counted: called with a job's id and its new counts after each commit that stores results.
    """

    def __init__(self, database: Database, owner: Owner, counted: Counted | None) -> None:
        self._db = database
        self._owner = owner
        self._counted = counted

    def claimable(self) -> list[JobRow]:
        """Return jobs that need work and have no living owner: unfinished jobs, and finished jobs with shards
        to clean up. Jobs of this store object are not included.
        """
        now = self._db.now()
        held: dict[str | None, bool] = {}
        found: list[JobRow] = []
        for row in self._db.rows(_SELECT_CLAIMABLE, self._owner.id or ""):
            job, lease_until = job_row(row), row[-1]
            if lease_until > now and job.owner not in held:
                held[job.owner] = self._owner.sees_alive(job.owner)
            if lease_until <= now or not held[job.owner]:
                found.append(job)
        return found

    def claim(self, job_id: str, seconds: float, *, unknown: bytes | None = None) -> JobLease | None:
        """Take a job for ``seconds``; return ``None`` if it does not exist or has a living owner.

        An owner is alive if its lease has not expired by the database's clock, unless the operating system
        knows that its process died.

        Args:
            unknown: body of the failed result for items found ``IN_FLIGHT``, if the job must not repeat
                requests with an unknown outcome. Otherwise a try is counted and they become ``REALTIME``.
                An incident reports them in both cases.
        """
        me = self._owner.enter()

        def work(tx: Transaction) -> tuple[JobLease | None, list[StoredCounts]]:
            found = tx.row("SELECT no, owner, lease_until FROM job WHERE id = ?{skip_locked}", job_id)
            # 1. there is no such job, or another process is claiming it now
            if found is None:
                return None, []
            # 2. this store object or another living owner has it
            no, owner, lease_until = found
            now = self._db.now()
            if owner == me or (lease_until > now and self._owner.sees_alive(owner)):
                return None, []
            # 3. otherwise take it, with an epoch that invalidates every older lease. Running batches are
            # polled immediately, so that the state is current, except those whose last poll failed
            claim = (
                "UPDATE job SET owner = ?, epoch = epoch + 1, lease_until = ? WHERE no = ? RETURNING epoch"
            )
            [(epoch,)] = tx.rows(claim, me, now + seconds, no)
            lease = JobLease(job_id, int(epoch))
            tx.change(_POLL_NOW, no)
            end_in_flight(tx, lease, no, unknown, now)
            return lease, tx.counted

        lease, counted = self._db.write(work)
        self.report_counts(job_id, counted)
        return lease

    def renew(self, leases: Collection[JobLease], seconds: float) -> list[JobLease]:
        """Extend leases; return those that are still valid."""
        if not leases:
            return []
        me = self._owner.enter()
        until = self._db.now() + seconds
        # in a fixed order, so that two processes never wait for each other
        order = sorted(leases, key=lambda lease: lease.job_id)
        return self._db.write(
            lambda tx: [
                lease for lease in order if tx.change(RENEW_LEASE, until, lease.job_id, lease.epoch, me)
            ]
        )

    def release(self, lease: JobLease) -> None:
        """Release a job, so that another process can take it immediately. Never raises ``LeaseLost``."""
        given_back = "UPDATE job SET owner = NULL WHERE id = ? AND epoch = ? AND owner = ?"
        self._db.change(given_back, lease.job_id, lease.epoch, self._owner.id)

    def write(self, lease: JobLease, work: Callable[[Transaction, int], _T]) -> _T:
        """Run ``work``, which gets the job's number, in a transaction that locks the job of ``lease``.

        Raises:
            LeaseLost: the job has another owner now, or none.
        """

        def checked(tx: Transaction) -> tuple[_T, list[StoredCounts]]:
            found = tx.row(JOB_OF_LEASE, lease.job_id, lease.epoch, self._owner.id)
            if found is None:
                raise LeaseLost(
                    f"job {lease.job_id} was taken over or released since lease {lease.epoch}; nothing was"
                    " written"
                )
            [no] = found
            return work(tx, int(no)), tx.counted

        done, counted = self._db.write(checked)
        self.report_counts(lease.job_id, counted)
        return done

    def report_counts(self, job_id: str, counted: Iterable[StoredCounts]) -> None:
        if self._counted is not None:
            for counts in counted:
                self._counted(job_id, counts)


class _Part(Protocol):
    @property
    def leases(self) -> LeaseTable: ...


_Written = TypeVar("_Written", bound=_Part)


def leased(
    verb: Callable[Concatenate[_Written, Transaction, int, _P], _T],
) -> Callable[Concatenate[_Written, JobLease, _P], _T]:
    """Turn a method into one transaction under the lease that is its first argument.

    The method itself receives the transaction and the number of the job in place of the lease.
    """

    @functools.wraps(verb)
    def under_lease(self: _Written, lease: JobLease, /, *given: _P.args, **named: _P.kwargs) -> _T:
        return self.leases.write(lease, lambda tx, job: verb(self, tx, job, *given, **named))

    return under_lease


class OwnerLocks(Protocol):
    """The locks of owners; a process holds at most one of them."""

    def require_folder(self) -> None:
        """Create the folder of the locks, if they have one.

        Raises:
            StoreError: it cannot be created or belongs to another user.
        """
        ...

    def take(self, owner: str) -> bool:
        """Take the lock of ``owner`` for this store object; return false if another process holds it.

        Raises:
            StoreError: locks cannot be taken.
        """
        ...

    def ensure(self) -> None:
        """Check that this store object's lock is still held, and take it again if not."""
        ...

    def alive(self, owner: str) -> bool:
        """Return false only if the operating system knows that the owner is dead."""
        ...

    def leave(self) -> None: ...

    def abandon(self) -> None:
        """Drop this store object's lock silently: a forked child closes only its copy."""
        ...

    def sweep(self, known: Collection[str]) -> None:
        """Delete the locks of dead owners, except the ``known`` ones."""
        ...


class Owner:
    """The owner that a store object represents, and access to the other rows of the table ``owner``."""

    def __init__(
        self, database: Database, locks: OwnerLocks, *, wall: Callable[[], float], rng: Random
    ) -> None:
        self._db = database
        self._locks = locks
        self._wall = wall
        self._rng = rng
        self._entering = threading.Lock()
        self.id: str | None = None  # None before the first claim

    def require_folder(self) -> None:
        self._locks.require_folder()

    def enter(self) -> str:
        """Return this owner's id; on first use, take its lock and store its row."""
        with self._entering:
            if self.id is None:
                self.id = self._enter()
                self._sweep(self.id)
            self._locks.ensure()
            return self.id

    def _enter(self) -> str:
        host, process = socket.gethostname(), os.getpid()
        entry = "INSERT INTO owner (id, host, pid, since) VALUES (?, ?, ?, ?) ON CONFLICT (id) DO NOTHING"
        for _ in range(MAX_ID_TRIES):
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
            f"no free owner id was found in the store {self._db.place}: the random source repeats itself"
        )

    def _sweep(self, own: str) -> None:
        """Delete rows and locks of dead owners, and items that never became part of a job."""
        with_work = {owner for (owner,) in self._db.rows(_OWNERS_WITH_WORK) if owner}
        incomplete = self._db.rows("SELECT no, owner FROM incomplete_job")
        listed = {owner for (owner,) in self._db.rows("SELECT id FROM owner")}
        for no, owner in incomplete:  # an owner that left is not listed and may have no lock
            if owner != own and not (owner in listed and self._locks.alive(owner)):
                delete_items(self._db, no, owner)
        known = {owner for owner in listed if owner == own or owner in with_work or self._locks.alive(owner)}
        if listed > known:
            self._db.change("DELETE FROM owner WHERE id IN {texts}", sorted(listed - known))
        self._locks.sweep(known | with_work | {own})

    def sees_alive(self, owner: str | None) -> bool:
        """Whether an owner exists and its process is not known to have died."""
        return owner is not None and self._locks.alive(owner)

    def leave(self) -> None:
        """Release all jobs and this owner's lock."""
        own, self.id = self.id, None
        try:
            if own is not None:
                self._db.write(lambda tx: _drop(tx, own))
        except StoreError:
            pass  # the released lock has the same effect
        finally:
            self._locks.leave()

    def abandon(self) -> None:
        """In a forked child, forget this owner's id without touching the parent's lock."""
        self._entering = threading.Lock()  # a thread of the parent may have held the lock
        self.id = None
        self._locks.abandon()


def _drop(tx: Transaction, owner: str) -> None:
    tx.change("UPDATE job SET owner = NULL WHERE owner = ?", owner)
    tx.change("DELETE FROM owner WHERE id = ?", owner)


class FileLocks(OwnerLocks):
    """Locks of owners on one machine: files in ``folder``, whose parent folder is private to the store."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._own: str
        self._descriptor: int | None = None

    def _not_written(self, error: OSError) -> StoreError:
        return StoreError(
            f"the folder {self._folder} cannot be written to ({error.strerror}). It holds the locks of the"
            " store; make it writable, or use another store"
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
            # another process may have deleted the file in the meantime
            ours = os.fstat(lock).st_ino == os.stat(path).st_ino
        except OSError:
            ours = False
        if not ours:
            os.close(lock)
            return False
        self._descriptor, self._own = lock, path
        return True

    def ensure(self) -> None:
        """The kernel keeps the lock until the process ends, so there is nothing to check."""

    def alive(self, owner: str) -> bool:
        """A missing file proves nothing, so the owner counts as alive until its lease expires."""
        try:
            lock = os.open(self._path(owner), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return True
        try:
            # shared: two processes that check at the same time must not mistake each other for the owner
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
            os.close(lock)  # not LOCK_UN, which would release the parent's lock as well

    def sweep(self, known: Collection[str]) -> None:
        paths = {self._path(owner) for owner in known}
        with contextlib.suppress(OSError):
            for name in os.listdir(self._folder):
                path = os.path.join(self._folder, name)
                if name.endswith(".lock") and path not in paths:
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
