"""The chapter of shards: which items go together, and how far each attempt has come."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from smartbatch.jobs.records import (
    TRANSITIONS,
    ItemSize,
    ItemState,
    JobLease,
    JobPolicy,
    LeaseLost,
    NewShard,
    OpenItem,
    OverJobBudget,
    RemoteProgress,
    ShardItem,
    ShardPayload,
    ShardRow,
    ShardState,
)
from smartbatch.jobs.store import statements as sql
from smartbatch.jobs.store.database import Row, Transaction
from smartbatch.jobs.store.rows import (
    SHARD_CHANGES,
    decoded,
    first_of,
    fitting,
    number,
    packed,
    position,
    record_of,
    record_text,
    shard_row,
    unpacked,
)
from smartbatch.jobs.store.sql_store import Book

__all__ = ["Shards"]

_NO_PROGRESS = record_text(RemoteProgress())
_TINY = 1e-9
"""USD by which sums of floats may miss: less than a token costs."""
_OWN_VERBS = {
    ShardState.SETTLED: "settle",
    ShardState.DEAD: "bury or fail_shard",
}


class Shards(Book):
    """Attempts, and the items in them."""

    # -- looking ---------------------------------------------------------------------------------------------

    def open_items(
        self, job_id: str, *, state: ItemState = ItemState.OPEN, limit: int = 100_000
    ) -> list[OpenItem]:
        job, code = self._number(job_id), state.value
        statement = sql.WAITING if code < ItemState.SHARDED.value else sql.ITEMS_IN
        rows = self._db.rows(statement, code, first_of(job), first_of(job + 1), limit)
        return [OpenItem(position(no), size, tokens, tries) for no, size, tokens, tries in rows]

    def shard(self, shard_id: str) -> ShardRow | None:
        return _first(self._db.rows(sql.SHARD_BY_ID, shard_id))

    def shard_with_nonce(self, nonce: str) -> ShardRow | None:
        return _first(self._db.rows(sql.SHARD_BY_NONCE, nonce))

    def shards(self, job_id: str, *, states: Collection[ShardState] | None = None) -> list[ShardRow]:
        job = self._number(job_id)
        if states is None:
            return [shard_row(row) for row in self._db.rows(sql.SHARDS_OF_JOB, job)]
        return [shard_row(row) for row in self._db.rows(sql.SHARDS_OF_JOB_IN, job, self._words(states))]

    def shards_in_scope(self, scope: str, *, states: Collection[ShardState]) -> list[ShardRow]:
        return [shard_row(row) for row in self._db.rows(sql.SHARDS_OF_SCOPE_IN, scope, self._words(states))]

    def payloads(self, shard_id: str, *, after: int = -1, limit: int = 1000) -> list[ShardPayload]:
        job, positions = self._positions(shard_id)
        page = [number(job, ix) for ix in positions[after + 1 : after + 1 + limit]]
        sizes: dict[int, int] = dict(self._db.rows(sql.PAYLOAD_SIZES, self._db.many(page)))
        page = page[: fitting(sizes[no] for no in page)]
        bodies: dict[int, bytes] = dict(self._db.rows(sql.PAYLOADS, self._db.many(page)))
        return [ShardPayload(at, position(no), bodies[no]) for at, no in enumerate(page, after + 1)]

    def measures(self, shard_id: str) -> dict[int, ItemSize]:
        job, known = self._positions(shard_id)
        numbers = [number(job, ix) for ix in known]
        found = {no: sizes for no, *sizes in self._db.rows(sql.MEASURES, self._db.many(numbers))}
        return {at: ItemSize(*found[no]) for at, no in enumerate(numbers) if no in found}

    def items_at(self, shard_id: str, positions: Collection[int]) -> dict[int, ShardItem]:
        job, known = self._positions(shard_id)
        asked = {at: number(job, known[at]) for at in positions if 0 <= at < len(known)}
        found = {row[0]: row for row in self._db.rows(sql.ITEMS_AT, self._db.many(list(asked.values())))}
        return {at: _item_at(found[no]) for at, no in asked.items()}

    def bodies(self, job_id: str, positions: Collection[int]) -> dict[int, bytes]:
        job = self._number(job_id)
        numbers = self._db.many([number(job, ix) for ix in positions])
        return {position(no): body for no, body in self._db.rows(sql.PAYLOADS, numbers)}

    def _words(self, states: Collection[ShardState]) -> Any:
        return self._db.many([state.value for state in states])

    # -- moving on -------------------------------------------------------------------------------------------

    def plan(self, lease: JobLease, shard: NewShard) -> ShardRow:
        if not shard.items or len(set(shard.items)) != len(shard.items):
            raise ValueError("a shard has at least one item, and each once")
        with self._db.writing() as tx:
            job = self._hold(tx, lease)
            found = tx.row(sql.NEXT_SHARD, job)
            assert found is not None
            no = found[0]
            self._reserve(tx, job, shard.reserved)
            items = self._db.many([number(job, ix) for ix in shard.items])
            if tx.change(sql.TAKE_ITEMS, no, items) != len(shard.items):
                raise LeaseLost(f"not every item of the new shard {shard.id} is open; nothing was written")
            tx.change(sql.NEW_POSITIONS, shard.id, job, packed(shard.items))
            size = len(shard.items)
            values = (shard.id, no, shard.nonce, size, shard.bytes, shard.tokens, shard.due_at)
            made = _first(tx.rows(sql.NEW_SHARD, *values, shard.reserved, _NO_PROGRESS, job))
            assert made is not None
            return made

    def reserve(self, lease: JobLease, usd: float) -> None:
        with self._db.writing() as tx:
            self._reserve(tx, self._hold(tx, lease), usd)

    def _reserve(self, tx: Transaction, job: int, usd: float) -> None:
        """Take from a job's budget, where there is room for it, or give back.

        Raises:
            OverBudget: there is none.
        """
        if not usd:
            return
        found = tx.row(sql.MONEY, job)
        assert found is not None
        policy, cost, reserved = found
        budget = record_of(JobPolicy, policy).budget
        if usd > 0 and budget is not None and cost + reserved + usd > budget + _TINY:
            raise OverJobBudget(
                f"{usd:.6f} USD more could be spent, and {max(0.0, budget - cost - reserved):.6f} USD are "
                f"left of the job's budget of {budget:g} USD; nothing was written"
            )
        tx.change(sql.RESERVE, usd, job)

    def advance(self, lease: JobLease, shard: ShardRow, to: ShardState, **changes: Any) -> ShardRow:
        if to is not shard.state:
            if to in _OWN_VERBS:
                raise ValueError(f"a shard becomes {to.value} by {_OWN_VERBS[to]}, with its items")
            if shard.state is ShardState.READY and to is ShardState.SUBMITTING:
                raise ValueError("a shard becomes submitting by mark_submitting")
        with self._db.writing() as tx:
            return self._move(tx, self._hold(tx, lease), shard, to, changes)

    def mark_submitting(
        self, lease: JobLease, shard: ShardRow, *, exclusive: bool, **changes: Any
    ) -> ShardRow | None:
        if shard.state is not ShardState.READY:
            raise ValueError(f"only a ready shard can be submitted, and this one is {shard.state.value}")
        with self._db.writing() as tx:
            job = self._hold(tx, lease)
            if exclusive:
                tx.lock(f"scope {shard.scope}")
                others = tx.row(sql.UNRESOLVED_IN_SCOPE, shard.scope, shard.id)
                assert others is not None
                if others[0]:
                    return None
            return self._move(tx, job, shard, ShardState.SUBMITTING, changes)

    def discard(
        self,
        lease: JobLease,
        shard: ShardRow,
        *,
        items: ItemState,
        tried: bool,
        note: str,
        at: float,
        maybe_billed: bool = False,
    ) -> ShardRow:
        if items not in (ItemState.OPEN, ItemState.REALTIME):
            raise ValueError("the items of a buried shard become open or direct")
        with self._db.writing() as tx:
            job = self._hold(tx, lease)
            most = shard.reserved if maybe_billed else 0.0
            changes = {"note": note, "died_at": at, "reserved": most}
            discarded = self._move(tx, job, shard, ShardState.DEAD, changes)
            tx.change(sql.FREE_HELD, items.value, int(tried), *self._span(tx, shard.id), shard.no)
            return discarded

    def _move(
        self, tx: Transaction, job: int, shard: ShardRow, to: ShardState, changes: dict[str, Any]
    ) -> ShardRow:
        """Change a shard that is still as it was read.

        Raises:
            ValueError: the transition is not in the table, or a column cannot be changed.
            LeaseLost: the shard has moved on.
        """
        if to is not shard.state and to not in TRANSITIONS[shard.state]:
            raise ValueError(f"a shard that is {shard.state.value} does not become {to.value}")
        unknown = changes.keys() - SHARD_CHANGES.keys()
        if unknown:
            raise ValueError(f"these do not change with a shard's state: {', '.join(sorted(unknown))}")
        written = {
            column: write(changes[name]) for name, (column, write) in SHARD_CHANGES.items() if name in changes
        }
        assignments = ", ".join(f"{column} = ?" for column in ("state", *written))
        statement = sql.ADVANCE.replace("{assignments}", assignments).replace("{columns}", sql.SHARD_COLUMNS)
        moved = _first(tx.rows(statement, to.value, *written.values(), shard.id, job, shard.state.value))
        if moved is None:
            raise LeaseLost(f"shard {shard.id} is no longer {shard.state.value}; nothing was written")
        if (more := changes.get("reserved", shard.reserved) - shard.reserved) != 0:
            tx.change(sql.RESERVE, more, job)  # never refused: what it may have cost, it may have cost
        return moved

    def _span(self, tx: Transaction, shard_id: str) -> tuple[int, int]:
        """Return the numbers of a shard's first and last item: all others lie between."""
        found = tx.row(sql.SHARD_POSITIONS, shard_id)
        assert found is not None
        positions = unpacked(found[1])
        return number(found[0], min(positions)), number(found[0], max(positions))


def _item_at(row: Row) -> ShardItem:
    no, user_id, payload, tokens = row
    return ShardItem(position(no), decoded(user_id), payload, tokens)


def _first(rows: list[Row]) -> ShardRow | None:
    return shard_row(rows[0]) if rows else None
