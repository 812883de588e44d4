"""Runs the jobs of a store for as long as the process lives.

The supervisor thread claims jobs that no living process owns, renews leases even during long remote calls,
and queues the jobs that are due. Each worker thread runs one step of one job at a time. One of them also
deletes what providers still store for finished jobs.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Set
from functools import partial
from typing import Self

from attrs import define

from smartbatch._clock import Monitor
from smartbatch.config import BatchingConfig
from smartbatch.core.limits.cooldown import backoff
from smartbatch.errors import ErrorKind, JobNotFound, ProviderError, SmartbatchError, StoreError
from smartbatch.events import ClockStepped
from smartbatch.jobs.actions import LiveControls
from smartbatch.jobs.payload import encode_result
from smartbatch.jobs.realtime_items import is_capped, item_limits
from smartbatch.jobs.records import LEASE_SECONDS, JobLease, JobRow, JobState, LeaseLost
from smartbatch.jobs.runner import RealtimeRunner
from smartbatch.jobs.steps import StepResult, housekeeping, run_step
from smartbatch.jobs.threads import OwnThreads, wait_while
from smartbatch.jobs.watching import Changes
from smartbatch.jobs.wiring import JobRuntime
from smartbatch.types import Result, Route, Usage

RENEW_SECONDS = 5.0
"""Two renewals may fail before the lease expires."""
CLAIM_SECONDS = 10.0
"""Seconds between searches for jobs without an owner. The owned jobs are reread at the same time."""
LOOK_SECONDS = 1.0
"""Seconds between checks for user actions and webhook events, with one indexed read for each."""
MAX_WORKERS = 4
"""More than one, because a long upload of one job must not delay the polls of others."""
IDLE_SECONDS = 30.0
"""Worker threads end after this long without a step."""
MAX_DELETIONS = 10
"""Maximum number of deletions at providers after each search for jobs."""
MAX_CLAIMS = 200
"""Maximum number of jobs claimed per search, so that the first leases are renewed in time."""
MAX_PAUSE_SECONDS = 60.0
"""Longest pause between tries of a failing step."""


@define(eq=False)
class OwnedJob:
    lease: JobLease
    row: JobRow
    due: float = -math.inf  # Unix seconds of the next step
    running: bool = False  # a step runs or is queued
    notified: bool = False  # something happened during the step, so the next one is due immediately
    failures: int = 0  # consecutive failed steps
    error: str | None = None  # shown to users: why the last step failed


class Supervision:
    """Owns jobs and runs their steps. It cannot be started again after :meth:`stop`.

    Args:
        changes: its lock is the engine's lock, which also guards this object.
        attended: ids of the attended jobs for which a caller in this process waits.
        controls: user actions in the store.
        run_step: runs one step of a job.
        realtime: sends real-time items.
    """

    def __init__(
        self,
        runtime: JobRuntime,
        changes: Changes,
        attended: Set[str],
        controls: LiveControls,
        run_step: Callable[[JobLease], StepResult],
        realtime: RealtimeRunner,
    ) -> None:
        self._runtime = runtime
        self._changes = changes
        self._attended = attended
        self._controls = controls
        self._run_step = run_step
        self.realtime = realtime
        self._store, self._report = runtime.store, runtime.wiring.report
        self._clock = clock = runtime.clock
        self._monitor = clock.monitor(changes.lock)
        self._worker_monitor = clock.monitor(self._monitor.lock)
        self._idle_monitor = clock.monitor(self._monitor.lock)
        self._owned: dict[str, OwnedJob] = {}
        self._ready: deque[Callable[[], None]] = deque()
        self._threads = OwnThreads(clock)
        self._workers = self._idle = self._busy = 0
        self._deletes = False
        self._named: dict[str, None] = {}
        self._claim_at = self._renew_at = self._look_at = -math.inf
        self._last_event = 0
        self._wall_offset = clock.wall() - clock.now()
        self._stepped = self._runtime.wall.ahead()
        self._halted = self._stopping = self._started = False
        self._error: str | None = None

    @classmethod
    def of(
        cls,
        runtime: JobRuntime,
        config: BatchingConfig,
        changes: Changes,
        attended: Set[str],
        controls: LiveControls,
    ) -> Self:
        realtime = RealtimeRunner(
            runtime,
            limit_of=item_limits(config, runtime),
            is_capped=lambda row: is_capped(row, config),
            request_timeout=config.request_timeout,
            done=lambda job_id: supervision.notify(job_id),
        )
        supervision = cls(runtime, changes, attended, controls, partial(run_step, runtime), realtime)
        return supervision

    # -- called by the engine and the runner ----------------------------------------------------------------

    def start(self) -> None:
        """Start the supervisor thread unless it is running. If that fails, the next call tries again."""
        with self._monitor:
            if self._started or self._stopping:
                return
            watch = partial(_watch, weakref.ref(self), self._monitor)
            self._started = self._spawn_locked(watch, "smartbatch-supervisor")

    def notify(self, job_id: str | None = None) -> None:
        """Run a step of a job immediately, claiming the job if necessary. Without an id, search for jobs."""
        with self._monitor:
            owned = None if job_id is None else self._owned.get(job_id)
            if job_id is None:
                self._claim_at = -math.inf
            elif owned is None:
                self._named[job_id] = None
            elif owned.running:
                owned.notified = True
            else:
                owned.due = -math.inf
            self._monitor.notify()

    def look(self) -> None:
        """Check for user actions in the store immediately."""
        with self._monitor:
            self._look_at = -math.inf
            self._monitor.notify()

    def owns(self, job_id: str) -> bool:
        with self._monitor:
            return job_id in self._owned

    def problem_with(self, job_id: str) -> str | None:
        """Return the reason why this process cannot run the job, for users."""
        with self._monitor:
            owned = self._owned.get(job_id)
            error = self._error if owned is None else owned.error or self._error
        return error if owned is None else error or self.realtime.problem

    def on_own_thread(self) -> bool:
        """Return true if the caller is a user's observer running on a thread of this class."""
        return self._threads.has_current() or self.realtime.on_own_thread()

    def halt(self) -> None:
        """First half of a stop: begin no further step and claim nothing more, but keep the owned jobs."""
        with self._monitor:
            self._halted = True
            self._ready.clear()
            self._monitor.notify_all()

    def stop(self, grace: float) -> None:
        """Begin no further step, wait up to ``grace`` seconds for running ones, and release all jobs.

        A step that outlives the grace period continues but can no longer write.
        """
        self.release(self.end(grace))

    def end(self, grace: float) -> list[JobLease]:
        """Stop without using the store. Return the leases to release."""
        with self._monitor:
            self._halted = self._stopping = True
            self._monitor.notify_all()
            self._worker_monitor.notify_all()
            mine = 1 if self._threads.has_current() else 0
            wait_while(lambda: self._busy > mine, self._idle_monitor, self._clock, grace)
            leases = [owned.lease for owned in self._owned.values()]
            self._owned.clear()
            self._ready.clear()
        return leases

    def release(self, leases: Iterable[JobLease]) -> None:
        for lease in leases:
            self._release(lease)

    # -- the supervisor thread -------------------------------------------------------------------------------

    def run_task(self, task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as error:  # nothing may end this thread, because leases depend on it
            if self._error is None and not (task == self._look and self._stopping):
                self._error = describe(error)  # report an error only once
                self._report(None, error)
        finally:
            if task != self._look:
                self._finished()

    def next_task_locked(self) -> Callable[[], None] | float | None:
        """Return this thread's next task or the seconds until it is due; ``None`` after a stop."""
        if self._stopping:
            return None
        now = self._clock.now()
        task: Callable[[], None] | None = None
        # 1. leases are due for renewal, even while halted, because steps may still run
        if self._owned and now >= self._renew_at:
            self._renew_at, task = now + RENEW_SECONDS, self._renew
        # 2. the check for user actions is due, even while halted, because a pause may end
        elif now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            return self._look  # a stop need not wait for this task, which writes nothing
        # 3. jobs with given ids were requested: claim them
        elif self._named and not self._halted:
            task = partial(self._claim_named, list(self._named))
            self._named.clear()
        # 4. the search for jobs is due
        elif now >= self._claim_at and not self._halted:
            self._claim_at, task = now + CLAIM_SECONDS, self._claim_jobs
        if task is not None:
            self._busy += 1
            return task
        # 5. otherwise: queue the jobs that are due, and wait for the next event
        soonest = math.inf
        if not self._halted:
            soonest = min(self._queue_due_locked(), self._claim_at - now)
        return min(soonest, self._renew_at - now) if self._owned else soonest

    def look_in_locked(self) -> float:
        """Return the seconds until the next check for user actions. An idle process need not check."""
        return self._look_at - self._clock.now()

    @property
    def owns_any(self) -> bool:
        return bool(self._owned)

    def _queue_due_locked(self) -> float:
        """Queue all due jobs and start missing workers. Return the seconds until the next job is due."""
        wall, soonest = self._runtime.wall(), math.inf
        for owned in self._owned.values():
            if owned.running:
                continue
            if owned.due > wall:
                soonest = min(soonest, owned.due - wall)
                continue
            owned.running = True
            self._ready.append(partial(self._step, owned))
        missing = len(self._ready) - self._idle
        if self._ready:
            self._worker_monitor.notify(len(self._ready))
        while missing > 0 and self._workers < MAX_WORKERS:
            missing -= 1
            if not self._spawn_locked(self._work, "smartbatch-jobs"):
                return min(soonest, RENEW_SECONDS)
            self._workers += 1
        return soonest

    def _renew(self) -> None:
        with self._monitor:
            leases = [owned.lease for owned in self._owned.values()]
        kept = set(self._store.leases.renew(leases, LEASE_SECONDS))
        self._error = None
        for lease in leases:
            if lease not in kept:
                self._drop(lease)

    def _look(self) -> None:
        """Apply new user actions to the owned jobs, and claim jobs that can continue because of them.

        Poll batches that a webhook event names.
        """
        self._look_for_events()
        news = self._controls.new_actions()
        if news is None:
            return
        for job_id in news.jobs:
            self._changes.notify(job_id)
        with self._monitor:
            all_owned = list(self._owned.values())
            if news.claims:
                self._claim_at = -math.inf
        for owned in all_owned:
            job_id = owned.lease.job_id
            # 1. a user action changed the job: reread its row, because its budget may have been raised
            acted_on = news.any_job or job_id in news.jobs
            if acted_on:
                self._refresh(owned)
            # 2. its model was paused: recall calls that have not started
            if news.models and self._runtime.pause_of(owned.row.model) is not None:
                self.realtime.recall(job_id)
            elif news.models or acted_on:
                self.realtime.resume(job_id)
            if news.models or acted_on:
                self.notify(job_id)

    def _look_for_events(self) -> None:
        before, self._last_event = self._last_event, self._store.webhook_events.last()
        if self._last_event > before:
            for job_id in self._store.webhook_events.named_jobs(before):
                if self.owns(job_id):
                    self.notify(job_id)

    def _claim_named(self, job_ids: Iterable[str]) -> None:
        """Claim jobs by their ids, without reading the possibly many others."""
        rows: list[JobRow] = []
        for job_id in job_ids:
            if self.owns(job_id):  # it was claimed in the meantime
                self.notify(job_id)
            elif (row := self._store.jobs.get(job_id)) is not None and row.state is not JobState.DONE:
                rows.append(row)
        self._claim(rows)

    def _claim_jobs(self) -> None:
        """Reread the owned jobs, and claim jobs that no living process owns."""
        self._runtime.summaries.save(self._store)
        self._refresh_owned()
        self._claim(self._store.leases.claimable())
        self._queue_deletions()

    def _queue_deletions(self) -> None:
        if not self._deletes and housekeeping.has_due(self._runtime):
            with self._monitor:
                if not self._halted:
                    self._deletes = True
                    self._ready.append(self._delete)

    def _claim(self, rows: Iterable[JobRow]) -> None:
        """Claim jobs that no living process owns."""
        # 1. the wall clock jumped: wait until living owners have had time to renew their leases
        if self._wall_jumped():
            with self._monitor:
                self._claim_at = self._clock.now() + 2 * RENEW_SECONDS
            return
        claims = 0
        for row in rows:
            # 2. the supervision was halted: claim nothing more
            if self._halted:
                return
            # 3. the provider is missing in this process, or another process was quicker: skip the job
            if not self._serves(row):
                continue
            lease = self._store.leases.claim(row.id, LEASE_SECONDS, unknown=_unknown_outcome(row))
            if lease is None:
                continue
            if not self._add(OwnedJob(lease, row)):
                return
            claims += 1
            if claims == MAX_CLAIMS:  # claim the rest after a renewal
                self.notify()
                break
        self._error = None

    def _serves(self, row: JobRow) -> bool:
        """Return true if this process has the job's provider and is allowed to run the job."""
        return self._is_wanted(row) and self._runtime.provider_of(row) is not None

    def _is_wanted(self, row: JobRow) -> bool:
        return not row.policy.attended or row.id in self._attended

    def _wall_jumped(self) -> bool:
        """Return true if the wall clock has jumped since the last search.

        After the machine was asleep, leases may have expired although their owners are alive.
        """
        ahead = self._runtime.wall.ahead()
        if abs(ahead - self._stepped) > RENEW_SECONDS:
            self._runtime.publish_event(ClockStepped(at=self._clock.now(), seconds=ahead - self._stepped))
            self._stepped = ahead
        before, self._wall_offset = self._wall_offset, self._clock.wall() - self._clock.now()
        return self._wall_offset - before > RENEW_SECONDS

    def _add(self, owned: OwnedJob) -> bool:
        with self._monitor:
            if not self._halted:
                if not self._owned:
                    self._renew_at = self._clock.now() + RENEW_SECONDS
                self._owned[owned.lease.job_id] = owned
                return True
        self._release(owned.lease)  # stopped in the meantime
        return False

    def _refresh_owned(self) -> None:
        """Reread the owned jobs, because another process may have cancelled, resumed or deleted one."""
        with self._monitor:
            all_owned = list(self._owned.values())
        for owned in all_owned:
            self._refresh(owned)

    def _refresh(self, owned: OwnedJob) -> None:
        row = self._store.jobs.get(owned.lease.job_id)
        before, owned.row = owned.row, row or owned.row
        cancelled = row is not None and row.cancel_requested and not before.cancel_requested
        if cancelled:
            self.realtime.recall(owned.lease.job_id)
        if cancelled or row is None or row.state is not before.state:
            self.notify(owned.lease.job_id)

    # -- the workers -----------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (work := self._next_work()) is not None:
            try:
                work()
            finally:
                self._finished()

    def _next_work(self) -> Callable[[], None] | None:
        """Return the next step that is due; ``None`` after a stop or a long idle time."""
        with self._worker_monitor:
            notified = True
            while not self._ready and not self._stopping and notified:
                self._idle += 1
                try:
                    notified = self._worker_monitor.wait(IDLE_SECONDS, idle=True)
                finally:
                    self._idle -= 1
            if self._stopping or not self._ready:
                self._workers -= 1
                return None
            self._busy += 1
            return self._ready.popleft()

    def _step(self, owned: OwnedJob) -> None:
        lease = owned.lease
        try:
            # 1. no caller in this process waits for the job: release it when no item is in flight
            if not self._is_wanted(owned.row):
                self._release_unwanted(owned)
                return
            # 2. run a step; real-time items are offered immediately
            result = self._run_step(lease)
            if result.realtime and not result.finished:
                self.realtime.offer(lease)
        # 3. another process owns the job, or it was deleted
        except (LeaseLost, JobNotFound):
            self._drop(lease)
            return
        # 4. the step failed: try again after an increasing pause
        except BaseException as error:
            self._step_failed(owned, error)
            return
        # 5. the job is finished, or the step returned the time of the next one
        owned.failures, owned.error = 0, None
        if result.finished:
            self._drop(lease)
        else:
            self._schedule(owned, math.inf if result.next_at is None else result.next_at)
        self._changes.notify(lease.job_id)

    def _delete(self) -> None:
        try:
            for _ in range(MAX_DELETIONS):
                if self._halted or not housekeeping.delete_next(self._runtime):
                    break
        except BaseException as error:  # tried again after the next search
            if not self._stopping:
                self._report(None, error)
        finally:
            self._deletes = False

    def _release_unwanted(self, owned: OwnedJob) -> None:
        if self.realtime.withdraw(owned.lease.job_id):
            self._drop(owned.lease)
        else:  # due again when its last result is stored
            self._schedule(owned, math.inf)

    def _step_failed(self, owned: OwnedJob, error: BaseException) -> None:
        if self._stopping and isinstance(error, StoreError):
            return  # not an error: the step outlived the grace period of a stop, which closed the store
        owned.failures += 1
        if owned.failures == 1:  # report an error only once
            self._report(owned.lease.job_id, error)
        owned.error = describe(error)
        wait = backoff(owned.failures, self._runtime.rng, first=2.0, longest=MAX_PAUSE_SECONDS)
        self._schedule(owned, self._runtime.wall() + wait)

    def _schedule(self, owned: OwnedJob, due: float) -> None:
        with self._monitor:
            owned.due = -math.inf if owned.notified else due
            owned.running = owned.notified = False
            self._monitor.notify()

    def _finished(self) -> None:
        with self._monitor:
            self._busy -= 1
            self._idle_monitor.notify_all()

    # -- releasing jobs --------------------------------------------------------------------------------------

    def _drop(self, lease: JobLease) -> None:
        """Drop a job that is finished or owned by another process. A concurrent stop may also release it."""
        with self._monitor:
            owned = self._owned.get(lease.job_id)
            is_ours = owned is not None and owned.lease == lease
            if is_ours:
                del self._owned[lease.job_id]
        self.realtime.forget(lease.job_id)
        if is_ours:
            self._release(lease)
        self._changes.notify(lease.job_id)

    def _release(self, lease: JobLease) -> None:
        try:
            self._store.leases.release(lease)
        except SmartbatchError as error:  # the lease will expire
            self._report(lease.job_id, error)

    def _spawn_locked(self, target: Callable[[], None], name: str) -> bool:
        try:
            self._threads.start(target, name)
        except RuntimeError as error:  # the system allows no further thread, or the interpreter is exiting
            self._error = describe(error)
            return False
        return True


def _watch(of: weakref.ref[Supervision], monitor: Monitor) -> None:
    """Run one task after another.

    While no job is owned, this thread holds no reference to the client, so that a client without other
    references can be garbage-collected. That stops this thread.
    """
    while (supervisor := of()) is not None:
        with monitor:
            following = supervisor.next_task_locked()
            if following is None:
                return
            if isinstance(following, float):
                _held = supervisor if supervisor.owns_any else None
                glance = supervisor.look_in_locked()
                del supervisor
                if following > 0:
                    monitor.wait(None if following == math.inf else following, glance=glance)
                continue
        supervisor.run_task(following)
        del supervisor, following


def describe(error: BaseException) -> str:
    """Describe an error for users. Errors from outside the store are described by their class only."""
    if isinstance(error, StoreError):
        return error.message
    return f"an error inside smartbatch ({type(error).__name__}); the step will be tried again"


def _unknown_outcome(row: JobRow) -> bytes | None:
    """Return a result for items that were in flight when their process ended; ``None`` to send them again."""
    if row.policy.on_unknown != "hold":
        return None
    error = ProviderError(
        "the process that sent this request ended before the answer arrived, so the outcome is unknown, and "
        "it may have been billed; the job's policy is hold, so it was not resent: submit it again",
        kind=ErrorKind.UNKNOWN,
        code="outcome_unknown",
        maybe_billed=True,
    )
    usage = Usage(unknown=True)
    result = Result("", error=error, attempts=1, route=Route.INDIVIDUAL, model=row.model, usage=usage)
    return encode_result(result)
