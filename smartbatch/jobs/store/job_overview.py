"""Paged overviews of many jobs, without their parameters and items.

Counts and searches without an index stop at :data:`MAX_COUNTED` jobs, so that a page costs the same for any
number of jobs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from attrs import field, fields_dict, frozen

from smartbatch.jobs.records import IncidentRow, JobRow, JobState
from smartbatch.jobs.shard_records import ShardRow
from smartbatch.jobs.store.database import Database, decoded, first_of, position
from smartbatch.jobs.store.jobs import JobTable
from smartbatch.jobs.store.schema import SHARD_COLUMNS, incident_row, job_row, shard_row

MAX_COUNTED = 10_000  # jobs that are counted, or searched for a model, before a page reports "more"
MAX_SEARCHED = 1_000  # newest jobs that are searched for waiting ones


@frozen
class AcceptedForecast:
    p50: float  # forecast seconds within which the job ends with a probability of 50 %
    p95: float  # forecast seconds within which the job ends with a probability of 95 %


@frozen
class FailedRequest:
    ix: int  # its position in the job
    user_id: str | None  # the request's own id
    outcome: str  # "failed" or "cancelled"
    body: bytes = field(repr=False)  # the result; see smartbatch.jobs.payload


@frozen(kw_only=True)
class JobFilter:
    state: JobState | None = None
    unfinished: bool = False  # only jobs that have not ended
    model: str | None = None  # only jobs of this model, among the newest MAX_COUNTED
    name: str | None = None  # an id or a key


_COLUMN_SOURCES = {"key": "user_key", "params": "substr(digest, 1, 0)"}
"""SQL for fields without a column of the same name. Parameters may be long, so they are left empty."""
_COLUMNS = ", ".join(_COLUMN_SOURCES.get(name, name) for name in fields_dict(JobRow))
_WITH_ACCOUNTS = """WITH RECURSIVE account(scope) AS (
        SELECT min(scope) FROM shard
        UNION ALL SELECT (SELECT min(scope) FROM shard WHERE scope > account.scope)
        FROM account WHERE account.scope IS NOT NULL)"""
"""The accounts of the store, found with one index lookup each."""

_SELECT_FAILED = """SELECT r.no, p.user_id, r.outcome, coalesce(l.body, r.body)
    FROM result r JOIN payload p ON p.no = r.no
    LEFT JOIN follower f ON f.no = r.no LEFT JOIN result l ON l.no = f.leader
    WHERE r.outcome <> 'succeeded' AND r.outcome <> ? AND r.no >= ? AND r.no < ? ORDER BY r.no LIMIT ?"""


@frozen
class JobOverview:
    db: Database
    jobs: JobTable

    def page(self, which: JobFilter, *, before: int | None = None, limit: int) -> list[JobRow]:
        """Return jobs with a number below ``before``, newest first."""
        if which.name is not None:
            named = self.jobs.get(which.name)
            return [] if named is None else [named]
        if which.state is None and which.unfinished:
            lines = [
                line
                for state in (JobState.ACTIVE, JobState.HELD)
                for line in self._page(JobFilter(state=state, model=which.model), before, limit)
            ]
            return sorted(lines, key=lambda line: -line.no)[:limit]
        return self._page(which, before, limit)

    def _page(self, which: JobFilter, before: int | None, limit: int) -> list[JobRow]:
        source, values = self._source(which, before)
        found = self.db.rows(f"SELECT {_COLUMNS} FROM {source} ORDER BY no DESC LIMIT ?", *values, limit)
        return [job_row(row) for row in found]

    def _source(self, which: JobFilter, before: int | None) -> tuple[str, list[Any]]:
        conditions = ["no < ?"]
        values: list[Any] = [sys.maxsize if before is None else before]
        if which.state is not None:
            conditions.append("state = ?")
            values.append(which.state.value)
        newest = f"SELECT * FROM job WHERE {' AND '.join(conditions)}"
        if which.model is None:
            return f"({newest}) AS newest", values
        bounded = f"({newest} ORDER BY no DESC LIMIT {MAX_COUNTED}) AS newest WHERE model = ?"
        return bounded, [*values, which.model]

    def waiting(self, *, limit: int) -> list[JobRow]:
        """Return active jobs that have no owner or are noted as waiting, among the newest."""
        found = self.db.rows(
            f"""SELECT {_COLUMNS} FROM
            (SELECT * FROM job WHERE state = {{active}} ORDER BY no DESC LIMIT {MAX_SEARCHED}) AS newest
            WHERE note IS NOT NULL OR owner IS NULL OR lease_until < ? ORDER BY no DESC LIMIT ?""",
            self.db.now(),
            limit,
        )
        return [job_row(row) for row in found]

    def forecasts(self, lines: Sequence[JobRow]) -> dict[int, AcceptedForecast]:
        """Return the forecasts made when jobs were accepted, by job number."""
        numbers = [line.no for line in lines]
        rows = self.db.rows("SELECT job, p50, p95 FROM decision WHERE job IN {numbers}", numbers)
        return {no: AcceptedForecast(p50, p95) for no, p50, p95 in rows}

    def count(self, state: JobState) -> int:
        """Return the number of jobs in a state, at most :data:`MAX_COUNTED` + 1."""
        counted = "SELECT count(*) FROM (SELECT 1 FROM job WHERE state = ? LIMIT ?) AS counted"
        [(found,)] = self.db.rows(counted, state.value, MAX_COUNTED + 1)
        return int(found)

    def shards(self, jobs: Sequence[JobRow]) -> dict[str, list[ShardRow]]:
        """Return the shards of jobs by job id, in the order of planning."""
        found: dict[str, list[ShardRow]] = {job.id: [] for job in jobs}
        statement = f"SELECT {SHARD_COLUMNS} FROM shard WHERE job IN {{numbers}} ORDER BY job, no"
        for row in self.db.rows(statement, [job.no for job in jobs]):
            shard = shard_row(row)
            found[shard.job_id].append(shard)
        return found

    def unknown_creations(self, *, limit: int) -> list[ShardRow]:
        """Return shards whose batch may or may not exist at the provider."""
        rows = self.db.rows(
            f"""{_WITH_ACCOUNTS} SELECT {SHARD_COLUMNS} FROM shard
            WHERE scope IN (SELECT scope FROM account WHERE scope IS NOT NULL)
            AND state IN ({{uncertain}}, {{provisional}}, {{fenced}}) LIMIT ?""",
            limit,
        )
        return [shard_row(row) for row in rows]

    def failed(
        self, job: JobRow, *, first: int = 0, limit: int, cancelled: bool = True
    ) -> list[FailedRequest]:
        """Return requests of a job that ended without an answer, in order.

        Args:
            first: the first position.
            cancelled: include cancelled requests.
        """
        if not job.failed + (job.cancelled if cancelled else 0):
            return []
        without = "" if cancelled else "cancelled"
        rows = self.db.rows(_SELECT_FAILED, without, first_of(job.no) + first, first_of(job.no + 1), limit)
        return [
            FailedRequest(position(no), decoded(user_id), outcome, body)
            for no, user_id, outcome, body in rows
        ]

    def incidents(self, job_id: str, *, limit: int) -> list[IncidentRow]:
        """Return the latest incidents of a job, newest first."""
        columns = ", ".join(fields_dict(IncidentRow))
        found = f"SELECT {columns} FROM incident WHERE job_id = ? ORDER BY no DESC LIMIT ?"
        return [incident_row(row) for row in self.db.rows(found, job_id, limit)]
