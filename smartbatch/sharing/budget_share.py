"""A client's part of a budget that several processes share."""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Callable
from typing import Protocol, TypeVar

from smartbatch.core.limits.budget import Budget
from smartbatch.core.limits.shared_limit import LeaseAsk, LeaseGrant
from smartbatch.events import Event
from smartbatch.sharing.limit_leases import SharedLeases

_T = TypeVar("_T")
_numbers = itertools.count(1)


class BudgetOwner(Protocol):
    """The client of a budget share."""

    budget: Budget

    def guard_budget(self, work: Callable[[], _T]) -> _T:
        """Run ``work`` while no other thread reserves or reconciles money."""
        ...

    def look_again(self) -> None:
        """Check again whether waiting requests can be sent."""
        ...

    def tell(self, event: Event) -> None:
        """Announce an event to all listeners."""
        ...


class BudgetShare:
    """A budget, as a :class:`~smartbatch.sharing.limit_leases.Share`.

    Args:
        name: the name of the budget, the same for all clients that share it.
        limit: USD that all of them may spend together.
        owner: the client; only a weak reference is kept.
    """

    model = "budget"

    def __init__(self, leases: SharedLeases, name: str, limit: float, owner: BudgetOwner) -> None:
        self.scope = name
        self.leases = leases
        self._owner = weakref.ref(owner)
        member = f"{leases.member}:{next(_numbers)}"  # each client of a process has its own lease
        self._lease = owner.budget.share(limit, member, leases.wake)

    @property
    def is_used(self) -> bool:
        return self._owner() is not None

    @property
    def waits(self) -> bool:
        return self._guarded(self._lease.waits)

    def due(self, now: float) -> float:
        return math.inf if self._owner() is None else self._guarded(lambda: self._lease.due(now))

    def ask(self, now: float, *, leaving: bool) -> LeaseAsk:
        return self._guarded(lambda: self._lease.ask(now, leaving=leaving))

    def adopt(self, grant: LeaseGrant, now: float) -> None:
        self._guarded(lambda: self._lease.adopt(grant, now))

    def lose(self, now: float, incompatible: str) -> int | None:
        begins = self._guarded(lambda: self._lease.lose(now, incompatible))
        grant = self._lease.grant
        return None if not begins else 0 if grant is None else grant.members

    def wake(self) -> None:
        owner = self._owner()
        if owner is not None:
            owner.look_again()

    def tell(self, event: Event) -> None:
        owner = self._owner()
        if owner is not None:
            owner.tell(event)

    def end(self) -> None:
        """Keep the lease, because jobs may have reserved part of it."""

    def _guarded(self, work: Callable[[], _T]) -> _T:
        owner = self._owner()
        return work() if owner is None else owner.guard_budget(work)
