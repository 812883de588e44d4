"""What one client holds of a budget that processes share: leased ahead of its need, in USD.

Money fails closed: what is leased may be spent, and nothing else. A lease of money does not expire, and
what was leased by a process that died stays taken: nobody knows how much of it was spent. Times are
monotonic seconds; the caller holds what guards the budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from smartbatch.core.limits.lease_ask import LeaseAsk, LeaseGrant, MemberLimits, QuotaKind, Totals, first

_OFTEN, _RENEW, _IDLE, _HEARTBEAT = 0.1, 1.0, 0.5, 5.0
"""Seconds between two exchanges at least, of a client that spends, after which unused money goes back, and of
one that holds none."""

_AHEAD, _LOW = 2.0, 0.5
"""Seconds of the own spending that are leased, and below which more is."""

_PATIENCE = 5.0
"""Seconds that a cost waits for what others hold, before it is hopeless."""

_CLOSED = 30.0
"""Seconds after which costs are hopeless while the back end is unavailable."""

_NANO = 1e9
"""Amounts are counted in billionths of a USD, as the budget counts."""


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
