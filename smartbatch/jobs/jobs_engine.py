"""The jobs of one client in one process: the store, the threads that run jobs, and the waiters."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from attrs import asdict, define

from smartbatch._clock import Clock, SteadyWall
from smartbatch._fork import something_ended, something_started
from smartbatch.config import BatchingConfig
from smartbatch.errors import ClientClosed, JobNotFound, SmartbatchError, StoreError, WrongProcess
from smartbatch.events import (
    Event,
    JobAccepted,
    JobFinished,
    JobHeld,
    JobIncident,
    JobProgress,
    JobResultsStored,
    PriceUnknown,
    ShardChanged,
)
from smartbatch.jobs.actions import LiveControls
from smartbatch.jobs.cleaning import CleanResult, clean
from smartbatch.jobs.client_store import ClientStore, SummaryLog
from smartbatch.jobs.records import JobLease, JobRow, JobState, ResultRow, StoredCounts
from smartbatch.jobs.status import JobStatus, read_status
from smartbatch.jobs.store import SqlStore
from smartbatch.jobs.threads import OwnThreads, run_within, wait_while
from smartbatch.jobs.watching import Changes, ItemWaiter, Watcher, Watchers, result_as_stored, stored_job
from smartbatch.jobs.wiring import JobProviders, JobRuntime, JobWiring, StepLimits
from smartbatch.providers.price_book import PriceBook
from smartbatch.setting import revealed
from smartbatch.types import Result

if TYPE_CHECKING:
    from smartbatch.jobs.supervision import Supervision

OTHERS_JOB_POLL_SECONDS = 1.0
OWN_JOB_POLL_SECONDS = 30.0
"""Waiters are also notified of each change, so this interval can be long."""
LAST_NEWS_SECONDS = 0.1
"""Reserved at the end of a stop for publishing stored results, and once more for closing the store."""
CLOSE_SECONDS = 0.25
"""Minimum time for closing the store, even if the time for the stop is used up."""
STORE_RETRY_SECONDS = 10.0
_NEWS = (JobAccepted, JobProgress, JobFinished, JobIncident, ShardChanged)


@define(eq=False, repr=False)
class _Stop:
    store: SqlStore | None
    closes: bool  # closes the store unless it is used again by then


class JobsEngine:
    """The jobs of one client in one process: submits, runs and waits for them. Thread-safe.

    Threads start when there is work, and again after a stop.

    Args:
        rng: random numbers for ids and backoff; no two processes may share a sequence.

    Attributes:
        wall: Unix seconds for deadlines and pauses, unaffected by changes to the machine's clock.
        lock: guards the engine, its supervision and its watchers. While it is held, the store is not used, no
            callback is called and no event is published.
        client_store: the store, which may not be open.
        changes: notified after each stored change of a job.
        controls: the latest model settings and user actions.
        providers: finds the provider of a job.
        wiring: what jobs need from the real-time side.
        summaries: saves totals of real-time requests in the store.
    """

    def __init__(self, config: BatchingConfig, clock: Clock, *, rng: Random, wiring: JobWiring) -> None:
        self._config = config
        self.clock = clock
        self.wall = SteadyWall(clock)
        self._rng = rng
        self.wiring = wiring
        self.lock = threading.Lock()
        self._monitor = clock.monitor(self.lock)
        self.client_store = ClientStore(config.store, clock, rng=rng, counted=self._counted)
        self._opens_later = False
        self._threads = OwnThreads(clock)
        part = secrets.randbelow(2**32)
        self.summaries = SummaryLog(clock, lambda: self.client_store.opened, part=part)
        self.changes = Changes(clock, self.lock)
        self.controls = LiveControls(self.client_store.get, clock, wiring)
        self.providers = JobProviders(wiring, clock)
        self._supervisor: Supervision | None = None
        self._watchers = Watchers(
            clock, self.changes, wiring, serve=self._serve, refresh_interval=self.refresh_interval
        )
        self._attended: set[str] = set()
        self._unpriced: set[str] = set()  # models whose price in batches is unknown, as reported
        self._closed = False
        self._stops: list[_Stop] = []

    # -- jobs ------------------------------------------------------------------------------------------------

    @property
    def store(self) -> SqlStore:
        """The store, opened if necessary.

        Raises:
            StoreError, ConfigError: the store cannot be used.
        """
        return self.client_store.get()

    def _counted(self, job_id: str, counts: StoredCounts) -> None:
        counted = asdict(counts, recurse=False)
        self.wiring.publish_event(JobResultsStored(at=self.clock.now(), job_id=job_id, **counted))

    def new_id(self) -> str:
        return "job-" + "".join(self._rng.choices("0123456789abcdefghijklmnopqrstuvwxyz", k=16))

    def check_open(self) -> None:
        """Raise an error if jobs cannot be accepted.

        Raises:
            ClientClosed: the client was stopped.
            StoreError: a folder that jobs need belongs to another user.
        """
        if self._closed:
            raise ClientClosed("the client was stopped; call start() to use it again")
        self.store.require_folders()  # fail now: later, only the status of the job would show the problem

    def find(self, id_or_key: str) -> JobRow:
        row = self.store.jobs.get(id_or_key)
        if row is None:
            raise JobNotFound(
                f"the store {self.store.place} has no job with the id or key {id_or_key!r:.80}; list its "
                "jobs with `smartbatch jobs list`, or set SMARTBATCH_STORE to use another store"
            )
        return row

    def is_done(self, job_id: str) -> bool:
        """Return true if the store has all results of a job or no longer has the job."""
        row = self.store.jobs.get(job_id)
        return row is None or row.state is JobState.DONE

    # -- running jobs ----------------------------------------------------------------------------------------

    def open(self) -> None:
        with self.lock:
            self._closed = False

    def carry_on(self, job_id: str | None = None) -> None:
        """Run the store's jobs in this process, unless they are already running or the client was stopped.

        If no thread is available, the next call tries again.

        Args:
            job_id: a job that a caller in this process waits for; an attended job runs only while there is
                such a caller.
        """
        from smartbatch.jobs.supervision import Supervision  # imported late because most clients run no jobs

        store = self.store
        with self.lock:
            if self._closed:
                return
            new = job_id is not None and job_id not in self._attended
            if job_id is not None:
                self._attended.add(job_id)
            running = self._supervisor
            supervisor = self._supervisor = running or Supervision.of(
                self._runtime(store), self._config, self.changes, self._attended, self.controls
            )
        if running is None:
            something_started()
        elif new:
            supervisor.notify(job_id)
        supervisor.start()

    def carry_on_later(self, then: Callable[[], object]) -> None:
        """Run the stored jobs once the store can be opened, and then call ``then``. A stop cancels this."""
        with self.lock:
            if self._closed or self._opens_later:
                return
            self._opens_later = True
        try:
            self._threads.start(partial(self._open_later, then), "smartbatch-open")
        except RuntimeError:  # no thread is available: treat it like a store that cannot be opened
            self._opens_later = False

    def _open_later(self, then: Callable[[], object]) -> None:
        wait = 0.0
        while True:
            # 1. the engine was stopped
            with self._monitor:
                wait_while(lambda: not self._closed, self._monitor, self.clock, wait)
                if self._closed:
                    self._opens_later = False
                    return
            wait = STORE_RETRY_SECONDS
            try:
                # 2. the store is open: apply its pauses and run its jobs
                _ = self.store
                if not self._closed:
                    self.controls.read()
                    self.carry_on()
                    then()
            except StoreError:  # reported at the first try
                continue
            except SmartbatchError as error:  # 3. the address is invalid: do not try again
                self.wiring.report(None, error)
            self._opens_later = False
            return

    def has_ended(self, job_id: str) -> None:
        """Drop a job that has ended in this or another process."""
        with self.lock:
            self.changes.clear_held_locked(job_id)
            self._attended.discard(job_id)

    def _runtime(self, store: SqlStore) -> JobRuntime:
        return JobRuntime(
            store=store,
            summaries=self.summaries,
            clock=self.clock,
            rng=self._rng,
            wall=self.wall,
            prices=PriceBook(self._config.prices),
            limits=StepLimits.of(self._config),
            provider_of=self.providers.provider_of,
            pause_of=lambda model: self.controls.current.pause_of(model),
            publish_event=self.publish_event,
            wiring=self.wiring,
            webhook_url=None if (url := self._config.webhook_url) is None else revealed(url),
        )

    def clean(self, *, remote: bool, dry_run: bool) -> CleanResult:
        problem_with = self.providers.problem_with
        return clean(self._runtime(self.store), problem_with, remote=remote, dry_run=dry_run)

    def release_attended(self, job_id: str) -> None:
        """Stop running an attended job unless a future waits for it.

        Items that have not started stay in the store, and items in flight still get their results. The next
        process that names the job resumes it.
        """
        with self.lock:
            if self._watchers.runs_locked(job_id):
                return
            self._attended.discard(job_id)
        self.notify(job_id)

    def is_free(self, job_id: str) -> bool:
        """Return true if the job is unfinished and no living process runs it."""
        return any(row.id == job_id for row in self.store.leases.claimable())

    def notify(self, job_id: str) -> None:
        """Run the next step of a job immediately."""
        if self._supervisor is not None:
            self._supervisor.notify(job_id)

    def recall(self, job_id: str) -> None:
        """Recall the unstarted items of a job that is being cancelled."""
        if self._supervisor is not None:
            self._supervisor.realtime.recall(job_id)
            self._supervisor.notify(job_id)

    def cancel_item(self, job_id: str, ix: int) -> bool:
        """Cancel an item of an attended job of this process; return false if its call has started."""
        supervisor = self._supervisor
        return supervisor is not None and supervisor.realtime.cancel(job_id, ix)

    def resume(self, job_id: str) -> None:
        with self.lock:
            self.changes.clear_held_locked(job_id)
        if self._supervisor is not None:
            self._supervisor.realtime.resume(job_id)
            self._supervisor.notify(job_id)

    def check_carried(self, row: JobRow) -> None:
        """Raise ``ClientClosed`` if waiting for the job would never end because no process runs it."""
        if self._closed and row.owner is None:
            raise ClientClosed(
                f"the client was stopped, so job {row.id} is no longer running; nothing is lost: resume it "
                f"with smartbatch.job({row.id!r}), or start a client on the store {self.store.place}"
            )

    def check_actions(self) -> None:
        """Check for user actions in the store immediately if this process runs jobs."""
        if self._supervisor is not None:
            self._supervisor.look()

    # -- status and results ----------------------------------------------------------------------------------

    def refresh_interval(self, job_id: str) -> float:
        """Return the seconds after which a job is read again if no change is published."""
        supervisor = self._supervisor
        own = supervisor is not None and supervisor.owns(job_id)
        return OWN_JOB_POLL_SECONDS if own else min(OTHERS_JOB_POLL_SECONDS, self._config.batch_poll_interval)

    def status_of(self, row: JobRow, *, forecast: bool = True) -> JobStatus:
        speed = self.wiring.speed if forecast else None
        return read_status(self.store, row, speed=speed, note=self._note, wall=self.wall())

    def _note(self, row: JobRow) -> str | None:
        """Return the reason why a job does not continue, if this process knows one."""
        supervisor = self._supervisor
        if row.state is JobState.DONE:
            return None
        if (pause := self.store.controls.controls().pause_of(row.model)) is not None:
            return str(pause)
        if supervisor is not None and (error := supervisor.problem_with(row.id)) is not None:
            return error
        if row.policy.attended and row.id not in self._attended and self.is_free(row.id):
            return f"its run was interrupted: run the same command again, or smartbatch jobs resume {row.id}"
        if row.owner is not None:
            return None
        if (problem := self.providers.problem_with(row)) is not None:
            return problem
        if supervisor is None:
            return "no process is running it at the moment: wait for it, or resume it"
        return None

    def result_of(self, row: ResultRow, job_id: str) -> Result:
        result = self.stored_result(row, job_id)
        return self.wiring.process(result) if result.ok else result

    def stored_result(self, row: ResultRow, job_id: str) -> Result:
        """Return a result without ``post_process``, parsing the answer again if that failed before."""
        files = self.store.files.folder(job_id)
        result = result_as_stored(row, job_id, files, params=lambda: stored_job(self.store, job_id).params)
        for name, reason in result.dropped:  # another process may have stored it and warned only its own user
            self.wiring.warn_dropped(name, reason)
        return result

    # -- waiting ---------------------------------------------------------------------------------------------

    def futures(self, job_id: str, total: int) -> list[Future[Result]]:
        """Return a future per item of a job. After a stop, futures without a result fail immediately."""
        futures = [self.wiring.new_future() for _ in range(total)]
        if futures:
            with self.lock:
                watcher = self._watcher_locked(job_id)
                watcher.deliver_locked(dict(enumerate(futures)), self.result_of)
        return futures

    def deliver(self, job_id: str, waiters: Mapping[int, ItemWaiter], *, after: int = 0) -> None:
        """Pass unprocessed results to ``waiters``, a dictionary by item position.

        After a stop, waiters without a stored result fail immediately.

        Args:
            after: sequence number of a result that is older than all of the waiters' results.
        """
        with self.lock:
            self._watcher_locked(job_id).deliver_locked(waiters, self.stored_result, after=after)

    def listen(self, job_id: str, call: Callable[[JobStatus], object]) -> None:
        """Call ``call`` with the status now and after each change, until the job or the engine stops."""
        run = self.wiring.run_callback
        with self.lock:
            self._watcher_locked(job_id).listen_locked(lambda status: run(partial(call, status)))

    def finish_listening(self, job_id: str, timeout: float) -> None:
        """Wait up to ``timeout`` seconds for the last callbacks of a job that has ended."""
        self._watchers.finish(job_id, timeout)

    def _watcher_locked(self, job_id: str) -> Watcher:
        return self._watchers.running_locked(job_id, _stopped() if self._closed else None)

    def _serve(self, watcher: Watcher) -> None:
        awaited = watcher.complete_stored(self.store)
        row = stored_job(self.store, watcher.job_id)
        ended = row.state is JobState.DONE
        if not ended:
            self.carry_on(row.id)
        if awaited:
            self.publish_held(row)
        watcher.call(partial(self.status_of, row), ended=ended)

    def publish_event(self, event: Event) -> None:
        """Publish an event. The end of a job is published once, even if several threads report it, and so is
        the unknown price of a model.
        """
        if isinstance(event, PriceUnknown):
            with self.lock:
                if event.model in self._unpriced:
                    return
                self._unpriced.add(event.model)
        if isinstance(event, JobFinished):
            with self.lock:
                if not self.changes.is_new_end_locked(event):
                    return
                self._attended.discard(event.job_id)
        if isinstance(event, _NEWS):
            self.changes.notify(event.job_id, progress=isinstance(event, JobProgress))
        self.wiring.publish_event(event)

    def publish_held(self, row: JobRow) -> None:
        """Publish once that a job is held, until it continues."""
        with self.lock:
            if not self.changes.is_newly_held_locked(row):
                return
        at, reason = self.clock.now(), row.note or "held until it is resumed"
        remedy = f"smartbatch.job({row.id!r}).resume()"
        self.wiring.publish_event(
            JobHeld(at=at, job_id=row.id, model=row.model, reason=reason, remedy=remedy)
        )

    # -- stopping --------------------------------------------------------------------------------------------

    @property
    def is_working(self) -> bool:
        return self._supervisor is not None

    def on_own_thread(self) -> bool:
        """Return true if the caller is a user's observer running on a thread of the engine."""
        supervisor = self._supervisor
        return supervisor is not None and supervisor.on_own_thread()

    def halt(self) -> None:
        """First half of a stop: start nothing more, but keep the jobs while answers are in flight."""
        with self._monitor:
            self._closed = True
            supervisor = self._supervisor
            self._monitor.notify_all()
        if supervisor is not None:
            supervisor.halt()
            supervisor.realtime.halt()

    def finish(self, until: float, save: Callable[[], object] = lambda: None) -> None:
        """Release the jobs and close the store by ``until``, even if the store hangs.

        The parts wait for their threads without using the store; a separate thread makes the last calls to
        the store. If the engine was opened again in the meantime, the store stays open until the next stop. A
        second thread that stops the engine waits for the first. If this wait times out, the second thread
        stops whatever was started later and leaves the store to the first.

        Args:
            until: monotonic seconds.
            save: makes the last calls to the store, which may hang, before the store is closed.
        """
        with self._monitor:
            wait_while(lambda: self._stops, self._monitor, self.clock, until - self.clock.now())
            store = self.client_store.opened
            closes = not any(other.closes and other.store is store for other in self._stops)
            if not closes and self._supervisor is None:
                return
            supervisor, self._supervisor = self._supervisor, None
            watchers = self._watchers.take_locked()
            stop = _Stop(store, closes)
            self._stops.append(stop)
        try:
            self._finish(until, save, stop, supervisor, watchers)
        finally:
            with self._monitor:
                self._stops.remove(stop)
                self._monitor.notify_all()

    def _finish(
        self,
        until: float,
        save: Callable[[], object],
        stop: _Stop,
        supervisor: Supervision | None,
        watchers: Sequence[Watcher],
    ) -> None:
        def left(reserved: float) -> float:
            return max(0.0, until - reserved - self.clock.now())

        # 1. store received answers, and let remote calls in progress complete
        leases: list[JobLease] = []
        if supervisor is not None:
            unstored = supervisor.realtime.finish(left(2 * LAST_NEWS_SECONDS))
            if unstored:
                unstored.report_loss(self.wiring.publish_event, self.clock.now())
            leases = supervisor.end(left(2 * LAST_NEWS_SECONDS))
        # 2. end every wait for a job
        error = _stopped()
        with self.lock:
            for watcher in watchers:
                watcher.end_locked(error)
        for watcher in watchers:
            watcher.finish(left(LAST_NEWS_SECONDS))
            watcher.give_up(error)
        # 3. release the jobs, and close the store
        store = self._detach_store(stop)
        if stop.closes:
            self.providers.close()

        def close() -> None:
            if stop.closes:
                save()
            if store is not None:
                self.summaries.save(store)
            if supervisor is not None:
                supervisor.release(leases)
            if store is not None:
                store.close()

        if not run_within(close, max(CLOSE_SECONDS, left(0.0)), self.clock, "smartbatch-close"):
            if store is not None:
                store.give_up()  # otherwise the store's threads would keep the interpreter alive
            text = "the store did not answer during the stop: its jobs are released when their leases expire"
            self.wiring.report(None, StoreError(text))
        if supervisor is not None:
            something_ended()  # last: the thread that closes the store may be the only one left

    def _detach_store(self, stop: _Stop) -> SqlStore | None:
        """Return the store to close; ``None`` if another stop closes it or the engine uses it again."""
        with self.lock:
            stop.closes = stop.closes and self._closed and self._supervisor is None
            return self.client_store.detach() if stop.closes else None

    def abandon(self, error: WrongProcess) -> None:
        """In a forked child, fail the copies of the parent's futures. Must not take an inherited lock."""
        self._closed = True
        self.providers.abandon()
        if self.client_store.opened is not None:
            self.client_store.opened.abandon()
        self._watchers.abandon(error)


def _stopped() -> ClientClosed:
    return ClientClosed(
        "the client was stopped before the result was stored; nothing is lost: the job can be resumed"
    )
