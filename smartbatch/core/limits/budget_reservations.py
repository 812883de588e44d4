"""Money that a client's budget reserves for its jobs, from submission until they finish.

A job has its own budget in the store, which applies to every process that runs it. The client's budget
reserves what remains of it, so that the job and the client's other requests together stay within the
client's budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol, TypeVar

from attrs import define, evolve, field, frozen

from smartbatch.core.limits.budget import Budget, SpendReservation

_T = TypeVar("_T")


class MoneyGuard(Protocol):
    def __call__(self, work: Callable[[], _T], /) -> _T:
        """Run ``work`` while no other thread reserves or reconciles money, and return its result."""
        ...


class MoneyWait(Protocol):
    def __call__(self, work: Callable[[], bool], /) -> object:
        """Run ``work`` under the guard, and again whenever more money has been leased, until it returns True.

        Raises:
            ClientClosed: ``work`` would have to wait, and the client leases no more money.
        """
        ...


@define
class _JobReservation:
    held: SpendReservation
    cost: float  # USD of the job when this was last updated
    changes: tuple[NewReservation, ...]  # running submissions and retries of the job
    lost: float = 0.0  # USD of lost answers that the budget has already counted

    @property
    def changing(self) -> bool:
        return any(change.is_changing for change in self.changes)


@define
class NewReservation:
    usd: float  # requested amount, then the reserved one
    held: SpendReservation | None = None
    job_id: str | None = None  # set when the reservation is assigned to a job
    is_changing: bool = True  # the submission or retry has not finished


@frozen(eq=False)
class JobReservations:
    """Job reservations in a budget.

    Args:
        budget: the client's budget.
        guard: runs everything that reserves or reconciles, one at a time; no method may be called inside it.
        account: a unique name of the budget, or the common name of a shared one. It is stored with each
            job, so that every process knows which client reserves money for it.
        until: leases more money if the budget is shared.
    """

    budget: Budget
    _guard: MoneyGuard
    account: str
    _until: MoneyWait = field()
    _jobs: dict[str, _JobReservation] = field(factory=dict, init=False)

    @_until.default
    def _leases_nothing(self) -> MoneyWait:
        return self._guard

    @property
    def jobs(self) -> list[str]:
        """Ids of jobs with reserved money, except those being submitted or retried."""
        return [job_id for job_id, each in list(self._jobs.items()) if not each.changing]

    def has(self, job_id: str) -> bool:
        return job_id in self._jobs

    def seen(self, job_id: str) -> object | None:
        """Return a token for :meth:`charge`, to be taken before the job's data is read from the store.

        ``None`` if nothing is reserved for the job, or while it is being submitted or retried.
        """
        found = self._jobs.get(job_id)
        return None if found is None or found.changing else found

    def reserve(self, wanted: float | None, work: Callable[[NewReservation], _T]) -> _T:
        """Reserve money while ``work`` submits a job; it is released unless it was assigned to the job.

        After a Ctrl-C at any moment, money assigned to a job that was never stored is released by a later
        :meth:`charge`.

        Args:
            wanted: USD, of which at most the remainder is reserved; ``None`` for the whole remainder.

        Raises:
            ClientClosed: more money would have to be leased, and the client was stopped.
        """
        reservation = NewReservation(math.inf if wanted is None else wanted)
        try:
            self._until(lambda: self._hold_back(reservation))
            return work(reservation)
        finally:
            reservation.is_changing = False
            held = reservation.held
            if reservation.job_id is None and held is not None:
                self._guard(lambda: self.budget.release(held))

    def _hold_back(self, reservation: NewReservation) -> bool:
        """Return False if more money has to be leased first."""
        reservation.usd = self.budget.obtainable(reservation.usd)
        if reservation.usd and not self.budget.fits(reservation.usd):
            return False
        reservation.held = self.budget.reserve(reservation.usd, lasting=True)
        return True

    def enlarge(self, reservation: NewReservation, usd: float) -> float:
        """Change the reservation to ``usd``, or to the available amount if that is less; return the amount.

        Called by the work of :meth:`reserve`, and raises the same errors.
        """
        reservation.usd = usd
        self._until(lambda: self._enlarge(reservation))
        return reservation.usd

    def _enlarge(self, reservation: NewReservation) -> bool:
        held = reservation.held
        assert held is not None
        before = held.usd
        more = self.budget.obtainable(max(0.0, reservation.usd - before))
        reservation.usd = before + more
        if more and not self.budget.fits(more):
            return False
        self.budget.resize(held, reservation.usd)
        return True

    def assign(self, job_id: str, reservation: NewReservation, cost: float) -> None:
        """Assign a reservation to a job before the job is stored, because it may run and cost something
        from then on.

        A job with another id takes over the reservation. ``cost`` is what the job has cost so far, which
        this budget does not pay.
        """
        assert reservation.held is not None
        before, assigned = reservation.job_id, _JobReservation(reservation.held, cost, (reservation,))
        # no function call before the next line, so Ctrl-C cannot interrupt here
        self._jobs[job_id] = assigned
        reservation.job_id = job_id
        if before is not None and before != job_id:
            del self._jobs[before]

    def renew(
        self, job_id: str, wanted: float, cost: float, work: Callable[[float], _T], *, lost: float = 0.0
    ) -> _T:
        """Reserve money for a job while ``work`` retries some of its requests, and keep it reserved.

        The reservation survives even if the job is seen to have finished before ``work`` is done. A later
        :meth:`charge` releases what is not needed.

        Args:
            wanted: USD, including money already reserved for the job; at most the remainder is reserved. 0
                changes nothing.
            cost: USD the job has cost so far.
            work: called with the reserved amount.
            lost: additional USD for lost answers, which the budget has already counted.

        Raises:
            ClientClosed: see :meth:`reserve`.
        """
        reservation = NewReservation(wanted)
        try:
            self._until(lambda: self._renew(job_id, reservation, cost, lost))
            return work(reservation.usd)
        finally:
            reservation.is_changing = False

    def _renew(self, job_id: str, reservation: NewReservation, cost: float, lost: float) -> bool:
        self._charge(job_id, cost, ended=False, still=None)
        known = self._jobs.get(job_id)
        if known is None and not reservation.usd:
            return True
        before = 0.0 if known is None else known.held.usd
        more = self.budget.obtainable(max(0.0, reservation.usd - before))
        if more and not self.budget.fits(more):
            return False
        reservation.usd = before + more
        if known is None:
            known = _JobReservation(self.budget.reserve(0.0, lasting=True), cost, (), lost)
        is_changing = tuple(change for change in known.changes if change.is_changing)
        self._jobs[job_id] = evolve(known, changes=(*is_changing, reservation))
        self.budget.resize(known.held, reservation.usd)
        return True

    def charge(
        self, job_id: str, cost: float, *, ended: bool, still: float | None = None, seen: object | None = None
    ) -> None:
        """Count a job's cost so far as spent; once it has finished, release everything that cannot be billed.

        Args:
            job_id: ignored if nothing is reserved for it.
            cost: total USD since the job began.
            ended: whether the job can no longer cost anything.
            still: USD that it can still cost, or that lost answers of a finished job may have cost; the
                rest is released.
            seen: the token of :meth:`seen`, taken before the data was read; ignored if requests were
                retried since.
        """
        self._guard(lambda: self._charge(job_id, cost, ended, still, seen))

    def _charge(
        self, job_id: str, cost: float, ended: bool, still: float | None, seen: object | None = None
    ) -> None:
        reservation = self._jobs.get(job_id)
        if reservation is None or (seen is not None and seen is not reservation):
            return
        more = max(0.0, cost - reservation.cost)
        if still is not None:
            still = max(0.0, still - reservation.lost)
        if ended:
            self.budget.reconcile(reservation.held, more, still or 0.0)
            del self._jobs[job_id]
            return
        self.budget.spend(reservation.held, more)
        reservation.cost += more
        if still is not None:
            self.budget.resize(reservation.held, still)
