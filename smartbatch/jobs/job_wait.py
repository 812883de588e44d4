"""Waiting for a job and reading its results within a time limit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from attrs import frozen

from smartbatch.errors import JobTimeout, SmartbatchError, StoreError
from smartbatch.jobs.records import JobRow, JobState, ResultRow
from smartbatch.jobs.status import JobStatus
from smartbatch.jobs.watching import PAGE_RESULTS, SeenChanges, stored_job
from smartbatch.observe.progress import Progress, new_display
from smartbatch.types import Result, T

if TYPE_CHECKING:
    from smartbatch.jobs.jobs_engine import JobsEngine

LAST_CALLBACKS_SECONDS = 1.0
"""Maximum time to wait for the last callbacks after the job has ended."""
STATUS_INTERVAL_SECONDS = 1.0
"""Seconds between reads of the status while progress is shown."""
LAST_LOOK_SECONDS = 0.75
"""Time for reading the status after the time limit has passed."""


@frozen
class _Look:
    """State before a read of the store, to detect changes that arrive during the read."""

    seen: SeenChanges
    last: bool  # the time limit has passed


class JobWait:
    """One wait for a job.

    Args:
        engine_of: returns the engine; called for each use, because a forked child has its own engine.
        total: number of requests of the job.
        seconds: maximum total time to wait for the job and the store; ``None`` for no limit.
    """

    def __init__(
        self, engine_of: Callable[[], JobsEngine], job_id: str, total: int, seconds: float | None
    ) -> None:
        self._engine_of = engine_of
        self._job_id = job_id
        self._total = total
        self._until = math.inf if seconds is None else self._engine.clock.now() + seconds

    @property
    def _engine(self) -> JobsEngine:
        return self._engine_of()

    def carry_on(self) -> JobRow:
        """Run the job in this process unless it has ended."""
        row = stored_job(self._engine.store, self._job_id)
        if row.state is JobState.DONE:
            self._engine.has_ended(self._job_id)
        else:
            self._engine.carry_on(self._job_id)
        return row

    def status_at_end(self, progress: bool | None) -> JobStatus:
        """Wait until the job has ended and its callbacks have been called."""
        shown: Progress | None = None
        shows = True
        try:
            while True:
                look = self._look(progress=shows)
                row = self._read_store(self.carry_on)
                if row.state is JobState.DONE:
                    left = max(0.0, self._until + LAST_LOOK_SECONDS - self._engine.clock.now())
                    self._engine.finish_listening(self._job_id, min(LAST_CALLBACKS_SECONDS, left))
                    status = self._read_store(partial(self._engine.status_of, row))
                    if shown is not None:
                        shown.show(status)
                    return status
                shown = shown or new_display(progress, self._total, self._engine.clock.now)
                shows = shown is not None
                self._wait_once(look, row, shown, reads=False)
        finally:
            if shown is not None:
                shown.close()

    def displayed_results(self, progress: bool | None, *, ordered: bool, after: int) -> Iterator[Result]:
        """Yield all results and show the progress. If the reader stops early, the display stays as it is."""
        begun = after + 1 if ordered else 0
        shown = new_display(progress, self._total, self._engine.clock.now, initial=begun)
        results = self.results(self._engine.result_of, ordered=ordered, after=after, display=lambda: shown)
        try:
            for result in results:
                if shown is not None:
                    shown.advance(result)
                yield result
        except BaseException as error:
            if shown is not None and not isinstance(error, GeneratorExit):  # a finalizer must not draw
                shown.close()
            raise
        if shown is not None:
            shown.close()

    def results(
        self,
        read: Callable[[ResultRow, str], Result],
        *,
        waits: bool = True,
        ordered: bool,
        after: int = -1,
        display: Callable[[], Progress | None] | None = None,
    ) -> Iterator[Result]:
        """Yield results, a page at a time; see :meth:`smartbatch.Job.results`.

        Args:
            read: creates a result from its row.
            waits: wait for missing results; otherwise yield only the stored ones.
            display: creates the status display used while waiting.
        """
        last = after if ordered else 0
        missing, limit = self._total - (after + 1 if ordered else 0), PAGE_RESULTS
        while missing > 0:
            look = self._look()
            job, page = self._read_store(partial(self._job_and_page, ordered, last, limit, waits=waits))
            before = missing
            # 1. new results are stored: yield them, up to the first gap if they are read in order
            for row in page:
                if waits and ordered and row.ix != last + 1:
                    break
                last = row.ix if ordered else row.seq
                missing -= 1
                yield read(row, self._job_id)
            # no further results are read while the first one is missing
            limit = 1 if ordered and missing == before else PAGE_RESULTS
            if missing == before:
                # 2. there are no new results, and the caller does not wait: stop
                if job is None:
                    return
                # 3. there are no new results although the job is done: the store is damaged
                if job.state is JobState.DONE:
                    raise StoreError(
                        f"job {self._job_id} is done, but the store {self._engine.store.place} lacks some of "
                        "its results: another program changed it; restore it from a copy"
                    )
                # 4. there are no new results: wait for a change
                self._wait_once(look, job, display and display(), reads=True)
            # 5. all results were yielded: stop, unless rows were sent again in the meantime
            if missing <= 0 and waits and not ordered:
                missing = self._read_store(partial(self._count_retried, last))

    def page(self, *, ordered: bool, after: int, limit: int) -> list[ResultRow]:
        items = self._engine.store.items
        return (items.results if ordered else items.fresh)(self._job_id, after=after, limit=limit)

    def _job_and_page(
        self, ordered: bool, after: int, limit: int, *, waits: bool
    ) -> tuple[JobRow | None, list[ResultRow]]:
        """Read the job, if the caller waits for its results, and then a page."""
        return self.carry_on() if waits else None, self.page(ordered=ordered, after=after, limit=limit)

    def _count_retried(self, after: int) -> int:
        """Return the number of rows that were sent again after one result per request was read."""
        row = self._engine.store.jobs.get(self._job_id)
        if row is None:  # the job was deleted in the meantime
            return 0
        return row.total - row.finished or len(self.page(ordered=False, after=after, limit=PAGE_RESULTS))

    def _look(self, *, progress: bool = True) -> _Look:
        seen = self._engine.changes.seen(self._job_id, progress=progress)
        return _Look(seen, last=self._engine.clock.now() >= self._until)

    def _wait_once(self, look: _Look, row: JobRow, shown: Progress | None, *, reads: bool) -> None:
        """Wait for one change, and show the status. ``reads`` is true if results are shown as well.

        Raises:
            JobTimeout: the time limit has passed.
        """
        self._engine.check_carried(row)
        self._engine.publish_held(row)
        if look.last:
            note = self._note(row)
            raise JobTimeout(
                f"job {self._job_id} has not ended in time: {row.finished:,} of {row.total:,} requests have "
                f"their results. It stays in the store {self._engine.store.place}, and nothing is lost: "
                f"wait again, or resume it in any process with smartbatch.job({self._job_id!r})"
                + (f". Its note: {note}" if note else ""),
                job_id=self._job_id,
            )
        remaining = max(0.0, self._until - self._engine.clock.now())
        interval = self._engine.refresh_interval(self._job_id)
        if shown is not None:
            if shown.is_due:
                status = self._read_store(partial(self._engine.status_of, row))
                (shown.waits_for if reads else shown.show)(status)
            interval = min(interval, STATUS_INTERVAL_SECONDS)
        self._engine.changes.wait_for_change(look.seen, min(remaining, interval))

    def _note(self, row: JobRow) -> str | None:
        try:
            return self._read_store(partial(self._engine.status_of, row)).note
        except SmartbatchError:  # the store does not answer in time
            return None

    def _read_store(self, read: Callable[[], T]) -> T:
        """Call ``read`` with the store.

        Raises:
            JobTimeout: the store did not answer before the time limit.
        """
        left = None
        if self._until != math.inf:
            left = max(0.0, self._until + LAST_LOOK_SECONDS - self._engine.clock.now())
        return self._engine.client_store.read_within(read, left, partial(JobTimeout, job_id=self._job_id))
