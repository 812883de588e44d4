"""The outcomes of items: each item ends once and is counted once.

All functions run in their caller's transaction, except those at the end of the module.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence

from attrs import astuple, evolve

from smartbatch._words import money
from smartbatch.errors import JobNotFound
from smartbatch.jobs.records import (
    EarlierTries,
    IncidentRow,
    ItemState,
    JobLease,
    JobNote,
    JobPolicy,
    NewResult,
    OverJobBudget,
    StoredCounts,
    StoredItem,
)
from smartbatch.jobs.store import summaries
from smartbatch.jobs.store.database import (
    Database,
    Reader,
    Row,
    Transaction,
    ascii_json,
    encoded,
    first_of,
    number,
    position,
    record_of,
    unpacked,
)
from smartbatch.jobs.store.schema import earlier_tries, stored_item
from smartbatch.types import DEFECTS, Route, Usage

MAX_NAMED_ROWS = 64  # rows listed in an incident; a client usually has fewer in flight
PAGE_FOLLOWERS = 10_000  # followers ended by one statement
ItemAt = tuple[int, int | None]  # state and shard of an item, as numbers
_COUNTED = ("succeeded", "failed", "cancelled", "cost", "realtime_cost", "unpriced", *DEFECTS)
_TINY_USD = 1e-9  # USD of rounding error allowed in sums of floats: less than the price of a token

# -- counts and money ----------------------------------------------------------------------------------------

_ADD_COUNTS = """UPDATE job SET seq = seq + ?,
    succeeded = succeeded + ?, failed = failed + ?, cancelled = cancelled + ?,
    cost = cost + ?, realtime_cost = realtime_cost + ?, unpriced = unpriced + ?,
    truncated = truncated + ?, empty = empty + ?, refused = refused + ?,
    input_tokens = input_tokens + ?, output_tokens = output_tokens + ?
    WHERE no = ? RETURNING seq, model"""
_FINISH_JOB = """UPDATE job SET state = {done}, finished_at = ?, note = NULL
    WHERE no = ? AND state <> {done} AND succeeded + failed + cancelled >= total"""
PAGE_DELETED = 10_000  # rows deleted in one transaction
JOB_NUMBER = "SELECT no FROM job WHERE id = ?"


def reserve(tx: Transaction, job: int, usd: float) -> None:
    """Reserve ``usd`` of a job's budget; a negative amount is released.

    Raises:
        OverJobBudget: the budget has no room for it.
    """
    if not usd:
        return
    [(policy, cost, reserved)] = tx.rows("SELECT policy, cost, reserved FROM job WHERE no = ?", job)
    budget = record_of(JobPolicy, policy).budget
    if usd > 0 and budget is not None and cost + reserved + usd > budget + _TINY_USD:
        raise OverJobBudget(
            f"up to {money(usd)} more could be spent, but only {money(max(0.0, budget - cost - reserved))} "
            f"is left of the job's budget of {money(budget)}; nothing was written"
        )
    reserve_anyway(tx, job, usd)


def reserve_anyway(tx: Transaction, job: int, usd: float) -> None:
    """Reserve an amount that may have been spent already, even beyond the budget."""
    tx.change("UPDATE job SET reserved = reserved + ? WHERE no = ?", usd, job)


def note(tx: Transaction, job: int, noted: JobNote) -> None:
    """Store what a job is waiting for. A held job keeps its note."""
    held = ", state = {held} WHERE state = {active}" if noted.hold else " WHERE state <> {held}"
    tx.change(f"UPDATE job SET note = ?{held} AND no = ?", encoded(noted.text), job)


def count(
    tx: Transaction, job: int, results: Sequence[NewResult], at: float, *, deduplicated: bool = False
) -> int:
    """Add final results to the job's counts; the last one finishes the job. Return the first ``seq``."""
    last = _add(tx, job, results, at, deduplicated=deduplicated)
    if tx.change(_FINISH_JOB, at, job):
        summaries.measure(tx, job, at)
    return first_of(job) + last - len(results) + 1


def charge(tx: Transaction, job: int, results: Sequence[NewResult], at: float) -> None:
    """Charge paid answers that were discarded, for example because they violate their schema.

    Their items record the billed amount.
    """
    billed = [result for result in results if result.usage.total_tokens]
    remember(tx, {number(job, result.ix): result for result in billed})
    paid = [result for result in billed if result.cost]
    if paid:
        _add(tx, job, paid, at)


def remember(tx: Transaction, billed: Mapping[int, NewResult]) -> None:
    """Record results that do not end their items as earlier tries of those items."""
    if not billed:
        return
    rows = tx.rows("SELECT no, cost, usage, body FROM earlier_tries WHERE no IN {numbers}", list(billed))
    known = {no: earlier_tries(tuple(row)) for no, *row in rows}
    if known:
        tx.change("DELETE FROM earlier_tries WHERE no IN {numbers}", list(known))
    new = []
    for no, result in billed.items():
        tried = EarlierTries(result.cost, result.usage, result.body if result.outcome == "again" else None)
        tried = known[no] + tried if no in known else tried
        new.append((no, tried.cost, ascii_json(astuple(tried.usage)), tried.refused))
    tx.insert("earlier_tries", ("no", "cost", "usage", "body"), new)


def _add(
    tx: Transaction, job: int, results: Sequence[NewResult], at: float, *, deduplicated: bool = False
) -> int:
    """Add to the job's counts, the summaries and ``tx.counted``; return the latest ``seq``."""
    by_route: dict[tuple[Route | None, bool], StoredCounts] = {}
    for result in results:
        key = (result.route, result.in_realtime)
        if (counts := by_route.get(key)) is None:
            counts = by_route[key] = StoredCounts("", *key)
        if result.final:
            setattr(counts, result.outcome, getattr(counts, result.outcome) + 1)
            counts.deduplicated += deduplicated
            counts.unpriced += result.cost is None
            for defect in result.defects:
                setattr(counts, defect, getattr(counts, defect) + 1)
        counts.usage += result.usage
        if result.cost is not None:  # if the cost in real time is unknown, no saving is claimed
            counts.cost += result.cost
            counts.realtime_cost += result.cost if result.realtime_cost is None else result.realtime_cost
    sums = [sum(getattr(counts, name) for counts in by_route.values()) for name in _COUNTED]
    usage = sum((counts.usage for counts in by_route.values()), Usage())
    finals = sum(result.final for result in results)
    [(last, model)] = tx.rows(_ADD_COUNTS, finals, *sums, usage.input_tokens, usage.output_tokens, job)
    for counts in by_route.values():
        counts.model = model
    tx.counted += by_route.values()
    summaries.add_results(tx, job, results, by_route.values(), at)
    return int(last)


# -- results and verdicts ------------------------------------------------------------------------------------


_SELECT_DIGESTS = "SELECT no, digest FROM result WHERE no IN {numbers}"
_END_ITEMS = "UPDATE item SET state = {final} WHERE no IN {numbers}"
_END_ALIKE = """INSERT INTO result (no, seq, outcome, digest, cost, body)
    SELECT no, ? + row_number() OVER (ORDER BY no), ?, ?, CAST(? AS DOUBLE PRECISION), ?
    FROM item WHERE no IN {numbers}"""


def positions(reader: Reader, shard_id: str) -> tuple[int, memoryview]:
    """Return the number of a shard's job, and the positions of the shard's items in it."""
    found = reader.row("SELECT job, positions FROM shard_items WHERE id = ?", shard_id)
    job, data = found or (0, b"")
    return job, memoryview(unpacked(data))


def item_states(tx: Transaction, job: int, ixs: Iterable[int]) -> dict[int, ItemAt]:
    numbers = list({number(job, ix) for ix in ixs})
    rows = tx.rows("SELECT no, state, shard FROM item WHERE no IN {numbers}", numbers)
    return {position(no): (state, shard) for no, state, shard in rows}


def store_results(
    tx: Transaction, job: int, items: Mapping[int, ItemAt], results: Iterable[NewResult], at: float
) -> tuple[list[int], list[int]]:
    """Store final results of items without a result; results that are not final are ignored.

    Returns:
        The items whose result was stored, and the items that already have a different one, which is kept.
    """
    ended = [number(job, ix) for ix, (state, _) in items.items() if state == ItemState.FINAL.value]
    finals = [result for result in results if result.final]
    new, doubled = _first_results(job, finals, tx.rows(_SELECT_DIGESTS, ended) if ended else [])
    if new:
        first = count(tx, job, list(new.values()), at)
        rows = (
            (no, seq, result.outcome, result.digest, result.cost, result.body)
            for seq, (no, result) in enumerate(new.items(), first)
        )
        tx.insert("result", ("no", "seq", "outcome", "digest", "cost", "body"), rows)
        tx.change(_END_ITEMS, list(new))
        _end_followers(tx, job, new, at)
    return [result.ix for result in new.values()], doubled


def store_verdicts(
    tx: Transaction, job: int, results: Sequence[NewResult], final: Collection[int], at: float
) -> list[int]:
    """Store verdicts on items that are sent again; return the items that already have a different one."""
    verdicts = [result for result in results if not result.final]
    if not verdicts:
        return []
    nos = list({number(job, verdict.ix) for verdict in verdicts})
    known = tx.rows("SELECT no, digest FROM verdict WHERE no IN {numbers}", nos)
    new, doubled = _first_results(job, verdicts, known + tx.rows(_SELECT_DIGESTS, nos))
    rows = ((no, verdict.outcome, verdict.digest, verdict.body) for no, verdict in new.items())
    tx.insert("verdict", ("no", "outcome", "digest", "body"), rows)
    charge(tx, job, list(new.values()), at)
    return [ix for ix in doubled if ix not in final]


def _first_results(
    job: int, results: Iterable[NewResult], known: Iterable[Row]
) -> tuple[dict[int, NewResult], list[int]]:
    """Return the first result of each item by number, and the items that have a different, earlier result.

    ``known`` contains numbers and digests of earlier results.
    """
    digests: dict[int, set[bytes]] = {}
    for no, digest in known:
        digests.setdefault(no, set()).add(digest)
    new: dict[int, NewResult] = {}
    doubled = []
    for result in results:
        no = number(job, result.ix)
        if no not in digests:
            new[no] = result
            digests[no] = {result.digest}
        elif result.digest not in digests[no]:
            doubled.append(result.ix)
    return new, doubled


def end_alike(tx: Transaction, job: int, items: list[int], result: NewResult, at: float) -> None:
    """End items and their followers with one result, whose ``ix`` is ignored. ``items`` are item numbers."""
    if items:
        _end_alike(tx, job, items, result, at)
        _end_followers(tx, job, dict.fromkeys(items, result), at)


def _end_alike(
    tx: Transaction, job: int, items: list[int], result: NewResult, at: float, *, deduplicated: bool = False
) -> None:
    results = [evolve(result, ix=position(items[0]))] * len(items)
    before = count(tx, job, results, at, deduplicated=deduplicated) - 1
    tx.change(_END_ALIKE, before, result.outcome, result.digest, result.cost, result.body, items)
    tx.change(_END_ITEMS, items)


def _end_followers(tx: Transaction, job: int, ended: Mapping[int, NewResult], at: float) -> None:
    """End the followers of items that have just ended, free of charge.

    This is part of the same transaction, so that no follower outlives its leader. Followers have no body:
    their leader's body is read for them.
    """
    followers = "SELECT no FROM follower WHERE leader = ? AND no > ? ORDER BY no LIMIT ?"
    for (leader,) in tx.rows("SELECT DISTINCT leader FROM follower WHERE leader IN {numbers}", list(ended)):
        result = ended[leader]
        copy = NewResult(-1, result.outcome, b"", cost=0.0, realtime_cost=0.0, route=result.route)
        copy = evolve(copy, defects=result.defects)
        last = 0
        while page := [no for (no,) in tx.rows(followers, leader, last, PAGE_FOLLOWERS)]:
            _end_alike(tx, job, page, copy, at, deduplicated=True)
            last = page[-1]


def end_late_followers(tx: Transaction, job: int, followers: Mapping[int, list[int]], at: float) -> None:
    """End new followers, given by their leader's number, whose leader already has a result."""
    ended = tx.rows("SELECT no, outcome FROM result WHERE no IN {numbers}", list(followers))
    for leader, outcome in ended:
        copy = NewResult(-1, outcome, b"", cost=0.0, realtime_cost=0.0)
        _end_alike(tx, job, followers[leader], copy, at, deduplicated=True)


def send_again(tx: Transaction, job: int, results: Sequence[NewResult]) -> None:
    """Let items in flight be sent again in real time; count a try unless the call was never executed."""
    for outcome, tried in (("again", 1), ("unrun", 0)):
        back = [number(job, result.ix) for result in results if result.outcome == outcome]
        if back:
            again = "UPDATE item SET state = {realtime}, tries = tries + ?"
            tx.change(f"{again} WHERE no IN {{numbers}} AND state = {{in_flight}}", tried, back)


def end_in_flight(tx: Transaction, lease: JobLease, job: int, unknown: bytes | None, now: float) -> None:
    """Release the items that a former owner left in flight, and record an incident about their possible cost.

    ``unknown`` is the body of the failed result that they get if they must not be sent again.
    """
    # items that end as failed pass through this state within this transaction
    freed = tx.rows(
        """UPDATE item SET state = {realtime}, tries = tries + 1
        WHERE {waiting} AND state = {in_flight} AND no >= ? AND no < ? RETURNING no""",
        first_of(job),
        first_of(job + 1),
    )
    numbers = sorted(no for (no,) in freed)
    if not numbers:
        return
    if unknown is not None:
        end_alike(tx, job, numbers, NewResult(-1, "failed", unknown, cost=None), now)
    named = _named([position(no) for no in numbers])
    end = "are sent again" if unknown is None else "end as failed"
    detail = (
        f"{len(numbers)} requests were in progress in real time when their process ended (about to be sent,"
        f" sent, or answered but not stored), and {end}: rows {named} (owner {lease.epoch})"
    )
    add_incident(tx, IncidentRow("maybe_billed", lease.job_id, None, detail, None, now))


def record_paid_twice(tx: Transaction, job: int, doubled: Iterable[NewResult], at: float) -> None:
    """Record the cost of real-time answers whose items already have another answer, such as an orphan's.

    The cost stays reserved, and an incident reports it.
    """
    paid = [result for result in doubled if result.cost or result.usage.total_tokens]
    if not paid:
        return
    [(job_id,)] = tx.rows("SELECT id FROM job WHERE no = ?", job)
    detail = (
        f"{len(paid)} requests were answered in real time although they already had another answer, which"
        f" is used: rows {_named([result.ix for result in paid])}"
    )
    known = [result.cost for result in paid if result.cost is not None]
    money = sum(known) if len(known) == len(paid) else None
    add_incident(tx, IncidentRow("doubled_line", job_id, None, detail, money, at))
    reserve_anyway(tx, job, sum(known))


def _named(ixs: Sequence[int]) -> str:
    return ", ".join(map(str, ixs[:MAX_NAMED_ROWS])) + (", …" if len(ixs) > MAX_NAMED_ROWS else "")


def add_incident(tx: Transaction, incident: IncidentRow) -> bool:
    """Store an incident; return false if one with the same kind, shard and detail exists."""
    identity = (incident.kind, incident.job_id, incident.shard_id, incident.detail)
    digest = hashlib.blake2b(ascii_json(identity).encode(), digest_size=16).digest()
    values = (digest, *identity[:3], encoded(incident.detail), incident.money, incident.at)
    new = """INSERT INTO incident (digest, kind, job_id, shard_id, detail, money, at)
        VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (digest) DO NOTHING"""
    return tx.change(new, *values) > 0


# -- items by their numbers ----------------------------------------------------------------------------------


def job_number(db: Database, job_id: str) -> int:
    found = db.row(JOB_NUMBER, job_id)
    if found is None:
        raise JobNotFound(f"the store {db.place} has no job {job_id!r}; see: smartbatch jobs list")
    [no] = found
    return int(no)


def items_by_number(reader: Reader, numbers: Iterable[int]) -> dict[int, StoredItem]:
    """Return items in order, by number."""
    rows = reader.rows(
        """SELECT i.no, p.user_id, p.body, i.tokens, i.tries FROM item i JOIN payload p ON p.no = i.no
        WHERE i.no IN {numbers} ORDER BY i.no""",
        list(numbers),
    )
    return {row[0]: stored_item(row) for row in rows}


def delete_items(db: Database, job: int, owner: str) -> None:
    """Delete items that belong to no job, in several transactions, so that other writers need not wait long.

    The number is taken from its owner first, so that nothing more is stored under it. If it has another
    owner, nothing is deleted: a job was created, or another process is deleting the items.
    """
    if not db.change("UPDATE incomplete_job SET owner = '' WHERE no = ? AND owner = ?", job, owner):
        return
    end = first_of(job + 1)
    for table in ("result", "verdict", "earlier_tries", "earlier_result", "follower", "payload", "item"):
        drop = f"DELETE FROM {table} WHERE no >= ? AND no < ?"
        first = first_in(db, table, first_of(job), end)
        while first is not None:
            last = min(first + PAGE_DELETED, end)
            db.change(drop, first, last)
            first = first_in(db, table, last, end)
    db.change("DELETE FROM incomplete_job WHERE no = ?", job)


def first_in(db: Database, table: str, start: int, end: int, *, column: str = "no") -> int | None:
    """Return the first number in a column of a table, from ``start`` up to but excluding ``end``."""
    least = f"SELECT min({column}) FROM {table} WHERE {column} >= ? AND {column} < ?"
    [(found,)] = db.rows(least, start, end)
    return None if found is None else int(found)
