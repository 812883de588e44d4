"""Lists with a key: stored as a whole before anything is sent; whoever asks them again goes on with them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from attrs import frozen

from smartbatch.core.preparation.preparer import RequestPreparer, row_named, row_of
from smartbatch.core.routing.choice import Decision
from smartbatch.errors import InvalidRequest
from smartbatch.jobs.job_options import JobOptions
from smartbatch.realtime.bounded_map import ListOptions
from smartbatch.routing.list_job import CheckedList, JobResults, Kept, Reading, keyed_parts
from smartbatch.types import Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from smartbatch.jobs.job_submission import JobSubmission
    from smartbatch.jobs.records import JobRow


@frozen(eq=False, repr=False)
class KeyedLists:
    """Stores the lists of one client that have a key, as jobs, and reads them.

    Args:
        preparer: runs the hooks.
        jobs: returns what stores them and carries them on.
        reading: makes of what is stored what the caller asked for.
    """

    _preparer: RequestPreparer
    _jobs: Callable[[], JobSubmission]
    _reading: Reading

    def earlier(self, key: str) -> JobRow | None:
        """Return the job that has a key.

        Raises:
            StoreError, ConfigError: the store cannot be used.
        """
        return self._jobs().service.store.jobs.get(key)

    def results(self, asked: CheckedList, decision: Decision | None, options: ListOptions) -> JobResults:
        """Store a list, or find it in the store, and return its results.

        Args:
            decision: the route for a list that is new; ``None`` for one that has its job.

        Raises:
            InvalidRequest: names the row.
            JobConflict: the key belongs to other requests.
            StoreError: the store cannot be used.
        """
        for position, request in enumerate(asked.requests):
            row_named(row_of(position, request), partial(check_storable, request))
        assert asked.key is not None
        parts = keyed_parts(asked.requests, self._preparer, self._reading.admission)
        earlier = self.earlier(asked.key)
        paid = 0 if earlier is None else self._jobs().service.store.items.last_sequence(earlier.id)
        options_of_job = JobOptions(asked.key)
        submission = self._jobs()
        if earlier is not None:
            from smartbatch.jobs.retried_rows import has_stopped  # late: a new list reads no stored rows

            if has_stopped(self._jobs().service.store, earlier):
                self._jobs().handle(earlier).retry_failed()
            rows = parts.rows(attended=earlier.policy.attended)
            row = submission.add_rows(rows, asked.params, asked.kind, earlier)
            submission.adopt(row.id)  # this client reserves the money that the job can still spend
        elif decision is not None and decision.chosen.route.by_batch:
            rows = parts.rows(attended=False)
            row = submission.submit_decided(rows, asked.params, decision, asked.kind, options_of_job)
        else:
            rows = parts.rows(attended=True)
            row = submission.submit_attended_list(rows, asked.params, asked.kind, options_of_job, decision)
        kept = Kept(paid, self._jobs().service.let_go)
        return JobResults(self._jobs().handle(row), parts, options=options, reading=self._reading, kept=kept)


def check_storable(request: Request) -> None:
    """Check that a store can keep a request for another process.

    Raises:
        InvalidRequest: it has an own callable.
    """
    if request.call is not None:
        raise InvalidRequest(
            "call is an own callable, which cannot be kept for another process: leave key= and durable= out",
            field="call",
        )
