"""Leases of jobs, and writes under them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable
from typing import Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar

from smartbatch.jobs.records import JobLease, JobRow, LeaseLost, StoredCounts
from smartbatch.jobs.store.database import Database, Transaction
from smartbatch.jobs.store.outcomes import end_in_flight
from smartbatch.jobs.store.owners import Owner
from smartbatch.jobs.store.rows import JOBS, job_row

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
