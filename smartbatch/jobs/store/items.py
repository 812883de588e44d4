"""The items of jobs and their results: tables ``item``, ``payload``, ``result`` and ``earlier_tries``."""

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

PAGE_DROPPED = 10_000  # unsent items of a cancelled job that are ended per transaction
# pages are closed ranges of numbers: with an open range, PostgreSQL without statistics would read all rows. A
# follower has no body: its leader's body and earlier tries are used
_SELECT_RESULTS = """SELECT {columns} FROM result r JOIN payload p ON p.no = r.no
    LEFT JOIN follower f ON f.no = r.no LEFT JOIN result l ON l.no = f.leader
    LEFT JOIN earlier_tries e ON e.no = coalesce(f.leader, r.no)
    WHERE {order} >= ? AND {order} < ? ORDER BY {order}"""
_SIZE_COLUMNS = "{order}, length(coalesce(l.body, r.body)) + length(p.body) + coalesce(length(e.body), 0)"
_RESULT_COLUMNS = """r.no, p.user_id, r.outcome, coalesce(l.body, r.body), p.body, r.cost, r.seq,
    f.no IS NOT NULL, e.cost, e.usage, e.body"""


@frozen
class ItemTable:
    db: Database
    leases: LeaseTable

    def in_state(
        self, job_id: str, *, state: ItemState = ItemState.OPEN, limit: int = 100_000
    ) -> list[OpenItem]:
        job = job_number(self.db, job_id)
        rows = self.db.rows(_in_state(state), state.value, first_of(job), first_of(job + 1), limit)
        return [open_item(row) for row in rows]

    def count(self, job_id: str, state: ItemState) -> int:
        job = job_number(self.db, job_id)
        counted = f"SELECT count(*) FROM item WHERE {_where(state)}"
        [(found,)] = self.db.rows(counted, state.value, first_of(job), first_of(job + 1))
        return int(found)

    def bodies(self, job_id: str, positions: Collection[int]) -> dict[int, bytes]:
        """Return the requests at the given positions; there should be at most a few hundred."""
        job = job_number(self.db, job_id)
        items = items_by_number(self.db, (number(job, ix) for ix in positions))
        return {item.ix: item.payload for item in items.values()}

    # -- not sent by batch -----------------------------------------------------------------------------------

    @leased
    def fail_open(
        self, tx: Transaction, job: int, positions: Collection[int], body: bytes, *, at: float
    ) -> None:
        """End ``OPEN`` items as failed with ``body``, at no cost.

        Raises:
            LeaseLost: also if an item is not open.
        """
        numbers = _take_open(tx, job, positions, ItemState.FINAL)
        outcomes.end_alike(tx, job, numbers, NewResult(-1, "failed", body, cost=0.0), at)

    @leased
    def move_to_realtime(self, tx: Transaction, job: int, positions: Collection[int]) -> None:
        """Change ``OPEN`` items to ``REALTIME``.

        Raises:
            LeaseLost: also if an item is not open.
        """
        _take_open(tx, job, positions, ItemState.REALTIME)

    # -- real time -------------------------------------------------------------------------------------------

    @leased
    def claim_realtime(self, tx: Transaction, job: int, limit: int) -> list[StoredItem]:
        """Change ``REALTIME`` items to ``IN_FLIGHT``, before they are sent, and return them in order."""
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
        """Store the outcomes of ``IN_FLIGHT`` items.

        ``again`` and ``unrun`` make them ``REALTIME``, but only ``again`` counts a try; costs are charged in
        both cases. The cost of answers that are not used stays reserved, and an
        incident reports it. The caller then calls :meth:`.LeaseTable.report_counts` without holding a lock.

        Args:
            freed: USD of reservations to release.
            note: what the job is waiting for, if anything. It is written in this transaction, because
                otherwise a held job's items could be claimed again before it is written.
            claim: maximum number of items to claim, as :meth:`claim_realtime` does.

        Raises:
            ValueError: the job has no such item.
        """
        items = outcomes.item_states(tx, job, [result.ix for result in results])
        foreign = {result.ix for result in results} - items.keys()
        if foreign:
            raise ValueError(f"the job has no item {min(foreign)}")
        final, doubled = outcomes.store_results(tx, job, items, results, at)
        outcomes.send_again(tx, job, results)
        in_flight = ItemState.IN_FLIGHT.value
        outcomes.charge(tx, job, [r for r in results if not r.final and items[r.ix][0] == in_flight], at)
        outcomes.reserve(tx, job, -freed)
        outcomes.record_paid_twice(tx, job, [result for result in results if result.ix in doubled], at)
        if note is not None:
            outcomes.note(tx, job, note)
        counts, tx.counted = tuple(tx.counted), []
        claimed = tuple(_claim(tx, job, claim)) if claim else ()
        return StoredResults(tuple(final), tuple(doubled), counts, claimed)

    def drop_unsent(self, lease: JobLease, body: bytes, *, at: float) -> int:
        """End every ``OPEN`` and ``REALTIME`` item as cancelled with ``body``; return their number.

        Each transaction ends up to :data:`PAGE_DROPPED` items, ``OPEN`` ones first. After an interruption,
        the next call continues. Items in shards or in flight are not changed.
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
        """Return up to ``limit`` results in the order of positions, starting after ``after``."""
        job = job_number(self.db, job_id)
        return self._from("no", self._whole, number(job, after + 1), first_of(job + 1), limit)

    def fresh(self, job_id: str, *, after: int = 0, limit: int) -> list[ResultRow]:
        """Return up to ``limit`` results in the order of ``seq``, after ``after``; none is ever skipped."""
        job = job_number(self.db, job_id)
        return self._from("seq", self._whole, number(job, after + 1), first_of(job + 1), limit)

    def sequences(self, job_id: str, *, after: int = 0, limit: int = 10_000) -> list[tuple[int, int]]:
        """Return ``seq`` and position of the results that :meth:`fresh` returns, using the index alone."""
        job = job_number(self.db, job_id)
        return self._from("seq", self._numbers, number(job, after + 1), first_of(job + 1), limit)

    def last_sequence(self, job_id: str) -> int:
        """Return the latest ``seq`` of a job, 0 if the job has no results or does not exist."""
        found = self.db.row("SELECT seq FROM job WHERE id = ?", job_id)
        return 0 if found is None else int(found[0])

    def _from(
        self, column: str, read: Callable[[str, int, int], list[_T]], first: int, end: int, limit: int
    ) -> list[_T]:
        """Return the next page by a column, skipping gaps.

        A result may be stored in a gap while this method reads beyond it. Since results are stored in the
        order of ``seq``, the second try finds it.
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
        found = f"SELECT r.seq, r.no FROM result r WHERE {order} >= ? AND {order} < ? ORDER BY {order}"
        return [(position(seq), position(no)) for seq, no in self.db.rows(found, first, end)]

    def _whole(self, order: str, first: int, end: int) -> list[ResultRow]:
        """Return the results of a range of numbers, or only the first ones if they are large."""
        sizes, whole = (
            _SELECT_RESULTS.replace("{columns}", columns).replace("{order}", order)
            for columns in (_SIZE_COLUMNS, _RESULT_COLUMNS)
        )
        found = self.db.rows(sizes, first, end)
        fit = fitting(size for _, size in found)
        return [result_row(row) for row in self.db.rows(whole, first, found[fit - 1][0] + 1)] if fit else []


def _take_open(tx: Transaction, job: int, positions: Collection[int], to: ItemState) -> list[int]:
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
    return f"SELECT no, size, tokens, tries FROM item WHERE {_where(state)} ORDER BY no LIMIT ?"


def _where(state: ItemState) -> str:
    """Return the condition for items in a state, using the index of unfinished items if it applies."""
    indexed = "{waiting} AND " if state.value < ItemState.SHARDED.value else ""
    return f"{indexed}state = ? AND no >= ? AND no < ?"
