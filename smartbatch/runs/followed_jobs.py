"""Follows the results and progress of jobs for a command that waits until they finish or are held."""

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

GRACE_SECONDS: Final = 10.0
"""Time after Ctrl-C for calls in flight to finish. If the creation of a batch is cut off, the batch has to be
searched for later. A second Ctrl-C does not wait.
"""
WAIT_STEP_SECONDS: Final = 0.5  # between checks for an interrupt
REFRESH_SECONDS: Final = 0.25  # between updates of the displayed status

# states of a batch that still delivers results although its job is held
_ACTIVE_STATES: Final = frozenset({"submitting", "submitted", "ended", "ingesting"})
# figures that are added up over several jobs
_SUMMED_FIGURES: Final = (
    *("total", "submitted", "completed", "failed", "cancelled", "running"),
    *("cost", "realtime_cost", "unpriced", "wasted", *DEFECTS),
)


@define(eq=False, repr=False)
class FollowedJobs:
    _jobs: Sequence[Job]
    _show: Callable[[JobStatus], object]  # receives the combined status of all jobs
    _clock: Clock
    _stopped: Callable[[], bool] = lambda: False  # ends the wait once it returns true
    _ending: Callable[[], object] = lambda: None  # called after the wait, before stored results are read
    _on_status: Callable[[JobStatus], object] = lambda _: None  # called before ``_show``
    _forecast: bool = True  # statuses include the remaining time
    statuses: dict[str, JobStatus] = field(factory=dict, init=False)  # latest status by job id
    _next_refresh: float = field(default=0.0, init=False)

    def wait_for_ends(self) -> None:
        """Wait until every job has finished or is held, or until the wait is interrupted."""
        self.refresh()
        for job in self._jobs:
            self.wait(job)

    def wait(self, job: Job) -> None:
        while not (self._stopped() or self.statuses[job.id].done or _is_stuck(self.statuses[job.id])):
            with suppress(JobTimeout):
                job.wait(WAIT_STEP_SECONDS)
            self.refresh()

    def results_in_order(self, job: Job, *, rest: bool) -> Iterator[Result]:
        """Yield the results of ``job`` in order as they arrive.

        Args:
            rest: after an interrupt, yield all stored results, even if earlier ones are missing.
        """
        last = -1
        while last + 1 < job.total and not self._stopped():
            try:
                for result in job.results(after=last, timeout=WAIT_STEP_SECONDS):
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
        """Yield the results of ``job`` in groups as they are stored, in any order. After an interrupt, yield
        only what is already stored.

        Args:
            before: number of results that were stored earlier.
            is_known: returns whether the earlier result at a position is skipped without being read.
        """
        last = count = 0
        for number, (sequence, index) in enumerate(islice(job.sequences(), before), 1):
            if is_known(index):
                yield from _between(job, last, sequence)
                last, count = sequence, number
        ended = False
        while count < job.total:
            stopped = self._stopped()
            page = job.stored(after=last, ordered=False, wait=0.0 if stopped else WAIT_STEP_SECONDS)
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
        self._next_refresh = self._clock.now() + REFRESH_SECONDS
        for job in self._jobs:
            before = self.statuses.get(job.id)
            if before is None or not before.done:
                status = self.statuses[job.id] = job.status(forecast=self._forecast)
                self._on_status(status)
        if self.statuses:
            self._show(_combined(list(self.statuses.values())))

    def held(self, advice: str = "") -> list[str]:
        """Return a message for each held job on how to resume it, followed by ``advice``."""
        return [
            f"smartbatch: job {status.id} is held: {status.note or 'it needs a decision'}. "
            f"To resume it, run smartbatch jobs resume {status.id}{advice}"
            for status in self.statuses.values()
            if _is_stuck(status)
        ]

    def _refresh_if_due(self) -> None:
        if self._clock.now() >= self._next_refresh:
            self.refresh()


def _between(job: Job, after: int, before: int) -> Iterator[list[Result]]:
    """Yield the results stored between two sequence numbers, in the order in which they were stored."""
    while after + 1 < before:
        page = job.stored(after=after, ordered=False, limit=min(PAGE_RESULTS, before - after - 1))
        page = [stored for stored in page if stored.sequence < before]
        if not page:
            return
        after = page[-1].sequence
        yield [stored.result for stored in page]


def _is_stuck(status: JobStatus) -> bool:
    """Whether a job is held and none of its batches is in progress."""
    return status.state == "held" and all(shard.state not in _ACTIVE_STATES for shard in status.shards)


def _combined(statuses: Sequence[JobStatus]) -> JobStatus:
    """Combine the statuses of several jobs. The remaining time is that of the slowest job."""
    if len(statuses) == 1:
        return statuses[0]
    open_ones = [status for status in statuses if not status.done]
    known = [status.remaining for status in open_ones if status.remaining is not None]
    return evolve(
        statuses[0],
        **{name: sum(getattr(status, name) for status in statuses) for name in _SUMMED_FIGURES},
        elapsed=max(status.elapsed for status in statuses),
        remaining=max(known, default=None) if len(known) == len(open_ones) else None,
        note=next((status.note for status in open_ones if status.note), None),
    )
