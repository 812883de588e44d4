"""The money that a client's budget reserves for its jobs, from their submission to their end.

A job has its own budget in the store, which applies to every process that runs it. The amount the job can
still spend is reserved here, so that the job and everything else the client sends stay within the client's
budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol, TypeVar

from attrs import define, evolve, field, frozen

from smartbatch.core.limits.budget import Budget, SpendReservation

_T = TypeVar("_T")


class MoneyGuard(Protocol):
    """Runs work while nothing else reserves or reconciles money."""

    def __call__(self, work: Callable[[], _T], /) -> _T:
        """Return the result of ``work``."""
        ...


class MoneyWait(Protocol):
    """Runs work under the same guard until it succeeds."""

    def __call__(self, work: Callable[[], bool], /) -> object:
        """Run ``work``, and again whenever more may be leased of a shared budget, until it returns True.

        Raises:
            ClientClosed: it would have to wait, and no more money is leased.
        """
        ...


@define
class _JobReservation:
    """The money reserved for a job."""

    held: SpendReservation
    cost: float  # USD of the job when this was last updated
    changes: tuple[NewReservation, ...]  # work that stores it, or retries its requests
    lost: float = 0.0  # USD for lost answers that the budget has already counted

    @property
    def changing(self) -> bool:
        """Whether such work is running, so that the store's data about the job may change."""
        return any(change.is_changing for change in self.changes)


@define
class NewReservation:
    """Money reserved for a job that is being submitted, or whose requests are being retried."""

    usd: float  # wanted, then reserved
    held: SpendReservation | None = None
    job_id: str | None = None  # set once it was assigned to a job
    is_changing: bool = True  # the work that submits the job or retries its requests has not ended


@frozen(eq=False)
class JobReservations:
    """The reservations of jobs in a budget.

    Args:
        budget: the client's budget.
        guard: runs everything that reserves or reconciles, one at a time; no method may be called inside it.
        account: a unique name of the budget. It is stored with jobs, so that each process knows which client
            reserves money for them; for a shared budget it stands for all clients that share it.
        until: leases more if the budget is shared.
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
        """Ids of jobs with reserved money, without those that are being stored or retried."""
        return [job_id for job_id, each in list(self._jobs.items()) if not each.changing]

    def has(self, job_id: str) -> bool:
        """Whether money is reserved for a job."""
        return job_id in self._jobs

    def seen(self, job_id: str) -> object | None:
        """Return a token for the money reserved for a job, which is passed to :meth:`charge` with data read
        from the store afterwards. ``None`` if there is none, or while the job is being stored or retried."""
        found = self._jobs.get(job_id)
        return None if found is None or found.changing else found

    def reserve(self, wanted: float | None, work: Callable[[NewReservation], _T]) -> _T:
        """Reserve money while ``work`` submits a job; it is released unless it was assigned to the job.

        A Ctrl-C at any moment leaves nothing reserved permanently: money assigned to a job that was never
        stored is released by a later :meth:`charge`.

        Args:
            wanted: USD; ``None`` for the whole remainder. At most the remainder is reserved.

        Raises:
            ClientClosed: more of a shared budget would have to be leased, and the client was stopped.
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
        """Reserve as much of the wanted amount as is available; return False if more has to be leased
        first."""
        reservation.usd = self.budget.obtainable(reservation.usd)
        if reservation.usd and not self.budget.fits(reservation.usd):
            return False
        reservation.held = self.budget.reserve(reservation.usd, lasting=True)
        return True

    def enlarge(self, reservation: NewReservation, usd: float) -> float:
        """Change the reservation for a job to ``usd``, or to the available amount if that is less; return the
        amount. Called by the work of :meth:`reserve`, and raises the same errors."""
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
        """Assign a reservation to a job. Called by the work of :meth:`reserve` before the job is stored,
        because from then on it may run and cost something. A job with another id takes over the reservation.

        Args:
            cost: USD the job has cost so far; they are not spent from this budget.
        """
        assert reservation.held is not None
        before, assigned = reservation.job_id, _JobReservation(reservation.held, cost, (reservation,))
        self._jobs[job_id] = assigned  # no call before the next line, so no Ctrl-C
        reservation.job_id = job_id
        if before is not None and before != job_id:
            del self._jobs[before]

    def renew(
        self, job_id: str, wanted: float, cost: float, work: Callable[[float], _T], *, lost: float = 0.0
    ) -> _T:
        """Reserve money for a job while ``work`` retries some of its requests, and keep it reserved.

        If the job is seen to have ended before ``work`` is done, nothing is released. A later :meth:`charge`
        releases the unneeded part, even after a Ctrl-C.

        Args:
            wanted: USD, including money already reserved for the job; at most the remainder is reserved.
                0 changes nothing.
            cost: USD the job has cost so far.
            work: called with the reserved amount.
            lost: USD it may have cost in addition, for lost answers; the budget has already counted them.

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
        """Count a job's cost so far as spent; once it has ended, release everything except amounts that may
        have been billed.

        Args:
            job_id: ignored if nothing is reserved for it.
            cost: USD since the job began, in total; the same figure may be passed twice.
            ended: whether the job can no longer cost anything.
            still: USD that it can still cost, if all its requests have results, or that it may have cost for
                lost answers, if it has ended; any further reserved amount is released.
            seen: the token that :meth:`seen` returned before the data was read; ignored if requests of the
                job have been retried since.
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
            self.budget.settle(reservation.held, more, still or 0.0)
            del self._jobs[job_id]
            return
        self.budget.spend(reservation.held, more)
        reservation.cost += more
        if still is not None:
            self.budget.resize(reservation.held, still)
