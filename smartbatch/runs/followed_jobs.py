"""Jobs that a command waits for: their ends or their results, with progress, until they end or are held."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final

from attrs import define, evolve, field

from smartbatch._clock import Clock
from smartbatch.errors import JobTimeout
from smartbatch.jobs.job import Job
from smartbatch.jobs.status import JobStatus
from smartbatch.jobs.watching import PAGE_RESULTS
from smartbatch.types import DEFECTS, Result

GRACE: Final = 10.0
"""Seconds that calls under way get to end, those of batches included: a create that is cut off has to be
searched for later. A second Ctrl-C does not wait."""

STEP: Final = 0.5
"""Seconds after which a wait checks whether it was interrupted."""
REFRESH_EVERY: Final = 0.25
"""Seconds between two reads of the statuses that are shown."""

_UNDER_WAY: Final = frozenset({"submitting", "submitted", "ended", "ingesting"})
"""States of a batch whose results come although its job is held."""
_SUMMED: Final = (
    *("total", "submitted", "completed", "failed", "cancelled", "running"),
    *("cost", "realtime_cost", "unpriced", "wasted", *DEFECTS),
)
"""Figures of a status that are added up over several jobs."""


@define(eq=False, repr=False)
class FollowedJobs:
    """Follows jobs together, with one progress display for all of them.

    Args:
        show: called with the status of all jobs together.
        stopped: called now and then; once true, nothing more is waited for.
        ending: called once results are no longer waited for, before what is stored by then is read.
        on_status: called with each new status of a job, before ``show``.
        forecast: whether the statuses say how long their jobs still take.

    Attributes:
        statuses: the last status of each job, by its id.
    """

    _jobs: Sequence[Job]
    _show: Callable[[JobStatus], object]
    _clock: Clock
    _stopped: Callable[[], bool] = lambda: False
    _ending: Callable[[], object] = lambda: None
    _on_status: Callable[[JobStatus], object] = lambda _: None
    _forecast: bool = True
    statuses: dict[str, JobStatus] = field(factory=dict, init=False)
    _next_refresh: float = field(default=0.0, init=False)

    def wait_for_ends(self) -> None:
        """Wait until every job has ended or is held, or the wait was interrupted."""
        self.refresh()
        for job in self._jobs:
            self.wait(job)

    def wait(self, job: Job) -> None:
        """Wait until ``job`` has ended or is held, or the wait was interrupted."""
        while not (self._stopped() or self.statuses[job.id].done or _is_stuck(self.statuses[job.id])):
            with suppress(JobTimeout):
                job.wait(STEP)
            self.refresh()

    def results(self, job: Job, *, rest: bool) -> Iterator[Result]:
        """Yield the results of ``job`` in order, as they come; each step may wait.

        Args:
            rest: once interrupted, yield what is stored by then, though some before it are missing.
        """
        last = -1
        while last + 1 < job.total and not self._stopped():
            try:
                for result in job.results(after=last, timeout=STEP):
                    last += 1
                    yield result
                    self._refresh_if_due()
                    if self._stopped():
                        break
            except JobTimeout:
                self.refresh()
                if _is_stuck(self.statuses[job.id]):
                    break
        if self._stopped():
            self._ending()
        if rest and last + 1 < job.total:
            yield from job.results(wait=False, after=last)

    def results_as_stored(
        self, job: Job, before: int, is_known: Callable[[int], bool]
    ) -> Iterator[list[Result]]:
        """Yield the results of ``job`` in the order in which they are stored, those together that are there:
        none waits for another.

        Once interrupted, what is stored by then.

        Args:
            before: how many results were stored before.
            is_known: whether the one of those for the request at a position is left out; then it is not read.
        """
        last = count = 0
        for number, (sequence, index) in enumerate(islice(job.sequences(), before), 1):
            if is_known(index):
                yield from _between(job, last, sequence)
                last, count = sequence, number
        ended = False
        while count < job.total:
            stopped = self._stopped()
            page = job.stored(after=last, ordered=False, wait=0.0 if stopped else STEP)
            if page:
                last, count = page[-1].sequence, count + len(page)
                yield [stored.result for stored in page]
            self._refresh_if_due()
            if page:
                continue
            if ended or (not stopped and _is_stuck(self.statuses[job.id])):
                return
            if stopped:
                ended = True
                self._ending()

    def refresh(self) -> None:
        """Read the statuses of the jobs that have not ended, and show them."""
        self._next_refresh = self._clock.now() + REFRESH_EVERY
        for job in self._jobs:
            before = self.statuses.get(job.id)
            if before is None or not before.done:
                status = self.statuses[job.id] = job.status(forecast=self._forecast)
                self._on_status(status)
        if self.statuses:
            self._show(_combined(list(self.statuses.values())))

    def held(self, advice: str = "") -> list[str]:
        """Return a line for each job that is held, as its last status says.

        Args:
            advice: what to do besides resuming it.
        """
        return [
            f"smartbatch: job {status.id} is held: {status.note or 'it waits for a person'}. "
            f"smartbatch jobs resume {status.id} goes on with it{advice}"
            for status in self.statuses.values()
            if _is_stuck(status)
        ]

    def _refresh_if_due(self) -> None:
        if self._clock.now() >= self._next_refresh:
            self.refresh()


def _between(job: Job, after: int, before: int) -> Iterator[list[Result]]:
    """Yield the stored results of a job between two others, in the order in which they were stored."""
    while after + 1 < before:
        page = job.stored(after=after, ordered=False, limit=min(PAGE_RESULTS, before - after - 1))
        page = [stored for stored in page if stored.sequence < before]
        if not page:
            return
        after = page[-1].sequence
        yield [stored.result for stored in page]


def _is_stuck(status: JobStatus) -> bool:
    """Whether a job is held, and no batch of it is under way."""
    return status.state == "held" and all(shard.state not in _UNDER_WAY for shard in status.shards)


def _combined(statuses: Sequence[JobStatus]) -> JobStatus:
    """Return the status of several jobs as one; the time left is that of the slowest."""
    if len(statuses) == 1:
        return statuses[0]
    open_ones = [status for status in statuses if not status.done]
    known = [status.remaining for status in open_ones if status.remaining is not None]
    return evolve(
        statuses[0],
        **{name: sum(getattr(status, name) for status in statuses) for name in _SUMMED},
        elapsed=max(status.elapsed for status in statuses),
        remaining=max(known, default=None) if len(known) == len(open_ones) else None,
        note=next((status.note for status in open_ones if status.note), None),
    )
