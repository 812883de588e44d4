"""Sends job items in real time: claims them in small portions and stores their results in groups.

One thread claims items and submits them. A second thread stores each group of results in one transaction,
which may also claim new items for the same job. Items pass through the client like any other request, with
its queue, limits, retries and checks. The store marks an item as in flight before it is submitted, and a
result is stored before any caller receives it. While results cannot be stored, nothing is sent.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

from attrs import define, evolve, field

from smartbatch._clock import Monitor
from smartbatch.core.limits.cooldown import backoff
from smartbatch.core.preparation.fingerprint import remember
from smartbatch.errors import ClientClosed, RequestCancelled, StoreError
from smartbatch.events import StoreAvailable
from smartbatch.jobs.job_budget import JobBudget, has_batches
from smartbatch.jobs.payload import decode_params, decode_request, item_id
from smartbatch.jobs.realtime_items import (
    ClaimTurns,
    ItemLimit,
    RealtimeJob,
    StoreHealth,
    Turn,
    UnstoredAnswers,
    Verdict,
    not_submitted,
    results_of,
    short_of_budget,
)
from smartbatch.jobs.records import (
    JobLease,
    JobRow,
    JobState,
    LeaseLost,
    NewResult,
    StoredItem,
    StoredResults,
)
from smartbatch.jobs.threads import OwnThreads, wait_while
from smartbatch.jobs.wiring import JobRuntime
from smartbatch.types import Result

MAX_STORE_PAUSE_SECONDS = 10.0
"""Longest pause between tries to store results, which are paid for and exist only in memory."""
MAX_LAST_PAUSE_SECONDS = 1.0
"""The longest such pause while the runner is closing."""
IDLE_SECONDS = 30.0
"""The threads end after this long without a job. The next job starts them again."""
HALT_WAIT_SECONDS = 1.0
"""Time to wait for a submission in progress."""

_CLAIMS, _RESULTS = "smartbatch-realtime", "smartbatch-results"


@define(eq=False, slots=False, repr=False)
class RealtimeRunner:
    """Sends the real-time items of this process's jobs."""

    _runtime: JobRuntime
    # limits a job's items in flight, possibly together with other jobs; if this process dies, up to that many
    # may be sent twice
    _limit_of: Callable[[JobRow], ItemLimit] = field(kw_only=True)
    # true if a job must never exceed that limit
    _is_capped: Callable[[JobRow], bool] = field(default=lambda _: False, kw_only=True)
    _request_timeout: float | None = field(default=None, kw_only=True)  # seconds, for items of attended jobs
    # called with a job's id when none of its items is in flight
    _done: Callable[[str], None] = field(kw_only=True)

    def __attrs_post_init__(self) -> None:
        self._store, self._wiring = self._runtime.store, self._runtime.wiring
        self._clock = clock = self._runtime.clock
        self._threads = OwnThreads(clock)
        self._monitor = clock.monitor()
        self._inbox = clock.monitor(self._monitor.lock)
        self._empty = clock.monitor(self._monitor.lock)
        self._turns = ClaimTurns()
        self._jobs = self._turns.jobs
        self._claimed: deque[tuple[RealtimeJob, Sequence[StoredItem]]] = deque()
        self._verdicts: deque[tuple[RealtimeJob, int, Verdict]] = deque()
        self._unstored: dict[RealtimeJob, list[tuple[int, Verdict]]] = {}
        self._health = StoreHealth(clock)
        self._claiming: RealtimeJob | None = None
        self._started: set[str] = set()
        self._submitting = self._halted = self._closing = self._closed = False

    # -- for the supervisor ----------------------------------------------------------------------------------

    def offer(self, lease: JobLease) -> None:
        """Send the real-time items of a job; may be called again while items remain.

        Items that are waiting for budget reserved for batches continue when no batch is open.
        """
        with self._monitor:
            known = self._jobs.get(lease.job_id)
            short = known is not None and known.short
        freed = short and not has_batches(self._store, lease.job_id)
        with self._monitor:
            known = self._jobs.get(lease.job_id)
            if known is not None and known.lease == lease:
                known.wanting, known.withdrawn = True, False
                if freed:
                    known.short, known.resumes_at = False, -math.inf
                self._start_locked()
                self._monitor.notify()
                return
        row = self._store.jobs.get(lease.job_id)
        if row is None:
            return
        shared = decode_params(row.params, self._store.files.folder(row.id))
        remember(shared.params)
        timeout = self._request_timeout if row.policy.attended else None
        job = RealtimeJob(lease, row, shared, self._limit_of(row), timeout, capped=self._is_capped(row))
        with self._monitor:
            if self._halted:
                return
            self._jobs[lease.job_id] = job
            self._start_locked()
            self._monitor.notify()

    def recall(self, job_id: str) -> None:
        """Cancel the unstarted calls of a job, and submit none of its claimed items."""
        with self._monitor:
            job = self._jobs.get(job_id)
            futures = [] if job is None else list(job.under_way.values())
            if job is not None:
                job.is_current = False
        for future in futures:
            if future is not None:
                self._wiring.drop(future)

    def withdraw(self, job_id: str) -> bool:
        """Send no more items of a job, and recall its calls. Return true if none of its items is in flight.

        Otherwise ``done`` is called later.
        """
        with self._monitor:
            job = self._jobs.get(job_id)
            if job is None:
                return True
            job.withdrawn = True
            if self._claiming is not job and job.settled:
                return True
        self.recall(job_id)
        return False

    def cancel(self, job_id: str, ix: int) -> bool:
        """Cancel an item. Return false if its call has started or this process does not run the job."""
        with self._monitor:
            job = self._jobs.get(job_id)
            if job is None:
                return False
            job.cancelled.add(ix)
            future = job.under_way.get(ix)
        if future is None:  # it has not been submitted
            return True
        self._wiring.drop(future)
        if future.done() and (future.cancelled() or isinstance(future.exception(), RequestCancelled)):
            return True
        with self._monitor:
            job.cancelled.discard(ix)
        return False

    def resume(self, job_id: str) -> None:
        """Claim items of a paused job immediately. Its row must have been reread."""
        with self._monitor:
            job = self._jobs.get(job_id)
            if job is not None:
                job.wanting, job.is_current, job.short, job.resumes_at = True, False, False, -math.inf
                job.stop = None  # resuming the job means sending the rest
                self._monitor.notify()

    def forget(self, job_id: str) -> None:
        """Drop a job that this process no longer owns. Results of items in flight are discarded."""
        self.recall(job_id)
        with self._monitor:
            self._jobs.pop(job_id, None)
            self._monitor.notify()  # after the last job, the threads end
            self._inbox.notify()

    def _lost(self, job: RealtimeJob) -> None:
        """Drop a job whose lease is lost, unless it was claimed again."""
        with self._monitor:
            known = self._jobs.get(job.lease.job_id) is job
        if known:
            self.forget(job.lease.job_id)

    @property
    def problem(self) -> str | None:
        """The reason why results cannot be stored, for users."""
        return self._health.problem

    def on_own_thread(self) -> bool:
        """Return true if the caller is a user's observer running on a thread of this class."""
        return self._threads.has_current()

    def halt(self) -> None:
        """First half of a stop: submit nothing more and recall all calls.

        This waits for a submission in progress, so that its call can be recalled too. After it returns, no
        call of a job starts.
        """
        with self._monitor:
            self._halted = True
            self._monitor.notify_all()
            if not self.on_own_thread():
                wait_while(lambda: self._submitting, self._empty, self._clock, HALT_WAIT_SECONDS)
        self._recall_all()

    def finish(self, grace: float) -> UnstoredAnswers:
        """Store results for up to ``grace`` seconds, close, and return the answers that could not be stored.

        This waits for a claim in progress; the claimed items are not sent.
        """
        with self._monitor:
            self._closing = True
            self._inbox.notify_all()  # try now, and then every second
            if not self.on_own_thread():
                wait_while(self._works_locked, self._empty, self._clock, grace)
            self._closed = True
            self._inbox.notify_all()
            return self._unstored_locked()

    def _works_locked(self) -> bool:
        return self._claiming is not None or self._turns.under_way.total() > 0

    def _unstored_locked(self) -> UnstoredAnswers:
        unstored = [verdict for group in self._unstored.values() for _, verdict in group]
        unstored += [verdict for _, _, verdict in self._verdicts]
        reason = self._health.problem or "the store did not answer in time"
        return UnstoredAnswers.of(unstored, self._turns.under_way.total(), reason)

    # -- claiming --------------------------------------------------------------------------------------------

    def _start_locked(self) -> None:
        for name, loop in {_CLAIMS: self._claim_loop, _RESULTS: self._store_loop}.items():
            if name not in self._started:  # if no thread is available, the next offer tries again
                self._threads.start(loop, name)
                self._started.add(name)

    def _idles_locked(self, name: str, monitor: Monitor) -> bool:
        """Wait for work. Return true if the thread has been idle long enough to end."""
        idle = not self._jobs and not self._turns.under_way.total()
        if monitor.wait(IDLE_SECONDS if idle else None, idle=idle) or self._jobs or self._verdicts:
            return False
        self._started.discard(name)
        return True

    def _claim_loop(self) -> None:
        while (turn := self._next_turn()) is not None:
            job, items_of = turn
            try:
                self._submit(job, items_of())
            except LeaseLost:
                self._lost(job)
            except BaseException as error:  # nothing may end this thread
                self._claim_failed(job, error)
            with self._monitor:
                self._claiming = None
                self._empty.notify_all()
                given_back = job.withdrawn and job.settled
            if given_back:
                self._done(job.lease.job_id)

    def _next_turn(self) -> tuple[RealtimeJob, Callable[[], Sequence[StoredItem]]] | None:
        """Wait for items to submit. Return their job and a function that returns the items."""
        with self._monitor:
            while True:
                # 1. items were claimed together with results: submit or, after a halt, recall them
                if self._claimed:
                    job, items = self._claimed.popleft()
                    return job, partial(tuple, items)
                if self._halted:
                    return None
                # 2. results cannot be stored, or too many items are in flight: wait until a result is stored
                now = self._clock.now()
                turn = math.inf if self._health.is_stuck else self._turns.following(now)
                # 3. a job has its turn: claim its items
                if isinstance(turn, Turn):
                    self._claiming = turn.job
                    self._turns.begin(turn)
                    return turn.job, partial(self._claim, turn)
                # 4. all jobs with items are paused: wait for the first one to resume
                if turn < math.inf:
                    self._monitor.wait(turn - now)
                elif self._idles_locked(_CLAIMS, self._monitor):
                    return None

    def _claim(self, turn: Turn) -> Sequence[StoredItem]:
        """Claim items of the job that has its turn. A failed claim changes nothing and is retried."""
        job, items, publishes_done = turn.job, list[StoredItem](), True
        try:
            with self._monitor:
                job.is_current = True  # before the row is read, because a recall may arrive during the read
            row = self._store.jobs.get(job.lease.job_id)
            held = row is None or row.state is not JobState.ACTIVE or row.cancel_requested
            if row is None or held or self._runtime.pause_of(row.model) is not None:
                publishes_done = row is not None and row.cancel_requested
                with self._monitor:
                    job.is_current = False
            else:
                if job.budget is None and row.policy.budget is not None:
                    job.budget = JobBudget(self._runtime, job.lease, row)
                items = self._store.items.claim_realtime(job.lease, turn.room)
                job.failures = 0
        finally:
            with self._monitor:
                self._turns.complete(turn, items)
                settled = not job.under_way
        if settled and publishes_done:
            self._done(job.lease.job_id)  # other parts of the job may have waited for this
        return items

    def _submit(self, job: RealtimeJob, items: Sequence[StoredItem]) -> None:
        """Items that exceed the budget fail or wait."""
        refused = self._reserve(job, job.budget, items) if items and job.budget else {}
        for item in items:
            if item.ix in refused:
                self._take_verdict(job, item.ix, refused[item.ix])
            else:
                self._submit_one(job, item)

    def _reserve(
        self, job: RealtimeJob, budget: JobBudget, items: Sequence[StoredItem]
    ) -> dict[int, Verdict]:
        """Reserve the maximum cost of items, and return verdicts on the items that exceed the budget."""
        try:
            refused = budget.reserve(items)
        except BaseException as error:  # nothing was reserved, so nothing is submitted
            for item in items:
                self._take_verdict(job, item.ix, Verdict("unrun", not_submitted(error)))
            raise
        with self._monitor:
            others = len(job.under_way) > len(refused)
            job.short = bool(refused)
        if not refused:
            return {}
        return dict.fromkeys(refused, short_of_budget(self._store, job.row, refused, others=others))

    def _submit_one(self, job: RealtimeJob, item: StoredItem) -> None:
        def sink(result: Result) -> None:
            with self._monitor:
                stops = job.stop is not None and job.stop.stops_with(result)
                if job.stop is not None and item.ix not in job.cancelled:
                    result = job.stop.unsent(result)
            self._take_verdict(job, item.ix, job.verdict_of(item.ix, result))
            if stops:
                self.recall(job.lease.job_id)

        def not_sent(error: BaseException) -> None:
            verdict = job.verdict_of(item.ix, not_submitted(error, user_id))
            self._take_verdict(job, item.ix, evolve(verdict, asked=False))

        user_id = item_id(job.row.id, item.ix, item.user_id)
        with self._monitor:
            stuck, cancelled = self._health.is_stuck, item.ix in job.cancelled
            stop = None if job.stop is None or job.stop.reason is None else job.stop
            self._submitting = job.sends and not (self._halted or stuck or cancelled or stop)
        # 1. the item was cancelled
        if cancelled:
            not_sent(RequestCancelled("the request was cancelled before it was sent", request_id=user_id))
            return
        # 2. the job stopped because its first items failed with the same error
        if stop is not None:
            not_sent(stop.error(user_id))
            return
        # 3. the runner was halted, results cannot be stored, or the job was recalled, withdrawn or dropped:
        # the item stays in the store
        if not self._submitting:
            reason = (
                "no answer can be stored at the moment" if stuck else "its job is not running in this process"
            )
            not_sent(ClientClosed(reason, request_id=user_id))
            return
        # 4. submit the item; an error, such as a closed client or a full queue, becomes its verdict
        future: Future[Result] | None = None
        try:
            request = decode_request(item.payload, job.shared, id=user_id, timeout=job.timeout)
            future = self._wiring.send(job.item(request, sink, self._runtime.provider_of(job.row)))
        except BaseException as error:
            not_sent(error)
        with self._monitor:
            if future is not None and item.ix in job.under_way:
                job.under_way[item.ix] = future
            self._submitting = False
            late = self._halted or self._health.is_stuck or not job.sends or item.ix in job.cancelled
            self._empty.notify_all()
        # 5. one of 1 to 3 became true in the meantime: recall the call
        if late and future is not None:
            self._wiring.drop(future)

    def _take_verdict(self, job: RealtimeJob, ix: int, verdict: Verdict) -> None:
        with self._monitor:
            self._verdicts.append((job, ix, verdict))
            if _RESULTS not in self._started:  # the thread ended when a job was dropped
                self._start_locked()
            self._inbox.notify()
            stuck = verdict.is_answer and self._health.is_stuck
        if stuck:  # on this thread, because the threads of this class may be waiting for the store
            self._recall_all()

    def _recall_all(self) -> None:
        with self._monitor:
            jobs = list(self._jobs)
        for job_id in jobs:
            self.recall(job_id)

    def _claim_failed(self, job: RealtimeJob, error: BaseException) -> None:
        with self._monitor:
            if self._closed and isinstance(error, StoreError):
                return  # not an error: the thread outlived the grace period of a stop, which closed the store
            job.failures += 1
            job.wanting = True
            first = job.failures == 1
            job.resumes_at = self._clock.now() + backoff(
                job.failures, self._runtime.rng, first=1.0, longest=MAX_STORE_PAUSE_SECONDS
            )
        if first:
            self._wiring.report(job.lease.job_id, error)

    # -- storing ---------------------------------------------------------------------------------------------

    def _store_loop(self) -> None:
        tries = 0
        while self._gather(tries):
            for job, group in list(self._unstored.items()):
                with self._monitor:
                    self._health.begin_write()
                try:
                    self._store_group(job, group)
                except BaseException as error:  # the results are paid for, so they are stored later
                    self._store_failed(job, error, first=not tries)
            if self._unstored:
                tries += 1
            else:
                tries = 0
                self._all_stored()

    def _gather(self, tries: int) -> bool:
        """Collect verdicts that arrived while the last group was stored. Return false to end the thread."""
        with self._inbox:
            if tries and not self._closed:
                longest = MAX_LAST_PAUSE_SECONDS if self._closing else MAX_STORE_PAUSE_SECONDS
                self._inbox.wait(backoff(tries, self._runtime.rng, first=0.5, longest=longest))
            while not self._verdicts and not self._unstored:
                if self._closed or self._idles_locked(_RESULTS, self._inbox):
                    return False
            if self._closed and tries:
                return False
            while self._verdicts:
                job, ix, verdict = self._verdicts.popleft()
                self._unstored.setdefault(job, []).append((ix, verdict))
            return True

    def _store_failed(self, job: RealtimeJob, error: BaseException, *, first: bool) -> None:
        """Send nothing more while the store cannot be written, and report this once."""
        with self._monitor:
            before = self._health.problem
            self._health.complete_write(error)
            problem, unstored = self._health.problem, self._unstored_locked()
            if self._closed:  # unstored results were reported when the runner closed
                return
        if first:
            self._wiring.report(job.lease.job_id, error)
        if problem is not None and before is None:
            unstored.report_delay(self._runtime.publish_event, self._clock.now())
        if problem is not None:
            self._recall_all()

    def _all_stored(self) -> None:
        with self._monitor:
            seconds = self._health.recover()
            self._monitor.notify()
        if seconds is not None:
            self._runtime.publish_event(StoreAvailable(at=self._clock.now(), seconds=seconds))

    def _store_group(self, job: RealtimeJob, group: Sequence[tuple[int, Verdict]]) -> None:
        """Store results of one job in one transaction, which may also claim further items.

        If the store fails, nothing changes, and the same group is stored later. If another process owns the
        job, the items belong to that process and are dropped. An error while results are published is only
        reported, because results must not be stored twice.
        """
        keep = partial(self._store.files.keep, (job.row.id,))
        results = results_of(job.row, group, self._runtime.prices, self._clock.wall(), keep)
        verdicts = [verdict for _, verdict in group]
        final = [result.final for result in results]
        note = job.note_of(verdicts)
        wait = max(verdict.wait for verdict in verdicts)
        if wait:  # before the items can be claimed again, and before a user can resume the job
            with self._monitor:
                job.resumes_at = max(job.resumes_at, self._clock.now() + wait)
        turn = self._turn_with(job, len(group)) if all(final) and not wait and note is None else None
        claimed: Sequence[StoredItem] | None = None
        room = any(final)  # budget may be available for other items
        try:
            at = self._runtime.wall()
            if job.budget is None:
                claim = 0 if turn is None else turn.room
                stored = self._store.items.answer(job.lease, results, at=at, note=note, claim=claim)
            else:
                stored = job.budget.store(results, at=at, note=note)
            claimed = stored.claimed
        except LeaseLost:
            self._lost(job)
        else:
            if note is not None:
                job.noted = note.text is not None and not note.hold
            room = self._publish_stored(job, stored, results) or room
        finally:
            if turn is not None:
                self._submit_claimed(turn, claimed)
        # the items are no longer in flight; claim more if items must run again or budget is available
        with self._monitor:
            for result in results:
                job.under_way.pop(result.ix, None)
            self._turns.free(job, len(results))
            del self._unstored[job]
            self._health.complete_write(None)
            if not all(final):
                job.wanting = True
            if job.short and room:
                job.short, job.wanting, job.resumes_at = False, True, -math.inf
            settled = job.settled
            self._monitor.notify()
            self._empty.notify_all()
        if settled:
            self._done(job.lease.job_id)

    def _publish_stored(self, job: RealtimeJob, stored: StoredResults, results: Sequence[NewResult]) -> bool:
        """Publish a job's progress after results were stored. Return true if its batches left budget unused.

        Errors are only reported, because the results must not be stored again.
        """
        try:
            self._store.leases.report_counts(job.lease.job_id, stored.counts)
            if any(result.final for result in results):
                job.row = self._runtime.publish_progress(job.row)
            elif job.short and len(job.under_way) == len(results):  # only batches can leave budget unused
                return not has_batches(self._store, job.lease.job_id)
        except Exception as error:
            self._wiring.report(job.lease.job_id, error)
        return False

    def _turn_with(self, job: RealtimeJob, ended: int) -> Turn | None:
        """Return the turn for the transaction that stores ``ended`` results of a job.

        Returns ``None`` if another job has the next turn or the job's row must be read first.
        """
        with self._monitor:
            if self._halted or self._health.is_stuck or not job.is_current or job.budget is not None:
                return None
            turn = self._turns.following(self._clock.now(), ended=job, count=ended)
            if not isinstance(turn, Turn) or turn.job is not job:
                return None
            self._turns.begin(turn)
            return turn

    def _submit_claimed(self, turn: Turn, items: Sequence[StoredItem] | None) -> None:
        """Submit claimed items, or recall them after a halt. ``items`` is ``None`` if the claim failed."""
        job = turn.job
        with self._monitor:
            self._turns.complete(turn, items or ())
            job.wanting = job.wanting or items is None
            halted = self._halted
            if items and not halted:
                self._claimed.append((job, items))
                self._monitor.notify()
        if halted:
            unsent = not_submitted(ClientClosed("the client was stopped before the request was sent"))
            for item in items or ():
                self._take_verdict(job, item.ix, Verdict("unrun", unsent))
