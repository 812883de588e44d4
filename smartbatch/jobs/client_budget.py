"""The part of a client's budget that its jobs hold.

A job keeps to a budget of its own, in the store, whichever process carries it on. What it can still spend is
held back in the client's budget, so that jobs and real-time requests stay within that budget together.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from smartbatch.core.limits.budget import Budget
from smartbatch.core.limits.budget_reservations import JobReservations
from smartbatch.errors import SmartbatchError
from smartbatch.events import Event, JobFinished, JobProgress, ShardChanged
from smartbatch.jobs.job_budget import bill
from smartbatch.jobs.records import JobRow, JobState
from smartbatch.jobs.store import SqlStore

__all__ = ["ClientBudget"]


@frozen
class ClientBudget:
    """Holds money back for jobs; an observer of their events. Safe from any thread.

    Attributes:
        reservations: what is held back in the client's budget.
    """

    reservations: JobReservations
    _store: Callable[[], SqlStore]

    def __call__(self, event: Event) -> None:
        """Count what jobs have cost."""
        if isinstance(event, JobProgress):
            self.reservations.charge(event.job_id, event.cost, ended=False)
        elif isinstance(event, (JobFinished, ShardChanged)) and self.reservations.has(event.job_id):
            self.refresh(event.job_id)

    def refresh(self, job_id: str | None = None) -> None:
        """Count what a job, or each, has cost by now; it may have ended in another process.

        When it has ended, what may have been billed all the same counts, too; that is known when the last of
        its batches is settled.
        """
        for each in self.reservations.jobs if job_id is None else [job_id]:
            try:
                owed = bill(self._store(), each)
            except SmartbatchError:  # it stays held back
                continue
            self.reservations.charge(each, owed.cost, ended=owed.ended, still=owed.open)

    def adopt(self, row: JobRow) -> None:
        """Hold back what a job of an earlier process can still spend."""
        if self.reservations.budget.left is None or row.policy.attended:
            return
        if row.state is JobState.DONE or self.reservations.has(row.id):
            return
        budget = row.policy.budget
        unspent = None if budget is None else max(0.0, budget - row.cost)
        with self.reservations.reserved(unspent) as reservation:
            self.reservations.assign(row.id, reservation, row.cost)

    def next_to(self, row: JobRow) -> Budget | None:
        """Return the client's budget for a job with one of its own that is not held back in it."""
        mine = row.policy.budget_account == self.reservations.account or self.reservations.has(row.id)
        return None if mine else self.reservations.budget
