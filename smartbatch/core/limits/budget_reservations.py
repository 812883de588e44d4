"""What a client's budget holds back for its jobs, from their submission to their end.

A job keeps to a budget of its own, in the store, whoever carries it on. Held back here is what it can still
spend, so that the job and everything else the client does stay within the client's budget together.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from attrs import define

from smartbatch.core.limits.budget import Budget, SpendReservation

__all__ = ["JobReservations"]


@define
class _JobReservation:
    """What is held back for a job, and what it had cost when that was looked at, USD."""

    held: SpendReservation
    cost: float


class JobReservations:
    """Parts of a budget that belong to jobs.

    Args:
        budget: the client's.
        guard: nobody else reserves or settles while it is held.

    Attributes:
        account: a name no other budget has; jobs keep it, so that it is known who holds money back for them.
    """

    def __init__(self, budget: Budget, guard: Callable[[], AbstractContextManager[object]]) -> None:
        self.budget = budget
        self.account = secrets.token_hex(8)
        self._guard = guard
        self._jobs: dict[str, _JobReservation] = {}

    @property
    def jobs(self) -> list[str]:
        """Ids of jobs that something is held back for."""
        return list(self._jobs)

    def has(self, job_id: str) -> bool:
        """Whether something is held back for a job."""
        return job_id in self._jobs

    @contextmanager
    def taken(self, wanted: float | None) -> Iterator[Taking]:
        """Hold back money for a job that is being accepted; it goes back unless the job keeps it.

        Args:
            wanted: USD; ``None`` for all there is. It gets no more than there is.
        """
        with self._guard():
            left = self.budget.left
            assert left is not None, "an account without a limit has nothing to hold back from"
            usd = left if wanted is None else min(wanted, left)
            taking = Taking(usd, self.budget.reserve(usd, lasting=True))
        try:
            yield taking
        finally:
            if taking.job_id is None:
                with self._guard():
                    self.budget.release(taking.held)

    def keep(self, job_id: str, taking: Taking, cost: float) -> None:
        """Let a job have what was taken for it.

        Args:
            cost: what it has cost so far, USD: that is not spent of this budget.
        """
        taking.job_id = job_id
        self._jobs[job_id] = _JobReservation(taking.held, cost)

    def book(self, job_id: str, cost: float, *, ended: bool, pledged: float | None = None) -> None:
        """Count what a job has cost by now as spent; at its end, give the rest back.

        Args:
            cost: USD, from its beginning.
            pledged: USD that it can still cost, where all its requests have their results; the rest is given
                back then.
        """
        with self._guard():
            reservation = self._jobs.get(job_id)
            if reservation is None:
                return
            more = max(0.0, cost - reservation.cost)
            if ended:
                del self._jobs[job_id]
                self.budget.settle(reservation.held, more)
            elif pledged is not None:
                self.budget.settle(reservation.held, more)
                left = self.budget.left
                usd = pledged if left is None else min(pledged, left)
                reservation.held = self.budget.reserve(usd, lasting=True)
                reservation.cost += more
            else:
                self.budget.spend(reservation.held, more)
                reservation.cost += more


@define
class Taking:
    """Money on its way to a job.

    Attributes:
        usd: how much.
        held: the reservation.
        job_id: the job that keeps it.
    """

    usd: float
    held: SpendReservation
    job_id: str | None = None
