"""What a client's budget holds back for its jobs, from their submission to their end.

A job keeps to a budget of its own, in the store, whichever process runs it. What it can still spend is held
back here, so that it and everything else the client does stay within the client's budget together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from attrs import define, field, frozen

from smartbatch.core.limits.budget import Budget, SpendReservation

__all__ = ["JobReservations", "NewReservation"]


@define
class _JobReservation:
    """What is held back for a job, and what the job had cost when that was last updated, USD."""

    held: SpendReservation
    cost: float


@define
class NewReservation:
    """Money held back for a job that is being submitted, USD; ``job_id`` once it was assigned to the job."""

    usd: float
    held: SpendReservation
    job_id: str | None = None


@frozen(eq=False)
class JobReservations:
    """The reservations of jobs in a budget.

    Args:
        budget: the client's.
        guard: makes a lock to hold; nothing else reserves or settles meanwhile. No method may be called with
            it held.
        account: a name no other budget has. Jobs store it, so that each process knows which client holds
            money back for them.
    """

    budget: Budget
    _guard: Callable[[], AbstractContextManager[object]]
    account: str
    _jobs: dict[str, _JobReservation] = field(factory=dict, init=False)

    @property
    def jobs(self) -> list[str]:
        """Ids of jobs that money is held back for."""
        return list(self._jobs)

    def has(self, job_id: str) -> bool:
        """Whether money is held back for a job."""
        return job_id in self._jobs

    @contextmanager
    def reserved(self, wanted: float | None) -> Iterator[NewReservation]:
        """Hold back money while a job is submitted; it is released unless it was assigned to the job.

        Args:
            wanted: USD; ``None`` for all that is left. At most what is left is held back.
        """
        with self._guard():
            left = self.budget.left
            assert left is not None, "an account without a limit has nothing to hold back from"
            usd = left if wanted is None else min(wanted, left)
            reservation = NewReservation(usd, self.budget.reserve(usd, lasting=True))
        try:
            yield reservation
        finally:
            if reservation.job_id is None:
                with self._guard():
                    self.budget.release(reservation.held)

    def assign(self, job_id: str, reservation: NewReservation, cost: float) -> None:
        """Give a job what was held back for it, before the block of :meth:`reserved` ends.

        Args:
            cost: USD the job has cost so far; they are not spent of this budget.
        """
        reservation.job_id = job_id
        self._jobs[job_id] = _JobReservation(reservation.held, cost)

    def charge(self, job_id: str, cost: float, *, ended: bool, still: float | None = None) -> None:
        """Count what a job has cost so far as spent; at its end, release the rest.

        Args:
            job_id: one that nothing is held back for is ignored.
            cost: USD since the job began; the same figure may come twice.
            ended: whether it can cost nothing more.
            still: USD that it can still cost, where all its requests have their results; what is held back
                beyond that is released.
        """
        with self._guard():
            reservation = self._jobs.get(job_id)
            if reservation is None:
                return
            more = max(0.0, cost - reservation.cost)
            reservation.cost += more
            if ended:
                del self._jobs[job_id]
                self.budget.settle(reservation.held, more)
            elif still is None:
                self.budget.spend(reservation.held, more)
            else:
                self.budget.settle(reservation.held, more)
                left = self.budget.left
                usd = still if left is None else min(still, left)
                reservation.held = self.budget.reserve(usd, lasting=True)
