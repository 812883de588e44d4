"""Actions of users from any process: actions on jobs, and pauses and limits of models.

No action needs a lease, and each is recorded in the transaction that performs it. Actions are numbered
without gaps, so a process that has read an action has missed none before it; see
:mod:`smartbatch.jobs.actions`. The owner of a job rereads the job's row before each decision that depends
on it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from attrs import evolve, field, fields_dict, frozen

from smartbatch._words import money
from smartbatch.core.limits.model_controls import ModelControls, ModelLimit, Pause
from smartbatch.errors import JobNotFound, StoreError
from smartbatch.jobs.records import (
    MAX_COUNTED_JOBS,
    MAX_JOBS_PER_ACTION,
    MAX_STORED_ACTIONS,
    Action,
    ActionName,
    ActionResult,
    IncidentRow,
    ItemState,
    JobPolicy,
    JobRow,
    JobSelection,
    JobState,
    NewResult,
)
from smartbatch.jobs.store import outcomes
from smartbatch.jobs.store.database import (
    Database,
    Row,
    Transaction,
    decoded,
    encoded,
    first_of,
    number,
    position,
    record_text,
)
from smartbatch.jobs.store.outcomes import job_number
from smartbatch.jobs.store.schema import JOBS, job_row, maker

MAX_NAMED_ROWS = 500  # rows listed in an incident
_SELECT_FAILED = """SELECT r.no, r.cost, r.body, e.no IS NOT NULL FROM result r
    LEFT JOIN follower f ON f.no = r.no LEFT JOIN earlier_tries e ON e.no = r.no
    WHERE r.outcome = 'failed' AND f.no IS NULL AND r.no >= ? AND r.no < ?{those} ORDER BY r.no LIMIT ?"""
# rows of a batch whose results are being read are excluded, because their lines may be read again
_SELECT_REOPENABLE = """SELECT i.no, i.shard FROM item i JOIN result r ON r.no = i.no
    LEFT JOIN shard s ON s.job = ? AND s.no = i.shard
    WHERE i.no IN {numbers} AND i.state = {final} AND r.outcome = 'failed'
    AND (s.no IS NULL OR s.state IN ({settled}, {dead}))"""
_COPY_RESULTS = """INSERT INTO earlier_result (no, seq, outcome, digest, cost, body, retried_at)
    SELECT no, seq, outcome, digest, cost, body, ? FROM result WHERE no IN {numbers}"""
_RESUME_JOBS = """UPDATE job SET state = CASE WHEN state = {done} THEN {active} ELSE state END, finished_at
= NULL,
    failed = failed - ?, cancel_requested = 0, policy = ? WHERE no = ?"""
TRIM_INTERVAL = 50  # old actions are deleted once per this many new ones
_SELECT_ACTIONS = "SELECT no, at, who, name, target, job_id, count, left_out, detail FROM act "


@frozen
class FailedRow:
    """A failed row that was sent; identical rows share its result."""

    ix: int
    cost: float | None  # USD; None if unknown
    body: bytes = field(repr=False)  # body of its result
    tried: bool  # earlier tries were billed


@frozen
class EarlierResult:
    """An earlier result of a row that was sent again. Followers of another row have no body."""

    ix: int
    seq: int
    outcome: str
    body: bytes = field(repr=False)


@frozen
class JobActions:
    db: Database

    # -- by a filter -----------------------------------------------------------------------------------------

    def cancel(self, chosen: JobSelection, by: str) -> ActionResult:
        """Ask the owners of jobs to cancel them."""
        change = "UPDATE job SET cancel_requested = 1 WHERE no IN {numbers}"
        return self._change(chosen, "state <> {done} AND cancel_requested = 0", change, "cancel", by)

    def resume(self, chosen: JobSelection, by: str) -> ActionResult:
        """Make held jobs active again."""
        change = "UPDATE job SET state = {active}, note = NULL WHERE no IN {numbers}"
        return self._change(chosen, "state = {held}", change, "resume", by)

    def _change(
        self, chosen: JobSelection, eligible: str, change: str, name: ActionName, by: str
    ) -> ActionResult:
        def work(tx: Transaction) -> ActionResult:
            found, left_out = _chosen(tx, chosen, eligible)
            if found:
                tx.change(change, [no for no, _ in found])
                one = found[0][1] if len(found) == 1 else None
                action = Action(at=self.db.now(), by=by, name=name, target=one or str(chosen), job_id=one)
                record_action(tx, evolve(action, count=len(found), left_out=left_out))
            return ActionResult(len(found), left_out)

        return self.db.write(work)

    def finished(self, chosen: JobSelection) -> tuple[list[str], int]:
        """Return the ids of finished jobs, and the number of further ones."""
        return self._ids(chosen, "state = {done}")

    def with_failed_rows(self, chosen: JobSelection) -> tuple[list[str], int]:
        """Return the ids of jobs that have failed rows and are not being cancelled, and the number of further
        ones.
        """
        return self._ids(chosen, "failed > 0 AND (state = {done} OR cancel_requested = 0)")

    def _ids(self, chosen: JobSelection, eligible: str) -> tuple[list[str], int]:
        found, left_out = _chosen(self.db, chosen, eligible)
        return [job_id for _, job_id in found], left_out

    # -- one job ---------------------------------------------------------------------------------------------

    def change_policy(
        self, job_id: str, change: Callable[[JobPolicy], JobPolicy], name: ActionName, detail: str, by: str
    ) -> JobRow:
        """Change a job's policy.

        Raises:
            JobNotFound: the job does not exist.
        """

        def work(tx: Transaction) -> JobRow:
            no, row = _locked(tx, self.db.place, job_id)
            changed = change(row.policy)
            if changed == row.policy:
                return row
            tx.change("UPDATE job SET policy = ? WHERE no = ?", record_text(changed), no)
            at = self.db.now()
            record_action(tx, Action(at=at, by=by, name=name, target=job_id, job_id=job_id, detail=detail))
            return evolve(row, policy=changed)

        return self.db.write(work)

    def failed(self, job_id: str, *, rows: Collection[int] | None, after: int, limit: int) -> list[FailedRow]:
        """Return failed rows in order, starting after ``after``.

        ``rows`` selects rows, or the rows whose result they share; ``None`` selects all.
        """
        job = job_number(self.db, job_id)
        span = number(job, after + 1), first_of(job + 1)
        if rows is None:
            found = self.db.rows(_SELECT_FAILED.replace("{those}", ""), *span, limit)
        else:
            leaders_of = """SELECT coalesce(f.leader, i.no) FROM item i LEFT JOIN follower f ON f.no = i.no
                WHERE i.no IN {numbers}"""
            found = self.db.rows(leaders_of, [number(job, ix) for ix in rows])
            those = [no for (no,) in found]
            found = self.db.rows(
                _SELECT_FAILED.replace("{those}", " AND r.no IN {numbers}"), *span, those, limit
            )
        return [FailedRow(position(no), cost, body, bool(tried)) for no, cost, body, tried in found]

    def reopen(
        self,
        job_id: str,
        rows: Mapping[int, NewResult | None],
        billed: Sequence[int],
        by: str,
        change: Callable[[JobPolicy], JobPolicy] = lambda policy: policy,
    ) -> tuple[int, int]:
        """Run failed rows again, along with the rows that share their results.

        Their results are kept, their cost still counts, and their tries start from zero. They run in a
        batch if they were in one, otherwise in real time. A deadline that has passed is removed. Incidents
        list rows that may be paid for twice.

        Args:
            rows: positions, each with the cost of its result if anything was billed.
            billed: positions of rows that were, or may have been, billed.
            change: changes the job's policy.

        Returns:
            The number of rows that run again, and the number of failed rows that remain.

        Raises:
            JobNotFound: the job does not exist.
            StoreError: it is being cancelled.
        """

        def work(tx: Transaction) -> tuple[int, int]:
            no, row = _locked(tx, self.db.place, job_id)
            if row.cancel_requested and row.state is not JobState.DONE:
                raise StoreError(f"job {job_id} is being cancelled; send its rows again once it has ended")
            # rows that have not failed, or whose batch is being read, are left out
            found = tx.rows(_SELECT_REOPENABLE, no, [number(no, ix) for ix in rows])
            if not found:
                return 0, row.failed
            at = self.db.now()
            count = _reopen(tx, found, at)
            outcomes.remember(
                tx, {each: tried for each, _ in found if (tried := rows[position(each)]) is not None}
            )
            late = row.policy.deadline is not None and row.policy.deadline <= at
            policy = change(evolve(row.policy, deadline=None) if late else row.policy)
            tx.change(_RESUME_JOBS, count, record_text(policy), no)
            again = sorted(set(billed).intersection(position(each) for each, _ in found))
            for start in range(0, len(again), MAX_NAMED_ROWS):
                _report_billed(tx, job_id, again[start : start + MAX_NAMED_ROWS], by, at)
            action = Action(at=at, by=by, name="retry_failed", target=job_id, job_id=job_id, count=count)
            if policy.budget is not None and policy.budget != row.policy.budget:
                action = evolve(action, detail=f"budget {money(policy.budget)}")
            record_action(tx, evolve(action, left_out=row.failed - count))
            return count, row.failed - count

        return self.db.write(work)

    def earlier_results(self, job_id: str, *, after: tuple[int, int], limit: int) -> list[EarlierResult]:
        """Return earlier results of rows that were sent again, by position and then ``seq``.

        ``after`` is the position and ``seq`` of the last one read.
        """
        job = job_number(self.db, job_id)
        ix, seq = after
        first = first_of(job) + ix
        rows = self.db.rows(
            """SELECT e.no, e.seq, e.outcome, coalesce(l.body, e.body) FROM earlier_result e
            LEFT JOIN follower f ON f.no = e.no
            LEFT JOIN earlier_result l ON l.no = f.leader AND l.retried_at = e.retried_at
            WHERE e.no >= ? AND e.no < ? AND (e.no > ? OR e.seq > ?) ORDER BY e.no, e.seq LIMIT ?""",
            first,
            first_of(job + 1),
            first,
            number(job, seq),
            limit,
        )
        return [EarlierResult(position(no), position(seq), *others) for no, seq, *others in rows]


def _chosen(
    reader: Database | Transaction, chosen: JobSelection, eligible: str
) -> tuple[list[tuple[int, str]], int]:
    """Return the numbers and ids of jobs, oldest first, and the number of further ones."""
    conditions = {
        "id IN {texts}": list(chosen.ids) or None,
        "state = ?": chosen.state,
        "model = ?": chosen.model,
    }
    values = [value for value in conditions.values() if value is not None]
    where = " AND ".join([eligible, *(each for each, value in conditions.items() if value is not None)])
    found = reader.rows(
        f"SELECT no, id FROM job WHERE {where} ORDER BY no LIMIT ?", *values, MAX_JOBS_PER_ACTION
    )
    if len(found) < MAX_JOBS_PER_ACTION:
        return [(no, job_id) for no, job_id in found], 0
    counted = f"SELECT count(*) FROM (SELECT 1 FROM job WHERE {where} LIMIT ?) AS counted"
    [(count,)] = reader.rows(counted, *values, MAX_JOBS_PER_ACTION + MAX_COUNTED_JOBS)
    return [(no, job_id) for no, job_id in found], int(count) - MAX_JOBS_PER_ACTION


def _locked(tx: Transaction, place: str, job_id: str) -> tuple[int, JobRow]:
    """Lock a job until the transaction ends; return its number and row.

    Raises:
        JobNotFound: the job does not exist.
    """
    found = tx.row("SELECT no FROM job WHERE id = ?{for_update}", job_id)
    if found is None:
        raise JobNotFound(f"the store {place} has no job {job_id!r}; see: smartbatch jobs list")
    [no] = found
    [row] = tx.rows(f"{JOBS}WHERE j.no = ?", no)
    return int(no), job_row(row)


def _reopen(tx: Transaction, found: Sequence[Row], at: float) -> int:
    """Reset rows, given by number and shard, and their followers to the state before their first try."""
    leaders = [no for no, _ in found]
    failed = """SELECT f.no FROM follower f JOIN result r ON r.no = f.no
        WHERE f.leader IN {numbers} AND r.outcome = 'failed'"""
    followers = [no for (no,) in tx.rows(failed, leaders)]
    tx.change(_COPY_RESULTS, at, leaders + followers)
    tx.change("DELETE FROM result WHERE no IN {numbers}", leaders + followers)
    again = "UPDATE item SET state = ?, tries = 0, shard = NULL WHERE no IN {numbers}"
    in_batch = [no for no, shard in found if shard is not None]
    in_realtime = [no for no, shard in found if shard is None]
    tx.change(again, ItemState.OPEN.value, in_batch)
    tx.change(again, ItemState.REALTIME.value, in_realtime)
    tx.change(again, ItemState.FOLLOWING.value, followers)
    return len(leaders) + len(followers)


def _report_billed(tx: Transaction, job_id: str, rows: Sequence[int], by: str, at: float) -> None:
    detail = (
        f"{len(rows)} failed rows that were or may have been billed are sent again by {by} and may be paid"
        f" for twice: rows {', '.join(map(str, rows))} ({at:.3f})"
    )
    outcomes.add_incident(tx, IncidentRow("asked_again", job_id, None, detail, None, at))


_pause = maker(Pause, model=decoded, reason=decoded, by=decoded)
_limit = maker(ModelLimit, model=decoded, by=decoded)


@frozen
class ControlTable:
    """Pauses and limits of models, and the log of actions."""

    db: Database

    # -- models ----------------------------------------------------------------------------------------------

    def pause(self, model: str, reason: str | None, by: str) -> Pause:
        """Pause a model, unless it is paused already; return the pause in force."""
        new = """INSERT INTO pause (model, reason, who, since) VALUES (?, ?, ?, ?)
            ON CONFLICT (model) DO NOTHING"""

        def work(tx: Transaction) -> Pause:
            at = self.db.now()
            if tx.change(new, encoded(model), encoded(reason), encoded(by), at):
                record_action(tx, Action(at=at, by=by, name="pause_model", target=model, detail=reason))
            [row] = tx.rows("SELECT model, reason, who, since FROM pause WHERE model = ?", encoded(model))
            return _pause(row)

        return self.db.write(work)

    def resume(self, model: str, by: str) -> bool:
        """End the pause of a model; return false if the model is not paused."""

        def work(tx: Transaction) -> bool:
            if not tx.change("DELETE FROM pause WHERE model = ?", encoded(model)):
                return False
            record_action(tx, Action(at=self.db.now(), by=by, name="resume_model", target=model))
            return True

        return self.db.write(work)

    def set_limit(self, model: str, requests: float | None, tokens: float | None, by: str) -> bool:
        """Set or remove the limits per minute of a model; return false if nothing changes."""
        new = "INSERT INTO model_limit (model, requests, tokens, who, since) VALUES (?, ?, ?, ?, ?)"

        def work(tx: Transaction) -> bool:
            tx.lock("acts")
            known = tx.row("SELECT requests, tokens FROM model_limit WHERE model = ?", encoded(model))
            if (known or (None, None)) == (requests, tokens):
                return False
            at = self.db.now()
            tx.change("DELETE FROM model_limit WHERE model = ?", encoded(model))
            if requests is not None or tokens is not None:
                tx.change(new, encoded(model), requests, tokens, encoded(by), at)
            detail = _limits_in_words(requests, tokens)
            record_action(tx, Action(at=at, by=by, name="set_limit", target=model, detail=detail))
            return True

        return self.db.write(work)

    def controls(self) -> ModelControls:
        pauses = map(_pause, self.db.rows("SELECT model, reason, who, since FROM pause ORDER BY since"))
        limits = "SELECT model, requests, tokens, who, since FROM model_limit ORDER BY since"
        return ModelControls(
            {one.model: one for one in pauses},
            {one.model: one for one in map(_limit, self.db.rows(limits))},
        )

    # -- actions ---------------------------------------------------------------------------------------------

    def last(self) -> int:
        """Return the number of the latest action, 0 if there is none."""
        [(number,)] = self.db.rows("SELECT coalesce(max(no), 0) FROM act")
        return int(number)

    def after(self, number: int, *, limit: int) -> list[Action]:
        return [
            _action(row)
            for row in self.db.rows(f"{_SELECT_ACTIONS}WHERE no > ? ORDER BY no LIMIT ?", number, limit)
        ]

    def latest(self, *, before: int | None = None, job_id: str | None = None, limit: int) -> list[Action]:
        """Return actions, newest first; optionally only those before a number or on one job."""
        conditions = {"no < ?": before, "job_id = ?": job_id}
        those = [condition for condition, value in conditions.items() if value is not None]
        where = f"WHERE {' AND '.join(those)} " if those else ""
        values = [value for value in conditions.values() if value is not None]
        return [
            _action(row)
            for row in self.db.rows(f"{_SELECT_ACTIONS}{where}ORDER BY no DESC LIMIT ?", *values, limit)
        ]


def record_action(tx: Transaction, action: Action) -> Action:
    """Record an action at the end of the transaction that performs it; return it with its number."""
    tx.lock("acts")  # makes the numbers visible in order
    [(number,)] = tx.rows(
        """INSERT INTO act (at, who, name, target, job_id, count, left_out, detail)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?) RETURNING no""",
        action.at,
        encoded(action.by),
        action.name,
        encoded(action.target),
        action.job_id,
        action.count,
        action.left_out,
        encoded(action.detail),
    )
    if number % TRIM_INTERVAL == 0:
        tx.change("DELETE FROM act WHERE no <= ?", number - MAX_STORED_ACTIONS)
    return evolve(action, number=int(number))


def _limits_in_words(requests: float | None, tokens: float | None) -> str:
    limits = [f"{each:,.6g} {what}" for each, what in ((requests, "requests"), (tokens, "tokens")) if each]
    return " and ".join(limits) + " per minute" if limits else "as configured"


def _action(row: Row) -> Action:
    number, at, by, name, target, *counts, detail = row
    values = (number, at, decoded(by), name, decoded(target), *counts, decoded(detail))
    return Action(**dict(zip(fields_dict(Action), values, strict=True)))
