"""The part of a client's budget that its jobs hold.

A job keeps to a budget of its own, in the store, whichever process carries it on. What it can still spend is
held back in the client's budget, so that jobs and real-time requests stay within that budget together.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from smartbatch.core.limits.budget import Budget
from smartbatch.core.limits.budget_reservations import JobReservations, NewReservation
from smartbatch.errors import SmartbatchError
from smartbatch.events import Event, JobFinished, JobProgress, ShardChanged
from smartbatch.jobs.job_budget import bill
from smartbatch.jobs.records import JobRow, JobState
from smartbatch.jobs.store import SqlStore

__all__ = ["ClientBudget"]


class ClientBudget:
    """Holds money back for jobs; an observer of their events. Safe from any thread.

    Args:
        reservations: what is held back in the client's budget.
        store: returns the store of the jobs.
    """

    def __init__(self, reservations: JobReservations, store: Callable[[], SqlStore]) -> None:
        self._reservations = reservations
        self._store = store

    @property
    def is_limited(self) -> bool:
        """Whether the client has a budget at all."""
        return self._reservations.budget.left is not None

    @property
    def account(self) -> str:
        """A name no other budget has; jobs keep it, so that it is known who holds money back for them."""
        return self._reservations.account

    def __call__(self, event: Event) -> None:
        """Count what jobs have cost."""
        if isinstance(event, JobProgress):
            self._reservations.charge(event.job_id, event.cost, ended=False)
        elif isinstance(event, (JobFinished, ShardChanged)) and self._reservations.has(event.job_id):
            self.refresh(event.job_id)

    def refresh(self, job_id: str | None = None) -> None:
        """Count what a job, or each, has cost by now; it may have ended in another process.

        When it has ended, what may have been billed all the same counts, too; that is known when the last of
        its batches is settled.
        """
        for each in self._reservations.jobs if job_id is None else [job_id]:
            try:
                owed = bill(self._store(), each)
            except SmartbatchError:  # it stays held back
                continue
            self._reservations.charge(each, owed.cost, ended=owed.ended, still=owed.open)

    def reserved(self, usd: float | None) -> AbstractContextManager[NewReservation]:
        """Hold back money for a job that is being stored; it goes back unless it is assigned to the job.

        Args:
            usd: as much is wanted; ``None`` for all there is. It gets no more than there is.
        """
        return self._reservations.reserved(usd)

    def assign(self, job_id: str, reservation: NewReservation, cost: float = 0.0) -> None:
        """Give a job what was held back for it.

        Args:
            cost: what it has cost so far, USD: that is not spent of this budget.
        """
        self._reservations.assign(job_id, reservation, cost)

    def adopt(self, row: JobRow | None) -> None:
        """Hold back what a job of an earlier process can still spend."""
        if row is None or not self.is_limited or row.policy.attended:
            return
        if row.state is JobState.DONE or self._reservations.has(row.id):
            return
        with self.reserved(_unspent(row)) as reservation:
            self.assign(row.id, reservation, row.cost)

    def next_to(self, row: JobRow) -> Budget | None:
        """Return the client's budget for a job with one of its own that is not held back in it."""
        mine = row.policy.budget_account == self.account or self._reservations.has(row.id)
        return None if mine else self._reservations.budget


def _unspent(row: JobRow) -> float | None:
    """Return what a job can still spend, USD; ``None`` where nothing limits it."""
    budget = row.policy.budget
    return None if budget is None else max(0.0, budget - row.cost)
