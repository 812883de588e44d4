"""The chapter of ownership: one process at a time acts for a job."""

from __future__ import annotations

from collections.abc import Collection

from smartbatch.jobs.records import ItemState, JobLease, JobRow
from smartbatch.jobs.store import statements as sql
from smartbatch.jobs.store.database import Transaction
from smartbatch.jobs.store.incident_table import incident_digest
from smartbatch.jobs.store.result_table import Results
from smartbatch.jobs.store.rows import encoded, first_of, job_row, position

__all__ = ["Ownership"]

_NAMED = 10
"""Rows an incident names before it only counts them."""


class Ownership(Results):
    """Leases, their epochs, and the locks that tell who is alive."""

    def claimable(self, *, limit: int = 100) -> list[JobRow]:
        now = self._db.now()
        alive: dict[str, bool] = {}
        found = []
        for row in self._db.rows(sql.CLAIMABLE_OF, self._owners.own or ""):
            job, lease_until = job_row(row), row[-1]
            if job.owner is not None and lease_until > now:
                if job.owner not in alive:
                    alive[job.owner] = self._owners.alive(job.owner)
                if alive[job.owner]:
                    continue
            found.append(job)
            if len(found) == limit:
                break
        return found

    def claim(self, job_id: str, seconds: float, *, unknown: bytes | None = None) -> JobLease | None:
        me = self._me()
        with self._db.writing() as tx:
            found = tx.row(sql.CLAIM_LOOK, job_id)
            if found is None:
                return None
            no, _, owner, lease_until = found
            now = self._db.now()
            if owner == me or (owner is not None and lease_until > now and self._owners.alive(owner)):
                return None
            taken = tx.row(sql.CLAIM, me, now + seconds, no)
            assert taken is not None
            lease = JobLease(job_id, int(taken[0]))
            self._end_asking(tx, lease, no, unknown, now)
        return lease

    def _end_asking(
        self, tx: Transaction, lease: JobLease, job: int, unknown: bytes | None, now: float
    ) -> None:
        """End the state of items whose asking nobody saw the end of, and say what that may have cost."""
        # those that end as failed are direct for a moment of this transaction
        rows = tx.rows(sql.FREE_IN_FLIGHT, ItemState.REALTIME.value, first_of(job), first_of(job + 1))
        asked = sorted(row[0] for row in rows)
        if not asked:
            return
        if unknown is not None:
            self._end_alike(tx, job, asked, "failed", unknown, now, cost=None)
        named = ", ".join(str(position(no)) for no in asked[:_NAMED]) + (", …" if len(asked) > _NAMED else "")
        end = "are asked again" if unknown is None else "end as failed"
        detail = (
            f"{len(asked)} requests were being asked alone when their process ended, and {end}: rows {named}"
            f" (owner {lease.epoch})"
        )
        digest = incident_digest("maybe_billed", lease.job_id, None, detail)
        tx.change(sql.NEW_INCIDENT, digest, "maybe_billed", lease.job_id, None, encoded(detail), None, now)

    def renew(self, leases: Collection[JobLease], seconds: float) -> list[JobLease]:
        if not leases:
            return []
        me = self._me()
        until = self._db.now() + seconds
        with self._db.writing() as tx:
            # in one order, so that two who renew never wait for each other
            order = sorted(leases, key=lambda lease: lease.job_id)
            return [lease for lease in order if tx.change(sql.RENEW, until, lease.job_id, lease.epoch, me)]

    def release(self, lease: JobLease) -> None:
        with self._db.writing() as tx:
            tx.change(sql.RELEASE, lease.job_id, lease.epoch, self._owners.own)
