"""Items of jobs that run in real time: claimed in small portions, stored in groups, one commit each.

One thread claims items and submits them, another stores the results, and claims as many items with them where
it is their job's turn. Between the two is the client's ordinary path of a request, with its queue, limits,
retries and checks. An item is in flight in the store before it is submitted, and a result is stored before
anybody sees it. While results cannot be stored nothing is asked: what came is kept in memory, what has not
started is taken back.
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
from smartbatch.events import StoreAvailable, StoreUnavailable
from smartbatch.jobs.claim_turns import ClaimTurns, ItemLimit, RealtimeItems, Turn
from smartbatch.jobs.job_budget import JobBudget, has_batches, short_of_budget
from smartbatch.jobs.payload import decode_params, decode_request, item_id
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
from smartbatch.jobs.verdicts import StoreHealth, UnstoredAnswers, Verdict, not_submitted
from smartbatch.jobs.wiring import JobRuntime
from smartbatch.observe import logs
from smartbatch.types import Result

LONGEST_PAUSE = 10.0
"""Seconds between two tries to store results: they are paid for and held in memory only."""
LAST_PAUSE = 1.0
"""The same once the runner ends."""
IDLE_SECONDS = 30.0
"""How long there is no job until the threads end; the next one starts them again."""
HANDOVER = 1.0
"""Seconds a halt waits for the one submission that may be under way."""

_CLAIMS, _RESULTS = "smartbatch-realtime", "smartbatch-results"
"""The names of the two threads."""


@define(eq=False, slots=False, repr=False)
class RealtimeRunner:
    """Runs the items of jobs of this process that go in real time.

    Args:
        limit_of: returns the limit of a job's items under way, which it shares with the other jobs that have
            it: so many may be sent twice when this process dies.
        is_capped: says whether more items of a job than its limit must never be under way.
        request_timeout: seconds for items of attended jobs that have no time-out of their own.
        done: called with a job's id when no item of it is under way any more.
    """

    _runtime: JobRuntime
    _limit_of: Callable[[JobRow], ItemLimit] = field(kw_only=True)
    _is_capped: Callable[[JobRow], bool] = field(default=lambda _: False, kw_only=True)
    _request_timeout: float | None = field(default=None, kw_only=True)
    _done: Callable[[str], None] = field(kw_only=True)

    def __attrs_post_init__(self) -> None:
        self._store, self._report = self._runtime.store, self._runtime.wiring.report
        self._clock = clock = self._runtime.clock
        self._threads = OwnThreads(clock)
        self._monitor = clock.monitor()
        self._inbox = clock.monitor(self._monitor.lock)
        self._empty = clock.monitor(self._monitor.lock)
        self._turns = ClaimTurns()
        self._jobs = self._turns.jobs
        self._claimed: deque[tuple[RealtimeItems, Sequence[StoredItem]]] = deque()
        self._verdicts: deque[tuple[RealtimeItems, int, Verdict]] = deque()
        self._unstored: dict[RealtimeItems, list[tuple[int, Verdict]]] = {}
        self._health = StoreHealth(clock)
        self._claiming: RealtimeItems | None = None
        self._started: set[str] = set()
        self._submitting = self._halted = self._ending = self._ended = False

    # -- for the supervisor ----------------------------------------------------------------------------------

    def offer(self, lease: JobLease) -> None:
        """Run the items of a job that are due in real time; may be called again while there are any.

        Those that wait for money that batches hold go on once no batch is open.
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
        shared = decode_params(row.params)
        remember(shared.params)
        timeout = self._request_timeout if row.policy.attended else None
        job = RealtimeItems(lease, row, shared, self._limit_of(row), timeout, capped=self._is_capped(row))
        with self._monitor:
            if self._halted:
                return
            self._jobs[lease.job_id] = job
            self._start_locked()
            self._monitor.notify()

    def recall(self, job_id: str) -> None:
        """Take back the items of a job whose calls have not started, also those that are claimed and not
        submitted yet."""
        with self._monitor:
            job = self._jobs.get(job_id)
            futures = [] if job is None else list(job.under_way.values())
            if job is not None:
                job.goes_on = False
        for future in futures:
            if future is not None:
                self._runtime.wiring.drop(future)

    def withdraw(self, job_id: str) -> bool:
        """Ask nothing more of a job, and take back what has not started; return whether nothing of it is
        under way, else ``done`` tells so later."""
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
        """End an item as cancelled; False where its call has started, or the job is not run here."""
        with self._monitor:
            job = self._jobs.get(job_id)
            if job is None:
                return False
            job.cancelled.add(ix)
            future = job.under_way.get(ix)
        if future is None:  # it is not submitted yet, and will not be
            return True
        self._runtime.wiring.drop(future)
        if future.done() and (future.cancelled() or isinstance(future.exception(), RequestCancelled)):
            return True
        with self._monitor:
            job.cancelled.discard(ix)
        return False

    def resume(self, job_id: str) -> None:
        """Claim items of a job at once, although it waited, after its row was read anew."""
        with self._monitor:
            job = self._jobs.get(job_id)
            if job is not None:
                job.wanting, job.goes_on, job.short, job.resumes_at = True, False, False, -math.inf
                job.stop = None  # whoever resumes it wants the rest sent
                self._monitor.notify()

    def forget(self, job_id: str) -> None:
        """Drop a job that this process no longer owns; results of what is under way are discarded."""
        self.recall(job_id)
        with self._monitor:
            self._jobs.pop(job_id, None)
            self._monitor.notify()  # the last one: the threads end after a while
            self._inbox.notify()

    def _lost(self, job: RealtimeItems) -> None:
        """Forget a job whose lease is lost, unless it was claimed again meanwhile."""
        with self._monitor:
            known = self._jobs.get(job.lease.job_id) is job
        if known:
            self.forget(job.lease.job_id)

    @property
    def problem(self) -> str | None:
        """Why no results can be stored, for users; ``None`` where they can."""
        return self._health.problem

    def on_own_thread(self) -> bool:
        """Whether the caller runs on a thread of this class, in an observer of the user's."""
        return self._threads.has_current()

    def halt(self) -> None:
        """Submit nothing more, and take back calls that have not started: the first half of a stop.

        A submission under way is waited for, so that its call can be taken back as well: after this returns,
        no call of a job starts.
        """
        with self._monitor:
            self._halted = True
            self._monitor.notify_all()
            if not self.on_own_thread():
                wait_while(lambda: self._submitting, self._empty, self._clock, HANDOVER)
        self._recall_all()

    def finish(self, grace: float) -> UnstoredAnswers:
        """Store results for up to ``grace`` seconds, and end; return what could not be stored.

        A claim under way is waited for: what it claims was not asked, and is taken back.
        """
        with self._monitor:
            self._ending = True
            self._inbox.notify_all()  # the next try at once, and then every second
            if not self.on_own_thread():
                wait_while(self._works_locked, self._empty, self._clock, grace)
            self._ended = True
            self._inbox.notify_all()
            return self._unstored_locked()

    def _works_locked(self) -> bool:
        return self._claiming is not None or self._turns.under_way.total() > 0

    def _unstored_locked(self) -> UnstoredAnswers:
        kept = [verdict for group in self._unstored.values() for _, verdict in group]
        kept += [verdict for _, _, verdict in self._verdicts]
        answers = [verdict.ended_with for verdict in kept if verdict.is_answer]
        reason = self._health.problem or "the store did not answer in time"
        cost = sum(result.cost or 0.0 for result in answers)
        return UnstoredAnswers(len(answers), cost, max(0, self._turns.under_way.total() - len(kept)), reason)

    # -- claiming --------------------------------------------------------------------------------------------

    def _start_locked(self) -> None:
        for name, loop in {_CLAIMS: self._claim_loop, _RESULTS: self._store_loop}.items():
            if name not in self._started:  # where no thread can be had now, the next offer tries again
                self._threads.start(loop, name)
                self._started.add(name)

    def _idles_locked(self, name: str, monitor: Monitor) -> bool:
        """Wait for something to do; True when there was no job for long, and the thread of that name ends."""
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

    def _next_turn(self) -> tuple[RealtimeItems, Callable[[], Sequence[StoredItem]]] | None:
        """Wait for items to submit, and return their job, and what returns them. The cases, in order:

        1. Items were claimed with results: these, also at the end, where they are taken back.
        2. Results cannot be stored, or as many items are under way as may be: not now; a stored result wakes
           this thread.
        3. It is the turn of a job.
        4. All jobs with items are paused: wait until then, at most.
        """
        with self._monitor:
            while True:
                if self._claimed:
                    job, items = self._claimed.popleft()
                    return job, partial(tuple, items)
                if self._halted:
                    return None
                now = self._clock.now()
                turn = math.inf if self._health.is_stuck else self._turns.following(now)
                if isinstance(turn, Turn):
                    self._claiming = turn.job
                    self._turns.begin(turn)
                    return turn.job, partial(self._claim, turn)
                if turn < math.inf:
                    self._monitor.wait(turn - now)
                elif self._idles_locked(_CLAIMS, self._monitor):
                    return None

    def _claim(self, turn: Turn) -> Sequence[StoredItem]:
        """Claim items of the job whose turn it is. The cases, in order:

        1. The job is cancelled, held or gone, or its model is paused: nothing is claimed.
        2. The claim fails: nothing changed, and the caller tries again later.
        """
        job, items, told = turn.job, list[StoredItem](), True
        try:
            with self._monitor:
                job.goes_on = True  # before its row is read: a recall may come meanwhile
            row = self._store.jobs.get(job.lease.job_id)
            held = row is None or row.state is not JobState.ACTIVE or row.cancel_requested
            if row is None or held or self._runtime.pause_of(row.model) is not None:
                told = row is not None and row.cancel_requested
                with self._monitor:
                    job.goes_on = False
            else:
                if job.budget is None and row.policy.budget is not None:
                    job.budget = JobBudget(self._runtime, job.lease, row)
                items = self._store.items.claim_realtime(job.lease, turn.room)
                job.failures = 0
        finally:
            with self._monitor:
                self._turns.end(turn, items)
                settled = not job.under_way
        if settled and told:
            self._done(job.lease.job_id)  # others of the job may have waited for that
        return items

    def _submit(self, job: RealtimeItems, items: Sequence[StoredItem]) -> None:
        """Submit claimed items, one by one. Those for which the budget has no room end, or wait."""
        refused = self._reserve(job, job.budget, items) if items and job.budget else {}
        for item in items:
            if item.ix in refused:
                self._take_verdict(job, item.ix, refused[item.ix])
            else:
                self._ask_one(job, item)

    def _reserve(
        self, job: RealtimeItems, budget: JobBudget, items: Sequence[StoredItem]
    ) -> dict[int, Verdict]:
        """Reserve what items can cost; return what becomes of those the job's budget has no room for."""
        try:
            refused = budget.reserve(items)
        except BaseException as error:  # nothing is reserved, so nothing is submitted
            for item in items:
                self._take_verdict(job, item.ix, Verdict("unrun", not_submitted(error)))
            raise
        with self._monitor:
            others = len(job.under_way) > len(refused)
            job.short = bool(refused)
        if not refused:
            return {}
        return dict.fromkeys(refused, short_of_budget(self._runtime.store, job.row, refused, others=others))

    def _ask_one(self, job: RealtimeItems, item: StoredItem) -> None:
        """Submit an item. The cases, in order:

        1. It was cancelled, or the job stops, as its first items fail alike: it is not sent.
        2. The runner was halted, results cannot be stored, or the job was recalled, withdrawn or forgotten:
           it stays in the store.
        3. It cannot be submitted (the client is closed, the queue full, …): its error decides.
        4. It is submitted; where 1 or 2 came true meanwhile, its call is taken back.
        """

        def sink(result: Result) -> None:
            with self._monitor:
                stops = job.stop is not None and job.stop.stops_with(result)
                if job.stop is not None and item.ix not in job.cancelled:
                    result = job.stop.unsent(result)
            self._take_verdict(job, item.ix, job.verdict_of(item.ix, result))
            if stops:
                self.recall(job.lease.job_id)

        def not_asked(error: BaseException) -> None:
            verdict = job.verdict_of(item.ix, not_submitted(error, user_id))
            self._take_verdict(job, item.ix, evolve(verdict, asked=False))

        user_id = item_id(job.row.id, item.ix, item.user_id)
        with self._monitor:
            stuck, cancelled = self._health.is_stuck, item.ix in job.cancelled
            stop = None if job.stop is None or job.stop.reason is None else job.stop
            self._submitting = job.sends and not (self._halted or stuck or cancelled or stop)
        if cancelled:
            not_asked(RequestCancelled("the request was cancelled before it was sent", request_id=user_id))
            return
        if stop is not None:
            not_asked(stop.error(user_id))
            return
        if not self._submitting:
            reason = "no answer can be stored at the moment" if stuck else "its job does not go on here now"
            not_asked(ClientClosed(reason, request_id=user_id))
            return
        future: Future[Result] | None = None
        try:
            request = decode_request(item.payload, job.shared, id=user_id, timeout=job.timeout)
            future = self._runtime.wiring.ask(job.item(request, sink, self._runtime.provider_of(job.row)))
        except BaseException as error:
            not_asked(error)
        with self._monitor:
            if future is not None and item.ix in job.under_way:
                job.under_way[item.ix] = future
            self._submitting = False
            late = self._halted or self._health.is_stuck or not job.sends or item.ix in job.cancelled
            self._empty.notify_all()
        if late and future is not None:
            self._runtime.wiring.drop(future)

    def _take_verdict(self, job: RealtimeItems, ix: int, verdict: Verdict) -> None:
        with self._monitor:
            self._verdicts.append((job, ix, verdict))
            if _RESULTS not in self._started:  # it ended in the very moment in which a job was dropped
                self._start_locked()
            self._inbox.notify()
            stuck = verdict.is_answer and self._health.is_stuck
        if stuck:  # here, because the threads of this class may be waiting for the store
            self._recall_all()

    def _recall_all(self) -> None:
        """Take back the items of all jobs whose calls have not started."""
        with self._monitor:
            jobs = list(self._jobs)
        for job_id in jobs:
            self.recall(job_id)

    def _claim_failed(self, job: RealtimeItems, error: BaseException) -> None:
        with self._monitor:
            if self._ended and isinstance(error, StoreError):
                return  # it outlived the grace of a stop, which closed the store: nothing is wrong here
            job.failures += 1
            job.wanting = True
            first = job.failures == 1
            job.resumes_at = self._clock.now() + backoff(
                job.failures, self._runtime.rng, first=1.0, longest=LONGEST_PAUSE
            )
        if first:
            self._report(job.lease.job_id, error)

    # -- storing ---------------------------------------------------------------------------------------------

    def _store_loop(self) -> None:
        tries = 0
        while self._gather(tries):
            for job, group in list(self._unstored.items()):
                with self._monitor:
                    self._health.begins()
                try:
                    self._store_group(job, group)
                except BaseException as error:  # the results are paid for: kept and stored later
                    self._not_stored(job, error, first=not tries)
            if self._unstored:
                tries += 1
            else:
                tries = 0
                self._all_stored()

    def _gather(self, tries: int) -> bool:
        """Add verdicts to what is to be stored: those that came while a group was stored are the next one.
        False at the end."""
        with self._inbox:
            if tries and not self._ended:
                longest = LAST_PAUSE if self._ending else LONGEST_PAUSE
                self._inbox.wait(backoff(tries, self._runtime.rng, first=0.5, longest=longest))
            while not self._verdicts and not self._unstored:
                if self._ended or self._idles_locked(_RESULTS, self._inbox):
                    return False
            if self._ended and tries:
                return False
            while self._verdicts:
                job, ix, verdict = self._verdicts.popleft()
                self._unstored.setdefault(job, []).append((ix, verdict))
            return True

    def _not_stored(self, job: RealtimeItems, error: BaseException, *, first: bool) -> None:
        """Ask nothing more while the store cannot be written, and tell it once."""
        with self._monitor:
            before = self._health.problem
            self._health.ends(error)
            problem, unstored = self._health.problem, self._unstored_locked()
            if self._ended:  # what is not stored was told of at the end
                return
        if first:
            self._report(job.lease.job_id, error)
        if problem is not None and before is None:
            self._runtime.tell(
                StoreUnavailable(at=self._clock.now(), reason=problem, unstored=unstored.answers)
            )
            logs.alarm(
                f"{problem}. Nothing more is asked until the answers that came are stored: "
                f"{unstored.answers:,} are kept in memory, and {unstored.awaited:,} requests were under way"
            )
        if problem is not None:
            self._recall_all()

    def _all_stored(self) -> None:
        with self._monitor:
            seconds = self._health.recovers()
            self._monitor.notify()
        if seconds is not None:
            self._runtime.tell(StoreAvailable(at=self._clock.now(), seconds=seconds))

    def _store_group(self, job: RealtimeItems, group: Sequence[tuple[int, Verdict]]) -> None:
        """Store results of one job in one transaction. The cases, in order:

        1. The store fails: the error is raised, nothing changed, and the same group is stored later.
        2. Another process owns the job now: its items are that one's, and are forgotten here.
        3. They are stored: that is told. What fails in telling is reported, and nothing is stored again.

        In 2 and 3 the items are no longer under way. Then the job is asked for more items: at once where some
        are to run again or there may be room in its budget, after the longest wait that a verdict names. It
        is done when it has neither items under way nor more to claim.
        """
        models = {verdict.ended_with.model or job.row.model for _, verdict in group}
        parts, wall = {model: model.partition(":") for model in models}, self._clock.wall()
        standard = {model: self._runtime.prices.rates(at[0], at[2], wall) for model, at in parts.items()}
        results = [
            verdict.result(ix, standard[verdict.ended_with.model or job.row.model]) for ix, verdict in group
        ]
        verdicts = [verdict for _, verdict in group]
        final = [result.final for result in results]
        note = job.note_of(verdicts)
        wait = max(verdict.wait for verdict in verdicts)
        if wait:  # before they can be claimed again, and before a user can resume the job
            with self._monitor:
                job.resumes_at = max(job.resumes_at, self._clock.now() + wait)
        turn = self._turn_with(job, len(group)) if all(final) and not wait and note is None else None
        claimed: Sequence[StoredItem] | None = None
        room = any(final)  # there may be money for others now
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
            room = self._tell_stored(job, stored, results) or room
        finally:
            if turn is not None:
                self._end_turn(turn, claimed)
        with self._monitor:
            for result in results:
                job.under_way.pop(result.ix, None)
            self._turns.stored(job, len(results))
            del self._unstored[job]
            self._health.ends(None)
            if not all(final):
                job.wanting = True
            if job.short and room:
                job.short, job.wanting, job.resumes_at = False, True, -math.inf
            settled = job.settled
            self._monitor.notify()
            self._empty.notify_all()
        if settled:
            self._done(job.lease.job_id)

    def _tell_stored(self, job: RealtimeItems, stored: StoredResults, results: Sequence[NewResult]) -> bool:
        """Tell how a job stands after results were stored; return whether its batches left money. What fails
        is reported: the results are stored, and must not be stored again.
        """
        try:
            self._store.leases.tell_counts(job.lease.job_id, stored.counts)
            if any(result.final for result in results):
                job.row = self._runtime.tell_progress(job.row)
            elif job.short and len(job.under_way) == len(results):  # only batches could leave money
                return not has_batches(self._store, job.lease.job_id)
        except Exception as error:
            self._report(job.lease.job_id, error)
        return False

    def _turn_with(self, job: RealtimeItems, ended: int) -> Turn | None:
        """Return how many items of a job are claimed in the transaction that stores ``ended`` results of it;
        ``None`` where another job's turn comes next, or the job's row has to be read first."""
        with self._monitor:
            if self._halted or self._health.is_stuck or not job.goes_on or job.budget is not None:
                return None
            turn = self._turns.following(self._clock.now(), ended=job, count=ended)
            if not isinstance(turn, Turn) or turn.job is not job:
                return None
            self._turns.begin(turn)
            return turn

    def _end_turn(self, turn: Turn, items: Sequence[StoredItem] | None) -> None:
        """Have items submitted that were claimed along with results, or take them back at the end.

        Args:
            items: ``None`` where the claim failed.
        """
        job = turn.job
        with self._monitor:
            self._turns.end(turn, items or ())
            job.wanting = job.wanting or items is None
            halted = self._halted
            if items and not halted:
                self._claimed.append((job, items))
                self._monitor.notify()
        if halted:
            unsent = not_submitted(ClientClosed("the client was stopped before the request was sent"))
            for item in items or ():
                self._take_verdict(job, item.ix, Verdict("unrun", unsent))
