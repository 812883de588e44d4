"""A job followed on the command line: its results or its end, with a bar, until it ends or is interrupted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from attrs import evolve

from smartbatch._clock import Clock
from smartbatch.errors import JobTimeout
from smartbatch.jobs.job import Job
from smartbatch.jobs.status import JobStatus
from smartbatch.types import Result

__all__ = ["Follower", "is_stuck", "together"]

STEP: Final = 0.5
"""Seconds after which a wait looks whether it was interrupted."""
SHOWN_EVERY: Final = 0.25
"""Seconds between two looks at the figures of the bar."""

_UNDER_WAY: Final = frozenset({"submitting", "submitted", "ended", "ingesting"})
"""States of a batch from which something comes although its job is held."""


class Follower:
    """Follows jobs together, with one bar for all of them.

    Args:
        jobs: those the bar tells of.
        show: shows how they stand together.
        clock: time.
        stopped: asked now and then; once true, nothing more is waited for.
        ending: called once results are no longer waited for, before what is stored by then is read.
        told: called with each new status of a job, after the bar.

    Attributes:
        statuses: the last status of each job, by its id.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        show: Callable[[JobStatus], object],
        clock: Clock,
        *,
        stopped: Callable[[], bool] = lambda: False,
        ending: Callable[[], object] = lambda: None,
        told: Callable[[JobStatus], object] = lambda _: None,
    ) -> None:
        self._jobs = jobs
        self._show = show
        self._clock = clock
        self._stopped = stopped
        self._ending = ending
        self._told = told
        self._next = clock.now()
        self.statuses: dict[str, JobStatus] = {}

    def to_the_ends(self) -> None:
        """Wait until every job has ended or is held, or the wait was interrupted."""
        self.look()
        for job in self._jobs:
            self.wait(job)
        self.look()

    def wait(self, job: Job) -> None:
        """Wait until ``job`` has ended, is held, or the wait was interrupted."""
        while not self._stopped():
            try:
                job.wait(STEP)
                return
            except JobTimeout:
                self.look()
                if is_stuck(self.statuses[job.id]):
                    return

    def results(self, job: Job, *, rest: bool) -> Iterator[Result]:
        """Yield the results of ``job`` in order, as they come; each time it is asked it may wait.

        Args:
            rest: once interrupted, yield what is stored by then, though some before it are missing.
        """
        last = -1
        while last + 1 < job.total and not self._stopped():
            try:
                for result in job.results(after=last, timeout=STEP):
                    last += 1
                    yield result
                    if self._clock.now() >= self._next:
                        self.look()
                    if self._stopped():
                        break
            except JobTimeout:
                self.look()
                if is_stuck(self.statuses[job.id]):
                    break
        if self._stopped():
            self._ending()
        if rest and last + 1 < job.total:
            yield from job.results(wait=False, after=last)

    def as_stored(self, job: Job) -> Iterator[Result]:
        """Yield the results of ``job`` in the order in which they are stored: none waits for another.

        Once interrupted, what is stored by then.
        """
        last = count = 0
        ended = False
        while count < job.total:
            stopped = self._stopped()
            page = job.stored(after=last, ordered=False, wait=0.0 if stopped else STEP)
            for stored in page:
                last, count = stored.sequence, count + 1
                yield stored.result
            if self._clock.now() >= self._next:
                self.look()
            if page:
                continue
            if ended or (not stopped and is_stuck(self.statuses[job.id])):
                return
            if stopped:
                ended = True
                self._ending()

    def look(self) -> None:
        """Look how the jobs stand, and show it."""
        self._next = self._clock.now() + SHOWN_EVERY
        for job in self._jobs:
            before = self.statuses.get(job.id)
            if before is None or not before.done:
                now = self.statuses[job.id] = job.status()
                self._told(now)
        if self.statuses:
            self._show(together(list(self.statuses.values())))


def is_stuck(status: JobStatus) -> bool:
    """Whether a job waits for a person, and nothing of it is under way."""
    return status.state == "held" and all(shard.state not in _UNDER_WAY for shard in status.shards)


def together(statuses: Sequence[JobStatus]) -> JobStatus:
    """Return how several jobs stand as one; the slowest tells the time that remains."""
    if len(statuses) == 1:
        return statuses[0]
    open_ones = [status for status in statuses if not status.done]
    known = [status.remaining for status in open_ones if status.remaining is not None]
    return evolve(
        statuses[0],
        **{
            name: sum(getattr(status, name) for status in statuses)
            for name in ("total", "submitted", "completed", "failed", "cancelled", "running")
        },
        cost=sum(status.cost for status in statuses),
        realtime_cost=sum(status.realtime_cost for status in statuses),
        unpriced=sum(status.unpriced for status in statuses),
        elapsed=max(status.elapsed for status in statuses),
        remaining=max(known, default=None) if len(known) == len(open_ones) else None,
        note=next((status.note for status in open_ones if status.note), None),
    )
