"""What a page shows of many jobs: by pages and by the index, without their parameters and items.

A count stops at :data:`COUNTED`, and so does a search by a column that no index has: however many jobs the
store has, a page costs the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from attrs import fields_dict, frozen

from smartbatch.jobs.records import JobPolicy, JobState, ShardRow
from smartbatch.jobs.store.database import Database
from smartbatch.jobs.store.rows import SHARD_COLUMNS, decoded, encoded, maker, record_of, shard_row

COUNTED = 10_000
"""Jobs that are counted, and looked through for a model, before a page says that there are more."""


@frozen
class JobLine:
    """A job as a list of many shows it; the fields are those of :class:`~smartbatch.jobs.records.JobRow`.

    Attributes:
        no: its number in the store; grows with each job.
        lease_until: when the lease of its owner ends, Unix seconds by the store's clock.
    """

    no: int
    id: str
    key: str | None
    model: str
    kind: str
    metadata: Mapping[str, Any]
    policy: JobPolicy
    created_at: float
    state: JobState
    finished_at: float | None
    total: int
    succeeded: int
    failed: int
    cancelled: int
    cost: float
    realtime_cost: float
    unpriced: int
    input_tokens: int
    output_tokens: int
    cancel_requested: bool
    note: str | None
    owner: str | None
    reserved: float
    lease_until: float

    @property
    def finished(self) -> int:
        """Items that have a result."""
        return self.succeeded + self.failed + self.cancelled


@frozen(kw_only=True)
class JobFilter:
    """Which jobs are meant.

    Attributes:
        state: only jobs in this one.
        unfinished: only those that have not ended.
        model: only jobs of this one, among the newest :data:`COUNTED`.
        name: an id, or a key.
    """

    state: JobState | None = None
    unfinished: bool = False
    model: str | None = None
    name: str | None = None


_COLUMNS = ", ".join({"key": "user_key"}.get(name, name) for name in fields_dict(JobLine))
_line = maker(
    JobLine,
    key=decoded,
    metadata=json.loads,
    policy=partial(record_of, JobPolicy),
    state=JobState,
    cancel_requested=bool,
    note=decoded,
)
_ACCOUNTS = """WITH RECURSIVE account(scope) AS (
        SELECT min(scope) FROM shard
        UNION ALL SELECT (SELECT min(scope) FROM shard WHERE scope > account.scope)
        FROM account WHERE account.scope IS NOT NULL)"""
"""The accounts of the store, each by one look into the index."""


@frozen
class JobOverview:
    """Reads what is the same for any number of jobs and items."""

    db: Database

    def page(self, which: JobFilter, *, before: int | None = None, limit: int = 50) -> list[JobLine]:
        """Return jobs, newest first.

        Args:
            before: only jobs with a smaller number.
        """
        if which.name is not None:
            return self._named(which.name)
        if which.state is None and which.unfinished:
            lines = [
                line
                for state in (JobState.ACTIVE, JobState.HELD)
                for line in self._page(JobFilter(state=state, model=which.model), before, limit)
            ]
            return sorted(lines, key=lambda line: -line.no)[:limit]
        return self._page(which, before, limit)

    def _page(self, which: JobFilter, before: int | None, limit: int) -> list[JobLine]:
        source, values = self._source(which, before)
        found = self.db.rows(f"SELECT {_COLUMNS} FROM {source} ORDER BY no DESC LIMIT ?", *values, limit)
        return [_line(row) for row in found]

    def _source(self, which: JobFilter, before: int | None) -> tuple[str, list[Any]]:
        conditions = ["no < ?"]
        values: list[Any] = [2**62 if before is None else before]
        if which.state is not None:
            conditions.append("state = ?")
            values.append(which.state.value)
        newest = f"SELECT * FROM job WHERE {' AND '.join(conditions)}"
        if which.model is None:
            return f"({newest}) AS newest", values
        bounded = f"({newest} ORDER BY no DESC LIMIT {COUNTED}) AS newest WHERE model = ?"
        return bounded, [*values, which.model]

    def _named(self, name: str) -> list[JobLine]:
        may_be_id = name.isascii() and name.isprintable()  # a text column refuses some other keys
        by_id = self.db.rows(f"SELECT {_COLUMNS} FROM job WHERE id = ?", name) if may_be_id else []
        found = by_id or self.db.rows(f"SELECT {_COLUMNS} FROM job WHERE user_key = ?", encoded(name))
        return [_line(row) for row in found]

    def count(self, state: JobState) -> int:
        """Return how many jobs are in a state, up to one more than :data:`COUNTED`."""
        counted = "SELECT count(*) FROM (SELECT 1 FROM job WHERE state = ? LIMIT ?) AS counted"
        [(found,)] = self.db.rows(counted, state.value, COUNTED + 1)
        return int(found)

    def unknown_creations(self, *, limit: int = 20) -> list[ShardRow]:
        """Return batches of which nobody knows whether the provider has them."""
        rows = self.db.rows(
            f"""{_ACCOUNTS} SELECT {SHARD_COLUMNS} FROM shard
            WHERE scope IN (SELECT scope FROM account WHERE scope IS NOT NULL)
            AND state IN ({{uncertain}}, {{provisional}}, {{fenced}}) LIMIT ?""",
            limit,
        )
        return [shard_row(row) for row in rows]

    def incidents(self, *, since: float, limit: int = 20) -> list[tuple[str, str, str, float]]:
        """Return the latest incidents: kind, job's id, detail, Unix seconds; none before ``since``."""
        rows = self.db.rows("SELECT kind, job_id, detail, at FROM incident ORDER BY no DESC LIMIT ?", limit)
        return [(kind, job, decoded(detail) or "", at) for kind, job, detail, at in rows if at >= since]
