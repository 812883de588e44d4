"""Spending limits: money is reserved before a call, within the limit, and reconciled afterwards.

A client of a shared budget may spend only what it has leased. Leases do not expire: the lease of a dead
process stays taken, because it is unknown how much of it was spent. Times are monotonic seconds. The caller
holds the budget's lock.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from attrs import define

from smartbatch.core.limits.shared_limit import LeaseAsk, LeaseGrant, MemberLimits, QuotaKind, Totals, first

_USD_NANOS = 1_000_000_000
"""Amounts are whole billionths of a USD: sums of floats drift, and a token costs about 10⁻⁸ USD."""


@define(eq=False)
class SpendReservation:
    """Money reserved for one call or job. Only its budget changes it, and closes it once."""

    nano: int  # reserved billionths of a USD
    outer: SpendReservation | None  # reservation in the outer budget
    lasting: bool  # may last for days, so nothing waits for it
    open: bool = True

    @property
    def usd(self) -> float:
        return self.nano / _USD_NANOS


class Budget:
    """Spending of one client, or of one list within it.

    As long as no call costs more than it reserved, spent + unconfirmed + reserved <= limit. A call that
    cost more is charged in full. If the bill of a call is unknown, the amount it may have cost stays
    reserved, as unconfirmed.

    A budget within another one spends from both. Nothing waits for a lasting reservation, such as that of a
    job that may take days: a cost that does not fit alongside the lasting reservations is hopeless.

    Args:
        limit: USD; ``None`` only counts spending.
        outer: the enclosing budget.

    Raises:
        ValueError: the limit is negative or not finite.
    """

    def __init__(self, limit: float | None = None, outer: Budget | None = None) -> None:
        self._outer = outer
        self._limit = None if limit is None else math.floor(_checked(limit, "limit") * _USD_NANOS)
        self._spent = self._unconfirmed = self._reserved = self._lasting = 0
        self.lease: BudgetLease | None = None  # None unless the budget is shared

    @property
    def spent(self) -> float:
        return self._spent / _USD_NANOS

    @property
    def unconfirmed(self) -> float:
        """USD beyond :attr:`spent` that calls with unknown bills may have cost."""
        return self._unconfirmed / _USD_NANOS

    @property
    def reserved(self) -> float:
        return self._reserved / _USD_NANOS

    @property
    def left(self) -> float | None:
        """USD neither spent, unconfirmed nor reserved; ``None`` without a limit."""
        return None if self._limit is None else max(0, self._limit - self._used - self._reserved) / _USD_NANOS

    @property
    def room(self) -> float | None:
        """USD available: :attr:`left` plus the unleased part of a shared budget."""
        if self._limit is None:
            return None
        unleased = 0.0 if self.lease is None else self.lease.unleased
        return max(0.0, (self._limit - self._used - self._reserved) / _USD_NANOS + unleased)

    def obtainable(self, cost: float) -> float:
        """Return the available part of ``cost``: all of it if it fits, or if more may be leased."""
        left, room = self.left, self.room
        if left is None or room is None or cost <= left:
            return cost
        if self.lease is not None and cost < math.inf and not self.lease.is_hopeless(cost):
            return cost
        return min(cost, left if cost == math.inf else room)

    def fits(self, cost: float) -> bool:
        if self._limit is not None and self._used + self._reserved + _up(cost) > self._limit:
            if self.lease is not None:
                self.lease.lack(cost)
            return False
        return self._outer is None or self._outer.fits(cost)

    def short(self, cost: float) -> Budget | None:
        """Return the first budget, from this one outwards, for which ``cost`` is hopeless.

        It would not fit even if all calls in flight were free and no other process returned money.
        """
        if self._limit is not None and self._used + self._lasting + _up(cost) > self._limit:
            if self.lease is None or self.lease.is_hopeless(cost):
                return self
            self.lease.lack(cost)
        return None if self._outer is None else self._outer.short(cost)

    def must_wait(self, cost: float) -> bool:
        """Whether ``cost`` fits into this budget only after calls in flight have finished; ignores the outer
        budget."""
        if self._limit is None:
            return False
        return self._lasting <= self._limit - self._used - _up(cost) < self._reserved

    def share(self, limit: float, member: str, wake: Callable[[], None]) -> BudgetLease:
        """From now on, spend only leased parts of ``limit`` USD."""
        self._limit = self._used + self._reserved
        self.lease = BudgetLease(
            limit,
            member,
            wake,
            held=lambda: (self._limit - self._used) / _USD_NANOS if self._limit is not None else 0.0,
            reserved=lambda: self._reserved / _USD_NANOS,
            widen=self.widen,
        )
        return self.lease

    def widen(self, more: float) -> None:
        """Raise the limit by ``more`` USD. It may be lowered only while nothing is reserved."""
        if self._limit is not None:
            self._limit += round(more * _USD_NANOS)

    def reserve(self, cost: float, *, lasting: bool = False) -> SpendReservation:
        """Reserve ``cost`` USD after :meth:`fits` returned True in the same critical section.

        Raises:
            RuntimeError: the cost does not fit.
        """
        nano = _up(cost)
        # a free call fits even if the limit is exceeded
        if nano and self._limit is not None and self._used + self._reserved + nano > self._limit:
            raise RuntimeError("the reservation exceeds what is left of the budget; call fits() first")
        outer = None if self._outer is None else self._outer.reserve(cost, lasting=lasting)
        made = SpendReservation(nano, outer, lasting)
        self._reserved += nano  # no function calls below, so Ctrl-C cannot interrupt this block
        if lasting:
            self._lasting += nano
        return made

    def reconcile(self, reservation: SpendReservation, actual: float, unconfirmed: float = 0.0) -> None:
        """Reconcile a reservation with the known ``actual`` cost; keep ``unconfirmed`` USD reserved.

        Raises:
            RuntimeError: the reservation is already closed.
        """
        nano, unknown = round(_checked(actual, "actual cost") * _USD_NANOS), _up(unconfirmed)
        self._close(reservation)
        if self._outer is not None and reservation.outer is not None:
            self._outer.reconcile(reservation.outer, actual, unconfirmed)
        self._spent += nano
        self._unconfirmed += unknown

    def spend(self, reservation: SpendReservation, actual: float) -> None:
        nano = round(_checked(actual, "actual cost") * _USD_NANOS)
        part = min(nano, reservation.nano)
        reservation.nano -= part
        self._reserved -= part
        if reservation.lasting:
            self._lasting -= part
        self._spent += nano
        if self._outer is not None and reservation.outer is not None:
            self._outer.spend(reservation.outer, actual)

    def resize(self, reservation: SpendReservation, cost: float) -> None:
        """Change a reservation to ``cost`` USD, or to the available amount if that is less."""
        nano = _up(cost)
        if self._limit is not None:
            nano = min(nano, max(0, self._limit - self._used - self._reserved + reservation.nano))
        more = nano - reservation.nano
        reservation.nano = nano
        self._reserved += more
        if reservation.lasting:
            self._lasting += more
        if self._outer is not None and reservation.outer is not None:
            self._outer.resize(reservation.outer, cost)

    def release(self, reservation: SpendReservation) -> None:
        self.reconcile(reservation, 0.0)

    @property
    def _used(self) -> int:
        return self._spent + self._unconfirmed

    def _close(self, reservation: SpendReservation) -> None:
        if not reservation.open:
            raise RuntimeError("the reservation is already closed")
        reservation.open = False
        self._reserved -= reservation.nano
        if reservation.lasting:
            self._lasting -= reservation.nano


def _checked(usd: float, what: str) -> float:
    if not 0 <= usd < math.inf:
        raise ValueError(f"{what} must be 0 USD or more and finite, not {usd!r}")
    return usd


def _up(cost: float) -> int:
    if cost == 0:
        return 0
    nano = _checked(cost, "cost") * _USD_NANOS
    whole = round(nano)  # a float may be slightly above the whole number it stands for
    return whole if math.isclose(nano, whole, rel_tol=1e-14, abs_tol=1e-6) else math.ceil(nano)


_MIN_INTERVAL_SECONDS, _RENEW_SECONDS, _IDLE_SECONDS, _HEARTBEAT_SECONDS = 0.1, 1.0, 0.5, 5.0
_AHEAD_SECONDS, _LOW_SECONDS = 2.0, 0.5
"""Seconds of spending that are leased in advance, and the level at which more is leased."""

_PATIENCE_SECONDS = 5.0
"""Seconds that a cost waits for money held by other processes before it is hopeless."""

_CLOSED_SECONDS = 30.0
"""Seconds without the back end before costs become hopeless."""


class BudgetLease:
    """A client's part of a shared budget.

    Args:
        limit: USD of all clients together.
        member: a unique name of the client.
        wake: called when an exchange becomes due earlier than :meth:`due` returned.
        held: returns the USD leased and not spent, including reserved money.
        reserved: returns the USD reserved for calls and jobs.
        widen: raises or lowers the budget's limit by the given USD.
    """

    def __init__(
        self,
        limit: float,
        member: str,
        wake: Callable[[], None],
        *,
        held: Callable[[], float],
        reserved: Callable[[], float],
        widen: Callable[[float], None],
    ) -> None:
        self.lost = False  # the back end is unavailable
        self.incompatible = ""  # reason why waiting does not help
        self.grant: LeaseGrant | None = None  # result of the last exchange
        self._limit = limit
        self._member = member
        self._wake = wake
        self._held, self._reserved, self._widen = held, reserved, widen
        self._lacking = 0.0
        self._lacking_since = self._asked_at = self._again_at = self._used_at = self._lost_at = -math.inf
        self._held_then = 0.0
        self._number = self._drawn = self._given = 0  # exchanges; billionths of a USD leased and returned
        self._demand = 0.0
        self._hopeless = math.inf

    def lack(self, cost: float) -> None:
        if not self._lacking:
            self._lacking = cost
            self._wake()
        self._lacking = min(self._lacking, cost) if cost else self._lacking

    @property
    def is_lacking(self) -> bool:
        return self._lacking > 0.0

    def is_hopeless(self, cost: float) -> bool:
        return cost >= self._hopeless

    @property
    def unleased(self) -> float:
        """USD that no client has leased, or 0 while the back end is unavailable."""
        return 0.0 if self.lost else self.last_unleased

    @property
    def last_unleased(self) -> float:
        """USD not leased at the last exchange; before the first exchange, the whole limit."""
        return self._limit if self.grant is None else math.floor(self.grant.left[0] * _USD_NANOS) / _USD_NANOS

    def waits(self) -> bool:
        return bool(self._lacking) or self._held() > self._reserved()

    def due(self, now: float) -> float:
        if self.grant is None and not self.lost:
            return now
        if self._lacking:
            return max(now, self._asked_at + _MIN_INTERVAL_SECONDS, self._again_at)
        if self._reserved() > 0.0 or now - self._used_at < _IDLE_SECONDS:
            low = self._held() < _LOW_SECONDS * self._demand
            return max(now, self._asked_at + (_MIN_INTERVAL_SECONDS if low else _RENEW_SECONDS))
        return max(now, self._asked_at + (_IDLE_SECONDS if self._held() > 0.0 else _HEARTBEAT_SECONDS))

    def ask(self, now: float, *, leaving: bool = False) -> LeaseAsk:
        """Return the request for an exchange; then call :meth:`adopt` or :meth:`lose`.

        Unreserved money is returned if nothing was spent recently, or if it is too little for a call and no
        more could be leased. Otherwise several clients could each hold a part of the money that one of them
        needs. The totals show whether an exchange whose response was lost was carried out. A client that no
        longer spends omits its limit, because the lowest reported limit applies to all clients.
        """
        held, reserved = self._held(), self._reserved()
        spent = max(0.0, self._held_then - held)
        if spent or reserved:
            self._used_at = now
        seconds = max(now - self._asked_at, _MIN_INTERVAL_SECONDS)
        self._demand = max(spent / seconds, 0.7 * self._demand)
        returned = 0.0
        in_vain = self.grant is not None and self.grant.wait > 0.0
        if leaving or (in_vain if self._lacking else now - self._used_at >= _IDLE_SECONDS):
            returned = max(0.0, held - reserved)
            self._widen(-returned)
            self._given += round(returned * _USD_NANOS)
        kept = held - returned
        free = kept - reserved
        least = max(0.0, self._lacking - free)
        ahead = _AHEAD_SECONDS * self._demand - free
        is_idle = self.grant is not None and not self._lacking and kept == 0.0
        wanted = least if returned or is_idle or ahead * _USD_NANOS < 1.0 else max(least, ahead)
        if self._lacking and self._lacking_since == -math.inf:
            self._lacking_since = now
        self._asked_at = now
        self._number += 1
        return LeaseAsk(
            member=self._member,
            kind=QuotaKind.BUDGET,
            limits=MemberLimits(caps=first(0.0 if is_idle else self._limit)),
            kept=first(kept),
            least=first(least),
            wanted=first(wanted),
            totals=Totals(
                number=self._number, drawn=self._drawn / _USD_NANOS, given=self._given / _USD_NANOS
            ),
            leaving=int(leaving),
        )

    def adopt(self, grant: LeaseGrant, now: float) -> None:
        self.grant, self.lost, self.incompatible = grant, False, ""
        more = math.floor(grant.granted[0] * _USD_NANOS + 0.1)  # sums of floats may be too low by 10⁻¹⁰
        if more:
            self._drawn += more
            self._widen(more / _USD_NANOS)
        lacking, self._lacking = self._lacking, 0.0
        self._hopeless, self._again_at = math.inf, now
        if not grant.wait:
            self._lacking_since = -math.inf
        # Hopeless if no other client holds money or the call has waited long enough; otherwise others may
        # return some.
        elif grant.members == 1 or now - self._lacking_since >= _PATIENCE_SECONDS:
            self._hopeless, self._lacking_since = lacking, -math.inf
        else:
            self._again_at = now + _IDLE_SECONDS
        self._held_then = self._held()

    def lose(self, now: float, incompatible: str = "") -> bool:
        """Stop leasing because the back end is unavailable; return False if it already was.

        ``incompatible`` is the reason why waiting does not help, or empty.
        """
        begins = not self.lost
        self.incompatible = incompatible
        if begins:
            self.lost, self._lost_at = True, now
        self._lacking = 0.0
        self._held_then = self._held()
        if incompatible or now - self._lost_at >= _CLOSED_SECONDS:
            self._hopeless = 0.0
        return begins
