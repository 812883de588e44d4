"""The budget of a job: the maximum cost of its requests, and the requests that the budget still covers.

Spent and reserved money together never exceed the budget (see :meth:`.JobTable.reserve`). The maximum cost of
a shard is reserved when it is planned, and that of a real-time item before its call. If an answer that may
have been billed is lost, its reservation is never released.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from attrs import define, evolve, field, frozen

from smartbatch._words import money
from smartbatch.core.limits.budget import Budget
from smartbatch.core.limits.budget_reservations import JobReservations
from smartbatch.core.prefixes.savings import with_writes
from smartbatch.core.preparation.calibration import Calibration
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
from smartbatch.jobs.shard_records import OPEN_SHARDS
from smartbatch.jobs.store import SqlStore
from smartbatch.jobs.wiring import JobRuntime, PolicyChange, unchanged
from smartbatch.observe import logs
from smartbatch.prices import Processing, RateCard
from smartbatch.providers.price_book import PriceBook
from smartbatch.types import Request, T

PAGE_ITEMS = 500
RETRY_FACTOR = 1.5
"""Multiplies the reservation of a request that cost more than was reserved for it."""
NANO_PER_USD = 1e9
TINY_USD = 1e-9
"""Tolerance when sums of floats are compared."""


class CostCeiling:
    """The maximum cost of a job's requests, in USD; 0 if no price is known."""

    def __init__(self, row: JobRow, prices: PriceBook, wall: float, calibration: Calibration) -> None:
        self._provider, _, self._model = row.model.partition(":")
        self._prices, self._wall = prices, wall
        self._cards: dict[tuple[str, Processing], RateCard | None] = {}
        self._calibration = calibration
        self._shared = decode_params(row.params)

    @classmethod
    def of(cls, runtime: JobRuntime, row: JobRow) -> CostCeiling:
        return cls(row, runtime.prices, runtime.clock.wall(), runtime.wiring.calibration(row))

    def in_batch(self, payload: bytes, *, marked: bool = True) -> float:
        """``marked`` is whether the batch may write the request's shared prefixes to the cache."""
        request = decode_request(payload, self._shared, id=None)
        return self._most(request if marked else evolve(request, cache=None), "batch")

    def in_real_time(self, payload: bytes) -> float:
        return self._most(decode_request(payload, self._shared, id=None), "standard")

    def of_new(self, item: NewItem, *, alone: bool) -> float:
        """Return the maximum cost of a new item. ``alone`` is true if it may be sent in real time."""
        if item.realtime or alone:
            return _whole(self.in_real_time(item.payload))
        return _whole(self.in_batch(item.payload))

    def _card(self, model: str, processing: Processing) -> RateCard | None:
        """Fall back to real-time prices if the model has none for batches."""
        at = (model, processing)
        if at not in self._cards:
            card = self._prices.rates(self._provider, model, self._wall, processing)
            self._cards[at] = card or self._prices.rates(self._provider, model, self._wall)
        return self._cards[at]

    def _most(self, request: Request, processing: Processing) -> float:
        card = self._card(request.model or self._model, processing)
        if card is None:
            return 0.0
        calibration = self._calibration.of(request)
        most = calibration.most(request)
        if request.cache is not None:  # in real time too, prefixes that recur are written for an hour
            most = with_writes(most, request, calibration.estimate(request), long=len(request.cache.prefixes))
        return card.expected_cost(most)


def _whole(usd: float) -> float:
    """Round up to whole billionths, the unit of the budget."""
    return math.ceil(usd * NANO_PER_USD) / NANO_PER_USD


# -- budget and cost of a job ------------------------------------------------------------------------------


def remaining_budget(row: JobRow) -> float:
    """Return the USD that are neither spent nor reserved; negative after an overrun."""
    budget = row.policy.budget
    return math.inf if budget is None else budget - row.cost - row.reserved


@frozen
class JobBill:
    cost: float  # USD known to be spent; once the cost is final, this includes unusable answers
    ended: bool  # the cost can no longer grow
    # USD that a job may still cost after its last result, or that lost answers may have cost
    open: float | None


def bill(store: SqlStore, job_id: str) -> JobBill:
    row = store.jobs.get(job_id)
    if row is None:
        return JobBill(0.0, True, None)
    if row.state is not JobState.DONE:
        return JobBill(row.cost, False, None)
    # a finished job opens no more batches: if none is open now, the row read next contains all costs
    ended = not has_batches(store, job_id)
    row = store.jobs.get(job_id) or row
    reserved = max(0.0, row.reserved)
    if not ended:
        return JobBill(row.cost, False, reserved)
    wasted = min(reserved, sum(each.money or 0.0 for each in store.facts.incidents(job_id)))
    return JobBill(row.cost + wasted, True, reserved - wasted)


def exceeded(row: JobRow, count: int, least: float) -> BudgetExceeded:
    """Build the error for ``count`` unsent requests. ``least`` is the cheapest one's maximum cost in USD."""
    several = (
        f"{count:,} requests were not sent: the cheapest" if count > 1 else "the request was not sent: it"
    )
    left = max(0.0, remaining_budget(row))
    return BudgetExceeded(
        f"{several} could cost up to {money(least)}, and {money(left)} is left of the job's budget of "
        f"{money(row.policy.budget)}; raise the budget and submit the unanswered requests again"
    )


def has_batches(store: SqlStore, job_id: str) -> bool:
    """Return true if the job has open batches, which may cost less than was reserved for them."""
    return bool(store.shards.of_job(job_id, states=OPEN_SHARDS))


# -- planning ------------------------------------------------------------------------------------------------


def is_under_way(store: SqlStore, row: JobRow) -> bool:
    """Return true if part of the job is unfinished and may cost less than was reserved for it."""
    if has_batches(store, row.id):
        return True
    states = (ItemState.REALTIME, ItemState.IN_FLIGHT)
    return any(store.items.in_state(row.id, state=state, limit=1) for state in states)


def pages(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[start : start + PAGE_ITEMS] for start in range(0, len(items), PAGE_ITEMS))


# -- real-time items ---------------------------------------------------------------------------------------


class JobBudget:
    """The budget for the real-time items of a job that this process owns. Each new owner creates its own.

    The maximum cost of a call is reserved in the store before the call. The transaction that stores the
    answer charges the cost and releases the reservation. :attr:`calls` never holds more than was reserved,
    which also limits the cost of repeated calls for one item. The rest is released when no item is in flight.
    After a crash the reservation is kept, because the billed amount is unknown.
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
        """Reserve the maximum cost of items. Return those that exceed the budget, with their cost.

        Raises:
            LeaseLost, StoreError: nothing was reserved.
        """
        mosts = {item.ix: self._most(item) for item in items}
        with self._lock:
            if self._reserve_locked(mosts):
                return {}
            fitting = self._fitting_locked(mosts)
            if not self._reserve_locked(fitting):  # a shard has used up the budget
                return mosts
        return {ix: most for ix, most in mosts.items() if ix not in fitting}

    def fell_short(self, ix: int) -> bool:
        """True if this budget was too small for an item. The next reservation is then larger."""
        if self.calls.short(self._under_way.get(ix, 0.0)) not in (None, self.calls):
            return False
        self._factors[ix] = self._factors.get(ix, 1.0) * RETRY_FACTOR
        return True

    def store(self, results: Sequence[NewResult], *, at: float, note: JobNote | None = None) -> StoredResults:
        """Store results, charge their cost, and release the rest if no item is in flight.

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
        except SmartbatchError as error:  # the money stays reserved and pays for the next items
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
        """Return the USD already spent or still spendable by calls in flight, including abandoned ones."""
        used = self.calls.spent + self.calls.unconfirmed
        return used + max(self.calls.reserved, sum(self._under_way.values()))


# -- the client's budget -------------------------------------------------------------------------------------


@define(eq=False, repr=False)
class ClientBudget:
    """Reserves money in a client's budget for its jobs by observing their events. Thread-safe.

    Each job keeps to its own budget in the store, regardless of the process that runs it. The amount it can
    still spend is reserved in the client's budget, so that jobs and real-time requests together never exceed
    that budget.
    """

    reservations: JobReservations
    _store: Callable[[], SqlStore]
    # USD spent by batches for which this budget has no reservation, because it has no limit or another client
    # submitted the jobs
    unreserved: float = field(default=0.0, init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False)

    def __call__(self, event: Event) -> None:
        if isinstance(event, JobResultsStored):
            if event.cost and not event.in_realtime and not self.reservations.has(event.job_id):
                with self._lock:
                    self.unreserved += event.cost
        elif isinstance(event, JobProgress):
            self.reservations.charge(event.job_id, event.cost, ended=False)
        elif isinstance(event, (JobFinished, ShardChanged)) and self.reservations.has(event.job_id):
            self.refresh(event.job_id)

    def refresh(self, job_id: str | None = None) -> None:
        """Update the cost of one job, or of every job, because it may have ended in another process.

        After the job has ended, the possible cost of lost answers stays reserved until its last batch is
        settled.
        """
        for each in self.reservations.jobs if job_id is None else [job_id]:
            seen = self.reservations.seen(each)
            if seen is None:
                continue
            try:
                owed = bill(self._store(), each)
            except SmartbatchError:  # the money stays reserved
                continue
            self.reservations.charge(each, owed.cost, ended=owed.ended, still=owed.open, seen=seen)

    def adopt(self, row: JobRow) -> None:
        """Reserve the amount that the job of an earlier process can still spend, unless it is reserved."""
        if self.reservations.budget.left is None or row.policy.attended:
            return
        if row.state is JobState.DONE or not self._is_next_to(row):
            return
        budget = row.policy.budget
        unspent = None if budget is None else max(0.0, budget - row.cost)
        with suppress(ClientClosed):  # no more money can be leased, and nothing is sent
            self.reservations.reserve(
                unspent, lambda reservation: self.reservations.assign(row.id, reservation, row.cost)
            )
        self.refresh(row.id)

    def reopen(self, job_id: str, work: Callable[[PolicyChange], T]) -> T:
        """Send requests of a job again through ``work``, which also changes the job's policy.

        The amount that a finished job can then spend is reserved first. If less is available, that amount
        becomes the job's budget.

        Raises:
            ClientClosed: more of a shared budget is needed, but the client was stopped.
        """
        if self.reservations.budget.left is None:
            return work(unchanged)
        try:  # the end of the job may be published concurrently
            return self.reservations.renew(job_id, 0.0, 0.0, lambda _: self._reopen(job_id, work))
        finally:
            self.refresh(job_id)

    def _reopen(self, job_id: str, work: Callable[[PolicyChange], T]) -> T:
        row = self._store().jobs.get(job_id)
        if row is None or row.state is not JobState.DONE or row.policy.attended:
            return work(unchanged)
        owed, budget = bill(self._store(), job_id), row.policy.budget
        lost = owed.open or 0.0
        used = owed.cost + lost
        wanted = self.reservations.budget.room or 0.0 if budget is None else max(0.0, budget - used)

        def within(held: float) -> T:
            most = budget if budget is not None and held + TINY_USD >= wanted else used + held
            account = self.reservations.account
            return work(lambda policy: evolve(policy, budget=most, budget_account=account))

        return self.reservations.renew(job_id, wanted, owed.cost, within, lost=lost)

    def next_to(self, row: JobRow) -> Budget | None:
        """Return the client's budget if the job's own budget is not reserved in it."""
        return self.reservations.budget if self._is_next_to(row) else None

    def _is_next_to(self, row: JobRow) -> bool:
        mine = row.policy.budget_account == self.reservations.account
        return not mine and not self.reservations.has(row.id)
