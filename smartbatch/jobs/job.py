"""The user's handle of a job: status, waiting, results and actions. All handles share one stored job."""

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
"""Seconds within which the store must report the status of a job to display in a notebook."""


class Job:
    """A job in the store. It outlives this object, its client and the process.

    Returned by ``client.submit_batch``, ``client.job``, ``client.jobs`` and ``smartbatch.job``; thread-safe.
    Waiting, reading results or taking futures makes this process run the job, unless another one does.

    Attributes:
        id: ``job-`` and 16 characters.
        key: the user's own name for it, or ``None``.
        model: ``provider:model``.
        metadata: the user's labels.
        created_at: Unix seconds.
        total: requests.
        attended: whether it is sent in real time, and only while a process that names it waits for it.
    """

    def __init__(self, engine_of: Callable[[], JobsEngine], row: JobRow) -> None:
        # called each time: a forked child has its own engine. It is a method of the client, so that a client
        # lives as long as the handles of its jobs.
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
        """Return the status for a notebook, or only what is known if the store does not answer in time."""
        try:
            return self.status(NOTEBOOK_STATUS_SECONDS)._repr_html_()
        except SmartbatchError as error:
            from smartbatch.views.html import notebook
            from smartbatch.views.model import View  # imported late: only a notebook shows it

            return notebook(View(repr(self), (), subtitle=str(error)))

    # -- status ----------------------------------------------------------------------------------------------

    def status(self, timeout: Duration | None = STATUS_TIMEOUT, *, forecast: bool = True) -> JobStatus:
        """Return the current status from the store; the provider is not contacted.

        Args:
            forecast: False leaves ``remaining`` ``None`` while the job is unfinished; then the status of a
                million requests costs no more than that of ten, because waiting rows are not counted.
            timeout: for the store to answer, such as ``"5s"``, or seconds; ``None`` waits as long as it
            takes.

        Raises:
            JobNotFound: the job was forgotten.
            StoreError: the store cannot be read, or did not answer in time.
        """
        seconds = seconds_of("timeout", timeout)

        def read() -> JobStatus:
            return self._engine.status_of(self._row(), forecast=forecast)

        return self._engine.client_store.read_within(read, seconds, StoreError)

    def is_done(self) -> bool:
        """Whether every request has its result; cheaper than the whole status."""
        return self._row().state is JobState.DONE

    def incidents(self) -> list[IncidentRow]:
        """Return the unexpected events, oldest first, with what they may have cost.

        Raises:
            StoreError: the store cannot be read, or has not answered for 30 seconds.
        """
        engine = self._engine

        def read() -> list[IncidentRow]:
            return engine.store.facts.incidents(self.id)

        return engine.client_store.read_within(read, STATUS_TIMEOUT, StoreError)

    def report(self) -> Report:
        """Return a report of the job so far: a single HTML file showing what was requested, what was returned
        and when, the route and the reason for it, and the cost. It contains no prompts and no answers.

        For a large job, its distributions are estimates from a few thousand results.

        Raises:
            JobNotFound: the job was forgotten.
            StoreError: the store cannot be read.
        """
        from smartbatch.jobs.job_report import job_report  # imported late: most programs make none

        engine = self._engine
        return job_report(engine.store, self._row(), engine.wall())

    def reported_run(self) -> ReportedRun:
        """Return the part of a report that concerns the whole job, for reports on files with its results."""
        from smartbatch.jobs.job_report import reported_run  # imported late, as above

        engine = self._engine
        return reported_run(engine.store, self._row(), engine.wall())

    def has_account(self) -> bool:
        """Whether this process has the account that the job was submitted with and needs."""
        return self._engine.providers.provider_of(self._row()) is not None

    def is_unowned(self) -> bool:
        """Whether the job is unfinished and no living process runs it."""
        return self._engine.is_free(self.id)

    def on_progress(self, callback: Callable[[JobStatus], object]) -> None:
        """Call ``callback`` with the status now and after each change, until the job ends.

        It runs on its own thread, with no lock held; its exceptions are logged.
        """
        self._carry_on()
        self._engine.listen(self.id, callback)

    # -- waiting ---------------------------------------------------------------------------------------------

    def wait(self, timeout: Duration | None = None, *, progress: bool | None = None) -> JobStatus:
        """Wait until every request has its result and callbacks were called, and return the status.

        Args:
            timeout: such as ``"2h"``, or seconds; ``None`` waits as long as it takes.
            progress: True for a progress bar, or lines if there is no terminal; False for nothing; by default
                a bar in notebooks only.

        Raises:
            JobTimeout: the time limit has passed, or the store did not answer in time; the job continues.
            ClientClosed: the client was stopped, and no process runs the job.
            Interrupted: Ctrl-C; the job continues.
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
        """Yield the results, a page at a time, so that a job of any size takes little memory.

        Args:
            ordered: in the order of the requests; otherwise in the order in which they were stored.
            wait: wait for missing results; otherwise yield those that are stored.
            timeout: total time to wait for results or the store, such as ``"2h"``, or seconds; ``None`` waits
                as long as it takes.
            after: continue after the request at this position, from 0; only for results in order.
            progress: as for :meth:`wait`; nothing is displayed if ``wait`` is false.

        Returns:
            an iterator of :class:`~smartbatch.Result`; failed requests hold their ``.error``.

        Raises:
            JobTimeout, ClientClosed, Interrupted: as :meth:`wait`.
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
            paid: the ``sequence`` of the last result that was stored, and paid for, before; results up to it
                are returned like cached answers.
            display: returns what displays the status while results are waited for.

        Raises:
            ClientClosed: as :meth:`wait`.
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
            after: the ``index`` (in order) or the ``sequence`` of the last result read; ``None`` begins.
            ordered: in the order of the requests, which may have gaps; otherwise as they were stored.
            wait: seconds to wait for a change if there is none; the job runs meanwhile.
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
        """Yield ``sequence`` and ``index`` of the stored results, in the order in which they were stored,
        without reading their contents: a million in a second or two.
        """
        last = 0
        while page := self._engine.store.items.sequences(self.id, after=last):
            yield from page
            last = page[-1][0]

    def contexts(self, positions: Collection[int]) -> dict[int, Any]:
        """Return the contexts of the requests at some positions; at most a few hundred at a time."""
        bodies = self._engine.store.items.bodies(self.id, positions)
        return {ix: context_of(body) for ix, body in bodies.items()}

    def futures(self) -> list[Future[Result]]:
        """Return a future for each request, in order, as if this process had submitted them.

        They complete when their results are stored, and raise the errors of failed requests. Cancelling one
        does not affect the job. When the client is stopped, the remaining ones raise ``ClientClosed``. Each
        takes some 2 kB of memory, unlike :meth:`results`.
        """
        self._carry_on()
        return self._engine.futures(self.id, self.total)

    # -- actions ---------------------------------------------------------------------------------------------

    def cancel(self, *, by: str | None = None) -> None:
        """Request cancellation of the job and return at once; use :meth:`wait` to wait for its end.

        Nothing more is sent, batches in progress are cancelled at the provider, and what they have completed
        by then, and is paid for, is kept.

        Args:
            by: the user, for the store's list of actions; by default the user and machine.
        """
        self._engine.store.actions.cancel(JobSelection(ids=(self.id,)), actor(by))
        self._carry_on()
        self._engine.recall(self.id)

    def resume(self, *, by: str | None = None) -> None:
        """Continue a job that is held or waits for a budget; check any other job at once."""
        self._engine.store.actions.resume(JobSelection(ids=(self.id,)), actor(by))
        self._carry_on()
        self._engine.resume(self.id)

    def forget(self, *, by: str | None = None, keep_decision: bool = False) -> None:
        """Delete a finished job, its requests and its results from the store.

        Args:
            by: as for :meth:`cancel`.
            keep_decision: keep how its route was chosen and what it took, under its key, for the dashboard
                and for reports on its output. The latest 2,000 of these are kept.

        Raises:
            StoreError: it is not finished, so answers that are paid for could be lost.
        """
        self._engine.store.jobs.forget(self.id, actor(by), keep_decision=keep_decision)

    def set_deadline(self, deadline: Deadline | None, *, by: str | None = None) -> None:
        """Change when the last result is due; the process that runs the job is notified.

        From then on, requests that would be late are sent in real time, at the real-time price. Without a
        deadline, requests that a batch did not process go into another batch. An attended job has its
        timeouts instead.

        Args:
            deadline: such as ``"2h"``, seconds or a ``timedelta`` from now by the clock of the store, or a
                ``datetime`` with its time zone; ``None`` for none.

        Raises:
            ConfigError: it has passed, or is not a valid time.
            JobNotFound: the job was forgotten.
        """
        change_deadline(self._engine.store, self.id, deadline, actor(by))
        self._engine.check_actions()

    def set_budget(self, budget: float | str | None, *, by: str | None = None) -> float:
        """Change the total that may be spent on the job; the process that runs it is notified.

        A budget below what is already spent and reserved does not stop requests in flight: nothing more is
        sent until one of them has cost less than its reservation, and requests that never find room fail with
        ``BudgetExceeded``. The additional amount of a raised budget is not reserved in a client's budget
        until failed rows of the finished job are sent again.

        Args:
            budget: USD, or text such as ``"5 USD"``; ``None`` for no limit.

        Returns:
            the USD left in it; negative if more is already spent or reserved.

        Raises:
            InvalidRequest: it is not an amount.
            JobNotFound: the job was forgotten.
        """
        left = change_budget(self._engine.store, self.id, budget, actor(by))
        self._engine.check_actions()
        return left

    def retry_failed(
        self, rows: Collection[int] | None = None, *, billed: bool = False, by: str | None = None
    ) -> RetriedRows:
        """Send failed rows again, and have this process run the job.

        A row gets a new result in place of the old one, which stays in :meth:`earlier_results`; its cost
        stays counted. A row that was, or may have been, paid for is left out unless it is named in ``rows``
        or ``billed`` is true; in that case an incident records it. At most 100,000 rows are sent again at a
        time. A deadline that has passed no longer applies. A client with a budget reserves in it what the job
        can spend; if less is available, that becomes the job's budget, in whichever process it runs, until
        the next :meth:`set_budget`. Requests for which there is no room fail with ``BudgetExceeded``.

        Args:
            rows: positions of failed requests, from 0; all if ``None``.
            billed: include those that were, or may have been, paid for.

        Raises:
            StoreError: the job is being cancelled.
            JobNotFound: the job was forgotten.
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
        """Return a page of the results that rows had before they were sent again, by their position.

        Args:
            after: the last result read; ``None`` begins.
            limit: maximum number of results.
        """
        begin = (-1, 0) if after is None else (after.index, after.sequence)
        kept = self._engine.store.actions.earlier_results(
            self.id, after=begin, limit=count_of("limit", limit)
        )
        return [
            StoredResult(one.ix, one.seq, decode_result(one.body, request_id=item_id(self.id, one.ix, None)))
            for one in kept
        ]

    def withdraw(self) -> bool:
        """Cancel the requests of an attended job that were not sent; this does not need its account.

        Results that exist are kept.

        Returns:
            False while this or another process runs the job.
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
    """Return the exception of an interrupted wait for a job, from which its stored results can be read."""
    again = f"smartbatch.job({job.id!r})"
    return Interrupted(
        f"interrupted; job {job.id} is not lost: it continues in this process, or in the next one on its "
        f"store. .results of this exception holds the stored results; {again} resumes it, {again}.cancel() "
        "cancels it",
        lambda: ResultList(job.results(wait=False)),
    )
