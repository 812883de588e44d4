"""The user's handle for a stored job: status, waiting, results and actions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from smartbatch._words import count_of, seconds_of, short
from smartbatch.errors import RequestCancelled, SmartbatchError, StoreError
from smartbatch.jobs.actions import change_budget, change_deadline, retry_failed
from smartbatch.jobs.job_options import STATUS_TIMEOUT
from smartbatch.jobs.job_wait import JobWait
from smartbatch.jobs.payload import context_of, decode_result, encode_error, item_id
from smartbatch.jobs.records import (
    LEASE_SECONDS,
    IncidentRow,
    JobRow,
    JobSelection,
    JobState,
    ResultRow,
    RetriedRows,
    StoredResult,
    actor,
)
from smartbatch.jobs.status import JobStatus
from smartbatch.jobs.watching import PAGE_RESULTS, stored_job
from smartbatch.observe.progress import Progress
from smartbatch.results import Interrupted, ResultList, as_kept
from smartbatch.types import Deadline, Duration, Result

if TYPE_CHECKING:
    from smartbatch.jobs.jobs_engine import JobsEngine
    from smartbatch.jobs.report_view import ReportedRun
    from smartbatch.views.html import Report

NOTEBOOK_STATUS_SECONDS = 2.0


class Job:
    """A job in the store. It outlives this object, its client and the process.

    Returned by ``client.submit_batch``, ``client.job``, ``client.jobs`` and ``smartbatch.job``. Thread-safe.
    Waiting for the job, reading its results or creating futures makes this process run it, unless another
    process does.

    Attributes:
        id: ``job-`` followed by 16 characters.
        key: the user's name for the job, or ``None``.
        model: ``provider:model``.
        metadata: the user's labels.
        created_at: Unix seconds.
        total: number of requests.
        attended: true if the requests are sent in real time, and only while a process waits for the job.
    """

    def __init__(self, engine_of: Callable[[], JobsEngine], row: JobRow) -> None:
        # called for each use, because a forked child has its own engine; a bound method of the client, which
        # keeps the client alive as long as the handles of its jobs
        self._engine_of = engine_of
        self.id = row.id
        self.key = row.key
        self.model = row.model
        self.metadata = dict(row.metadata)
        self.created_at = row.created_at
        self.total = row.total
        self.attended = row.policy.attended

    def __repr__(self) -> str:
        named = "" if self.key is None else f" {short(self.key)}"
        return f"<Job {self.id}{named} {self.model} {self.total:,} requests>"

    def _repr_html_(self) -> str:
        try:
            return self.status(NOTEBOOK_STATUS_SECONDS)._repr_html_()
        except SmartbatchError as error:
            from smartbatch.views.html import notebook
            from smartbatch.views.model import View  # imported late: only a notebook shows it

            return notebook(View(repr(self), (), subtitle=str(error)))

    # -- status ----------------------------------------------------------------------------------------------

    def status(self, timeout: Duration | None = STATUS_TIMEOUT, *, forecast: bool = True) -> JobStatus:
        """Read the current status from the store, without contacting the provider.

        Args:
            forecast: False skips the forecast in ``remaining``, which requires counting the waiting rows. Use
                it for jobs with very many requests.
            timeout: maximum time to wait for the store, such as ``"5s"``, or seconds; ``None`` for no limit.

        Raises:
            JobNotFound: the job was deleted.
            StoreError: the store cannot be read, or did not answer in time.
        """
        seconds = seconds_of("timeout", timeout)

        def read() -> JobStatus:
            return self._engine.status_of(self._row(), forecast=forecast)

        return self._engine.client_store.read_within(read, seconds, StoreError)

    def is_done(self) -> bool:
        """Return true if every request has its result. This is cheaper than reading the whole status."""
        return self._row().state is JobState.DONE

    def incidents(self) -> list[IncidentRow]:
        """Return the unexpected events of the job and their possible cost, oldest first.

        Raises:
            StoreError: the store cannot be read, or did not answer within 30 seconds.
        """
        engine = self._engine

        def read() -> list[IncidentRow]:
            return engine.store.facts.incidents(self.id)

        return engine.client_store.read_within(read, STATUS_TIMEOUT, StoreError)

    def report(self) -> Report:
        """Return a report of the job so far, which can be saved as a single HTML file.

        The report shows the requests, their results over time, the route and the reason for it, and the cost.
        It contains no prompts and no answers. For a large job, the distributions are estimated from a few
        thousand results.

        Raises:
            JobNotFound: the job was deleted.
            StoreError: the store cannot be read.
        """
        # imported late, because most programs need no report
        from smartbatch.jobs.job_report import job_report

        engine = self._engine
        return job_report(engine.store, self._row(), engine.wall())

    def reported_run(self) -> ReportedRun:
        """Return the part of a report that describes the whole job, for reports on result files."""
        from smartbatch.jobs.job_report import reported_run  # imported late, as above

        engine = self._engine
        return reported_run(engine.store, self._row(), engine.wall())

    def has_account(self) -> bool:
        """Return true if this process can use the account with which the job was submitted."""
        return self._engine.providers.provider_of(self._row()) is not None

    def is_unowned(self) -> bool:
        """Return true if the job is unfinished and no living process runs it."""
        return self._engine.is_free(self.id)

    def on_progress(self, callback: Callable[[JobStatus], object]) -> None:
        """Call ``callback`` with the current status, and again after each change until the job ends.

        The callback runs on a separate thread and may block. Its exceptions are logged.
        """
        self._carry_on()
        self._engine.listen(self.id, callback)

    # -- waiting ---------------------------------------------------------------------------------------------

    def wait(self, timeout: Duration | None = None, *, progress: bool | None = None) -> JobStatus:
        """Wait until every request has its result, and return the status.

        Args:
            timeout: such as ``"2h"``, or seconds; ``None`` for no limit.
            progress: True for a progress bar, or for lines if there is no terminal; False for nothing; by
                default a bar in notebooks only.

        Raises:
            JobTimeout: the time limit passed, or the store did not answer in time; the job continues.
            ClientClosed: the client was stopped, and no process runs the job.
            Interrupted: Ctrl-C was pressed; the job continues.
        """
        try:
            return self._wait(timeout).status_at_end(progress)
        except KeyboardInterrupt:
            raise interrupted(self) from None

    def results(
        self,
        *,
        ordered: bool = True,
        wait: bool = True,
        timeout: Duration | None = None,
        after: int = -1,
        progress: bool | None = None,
    ) -> Iterator[Result]:
        """Yield the results, reading one page at a time so that large jobs take little memory.

        Args:
            ordered: yield results in the order of the requests; otherwise in the order in which they were
                stored.
            wait: wait for missing results; otherwise yield only the stored ones.
            timeout: maximum total time to wait, such as ``"2h"``, or seconds; ``None`` for no limit.
            after: continue after the request at this position, from 0; requires ``ordered``.
            progress: as for :meth:`wait`; ignored if ``wait`` is false.

        Returns:
            an iterator of :class:`~smartbatch.Result`; failed requests have an ``.error``.

        Raises:
            JobTimeout, ClientClosed, Interrupted: as for :meth:`wait`.
        """
        waiting = self._wait(timeout)
        if not wait:
            return waiting.results(self._engine.result_of, waits=False, ordered=ordered, after=after)
        return self._interruptible(waiting.displayed_results(progress, ordered=ordered, after=after))

    def unprocessed_results(
        self,
        *,
        ordered: bool = True,
        wait: bool = True,
        paid: int = 0,
        display: Callable[[], Progress | None] | None = None,
    ) -> Iterator[Result]:
        """Yield all results like :meth:`results`, but without the client's ``post_process``.

        Args:
            ordered, wait: as for :meth:`results`.
            paid: the ``sequence`` of the last result that an earlier run stored and paid for; results up to
                it are returned like cached answers.
            display: creates the status display used while waiting for results.

        Raises:
            ClientClosed: as for :meth:`wait`.
        """

        def read(row: ResultRow, job_id: str) -> Result:
            result = self._engine.stored_result(row, job_id)
            return as_kept(result) if row.seq <= paid else result

        return self._wait(None).results(read, waits=wait, ordered=ordered, display=display)

    def stored(
        self,
        *,
        after: int | None = None,
        ordered: bool = True,
        wait: float = 0.0,
        limit: int = PAGE_RESULTS,
    ) -> list[StoredResult]:
        """Return a page of the stored results, for readers that keep their own position.

        Args:
            after: the last result read, as its ``index`` if ``ordered`` is true and its ``sequence``
                otherwise; ``None`` starts at the beginning.
            ordered: sort by the order of the requests, possibly with gaps; otherwise by the time of storage.
            wait: seconds to wait for new results if there are none; the job runs in the meantime.
            limit: maximum number of results.

        Raises:
            StoreError: the store cannot be read.
        """
        engine = self._engine
        if wait:
            self._carry_on()
        seen = engine.changes.seen(self.id)
        begin = -1 if ordered else 0
        rows = self._wait(None).page(ordered=ordered, after=begin if after is None else after, limit=limit)
        if not rows and wait:
            engine.changes.wait_for_change(seen, wait)
            return self.stored(after=after, ordered=ordered, limit=limit)
        return [StoredResult(row.ix, row.seq, engine.result_of(row, self.id)) for row in rows]

    def sequences(self) -> Iterator[tuple[int, int]]:
        """Yield ``sequence`` and ``index`` of the stored results in the order in which they were stored.

        The results themselves are not read: a million take a second or two.
        """
        last = 0
        while page := self._engine.store.items.sequences(self.id, after=last):
            yield from page
            last = page[-1][0]

    def contexts(self, positions: Collection[int]) -> dict[int, Any]:
        """Return the contexts of the requests at the given positions, at most a few hundred per call."""
        bodies = self._engine.store.items.bodies(self.id, positions)
        return {ix: context_of(body) for ix, body in bodies.items()}

    def futures(self) -> list[Future[Result]]:
        """Return a future for each request, in order, as if this process had submitted the requests.

        A future completes when its result is stored, and raises the error of a failed request. Cancelling a
        future does not affect the job. When the client is stopped, incomplete futures raise ``ClientClosed``.
        Each future takes about 2 kB of memory; :meth:`results` takes less.
        """
        self._carry_on()
        return self._engine.futures(self.id, self.total)

    # -- actions ---------------------------------------------------------------------------------------------

    def cancel(self, *, by: str | None = None) -> None:
        """Request cancellation of the job and return immediately; :meth:`wait` waits until it finishes.

        Nothing more is sent, and running batches are cancelled at the provider. Requests that those batches
        have already completed are paid for, and their results are kept.

        Args:
            by: the user recorded in the store's list of actions; by default the user and machine.
        """
        self._engine.store.actions.cancel(JobSelection(ids=(self.id,)), actor(by))
        self._carry_on()
        self._engine.recall(self.id)

    def resume(self, *, by: str | None = None) -> None:
        """Continue a job that is held or waits for budget. Any other job is checked immediately."""
        self._engine.store.actions.resume(JobSelection(ids=(self.id,)), actor(by))
        self._carry_on()
        self._engine.resume(self.id)

    def forget(self, *, by: str | None = None, keep_decision: bool = False) -> None:
        """Delete a finished job, its requests and its results from the store.

        Args:
            by: as for :meth:`cancel`.
            keep_decision: keep the route decision and its outcome for the dashboard and for later reports.
                The store keeps the latest 2,000.

        Raises:
            StoreError: the job is not finished, so paid answers could be lost.
        """
        self._engine.store.jobs.forget(self.id, actor(by), keep_decision=keep_decision)

    def set_deadline(self, deadline: Deadline | None, *, by: str | None = None) -> None:
        """Change the time at which the last result is due, even while another process runs the job.

        From then on, requests that would be late are sent in real time, at the real-time price. Without a
        deadline, requests that a batch did not process are sent in another batch. An attended job ignores
        deadlines and uses its timeouts.

        Args:
            deadline: such as ``"2h"``, seconds or a ``timedelta`` from now by the clock of the store, or a
                ``datetime`` with its time zone; ``None`` removes the deadline.

        Raises:
            ConfigError: the deadline has passed or is not a valid time.
            JobNotFound: the job was deleted.
        """
        change_deadline(self._engine.store, self.id, deadline, actor(by))
        self._engine.check_actions()

    def set_budget(self, budget: float | str | None, *, by: str | None = None) -> float:
        """Change the maximum amount that the job may spend, even while another process runs it.

        A budget below the amount already spent and reserved does not stop requests in flight. Nothing more is
        sent until a request costs less than its reservation. Requests for which no budget becomes available
        fail with ``BudgetExceeded``. Raising the budget does not reserve more money in a client's budget
        until failed rows of the finished job are sent again.

        Args:
            budget: USD, or a string such as ``"5 USD"``; ``None`` for no limit.

        Returns:
            the USD left; negative if more is already spent or reserved.

        Raises:
            InvalidRequest: the budget is not an amount.
            JobNotFound: the job was deleted.
        """
        left = change_budget(self._engine.store, self.id, budget, actor(by))
        self._engine.check_actions()
        return left

    def retry_failed(
        self, rows: Collection[int] | None = None, *, billed: bool = False, by: str | None = None
    ) -> RetriedRows:
        """Send failed rows again and run the job in this process.

        The new result of a row replaces the old one, which stays available in :meth:`earlier_results`; its
        cost is still included in the total. A row that was, or may have been, paid for is skipped unless it
        is named in ``rows`` or ``billed`` is true; sending it again is recorded as an incident. At most
        100,000 rows are sent again per call. A deadline that has passed no longer applies. A client with a
        budget reserves the maximum cost of the job. If less is available, that amount becomes the job's
        budget until the next :meth:`set_budget`, and requests that exceed it fail with ``BudgetExceeded``.

        Args:
            rows: positions of failed requests, from 0; all if ``None``.
            billed: include rows that were, or may have been, paid for.

        Raises:
            StoreError: the job is being cancelled.
            JobNotFound: the job was deleted.
            ClientClosed: the client was stopped, and its budget is shared.
        """
        engine = self._engine
        retried = retry_failed(
            engine.store, self.id, rows, actor(by), billed=billed, reopening=engine.wiring.reopen
        )
        if retried.count:
            self._engine.check_actions()
            self._carry_on()
        return retried

    def earlier_results(
        self, *, after: StoredResult | None = None, limit: int = PAGE_RESULTS
    ) -> list[StoredResult]:
        """Return a page of the results that were replaced when rows were sent again, sorted by position.

        Args:
            after: the last result read; ``None`` starts at the beginning.
            limit: maximum number of results.
        """
        begin = (-1, 0) if after is None else (after.index, after.sequence)
        engine = self._engine
        kept = engine.store.actions.earlier_results(self.id, after=begin, limit=count_of("limit", limit))
        files = engine.store.files.folder(self.id)
        return [
            StoredResult(
                one.ix,
                one.seq,
                decode_result(one.body, request_id=item_id(self.id, one.ix, None), files=files),
            )
            for one in kept
        ]

    def withdraw(self) -> bool:
        """Cancel the unsent requests of an attended job, without needing the job's account.

        Existing results are kept.

        Returns:
            false if this or another process runs the job.
        """
        store = self._engine.store
        lease = store.leases.claim(self.id, LEASE_SECONDS)
        if lease is None:
            return False
        try:
            error = RequestCancelled("the job was withdrawn before this request was sent")
            store.items.drop_unsent(lease, encode_error(error), at=self._engine.clock.wall())
        finally:
            store.leases.release(lease)
        return True

    # -- internals -------------------------------------------------------------------------------------------

    @property
    def _engine(self) -> JobsEngine:
        return self._engine_of()

    def _row(self) -> JobRow:
        return stored_job(self._engine.store, self.id)

    def _carry_on(self) -> None:
        self._wait(None).carry_on()

    def _wait(self, timeout: Duration | None) -> JobWait:
        return JobWait(self._engine_of, self.id, self.total, seconds_of("timeout", timeout))

    def _interruptible(self, results: Iterator[Result]) -> Iterator[Result]:
        try:
            yield from results
        except KeyboardInterrupt:
            raise interrupted(self) from None


def interrupted(job: Job) -> Interrupted:
    """Create the exception for an interrupted wait. It can read the stored results of the job."""
    again = f"smartbatch.job({job.id!r})"
    return Interrupted(
        f"interrupted; job {job.id} is not lost: it continues in this process, or in the next one that uses "
        f"its store. The attribute .results of this exception holds the stored results; {again} resumes the "
        f"job, {again}.cancel() cancels it",
        lambda: ResultList(job.results(wait=False)),
    )
