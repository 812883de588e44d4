"""Money: reserved before a call, settled afterwards, never more than the limit. All amounts are USD.

A budget shared by several clients fails closed: a client may spend only what it has leased. A lease does not
expire, and the lease of a dead process stays taken, because nobody knows how much of it was spent. Times are
monotonic seconds; the caller holds the lock that guards the budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from attrs import define

from smartbatch.core.limits.shared_limit import LeaseAsk, LeaseGrant, MemberLimits, QuotaKind, Totals, first

_NANO = 1_000_000_000
"""Amounts are whole billionths of a USD: sums of floats drift, and a token costs about 10⁻⁸ USD."""


@define(eq=False)
class SpendReservation:
    """Money held back for one call, or for a job; settled or released once, by its budget, which alone
    changes it.

    Attributes:
        nano: billionths of a USD that are held back.
        outer: what is held back in the outer budget.
        lasting: held for so long that nobody should wait for its end.
        open: it has not ended.
    """

    nano: int
    outer: SpendReservation | None
    lasting: bool
    open: bool = True

    @property
    def usd(self) -> float:
        """USD that are held back."""
        return self.nano / _NANO


class Budget:
    """Spending of one client, or of one list within it.

    Held at every step: spent + unconfirmed + reserved <= limit, as long as no call costs more than it
    reserved. Reservations are rounded up and the limit down, to the billionth of a USD. A call that cost more
    than it reserved is charged in full. What a call may have cost whose bill is unknown stays held back for
    good, next to what is known to be spent.

    A budget within another one spends from both; a cost that does not fit into both is not reserved.

    Nobody waits for a lasting reservation to end, as that of a job that may take days: a cost that does not
    fit next to the lasting ones is hopeless.

    Attributes:
        lease: of a budget that processes share, whose limit is what was leased so far; ``None`` elsewhere.

    Args:
        limit: USD; ``None`` counts what is spent, without a limit.
        outer: the budget it is within.

    Raises:
        ValueError: for a negative or non-finite limit.
    """

    def __init__(self, limit: float | None = None, outer: Budget | None = None) -> None:
        self._outer = outer
        self._limit = None if limit is None else math.floor(_checked(limit, "limit") * _NANO)
        self._spent = self._unconfirmed = self._reserved = self._lasting = 0
        self.lease: BudgetLease | None = None

    @property
    def spent(self) -> float:
        """USD of settled calls, as far as their bills are known."""
        return self._spent / _NANO

    @property
    def unconfirmed(self) -> float:
        """USD that calls whose bills are unknown may have cost beyond :attr:`spent`."""
        return self._unconfirmed / _NANO

    @property
    def reserved(self) -> float:
        """USD held back, lasting reservations included."""
        return self._reserved / _NANO

    @property
    def left(self) -> float | None:
        """USD neither spent, unconfirmed nor reserved, 0 or more; ``None`` without a limit."""
        return None if self._limit is None else max(0, self._limit - self._used - self._reserved) / _NANO

    @property
    def room(self) -> float | None:
        """USD that can be had, as far as is known: :attr:`left`, and what nobody leased of a shared one."""
        if self._limit is None:
            return None
        unleased = 0.0 if self.lease is None else self.lease.unleased
        return max(0.0, (self._limit - self._used - self._reserved) / _NANO + unleased)

    def obtainable(self, cost: float) -> float:
        """Return how many of ``cost`` USD can be had: all, where they fit, or while more may be leased."""
        left, room = self.left, self.room
        if left is None or room is None or cost <= left:
            return cost
        if self.lease is not None and cost < math.inf and not self.lease.is_hopeless(cost):
            return cost
        return min(cost, left if cost == math.inf else room)

    def fits(self, cost: float) -> bool:
        """Whether a call of at most ``cost`` USD may go now."""
        if self._limit is not None and self._used + self._reserved + _up(cost) > self._limit:
            if self.lease is not None:
                self.lease.lack(cost)
            return False
        return self._outer is None or self._outer.fits(cost)

    def short(self, cost: float) -> Budget | None:
        """Return the first budget, from this one outwards, for which ``cost`` USD are hopeless: they would
        not fit even if all calls in flight turned out free, and no other process gives any back."""
        if self._limit is not None and self._used + self._lasting + _up(cost) > self._limit:
            if self.lease is None or self.lease.is_hopeless(cost):
                return self
            self.lease.lack(cost)
        return None if self._outer is None else self._outer.short(cost)

    def must_wait(self, cost: float) -> bool:
        """Whether ``cost`` USD, which are not hopeless, fit into this budget only once calls in flight have
        ended; the outer one does not count."""
        if self._limit is None:
            return False
        return self._lasting <= self._limit - self._used - _up(cost) < self._reserved

    def share(self, limit: float, member: str, wake: Callable[[], None]) -> BudgetLease:
        """Spend from now on only what is leased of ``limit`` USD that processes share; return the lease."""
        self._limit = self._used + self._reserved
        self.lease = BudgetLease(
            limit,
            member,
            wake,
            held=lambda: (self._limit - self._used) / _NANO if self._limit is not None else 0.0,
            reserved=lambda: self._reserved / _NANO,
            widen=self.widen,
        )
        return self.lease

    def widen(self, more: float) -> None:
        """Raise the limit by ``more`` USD. It may be lowered only while nothing is reserved."""
        if self._limit is not None:
            self._limit += round(more * _NANO)

    def reserve(self, cost: float, *, lasting: bool = False) -> SpendReservation:
        """Hold back ``cost`` USD, after :meth:`fits` agreed, in the same critical section.

        Args:
            lasting: held for so long that nobody should wait for its end.

        Raises:
            RuntimeError: when it does not fit.
        """
        nano = _up(cost)
        # nothing fits also where more was spent than the limit allows
        if nano and self._limit is not None and self._used + self._reserved + nano > self._limit:
            raise RuntimeError("reserved more than the budget has left; ask fits() first")
        outer = None if self._outer is None else self._outer.reserve(cost, lasting=lasting)
        made = SpendReservation(nano, outer, lasting)
        self._reserved += nano  # from here on nothing is called, so that a Ctrl-C comes before or after it
        if lasting:
            self._lasting += nano
        return made

    def settle(self, reservation: SpendReservation, actual: float, unconfirmed: float = 0.0) -> None:
        """Count what the call really cost as spent and release the rest.

        Args:
            actual: USD, as far as the bill is known.
            unconfirmed: USD that it may have cost besides; they stay held back.

        Raises:
            RuntimeError: when the reservation ended before.
        """
        nano, unknown = round(_checked(actual, "actual cost") * _NANO), _up(unconfirmed)
        self._close(reservation)
        if self._outer is not None and reservation.outer is not None:
            self._outer.settle(reservation.outer, actual, unconfirmed)
        self._spent += nano
        self._unconfirmed += unknown

    def spend(self, reservation: SpendReservation, actual: float) -> None:
        """Count ``actual`` USD as spent out of the reservation; the rest stays held back."""
        nano = round(_checked(actual, "actual cost") * _NANO)
        part = min(nano, reservation.nano)
        reservation.nano -= part
        self._reserved -= part
        if reservation.lasting:
            self._lasting -= part
        self._spent += nano
        if self._outer is not None and reservation.outer is not None:
            self._outer.spend(reservation.outer, actual)

    def resize(self, reservation: SpendReservation, cost: float) -> None:
        """Hold back ``cost`` USD by a reservation from now on, or what there is where that is less."""
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
        """Release all of it: the call cost nothing. Raises as :meth:`settle`."""
        self.settle(reservation, 0.0)

    @property
    def _used(self) -> int:
        return self._spent + self._unconfirmed

    def _close(self, reservation: SpendReservation) -> None:
        if not reservation.open:
            raise RuntimeError("a reservation ends once")
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
    nano = _checked(cost, "cost") * _NANO
    whole = round(nano)  # a whole number of billionths may arrive as a float slightly above it
    return whole if math.isclose(nano, whole, rel_tol=1e-14, abs_tol=1e-6) else math.ceil(nano)


_OFTEN, _RENEW, _IDLE, _HEARTBEAT = 0.1, 1.0, 0.5, 5.0
"""Seconds between two exchanges at least, of a client that spends, after which unused money goes back, and of
one that holds none."""

_AHEAD, _LOW = 2.0, 0.5
"""Seconds of the own spending that are leased, and below which more is."""

_PATIENCE = 5.0
"""Seconds that a cost waits for what others hold, before it is hopeless."""

_CLOSED = 30.0
"""Seconds after which costs are hopeless while the back end is unavailable."""


class BudgetLease:
    """A client's part of a shared budget.

    Args:
        limit: of all together, USD.
        member: the client, by a name of its own.
        wake: called when an exchange becomes due earlier than :meth:`due` said.
        held: returns what is leased and not spent, USD, reserved money included.
        reserved: returns what is reserved for calls and jobs, USD.
        widen: adds to what may be spent, or takes away.

    Attributes:
        lost: whether the back end is unavailable.
        incompatible: why waiting for it does not help, where it does not; else empty.
        grant: of the last exchange; ``None`` before it.
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
        self.lost, self.incompatible = False, ""
        self.grant: LeaseGrant | None = None
        self._limit = limit
        self._member = member
        self._wake = wake
        self._held, self._reserved, self._widen = held, reserved, widen
        self._lacking = 0.0
        self._lacking_since = self._asked_at = self._again_at = self._used_at = self._lost_at = -math.inf
        self._held_then = 0.0
        self._number = self._drawn = self._given = 0  # of exchanges, and billionths of a USD
        self._demand = 0.0
        self._hopeless = math.inf

    def lack(self, cost: float) -> None:
        """A call of ``cost`` USD does not fit into what is leased."""
        if not self._lacking:
            self._lacking = cost
            self._wake()
        self._lacking = min(self._lacking, cost) if cost else self._lacking

    @property
    def is_lacking(self) -> bool:
        """Whether a cost did not fit, and no exchange was made since."""
        return self._lacking > 0.0

    def is_hopeless(self, cost: float) -> bool:
        """Whether nobody will ever lease ``cost`` USD to this client, as far as is known."""
        return cost >= self._hopeless

    @property
    def unleased(self) -> float:
        """USD that nobody leased, as far as is known; 0 while the back end is unavailable."""
        return 0.0 if self.lost else self.last_unleased

    @property
    def last_unleased(self) -> float:
        """USD that nobody leased at the last exchange; all before the first one."""
        return self._limit if self.grant is None else math.floor(self.grant.left[0] * _NANO) / _NANO

    def waits(self) -> bool:
        """Whether an exchange is awaited, or something is leased that has to go back."""
        return bool(self._lacking) or self._held() > self._reserved()

    def due(self, now: float) -> float:
        """Return when the next exchange is due."""
        if self.grant is None and not self.lost:
            return now
        if self._lacking:
            return max(now, self._asked_at + _OFTEN, self._again_at)
        if self._reserved() > 0.0 or now - self._used_at < _IDLE:
            low = self._held() < _LOW * self._demand
            return max(now, self._asked_at + (_OFTEN if low else _RENEW))
        return max(now, self._asked_at + (_IDLE if self._held() > 0.0 else _HEARTBEAT))

    def ask(self, now: float, *, leaving: bool = False) -> LeaseAsk:
        """Return what to tell and ask in an exchange; :meth:`adopt` or :meth:`lose` follows.

        What is not reserved goes back when nothing was spent lately, and when it is too little for a call
        that asked in vain: else several clients would each hold a part of what one of them needs. Whether an
        exchange was made whose answer was lost, the totals of the next one tell. A client that spends nothing
        any more tells no limit, as the tightest holds and others may have been told a higher one since, and
        wants nothing, so that it is given nothing beyond its own.
        """
        held, reserved = self._held(), self._reserved()
        spent = max(0.0, self._held_then - held)
        if spent or reserved:
            self._used_at = now
        seconds = max(now - self._asked_at, _OFTEN)
        self._demand = max(spent / seconds, 0.7 * self._demand)
        returned = 0.0
        in_vain = self.grant is not None and self.grant.wait > 0.0
        if leaving or (in_vain if self._lacking else now - self._used_at >= _IDLE):
            returned = max(0.0, held - reserved)
            self._widen(-returned)
            self._given += round(returned * _NANO)
        kept = held - returned
        free = kept - reserved
        least = max(0.0, self._lacking - free)
        ahead = _AHEAD * self._demand - free
        is_idle = self.grant is not None and not self._lacking and kept == 0.0
        wanted = least if returned or is_idle or ahead * _NANO < 1.0 else max(least, ahead)
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
            totals=Totals(number=self._number, drawn=self._drawn / _NANO, given=self._given / _NANO),
            leaving=int(leaving),
        )

    def adopt(self, grant: LeaseGrant, now: float) -> None:
        """Use what the exchange gave that began last. The cases, in order:

        1. It gave money, or none was lacking: nothing is hopeless.
        2. Nobody else holds any, or a call has waited for long: what was lacking is hopeless, and any call
           that costs more.
        3. Others may give some back: ask again soon.
        """
        self.grant, self.lost, self.incompatible = grant, False, ""
        more = math.floor(grant.granted[0] * _NANO + 0.1)  # sums of floats lack some parts of 10⁻¹⁰
        if more:
            self._drawn += more
            self._widen(more / _NANO)
        lacking, self._lacking = self._lacking, 0.0
        self._hopeless, self._again_at = math.inf, now
        if not grant.wait:
            self._lacking_since = -math.inf
        elif grant.members == 1 or now - self._lacking_since >= _PATIENCE:
            self._hopeless, self._lacking_since = lacking, -math.inf
        else:
            self._again_at = now + _IDLE
        self._held_then = self._held()

    def lose(self, now: float, incompatible: str = "") -> bool:
        """The back end cannot be used: nothing more is leased. True when that begins.

        ``incompatible`` says why waiting does not help, where it does not.
        """
        begins = not self.lost
        self.incompatible = incompatible
        if begins:
            self.lost, self._lost_at = True, now
        self._lacking = 0.0
        self._held_then = self._held()
        if incompatible or now - self._lost_at >= _CLOSED:
            self._hopeless = 0.0
        return begins
