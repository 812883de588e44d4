"""What people do from any process: acts on jobs, and pauses and limits of models.

No act needs a lease, and each is noted in the transaction that does it. Processes learn of it by the numbers
of the acts: these are given one after the other, so whoever has read up to a number has missed none before
it; see :mod:`smartbatch.jobs.actions`. Who carries a job on reads its row anew where a decision uses
it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from attrs import evolve, field, fields_dict, frozen

from smartbatch._words import money
from smartbatch.core.limits.model_controls import ModelControls, ModelLimit, Pause
from smartbatch.errors import JobNotFound, StoreError
from smartbatch.jobs.records import (
    MAX_COUNTED_JOBS,
    MAX_JOBS_PER_ACT,
    MAX_STORED_ACTS,
    Act,
    Acted,
    ActName,
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

NAMED_AT_ONCE = 500
"""Rows that one incident names."""
_FAILED = """SELECT r.no, r.cost, r.body, e.no IS NOT NULL FROM result r
    LEFT JOIN follower f ON f.no = r.no LEFT JOIN earlier_tries e ON e.no = r.no
    WHERE r.outcome = 'failed' AND f.no IS NULL AND r.no >= ? AND r.no < ?{those} ORDER BY r.no LIMIT ?"""
# rows of a batch that is still read are left: their lines may come once more
_REOPENABLE = """SELECT i.no, i.shard FROM item i JOIN result r ON r.no = i.no
    LEFT JOIN shard s ON s.job = ? AND s.no = i.shard
    WHERE i.no IN {numbers} AND i.state = {final} AND r.outcome = 'failed'
    AND (s.no IS NULL OR s.state IN ({settled}, {dead}))"""
_KEEP = """INSERT INTO earlier_result (no, seq, outcome, digest, cost, body, retried_at)
    SELECT no, seq, outcome, digest, cost, body, ? FROM result WHERE no IN {numbers}"""
_GO_ON = """UPDATE job SET state = CASE WHEN state = {done} THEN {active} ELSE state END, finished_at = NULL,
    failed = failed - ?, cancel_requested = 0, policy = ? WHERE no = ?"""
TRIM_EVERY = 50
"""Acts after which older ones are deleted."""
_ACTS = "SELECT no, at, who, name, target, job_id, count, left_out, detail FROM act "


@frozen
class FailedRow:
    """A row that failed, and stands for those that got its result.

    Attributes:
        cost: USD; ``None`` where it is unknown.
        body: its result as bytes.
        tried: tries before it were billed.
    """

    ix: int
    cost: float | None
    body: bytes = field(repr=False)
    tried: bool


@frozen
class KeptResult:
    """A result that stood before its row was asked again; followers of another row have no body."""

    ix: int
    seq: int
    outcome: str
    body: bytes = field(repr=False)


@frozen
class JobActs:
    """Acts on jobs."""

    db: Database

    # -- by a filter -----------------------------------------------------------------------------------------

    def cancel(self, chosen: JobSelection, by: str) -> Acted:
        """Ask the owners of jobs to cancel them."""
        change = "UPDATE job SET cancel_requested = 1 WHERE no IN {numbers}"
        return self._change(chosen, "state <> {done} AND cancel_requested = 0", change, "cancel", by)

    def resume(self, chosen: JobSelection, by: str) -> Acted:
        """Make held jobs active again."""
        change = "UPDATE job SET state = {active}, note = NULL WHERE no IN {numbers}"
        return self._change(chosen, "state = {held}", change, "resume", by)

    def _change(self, chosen: JobSelection, eligible: str, change: str, name: ActName, by: str) -> Acted:
        def work(tx: Transaction) -> Acted:
            found, left_out = _chosen(tx, chosen, eligible)
            if found:
                tx.change(change, [no for no, _ in found])
                one = found[0][1] if len(found) == 1 else None
                act = Act(at=self.db.now(), by=by, name=name, target=one or str(chosen), job_id=one)
                note_act(tx, evolve(act, count=len(found), left_out=left_out))
            return Acted(len(found), left_out)

        return self.db.write(work)

    def finished(self, chosen: JobSelection) -> tuple[list[str], int]:
        """Return the ids of finished jobs, and how many more there are."""
        return self._ids(chosen, "state = {done}")

    def with_failed_rows(self, chosen: JobSelection) -> tuple[list[str], int]:
        """Return the ids of jobs that have failed rows and are not being cancelled, and how many more."""
        return self._ids(chosen, "failed > 0 AND (state = {done} OR cancel_requested = 0)")

    def _ids(self, chosen: JobSelection, eligible: str) -> tuple[list[str], int]:
        found, left_out = _chosen(self.db, chosen, eligible)
        return [job_id for _, job_id in found], left_out

    # -- one job ---------------------------------------------------------------------------------------------

    def change_policy(
        self, job_id: str, change: Callable[[JobPolicy], JobPolicy], name: ActName, detail: str, by: str
    ) -> JobRow:
        """Change what a job was submitted with; return it as it stands then.

        Raises:
            JobNotFound: there is none.
        """

        def work(tx: Transaction) -> JobRow:
            no, row = _locked(tx, self.db.place, job_id)
            changed = change(row.policy)
            if changed == row.policy:
                return row
            tx.change("UPDATE job SET policy = ? WHERE no = ?", record_text(changed), no)
            at = self.db.now()
            note_act(tx, Act(at=at, by=by, name=name, target=job_id, job_id=job_id, detail=detail))
            return evolve(row, policy=changed)

        return self.db.write(work)

    def failed(self, job_id: str, *, rows: Collection[int] | None, after: int, limit: int) -> list[FailedRow]:
        """Return failed rows in order, from the one after ``after``.

        Args:
            rows: these, or where they got the result of an equal row, that one; all when ``None``.
        """
        job = job_number(self.db, job_id)
        span = number(job, after + 1), first_of(job + 1)
        if rows is None:
            found = self.db.rows(_FAILED.replace("{those}", ""), *span, limit)
        else:
            leaders = """SELECT coalesce(f.leader, i.no) FROM item i LEFT JOIN follower f ON f.no = i.no
                WHERE i.no IN {numbers}"""
            asked = self.db.rows(leaders, [number(job, ix) for ix in rows])
            those = [no for (no,) in asked]
            found = self.db.rows(_FAILED.replace("{those}", " AND r.no IN {numbers}"), *span, those, limit)
        return [FailedRow(position(no), cost, body, bool(tried)) for no, cost, body, tried in found]

    def reopen(
        self,
        job_id: str,
        rows: Mapping[int, NewResult | None],
        billed: Sequence[int],
        by: str,
        change: Callable[[JobPolicy], JobPolicy] = lambda policy: policy,
    ) -> tuple[int, int]:
        """Let failed rows, and those that got their results, run again; in one transaction, in this order:

        1. A job that is being cancelled is refused.
        2. Rows that have not failed by now, or whose batch is still read, are left.
        3. Their results are kept next to those that stand, what they cost stays counted, and their tries
           begin anew: in a batch where they were in one, and else in real time.
        4. The job goes on with its policy changed by ``change``; a deadline that has passed holds no longer.
           Rows that may be paid for twice are named by incidents.

        Args:
            rows: by position, with what their result cost, where anything was billed for it.
            billed: those that were, or may have been, paid for.

        Returns:
            how many rows, and how many failed ones are left.

        Raises:
            JobNotFound: there is no such job.
            StoreError: it is being cancelled.
        """

        def work(tx: Transaction) -> tuple[int, int]:
            no, row = _locked(tx, self.db.place, job_id)
            if row.cancel_requested and row.state is not JobState.DONE:
                raise StoreError(f"job {job_id} is being cancelled; ask its rows again once it has ended")
            found = tx.rows(_REOPENABLE, no, [number(no, ix) for ix in rows])
            if not found:
                return 0, row.failed
            at = self.db.now()
            count = _reopen(tx, found, at)
            outcomes.remember(
                tx, {each: tried for each, _ in found if (tried := rows[position(each)]) is not None}
            )
            late = row.policy.deadline is not None and row.policy.deadline <= at
            policy = change(evolve(row.policy, deadline=None) if late else row.policy)
            tx.change(_GO_ON, count, record_text(policy), no)
            again = sorted(set(billed).intersection(position(each) for each, _ in found))
            for start in range(0, len(again), NAMED_AT_ONCE):
                _name(tx, job_id, again[start : start + NAMED_AT_ONCE], by, at)
            act = Act(at=at, by=by, name="retry_failed", target=job_id, job_id=job_id, count=count)
            if policy.budget is not None and policy.budget != row.policy.budget:
                act = evolve(act, detail=f"budget {money(policy.budget)}")
            note_act(tx, evolve(act, left_out=row.failed - count))
            return count, row.failed - count

        return self.db.write(work)

    def earlier_results(self, job_id: str, *, after: tuple[int, int], limit: int) -> list[KeptResult]:
        """Return results of rows that were asked again later, by position and then by number, from the one
        after that of a position and a number."""
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
        return [KeptResult(position(no), position(seq), *others) for no, seq, *others in rows]


def _chosen(
    reader: Database | Transaction, chosen: JobSelection, eligible: str
) -> tuple[list[tuple[int, str]], int]:
    """Return numbers and ids of jobs, oldest first, and how many more there are."""
    asked = {"id IN {texts}": list(chosen.ids) or None, "state = ?": chosen.state, "model = ?": chosen.model}
    values = [value for value in asked.values() if value is not None]
    where = " AND ".join([eligible, *(each for each, value in asked.items() if value is not None)])
    found = reader.rows(
        f"SELECT no, id FROM job WHERE {where} ORDER BY no LIMIT ?", *values, MAX_JOBS_PER_ACT
    )
    if len(found) < MAX_JOBS_PER_ACT:
        return [(no, job_id) for no, job_id in found], 0
    counted = f"SELECT count(*) FROM (SELECT 1 FROM job WHERE {where} LIMIT ?) AS counted"
    [(count,)] = reader.rows(counted, *values, MAX_JOBS_PER_ACT + MAX_COUNTED_JOBS)
    return [(no, job_id) for no, job_id in found], int(count) - MAX_JOBS_PER_ACT


def _locked(tx: Transaction, place: str, job_id: str) -> tuple[int, JobRow]:
    """Return the number of a job and its row, which nobody else changes before the transaction ends.

    Raises:
        JobNotFound: there is none.
    """
    found = tx.row("SELECT no FROM job WHERE id = ?{for_update}", job_id)
    if found is None:
        raise JobNotFound(f"the store {place} has no job {job_id!r}; see: smartbatch jobs list")
    [no] = found
    [row] = tx.rows(f"{JOBS}WHERE j.no = ?", no)
    return int(no), job_row(row)


def _reopen(tx: Transaction, found: Sequence[Row], at: float) -> int:
    """Set rows, by number and shard, and their followers back to before their first try; return how many."""
    leaders = [no for no, _ in found]
    failed = """SELECT f.no FROM follower f JOIN result r ON r.no = f.no
        WHERE f.leader IN {numbers} AND r.outcome = 'failed'"""
    followers = [no for (no,) in tx.rows(failed, leaders)]
    tx.change(_KEEP, at, leaders + followers)
    tx.change("DELETE FROM result WHERE no IN {numbers}", leaders + followers)
    again = "UPDATE item SET state = ?, tries = 0, shard = NULL WHERE no IN {numbers}"
    in_batch = [no for no, shard in found if shard is not None]
    in_realtime = [no for no, shard in found if shard is None]
    tx.change(again, ItemState.OPEN.value, in_batch)
    tx.change(again, ItemState.REALTIME.value, in_realtime)
    tx.change(again, ItemState.FOLLOWING.value, followers)
    return len(leaders) + len(followers)


def _name(tx: Transaction, job_id: str, rows: Sequence[int], by: str, at: float) -> None:
    """Name rows that are asked again although they were, or may have been, paid for."""
    detail = (
        f"{len(rows)} failed rows that were paid for, or may have been, are asked again by {by}, and may be "
        f"paid for twice: rows {', '.join(map(str, rows))} ({at:.3f})"
    )
    outcomes.add_incident(tx, IncidentRow("asked_again", job_id, None, detail, None, at))


_pause = maker(Pause, model=decoded, reason=decoded, by=decoded)
_limit = maker(ModelLimit, model=decoded, by=decoded)


@frozen
class ControlTable:
    """Pauses and limits of models, and the acts that were done to a store."""

    db: Database

    # -- models ----------------------------------------------------------------------------------------------

    def pause(self, model: str, reason: str | None, by: str) -> Pause:
        """Pause a model, unless it is paused; return the pause that holds then."""
        new = """INSERT INTO pause (model, reason, who, since) VALUES (?, ?, ?, ?)
            ON CONFLICT (model) DO NOTHING"""

        def work(tx: Transaction) -> Pause:
            at = self.db.now()
            if tx.change(new, encoded(model), encoded(reason), encoded(by), at):
                note_act(tx, Act(at=at, by=by, name="pause_model", target=model, detail=reason))
            [row] = tx.rows("SELECT model, reason, who, since FROM pause WHERE model = ?", encoded(model))
            return _pause(row)

        return self.db.write(work)

    def resume(self, model: str, by: str) -> bool:
        """End the pause of a model; False where there is none."""

        def work(tx: Transaction) -> bool:
            if not tx.change("DELETE FROM pause WHERE model = ?", encoded(model)):
                return False
            note_act(tx, Act(at=self.db.now(), by=by, name="resume_model", target=model))
            return True

        return self.db.write(work)

    def set_limit(self, model: str, requests: float | None, tokens: float | None, by: str) -> bool:
        """Set limits a minute of a model, or none; False where they are set so already."""
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
            note_act(tx, Act(at=at, by=by, name="set_limit", target=model, detail=detail))
            return True

        return self.db.write(work)

    def controls(self) -> ModelControls:
        """Return all pauses and limits."""
        pauses = map(_pause, self.db.rows("SELECT model, reason, who, since FROM pause ORDER BY since"))
        limits = "SELECT model, requests, tokens, who, since FROM model_limit ORDER BY since"
        return ModelControls(
            {one.model: one for one in pauses},
            {one.model: one for one in map(_limit, self.db.rows(limits))},
        )

    # -- acts ------------------------------------------------------------------------------------------------

    def last(self) -> int:
        """Return the number of the latest act; 0 before there is one."""
        [(number,)] = self.db.rows("SELECT coalesce(max(no), 0) FROM act")
        return int(number)

    def after(self, number: int, *, limit: int) -> list[Act]:
        """Return acts after the one of a number, oldest first."""
        return [_act(row) for row in self.db.rows(f"{_ACTS}WHERE no > ? ORDER BY no LIMIT ?", number, limit)]

    def latest(self, *, before: int | None = None, job_id: str | None = None, limit: int) -> list[Act]:
        """Return acts, newest first: those before the one of a number, and those on a job alone."""
        asked = {"no < ?": before, "job_id = ?": job_id}
        those = [condition for condition, value in asked.items() if value is not None]
        where = f"WHERE {' AND '.join(those)} " if those else ""
        values = [value for value in asked.values() if value is not None]
        return [_act(row) for row in self.db.rows(f"{_ACTS}{where}ORDER BY no DESC LIMIT ?", *values, limit)]


def note_act(tx: Transaction, act: Act) -> Act:
    """Note an act in the transaction that does it, as its last statement; return it with its number."""
    tx.lock("acts")  # so that numbers are seen in their order
    [(number,)] = tx.rows(
        """INSERT INTO act (at, who, name, target, job_id, count, left_out, detail)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?) RETURNING no""",
        act.at,
        encoded(act.by),
        act.name,
        encoded(act.target),
        act.job_id,
        act.count,
        act.left_out,
        encoded(act.detail),
    )
    if number % TRIM_EVERY == 0:
        tx.change("DELETE FROM act WHERE no <= ?", number - MAX_STORED_ACTS)
    return evolve(act, number=int(number))


def _limits_in_words(requests: float | None, tokens: float | None) -> str:
    """Return limits a minute for people."""
    told = [f"{each:,.6g} {what}" for each, what in ((requests, "requests"), (tokens, "tokens")) if each]
    return " and ".join(told) + " a minute" if told else "as configured"


def _act(row: Row) -> Act:
    number, at, by, name, target, *counts, detail = row
    values = (number, at, decoded(by), name, decoded(target), *counts, decoded(detail))
    return Act(**dict(zip(fields_dict(Act), values, strict=True)))
