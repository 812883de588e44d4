"""The tables ``job``, ``job_params``, ``item``, ``payload`` and ``incomplete_job``.

A function that takes ``tx`` is part of the caller's transaction.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence

from smartbatch.errors import JobNotFound, StoreError
from smartbatch.jobs.records import (
    ClaimedItem,
    ItemState,
    JobPolicy,
    JobRow,
    JobState,
    NewItem,
    NewResult,
    OpenItem,
    OverJobBudget,
    StoredCounts,
)
from smartbatch.jobs.store import statements as sql
from smartbatch.jobs.store.database import Database, Reader, Transaction
from smartbatch.jobs.store.rows import (
    bare,
    decoded,
    encoded,
    first_of,
    job_row,
    number,
    open_item,
    position,
    record_of,
    record_text,
)
from smartbatch.types import Route

__all__ = [
    "bodies",
    "charge",
    "claim_realtime",
    "count",
    "delete_items",
    "first_in",
    "items_in",
    "job_number",
    "known",
    "reserve",
    "reserve_anyway",
    "store",
]

PAGE_ITEMS = 5_000
PAGE_BYTES = 8 << 20
"""Items are stored by pages of this many, or this many bytes, so that a job of any size needs little memory
and keeps other writers waiting for a moment only."""
PAGE_DELETED = 10_000
"""Rows deleted in one transaction."""
Digest = Callable[[], bytes] | None
"""Returns the digest of a job once all its items were read."""
_OUTCOMES = ("succeeded", "failed", "cancelled")
_TINY = 1e-9
"""USD by which sums of floats may miss: less than a token costs."""
_ITEM = ("no", "state", "tries", "size", "tokens")
_FOLLOWER = ("no", "leader")
_PAYLOAD = ("no", "user_id", "body")


def job_number(db: Database, job_id: str) -> int:
    """Return the number of a job.

    Raises:
        JobNotFound: there is none with that id.
    """
    found = db.row(sql.JOB_NUMBER, job_id)
    if found is None:
        raise JobNotFound(f"the store {db.place} has no job {job_id!r}; see: smartbatch jobs list")
    return int(found[0])


def known(reader: Reader, job: JobRow) -> JobRow | None:
    """Return the job that has the key of ``job``, else the one that has its id."""
    found = reader.row(sql.JOB_BY_KEY, encoded(job.key)) if job.key is not None else None
    found = found or reader.row(sql.JOB_BY_ID, job.id)
    return None if found is None else job_row(found)


# -- items ---------------------------------------------------------------------------------------------------


def _new_number(tx: Transaction, owner: str) -> int:
    """Return the number of a job to be; until :func:`_store_job` its items are incomplete."""
    [(no,)] = tx.rows(sql.NEW_INCOMPLETE, owner)
    return int(no)


def _store_items(tx: Transaction, job: int, start: int, page: Sequence[NewItem]) -> None:
    """Store items at the positions from ``start`` on."""
    numbered = [(number(job, ix), item) for ix, item in enumerate(page, start)]
    tx.insert("item", _ITEM, ((no, _state(item).value, 0, item.size, item.tokens) for no, item in numbered))
    followers = [(no, number(job, item.leader)) for no, item in numbered if item.leader is not None]
    if followers:
        tx.insert("follower", _FOLLOWER, followers)
    tx.insert("payload", _PAYLOAD, ((no, encoded(item.user_id), item.payload) for no, item in numbered))


def _state(item: NewItem) -> ItemState:
    """Return the state an item begins in."""
    if item.leader is not None:
        return ItemState.FOLLOWING
    return ItemState.REALTIME if item.realtime else ItemState.OPEN


def _store_job(tx: Transaction, no: int, job: JobRow, digest: Digest, total: int) -> JobRow:
    """Make a job of the ``total`` items that are stored under its number."""
    tx.change(sql.DROP_INCOMPLETE, no)
    tx.change(
        sql.NEW_JOB,
        no,
        job.id,
        encoded(job.key),
        job.scope,
        job.model,
        job.kind,
        bare(dict(job.metadata)),
        record_text(job.policy),
        job.digest if digest is None else digest(),
        job.created_at,
        (JobState.ACTIVE if total else JobState.DONE).value,
        None if total else job.created_at,
        total,
    )
    tx.change(sql.NEW_PARAMS, no, job.params)
    [row] = tx.rows(sql.JOB_BY_ID, job.id)
    return job_row(row)


def store(
    db: Database, job: JobRow, items: Iterable[NewItem], digest: Digest, enter: Callable[[], str]
) -> tuple[JobRow, bool]:
    """Store a job and its items by pages, the last one with the job; see :meth:`.SqlStore.accept`.

    Args:
        enter: returns the own id as an owner; called where there are several pages.
    """
    pages = _pages_of(items)
    page, last = next(pages)
    early, total, kept = 0, 0, False
    if not last:
        owner = enter()
        with db.writing() as tx:
            early = _new_number(tx, owner)
    try:
        while not last:
            with db.writing() as tx:
                _store_items(tx, early, total, page)
            total += len(page)
            page, last = next(pages)
        with db.writing() as tx:
            tx.lock("accept")
            if (found := known(tx, job)) is not None:
                return found, False
            no = early or _new_number(tx, "")
            _store_items(tx, no, total, page)
            stored = _store_job(tx, no, job, digest, total + len(page))
        kept = True
        return stored, True
    finally:
        if early and not kept:
            with contextlib.suppress(StoreError):  # the next owner deletes them
                delete_items(db, early)


def delete_items(db: Database, job: int) -> None:
    """Delete the items of a number that no job has, in transactions that let others in between."""
    if db.row(sql.INCOMPLETE, job) is None:  # a commit that was told as failed made a job of them
        return
    end = first_of(job + 1)
    for table in sql.ITEM_TABLES:
        drop = sql.DROP_RANGE.replace("{table}", table)
        first = first_in(db, table, first_of(job), end)
        while first is not None:
            last = min(first + PAGE_DELETED, end)
            with db.writing() as tx:
                tx.change(drop, first, last)
            first = first_in(db, table, last, end)
    with db.writing() as tx:
        tx.change(sql.DROP_INCOMPLETE, job)


def first_in(db: Database, table: str, start: int, end: int) -> int | None:
    """Return the first number in a table from ``start`` on and before ``end``."""
    [(found,)] = db.rows(sql.FIRST_OF_RANGE.replace("{table}", table), start, end)
    return None if found is None else int(found)


def items_in(db: Database, job: int, state: ItemState, limit: int) -> list[OpenItem]:
    """Return up to ``limit`` items in a state, in order."""
    statement = sql.WAITING if state.value < ItemState.SHARDED.value else sql.ITEMS_IN
    return [
        open_item(row) for row in db.rows(statement, state.value, first_of(job), first_of(job + 1), limit)
    ]


def bodies(db: Database, job: int, positions: Iterable[int]) -> dict[int, bytes]:
    """Return requests by their positions in the job."""
    rows = db.rows(sql.PAYLOADS, [number(job, ix) for ix in positions])
    return {position(no): body for no, body in rows}


def claim_realtime(tx: Transaction, job: int, limit: int) -> list[ClaimedItem]:
    """Turn items to be sent in real time to items in flight, and return them in order."""
    taken = sorted(tx.rows(sql.CLAIM_REALTIME, first_of(job), first_of(job + 1), limit))
    rows = tx.rows(sql.NAMED_PAYLOADS, [no for no, _ in taken]) if taken else []
    named = {no: (decoded(user_id), body) for no, user_id, body in rows}
    return [ClaimedItem(position(no), *named[no], tries) for no, tries in taken]


# -- counts --------------------------------------------------------------------------------------------------


def reserve(tx: Transaction, job: int, usd: float) -> None:
    """Reserve ``usd`` of a job's budget, or release them where they are negative.

    Raises:
        OverJobBudget: there is no room for them.
    """
    if not usd:
        return
    [(policy, cost, reserved)] = tx.rows(sql.MONEY, job)
    budget = record_of(JobPolicy, policy).budget
    if usd > 0 and budget is not None and cost + reserved + usd > budget + _TINY:
        raise OverJobBudget(
            f"{usd:.6f} USD more could be spent, and {max(0.0, budget - cost - reserved):.6f} USD are "
            f"left of the job's budget of {budget:g} USD; nothing was written"
        )
    reserve_anyway(tx, job, usd)


def reserve_anyway(tx: Transaction, job: int, usd: float) -> None:
    """Reserve what may have been spent already, so that there is nothing to refuse."""
    tx.change(sql.RESERVE, usd, job)


def count(
    tx: Transaction, job: int, results: Sequence[NewResult], at: float, *, deduplicated: bool = False
) -> int:
    """Add final results to the job's counts, and end the job with its last; return the first ``seq``."""
    outcomes = [result.outcome for result in results]
    [(last, model)] = tx.rows(
        sql.COUNT,
        len(results),
        *(outcomes.count(outcome) for outcome in _OUTCOMES),
        *_costs(results),
        sum(result.cost is None for result in results),
        *_tokens(results),
        job,
    )
    tx.change(sql.FINISH, at, job)
    tx.counted += _stored_counts(model, results, deduplicated=deduplicated)
    return first_of(job) + int(last) - len(results) + 1


def charge(tx: Transaction, job: int, results: Sequence[NewResult]) -> None:
    """Add the cost of answers that were paid and do not count, such as those that break their schema."""
    paid = [result for result in results if result.cost and (result.input_tokens or result.output_tokens)]
    if paid:
        [(_, model)] = tx.rows(sql.COUNT, 0, 0, 0, 0, *_costs(paid), 0, *_tokens(paid), job)
        tx.counted += _stored_counts(model, paid)


def _stored_counts(
    model: str, results: Sequence[NewResult], *, deduplicated: bool = False
) -> Iterable[StoredCounts]:
    """Return what results add to the counts, by route."""
    counts: dict[tuple[Route | None, bool], StoredCounts] = {}
    for result in results:
        key = (result.route, result.in_realtime)
        if (found := counts.get(key)) is None:
            found = counts[key] = StoredCounts(model, *key)
        if result.outcome in _OUTCOMES:
            setattr(found, result.outcome, getattr(found, result.outcome) + 1)
            found.deduplicated += deduplicated
            found.unpriced += result.cost is None
        if result.usage is not None:
            found.usage += result.usage
        cost, realtime_cost = _costs((result,))
        found.cost += cost
        found.realtime_cost += realtime_cost
    return counts.values()


def _tokens(results: Sequence[NewResult]) -> tuple[int, int]:
    return sum(result.input_tokens for result in results), sum(result.output_tokens for result in results)


def _costs(results: Sequence[NewResult]) -> tuple[float, float]:
    """Return the cost of results whose price is known, USD, and what they would have cost in real time.

    Where the latter is unknown no saving is claimed.
    """
    priced = [result for result in results if result.cost is not None]
    cost = float(sum(result.cost or 0.0 for result in priced))
    realtime = sum((r.cost if r.realtime_cost is None else r.realtime_cost) or 0.0 for r in priced)
    return cost, float(realtime)


def _pages_of(items: Iterable[NewItem]) -> Iterator[tuple[list[NewItem], bool]]:
    """Yield pages, and whether each is the last; there is at least one."""
    page: list[NewItem] = []
    size = 0
    for item in items:
        if len(page) >= PAGE_ITEMS or size >= PAGE_BYTES:
            yield page, False
            page, size = [], 0
        page.append(item)
        size += len(item.payload)
    yield page, True
