"""Shards as rows: which items go together, and the state of each attempt.

A method that takes ``tx`` is part of the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from smartbatch.jobs.records import (
    TRANSITIONS,
    ItemSize,
    ItemState,
    LeaseLost,
    NewShard,
    RemoteProgress,
    ShardItem,
    ShardPayload,
    ShardRow,
    ShardState,
)
from smartbatch.jobs.store import statements as sql
from smartbatch.jobs.store.database import Database, Reader, Row, Transaction
from smartbatch.jobs.store.rows import (
    SHARD_CHANGES,
    decoded,
    fitting,
    number,
    packed,
    position,
    record_text,
    shard_row,
    unpacked,
)

__all__ = ["ShardTable", "check_change"]

_NO_PROGRESS = record_text(RemoteProgress())


class ShardTable:
    """The tables ``shard`` and ``shard_items``, and which shard an item is in."""

    def __init__(self, database: Database) -> None:
        self._db = database

    # -- reading ---------------------------------------------------------------------------------------------

    def one(self, statement: str, value: str) -> ShardRow | None:
        """Return the shard that a statement finds."""
        return _first(self._db.rows(statement, value))

    def of_job(self, job: int, states: Collection[ShardState] | None) -> list[ShardRow]:
        """Return a job's shards by number."""
        if states is None:
            rows = self._db.rows(sql.SHARDS_OF_JOB, job)
        else:
            rows = self._db.rows(sql.SHARDS_OF_JOB_IN, job, self._texts(states))
        return [shard_row(row) for row in rows]

    def in_scope(self, scope: str, states: Collection[ShardState]) -> list[ShardRow]:
        """Return the shards of an account."""
        return [shard_row(row) for row in self._db.rows(sql.SHARDS_OF_SCOPE_IN, scope, self._texts(states))]

    def positions(self, reader: Reader, shard_id: str) -> tuple[int, memoryview]:
        """Return the number of a shard's job, and the positions in it of the shard's items."""
        found = reader.row(sql.SHARD_POSITIONS, shard_id)
        if found is None:
            return 0, memoryview(unpacked(b""))
        return found[0], memoryview(unpacked(found[1]))

    def payloads(self, shard_id: str, after: int, limit: int) -> list[ShardPayload]:
        """Return a page of requests, shorter where they are large."""
        job, positions = self.positions(self._db, shard_id)
        page = [number(job, ix) for ix in positions[after + 1 : after + 1 + limit]]
        sizes: dict[int, int] = dict(self._db.rows(sql.PAYLOAD_SIZES, self._db.many(page)))
        page = page[: fitting(sizes[no] for no in page)]
        bodies: dict[int, bytes] = dict(self._db.rows(sql.PAYLOADS, self._db.many(page)))
        return [ShardPayload(at, position(no), bodies[no]) for at, no in enumerate(page, after + 1)]

    def measures(self, shard_id: str) -> dict[int, ItemSize]:
        """Return the size of the item at each position."""
        job, known = self.positions(self._db, shard_id)
        numbers = [number(job, ix) for ix in known]
        found = {no: sizes for no, *sizes in self._db.rows(sql.MEASURES, self._db.many(numbers))}
        return {at: ItemSize(*found[no]) for at, no in enumerate(numbers) if no in found}

    def items_at(self, shard_id: str, positions: Collection[int]) -> dict[int, ShardItem]:
        """Return the items at those positions that exist."""
        job, known = self.positions(self._db, shard_id)
        asked = {at: number(job, known[at]) for at in positions if 0 <= at < len(known)}
        found = {row[0]: row for row in self._db.rows(sql.ITEMS_AT, self._db.many(list(asked.values())))}
        return {at: _shard_item(found[no]) for at, no in asked.items()}

    def claimed_batches(self, scope: str, asked: set[str]) -> set[str]:
        """Return those batches that belong to a shard, or that one is proving to be its own."""
        if not asked:
            return set()
        ids = self._db.many(asked)
        claimed: set[str] = set()
        for row in self._db.rows(sql.BATCHES_OWN, scope, ids, ids):
            claimed.update(row)
        return asked & claimed

    def _texts(self, states: Collection[ShardState]) -> Any:
        return self._db.many([state.value for state in states])

    # -- writing ---------------------------------------------------------------------------------------------

    def plan(self, tx: Transaction, job: int, shard: NewShard) -> ShardRow:
        """Put open items into a new shard.

        Raises:
            LeaseLost: one of the items is not open.
        """
        found = tx.row(sql.NEXT_SHARD, job)
        assert found is not None
        no, size = found[0], len(shard.items)
        if tx.change(sql.TAKE_ITEMS, no, self._db.many([number(job, ix) for ix in shard.items])) != size:
            raise LeaseLost(f"not every item of the new shard {shard.id} is open; nothing was written")
        tx.change(sql.NEW_POSITIONS, shard.id, job, packed(shard.items))
        values = (shard.id, no, shard.nonce, size, shard.bytes, shard.tokens, shard.due_at, shard.reserved)
        made = _first(tx.rows(sql.NEW_SHARD, *values, _NO_PROGRESS, job))
        assert made is not None
        return made

    def move(
        self, tx: Transaction, job: int, shard: ShardRow, to: ShardState, changes: Mapping[str, Any]
    ) -> ShardRow:
        """Change a shard that is still in the state it was read in.

        Raises:
            ValueError: see :func:`check_change`.
            LeaseLost: the shard has moved on.
        """
        check_change(shard, to, changes)
        written = {
            column: write(changes[name]) for name, (column, write) in SHARD_CHANGES.items() if name in changes
        }
        assignments = ", ".join(f"{column} = ?" for column in ("state", *written))
        statement = sql.ADVANCE.replace("{assignments}", assignments).replace("{columns}", sql.SHARD_COLUMNS)
        moved = _first(tx.rows(statement, to.value, *written.values(), shard.id, job, shard.state.value))
        if moved is None:
            raise LeaseLost(f"shard {shard.id} is no longer {shard.state.value}; nothing was written")
        return moved

    def another_unresolved(self, tx: Transaction, shard: ShardRow) -> bool:
        """Whether another create of the account is under way, or of unknown outcome."""
        found = tx.row(sql.UNRESOLVED_IN_SCOPE, shard.scope, shard.id)
        assert found is not None
        return bool(found[0])

    def free_items(self, tx: Transaction, shard: ShardRow, to: ItemState, *, tried: bool) -> None:
        """Free every item of a shard that has no result."""
        tx.change(sql.FREE_SHARDED, to.value, int(tried), *self._span(tx, shard.id), shard.no)

    def free_these(
        self, tx: Transaction, job: int, shard: ShardRow, to: ItemState, ixs: Collection[int]
    ) -> None:
        """Free some items of a shard, with one try more."""
        tx.change(sql.FREE_THESE, to.value, self._db.many([number(job, ix) for ix in ixs]), shard.no)

    def left(self, tx: Transaction, shard: ShardRow) -> list[int]:
        """Return the numbers of the items that are still in a shard."""
        return [row[0] for row in tx.rows(sql.STILL_SHARDED, *self._span(tx, shard.id), shard.no)]

    def _span(self, tx: Transaction, shard_id: str) -> tuple[int, int]:
        """Return the numbers of a shard's first and last item: all others lie between."""
        job, positions = self.positions(tx, shard_id)
        return number(job, min(positions)), number(job, max(positions))


def check_change(shard: ShardRow, to: ShardState, changes: Mapping[str, Any]) -> None:
    """Raise ValueError when the transition is not in the table, or a column cannot be changed."""
    if to is not shard.state and to not in TRANSITIONS[shard.state]:
        raise ValueError(f"a shard that is {shard.state.value} does not become {to.value}")
    unknown = changes.keys() - SHARD_CHANGES.keys()
    if unknown:
        raise ValueError(f"these do not change with a shard's state: {', '.join(sorted(unknown))}")


def _shard_item(row: Row) -> ShardItem:
    no, user_id, payload, tokens = row
    return ShardItem(position(no), decoded(user_id), payload, tokens)


def _first(rows: list[Row]) -> ShardRow | None:
    return shard_row(rows[0]) if rows else None
