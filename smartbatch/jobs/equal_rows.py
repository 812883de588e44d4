"""Equal requests of one job: all but the first follow it, and get its answer."""

from __future__ import annotations

import sqlite3

from smartbatch.core.preparation.fingerprint import fingerprint
from smartbatch.errors import StoreError
from smartbatch.jobs.records import JobRow
from smartbatch.types import Request

__all__ = ["EqualRows"]

_CACHE_KB = 16_384
"""Memory for keys, in all; those that do not fit lie in a temporary file, some 50 bytes a row."""


class EqualRows:
    """Finds the first of equal requests among any number of them, read one after the other.

    Keys are kept in a private database of SQLite's, in memory up to some 16 MB and beyond that in a file that
    the system deletes with the process: a million rows take 50 MB of disk while they are accepted.

    Args:
        job: the job they belong to.
    """

    def __init__(self, job: JobRow) -> None:
        self._job = job
        self._keys = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        for statement in (
            "PRAGMA journal_mode = OFF",
            "PRAGMA synchronous = OFF",
            f"PRAGMA cache_size = -{_CACHE_KB}",
            "CREATE TABLE leader (key BLOB PRIMARY KEY, row INTEGER, realtime INTEGER) WITHOUT ROWID",
            "BEGIN",
        ):
            self._keys.execute(statement)

    def leader_of(self, row: int, request: Request, *, realtime: bool) -> int | None:
        """Return the row that a request follows; ``None`` where it is the first of its kind.

        One that goes in real time follows none that waits for a batch: it leads from now on.

        Raises:
            StoreError: there is no room for the keys.
        """
        if not request.deduplicate:
            return None
        key = fingerprint(request, self._job.model, self._job.scope)
        try:
            found = self._keys.execute("SELECT row, realtime FROM leader WHERE key = ?", (key,)).fetchone()
            if found is not None and (found[1] or not realtime):
                return int(found[0])
            self._keys.execute("INSERT OR REPLACE INTO leader VALUES (?, ?, ?)", (key, row, realtime))
        except sqlite3.Error as error:
            raise StoreError(
                f"the temporary folder has no room for the keys of a job's rows ({error}): make room for "
                "them, or submit with deduplicate=False, which needs none"
            ) from None
        return None

    def close(self) -> None:
        """Drop the keys."""
        self._keys.close()
