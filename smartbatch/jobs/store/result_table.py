"""The chapter of results: what came of each item, stored once and counted once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from smartbatch.jobs.records import (
    ClaimedItem,
    ItemState,
    JobLease,
    LeaseLost,
    NewResult,
    ResultRow,
    ShardRow,
    ShardState,
    StoredResults,
    UnsettledItem,
)
from smartbatch.jobs.store import statements as sql
from smartbatch.jobs.store.database import Transaction
from smartbatch.jobs.store.rows import (
    decoded,
    first_of,
    fitting,
    number,
    position,
    result_row,
    unpacked,
)
from smartbatch.jobs.store.shard_table import Shards

__all__ = ["Results"]

_RESULT = ("no", "seq", "outcome", "digest", "cost", "body")
_VERDICT = ("no", "outcome", "digest", "body")
_IN_FLIGHT, _FINAL = ItemState.IN_FLIGHT.value, ItemState.FINAL.value
PAGE_DROPPED = 10_000
"""Items that a cancelled job ends in one transaction."""
_UNSENT = (ItemState.OPEN, ItemState.REALTIME)
_TAKING = (ShardState.INGESTING, ShardState.DEAD)


class Results(Shards):
    """Results, and what is still without one."""

    # -- of a shard ------------------------------------------------------------------------------------------

    def ingest(
        self, lease: JobLease, shard: ShardRow, results: Sequence[NewResult], *, at: float
    ) -> StoredResults:
        if shard.state not in _TAKING:
            raise ValueError(f"a shard that is {shard.state.value} has no results to take")
        with self._db.writing() as tx:
            job = self._hold(tx, lease)
            if tx.row(sql.SHARD_STATE, shard.id, job) != (shard.state.value, shard.no):
                raise LeaseLost(f"shard {shard.id} is no longer {shard.state.value}; nothing was written")
            items = self._states(tx, job, [result.ix for result in results])
            self._check_members(tx, shard, items, results)
            final, doubled = self._keep(tx, job, items, [r for r in results if r.final], at)
            if shard.state is ShardState.INGESTING:
                notes = [r for r in results if not r.final]
                doubled += self._keep_verdicts(tx, job, notes, final)
            return StoredResults(tuple(final), tuple(doubled))

    def _states(self, tx: Transaction, job: int, ixs: Sequence[int]) -> dict[int, tuple[int, int | None]]:
        """Return state and shard of items by position."""
        rows = tx.rows(sql.ITEM_STATES, self._db.many(list({number(job, ix) for ix in ixs})))
        return {position(no): (state, shard) for no, state, shard, _ in rows}

    def _check_members(
        self,
        tx: Transaction,
        shard: ShardRow,
        items: dict[int, tuple[int, int | None]],
        results: Sequence[NewResult],
    ) -> None:
        """Raise ValueError for a result of an item that was never in the shard."""
        doubtful = {result.ix for result in results if items.get(result.ix, (0, None))[1] != shard.no}
        if doubtful:
            found = tx.row(sql.SHARD_POSITIONS, shard.id)
            strangers = doubtful.difference(unpacked(found[1]) if found else ())
            if strangers:
                raise ValueError(f"item {min(strangers)} is not in shard {shard.id}")

    def _keep(
        self,
        tx: Transaction,
        job: int,
        items: dict[int, tuple[int, int | None]],
        results: Sequence[NewResult],
        at: float,
    ) -> tuple[list[int], list[int]]:
        """Store final results of items that have none; return what is new, and what is doubled."""
        ended = [number(job, ix) for ix, (state, _) in items.items() if state == _FINAL]
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
            first = self._count(tx, job, list(new.values()), at)
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

    def _count(self, tx: Transaction, job: int, results: Sequence[NewResult], at: float) -> int:
        """Add results to their job's counts; return the ``seq`` of the first."""
        outcomes = [result.outcome for result in results]
        priced = [result for result in results if result.cost is not None]
        found = tx.row(
            sql.COUNT,
            len(results),
            outcomes.count("succeeded"),
            outcomes.count("failed"),
            outcomes.count("cancelled"),
            float(sum(result.cost or 0.0 for result in priced)),
            # where it is unknown what real time would have cost, no saving is claimed
            float(sum((r.cost if r.realtime_cost is None else r.realtime_cost) or 0.0 for r in priced)),
            len(results) - len(priced),
            sum(result.input_tokens for result in results),
            sum(result.output_tokens for result in results),
            job,
        )
        assert found is not None
        tx.change(sql.FINISH, at, job)
        return first_of(job) + int(found[0]) - len(results) + 1

    def _keep_verdicts(
        self,
        tx: Transaction,
        job: int,
        notes: Sequence[NewResult],
        final: Collection[int],
    ) -> list[int]:
        """Store what lines said of items that go again; return those that were told something else before."""
        if not notes:
            return []
        nos = self._db.many(list({number(job, note.ix) for note in notes}))
        told: dict[int, set[bytes]] = {}
        for no, digest in (*tx.rows(sql.VERDICT_DIGESTS, nos), *tx.rows(sql.DIGESTS, nos)):
            told.setdefault(no, set()).add(digest)
        new: dict[int, NewResult] = {}
        doubled: list[int] = []
        for note in notes:
            no = number(job, note.ix)
            if no not in told:
                new[no] = note
                told[no] = {note.digest}
            elif note.digest not in told[no] and note.ix not in final:
                doubled.append(note.ix)
        tx.insert(
            "verdict", _VERDICT, ((no, note.outcome, note.digest, note.body) for no, note in new.items())
        )
        self._book(tx, job, list(new.values()))
        return doubled

    def _book(self, tx: Transaction, job: int, notes: Sequence[NewResult]) -> None:
        """Add what answers cost that were paid and do not count, such as those that break their schema."""
        paid = [note for note in notes if note.cost and (note.input_tokens or note.output_tokens)]
        if paid:
            usd = float(sum(note.cost or 0.0 for note in paid))
            realtime = float(
                sum((n.cost if n.realtime_cost is None else n.realtime_cost) or 0.0 for n in paid)
            )
            tokens = sum(note.input_tokens for note in paid), sum(note.output_tokens for note in paid)
            tx.row(sql.COUNT, 0, 0, 0, 0, usd, realtime, 0, *tokens, job)

    def unsettled(self, shard_id: str) -> list[UnsettledItem]:
        job, positions = self._positions(shard_id)
        items = self._db.many([number(job, ix) for ix in positions])
        tries = {
            no: tried for no, state, _, tried in self._db.rows(sql.ITEM_STATES, items) if state != _FINAL
        }
        told = {
            no: (word, body) for no, word, _, body in self._db.rows(sql.VERDICTS, self._db.many(list(tries)))
        }
        return [
            UnsettledItem(ix, *told.get(no, (None, None)), tries[no])
            for ix, no in ((ix, number(job, ix)) for ix in positions)
            if no in tries
        ]

    def settle(
        self,
        lease: JobLease,
        shard: ShardRow,
        *,
        opened: Collection[int] = (),
        realtime: Collection[int] = (),
        finals: Sequence[NewResult] = (),
        at: float,
        **changes: Any,
    ) -> ShardRow:
        if not all(result.final for result in finals):
            raise ValueError("results that settle a shard are final")
        ends = {result.ix for result in finals}
        if len(ends) + len(set(opened)) + len(set(realtime)) != len(ends.union(opened, realtime)):
            raise ValueError("an item of a settled shard goes one way only")
        with self._db.writing() as tx:
            job = self._hold(tx, lease)
            settled = self._move(
                tx, job, shard, ShardState.SETTLED, {"reserved": 0.0, **changes, "settled_at": at}
            )
            for target, ixs in ((ItemState.OPEN, opened), (ItemState.REALTIME, realtime)):
                items = self._db.many([number(job, ix) for ix in ixs])
                tx.change(sql.FREE_THESE, target.value, items, shard.no)
            if finals:
                items_of = self._states(tx, job, sorted(ends))
                self._check_members(tx, shard, items_of, finals)
                self._keep(tx, job, items_of, finals, at)
            left = tx.rows(sql.HELD, *self._span(tx, shard.id), shard.no)
            if left:
                raise ValueError(
                    f"{len(left)} items of shard {shard.id} go nowhere: row {position(left[0][0])}, …"
                )
            told = self._db.many([number(job, ix) for ix in self._positions(shard.id)[1]])
            tx.change(sql.DROP_VERDICTS, told)
            return settled

    def fail_shard(self, lease: JobLease, shard: ShardRow, body: bytes, *, note: str, at: float) -> ShardRow:
        with self._db.writing() as tx:
            job = self._hold(tx, lease)
            failed = self._move(
                tx, job, shard, ShardState.DEAD, {"note": note, "died_at": at, "reserved": 0.0}
            )
            first, last = self._span(tx, shard.id)
            held = [row[0] for row in tx.rows(sql.HELD, first, last, shard.no)]
            self._end_alike(tx, job, held, "failed", body, at, cost=0.0)
            return failed

    def _end_alike(
        self,
        tx: Transaction,
        job: int,
        items: list[int],
        outcome: str,
        body: bytes,
        at: float,
        *,
        cost: float | None,
    ) -> None:
        """End items, by number, with one and the same result: of ``cost`` 0, or of a cost that is unknown."""
        if not items:
            return
        sums = [len(items) if outcome == word else 0 for word in ("succeeded", "failed", "cancelled")]
        found = tx.row(sql.COUNT, len(items), *sums, 0.0, 0.0, len(items) if cost is None else 0, 0, 0, job)
        assert found is not None
        tx.change(sql.FINISH, at, job)
        numbers = self._db.many(items)
        before = first_of(job) + int(found[0]) - len(items)
        tx.change(sql.END_ALIKE, before, outcome, b"", cost, body, numbers)
        tx.change(sql.END_ITEMS, numbers)

    # -- one by one ------------------------------------------------------------------------------------------

    def claim_realtime(self, lease: JobLease, limit: int) -> list[ClaimedItem]:
        with self._db.writing() as tx:
            job = self._hold(tx, lease)
            taken = sorted(tx.rows(sql.CLAIM_REALTIME, first_of(job), first_of(job + 1), limit))
            rows = tx.rows(sql.NAMED_PAYLOADS, self._db.many([no for no, _ in taken])) if taken else []
            named = {no: (decoded(user_id), body) for no, user_id, body in rows}
            return [ClaimedItem(position(no), *named[no], tries) for no, tries in taken]

    def answer(
        self, lease: JobLease, results: Sequence[NewResult], *, at: float, freed: float = 0.0
    ) -> StoredResults:
        with self._db.writing() as tx:
            job = self._hold(tx, lease)
            items = self._states(tx, job, [result.ix for result in results])
            strangers = {result.ix for result in results} - items.keys()
            if strangers:
                raise ValueError(f"job {lease.job_id} has no item {min(strangers)}")
            final, doubled = self._keep(tx, job, items, [r for r in results if r.final], at)
            for word, tried in (("again", 1), ("unrun", 0)):
                back = [number(job, r.ix) for r in results if r.outcome == word]
                if back:
                    tx.change(sql.ASK_AGAIN, tried, self._db.many(back))
            asked = [r for r in results if not r.final and items[r.ix][0] == _IN_FLIGHT]
            self._book(tx, job, asked)
            self._reserve(tx, job, -freed)
            return StoredResults(tuple(final), tuple(doubled))

    def drop_unsent(self, lease: JobLease, body: bytes, *, at: float) -> int:
        dropped, count = 0, PAGE_DROPPED
        while count == PAGE_DROPPED:
            count = self._drop_some(lease, body, at)
            dropped += count
        return dropped

    def _drop_some(self, lease: JobLease, body: bytes, at: float) -> int:
        with self._db.writing() as tx:
            job = self._hold(tx, lease)
            page = first_of(job), first_of(job + 1), PAGE_DROPPED
            rows = [row for state in _UNSENT for row in tx.rows(sql.WAITING, state.value, *page)]
            unsent = [no for no, *_ in rows[:PAGE_DROPPED]]
            self._end_alike(tx, job, unsent, "cancelled", body, at, cost=0.0)
            return len(unsent)

    # -- reading ---------------------------------------------------------------------------------------------

    def results(self, job_id: str, *, after: int = -1, limit: int = 1000) -> list[ResultRow]:
        job = self._number(job_id)
        first, end = number(job, 0) + after + 1, first_of(job + 1)
        page = self._page(sql.RESULT_SIZES, sql.RESULTS, first, min(first + limit, end))
        if page or first + limit >= end:
            return page
        behind = self._first("result", first + limit, end)  # behind a gap of items without a result
        if behind is None:
            return []
        return self._page(sql.RESULT_SIZES, sql.RESULTS, behind, min(behind + limit, end))

    def fresh(self, job_id: str, *, after: int = 0, limit: int = 1000) -> list[ResultRow]:
        job = self._number(job_id)
        first = number(job, 0) + after + 1
        return self._page(sql.FRESH_SIZES, sql.FRESH, first, min(first + limit, first_of(job + 1)))

    def _page(self, sizes: str, rows: str, first: int, end: int) -> list[ResultRow]:
        """Return results of a range of numbers, or the first of them where they are large."""
        found = self._db.rows(sizes, first, end)
        count = fitting(size for _, size in found)
        if not count:
            return []
        return [result_row(row) for row in self._db.rows(rows, first, found[count - 1][0] + 1)]
