"""The chapter of jobs: accepting, finding and forgetting them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

from attrs import evolve

from smartbatch.errors import InvalidRequest, JobNotFound, StoreError
from smartbatch.jobs.records import ItemState, JobRow, JobState, NewItem, NewJob
from smartbatch.jobs.store import statements as sql
from smartbatch.jobs.store.database import Transaction
from smartbatch.jobs.store.rows import bare, encoded, job_row, number, record_text
from smartbatch.jobs.store.sql_store import Book

__all__ = ["Jobs"]

PAGE_ITEMS = 5_000
PAGE_BYTES = 8 << 20
"""Items go in by pages of this many, or this many bytes, so that a job of any size needs little memory and
keeps other writers waiting for a moment only."""
LONGEST_KEY = 1_024
"""Bytes of a job's key; an index of PostgreSQL takes 2,704."""

_Digest = Callable[[], bytes] | None
_ITEM = ("no", "state", "tries", "size", "tokens")
_PAYLOAD = ("no", "user_id", "body")


class Jobs(Book):
    """Jobs as a whole."""

    def accept(
        self, job: NewJob, items: Iterable[NewItem], *, digest: Callable[[], bytes] | None = None
    ) -> tuple[JobRow, bool]:
        """Store more than a page of items page by page: they belong to no job until the last transaction
        makes one of them, so killed before it nothing of it exists."""
        if len(encoded(job.key) or b"") > LONGEST_KEY:
            raise InvalidRequest(f"a job's key has at most {LONGEST_KEY:,} bytes", field="key")
        known = self._known(job)
        if known is not None:
            return known, False
        pages = _pages(items)
        page, last = next(pages)
        if last:
            return self._make(job, page, digest)
        return self._gather(job, page, pages, digest)

    def _known(self, job: NewJob) -> JobRow | None:
        found = self._db.row(sql.JOB_BY_KEY, encoded(job.key)) if job.key is not None else None
        found = found or self._db.row(sql.JOB_BY_ID, job.id)
        return None if found is None else job_row(found)

    def _make(self, job: NewJob, page: list[NewItem], digest: _Digest) -> tuple[JobRow, bool]:
        """Store a job of one page in one transaction."""
        with self._db.writing() as tx:
            tx.lock("accept")
            if (found := self._meanwhile(tx, job)) is not None:
                return found, False
            row = tx.row(sql.NEW_INCOMPLETE, "")
            assert row is not None
            no = int(row[0])
            tx.change(sql.DROP_INCOMPLETE, no)
            _store_items(tx, no, 0, page)
            return _store_job(tx, no, _digested(job, digest), len(page)), True

    def _gather(
        self, job: NewJob, page: list[NewItem], pages: Iterator[tuple[list[NewItem], bool]], digest: _Digest
    ) -> tuple[JobRow, bool]:
        """Store a job of many pages."""
        owner = self._me()
        with self._db.writing() as tx:
            row = tx.row(sql.NEW_INCOMPLETE, owner)
            assert row is not None
            no = int(row[0])
        made = False
        try:
            total, last = 0, False
            while not last:
                with self._db.writing() as tx:
                    _store_items(tx, no, total, page)
                total += len(page)
                page, last = next(pages)
            with self._db.writing() as tx:
                tx.lock("accept")
                if (found := self._meanwhile(tx, job)) is not None:
                    return found, False
                _store_items(tx, no, total, page)
                tx.change(sql.DROP_INCOMPLETE, no)
                stored = _store_job(tx, no, _digested(job, digest), total + len(page))
            made = True
            return stored, True
        finally:
            if not made:
                self._drop_quietly(no)

    def _meanwhile(self, tx: Transaction, job: NewJob) -> JobRow | None:
        """Return the job that took the key, or the id, while the items were read."""
        found = tx.row(sql.JOB_BY_KEY, encoded(job.key)) if job.key is not None else None
        found = found or tx.row(sql.JOB_BY_ID, job.id)
        return None if found is None else job_row(found)

    def _drop_quietly(self, no: int) -> None:
        with contextlib.suppress(StoreError):  # the next owner sweeps it
            self._drop_items(no)

    def job(self, id_or_key: str) -> JobRow | None:
        found = self._db.row(sql.JOB_BY_ID, id_or_key) if _plain(id_or_key) else None
        found = found or self._db.row(sql.JOB_BY_KEY, encoded(id_or_key))
        return None if found is None else job_row(found)

    def jobs(self, *, unfinished: bool = False, limit: int = 1000) -> list[JobRow]:
        return [job_row(row) for row in self._db.rows(sql.JOBS_UNFINISHED if unfinished else sql.JOBS, limit)]

    def forget(self, job_id: str) -> None:
        with self._db.writing() as tx:
            found = tx.row(sql.JOB_LOCKED, job_id)
            if found is None:
                raise JobNotFound(
                    f"the store {self.place} has no job {job_id!r}; it may be forgotten already"
                )
            no, state = int(found[0]), found[1]
            if state != JobState.DONE.value:
                raise StoreError(
                    f"job {job_id} is not finished: forgetting it could lose answers that are paid for;"
                    " cancel it and let it end first"
                )
            for statement in (*sql.DROP_JOB, *sql.DROP_SHARDS):
                tx.change(statement, no)
            tx.change(sql.DROP_INCIDENTS, job_id)
            tx.change(sql.MARK_INCOMPLETE, no, "")  # until the last row is gone
        self._drop_items(no)
        self._db.give_back()

    def request_cancel(self, job_id: str) -> None:
        no = self._number(job_id)
        with self._db.writing() as tx:
            tx.change(sql.CANCEL_REQUESTED, no)

    def unhold(self, job_id: str) -> None:
        no = self._number(job_id)
        with self._db.writing() as tx:
            tx.change(sql.UNHOLD, no)


def _digested(job: NewJob, digest: _Digest) -> NewJob:
    return job if digest is None else evolve(job, digest=digest())


def _plain(text: str) -> bool:
    """True for what can be an id: a text column refuses some other keys."""
    return text.isascii() and text.isprintable()


def _pages(items: Iterable[NewItem]) -> Iterator[tuple[list[NewItem], bool]]:
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


def _store_items(tx: Transaction, job: int, start: int, page: list[NewItem]) -> None:
    waiting = {True: ItemState.REALTIME.value, False: ItemState.OPEN.value}
    numbered = [(number(job, ix), item) for ix, item in enumerate(page, start)]
    tx.insert(
        "item",
        _ITEM,
        ((no, waiting[item.realtime], 0, item.size, item.tokens) for no, item in numbered),
    )
    tx.insert("payload", _PAYLOAD, ((no, encoded(item.user_id), item.payload) for no, item in numbered))


def _store_job(tx: Transaction, no: int, job: NewJob, total: int) -> JobRow:
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
