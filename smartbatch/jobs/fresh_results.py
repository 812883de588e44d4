"""Results that this process stored a moment ago: who reads them from the store need not decode them."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from smartbatch.jobs.records import NewResult, ResultRow
from smartbatch.types import Result

MOST = 256
"""Results that are kept: some groups of those that are stored together."""


class FreshResults:
    """The latest results that were stored, by job and position, each until it is read once. Safe from any
    thread.

    Only plain answers are kept: of these it is sure that what is stored reads back as the very same.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, int], tuple[bytes, Result]] = {}

    def keep(self, job_id: str, stored: Iterable[tuple[NewResult, Result]]) -> None:
        """Keep what was stored, the oldest of it no longer than there is room."""
        with self._lock:
            for new, result in stored:
                if new.outcome == "succeeded" and result.parsed is None and result.embedding is None:
                    self._kept[job_id, new.ix] = new.body, result
            for oldest in list(self._kept)[:-MOST]:
                del self._kept[oldest]

    def take(self, row: ResultRow, job_id: str) -> Result | None:
        """Return the result of an item, if it is kept and the store has these very bytes of it."""
        with self._lock:
            kept = self._kept.pop((job_id, row.ix), None)
        if kept is None or kept[0] != row.body or row.follower or row.earlier is not None:
            return None
        return kept[1]
