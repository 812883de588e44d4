"""Results as rows: what came of each item, stored once and counted once.

A method that takes ``tx`` is part of the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from smartbatch.jobs.records import ItemState, NewResult, ResultRow, ShardRow, UnsettledItem
from smartbatch.jobs.store import statements as sql
from smartbatch.jobs.store.database import Database, Transaction
from smartbatch.jobs.store.job_table import JobTable
from smartbatch.jobs.store.rows import first_of, fitting, number, position, result_row
from smartbatch.jobs.store.shard_table import ShardTable

__all__ = ["ItemAt", "ResultTable"]

_RESULT = ("no", "seq", "outcome", "digest", "cost", "body")
_VERDICT = ("no", "outcome", "digest", "body")
ItemAt = tuple[int, int | None]
"""State and shard of an item, as numbers."""


class ResultTable:
    """The tables ``result`` and ``verdict``.

    Args:
        jobs: where results are counted.
        shards: where they come from.
    """

    def __init__(self, database: Database, jobs: JobTable, shards: ShardTable) -> None:
        self._db = database
        self._jobs = jobs
        self._shards = shards

    # -- writing ---------------------------------------------------------------------------------------------

    def items(self, tx: Transaction, job: int, ixs: Iterable[int]) -> dict[int, ItemAt]:
        """Return state and shard of items by position."""
        rows = tx.rows(sql.ITEM_STATES, self._db.many(list({number(job, ix) for ix in ixs})))
        return {position(no): (state, shard) for no, state, shard, _ in rows}

    def check_members(
        self, tx: Transaction, shard: ShardRow, items: Mapping[int, ItemAt], results: Sequence[NewResult]
    ) -> None:
        """Raise ValueError for a result of an item that was never in the shard."""
        doubtful = {result.ix for result in results if items.get(result.ix, (0, None))[1] != shard.no}
        if doubtful:
            foreign = doubtful.difference(self._shards.positions(tx, shard.id)[1])
            if foreign:
                raise ValueError(f"item {min(foreign)} is not in shard {shard.id}")

    def keep(
        self,
        tx: Transaction,
        job: int,
        items: Mapping[int, ItemAt],
        results: Sequence[NewResult],
        at: float,
    ) -> tuple[list[int], list[int]]:
        """Store final results of items that have none.

        Returns:
            The items that have their result by it, and those that had another one, which stays.
        """
        ended = [number(job, ix) for ix, (state, _) in items.items() if state == ItemState.FINAL.value]
        digests = dict(tx.rows(sql.DIGESTS, self._db.many(ended))) if ended else {}
        new: dict[int, NewResult] = {}
        doubled: list[int] = []
        for result in results:
            no = number(job, result.ix)
            if no not in digests:
                new[no] = result
                digests[no] = result.digest
            elif digests[no] != result.digest:
                doubled.append(result.ix)
        if new:
            first = self._jobs.count(tx, job, list(new.values()), at)
            tx.insert(
                "result",
                _RESULT,
                (
                    (no, seq, result.outcome, result.digest, result.cost, result.body)
                    for seq, (no, result) in enumerate(new.items(), first)
                ),
            )
            tx.change(sql.END_ITEMS, self._db.many(list(new)))
        return [result.ix for result in new.values()], doubled

    def keep_verdicts(
        self, tx: Transaction, job: int, verdicts: Sequence[NewResult], final: Collection[int]
    ) -> list[int]:
        """Store what lines said of items that go again; return those of which another line said otherwise."""
        if not verdicts:
            return []
        nos = self._db.many(list({number(job, verdict.ix) for verdict in verdicts}))
        told: dict[int, set[bytes]] = {}
        for no, digest in (*tx.rows(sql.VERDICT_DIGESTS, nos), *tx.rows(sql.DIGESTS, nos)):
            told.setdefault(no, set()).add(digest)
        new: dict[int, NewResult] = {}
        doubled: list[int] = []
        for verdict in verdicts:
            no = number(job, verdict.ix)
            if no not in told:
                new[no] = verdict
                told[no] = {verdict.digest}
            elif verdict.digest not in told[no] and verdict.ix not in final:
                doubled.append(verdict.ix)
        rows = ((no, verdict.outcome, verdict.digest, verdict.body) for no, verdict in new.items())
        tx.insert("verdict", _VERDICT, rows)
        self._jobs.charge(tx, job, list(new.values()))
        return doubled

    def drop_verdicts(self, tx: Transaction, shard: ShardRow) -> None:
        """Delete what lines said of a shard's items."""
        job, positions = self._shards.positions(tx, shard.id)
        tx.change(sql.DROP_VERDICTS, self._db.many([number(job, ix) for ix in positions]))

    def end_alike(
        self,
        tx: Transaction,
        job: int,
        items: Sequence[int],
        outcome: str,
        body: bytes,
        at: float,
        *,
        cost: float | None,
    ) -> None:
        """End items, by number, with one and the same result: of ``cost`` 0, or of a cost that is unknown."""
        if not items:
            return
        first = self._jobs.count_alike(tx, job, len(items), outcome, at, priced=cost is not None)
        numbers = self._db.many(items)
        tx.change(sql.END_ALIKE, first - 1, outcome, b"", cost, body, numbers)
        tx.change(sql.END_ITEMS, numbers)

    def send_again(self, tx: Transaction, job: int, results: Sequence[NewResult]) -> None:
        """Set items in flight back to real time: with one try more, unless the call was never executed."""
        for outcome, tried in (("again", 1), ("unrun", 0)):
            back = [number(job, result.ix) for result in results if result.outcome == outcome]
            if back:
                tx.change(sql.SEND_AGAIN, tried, self._db.many(back))

    # -- reading ---------------------------------------------------------------------------------------------

    def unsettled(self, shard_id: str) -> list[UnsettledItem]:
        """Return the items of a shard that have no result, by position."""
        job, positions = self._shards.positions(self._db, shard_id)
        items = self._db.many([number(job, ix) for ix in positions])
        rows = self._db.rows(sql.ITEM_STATES, items)
        tries = {no: tried for no, state, _, tried in rows if state != ItemState.FINAL.value}
        rows = self._db.rows(sql.VERDICTS, self._db.many(list(tries)))
        told = {no: (outcome, body) for no, outcome, _, body in rows}
        numbered = ((ix, number(job, ix)) for ix in positions)
        return [
            UnsettledItem(ix, *told.get(no, (None, None)), tries[no]) for ix, no in numbered if no in tries
        ]

    def by_position(self, job: int, after: int, limit: int) -> list[ResultRow]:
        """Return a page of results from the position after ``after``, shorter where they are large."""
        first, end = number(job, 0) + after + 1, first_of(job + 1)
        page = self._page(sql.RESULT_SIZES, sql.RESULTS, first, min(first + limit, end))
        if page or first + limit >= end:
            return page
        behind = self._jobs.first_in("result", first + limit, end)  # after a gap of items without a result
        if behind is None:
            return []
        return self._page(sql.RESULT_SIZES, sql.RESULTS, behind, min(behind + limit, end))

    def by_arrival(self, job: int, after: int, limit: int) -> list[ResultRow]:
        """Return a page of results from the ``seq`` after ``after``, shorter where they are large."""
        first = number(job, 0) + after + 1
        return self._page(sql.FRESH_SIZES, sql.FRESH, first, min(first + limit, first_of(job + 1)))

    def _page(self, sizes: str, rows: str, first: int, end: int) -> list[ResultRow]:
        """Return results of a range of numbers, or the first of them where they are large."""
        found = self._db.rows(sizes, first, end)
        count = fitting(size for _, size in found)
        if not count:
            return []
        return [result_row(row) for row in self._db.rows(rows, first, found[count - 1][0] + 1)]
