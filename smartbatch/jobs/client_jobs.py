"""The jobs of a client in one process, whose parts are made with the first of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from attrs import frozen

from smartbatch.core.routing.outcome import ListDecision
from smartbatch.errors import WrongProcess

if TYPE_CHECKING:
    from smartbatch.jobs.deferred_jobs import DeferredJobs
    from smartbatch.jobs.job import Job
    from smartbatch.jobs.job_budget import ClientBudget
    from smartbatch.jobs.job_submission import JobSubmission
    from smartbatch.jobs.records import JobRow
    from smartbatch.jobs.service import JobService
    from smartbatch.jobs.summary_log import SummaryLog


@frozen(eq=False, repr=False)
class JobParts:
    """What carries the jobs of a client.

    Attributes:
        service: carries them on.
        submission: stores them.
        deferred: finds deferred requests in them.
        budget: holds money back for them.
        summaries: writes what requests in real time came to next to them.
    """

    service: JobService
    submission: JobSubmission
    deferred: DeferredJobs
    budget: ClientBudget
    summaries: SummaryLog


class ClientJobs:
    """Makes the parts of a client's jobs when the first job, or the store, needs them. Safe from any thread.

    Most clients have no job, and importing what carries jobs takes a sixth of the processor time until the
    first request. What is asked of jobs that there are none of is answered here.

    Args:
        make: makes the parts; what it raises goes to the caller, and the next use tries again.
        connect: has those that stay hear of what concerns them, before they are used.
    """

    def __init__(self, make: Callable[[], JobParts], connect: Callable[[JobParts], None]) -> None:
        self._make = make
        self._connect = connect
        self._lock = threading.RLock()  # a signal handler may ask while they are made
        self._parts: JobParts | None = None
        self._halted = False

    def get(self) -> JobParts:
        """Return the parts."""
        if self._parts is not None:
            return self._parts
        with self._lock:
            if self._parts is None:
                made = self._make()
                if self._parts is None:  # else a signal handler was quicker
                    self._connect(made)
                    self._parts = made
                if self._halted:
                    self._parts.service.halt()
            return self._parts

    @property
    def service(self) -> JobService:
        """What carries jobs on."""
        return self.get().service

    @property
    def submission(self) -> JobSubmission:
        """What stores jobs."""
        return self.get().submission

    @property
    def deferred(self) -> DeferredJobs:
        """What finds deferred requests in jobs."""
        return self.get().deferred

    def handle(self, row: JobRow) -> Job:
        """Return a job's handle."""
        from smartbatch.jobs.job import Job

        return Job(lambda: self.service, row)

    # -- where there may be none -----------------------------------------------------------------------------

    @property
    def is_working(self) -> bool:
        """Whether the threads that carry jobs on run."""
        return self._parts is not None and self._parts.service.is_working

    @property
    def uses_store(self) -> bool:
        """Whether a store is in use: one was named, or there are jobs."""
        return self._parts is not None and self._parts.summaries.is_stored

    @property
    def unreserved(self) -> float:
        """USD that jobs cost outside of real time and that the client's budget does not count."""
        return 0.0 if self._parts is None else self._parts.budget.unreserved

    def note(self, decision: ListDecision) -> None:
        """Note a decision on a list that is no job, where a store is in use; again when it is measured."""
        if self._parts is not None:
            self._parts.summaries.decided(decision)

    def on_own_thread(self) -> bool:
        """Whether the caller runs on a thread of jobs, in an observer of the user's."""
        return self._parts is not None and self._parts.service.on_own_thread()

    def open(self) -> None:
        """Allow jobs to be carried on, again after a stop."""
        with self._lock:
            self._halted = False
            if self._parts is not None:
                self._parts.service.open()

    def halt(self) -> None:
        """Begin to stop: start nothing more, but keep the jobs while answers are under way. Takes no lock
        that making the parts holds."""
        self._halted = True
        if self._parts is not None:
            self._parts.service.halt()

    def finish(self, until: float, save: Callable[[], object]) -> None:
        """Give the jobs back, and close the store; see :meth:`.JobService.finish`."""
        if self._parts is not None:
            self._parts.service.finish(until, save)

    def abandon(self, error: WrongProcess) -> None:
        """In a forked child: end the copies of the parent's futures. Takes no inherited lock."""
        if self._parts is not None:
            self._parts.service.abandon(error)
