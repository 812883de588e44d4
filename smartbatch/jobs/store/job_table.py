"""Jobs as rows: their own row, their shared parameters, their counts, their items and requests.

A method that takes ``tx`` is part of the caller's transaction.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence

from attrs import evolve

from smartbatch.errors import JobNotFound, StoreError
from smartbatch.jobs.records import (
    ItemState,
    JobPolicy,
    JobRow,
    JobState,
    NewItem,
    NewJob,
    NewResult,
    OpenItem,
    OverJobBudget,
)
from smartbatch.jobs.store import statements as sql
from smartbatch.jobs.store.database import Database, Reader, Transaction
from smartbatch.jobs.store.rows import (
    bare,
    encoded,
    first_of,
    job_row,
    number,
    position,
    record_of,
    record_text,
)

__all__ = ["JobTable", "pages_of"]

PAGE_ITEMS = 5_000
PAGE_BYTES = 8 << 20
"""Items are stored by pages of this many, or this many bytes, so that a job of any size needs little memory
and keeps other writers waiting for a moment only."""
PAGE_DELETED = 10_000
"""Rows deleted in one transaction."""
Digest = Callable[[], bytes] | None
"""Returns the digest of a job once all its items were read."""
_TINY = 1e-9
"""USD by which sums of floats may miss: less than a token costs."""
_ITEM = ("no", "state", "tries", "size", "tokens")
_PAYLOAD = ("no", "user_id", "body")


class JobTable:
    """The tables ``job``, ``job_params``, ``item``, ``payload`` and ``incomplete_job``."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def number(self, job_id: str) -> int:
        """Return the number of a job.

        Raises:
            JobNotFound: there is none with that id.
        """
        found = self._db.row(sql.JOB_NUMBER, job_id)
        if found is None:
            raise JobNotFound(f"the store {self._db.place} has no job {job_id!r}; see: smartbatch jobs list")
        return int(found[0])

    def known(self, reader: Reader, job: NewJob) -> JobRow | None:
        """Return the job that has the key of ``job``, else the one that has its id."""
        found = reader.row(sql.JOB_BY_KEY, encoded(job.key)) if job.key is not None else None
        found = found or reader.row(sql.JOB_BY_ID, job.id)
        return None if found is None else job_row(found)

    # -- items -----------------------------------------------------------------------------------------------

    def new_number(self, tx: Transaction, owner: str) -> int:
        """Return the number of a job to be; until :meth:`store_job` its items are incomplete."""
        row = tx.row(sql.NEW_INCOMPLETE, owner)
        assert row is not None
        return int(row[0])

    def store_items(self, tx: Transaction, job: int, start: int, page: Sequence[NewItem]) -> None:
        """Store items at the positions from ``start`` on."""
        states = {True: ItemState.REALTIME.value, False: ItemState.OPEN.value}
        numbered = [(number(job, ix), item) for ix, item in enumerate(page, start)]
        rows = ((no, states[item.realtime], 0, item.size, item.tokens) for no, item in numbered)
        tx.insert("item", _ITEM, rows)
        tx.insert("payload", _PAYLOAD, ((no, encoded(item.user_id), item.payload) for no, item in numbered))

    def store_job(self, tx: Transaction, no: int, job: NewJob, digest: Digest, total: int) -> JobRow:
        """Make a job of the ``total`` items that are stored under its number."""
        if digest is not None:
            job = evolve(job, digest=digest())
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
            job.digest,
            job.created_at,
            (JobState.ACTIVE if total else JobState.DONE).value,
            None if total else job.created_at,
            total,
        )
        tx.change(sql.NEW_PARAMS, no, job.params)
        row = tx.row(sql.JOB_BY_ID, job.id)
        assert row is not None
        return job_row(row)

    def store_pages(
        self,
        job: NewJob,
        page: list[NewItem],
        pages: Iterator[tuple[list[NewItem], bool]],
        digest: Digest,
        owner: str,
    ) -> tuple[JobRow, bool]:
        """Store a job of several pages, in a transaction each; see :meth:`.SqlStore.accept`."""
        with self._db.writing() as tx:
            no = self.new_number(tx, owner)
        made = False
        try:
            total, last = 0, False
            while not last:
                with self._db.writing() as tx:
                    self.store_items(tx, no, total, page)
                total += len(page)
                page, last = next(pages)
            with self._db.writing() as tx:
                tx.lock("accept")
                if (found := self.known(tx, job)) is not None:
                    return found, False
                self.store_items(tx, no, total, page)
                stored = self.store_job(tx, no, job, digest, total + len(page))
            made = True
            return stored, True
        finally:
            if not made:
                with contextlib.suppress(StoreError):  # the next owner deletes them
                    self.delete_items(no)

    def delete_items(self, job: int) -> None:
        """Delete the items of a number that no job has, in transactions that let others in between."""
        end = first_of(job + 1)
        for table in sql.ITEM_TABLES:
            drop = sql.DROP_RANGE.replace("{table}", table)
            first = self.first_in(table, first_of(job), end)
            while first is not None:
                last = min(first + PAGE_DELETED, end)
                with self._db.writing() as tx:
                    tx.change(drop, first, last)
                first = self.first_in(table, last, end)
        with self._db.writing() as tx:
            tx.change(sql.DROP_INCOMPLETE, job)

    def first_in(self, table: str, start: int, end: int) -> int | None:
        """Return the first number in a table from ``start`` on and before ``end``."""
        found = self._db.row(sql.FIRST_OF_RANGE.replace("{table}", table), start, end)
        return None if found is None else found[0]

    def items_in(self, job: int, state: ItemState, limit: int) -> list[OpenItem]:
        """Return up to ``limit`` items in a state, in order."""
        statement = sql.WAITING if state.value < ItemState.SHARDED.value else sql.ITEMS_IN
        rows = self._db.rows(statement, state.value, first_of(job), first_of(job + 1), limit)
        return [OpenItem(position(no), size, tokens, tries) for no, size, tokens, tries in rows]

    # -- counts ----------------------------------------------------------------------------------------------

    def reserve(self, tx: Transaction, job: int, usd: float) -> None:
        """Reserve ``usd`` of a job's budget, or release them where they are negative.

        Raises:
            OverJobBudget: there is no room for them.
        """
        if not usd:
            return
        found = tx.row(sql.MONEY, job)
        assert found is not None
        policy, cost, reserved = found
        budget = record_of(JobPolicy, policy).budget
        if usd > 0 and budget is not None and cost + reserved + usd > budget + _TINY:
            raise OverJobBudget(
                f"{usd:.6f} USD more could be spent, and {max(0.0, budget - cost - reserved):.6f} USD are "
                f"left of the job's budget of {budget:g} USD; nothing was written"
            )
        self.reserve_anyway(tx, job, usd)

    def reserve_anyway(self, tx: Transaction, job: int, usd: float) -> None:
        """Reserve what may have been spent already, so that there is nothing to refuse."""
        tx.change(sql.RESERVE, usd, job)

    def count(self, tx: Transaction, job: int, results: Sequence[NewResult], at: float) -> int:
        """Add final results to the job's counts, and end the job with its last; return the first ``seq``."""
        outcomes = [result.outcome for result in results]
        priced = [result for result in results if result.cost is not None]
        found = tx.row(
            sql.COUNT,
            len(results),
            outcomes.count("succeeded"),
            outcomes.count("failed"),
            outcomes.count("cancelled"),
            *_costs(priced),
            len(results) - len(priced),
            sum(result.input_tokens for result in results),
            sum(result.output_tokens for result in results),
            job,
        )
        assert found is not None
        tx.change(sql.FINISH, at, job)
        return first_of(job) + int(found[0]) - len(results) + 1

    def count_alike(
        self, tx: Transaction, job: int, count: int, outcome: str, at: float, *, priced: bool
    ) -> int:
        """As :meth:`count`, for results of one outcome that cost nothing, or an unknown amount."""
        sums = [count if outcome == word else 0 for word in ("succeeded", "failed", "cancelled")]
        found = tx.row(sql.COUNT, count, *sums, 0.0, 0.0, 0 if priced else count, 0, 0, job)
        assert found is not None
        tx.change(sql.FINISH, at, job)
        return first_of(job) + int(found[0]) - count + 1

    def charge(self, tx: Transaction, job: int, results: Sequence[NewResult]) -> None:
        """Add the cost of answers that were paid and do not count, such as those that break their schema."""
        paid = [result for result in results if result.cost and (result.input_tokens or result.output_tokens)]
        if paid:
            tokens = sum(result.input_tokens for result in paid), sum(result.output_tokens for result in paid)
            tx.row(sql.COUNT, 0, 0, 0, 0, *_costs(paid), 0, *tokens, job)


def _costs(priced: Sequence[NewResult]) -> tuple[float, float]:
    """Return the cost of results, USD, and what they would have cost in real time.

    Where the latter is unknown no saving is claimed.
    """
    cost = float(sum(result.cost or 0.0 for result in priced))
    realtime = sum((r.cost if r.realtime_cost is None else r.realtime_cost) or 0.0 for r in priced)
    return cost, float(realtime)


def pages_of(items: Iterable[NewItem]) -> Iterator[tuple[list[NewItem], bool]]:
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
