"""The tables ``result``, ``verdict`` and ``incident``: what came of each item, stored once and counted once.

A function that takes ``tx`` is part of the caller's transaction.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence

from smartbatch.jobs.records import (
    IncidentRow,
    ItemState,
    JobLease,
    NewResult,
    ResultRow,
    ShardRow,
    UnsettledItem,
)
from smartbatch.jobs.store import statements as sql
from smartbatch.jobs.store.database import Database, Reader, Transaction
from smartbatch.jobs.store.job_table import charge, count, first_in
from smartbatch.jobs.store.rows import bare, encoded, first_of, fitting, number, position, result_row
from smartbatch.jobs.store.shard_table import positions

__all__ = [
    "ItemAt",
    "add_incident",
    "by_arrival",
    "by_position",
    "check_members",
    "drop_verdicts",
    "end_alike",
    "end_in_flight",
    "item_states",
    "keep",
    "keep_verdicts",
    "send_again",
    "unsettled",
]

ROWS_NAMED = 10
"""Rows an incident names before it only counts them."""
PAGE_FOLLOWERS = 10_000
"""Followers that are ended by one statement."""
_RESULT = ("no", "seq", "outcome", "digest", "cost", "body")
_VERDICT = ("no", "outcome", "digest", "body")
ItemAt = tuple[int, int | None]
"""State and shard of an item, as numbers."""

# -- writing -------------------------------------------------------------------------------------------------


def item_states(tx: Transaction, job: int, ixs: Iterable[int]) -> dict[int, ItemAt]:
    """Return state and shard of items by position."""
    rows = tx.rows(sql.ITEM_STATES, list({number(job, ix) for ix in ixs}))
    return {position(no): (state, shard) for no, state, shard, _ in rows}


def check_members(
    tx: Transaction, shard: ShardRow, items: Mapping[int, ItemAt], results: Sequence[NewResult]
) -> None:
    """Raise ValueError for a result of an item that was never in the shard."""
    unexpected = {result.ix for result in results if items.get(result.ix, (0, None))[1] != shard.no}
    if unexpected and (foreign := unexpected.difference(positions(tx, shard.id)[1])):
        raise ValueError(f"item {min(foreign)} is not in shard {shard.id}")


def keep(
    tx: Transaction, job: int, items: Mapping[int, ItemAt], results: Iterable[NewResult], at: float
) -> tuple[list[int], list[int]]:
    """Store final results of items that have none; pass over those that are not final.

    Returns:
        The items that have their result by it, and those that had another one, which stays.
    """
    ended = [number(job, ix) for ix, (state, _) in items.items() if state == ItemState.FINAL.value]
    digests = dict(tx.rows(sql.DIGESTS, ended)) if ended else {}
    new: dict[int, NewResult] = {}
    doubled: list[int] = []
    for result in results:
        if not result.final:
            continue
        no = number(job, result.ix)
        if no not in digests:
            new[no] = result
            digests[no] = result.digest
        elif digests[no] != result.digest:
            doubled.append(result.ix)
    if new:
        first = count(tx, job, list(new.values()), at)
        rows = (
            (no, seq, result.outcome, result.digest, result.cost, result.body)
            for seq, (no, result) in enumerate(new.items(), first)
        )
        tx.insert("result", _RESULT, rows)
        tx.change(sql.END_ITEMS, list(new))
        _end_followers(tx, job, new, at)
    return [result.ix for result in new.values()], doubled


def keep_verdicts(
    tx: Transaction, job: int, results: Sequence[NewResult], final: Collection[int]
) -> list[int]:
    """Store what lines said of items that go again; return those of which another line said otherwise."""
    verdicts = [result for result in results if not result.final]
    if not verdicts:
        return []
    nos = list({number(job, verdict.ix) for verdict in verdicts})
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
    charge(tx, job, list(new.values()))
    return doubled


def drop_verdicts(tx: Transaction, shard: ShardRow) -> None:
    """Delete what lines said of a shard's items."""
    job, ixs = positions(tx, shard.id)
    tx.change(sql.DROP_VERDICTS, [number(job, ix) for ix in ixs])


def end_alike(tx: Transaction, job: int, items: list[int], result: NewResult, at: float) -> None:
    """End items, by number, and their followers with what one result says; its own ``ix`` does not count."""
    if items:
        _end_alike(tx, job, items, result, at)
        _end_followers(tx, job, dict.fromkeys(items, result), at)


def _end_alike(
    tx: Transaction, job: int, items: list[int], result: NewResult, at: float, *, deduplicated: bool = False
) -> None:
    before = count(tx, job, [result] * len(items), at, deduplicated=deduplicated) - 1
    tx.change(sql.END_ALIKE, before, result.outcome, result.digest, result.cost, result.body, items)
    tx.change(sql.END_ITEMS, items)


def _end_followers(tx: Transaction, job: int, ended: Mapping[int, NewResult], at: float) -> None:
    """End the items that follow others, which ended with results just now, by number: free of charge.

    All in one transaction, some thousands at a time, so that no follower outlives its leader. They have no
    body: that of their leader is read for them.
    """
    for (leader,) in tx.rows(sql.LEADERS, list(ended)):
        result = ended[leader]
        copy = NewResult(-1, result.outcome, b"", cost=0.0, realtime_cost=0.0, route=result.route)
        last = 0
        while page := [no for (no,) in tx.rows(sql.FOLLOWERS, leader, last, PAGE_FOLLOWERS)]:
            _end_alike(tx, job, page, copy, at, deduplicated=True)
            last = page[-1]


def send_again(tx: Transaction, job: int, results: Sequence[NewResult]) -> None:
    """Set items in flight back to real time: with one try more, unless the call was never executed."""
    for outcome, tried in (("again", 1), ("unrun", 0)):
        back = [number(job, result.ix) for result in results if result.outcome == outcome]
        if back:
            tx.change(sql.SEND_AGAIN, tried, back)


def end_in_flight(tx: Transaction, lease: JobLease, job: int, unknown: bytes | None, now: float) -> None:
    """Free the items that a former owner left in flight, and say what that may have cost.

    Args:
        unknown: the body of the failed result they end with, where they are not to be sent again.
    """
    # those that end as failed are to be sent for a moment of this transaction
    asked = sorted(no for (no,) in tx.rows(sql.FREE_IN_FLIGHT, first_of(job), first_of(job + 1)))
    if not asked:
        return
    if unknown is not None:
        end_alike(tx, job, asked, NewResult(-1, "failed", unknown, cost=None), now)
    named = ", ".join(str(position(no)) for no in asked[:ROWS_NAMED])
    named += ", …" if len(asked) > ROWS_NAMED else ""
    end = "are sent again" if unknown is None else "end as failed"
    detail = (
        f"{len(asked)} requests were in flight in real time when their process ended, and {end}: rows"
        f" {named} (owner {lease.epoch})"
    )
    add_incident(tx, IncidentRow("maybe_billed", lease.job_id, None, detail, None, now))


def add_incident(tx: Transaction, incident: IncidentRow) -> bool:
    """Keep an incident; False when the same kind, shard and detail is known."""
    told = (incident.kind, incident.job_id, incident.shard_id, incident.detail)
    digest = hashlib.blake2b(bare(told).encode(), digest_size=16).digest()
    values = (*told[:3], encoded(incident.detail), incident.money, incident.at)
    return tx.change(sql.NEW_INCIDENT, digest, *values) > 0


# -- reading -------------------------------------------------------------------------------------------------


def unsettled(reader: Reader, shard_id: str) -> list[UnsettledItem]:
    """Return the items of a shard that have no result, by position."""
    job, ixs = positions(reader, shard_id)
    numbered = [(ix, number(job, ix)) for ix in ixs]
    rows = reader.rows(sql.ITEM_STATES, [no for _, no in numbered])
    tries = {no: tried for no, state, _, tried in rows if state != ItemState.FINAL.value}
    told = {no: (outcome, body) for no, outcome, _, body in reader.rows(sql.VERDICTS, list(tries))}
    return [UnsettledItem(ix, *told.get(no, (None, None)), tries[no]) for ix, no in numbered if no in tries]


def by_position(db: Database, job: int, after: int, limit: int) -> list[ResultRow]:
    """Return a page of results from the position after ``after``, shorter where they are large."""
    first, end = number(job, 0) + after + 1, first_of(job + 1)
    page = _page(db, sql.RESULT_SIZES, sql.RESULTS, first, min(first + limit, end))
    if page or first + limit >= end:
        return page
    behind = first_in(db, "result", first + limit, end)  # after a gap of items without a result
    if behind is None:
        return []
    return _page(db, sql.RESULT_SIZES, sql.RESULTS, behind, min(behind + limit, end))


def by_arrival(db: Database, job: int, after: int, limit: int) -> list[ResultRow]:
    """Return a page of results from the ``seq`` after ``after``, shorter where they are large."""
    first = number(job, 0) + after + 1
    return _page(db, sql.FRESH_SIZES, sql.FRESH, first, min(first + limit, first_of(job + 1)))


def _page(db: Database, sizes: str, rows: str, first: int, end: int) -> list[ResultRow]:
    """Return results of a range of numbers, or the first of them where they are large."""
    found = db.rows(sizes, first, end)
    fit = fitting(size for _, size in found)
    return [result_row(row) for row in db.rows(rows, first, found[fit - 1][0] + 1)] if fit else []
