"""The items that are stored under the number of a job, or of one to be: finding, reading, deleting them."""

from __future__ import annotations

from collections.abc import Iterable

from smartbatch.errors import JobNotFound
from smartbatch.jobs.records import StoredItem
from smartbatch.jobs.store.database import Database, Reader
from smartbatch.jobs.store.rows import first_of, stored_item

PAGE_DELETED = 10_000
"""Rows deleted in one transaction."""
JOB_NUMBER = "SELECT no FROM job WHERE id = ?"


def job_number(db: Database, job_id: str) -> int:
    """Return the number of a job.

    Raises:
        JobNotFound: there is none with that id.
    """
    found = db.row(JOB_NUMBER, job_id)
    if found is None:
        raise JobNotFound(f"the store {db.place} has no job {job_id!r}; see: smartbatch jobs list")
    [no] = found
    return int(no)


def items_by_number(reader: Reader, numbers: Iterable[int]) -> dict[int, StoredItem]:
    """Return items in the order of their numbers."""
    rows = reader.rows(
        """SELECT i.no, p.user_id, p.body, i.tokens, i.tries FROM item i JOIN payload p ON p.no = i.no
        WHERE i.no IN {numbers} ORDER BY i.no""",
        list(numbers),
    )
    return {row[0]: stored_item(row) for row in rows}


def delete_items(db: Database, job: int, owner: str) -> None:
    """Delete the items of a number that no job has, in transactions that let others in between.

    The number is taken from its owner first, so that nothing is stored under it any more. Nothing is deleted
    where it is not that owner's: a job was made of the items, or somebody else deletes them.
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
    """Return the first number in a column of a table from ``start`` on and before ``end``."""
    least = f"SELECT min({column}) FROM {table} WHERE {column} >= ? AND {column} < ?"
    [(found,)] = db.rows(least, start, end)
    return None if found is None else int(found)
