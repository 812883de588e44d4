"""The budget of a job: what its requests can cost at most, and which of them it has room for.

What is charged and what is reserved never exceed the budget together (see
store's :meth:`.JobTable.reserve`). The most a shard can cost is reserved when it is planned;
the most an item can cost in real time is reserved before its call. Where an answer that may have been billed
is lost, its reservation stays for good.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from attrs import define, evolve, field, frozen

from smartbatch._words import money
from smartbatch.core.limits.budget import Budget
from smartbatch.core.limits.budget_reservations import JobReservations
from smartbatch.core.preparation.tokens import Calibration
from smartbatch.errors import BudgetExceeded, ClientClosed, SmartbatchError
from smartbatch.events import Event, JobFinished, JobProgress, JobResultsStored, ShardChanged
from smartbatch.jobs.payload import decode_params, decode_request
from smartbatch.jobs.records import (
    ItemState,
    JobLease,
    JobNote,
    JobRow,
    JobState,
    NewItem,
    NewResult,
    OverJobBudget,
    StoredItem,
    StoredResults,
)
from smartbatch.jobs.retried_rows import PolicyChange, unchanged
from smartbatch.jobs.shard_records import OPEN_SHARDS, ShardState
from smartbatch.jobs.store import SqlStore
from smartbatch.jobs.verdicts import LATER, SOON, Verdict
from smartbatch.jobs.wiring import JobRuntime
from smartbatch.observe import logs
from smartbatch.prices import PriceBook, Processing, RateCard
from smartbatch.types import Request, Result

PAGE = 500
"""Requests that are read at a time."""
MORE = 1.5
"""Factor on the reservation of a request whose first one did not suffice for its calls."""
_NANO = 1e9
TINY = 1e-9
"""USD by which sums of floats may differ."""
SENT = OPEN_SHARDS - {ShardState.PLANNED}
_T = TypeVar("_T")


class CostCeiling:
    """The most that requests of a job can cost, USD; 0 where no price is known.

    Counted as for a request outside a job, by :meth:`~smartbatch.core.preparation.tokens.Calibration.most`.
    """

    def __init__(self, row: JobRow, prices: PriceBook, wall: float, calibration: Calibration) -> None:
        self._provider, _, self._model = row.model.partition(":")
        self._prices, self._wall = prices, wall
        self._cards: dict[tuple[str, Processing], RateCard | None] = {}
        self._calibration = calibration
        self._shared = decode_params(row.params)

    @classmethod
    def of(cls, runtime: JobRuntime, row: JobRow) -> CostCeiling:
        """Return that of a job that is carried on."""
        return cls(row, runtime.prices, runtime.clock.wall(), runtime.wiring.calibration(row))

    def in_batch(self, payload: bytes) -> float:
        """Return the most a request can cost in a batch."""
        return self._most(decode_request(payload, self._shared, id=None), "batch")

    def in_real_time(self, payload: bytes) -> float:
        """Return the most one call for a request can cost in real time."""
        return self._most(decode_request(payload, self._shared, id=None), "standard")

    def of_new(self, item: NewItem, *, alone: bool) -> float:
        """Return the most an item can cost that is to be stored, as the budget counts.

        Args:
            alone: whether it is asked in real time where no batch ran it.
        """
        if item.realtime or alone:
            return _whole(self.in_real_time(item.payload))
        return _whole(self.in_batch(item.payload))

    def _card(self, model: str, processing: Processing) -> RateCard | None:
        """Return the prices of a model; those of real time if it has none by batch."""
        at = (model, processing)
        if at not in self._cards:
            card = self._prices.rates(self._provider, model, self._wall, processing)
            self._cards[at] = card or self._prices.rates(self._provider, model, self._wall)
        return self._cards[at]

    def _most(self, request: Request, processing: Processing) -> float:
        card = self._card(request.model or self._model, processing)
        return 0.0 if card is None else card.cost(card.expected_usage(*self._calibration.most(request)))


def _whole(usd: float) -> float:
    """Return an amount in whole billionths, as the budget counts."""
    return math.ceil(usd * _NANO) / _NANO


# -- what a job has and what it has cost ---------------------------------------------------------------------


def remaining_budget(row: JobRow) -> float:
    """Return the USD of a job's budget that are neither spent nor reserved; below 0 when it cost too much,
    infinity where somebody took the budget away."""
    budget = row.policy.budget
    return math.inf if budget is None else budget - row.cost - row.reserved


@frozen
class JobBill:
    """What a job has cost by now, USD.

    Attributes:
        cost: what it has spent, as far as bills are known; at its end also for answers of no use.
        ended: whether it can cost nothing more.
        open: where all its requests have their results, what it can still cost, or may have cost besides
            for answers that are lost; else ``None``.
    """

    cost: float
    ended: bool
    open: float | None


def bill(store: SqlStore, job_id: str) -> JobBill:
    """Return what a job has cost; 0 for one that was deleted.

    A job that is done opens no further batch. So when none of its batches is open after it was seen done, the
    row that is read after that has all costs.
    """
    row = store.jobs.get(job_id)
    if row is None:
        return JobBill(0.0, True, None)
    if row.state is not JobState.DONE:
        return JobBill(row.cost, False, None)
    ended = not has_batches(store, job_id)
    row = store.jobs.get(job_id) or row
    reserved = max(0.0, row.reserved)
    if not ended:
        return JobBill(row.cost, False, reserved)
    wasted = min(reserved, sum(each.money or 0.0 for each in store.facts.incidents(job_id)))
    return JobBill(row.cost + wasted, True, reserved - wasted)


def exceeded(row: JobRow, count: int, least: float) -> BudgetExceeded:
    """Return the error of requests that are not sent.

    Args:
        count: how many they are.
        least: the most that the cheapest of them can cost, USD.
    """
    several = f"{count:,} requests were not sent: the cheapest of them" if count > 1 else "not sent: it"
    left = max(0.0, remaining_budget(row))
    return BudgetExceeded(
        f"{several} could cost up to {money(least)}, and {money(left)} are left of the "
        f"job's budget of {row.policy.budget:g} USD; raise the budget and submit what was not answered again"
    )


def has_batches(store: SqlStore, job_id: str) -> bool:
    """Whether batches of a job may still cost less than was reserved for them."""
    return bool(store.shards.of_job(job_id, states=OPEN_SHARDS))


def short_of_budget(store: SqlStore, row: JobRow, refused: Mapping[int, float], *, others: bool) -> Verdict:
    """Return what becomes of items for which there is no room: they wait, or end where none will come.

    Args:
        refused: the items, with the most each can cost.
        others: other items of the job are under way.
    """
    if others or has_batches(store, row.id):
        error = BudgetExceeded("what is left of the job's budget is held for requests under way")
        return Verdict("unrun", Result("", error=error, cost=0.0), wait=LATER, note=f"waits: {error.message}")
    fresh = store.jobs.get(row.id) or row
    raised = fresh.policy.budget != row.policy.budget
    if raised and min(refused.values()) <= remaining_budget(fresh) + TINY:  # somebody did so just now
        error = BudgetExceeded("the job's budget had no room")
        return Verdict("unrun", Result("", error=error, cost=0.0), wait=SOON, asked=False)
    error = exceeded(fresh, len(refused), min(refused.values()))
    return Verdict("failed", Result("", error=error, cost=0.0), asked=False)


# -- shards --------------------------------------------------------------------------------------------------


def is_under_way(store: SqlStore, row: JobRow) -> bool:
    """Whether anything of a job may still cost less than was reserved for it."""
    if has_batches(store, row.id):
        return True
    states = (ItemState.REALTIME, ItemState.IN_FLIGHT)
    return any(store.items.in_state(row.id, state=state, limit=1) for state in states)


def pages(items: Sequence[_T]) -> Iterator[Sequence[_T]]:
    return (items[start : start + PAGE] for start in range(0, len(items), PAGE))


# -- items in real time --------------------------------------------------------------------------------------


class JobBudget:
    """What a job's items in real time spend from, while this process owns the job; made anew by each owner.

    Before a call the most it can cost is reserved in the store; when its answer is stored, its cost is
    charged and the reservation released in the same transaction. :attr:`calls` never holds more than was
    reserved, so that repeated calls of one item are bounded as well. When no item is under way, what is left
    is released. After a crash the reservation stays: nobody knows what was billed.

    Attributes:
        calls: the budget that the calls for the job's items spend from.
    """

    def __init__(self, runtime: JobRuntime, lease: JobLease, row: JobRow) -> None:
        self._store = runtime.store
        self._lease = lease
        self._ceiling = CostCeiling.of(runtime, row)
        self._lock = threading.Lock()
        self._reserved = self._charged = 0.0
        self._under_way: dict[int, float] = {}
        self._factors: dict[int, float] = {}
        self.calls = Budget(0.0, runtime.wiring.outer_budget(row))

    def reserve(self, items: Sequence[StoredItem]) -> dict[int, float]:
        """Reserve the most that items can cost; return those for which there was no room, with their most.

        Raises:
            LeaseLost, StoreError: nothing was reserved.
        """
        mosts = {item.ix: self._most(item) for item in items}
        with self._lock:
            if self._reserve_locked(mosts):
                return {}
            fitting = self._fitting_locked(mosts)
            if not self._reserve_locked(fitting):  # a shard took the room meanwhile
                return mosts
        return {ix: most for ix, most in mosts.items() if ix not in fitting}

    def fell_short(self, ix: int) -> bool:
        """Whether it was this budget that had no room for an item; then more is reserved for it next time."""
        if self.calls.short(self._under_way.get(ix, 0.0)) not in (None, self.calls):
            return False
        self._factors[ix] = self._factors.get(ix, 1.0) * MORE
        return True

    def store(self, results: Sequence[NewResult], *, at: float, note: JobNote | None = None) -> StoredResults:
        """Store results, charge their cost, and release what is left when no item is under way; see
        :meth:`.ItemTable.answer`.

        Raises:
            LeaseLost, StoreError: nothing was stored.
        """
        with self._lock:
            cost = sum(result.cost or 0.0 for result in results)
            freed = max(0.0, min(cost, self._reserved - self._charged))
            stored = self._store.items.answer(self._lease, results, at=at, freed=freed, note=note)
            self._charged += freed
            for result in results:
                self._under_way.pop(result.ix, None)
                if result.final:
                    self._factors.pop(result.ix, None)
            if not self._under_way:
                self._release_locked()
            return stored

    def _release_locked(self) -> None:
        left = self._reserved - max(self._committed_locked(), self._charged)
        if left <= 0:
            return
        try:
            self._store.jobs.reserve(self._lease, -left)
        except SmartbatchError as error:  # it stays reserved here, and is spent by the next items
            logs.warn("reservation_kept", job_id=self._lease.job_id, error=type(error).__name__)
            return
        self._reserved -= left
        self.calls.widen(-left)

    def _most(self, item: StoredItem) -> float:
        return _whole(self._ceiling.in_real_time(item.payload) * self._factors.get(item.ix, 1.0))

    def _reserve_locked(self, mosts: dict[int, float]) -> bool:
        more = self._committed_locked() + sum(mosts.values()) - self._reserved
        if more > 0:
            try:
                self._store.jobs.reserve(self._lease, more)
            except OverJobBudget:
                return False
            self._reserved += more
            self.calls.widen(more)
        self._under_way.update(mosts)
        return True

    def _fitting_locked(self, mosts: dict[int, float]) -> dict[int, float]:
        row = self._store.jobs.get(self._lease.job_id)
        left = 0.0 if row is None else remaining_budget(row) + self._reserved - self._committed_locked()
        fitting: dict[int, float] = {}
        for ix, most in mosts.items():
            if most <= left:
                fitting[ix] = most
                left -= most
        return fitting

    def _committed_locked(self) -> float:
        """What was spent, and can be by calls under way, those of requests that were given up included."""
        used = self.calls.spent + self.calls.unconfirmed
        return used + max(self.calls.reserved, sum(self._under_way.values()))


# -- the client's budget -------------------------------------------------------------------------------------


@define(eq=False, repr=False)
class ClientBudget:
    """Holds money back in a client's budget for its jobs; an observer of their events. Safe from any thread.

    A job keeps to a budget of its own, in the store, whichever process carries it on. What it can still spend
    is held back here, so that jobs and real-time requests stay within the client's budget together.

    Attributes:
        reservations: what is held back in the client's budget.
        unreserved: USD that jobs cost outside of real time and that the client's budget does not count, as
            nothing is held back for them: it has no limit, or others submitted them.
    """

    reservations: JobReservations
    _store: Callable[[], SqlStore]
    unreserved: float = field(default=0.0, init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False)

    def __call__(self, event: Event) -> None:
        """Count what jobs have cost."""
        if isinstance(event, JobResultsStored):
            if event.cost and not event.in_realtime and not self.reservations.has(event.job_id):
                with self._lock:
                    self.unreserved += event.cost
        elif isinstance(event, JobProgress):
            self.reservations.charge(event.job_id, event.cost, ended=False)
        elif isinstance(event, (JobFinished, ShardChanged)) and self.reservations.has(event.job_id):
            self.refresh(event.job_id)

    def refresh(self, job_id: str | None = None) -> None:
        """Count what a job, or each, has cost by now; it may have ended in another process.

        When it has ended, what may have been billed for answers that are lost stays held back; that is known
        when the last of its batches is settled.
        """
        for each in self.reservations.jobs if job_id is None else [job_id]:
            seen = self.reservations.seen(each)
            if seen is None:
                continue
            try:
                owed = bill(self._store(), each)
            except SmartbatchError:  # it stays held back
                continue
            self.reservations.charge(each, owed.cost, ended=owed.ended, still=owed.open, seen=seen)

    def adopt(self, row: JobRow) -> None:
        """Hold back what a job of an earlier process can still spend, unless another one that shares the
        budget does."""
        if self.reservations.budget.left is None or row.policy.attended:
            return
        if row.state is JobState.DONE or not self._is_next_to(row):
            return
        budget = row.policy.budget
        unspent = None if budget is None else max(0.0, budget - row.cost)
        with suppress(ClientClosed):  # nothing is leased any more, and no request is sent
            self.reservations.reserve(
                unspent, lambda reservation: self.reservations.assign(row.id, reservation, row.cost)
            )
        self.refresh(row.id)

    def reopen(self, job_id: str, work: Callable[[PolicyChange], _T]) -> _T:
        """Have requests of a job asked again by ``work``, which changes its policy along with it. What a job
        that has ended can spend from then on is held back before; where there is less, that is its budget.

        Raises:
            ClientClosed: of a shared budget more would have to be leased, and the client was stopped.
        """
        if self.reservations.budget.left is None:
            return work(unchanged)
        try:  # its end may be told at this very moment
            return self.reservations.renew(job_id, 0.0, 0.0, lambda _: self._reopen(job_id, work))
        finally:
            self.refresh(job_id)

    def _reopen(self, job_id: str, work: Callable[[PolicyChange], _T]) -> _T:
        row = self._store().jobs.get(job_id)
        if row is None or row.state is not JobState.DONE or row.policy.attended:
            return work(unchanged)
        owed, budget = bill(self._store(), job_id), row.policy.budget
        lost = owed.open or 0.0
        used = owed.cost + lost
        wanted = self.reservations.budget.room or 0.0 if budget is None else max(0.0, budget - used)

        def within(held: float) -> _T:
            most = budget if budget is not None and held + TINY >= wanted else used + held
            account = self.reservations.account
            return work(lambda policy: evolve(policy, budget=most, budget_account=account))

        return self.reservations.renew(job_id, wanted, owed.cost, within, lost=lost)

    def next_to(self, row: JobRow) -> Budget | None:
        """Return the client's budget for a job with one of its own that is not held back in it."""
        return self.reservations.budget if self._is_next_to(row) else None

    def _is_next_to(self, row: JobRow) -> bool:
        mine = row.policy.budget_account == self.reservations.account
        return not mine and not self.reservations.has(row.id)
