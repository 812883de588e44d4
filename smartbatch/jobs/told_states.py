"""What was told of jobs, so that each end is told once, and each reason for which a job is held."""

from __future__ import annotations

from attrs import evolve

from smartbatch.events import JobFinished
from smartbatch.jobs.records import JobRow, JobState

REMEMBERED = 1_000
"""Finished jobs that are remembered. Few are needed: either of two threads may store the last result of a
job, and both tell its end within moments."""


class ToldStates:
    """Says whether the end of a job, or that it is held, is news. Its methods need the lock of its owner."""

    def __init__(self) -> None:
        self._ends: dict[str, JobFinished] = {}
        self._held: dict[str, str | None] = {}

    def is_new_end_locked(self, event: JobFinished) -> bool:
        """Whether the end of a job was not told yet. One whose failed rows were asked again has another."""
        end = evolve(event, at=0.0)
        if self._ends.get(event.job_id) == end:
            return False
        self._ends[event.job_id] = end
        if len(self._ends) > REMEMBERED:
            del self._ends[next(iter(self._ends))]
        self.goes_on_locked(event.job_id)
        return True

    def is_newly_held_locked(self, row: JobRow) -> bool:
        """Whether a job is held, and for another reason than the one told last."""
        if row.state is not JobState.HELD:
            self.goes_on_locked(row.id)
            return False
        if row.id in self._held and self._held[row.id] == row.note:
            return False
        self._held[row.id] = row.note
        return True

    def goes_on_locked(self, job_id: str) -> None:
        """A job is held no longer."""
        self._held.pop(job_id, None)
