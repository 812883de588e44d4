"""A job as its user holds it: look, wait, read, cancel. All handles, in any process, are one job."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from attrs import frozen

from smartbatch._words import count_of, seconds_of, short
from smartbatch.errors import JobTimeout, RequestCancelled, SmartbatchError, StoreError
from smartbatch.interrupted import Interrupted
from smartbatch.jobs.actions import change_budget, change_deadline, retry_failed
from smartbatch.jobs.job_options import STATUS_TIMEOUT
from smartbatch.jobs.payload import context_of, decode_result, encode_error, item_id
from smartbatch.jobs.records import (
    LEASE_SECONDS,
    IncidentRow,
    JobRow,
    JobSelection,
    JobState,
    ResultRow,
    RetriedRows,
    actor,
)
from smartbatch.jobs.status import JobStatus
from smartbatch.jobs.stored_result import StoredResult
from smartbatch.jobs.watching import PAGE_RESULTS, SeenChanges, stored_job
from smartbatch.observe.progress import Progress, new_display
from smartbatch.results import ResultList, as_kept
from smartbatch.types import Deadline, Duration, Result, T

if TYPE_CHECKING:
    from smartbatch.jobs.jobs_engine import JobsEngine
    from smartbatch.jobs.report_view import ReportedRun
    from smartbatch.views.html import Report

LAST_CALLBACKS = 1.0
"""Seconds in which callbacks hear of a job's end before waiting for it returns."""
SHOWN_WITHIN = 2.0
"""Seconds that the store has to say how a job stands that a notebook shows."""
SHOWN_EVERY = 1.0
"""Seconds between two looks at a job that somebody watches."""
LAST_LOOK = 0.75
"""Seconds that the store has, once the time to wait is over, to say how the job stands then."""


@frozen
class _Look:
    """What was known before the store was read: a change, or the end of the time, may come while it is read.

    Attributes:
        seen: the changes that were told.
        last: the time to wait was over.
    """

    seen: SeenChanges
    last: bool


class Job:
    """A job in the store. It outlives this object, its client and the process.

    Made by ``client.submit_batch``, ``client.job``, ``client.jobs`` and ``smartbatch.job``; safe from any
    thread. Whoever waits, reads results or takes futures has this process carry the job on, unless another
    one does.

    Attributes:
        id: ``job-`` and 16 characters.
        key: the user's own name for it, or ``None``.
        model: ``provider:model``.
        metadata: the user's labels.
        created_at: Unix seconds.
        total: requests.
        attended: whether it goes in real time while a process that names it waits for it, and only then.
    """

    def __init__(self, engine_of: Callable[[], JobsEngine], row: JobRow) -> None:
        # asked each time: a forked child has an engine of its own. It is its client's method, so a client
        # that nobody else holds lives as long as the handles of its jobs.
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
        """Return how it stands, for a notebook; what it is, where the store does not say that soon."""
        try:
            return self.status(SHOWN_WITHIN)._repr_html_()
        except SmartbatchError as error:
            from smartbatch.views.html import notebook
            from smartbatch.views.model import View  # late: only a notebook shows it

            return notebook(View(repr(self), (), subtitle=str(error)))

    # -- looking ---------------------------------------------------------------------------------------------

    def status(self, timeout: Duration | None = STATUS_TIMEOUT, *, forecast: bool = True) -> JobStatus:
        """Return how the job stands now, from the store; nothing is asked of the provider.

        Args:
            forecast: False leaves ``remaining`` ``None`` while the job goes on; then a look at a job of a
                million costs no more than one at a job of ten, as its rows that wait are not counted.
            timeout: for the store to answer in, such as ``"5s"``, or seconds; ``None`` waits as long as it
                takes.

        Raises:
            JobNotFound: it was forgotten.
            StoreError: the store cannot be read, or did not answer in time.
        """
        seconds = seconds_of("timeout", timeout)

        def read() -> JobStatus:
            return self._engine.status_of(self._row(), forecast=forecast)

        return self._engine.client_store.read_within(read, seconds, StoreError)

    def is_done(self) -> bool:
        """Whether every request has its result; it costs less than the whole status."""
        return self._row().state is JobState.DONE

    def incidents(self) -> list[IncidentRow]:
        """Return what should not have happened, oldest first, with what it may have cost.

        Raises:
            StoreError: the store cannot be read, or has not answered for 30 seconds.
        """
        engine = self._engine
        return engine.client_store.read_within(
            lambda: engine.store.facts.incidents(self.id), STATUS_TIMEOUT, StoreError
        )

    def report(self) -> Report:
        """Return a report of the job so far: one file of HTML that says what was asked, what came, when, by
        which route and why, and what it cost. It holds no prompt and no answer.

        Of a large job its distributions are estimates, made of some thousand results.

        Raises:
            JobNotFound: it was forgotten.
            StoreError: the store cannot be read.
        """
        from smartbatch.jobs.job_report import job_report  # late: most programs make none

        engine = self._engine
        return job_report(engine.store, self._row(), engine.wall())

    def reported_run(self) -> ReportedRun:
        """Return what a report says of the job as a whole, for reports of files with its results."""
        from smartbatch.jobs.job_report import reported_run  # late, as above

        engine = self._engine
        return reported_run(engine.store, self._row(), engine.wall())

    def has_account(self) -> bool:
        """Whether this process has the account the job was submitted with, which going on needs."""
        return self._engine.providers.provider_of(self._row()) is not None

    def is_unowned(self) -> bool:
        """Whether the job has not ended and no living process carries it on."""
        return self._engine.is_free(self.id)

    def on_progress(self, callback: Callable[[JobStatus], object]) -> None:
        """Call ``callback`` with the status now and after each change, up to the end.

        It runs on a thread of its own, with no lock held; what it raises is logged.
        """
        self._carry_on()
        self._engine.listen(self.id, callback)

    # -- waiting ---------------------------------------------------------------------------------------------

    def wait(self, timeout: Duration | None = None, *, progress: bool | None = None) -> JobStatus:
        """Wait until every request has its result, and return the status. Callbacks have heard of it then.

        Args:
            timeout: such as ``"2h"``, or seconds; ``None`` waits as long as it takes.
            progress: True for a bar, or lines where there is no terminal, False for nothing; by default a bar
                in a notebook.

        Raises:
            JobTimeout: the time is over; the job goes on. So it is where the store did not answer in time.
            ClientClosed: the client was stopped, and nobody carries the job on.
            Interrupted: Ctrl-C; the job goes on.
        """
        shown: Progress | None = None
        try:
            until, shows = self._until(timeout), True
            while True:
                look = self._look(until, progress=shows)
                row = self._read_until(until, self._carry_on)
                if row.state is JobState.DONE:
                    status = self._ended(row, until)
                    if shown is not None:
                        shown.show(status)
                    return status
                shown = shown or new_display(progress, self.total, self._engine.clock.now)
                shows = shown is not None
                self._await(look, row, until, shown, reads=False)
        except KeyboardInterrupt:
            raise interrupted(self) from None
        finally:
            if shown is not None:
                shown.close()

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
            ordered: in the order of the requests; else in the order in which they were stored.
            wait: wait for those that are not there yet; else yield what there is.
            timeout: in all to wait, for results or the store, such as ``"2h"``, or seconds; ``None`` waits as
                long as it takes.
            after: go on behind the request at this position, from 0; for results in order only.
            progress: as for :meth:`wait`; nothing is shown where nothing is waited for.

        Returns:
            an iterator of :class:`~smartbatch.Result`; failed requests hold their ``.error``.

        Raises:
            JobTimeout, ClientClosed, Interrupted: as :meth:`wait`.
        """
        if not wait:
            until = self._until(timeout)
            return self._read(self._engine.result_of, until, waits=False, ordered=ordered, after=after)
        return self._shown(self._until(timeout), progress, ordered=ordered, after=after)

    def unprocessed_results(
        self,
        *,
        ordered: bool = True,
        wait: bool = True,
        paid: int = 0,
        display: Callable[[], Progress | None] | None = None,
    ) -> Iterator[Result]:
        """Yield all results as :meth:`results` does, without the client's ``post_process``.

        Args:
            ordered, wait: as for :meth:`results`.
            paid: the ``sequence`` of the last one that was stored, and paid, before; those up to it come as
                answers of a cache do.
            display: returns what shows how the job stands while its results are waited for.

        Raises:
            ClientClosed: as :meth:`wait`.
        """

        def read(row: ResultRow, job_id: str) -> Result:
            result = self._engine.stored_result(row, job_id)
            return as_kept(result) if row.seq <= paid else result

        return self._read(read, math.inf, waits=wait, ordered=ordered, display=display)

    def stored(
        self, *, after: int | None = None, ordered: bool = True, wait: float = 0.0, limit: int = PAGE_RESULTS
    ) -> list[StoredResult]:
        """Return a page of the results that are stored, for readers that keep their own place.

        Args:
            after: the ``index`` (in order) or the ``sequence`` of the last one that was read; ``None``
                begins.
            ordered: in the order of the requests, which may have gaps; else as they were stored.
            wait: seconds to wait for a change when there is none; the job is carried on meanwhile.
            limit: at most so many.

        Raises:
            StoreError: the store cannot be read.
        """
        engine = self._engine
        if wait:
            self._carry_on()
        seen = engine.changes.seen(self.id)
        begin = -1 if ordered else 0
        rows = self._page(ordered, begin if after is None else after, limit)
        if not rows and wait:
            engine.changes.wait_for_change(seen, wait)
            return self.stored(after=after, ordered=ordered, limit=limit)
        return [StoredResult(row.ix, row.seq, engine.result_of(row, self.id)) for row in rows]

    def sequences(self) -> Iterator[tuple[int, int]]:
        """Yield ``sequence`` and ``index`` of what is stored, in the order in which it was stored, without
        reading what it says: a million in a second or two.
        """
        last = 0
        while page := self._engine.store.items.sequences(self.id, after=last):
            yield from page
            last = page[-1][0]

    def contexts(self, positions: Collection[int]) -> dict[int, Any]:
        """Return the contexts of the requests at some positions; of a few hundred at a time."""
        bodies = self._engine.store.items.bodies(self.id, positions)
        return {ix: context_of(body) for ix, body in bodies.items()}

    def futures(self) -> list[Future[Result]]:
        """Return a future for each request, in order, as if this process had submitted them.

        They end when their results are stored, and raise what failed requests failed with. Cancelling one
        leaves the job alone. When the client is stopped, those left over raise ``ClientClosed``. Each takes
        some 2 kB of memory, which :meth:`results` does without.
        """
        self._carry_on()
        return self._engine.futures(self.id, self.total)

    # -- acting ----------------------------------------------------------------------------------------------

    def cancel(self, *, by: str | None = None) -> None:
        """Ask for the job to be cancelled, and return at once; :meth:`wait` sees the end.

        Nothing more is sent, batches under way are cancelled at the provider, and what they have done by
        then, and is paid for, is kept.

        Args:
            by: who acts, for the store's list of acts; by default the user and the machine. So it is below.
        """
        self._engine.store.acts.cancel(JobSelection(ids=(self.id,)), actor(by))
        self._carry_on()
        self._engine.recall(self.id)

    def resume(self, *, by: str | None = None) -> None:
        """Go on with a job that is held, or waits for a budget; and look at any other one now."""
        self._engine.store.acts.resume(JobSelection(ids=(self.id,)), actor(by))
        self._carry_on()
        self._engine.resume(self.id)

    def forget(self, *, by: str | None = None, keep_decision: bool = False) -> None:
        """Delete a finished job, its requests and its results from the store.

        Args:
            by: who does; the user and the machine when ``None``.
            keep_decision: keep by what its route was chosen and what it took, under its key, for the
                dashboard and reports of its output. Of those the latest 2,000 are kept.

        Raises:
            StoreError: it is not finished, so that answers that are paid for could be lost.
        """
        self._engine.store.jobs.forget(self.id, actor(by), keep_decision=keep_decision)

    def set_deadline(self, deadline: Deadline | None, *, by: str | None = None) -> None:
        """Change when the last result has to be there; whoever carries the job on hears of it.

        From then on what would come too late goes in real time, at the price of real time. Without a deadline
        what a batch has not run goes into another batch. An attended job has its time-outs instead.

        Args:
            deadline: such as ``"2h"``, seconds or a ``timedelta`` from now by the clock of the store, or a
                ``datetime`` with its time zone; ``None`` for none.

        Raises:
            ConfigError: it has passed, or is no time.
            JobNotFound: the job was forgotten.
        """
        change_deadline(self._engine.store, self.id, deadline, actor(by))
        self._engine.look_at_acts()

    def set_budget(self, budget: float | str | None, *, by: str | None = None) -> float:
        """Change what may be spent on the job in all; whoever carries it on hears of it.

        A budget below what is spent and reserved already stops nothing that is under way: nothing more is
        sent until something has ended below its reservation, and what never finds room ends with
        ``BudgetExceeded``. What more a raised budget allows is not held back in the budget of a client before
        failed rows of the job, which has ended, are asked again.

        Args:
            budget: USD, or text such as ``"5 USD"``; ``None`` for no limit.

        Returns:
            the USD that are left of it; below 0 where more is spent or reserved already.

        Raises:
            InvalidRequest: it is no amount.
            JobNotFound: the job was forgotten.
        """
        left = change_budget(self._engine.store, self.id, budget, actor(by))
        self._engine.look_at_acts()
        return left

    def retry_failed(
        self, rows: Collection[int] | None = None, *, billed: bool = False, by: str | None = None
    ) -> RetriedRows:
        """Ask failed rows again, and have this process carry the job on.

        A row gets a new result in its place. The old one stays in :meth:`earlier_results`, and what it cost
        stays counted. A row that was, or may have been, paid for is left out, unless it is among ``rows`` or
        ``billed`` is true; then an incident names it. At most 100,000 rows at a time. A deadline that has
        passed holds no longer. A client with a budget holds back in it what the job can spend then; where it
        has less, that is the job's budget from then on, whoever carries the job on, up to the next
        :meth:`set_budget`. What there is no room for ends with ``BudgetExceeded``.

        Args:
            rows: positions of failed requests, from 0; all when ``None``.
            billed: with those that were, or may have been, paid for.

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
            self._engine.look_at_acts()
            self._carry_on()
        return retried

    def earlier_results(
        self, *, after: StoredResult | None = None, limit: int = PAGE_RESULTS
    ) -> list[StoredResult]:
        """Return a page of the results of rows before they were asked again, by their position.

        Args:
            after: the last one that was read; ``None`` begins.
            limit: at most so many.
        """
        begin = (-1, 0) if after is None else (after.index, after.sequence)
        kept = self._engine.store.acts.earlier_results(self.id, after=begin, limit=count_of("limit", limit))
        return [
            StoredResult(one.ix, one.seq, decode_result(one.body, request_id=item_id(self.id, one.ix, None)))
            for one in kept
        ]

    def withdraw(self) -> bool:
        """End the requests of an attended job that were not sent, with no need of its account.

        What was answered stays.

        Returns:
            False while another process carries the job on, or this one does.
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

    # -- inside ----------------------------------------------------------------------------------------------

    @property
    def _engine(self) -> JobsEngine:
        return self._engine_of()

    def _row(self) -> JobRow:
        return stored_job(self._engine.store, self.id)

    def _carry_on(self) -> JobRow:
        """Have this process carry the job on, unless it has ended; return how it stands."""
        row = self._row()
        if row.state is JobState.DONE:
            self._engine.has_ended(self.id)
        else:
            self._engine.carry_on(self.id)
        return row

    def _read_until(self, until: float, read: Callable[[], T]) -> T:
        """Return what ``read`` reads of the store.

        Raises:
            JobTimeout: it has not answered, and the time is over.
        """
        left = None if until == math.inf else max(0.0, until + LAST_LOOK - self._engine.clock.now())
        return self._engine.client_store.read_within(read, left, partial(JobTimeout, job_id=self.id))

    def _until(self, timeout: Duration | None) -> float:
        seconds = seconds_of("timeout", timeout)
        return math.inf if seconds is None else self._engine.clock.now() + seconds

    def _look(self, until: float, *, progress: bool = True) -> _Look:
        seen = self._engine.changes.seen(self.id, progress=progress)
        return _Look(seen, last=self._engine.clock.now() >= until)

    def _ended(self, row: JobRow, until: float) -> JobStatus:
        left = max(0.0, until + LAST_LOOK - self._engine.clock.now())
        self._engine.finish_listening(self.id, min(LAST_CALLBACKS, left))
        return self._read_until(until, partial(self._engine.status_of, row))

    def _await(self, look: _Look, row: JobRow, until: float, shown: Progress | None, *, reads: bool) -> None:
        """Wait for news, once, and show how the job stands; ``reads`` where its results are shown as well.

        Raises:
            JobTimeout: it is too late for that.
        """
        self._engine.check_carried(row)
        self._engine.publish_held(row)
        if look.last:
            note = self._note(row, until)
            raise JobTimeout(
                f"job {self.id} has not ended in time: {row.finished:,} of {row.total:,} requests have "
                f"their results. It goes on in the store {self._engine.store.place}, and nothing is lost: "
                f"wait again, or take it up in any process with smartbatch.job({self.id!r})"
                + (f". It says: {note}" if note else ""),
                job_id=self.id,
            )
        remaining = max(0.0, until - self._engine.clock.now())
        interval = self._engine.refresh_interval(self.id)
        if shown is not None:
            if shown.is_due:
                status = self._read_until(until, partial(self._engine.status_of, row))
                (shown.waits_for if reads else shown.show)(status)
            interval = min(interval, SHOWN_EVERY)
        self._engine.changes.wait_for_change(look.seen, min(remaining, interval))

    def _note(self, row: JobRow, until: float) -> str | None:
        """Return what the job waits for, as far as the store says it soon."""
        try:
            return self._read_until(until, partial(self._engine.status_of, row)).note
        except SmartbatchError:
            return None

    def _shown(self, until: float, progress: bool | None, *, ordered: bool, after: int) -> Iterator[Result]:
        """Yield results, and show how far they are. A reader that goes away leaves what it was shown."""
        begun = after + 1 if ordered else 0
        shown = new_display(progress, self.total, self._engine.clock.now, initial=begun)
        results = self._read(
            self._engine.result_of, until, ordered=ordered, after=after, display=lambda: shown
        )
        try:
            for result in results:
                if shown is not None:
                    shown.advance(result)
                yield result
        except BaseException as error:
            if shown is not None and not isinstance(error, GeneratorExit):  # a finaliser draws nothing
                shown.close()
            if isinstance(error, KeyboardInterrupt):
                raise interrupted(self) from None
            raise
        if shown is not None:
            shown.close()

    def _read(
        self,
        read: Callable[[ResultRow, str], Result],
        until: float,
        *,
        waits: bool = True,
        ordered: bool,
        after: int = -1,
        display: Callable[[], Progress | None] | None = None,
    ) -> Iterator[Result]:
        """Yield results, a page at a time, as :meth:`results` says. After each page, in order:

        1. Something came: go on, up to a gap where the results are read in order and waited for.
        2. Nothing came, and nothing is waited for: the end.
        3. Nothing came, and the job is done: its store is damaged.
        4. Nothing came: wait for a change, up to ``until``.
        5. All are there that were missing: the end, unless rows were asked again meanwhile.

        Args:
            until: monotonic seconds up to which the store, and missing ones, are waited for.
            waits: wait for missing ones; else yield what there is.
            display: returns what shows how the job stands.
        """
        last = after if ordered else 0
        missing, limit = self.total - (after + 1 if ordered else 0), PAGE_RESULTS
        while missing > 0:
            look = self._look(until)
            job, page = self._read_until(until, partial(self._turn, ordered, last, limit, waits=waits))
            before = missing
            for row in page:
                if waits and ordered and row.ix != last + 1:
                    break
                last = row.ix if ordered else row.seq
                missing -= 1
                yield read(row, self.id)
            # while the head is missing it is all that is looked at
            limit = 1 if ordered and missing == before else PAGE_RESULTS
            if missing == before:
                if job is None:
                    return
                self._pause(look, job, until, display and display())
            if missing <= 0 and waits and not ordered:
                missing = self._read_until(until, partial(self._asked_again, last))

    def _asked_again(self, after: int) -> int:
        """Return how many results are still to come for a reader who has as many as there are requests: rows
        that were asked again while it read have one more."""
        row = self._engine.store.jobs.get(self.id)
        if row is None:  # it was forgotten meanwhile
            return 0
        return row.total - row.finished or len(self._page(ordered=False, after=after, limit=PAGE_RESULTS))

    def _turn(
        self, ordered: bool, after: int, limit: int, *, waits: bool
    ) -> tuple[JobRow | None, list[ResultRow]]:
        """Return the job, where its results are waited for, and then a page of them."""
        return self._carry_on() if waits else None, self._page(ordered, after, limit)

    def _page(self, ordered: bool, after: int, limit: int) -> list[ResultRow]:
        items = self._engine.store.items
        return (items.results if ordered else items.fresh)(self.id, after=after, limit=limit)

    def _pause(self, look: _Look, job: JobRow, until: float, display: Progress | None) -> None:
        if job.state is JobState.DONE:
            raise StoreError(
                f"job {self.id} is done, and the store {self._engine.store.place} lacks some of its "
                "results: it was changed by something else; restore it from a copy"
            )
        self._await(look, job, until, display, reads=True)


def interrupted(job: Job) -> Interrupted:
    """Return what an interrupt of the wait for a job raises: it goes on, and what is stored can be read."""
    again = f"smartbatch.job({job.id!r})"
    return Interrupted(
        f"interrupted; job {job.id} is not lost: it goes on with this process, or the next one on its store; "
        f".results of this exception are those that are stored, {again} takes it up again, "
        f"{again}.cancel() cancels it",
        lambda: ResultList(job.results(wait=False)),
    )
