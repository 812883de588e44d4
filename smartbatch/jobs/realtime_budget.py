"""What a job with a budget spends on requests that are asked alone.

Before a request is asked the most it can cost is pledged in the store; when its answer is stored, what it
cost is booked and taken off the pledge in the same transaction. The budget that its calls spend from never
holds more than was pledged, so that tries beyond the first are bounded as well. When nothing is under way,
what is left goes back. After a crash the pledge stays: nobody knows what was billed.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from attrs import define, field

from smartbatch.core.limits.budget import Budget
from smartbatch.errors import BudgetExceeded, SmartbatchError
from smartbatch.jobs.item_outcomes import LATER, Verdict, verdict_of
from smartbatch.jobs.job_budget import Meter, budget_of, exceeded, room
from smartbatch.jobs.payload import Shared
from smartbatch.jobs.records import OPEN_SHARDS, JobLease, JobRow, NewResult
from smartbatch.jobs.store.base import Direct, OverBudget, Store
from smartbatch.prices import PriceBook
from smartbatch.types import Result

if TYPE_CHECKING:
    from smartbatch.jobs.dependencies import JobDependencies

__all__ = ["JobBudget", "RealtimeItems", "short_of_money", "till_of"]

_NANO = 1e9
MORE = 1.5
"""Times as much is pledged for a request that the budget had no room for, although it was pledged for."""


@define(eq=False)
class RealtimeItems:
    """A job whose items are asked.

    Attributes:
        out: items that are claimed and not yet answered and stored.
        wanting: there may be more to claim.
        resumes_at: when to claim more, by the clock.
        noted: the store says what it waits for.
        stumbles: tries to claim that failed in a row.
        till: its money; ``None`` without a budget.
        short: requests wait for what others do not use.
    """

    lease: JobLease
    row: JobRow
    shared: Shared
    out: dict[int, Future[Result] | None] = field(factory=dict)
    wanting: bool = True
    resumes_at: float = -math.inf
    noted: bool = False
    stumbles: int = 0
    till: JobBudget | None = None
    short: bool = False

    @property
    def attended(self) -> bool:
        """Somebody sits before it."""
        return bool(self.row.policy.get("attended"))

    def verdict_of(self, ix: int, result: Result) -> Verdict:
        """Return what becomes of an item; one that costs more than was pledged for it is asked again."""
        if isinstance(result.error, BudgetExceeded) and self.till is not None and self.till.fell_short(ix):
            return Verdict("unrun", result)
        return verdict_of(result, attended=self.attended)


class JobBudget:
    """The money of one job for as long as this process owns it; made anew by each owner.

    Args:
        meter: says what a request can cost.
        outer: the client's budget, where the job's is not held back in it.

    Attributes:
        budget: what calls for the job's requests spend from.
    """

    def __init__(self, store: Store, lease: JobLease, meter: Meter, outer: Budget | None) -> None:
        self._store = store
        self._lease = lease
        self._meter = meter
        self._lock = threading.Lock()
        self._drawn = self._booked = 0.0
        self._out: dict[int, float] = {}
        self._factors: dict[int, float] = {}
        self.own_budget = Budget(0.0, outer)

    def draw(self, items: Sequence[Direct]) -> dict[int, float]:
        """Pledge the most that items can cost; return those for which there was no room, with their most.

        Raises:
            LeaseLost, StoreError: nothing was pledged.
        """
        mosts = {item.ix: self._most(item) for item in items}
        with self._lock:
            if self._pledged_locked(mosts):
                return {}
            fitting = self._fitting_locked(mosts)
            if not self._pledged_locked(fitting):  # a shard took the room meanwhile
                return mosts
        return {ix: most for ix, most in mosts.items() if ix not in fitting}

    def fell_short(self, ix: int) -> bool:
        """Whether it was this budget that had no room for an item; then more is pledged for it next time."""
        if self.own_budget.short(self._out.get(ix, 0.0)) not in (None, self.own_budget):
            return False
        self._factors[ix] = self._factors.get(ix, 1.0) * MORE
        return True

    def store(self, results: Sequence[NewResult], *, at: float) -> None:
        """Store what came, book it, and give back what is left when nothing is under way.

        Raises:
            LeaseLost, StoreError: nothing was stored.
        """
        with self._lock:
            cost = sum(result.cost or 0.0 for result in results)
            freed = max(0.0, min(cost, self._drawn - self._booked))
            self._store.answer(self._lease, results, at=at, freed=freed)
            self._booked += freed
            for result in results:
                self._out.pop(result.ix, None)
                if result.final:
                    self._factors.pop(result.ix, None)
            if not self._out:
                with contextlib.suppress(SmartbatchError):  # then it is there for the next
                    self._give_back_locked()

    def _give_back_locked(self) -> None:
        left = self._drawn - max(self._committed_locked(), self._booked)
        if left > 0:
            self._store.pledge(self._lease, -left)
            self._drawn -= left
            self.own_budget.widen(-left)

    def _most(self, item: Direct) -> float:
        most = self._meter.alone(item.payload) * self._factors.get(item.ix, 1.0)
        return math.ceil(most * _NANO) / _NANO  # as the budget counts

    def _pledged_locked(self, mosts: dict[int, float]) -> bool:
        more = self._committed_locked() + sum(mosts.values()) - self._drawn
        if more > 0:
            try:
                self._store.pledge(self._lease, more)
            except OverBudget:
                return False
            self._drawn += more
            self.own_budget.widen(more)
        self._out.update(mosts)
        return True

    def _fitting_locked(self, mosts: dict[int, float]) -> dict[int, float]:
        row = self._store.job(self._lease.job_id)
        left = 0.0 if row is None else room(row) + self._drawn - self._committed_locked()
        fitting: dict[int, float] = {}
        for ix, most in mosts.items():
            if most <= left:
                fitting[ix] = most
                left -= most
        return fitting

    def _committed_locked(self) -> float:
        """What was spent, and can be by what is under way: calls whose requests were given up included."""
        return self.own_budget.spent + max(self.own_budget.reserved, sum(self._out.values()))


def till_of(
    store: Store, lease: JobLease, row: JobRow, dependencies: JobDependencies, prices: PriceBook, wall: float
) -> JobBudget | None:
    """Return what a job's requests spend from; ``None`` where the job has no budget."""
    if budget_of(row) is None:
        return None
    return JobBudget(
        store, lease, Meter(row, prices, dependencies.calibration(row), wall), dependencies.outer(row)
    )


def short_of_money(store: Store, row: JobRow, refused: Mapping[int, float], *, others: bool) -> Verdict:
    """Return what becomes of items for which there is no room: they wait, or end where none will come.

    Args:
        refused: the items, with the most each can cost.
        others: other items of the job are being asked.
    """
    if others or store.shards(row.id, states=OPEN_SHARDS):
        error = BudgetExceeded("what is left of the job's budget is held for requests under way")
        return Verdict("unrun", Result("", error=error), wait=LATER, note=f"waits: {error.message}")
    fresh = store.job(row.id) or row
    error = exceeded(fresh, len(refused), min(refused.values()))
    return Verdict("failed", Result("", error=error, cost=0.0))
