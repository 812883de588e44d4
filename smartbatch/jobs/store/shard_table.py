"""The tables ``shard`` and ``shard_items``: which items go together, and the state of each attempt.

A function that takes ``tx`` is part of the caller's transaction.
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
from smartbatch.jobs.store.database import Reader, Transaction
from smartbatch.jobs.store.job_table import reserve_anyway
from smartbatch.jobs.store.rows import (
    SHARD_CHANGES,
    fitting,
    number,
    packed,
    position,
    record_text,
    shard_item,
    shard_row,
    unpacked,
)

__all__ = [
    "check_change",
    "free_items",
    "free_these",
    "items_at",
    "left",
    "measures",
    "move",
    "payloads",
    "plan",
    "positions",
]

_NO_PROGRESS = record_text(RemoteProgress())

# -- reading -------------------------------------------------------------------------------------------------


def positions(reader: Reader, shard_id: str) -> tuple[int, memoryview]:
    """Return the number of a shard's job, and the positions in it of the shard's items."""
    job, kept = reader.row(sql.SHARD_POSITIONS, shard_id) or (0, b"")
    return job, memoryview(unpacked(kept))


def payloads(reader: Reader, shard_id: str, after: int, limit: int) -> list[ShardPayload]:
    """Return a page of requests, shorter where they are large."""
    job, ixs = positions(reader, shard_id)
    page = [number(job, ix) for ix in ixs[after + 1 : after + 1 + limit]]
    sizes: dict[int, int] = dict(reader.rows(sql.PAYLOAD_SIZES, page))
    page = page[: fitting(sizes[no] for no in page)]
    bodies: dict[int, bytes] = dict(reader.rows(sql.PAYLOADS, page))
    return [ShardPayload(at, position(no), bodies[no]) for at, no in enumerate(page, after + 1)]


def measures(reader: Reader, shard_id: str) -> dict[int, ItemSize]:
    """Return the size of the item at each position."""
    job, ixs = positions(reader, shard_id)
    numbers = [number(job, ix) for ix in ixs]
    found = {no: sizes for no, *sizes in reader.rows(sql.MEASURES, numbers)}
    return {at: ItemSize(*found[no]) for at, no in enumerate(numbers) if no in found}


def items_at(reader: Reader, shard_id: str, asked: Collection[int]) -> dict[int, ShardItem]:
    """Return the items at those positions that exist."""
    job, ixs = positions(reader, shard_id)
    numbers = {at: number(job, ixs[at]) for at in asked if 0 <= at < len(ixs)}
    found = {row[0]: shard_item(row) for row in reader.rows(sql.ITEMS_AT, list(numbers.values()))}
    return {at: found[no] for at, no in numbers.items()}


# -- writing -------------------------------------------------------------------------------------------------


def plan(tx: Transaction, job: int, shard: NewShard) -> ShardRow:
    """Put open items into a new shard.

    Raises:
        LeaseLost: one of the items is not open.
    """
    [(no,)] = tx.rows(sql.NEXT_SHARD, job)
    size = len(shard.items)
    if tx.change(sql.TAKE_ITEMS, no, [number(job, ix) for ix in shard.items]) != size:
        raise LeaseLost(f"not every item of the new shard {shard.id} is open; nothing was written")
    tx.change(sql.NEW_POSITIONS, shard.id, job, packed(shard.items))
    values = (shard.id, no, shard.nonce, size, shard.bytes, shard.tokens, shard.due_at, shard.reserved)
    [made] = tx.rows(sql.NEW_SHARD, *values, _NO_PROGRESS, job)
    return shard_row(made)


def move(tx: Transaction, job: int, shard: ShardRow, to: ShardState, changes: Mapping[str, Any]) -> ShardRow:
    """Change a shard that is still in the state it was read in, and what its job has reserved for it.

    Raises:
        ValueError: see :func:`check_change`.
        LeaseLost: the shard has moved on.
    """
    check_change(shard, to, changes)
    written = {name: write(changes[name]) for name, write in SHARD_CHANGES.items() if name in changes}
    assignments = ", ".join(f"{column} = ?" for column in ("state", *written))
    statement = sql.ADVANCE.replace("{assignments}", assignments).replace("{columns}", sql.SHARD_COLUMNS)
    found = tx.row(statement, to.value, *written.values(), shard.id, job, shard.state.value)
    if found is None:
        raise LeaseLost(f"shard {shard.id} is no longer {shard.state.value}; nothing was written")
    moved = shard_row(found)
    if moved.reserved != shard.reserved:
        reserve_anyway(tx, job, moved.reserved - shard.reserved)
    return moved


def check_change(shard: ShardRow, to: ShardState, changes: Mapping[str, Any]) -> None:
    """Raise ValueError when the transition is not in the table, or a column cannot be changed."""
    if to is not shard.state and to not in TRANSITIONS[shard.state]:
        raise ValueError(f"a shard that is {shard.state.value} does not become {to.value}")
    unknown = changes.keys() - SHARD_CHANGES.keys()
    if unknown:
        raise ValueError(f"these do not change with a shard's state: {', '.join(sorted(unknown))}")


def free_items(tx: Transaction, shard: ShardRow, to: ItemState, *, tried: bool) -> None:
    """Free every item of a shard that has no result."""
    tx.change(sql.FREE_SHARDED, to.value, int(tried), *_span(tx, shard.id), shard.no)


def free_these(tx: Transaction, job: int, shard: ShardRow, to: ItemState, ixs: Collection[int]) -> None:
    """Free some items of a shard, with one try more."""
    tx.change(sql.FREE_THESE, to.value, [number(job, ix) for ix in ixs], shard.no)


def left(tx: Transaction, shard: ShardRow) -> list[int]:
    """Return the numbers of the items that are still in a shard."""
    return [no for (no,) in tx.rows(sql.STILL_SHARDED, *_span(tx, shard.id), shard.no)]


def _span(tx: Transaction, shard_id: str) -> tuple[int, int]:
    """Return the numbers of a shard's first and last item: all others lie between."""
    job, ixs = positions(tx, shard_id)
    return number(job, min(ixs)), number(job, max(ixs))
