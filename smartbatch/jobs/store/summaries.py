"""Summaries for who looks at the store: the tables ``decision``, ``error_group`` and ``spending``.

What concerns a job is written in the transaction that stores the job or its results, so that it is never lost
and never counted twice; what concerns requests in real time a few seconds later. All reads go by an index and
are bounded, however many rows jobs have.

Many transactions add to the same rows. So that none waits for another longer than a commit takes, these
statements go along with the commit, and those of jobs are spread over :data:`PARTS` rows.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from typing import Any

from attrs import astuple, fields_dict, frozen

from smartbatch.core.limits.failures import OTHER_MESSAGES, pattern_of
from smartbatch.core.routing.choice import Decision
from smartbatch.core.routing.decision_text import decision_of, decision_text
from smartbatch.core.routing.outcome import ListDecision, Measured
from smartbatch.core.routing.workload import expected_usd
from smartbatch.errors import StoreError, kind_name
from smartbatch.jobs.payload import decode_error, item_id
from smartbatch.jobs.records import NewResult, StoredCounts
from smartbatch.jobs.store.database import Database, Row, Transaction, decoded, encoded, number, position
from smartbatch.jobs.store.schema import maker
from smartbatch.jobs.summary_records import ErrorGroup, Failures, Spending, StoredDecision
from smartbatch.types import Route

DECISIONS_KEPT = 2_000
"""Decisions on lists in real time that are kept; that on a job is kept as long as the job."""
GROUPS_KEPT = 500
"""Groups of errors that are kept: those seen last."""
GROUPS_AT_ONCE = 20
"""Groups that one transaction adds to; further errors of each kind are counted as one group."""
TRIM_EVERY = 20
"""Jobs after which what is old is deleted; requests in real time have it deleted with each write."""
TRIMMED = 1_000
"""Groups that are deleted at once, at most."""
HOUR = 3600.0
HOURS_KEPT = 14 * 24
"""Hours for which spending is kept."""
PARTS = 8
"""Rows over which the spending of an hour, model and route is spread."""
MOST_ROWS = 20_000
"""Rows of spending that are read at once."""

_DECISIONS = """SELECT d.no, d.at, d.model, j.id, d.route, d.requests, d.deadline, d.p50, d.p95, d.cost,
    d.individual_p50, d.individual_cost, d.batch_p50, d.batch_cost,
    d.seconds, d.paid, d.paid_individual, d.paid_batch, {body}
    FROM decision d LEFT JOIN job j ON j.no = d.job """
_NEW_DECISION = """INSERT INTO decision (job, at, model, route, requests, deadline, p50, p95, cost,
    individual_p50, individual_cost, batch_p50, batch_cost, body)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_MEASURE = "UPDATE decision SET seconds = ?, paid = ?, paid_individual = ?, paid_batch = ? WHERE no = ?"
_MEASURE_JOB = """UPDATE decision SET seconds = CASE WHEN ? > at THEN ? - at ELSE 0 END,
    paid = (SELECT cost FROM job WHERE no = ? AND unpriced = 0),
    paid_individual = (SELECT realtime_cost FROM job WHERE no = ? AND unpriced = 0),
    paid_batch = (SELECT cost FROM job WHERE no = ? AND unpriced = 0 AND decision.route = ?)
    WHERE job = ? AND seconds IS NULL AND EXISTS (SELECT 1 FROM job WHERE no = ? AND succeeded > 0)"""
_TRIM_DECISIONS = """DELETE FROM decision WHERE job IS NULL AND no <= (
    SELECT no FROM decision WHERE job IS NULL ORDER BY no DESC LIMIT 1 OFFSET ?)"""
_SPEND = """INSERT INTO spending (hour, model, route, part, requests, failed, usd, realtime_usd, unpriced,
    input_tokens, output_tokens) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (hour, model, route, part) DO UPDATE SET requests = spending.requests + excluded.requests,
    failed = spending.failed + excluded.failed, usd = spending.usd + excluded.usd,
    realtime_usd = spending.realtime_usd + excluded.realtime_usd,
    unpriced = spending.unpriced + excluded.unpriced,
    input_tokens = spending.input_tokens + excluded.input_tokens,
    output_tokens = spending.output_tokens + excluded.output_tokens"""
_TRIM_SPENDING = """DELETE FROM spending WHERE (hour, model, route, part) IN (
    SELECT hour, model, route, part FROM spending WHERE hour < ? {skip_locked})"""
_SPENDING = """SELECT model, route, sum(requests), sum(failed), sum(usd), sum(realtime_usd), sum(unpriced),
    sum(input_tokens), sum(output_tokens), hour FROM spending WHERE hour >= ?
    GROUP BY hour, model, route ORDER BY hour, model, route LIMIT ?"""
_FAIL = """INSERT INTO error_group (digest, kind, message, count, first_at, last_at, model, item, request_id)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (digest) DO UPDATE SET count = error_group.count + excluded.count,
    last_at = excluded.last_at, model = excluded.model, item = excluded.item,
    request_id = excluded.request_id"""
_TRIM_GROUPS = """DELETE FROM error_group WHERE digest IN (
    SELECT digest FROM error_group ORDER BY last_at DESC LIMIT ? OFFSET ? {skip_locked})"""
_GROUPS = """SELECT e.kind, e.message, e.count, e.first_at, e.last_at, e.model, e.item, e.request_id, j.id,
    p.user_id FROM error_group e LEFT JOIN payload p ON p.no = e.item
    LEFT JOIN job j ON j.no = e.item >> 32 ORDER BY e.last_at DESC LIMIT ?"""

_SUMS = ("requests", "failed", "unpriced", "input_tokens", "output_tokens")
_spending = maker(Spending, hour=lambda kept: kept * HOUR, **dict.fromkeys(_SUMS, int))


@frozen
class SummaryTable:
    """Summaries. All reads are of some thousand rows at most."""

    db: Database

    # -- decisions -------------------------------------------------------------------------------------------

    def decision(self, job_id: str) -> StoredDecision | None:
        """Return the decision by which a job goes; ``None`` for a job whose route nobody chose."""
        found = self.db.row(_DECISIONS.replace("{body}", "d.body") + "WHERE j.id = ?", job_id)
        return None if found is None else _stored_decision(found)

    def numbered(self, no: int) -> StoredDecision | None:
        """Return the decision of a number."""
        found = self.db.row(_DECISIONS.replace("{body}", "d.body") + "WHERE d.no = ?", no)
        return None if found is None else _stored_decision(found)

    def kept(self, beginning: str) -> list[tuple[str, StoredDecision]]:
        """Return the latest ten decisions on jobs that are deleted, with the keys of these, newest first.

        Args:
            beginning: of the keys.
        """
        low = beginning.encode("utf-8", "surrogatepass")
        found = "SELECT no, name FROM decision WHERE name >= ? AND name < ? ORDER BY no DESC LIMIT 10"
        rows = self.db.rows(found, low, low + b"\xff")
        named = ((decoded(name) or "", self.numbered(no)) for no, name in rows)
        return [(name, one) for name, one in named if one is not None]

    def decisions(self, *, before: int | None = None, limit: int) -> list[StoredDecision]:
        """Return decisions, newest first, from the one before number ``before``; without what they rest on,
        so that there may be many."""
        page = _DECISIONS.replace("{body}", "NULL")
        if before is None:
            rows = self.db.rows(f"{page}ORDER BY d.no DESC LIMIT ?", limit)
        else:
            rows = self.db.rows(f"{page}WHERE d.no < ? ORDER BY d.no DESC LIMIT ?", before, limit)
        return [_stored_decision(row) for row in rows]

    # -- errors and spending ---------------------------------------------------------------------------------

    def error_groups(self, *, limit: int = GROUPS_KEPT) -> list[ErrorGroup]:
        """Return groups of errors, those seen last first."""
        return [_error_group(row) for row in self.db.rows(_GROUPS, limit)]

    def spending(self, since: float) -> list[Spending]:
        """Return what was spent by hour, model and route, oldest first.

        Args:
            since: Unix seconds; the hour that holds them is the first.
        """
        return [_spending(row) for row in self.db.rows(_SPENDING, _hour(since), MOST_ROWS)]

    # -- writing ---------------------------------------------------------------------------------------------

    def write(
        self,
        decisions: Sequence[ListDecision],
        failures: Iterable[Failures],
        spent: Iterable[Spending],
        *,
        at: float,
        part: int,
    ) -> None:
        """Add what came of requests in real time, in one transaction, and delete what is old.

        Args:
            decisions: on lists; each is given its number, and written again once it is measured.
            at: Unix seconds of the errors and of the spending.
            part: a number of this process.
        """

        def work(tx: Transaction) -> list[int | None]:
            tx.lock("summaries")  # processes that write at the same moment do not meet in a deadlock
            numbers = [_write_decision(tx, each) for each in decisions]
            if decisions:
                tx.change(_TRIM_DECISIONS, DECISIONS_KEPT)
            add_failures(tx, failures, at)
            _add_spending(tx, spent, at, part)
            trim(tx, at)
            return numbers

        for decision, no in zip(decisions, self.db.write(work), strict=True):
            decision.no = no


def store_decision(tx: Transaction, job: int | None, decision: Decision, model: str, at: float) -> None:
    """Store the decision on a job, by its number."""
    tx.at_commit(_NEW_DECISION, *_columns(job, decision, model, at))


def keep_decision(tx: Transaction, job: int) -> None:
    """Keep the decision on a job that is deleted, under its key, as one of those on lists."""
    key = "(SELECT user_key FROM job WHERE no = ?)"
    tx.change(f"UPDATE decision SET name = {key}, job = NULL WHERE job = ?", job, job)
    tx.change(_TRIM_DECISIONS, DECISIONS_KEPT)


def measure(tx: Transaction, job: int, at: float) -> None:
    """Store what a job took that ends now, with its decision; rows that run again later change nothing of it.

    Where nothing was answered, how soon that was known says nothing of any route.
    """
    tx.at_commit(_MEASURE_JOB, at, at, job, job, job, Route.BATCH.value, job, job)


def add_results(
    tx: Transaction,
    job: int,
    results: Sequence[NewResult],
    counts: Iterable[StoredCounts],
    at: float,
) -> None:
    """Add what results of a job came to, and the errors among them. ``ix`` of a result that stands for many
    is that of one of them."""
    spent = [
        Spending(
            each.model,
            "" if each.route is None else each.route.value,
            requests=each.succeeded + each.failed + each.cancelled,
            failed=each.failed,
            usd=each.cost,
            realtime_usd=each.realtime_cost,
            unpriced=each.unpriced,
            input_tokens=each.usage.input_tokens,
            output_tokens=each.usage.output_tokens,
        )
        for each in counts
    ]
    _add_spending(tx, spent, at, job)
    failed = [result for result in results if result.outcome == "failed" and result.body]
    if failed:
        add_failures(tx, _failures(job, failed, spent[0].model), at)


def add_failures(tx: Transaction, failures: Iterable[Failures], at: float) -> None:
    """Add failures to the groups of errors; of more than :data:`GROUPS_AT_ONCE` those of a kind together."""
    groups: dict[tuple[str, str], Failures] = {}
    for each in failures:
        key = (each.kind, each.message)
        if key not in groups and len(groups) >= GROUPS_AT_ONCE:
            key = (each.kind, OTHER_MESSAGES)
        group = groups.get(key)
        if group is None:
            group = groups[key] = Failures(*key, each.model)
        group.count += each.count
        group.model, group.item, group.request_id = each.model, each.item, each.request_id
    for group in groups.values():
        told = f"{group.kind}\n{group.message}"
        digest = hashlib.blake2b(told.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        message, request_id = encoded(group.message), encoded(group.request_id)
        model = _text(group.model)
        values = (_text(group.kind), message, group.count, at, at, model, group.item, request_id)
        tx.at_commit(_FAIL, digest, *values)


def trim(tx: Transaction, at: float) -> None:
    """Delete spending and groups of errors beyond those that are kept."""
    tx.at_commit(_TRIM_SPENDING, _hour(at) - HOURS_KEPT)
    tx.at_commit(_TRIM_GROUPS, TRIMMED, GROUPS_KEPT)


def _write_decision(tx: Transaction, one: ListDecision) -> int | None:
    """Insert a decision, or add what it took; return its number."""
    no, measured = one.no, one.measured
    if no is None:
        [(no,)] = tx.rows(f"{_NEW_DECISION} RETURNING no", *_columns(None, one.decision, one.model, one.at))
    if measured is not None:
        values = (measured.seconds, measured.cost, measured.individual_cost, measured.batch_cost)
        tx.change(_MEASURE, *values, no)
    return no


def _columns(job: int | None, decision: Decision, model: str, at: float) -> tuple[Any, ...]:
    chosen, alone, batch = decision.chosen, decision.alone, decision.batch
    return (
        job,
        at,
        _text(model),
        chosen.route.value,
        decision.load.requests,
        decision.constraints.deadline,
        _known(chosen.p50),
        _known(chosen.p95),
        expected_usd(chosen.cost),
        _known(alone.p50),
        expected_usd(alone.cost),
        None if batch is None else _known(batch.p50),
        None if batch is None else expected_usd(batch.cost),
        decision_text(decision),
    )


def _stored_decision(row: Row) -> StoredDecision:
    *told, seconds, paid, individual, by_batch, body = row
    measured = None
    if seconds is not None:
        measured = Measured(seconds=seconds, cost=paid, individual_cost=individual, batch_cost=by_batch)
    names = fields_dict(StoredDecision)
    values = (*told, measured, None if body is None else decision_of(body))
    return StoredDecision(**dict(zip(names, values, strict=True)))


def _failures(job: int, failed: Iterable[NewResult], model: str) -> list[Failures]:
    """Return what failed, by the bytes of the error, which many items may share."""
    by_body: dict[bytes, Failures] = {}
    for result in failed:
        known = by_body.get(result.body)
        if known is None:
            known = by_body[result.body] = Failures(*_told(result.body), model)
        known.count += 1
        known.item = number(job, result.ix)
    return list(by_body.values())


def _told(body: bytes) -> tuple[str, str]:
    """Return kind and message of the error in a result."""
    try:
        error = decode_error(body)
    except StoreError:
        error = None
    return ("unknown", "") if error is None else (kind_name(error), pattern_of(error.message))


def _error_group(row: Row) -> ErrorGroup:
    kind, message, *told, item, request_id, job_id, user_id = row
    ix = None if item is None or job_id is None else position(item)
    shown = decoded(request_id) if ix is None else item_id(job_id, ix, decoded(user_id))
    values = (kind, decoded(message) or "", *told, job_id, ix, shown)
    return ErrorGroup(**dict(zip(fields_dict(ErrorGroup), values, strict=True)))


def _add_spending(tx: Transaction, spent: Iterable[Spending], at: float, part: int) -> None:
    for each in spent:
        model, route, *counts, _ = astuple(each)
        tx.at_commit(_SPEND, _hour(at), _text(model), route, part % PARTS, *counts)


def _text(value: str) -> str:
    """Return a name as any text column takes it: what is only shown must not make a write fail."""
    return value.encode("utf-8", "replace").decode().replace("\0", "?")


def _known(value: float) -> float:
    """Return a time that every database keeps: what is no number is endless."""
    return math.inf if math.isnan(value) else value


def _hour(at: float) -> int:
    return int(at // HOUR)
