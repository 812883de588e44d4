"""Summaries for overviews: the tables ``decision``, ``error_group`` and ``spending``.

Summaries of a job are written in the transaction that stores the job or its results, so that nothing is
lost or counted twice; those of real-time requests follow a few seconds later. All reads use an index and
are bounded.

Many transactions add to the same rows. To keep the locks short, these statements run together with the
commit, and those of jobs are spread over :data:`SPENDING_PARTS` rows.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from typing import Any

from attrs import astuple, fields_dict, frozen

from smartbatch.core.routing.choice import Decision
from smartbatch.core.routing.outcome import ListDecision, Measured, decision_of, decision_text
from smartbatch.core.routing.workload import expected_usd
from smartbatch.errors import StoreError, kind_name
from smartbatch.failure_groups import OTHER_MESSAGES, pattern_of
from smartbatch.jobs.payload import decode_error, item_id
from smartbatch.jobs.records import HOUR, NewResult, StoredCounts
from smartbatch.jobs.store.database import Database, Row, Transaction, decoded, encoded, number, position
from smartbatch.jobs.store.schema import maker
from smartbatch.jobs.summary_records import ErrorGroup, Failures, Spending, StoredDecision
from smartbatch.types import Route

MAX_DECISIONS = 2_000  # stored decisions on real-time lists; a job's decision is stored as long as the job
MAX_GROUPS = 500  # stored groups of errors; older ones are deleted
MAX_GROUPS_PER_WRITE = 20  # further errors of one transaction are counted as one group per kind
TRIM_INTERVAL = 20  # old rows are deleted once per this many jobs
MAX_TRIMMED_GROUPS = 1_000  # groups deleted per transaction
MAX_SPENDING_HOURS = 14 * 24  # period for which spending is stored
SPENDING_PARTS = 8  # rows over which the spending of an hour, model and route is spread
MAX_SPENDING_ROWS = 20_000  # rows read at a time

_SELECT_DECISIONS = """SELECT d.no, d.at, d.model, j.id, d.route, d.requests, d.deadline, d.p50, d.p95,
    d.cost, d.individual_p50, d.individual_cost, d.batch_p50, d.batch_cost,
    d.seconds, d.paid, d.paid_individual, d.paid_batch, {body}
    FROM decision d LEFT JOIN job j ON j.no = d.job """
_NEW_DECISION = """INSERT INTO decision (job, at, model, route, requests, deadline, p50, p95, cost,
    individual_p50, individual_cost, batch_p50, batch_cost, body)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_MEASURE_DECISION = (
    "UPDATE decision SET seconds = ?, paid = ?, paid_individual = ?, paid_batch = ? WHERE no = ?"
)
_MEASURE_JOB = """UPDATE decision SET seconds = CASE WHEN ? > at THEN ? - at ELSE 0 END,
    paid = (SELECT cost FROM job WHERE no = ? AND unpriced = 0),
    paid_individual = (SELECT realtime_cost FROM job WHERE no = ? AND unpriced = 0),
    paid_batch = (SELECT cost FROM job WHERE no = ? AND unpriced = 0 AND decision.route = ?)
    WHERE job = ? AND seconds IS NULL AND EXISTS (SELECT 1 FROM job WHERE no = ? AND succeeded > 0)"""
_TRIM_DECISIONS = """DELETE FROM decision WHERE job IS NULL AND no <= (
    SELECT no FROM decision WHERE job IS NULL ORDER BY no DESC LIMIT 1 OFFSET ?)"""
_ADD_SPENDING_ROW = """INSERT INTO spending (hour, model, route, part, requests, failed, usd, realtime_usd,
    unpriced, input_tokens, output_tokens) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (hour, model, route, part) DO UPDATE SET requests = spending.requests + excluded.requests,
    failed = spending.failed + excluded.failed, usd = spending.usd + excluded.usd,
    realtime_usd = spending.realtime_usd + excluded.realtime_usd,
    unpriced = spending.unpriced + excluded.unpriced,
    input_tokens = spending.input_tokens + excluded.input_tokens,
    output_tokens = spending.output_tokens + excluded.output_tokens"""
_TRIM_SPENDING = """DELETE FROM spending WHERE (hour, model, route, part) IN (
    SELECT hour, model, route, part FROM spending WHERE hour < ? {skip_locked})"""
_SELECT_SPENDING = """SELECT model, route, sum(requests), sum(failed), sum(usd), sum(realtime_usd),
    sum(unpriced), sum(input_tokens), sum(output_tokens), hour FROM spending WHERE hour >= ?
    GROUP BY hour, model, route ORDER BY hour, model, route LIMIT ?"""
_ADD_FAILURES = """INSERT INTO error_group (digest, kind, message, count, first_at, last_at, model, item,
    request_id) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (digest) DO UPDATE SET count = error_group.count + excluded.count,
    last_at = excluded.last_at, model = excluded.model, item = excluded.item,
    request_id = excluded.request_id"""
_TRIM_GROUPS = """DELETE FROM error_group WHERE digest IN (
    SELECT digest FROM error_group ORDER BY last_at DESC LIMIT ? OFFSET ? {skip_locked})"""
_SELECT_GROUPS = """SELECT e.kind, e.message, e.count, e.first_at, e.last_at, e.model, e.item, e.request_id,
    j.id, p.user_id FROM error_group e LEFT JOIN payload p ON p.no = e.item
    LEFT JOIN job j ON j.no = e.item >> 32 ORDER BY e.last_at DESC LIMIT ?"""

_SUMS = ("requests", "failed", "unpriced", "input_tokens", "output_tokens")
_spending = maker(Spending, hour=lambda hours: hours * HOUR, **dict.fromkeys(_SUMS, int))


@frozen
class SummaryTable:
    db: Database

    # -- decisions -------------------------------------------------------------------------------------------

    def decision(self, job_id: str) -> StoredDecision | None:
        """Return the route decision of a job; ``None`` if its route was not chosen."""
        found = self.db.row(_SELECT_DECISIONS.replace("{body}", "d.body") + "WHERE j.id = ?", job_id)
        return None if found is None else _stored_decision(found)

    def numbered(self, no: int) -> StoredDecision | None:
        found = self.db.row(_SELECT_DECISIONS.replace("{body}", "d.body") + "WHERE d.no = ?", no)
        return None if found is None else _stored_decision(found)

    def of_deleted_jobs(self, beginning: str) -> list[tuple[str, StoredDecision]]:
        """Return the latest ten decisions on deleted jobs with a key prefix, newest first."""
        low = beginning.encode("utf-8", "surrogatepass")
        found = "SELECT no, name FROM decision WHERE name >= ? AND name < ? ORDER BY no DESC LIMIT 10"
        rows = self.db.rows(found, low, low + b"\xff")
        named = ((decoded(name) or "", self.numbered(no)) for no, name in rows)
        return [(name, one) for name, one in named if one is not None]

    def decisions(self, *, before: int | None = None, limit: int) -> list[StoredDecision]:
        """Return decisions with a number below ``before``, newest first, without their details."""
        page = _SELECT_DECISIONS.replace("{body}", "NULL")
        if before is None:
            rows = self.db.rows(f"{page}ORDER BY d.no DESC LIMIT ?", limit)
        else:
            rows = self.db.rows(f"{page}WHERE d.no < ? ORDER BY d.no DESC LIMIT ?", before, limit)
        return [_stored_decision(row) for row in rows]

    # -- errors and spending ---------------------------------------------------------------------------------

    def error_groups(self, *, limit: int = MAX_GROUPS) -> list[ErrorGroup]:
        """Return groups of errors, most recent first."""
        return [_error_group(row) for row in self.db.rows(_SELECT_GROUPS, limit)]

    def spending(self, since: float) -> list[Spending]:
        """Return spending by hour, model and route, oldest first, from the hour that contains ``since``."""
        return [_spending(row) for row in self.db.rows(_SELECT_SPENDING, _hour(since), MAX_SPENDING_ROWS)]

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
        """Add the outcome of real-time requests, and delete old rows, in one transaction.

        Args:
            decisions: on lists; each gets its number, and is written again once it is measured.
            at: Unix seconds of the errors and of the spending.
            part: a number that differs between processes, so that they write to different rows.
        """

        def work(tx: Transaction) -> list[int | None]:
            tx.lock("summaries")  # processes that write at the same time must not deadlock
            numbers = [_write_decision(tx, each) for each in decisions]
            if decisions:
                tx.change(_TRIM_DECISIONS, MAX_DECISIONS)
            add_failures(tx, failures, at)
            _add_spending(tx, spent, at, part)
            trim(tx, at)
            return numbers

        for decision, no in zip(decisions, self.db.write(work), strict=True):
            decision.no = no


def store_decision(tx: Transaction, job: int | None, decision: Decision, model: str, at: float) -> None:
    tx.at_commit(_NEW_DECISION, *_columns(job, decision, model, at))


def keep_decision(tx: Transaction, job: int) -> None:
    """Keep the decision of a deleted job, under its key, among the decisions on lists."""
    key = "(SELECT user_key FROM job WHERE no = ?)"
    tx.change(f"UPDATE decision SET name = {key}, job = NULL WHERE job = ?", job, job)
    tx.change(_TRIM_DECISIONS, MAX_DECISIONS)


def measure(tx: Transaction, job: int, at: float) -> None:
    """Store the duration and cost of a job that ends now in its route decision, unless they are stored
    already.

    If nothing was answered, the duration is not representative of any route and is not stored.
    """
    tx.at_commit(_MEASURE_JOB, at, at, job, job, job, Route.BATCH.value, job, job)


def add_results(
    tx: Transaction,
    job: int,
    results: Sequence[NewResult],
    counts: Iterable[StoredCounts],
    at: float,
) -> None:
    """Add spending and errors of a job's results. A result for many items has the ``ix`` of one of them."""
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
    """Add failures to the groups of errors, in at most about :data:`MAX_GROUPS_PER_WRITE` groups."""
    groups: dict[tuple[str, str], Failures] = {}
    for each in failures:
        key = (each.kind, each.message)
        if key not in groups and len(groups) >= MAX_GROUPS_PER_WRITE:
            key = (each.kind, OTHER_MESSAGES)
        group = groups.get(key)
        if group is None:
            group = groups[key] = Failures(*key, each.model)
        group.count += each.count
        group.model, group.item, group.request_id = each.model, each.item, each.request_id
    for group in groups.values():
        identity = f"{group.kind}\n{group.message}"
        digest = hashlib.blake2b(identity.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        message, request_id = encoded(group.message), encoded(group.request_id)
        model = _text(group.model)
        values = (_text(group.kind), message, group.count, at, at, model, group.item, request_id)
        tx.at_commit(_ADD_FAILURES, digest, *values)


def trim(tx: Transaction, at: float) -> None:
    tx.at_commit(_TRIM_SPENDING, _hour(at) - MAX_SPENDING_HOURS)
    tx.at_commit(_TRIM_GROUPS, MAX_TRIMMED_GROUPS, MAX_GROUPS)


def _write_decision(tx: Transaction, one: ListDecision) -> int | None:
    """Insert a decision, or add its measurements; return its number."""
    no, measured = one.no, one.measured
    if no is None:
        [(no,)] = tx.rows(f"{_NEW_DECISION} RETURNING no", *_columns(None, one.decision, one.model, one.at))
    if measured is not None:
        values = (measured.seconds, measured.cost, measured.individual_cost, measured.batch_cost)
        tx.change(_MEASURE_DECISION, *values, no)
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
    *forecast, seconds, paid, individual, by_batch, body = row
    measured = None
    if seconds is not None:
        measured = Measured(seconds=seconds, cost=paid, individual_cost=individual, batch_cost=by_batch)
    names = fields_dict(StoredDecision)
    values = (*forecast, measured, None if body is None else decision_of(body))
    return StoredDecision(**dict(zip(names, values, strict=True)))


def _failures(job: int, failed: Iterable[NewResult], model: str) -> list[Failures]:
    """Return failures grouped by the bytes of the error, which many items may share."""
    by_body: dict[bytes, Failures] = {}
    for result in failed:
        known = by_body.get(result.body)
        if known is None:
            known = by_body[result.body] = Failures(*_kind_and_pattern(result.body), model)
        known.count += 1
        known.item = number(job, result.ix)
    return list(by_body.values())


def _kind_and_pattern(body: bytes) -> tuple[str, str]:
    try:
        error = decode_error(body)
    except StoreError:
        error = None
    return ("unknown", "") if error is None else (kind_name(error), pattern_of(error.message))


def _error_group(row: Row) -> ErrorGroup:
    kind, message, *counts, item, request_id, job_id, user_id = row
    ix = None if item is None or job_id is None else position(item)
    shown = decoded(request_id) if ix is None else item_id(job_id, ix, decoded(user_id))
    values = (kind, decoded(message) or "", *counts, job_id, ix, shown)
    return ErrorGroup(**dict(zip(fields_dict(ErrorGroup), values, strict=True)))


def _add_spending(tx: Transaction, spent: Iterable[Spending], at: float, part: int) -> None:
    for each in spent:
        model, route, *counts, _ = astuple(each)
        tx.at_commit(_ADD_SPENDING_ROW, _hour(at), _text(model), route, part % SPENDING_PARTS, *counts)


def _text(value: str) -> str:
    """Text that is only displayed must not make a write fail."""
    return value.encode("utf-8", "replace").decode().replace("\0", "?")


def _known(value: float) -> float:
    """Not every database can store NaN, so it becomes infinity."""
    return math.inf if math.isnan(value) else value


def _hour(at: float) -> int:
    return int(at // HOUR)
