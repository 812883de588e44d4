"""Items that are asked alone, in real time: claimed in small portions, answered in groups, one commit each.

One thread claims and submits, another stores what came. Between the two is the client's ordinary way to an
answer, with its queue, limits, retries and checks. Nothing is asked before it is marked ``ASKING`` on disk,
and nobody hears of an answer before it is stored.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from random import Random

from smartbatch._clock import Clock
from smartbatch.core.limits.backoff import backoff
from smartbatch.core.limits.budget import Budget
from smartbatch.errors import SmartbatchError
from smartbatch.events import Event
from smartbatch.jobs.item_outcomes import Verdict, item_id
from smartbatch.jobs.payload import decode_params, decode_request
from smartbatch.jobs.realtime_budget import JobBudget, RealtimeItems, short_of_money
from smartbatch.jobs.records import JobLease, JobRow, JobState, NewResult
from smartbatch.jobs.steps.context import report
from smartbatch.jobs.store.base import Direct, LeaseLost, Store
from smartbatch.types import Request, Result

__all__ = ["Ask", "RealtimeRunner"]

PORTION = 100
"""Items claimed in one transaction."""
LONGEST_PAUSE = 10.0
"""Seconds between two tries to store answers: they are paid for and held in memory only."""

Ask = Callable[[JobRow, Request, Callable[[Result], None], Budget | None], "Future[Result]"]
"""Submits a request of a job; its third argument gets the result, whatever comes of it, the last one pays."""


class RealtimeRunner:
    """Asks the ``DIRECT`` items of the jobs this process owns.

    Args:
        store: where the jobs are.
        ask: the client's way to an answer.
        till: makes what a job with a budget spends from; ``None`` for one without.
        drop: cancels a request whose call has not started.
        limit: most items that are claimed and not yet answered and stored: so many may have been asked when
            this process dies.
        ahead: the same for attended jobs, whose items may share calls and answers as those of a list do.
        done: called with a job's id when the last item that was claimed has been stored.
        tell: takes events.
        report: told of what went wrong.
        clock, rng: time and waiting; dice for pauses.
    """

    def __init__(
        self,
        store: Store,
        *,
        ask: Ask,
        till: Callable[[JobLease, JobRow], JobBudget | None] = lambda _lease, _row: None,
        drop: Callable[[Future[Result]], None],
        limit: int,
        ahead: int,
        done: Callable[[str], None],
        tell: Callable[[Event], None],
        report: Callable[[str | None, BaseException], None],
        clock: Clock,
        rng: Random,
    ) -> None:
        self._store = store
        self._ask = ask
        self._till = till
        self._drop = drop
        self._limit = limit
        self._ahead = ahead
        self._done = done
        self._tell = tell
        self._report = report
        self._clock = clock
        self._rng = rng
        self._monitor = clock.monitor()
        self._inbox = clock.monitor(self._monitor.lock)
        self._empty = clock.monitor(self._monitor.lock)
        self._jobs: dict[str, RealtimeItems] = {}
        self._turns: deque[str] = deque()
        self._answers: deque[tuple[RealtimeItems, int, Verdict]] = deque()
        self._mine = threading.local()
        self._out = 0
        self._started: set[str] = set()
        self._halted = self._ended = False

    # -- for the supervisor
    # --------------------------------------------------------------------------------------

    def offer(self, lease: JobLease) -> None:
        """Ask the items of a job; called again and again while there are any."""
        with self._monitor:
            known = self._jobs.get(lease.job_id)
            if known is not None and known.lease == lease:
                known.wanting = True
                self._monitor.notify()
                return
        row = self._store.job(lease.job_id)
        if row is None:
            return
        job = RealtimeItems(lease, row, decode_params(row.params))
        with self._monitor:
            if self._halted:
                return
            self._jobs[lease.job_id] = job
            self._turns.append(lease.job_id)
            self._start_locked()
            self._monitor.notify()

    def recall(self, job_id: str) -> None:
        """Take back what has not started."""
        with self._monitor:
            job = self._jobs.get(job_id)
            futures = [] if job is None else [future for future in job.out.values() if future is not None]
        for future in futures:
            self._drop(future)

    def resume(self, job_id: str) -> None:
        """Ask again at once, although the job was paused."""
        with self._monitor:
            job = self._jobs.get(job_id)
            if job is not None:
                job.wanting, job.resumes_at = True, -math.inf
                self._monitor.notify()

    def forget(self, job_id: str) -> None:
        """The job is no longer this process's: what is under way is for nobody."""
        self.recall(job_id)
        with self._monitor:
            self._jobs.pop(job_id, None)

    def _lost(self, job: RealtimeItems) -> None:
        """Forget a job, unless it was taken anew meanwhile."""
        with self._monitor:
            known = self._jobs.get(job.lease.job_id) is job
        if known:
            self.forget(job.lease.job_id)

    def on_own_thread(self) -> bool:
        """Whether the caller runs on a thread of this class, in an observer of the user's."""
        return getattr(self._mine, "here", False)

    def halt(self) -> None:
        """Claim nothing more, and take back what has not started; the first half of a stop."""
        with self._monitor:
            self._halted = True
            self._monitor.notify_all()
            jobs = list(self._jobs)
        for job_id in jobs:
            self.recall(job_id)

    def finish(self, grace: float) -> int:
        """Store what came, within ``grace`` seconds, and end; return how many answers could not be stored."""
        until = self._clock.now() + grace
        with self._monitor:
            while self._out and not self.on_own_thread():
                remaining = until - self._clock.now()
                if remaining <= 0:
                    break
                self._empty.wait(remaining)
            self._ended = True
            self._inbox.notify_all()
            return self._out

    # -- asking ----------------------------------------------------------------------------------------------

    def _start_locked(self) -> None:
        for target, name in ((self._asking, "smartbatch-asker"), (self._storing, "smartbatch-clerk")):
            if name in self._started:
                continue
            self._clock.spawned()
            try:
                threading.Thread(target=target, name=name, daemon=True).start()
            except RuntimeError:  # no thread can be had now; the next offer tries again
                self._clock.unspawned()
                raise
            self._started.add(name)

    def _asking(self) -> None:
        self._clock.began()
        self._mine.here = True
        try:
            while (turn := self._next_turn()) is not None:
                job, room = turn
                try:
                    self._ask_some(job, room)
                except LeaseLost:
                    self._lost(job)
                except BaseException as error:  # nothing may end this thread
                    self._stumbled(job, error)
        finally:
            self._clock.ended()

    def _next_turn(self) -> tuple[RealtimeItems, int] | None:
        """Wait until there is room for a further item and a job that has one."""
        with self._monitor:
            while not self._halted:
                soonest = math.inf
                for _ in range(len(self._turns)):
                    job_id = self._turns.popleft()
                    job = self._jobs.get(job_id)
                    if job is None:
                        continue
                    self._turns.append(job_id)
                    room = (self._ahead if job.attended else self._limit) - self._out
                    if room <= 0:
                        continue
                    if job.wanting and job.resumes_at <= self._clock.now():
                        return job, min(room, PORTION)
                    if job.wanting:
                        soonest = min(soonest, job.resumes_at)
                self._monitor.wait(None if soonest == math.inf else soonest - self._clock.now())
            return None

    def _ask_some(self, job: RealtimeItems, room: int) -> None:
        with self._monitor:
            job.wanting = False  # before the claim: an offer that comes after it is a new one
        row = self._store.job(job.lease.job_id)
        if row is None or row.state is not JobState.ACTIVE or row.cancel_requested:
            with self._monitor:
                settled = not job.out
            if row is not None and row.cancel_requested and settled:
                self._done(job.lease.job_id)
            return
        job.till = job.till or self._till(job.lease, row)
        items = self._store.claim_direct(job.lease, room)
        with self._monitor:
            job.stumbles = 0
            job.wanting = job.wanting or len(items) == room
            self._out += len(items)
            job.out.update(dict.fromkeys(item.ix for item in items))
            nothing = not job.out
        if nothing:
            self._done(job.lease.job_id)  # others of the job may have waited for that
        refused = {} if job.till is None else self._without_money(job, job.till, items)
        for item in items:
            if item.ix in refused:
                self._answered(job, item.ix, refused[item.ix])
            else:
                self._ask_one(job, item)

    def _without_money(
        self, job: RealtimeItems, till: JobBudget, items: Sequence[Direct]
    ) -> dict[int, Verdict]:
        """Pledge what items can cost; say what becomes of those the job's budget has no room for."""
        try:
            refused = till.draw(items)
        except BaseException as error:  # nothing is pledged, so nothing is asked
            for item in items:
                self._answered(job, item.ix, Verdict("unrun", Result("", error=_as_ours(error, ""))))
            raise
        with self._monitor:
            others = len(job.out) > len(refused)
            job.short = bool(refused)
        if not refused:
            return {}
        return dict.fromkeys(refused, short_of_money(self._store, job.row, refused, others=others))

    def _ask_one(self, job: RealtimeItems, item: Direct) -> None:
        def sink(result: Result) -> None:
            self._answered(job, item.ix, job.verdict_of(item.ix, result))

        user_id = item_id(job.row.id, item.ix, item.user_id)
        try:
            request = decode_request(item.payload, job.shared, id=user_id)
            own_budget = None if job.till is None else job.till.own_budget
            future = self._ask(job.row, request, sink, own_budget)
        except BaseException as error:  # closed, full, refused: each has its verdict
            sink(Result(user_id, error=_as_ours(error, user_id)))
            return
        with self._monitor:
            if item.ix in job.out:
                job.out[item.ix] = future
            late = self._halted
        if late:
            self._drop(future)

    def _answered(self, job: RealtimeItems, ix: int, verdict: Verdict) -> None:
        with self._monitor:
            self._answers.append((job, ix, verdict))
            self._inbox.notify()

    def _stumbled(self, job: RealtimeItems, error: BaseException) -> None:
        with self._monitor:
            job.stumbles += 1
            job.wanting = True
            first = job.stumbles == 1
            job.resumes_at = self._clock.now() + backoff(
                job.stumbles, self._rng, first=1.0, longest=LONGEST_PAUSE
            )
        if first:
            self._report(job.lease.job_id, error)

    # -- storing ---------------------------------------------------------------------------------------------

    def _storing(self) -> None:
        self._clock.began()
        self._mine.here = True
        pending: dict[RealtimeItems, list[tuple[int, Verdict]]] = {}
        tries = 0
        try:
            while self._gather(pending, tries):
                failed = False
                for job in list(pending):
                    try:
                        self._store_all(job, pending[job])
                    except BaseException as error:  # paid answers: kept and tried again
                        failed = True
                        if not tries:
                            self._report(job.lease.job_id, error)
                    else:
                        del pending[job]
                tries = tries + 1 if failed else 0
        finally:
            self._clock.ended()

    def _gather(self, pending: dict[RealtimeItems, list[tuple[int, Verdict]]], tries: int) -> bool:
        """Take all that came: while one group is stored, the next one gathers. False at the end."""
        with self._inbox:
            if tries and not self._ended:
                self._inbox.wait(backoff(tries, self._rng, first=0.5, longest=LONGEST_PAUSE))
            while not self._answers and not pending:
                if self._ended:
                    return False
                self._inbox.wait()
            if self._ended and tries:
                return False
            while self._answers:
                job, ix, verdict = self._answers.popleft()
                pending.setdefault(job, []).append((ix, verdict))
            return True

    def _store_all(self, job: RealtimeItems, answers: Sequence[tuple[int, Verdict]]) -> None:
        results = [verdict.result(ix) for ix, verdict in answers]
        verdicts = [verdict for _, verdict in answers]
        try:
            if job.till is None:
                self._store.answer(job.lease, results, at=self._clock.wall())
            else:
                job.till.store(results, at=self._clock.wall())
        except LeaseLost:
            self._lost(job)
        else:
            self._tell_of(job, results, verdicts)
        self._stored(job, results, max(verdict.wait for verdict in verdicts))

    def _tell_of(self, job: RealtimeItems, results: Sequence[NewResult], verdicts: Sequence[Verdict]) -> None:
        """Note and tell what is stored. No failure may lead back: an answer is stored once."""
        try:
            self._note(job, verdicts)
            if any(result.final for result in results):
                job.row = report(self._store, job.row, self._tell, self._clock)
        except Exception as error:
            self._report(job.lease.job_id, error)

    def _stored(self, job: RealtimeItems, results: Sequence[NewResult], wait: float) -> None:
        with self._monitor:
            for result in results:
                job.out.pop(result.ix, None)
            self._out -= len(results)
            if not all(result.final for result in results):
                job.wanting = True
            if wait:
                job.resumes_at = max(job.resumes_at, self._clock.now() + wait)
            if job.short and any(result.final for result in results):  # there may be room for others now
                job.short, job.wanting, job.resumes_at = False, True, -math.inf
            settled = not job.out and not job.wanting
            self._monitor.notify()
            self._empty.notify_all()
        if settled:
            self._done(job.lease.job_id)

    def _note(self, job: RealtimeItems, verdicts: Sequence[Verdict]) -> None:
        """Say in the store what the job waits for, or that it waits no more."""
        for verdict in verdicts:
            if verdict.note is not None:
                self._store.note(job.lease, verdict.note, hold=verdict.hold)
                job.noted = not verdict.hold
                return
        if job.noted:
            self._store.note(job.lease, None)
            job.noted = False


def _as_ours(error: BaseException, request_id: str) -> SmartbatchError:
    if isinstance(error, SmartbatchError):
        return error
    return SmartbatchError(
        f"an error inside smartbatch ({type(error).__name__}) while the request was submitted",
        request_id=request_id,
    )
