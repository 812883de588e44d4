"""How far a run in real time is: the rows of its jobs that are stored, at what pace, and the time left."""

from __future__ import annotations

from collections.abc import Callable
from typing import TextIO

from smartbatch.jobs.status import JobStatus
from smartbatch.observe.progress import Mode, Progress

__all__ = ["RunProgress"]


class RunProgress(Progress):
    """The bar of single requests, fed with the status of jobs instead of results.

    Args:
        rows: all rows of the input.
        jobs: those of them in jobs that go on; the others were answered before.
        stored: those of the jobs that had their results when this run began.
        mode, stream, now: as for :class:`~smartbatch.observe.progress.Progress`.
    """

    def __init__(
        self, rows: int, jobs: int, stored: int, mode: Mode, stream: TextIO, now: Callable[[], float]
    ) -> None:
        self._before = rows - jobs
        super().__init__(rows, mode, stream, now, initial=self._before + stored)

    def show(self, status: JobStatus) -> None:
        """Take over a status."""
        with self._lock:
            count = self._count
            count.done = self._before + status.finished
            count.failed = status.failed + status.cancelled
            count.cost = status.cost
            count.priced = status.finished > status.unpriced
            count.unpriced = status.unpriced > 0
        self.update()
