"""Failed rows of a job are asked again: which ones, and what was paid for them before."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Protocol

from smartbatch.errors import InvalidRequest, ListStopped, UnusableAnswer
from smartbatch.jobs.payload import decode_result
from smartbatch.jobs.records import MAX_ROWS_PER_ACT, JobPolicy, JobRow, NewResult, RetriedRows
from smartbatch.jobs.store import SqlStore
from smartbatch.jobs.store.job_acts import FailedRow
from smartbatch.types import Result, T

PAGE = 1_000
"""Failed rows that are read at a time."""
PolicyChange = Callable[[JobPolicy], JobPolicy]


class Reopening(Protocol):
    """Has requests of a job asked again within the budget of a client."""

    def __call__(self, job_id: str, work: Callable[[PolicyChange], T], /) -> T:
        """Return what ``work`` returns, which has them asked again and changes the job's policy."""
        ...


def unchanged(policy: JobPolicy) -> JobPolicy:
    """Return a policy as it is."""
    return policy


def without_client(_: str, work: Callable[[PolicyChange], T], /) -> T:
    """Have requests of a job asked again where no client has a budget for it."""
    return work(unchanged)


def has_stopped(store: SqlStore, job: JobRow) -> bool:
    """Whether rows of a job were not sent, as its first rows failed alike."""
    after, page = -1, store.acts.failed(job.id, rows=None, after=-1, limit=PAGE) if job.failed else []
    while page:
        if any(isinstance(decode_result(row.body, request_id="").error, ListStopped) for row in page):
            return True
        after = page[-1].ix
        page = store.acts.failed(job.id, rows=None, after=after, limit=PAGE) if len(page) == PAGE else []
    return False


def retry_failed(
    store: SqlStore,
    job_id: str,
    rows: Collection[int] | None,
    by: str,
    *,
    billed: bool,
    reopening: Reopening = without_client,
) -> RetriedRows:
    """Have failed rows of a job run again, and keep their results and what they cost. Of each row, in order:

    1. Nothing was, or may have been, billed for it: it runs again.
    2. Something may have been, and it is neither named nor ``billed`` is true: it is left as it is.
    3. Otherwise it runs again, and its result is kept as a try that did not end it.

    Args:
        rows: positions; all that failed when ``None``.
        billed: also those of all that were, or may have been, paid for; those of ``rows`` are named.
        reopening: has them run within the budget of the client that asks.

    Raises:
        JobNotFound: there is no such job.
        StoreError: it is being cancelled.
        InvalidRequest: a row is none.
    """
    if rows is not None and (wrong := [ix for ix in rows if isinstance(ix, bool) or not isinstance(ix, int)]):
        raise InvalidRequest(f"rows are positions from 0, and {wrong[0]!r:.60} is none", field="rows")
    named = None if rows is None else sorted({ix for ix in rows if 0 <= ix < 1 << 32})
    again: dict[int, NewResult | None] = {}
    paid: list[int] = []
    left: list[int] = []
    after = -1
    while max(len(again), len(left)) < MAX_ROWS_PER_ACT:
        page = store.acts.failed(job_id, rows=named, after=after, limit=PAGE)
        for row in page:
            after = row.ix
            result = decode_result(row.body, request_id="")
            may_be_paid = _may_be_paid(row, result)
            if may_be_paid and named is None and not billed:
                left.append(row.ix)
                continue
            again[row.ix] = _as_try(row, result) if may_be_paid else None
            if may_be_paid:
                paid.append(row.ix)
        if len(page) < PAGE:
            break
    count, left_out = reopening(job_id, partial(store.acts.reopen, job_id, again, paid, by))
    return RetriedRows(count, left_out, tuple(left or paid))


def _may_be_paid(row: FailedRow, result: Result) -> bool:
    """Whether anything was, or may have been, billed for a row."""
    unsure = getattr(result.error, "maybe_billed", False)
    return bool(row.cost is None or row.cost or row.tried or unsure or result.usage.total_tokens)


def _as_try(row: FailedRow, result: Result) -> NewResult:
    """Return the result of a row as one that did not end it."""
    refused = isinstance(result.error, UnusableAnswer) and result.text is not None
    outcome = "again" if refused else "unrun"
    return NewResult(row.ix, outcome, row.body, cost=row.cost, usage=result.usage)
