"""The items of jobs: what waits, what is in flight in real time, and the results of all.

The tables ``item``, ``payload``, ``result`` and ``earlier_tries``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from attrs import frozen

from smartbatch.jobs.records import (
    ItemState,
    JobLease,
    JobNote,
    LeaseLost,
    NewResult,
    OpenItem,
    ResultRow,
    StoredItem,
    StoredResults,
)
from smartbatch.jobs.store import outcomes
from smartbatch.jobs.store.database import Database, Transaction, first_of, fitting, number, position
from smartbatch.jobs.store.leases import LeaseTable, leased
from smartbatch.jobs.store.outcomes import first_in, items_by_number, job_number
from smartbatch.jobs.store.schema import open_item, result_row

_T = TypeVar("_T")

PAGE_DROPPED = 10_000
"""Items that a cancelled job ends in one transaction."""
# pages are ranges of numbers: with an open end, a PostgreSQL that has not counted the rows yet reads them all
# a follower has no body of its own, but that of its leader, and the answer that was refused before it
_RESULTS = """SELECT {columns} FROM result r JOIN payload p ON p.no = r.no
    LEFT JOIN follower f ON f.no = r.no LEFT JOIN result l ON l.no = f.leader
    LEFT JOIN earlier_tries e ON e.no = coalesce(f.leader, r.no)
    WHERE {order} >= ? AND {order} < ? ORDER BY {order}"""
_SIZES = "{order}, length(coalesce(l.body, r.body)) + length(p.body) + coalesce(length(e.body), 0)"
_WHOLE = """r.no, p.user_id, r.outcome, coalesce(l.body, r.body), p.body, r.cost, r.seq, f.no IS NOT NULL,
    e.cost, e.usage, e.body"""


@frozen
class ItemTable:
    """The items of jobs."""

    db: Database
    leases: LeaseTable

    def in_state(
        self, job_id: str, *, state: ItemState = ItemState.OPEN, limit: int = 100_000
    ) -> list[OpenItem]:
        """Return items in ``state``, in order."""
        job = job_number(self.db, job_id)
        rows = self.db.rows(_in_state(state), state.value, first_of(job), first_of(job + 1), limit)
        return [open_item(row) for row in rows]

    def count(self, job_id: str, state: ItemState) -> int:
        """Return how many items are in a state."""
        job = job_number(self.db, job_id)
        counted = f"SELECT count(*) FROM item WHERE {_where(state)}"
        [(found,)] = self.db.rows(counted, state.value, first_of(job), first_of(job + 1))
        return int(found)

    def bodies(self, job_id: str, positions: Collection[int]) -> dict[int, bytes]:
        """Return requests of a job by their positions in it; ask for a few hundred at a time."""
        job = job_number(self.db, job_id)
        items = items_by_number(self.db, (number(job, ix) for ix in positions))
        return {item.ix: item.payload for item in items.values()}

    # -- not sent by batch -----------------------------------------------------------------------------------

    @leased
    def fail_open(
        self, tx: Transaction, job: int, positions: Collection[int], body: bytes, *, at: float
    ) -> None:
        """End ``OPEN`` items as failed with ``body``; they cost nothing.

        Raises:
            LeaseLost: also when one of them is not open.
        """
        numbers = _take_open(tx, job, positions, ItemState.FINAL)
        outcomes.end_alike(tx, job, numbers, NewResult(-1, "failed", body, cost=0.0), at)

    @leased
    def move_to_realtime(self, tx: Transaction, job: int, positions: Collection[int]) -> None:
        """Turn ``OPEN`` items to ``REALTIME``.

        Raises:
            LeaseLost: also when one of them is not open.
        """
        _take_open(tx, job, positions, ItemState.REALTIME)

    # -- real time -------------------------------------------------------------------------------------------

    @leased
    def claim_realtime(self, tx: Transaction, job: int, limit: int) -> list[StoredItem]:
        """Turn ``REALTIME`` items to ``IN_FLIGHT`` and return them, in order: only then are they sent."""
        return _claim(tx, job, limit)

    @leased
    def answer(
        self,
        tx: Transaction,
        job: int,
        results: Sequence[NewResult],
        *,
        at: float,
        freed: float = 0.0,
        note: JobNote | None = None,
        claim: int = 0,
    ) -> StoredResults:
        """Store what came of ``IN_FLIGHT`` items. What it counted is told by the caller, with no lock held,
        by :meth:`.LeaseTable.tell_counts`.

        ``again`` makes them ``REALTIME`` with one try more, ``unrun`` without; what those cost all
        the same is charged. What answers cost that do not count is kept reserved, and told by an incident.

        Args:
            freed: USD that were reserved for them and no longer are.
            note: what the job waits for, or that it waits no more. Were it written later, a held job's items
                could be claimed again before.
            claim: up to so many items are claimed along with it, as by :meth:`claim_realtime`.

        Raises:
            ValueError: the job has no such item.
        """
        items = outcomes.item_states(tx, job, [result.ix for result in results])
        foreign = {result.ix for result in results} - items.keys()
        if foreign:
            raise ValueError(f"the job has no item {min(foreign)}")
        final, doubled = outcomes.keep(tx, job, items, results, at)
        outcomes.send_again(tx, job, results)
        in_flight = ItemState.IN_FLIGHT.value
        outcomes.charge(tx, job, [r for r in results if not r.final and items[r.ix][0] == in_flight], at)
        outcomes.reserve(tx, job, -freed)
        outcomes.keep_paid_twice(tx, job, [result for result in results if result.ix in doubled], at)
        if note is not None:
            outcomes.note(tx, job, note)
        counts, tx.counted = tuple(tx.counted), []
        claimed = tuple(_claim(tx, job, claim)) if claim else ()
        return StoredResults(tuple(final), tuple(doubled), counts, claimed)

    def drop_unsent(self, lease: JobLease, body: bytes, *, at: float) -> int:
        """End every ``OPEN`` and ``REALTIME`` item as cancelled with ``body``; return how many.

        Some thousands a transaction: ``OPEN`` ones first, then those for real time. Where it is interrupted,
        those already ended stay so, and the next call goes on. Items in shards or in flight are left alone.
        """
        cancelled = NewResult(-1, "cancelled", body, cost=0.0)
        dropped = count = self._drop_page(lease, cancelled, at)
        while count == PAGE_DROPPED:
            count = self._drop_page(lease, cancelled, at)
            dropped += count
        return dropped

    @leased
    def _drop_page(self, tx: Transaction, job: int, cancelled: NewResult, at: float) -> int:
        numbers: list[int] = []
        for state in (ItemState.OPEN, ItemState.REALTIME):
            room = PAGE_DROPPED - len(numbers)
            rows = tx.rows(_in_state(state), state.value, first_of(job), first_of(job + 1), room)
            numbers += (row[0] for row in rows)
        outcomes.end_alike(tx, job, numbers, cancelled, at)
        return len(numbers)

    # -- results ---------------------------------------------------------------------------------------------

    def results(self, job_id: str, *, after: int = -1, limit: int = 1000) -> list[ResultRow]:
        """Return up to ``limit`` results by the item's position, from the one after ``after``."""
        job = job_number(self.db, job_id)
        return self._from("no", self._whole, number(job, after + 1), first_of(job + 1), limit)

    def fresh(self, job_id: str, *, after: int = 0, limit: int) -> list[ResultRow]:
        """Return up to ``limit`` results by ``seq``, from the one after ``after``; none is ever skipped."""
        job = job_number(self.db, job_id)
        return self._from("seq", self._whole, number(job, after + 1), first_of(job + 1), limit)

    def sequences(self, job_id: str, *, after: int = 0, limit: int = 10_000) -> list[tuple[int, int]]:
        """Return ``seq`` and position of up to ``limit`` results, as :meth:`fresh`, without what they say: by
        the index alone."""
        job = job_number(self.db, job_id)
        return self._from("seq", self._numbers, number(job, after + 1), first_of(job + 1), limit)

    def last_sequence(self, job_id: str) -> int:
        """Return the ``seq`` of the latest result of a job; 0 where there is none, or no such job."""
        found = self.db.row("SELECT seq FROM job WHERE id = ?", job_id)
        return 0 if found is None else int(found[0])

    def _from(
        self, column: str, read: Callable[[str, int, int], list[_T]], first: int, end: int, limit: int
    ) -> list[_T]:
        """Return the next page by a column, also where it begins after a gap.

        What was no gap but not stored yet may be stored while it is looked behind: then it is there now, as
        results are stored in the order of ``seq``.
        """
        order, past = f"r.{column}", min(first + limit, end)
        page = read(order, first, past)
        if page or past == end:
            return page
        behind = first_in(self.db, "result", past, end, column=column)
        if behind is None:
            return []
        return read(order, first, past) or read(order, behind, min(behind + limit, end))

    def _numbers(self, order: str, first: int, end: int) -> list[tuple[int, int]]:
        """Return the numbers of results of a range."""
        found = f"SELECT r.seq, r.no FROM result r WHERE {order} >= ? AND {order} < ? ORDER BY {order}"
        return [(position(seq), position(no)) for seq, no in self.db.rows(found, first, end)]

    def _whole(self, order: str, first: int, end: int) -> list[ResultRow]:
        """Return results of a range of numbers, or the first of them where they are large."""
        sizes, whole = (
            _RESULTS.replace("{columns}", columns).replace("{order}", order) for columns in (_SIZES, _WHOLE)
        )
        found = self.db.rows(sizes, first, end)
        fit = fitting(size for _, size in found)
        return [result_row(row) for row in self.db.rows(whole, first, found[fit - 1][0] + 1)] if fit else []


def _take_open(tx: Transaction, job: int, positions: Collection[int], to: ItemState) -> list[int]:
    """Turn open items to a state; return their numbers."""
    numbers = [number(job, ix) for ix in positions]
    take = "UPDATE item SET state = ? WHERE no IN {numbers} AND state = {open}"
    if tx.change(take, to.value, numbers) != len(numbers):
        raise LeaseLost("not every item is open; nothing was written")
    return numbers


def _claim(tx: Transaction, job: int, limit: int) -> list[StoredItem]:
    rows = tx.rows(
        """UPDATE item SET state = {in_flight} WHERE no IN (
        SELECT no FROM item WHERE {waiting} AND state = {realtime} AND no >= ? AND no < ?
        ORDER BY no LIMIT ?) RETURNING no""",
        first_of(job),
        first_of(job + 1),
        limit,
    )
    return list(items_by_number(tx, (no for (no,) in rows)).values())


def _in_state(state: ItemState) -> str:
    """Return the statement for items in a state."""
    return f"SELECT no, size, tokens, tries FROM item WHERE {_where(state)} ORDER BY no LIMIT ?"


def _where(state: ItemState) -> str:
    """Return what holds for items in a state, by the index of those that wait where it has them."""
    indexed = "{waiting} AND " if state.value < ItemState.SHARDED.value else ""
    return f"{indexed}state = ? AND no >= ? AND no < ?"
