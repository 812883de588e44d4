"""What a client's budget holds back for its jobs, from their submission to their end.

A job keeps to a budget of its own, in the store, whichever process runs it. What it can still spend is held
back here, so that it and everything else the client does stay within the client's budget together.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol, TypeVar

from attrs import define, evolve, field, frozen

from smartbatch.core.limits.budget import Budget, SpendReservation

_T = TypeVar("_T")


class MoneyGuard(Protocol):
    """Does something while nothing else reserves or settles."""

    def __call__(self, work: Callable[[], _T], /) -> _T:
        """Return what ``work`` returns."""
        ...


class MoneyWait(Protocol):
    """Does something under the same guard until it succeeds."""

    def __call__(self, work: Callable[[], bool], /) -> object:
        """Do ``work``, and again each time when more may be leased of a shared budget, until it returns True.

        Raises:
            ClientClosed: it would have to wait, and nobody leases any more.
        """
        ...


@define
class _JobReservation:
    """What is held back for a job, and what the job had cost when that was last updated, USD.

    Attributes:
        lost: what it may have cost for lost answers before, which the budget counted then.
        changes: work that stores it, or has requests of it asked again.
    """

    held: SpendReservation
    cost: float
    changes: tuple[NewReservation, ...]
    lost: float = 0.0

    @property
    def changing(self) -> bool:
        """Whether any of that goes on, so that the store has not said the last word about the job."""
        return any(change.going_on for change in self.changes)


@define
class NewReservation:
    """Money held back for a job that is being submitted, or of which requests are asked again.

    Attributes:
        usd: what is wanted, and then what is held back.
        job_id: of the job that is being submitted, once it was assigned to it.
        going_on: the work that submits it, or has requests of it asked again, has not ended.
    """

    usd: float
    held: SpendReservation | None = None
    job_id: str | None = None
    going_on: bool = True


@frozen(eq=False)
class JobReservations:
    """The reservations of jobs in a budget.

    Args:
        budget: the client's.
        guard: what reserves or settles runs in it, one at a time; no method may be called there.
        account: a name no other budget has. Jobs store it, so that each process knows which client holds
            money back for them; of a shared budget, that it is held back there by one of those that share it.
        until: leases more where the budget is shared.
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
        """Ids of jobs that money is held back for, but for those that are being stored or asked again."""
        return [job_id for job_id, each in list(self._jobs.items()) if not each.changing]

    def has(self, job_id: str) -> bool:
        """Whether money is held back for a job."""
        return job_id in self._jobs

    def seen(self, job_id: str) -> object | None:
        """Return what stands for the money that is held back for a job, to :meth:`charge` what the store says
        after this; ``None`` for nothing, and while the job is being stored or asked again."""
        found = self._jobs.get(job_id)
        return None if found is None or found.changing else found

    def reserve(self, wanted: float | None, work: Callable[[NewReservation], _T]) -> _T:
        """Hold back money while ``work`` submits a job; it is released unless it was assigned to the job.

        A Ctrl-C at any moment leaves nothing held back that nobody releases: what was assigned to a job that
        was not stored in the end is released by a :meth:`charge` that says so.

        Args:
            wanted: USD; ``None`` for all that is left. At most what is left is held back.

        Raises:
            ClientClosed: of a shared budget more would have to be leased, and the client was stopped.
        """
        reservation = NewReservation(math.inf if wanted is None else wanted)
        try:
            self._until(lambda: self._hold_back(reservation))
            return work(reservation)
        finally:
            reservation.going_on = False
            held = reservation.held
            if reservation.job_id is None and held is not None:
                self._guard(lambda: self.budget.release(held))

    def _hold_back(self, reservation: NewReservation) -> bool:
        """Hold back what there is of what is wanted; False where more has to be leased first."""
        reservation.usd = self.budget.obtainable(reservation.usd)
        if reservation.usd and not self.budget.fits(reservation.usd):
            return False
        reservation.held = self.budget.reserve(reservation.usd, lasting=True)
        return True

    def enlarge(self, reservation: NewReservation, usd: float) -> float:
        """Hold back ``usd`` USD for a job instead of what is held back, or what there is where that is less;
        return it. Called by the work of :meth:`reserve`, and raises as it does."""
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
        """Give a job what was held back for it; called by the work of :meth:`reserve`, before the job is
        stored: it may be carried on, and cost something, from then on. A job of another id takes it over.

        Args:
            cost: USD the job has cost so far; they are not spent of this budget.
        """
        assert reservation.held is not None
        before, assigned = reservation.job_id, _JobReservation(reservation.held, cost, (reservation,))
        self._jobs[job_id] = assigned  # no call comes before the next line, so no Ctrl-C
        reservation.job_id = job_id
        if before is not None and before != job_id:
            del self._jobs[before]

    def renew(
        self, job_id: str, wanted: float, cost: float, work: Callable[[float], _T], *, lost: float = 0.0
    ) -> _T:
        """Hold back money for a job while ``work`` has requests of it asked again, and leave it so.

        Nothing of it is released for an end of the job that was seen before ``work`` has ended. A
        :meth:`charge` after it releases what is not needed, also where a Ctrl-C came.

        Args:
            wanted: USD, with what is held back for the job already; at most what is left is held back. For 0
                that stays as it is.
            cost: USD the job has cost so far.
            work: is given what is held back.
            lost: USD it may have cost besides, for answers that are lost; the budget counted them before.

        Raises:
            ClientClosed: as :meth:`reserve`.
        """
        reservation = NewReservation(wanted)
        try:
            self._until(lambda: self._renew(job_id, reservation, cost, lost))
            return work(reservation.usd)
        finally:
            reservation.going_on = False

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
        going_on = tuple(change for change in known.changes if change.going_on)
        self._jobs[job_id] = evolve(known, changes=(*going_on, reservation))
        self.budget.resize(known.held, reservation.usd)
        return True

    def charge(
        self, job_id: str, cost: float, *, ended: bool, still: float | None = None, seen: object | None = None
    ) -> None:
        """Count what a job has cost so far as spent; at its end, release the rest but for what may have been
        billed.

        Args:
            job_id: one that nothing is held back for is ignored.
            cost: USD since the job began; the same figure may come twice.
            ended: whether it can cost nothing more.
            still: USD that it can still cost, where all its requests have their results, or that it may have
                cost for lost answers when it has ended; what is held back beyond that is released.
            seen: what :meth:`seen` returned before that was read; where requests of the job were asked again
                since then, it is ignored.
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
