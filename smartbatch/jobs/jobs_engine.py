"""The jobs of one client in one process: the store, the threads that carry jobs on, and those who wait."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from attrs import asdict, define

from smartbatch._clock import Clock, SteadyWall
from smartbatch._fork import something_ended, something_started
from smartbatch.config import BatchingConfig
from smartbatch.errors import (
    ClientClosed,
    JobNotFound,
    SmartbatchError,
    StoreError,
    WrongProcess,
)
from smartbatch.events import (
    Event,
    JobAccepted,
    JobFinished,
    JobHeld,
    JobIncident,
    JobProgress,
    JobResultsStored,
    ShardChanged,
)
from smartbatch.jobs.acceptance import Items, accept
from smartbatch.jobs.actions import LiveControls
from smartbatch.jobs.records import (
    JobLease,
    JobRow,
    JobState,
    NamedPlace,
    NewItem,
    ResultRow,
    StoredCounts,
)
from smartbatch.jobs.status import JobStatus, read_status
from smartbatch.jobs.store import SqlStore, open_store
from smartbatch.jobs.stored_result import result_as_stored
from smartbatch.jobs.summary_log import SummaryLog
from smartbatch.jobs.threads import OwnThreads, TimedReads, run_within, wait_while
from smartbatch.jobs.watching import Changes, ItemWaiter, Watcher, stored_job
from smartbatch.jobs.wiring import JobProviders, JobRuntime, JobWiring, StepLimits
from smartbatch.prices import PriceBook
from smartbatch.types import Result, T

if TYPE_CHECKING:
    from smartbatch.jobs.supervision import Supervision

ELSEWHERE = 1.0
"""Seconds between looks at a job that another process carries on."""
OWN = 30.0
"""Seconds between looks at a job of this process, whose waiters are notified of changes."""
LAST_NEWS = 0.1
"""Seconds at the end of a stop that are left for telling what is stored, and again for closing the store."""
CLOSING = 0.25
"""Seconds for closing the store where the time of the stop is over."""
TRIED_EVERY = 10.0
"""Seconds after which a store that could not be opened is tried again."""
_NEWS = (JobAccepted, JobProgress, JobFinished, JobIncident, ShardChanged)


@define(eq=False, repr=False)
class _Stop:
    """A stop that gives jobs back."""

    store: SqlStore | None  # that its jobs are in
    closes: bool  # the store, unless that is used again by then


class JobsEngine:
    """The jobs of one client in one process: submission, work, and those who wait. Safe from any thread.

    Threads start when there is work, and again after a stop.

    Args:
        rng: random numbers for ids and backoff; no two processes may draw the same.

    Attributes:
        wall: Unix seconds by which jobs wait and are late, whatever the machine's clock is set to.
        lock: of the engine and of all that supervises and watches its jobs; while it is held nothing is read,
            written, called or told.
        changes: what was told of jobs; notified whenever something of one was stored.
        controls: what people set for models, and their acts on jobs.
        serving: finds the provider of a job.
        wiring: what jobs need of the real-time side.
        summaries: writes what requests in real time came to next to the jobs.
    """

    def __init__(self, config: BatchingConfig, clock: Clock, *, rng: Random, wiring: JobWiring) -> None:
        self._config = config
        self.clock = clock
        self.wall = SteadyWall(clock)
        self._rng = rng
        self.wiring = wiring
        self.lock = threading.Lock()
        self._monitor = clock.monitor(self.lock)
        self._store: SqlStore | None = None
        self._opens = False
        self._opens_later = False
        self._threads = OwnThreads(clock)
        self.summaries = SummaryLog(clock, lambda: self._store, part=secrets.randbelow(2**32))
        self.changes = Changes(clock, self.lock)
        self._reads = TimedReads(clock)
        self.controls = LiveControls(lambda: self.store, clock, wiring)
        self.providers = JobProviders(wiring, clock)
        self._supervisor: Supervision | None = None
        self._watchers: dict[str, Watcher] = {}
        self._attended: set[str] = set()
        self._closed = False
        self._stops: list[_Stop] = []  # those that give jobs back

    # -- jobs ------------------------------------------------------------------------------------------------

    @property
    def store(self) -> SqlStore:
        """The store, opened when first asked for.

        Raises:
            StoreError, ConfigError: it cannot be used; the text says why.
        """
        if (store := self._store) is not None:
            return store
        with self._monitor:
            self._monitor.wait_for(lambda: not self._opens)
            if self._store is not None:
                return self._store
            self._opens = True
        opened: SqlStore | None = None
        try:  # without the lock: who opens a store may hang
            wall = self.clock.wall
            opened = open_store(self._config.store, wall=wall, rng=self._rng, counted=self._counted)
        finally:
            with self._monitor:
                self._opens, self._store = False, opened
                self._monitor.notify_all()
        return opened

    @property
    def uses_store(self) -> bool:
        """Whether the store is open."""
        return self._store is not None

    def _counted(self, job_id: str, counts: StoredCounts) -> None:
        counted = asdict(counts, recurse=False)
        self.wiring.tell(JobResultsStored(at=self.clock.now(), job_id=job_id, **counted))

    def new_id(self) -> str:
        """Return an id no other job has."""
        return "job-" + "".join(self._rng.choices("0123456789abcdefghijklmnopqrstuvwxyz", k=16))

    def accept(
        self, job: JobRow, items: Items, named: Callable[[str], object], *, carry_on: bool = True
    ) -> JobRow:
        """Store a job, or find the one that has its key; from then on it is carried on.

        Args:
            named: called with the id under which it is stored next.
            carry_on: false leaves carrying it on to those who name it.

        Raises:
            JobConflict: the key belongs to a job with other requests.
            StoreError: nothing is stored, or a folder that jobs need is another user's.
        """
        if self._closed:
            raise _closed()
        self.store.require_folders()  # else the job waits, and only its status says for what
        row, new = accept(self.store, job, items, self.wiring, named, new_id=self.new_id, at=self.wall())
        if new:
            self._accepted(row)
        if carry_on and row.state is not JobState.DONE:
            self.carry_on(row.id)
            self.notify(row.id)
        return row

    def accept_named(
        self,
        job: JobRow,
        items: Iterable[NewItem],
        *,
        join: str | None = None,
    ) -> tuple[str | None, list[NamedPlace]]:
        """Store the items whose names are new: in the job ``join`` if that is still running, otherwise as
        ``job``.

        Returns:
            the id of the job that has the new items, ``None`` if there are none; and the place of each item.
        """
        if self._closed:
            raise _closed()
        self.store.require_folders()
        row, places = self.store.jobs.accept_named(job, list(items), join=join)
        if row is None:
            return None, places
        if row.id == job.id:
            self._accepted(row)
        self.carry_on(row.id)
        self.notify(row.id)
        return row.id, places

    def _accepted(self, row: JobRow) -> None:
        self.told(JobAccepted(at=self.clock.now(), job_id=row.id, model=row.model, items=row.total))

    def find(self, id_or_key: str) -> JobRow:
        """Return a job by its id or its key.

        Raises:
            JobNotFound: there is none.
        """
        row = self.store.jobs.get(id_or_key)
        if row is None:
            raise JobNotFound(
                f"the store {self.store.place} has no job of the id or key {id_or_key!r:.80}; "
                "`smartbatch jobs list` shows those it has, SMARTBATCH_STORE names another store"
            )
        return row

    def is_done(self, job_id: str) -> bool:
        """Whether the store has all results of a job, or nothing of it any more."""
        row = self.store.jobs.get(job_id)
        return row is None or row.state is JobState.DONE

    # -- carrying on -----------------------------------------------------------------------------------------

    def open(self) -> None:
        """Allow jobs to be carried on, again after a stop."""
        with self.lock:
            self._closed = False

    def carry_on(self, job_id: str | None = None) -> None:
        """Have this process carry on the jobs of the store, unless it does already or was stopped. Where no
        thread can be had for that, the next call tries again.

        Args:
            job_id: a job that somebody here waits for; attended ones are carried on for nobody else.
        """
        from smartbatch.jobs.supervision import Supervision  # late: most clients carry no job on

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
        """Carry on the jobs of the store as soon as it can be opened, unless this is stopped before.

        Args:
            then: is done next.
        """
        with self.lock:
            if self._closed or self._opens_later:
                return
            self._opens_later = True
        try:
            self._threads.start(partial(self._open_later, then), "smartbatch-open")
        except RuntimeError:  # no thread can be had: as with a store that is never there
            self._opens_later = False

    def _open_later(self, then: Callable[[], object]) -> None:
        """Try to open the store, until one of these is true:

        1. The engine was stopped.
        2. The store is open: pauses hold, and its jobs are carried on.
        3. Its address is none: no later try finds it.
        """
        wait = 0.0
        while True:
            with self._monitor:
                wait_while(lambda: not self._closed, self._monitor, self.clock, wait)
                if self._closed:
                    self._opens_later = False
                    return
            wait = TRIED_EVERY
            try:
                _ = self.store
                if not self._closed:
                    self.controls.read()
                    self.carry_on()
                    then()
            except StoreError:  # it was reported when it was tried first
                continue
            except SmartbatchError as error:
                self.wiring.report(None, error)
            self._opens_later = False
            return

    def has_ended(self, job_id: str) -> None:
        """A job was seen to have ended, in whichever process: keep nothing of it."""
        with self.lock:
            self.changes.goes_on_locked(job_id)
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
            tell=self.told,
            wiring=self.wiring,
        )

    def let_go(self, job_id: str) -> None:
        """Carry an attended job on no longer, unless a future waits for it: what has not started stays in the
        store, and what is under way gets its result. Whoever names the job carries it on."""
        with self.lock:
            watcher = self._watchers.get(job_id)
            if watcher is not None and watcher.runs:
                return
            self._attended.discard(job_id)
        self.notify(job_id)

    def is_free(self, job_id: str) -> bool:
        """Whether an unfinished job is carried on by nobody alive."""
        return any(row.id == job_id for row in self.store.leases.claimable())

    def notify(self, job_id: str) -> None:
        """Look at a job at once."""
        if self._supervisor is not None:
            self._supervisor.notify(job_id)

    def recall(self, job_id: str) -> None:
        """A job is to be cancelled: take back what has not started."""
        if self._supervisor is not None:
            self._supervisor.realtime.recall(job_id)
            self._supervisor.notify(job_id)

    def cancel_item(self, job_id: str, ix: int) -> bool:
        """End an item of an attended job of this process as cancelled; False where its call has started."""
        supervisor = self._supervisor
        return supervisor is not None and supervisor.realtime.cancel(job_id, ix)

    def resume(self, job_id: str) -> None:
        """Go on with a job that waited."""
        with self.lock:
            self.changes.goes_on_locked(job_id)
        if self._supervisor is not None:
            self._supervisor.realtime.resume(job_id)
            self._supervisor.notify(job_id)

    def check_carried(self, row: JobRow) -> None:
        """Raise ``ClientClosed`` when nobody carries an unfinished job on: waiting would be in vain."""
        if self._closed and row.owner is None:
            raise ClientClosed(
                f"the client was stopped, so nobody carries job {row.id} on; nothing is lost: take it up "
                f"again with smartbatch.job({row.id!r}), or start a client on the store {self.store.place}"
            )

    def look_at_acts(self) -> None:
        """Look at once at what people did to the store, where this process carries jobs on."""
        if self._supervisor is not None:
            self._supervisor.look()

    # -- looking ---------------------------------------------------------------------------------------------

    def refresh_interval(self, job_id: str) -> float:
        """Return the seconds after which a job is looked at although no change was told."""
        supervisor = self._supervisor
        own = supervisor is not None and supervisor.owns(job_id)
        return OWN if own else min(ELSEWHERE, self._config.batch_poll_interval)

    def status_of(self, row: JobRow, *, forecast: bool = True) -> JobStatus:
        """Return how a job stands; with ``forecast`` also the time left."""
        speed = self.wiring.speed if forecast else None
        return read_status(self.store, row, speed=speed, note=self._note, wall=self.wall())

    def result_of(self, row: ResultRow, job_id: str) -> Result:
        """Return a result as its user gets it."""
        result = self.stored_result(row, job_id)
        return self.wiring.process(result) if result.ok else result

    def stored_result(self, row: ResultRow, job_id: str) -> Result:
        """Return a result as it is stored: ``post_process`` has not seen it. An answer that smartbatch itself
        failed to read is read again."""
        result = result_as_stored(row, job_id, params=lambda: stored_job(self.store, job_id).params)
        for name, reason in result.dropped:  # another process may have stored it, and told only its own user
            self.wiring.tell_dropped(name, reason)
        return result

    def futures(self, job_id: str, total: int) -> list[Future[Result]]:
        """Return a future for each item of a job; after a stop those that are not stored fail at once."""
        futures = [self.wiring.new_future() for _ in range(total)]
        if futures:
            with self.lock:
                watcher = self._watcher_locked(job_id)
                watcher.deliver_locked(dict(enumerate(futures)), self.result_of)
        return futures

    def deliver(self, job_id: str, waiters: Mapping[int, ItemWaiter], *, after: int = 0) -> None:
        """Hand results to ``waiters``, by the position of their item, before ``post_process`` has seen them;
        after a stop those that are not stored fail at once.

        Args:
            after: sequence number of a result that is older than all of theirs.
        """
        with self.lock:
            self._watcher_locked(job_id).deliver_locked(waiters, self.stored_result, after=after)

    def listen(self, job_id: str, call: Callable[[JobStatus], object]) -> None:
        """Call ``call`` with the status of a job now and after each change, up to the end or to a stop."""
        run = self.wiring.run_callback
        with self.lock:
            self._watcher_locked(job_id).listen_locked(lambda status: run(partial(call, status)))

    def finish_listening(self, job_id: str, timeout: float) -> None:
        """Wait up to ``timeout`` seconds until the callbacks of a job that has ended were called."""
        with self.lock:
            watcher = self._watchers.get(job_id)
        if watcher is not None:
            watcher.finish(timeout)

    def _watcher_locked(self, job_id: str) -> Watcher:
        """Return the watcher of a job, whose thread runs.

        Raises:
            RuntimeError: no thread can be had.
        """
        watcher = Watcher(job_id, self.clock, self.changes)
        if self._closed:
            watcher.end_locked(_stopped())
        else:
            watcher = self._watchers.setdefault(job_id, watcher)
        if not watcher.runs:
            watcher.threads.start(partial(self._watch, watcher), "smartbatch-job")
            watcher.runs = True
        return watcher

    def _watch(self, watcher: Watcher) -> None:
        """Serve those who wait for a job, until there are none."""
        failed = False
        while True:
            seen, ending = self.changes.seen(watcher.job_id), watcher.ending
            try:
                self._serve(watcher)
                failed = False
            except JobNotFound as error:  # it was deleted from the store
                ending = error
            except Exception as error:
                if watcher.ending is None and not failed:  # once, not with every try, nor after a stop
                    self.wiring.report(watcher.job_id, error)
                failed = True
            if watcher.has_ended(ending):
                break
            if ending is None:
                self.changes.wait_for_change(seen, self.refresh_interval(watcher.job_id))
        with self.lock:
            if not watcher.runs and self._watchers.get(watcher.job_id) is watcher:
                del self._watchers[watcher.job_id]

    def _serve(self, watcher: Watcher) -> None:
        awaited = watcher.settle(self.store)
        row = stored_job(self.store, watcher.job_id)
        ended = row.state is JobState.DONE
        if not ended:
            self.carry_on(row.id)
        if awaited:
            self.tell_held(row)
        watcher.call(partial(self.status_of, row), ended=ended)

    def told(self, event: Event) -> None:
        """Tell an event; the end of a job once only, whoever stored its last result."""
        if isinstance(event, JobFinished):
            with self.lock:
                if not self.changes.is_new_end_locked(event):
                    return
                self._attended.discard(event.job_id)
        if isinstance(event, _NEWS):
            self.changes.notify(event.job_id, progress=isinstance(event, JobProgress))
        self.wiring.tell(event)

    def tell_held(self, row: JobRow) -> None:
        """Tell whoever waits for a job that it is held; once, until it goes on."""
        with self.lock:
            if not self.changes.is_newly_held_locked(row):
                return
        at, reason = self.clock.now(), row.note or "held: it waits for a person"
        remedy = f"smartbatch.job({row.id!r}).resume()"
        self.wiring.tell(JobHeld(at=at, job_id=row.id, model=row.model, reason=reason, remedy=remedy))

    def _note(self, row: JobRow) -> str | None:
        """What keeps the job from going on, as far as this process can tell."""
        supervisor = self._supervisor
        if row.state is JobState.DONE:
            return None
        if (pause := self.store.controls.controls().pause_of(row.model)) is not None:
            return str(pause)
        if supervisor is not None and (error := supervisor.problem_with(row.id)) is not None:
            return error
        if row.policy.attended and row.id not in self._attended and self.is_free(row.id):
            goes_on = f"the same line again, or smartbatch jobs resume {row.id}, goes on"
            return f"its run was interrupted: {goes_on}"
        if row.owner is not None:
            return None
        if (problem := self.providers.problem_with(row)) is not None:
            return problem
        if supervisor is None:
            return "nobody carries it on at the moment: wait for it, or resume it"
        return None

    # -- endings ---------------------------------------------------------------------------------------------

    @property
    def is_working(self) -> bool:
        """Whether the threads that carry jobs on run."""
        return self._supervisor is not None

    def on_own_thread(self) -> bool:
        """Whether the caller runs on a thread of the engine, in an observer of the user's."""
        supervisor = self._supervisor
        return supervisor is not None and supervisor.on_own_thread()

    def halt(self) -> None:
        """Begin to stop: start nothing more, but keep the jobs while answers are under way."""
        with self._monitor:
            self._closed = True
            supervisor = self._supervisor
            self._monitor.notify_all()
        if supervisor is not None:
            supervisor.halt()
            supervisor.realtime.halt()

    def finish(self, until: float, save: Callable[[], object] = lambda: None) -> None:
        """Give the jobs back, and close the store. It returns at ``until``, whatever the store does.

        Each part waits in memory for what threads have under way; the calls of the store that come last are
        made on a thread of their own. Where the engine was opened again meanwhile, the store stays open up to
        the next stop. A thread that comes while another does this waits for its end. Where its time is over
        before, it ends what was started in between, and leaves the store to the other if that one closes it.

        Args:
            until: monotonic seconds.
            save: called before the store is closed, with the calls that may hang.
        """
        with self._monitor:
            wait_while(lambda: self._stops, self._monitor, self.clock, until - self.clock.now())
            store = self._store
            closes = not any(other.closes and other.store is store for other in self._stops)
            if not closes and self._supervisor is None:
                return
            supervisor, self._supervisor = self._supervisor, None
            watchers, self._watchers = list(self._watchers.values()), {}
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
        """Do what :meth:`finish` does. In order: answers that came are stored; remote calls under way end;
        who waits for jobs hears of it; jobs are given back, and the store is closed."""

        def left(reserved: float) -> float:
            return max(0.0, until - reserved - self.clock.now())

        leases: list[JobLease] = []
        if supervisor is not None:
            unstored = supervisor.realtime.finish(left(2 * LAST_NEWS))
            if unstored:
                unstored.report_loss(self.wiring.tell, self.clock.now())
            leases = supervisor.end(left(2 * LAST_NEWS))
        error = _stopped()
        with self.lock:
            for watcher in watchers:
                watcher.end_locked(error)
        for watcher in watchers:
            watcher.finish(left(LAST_NEWS))
            watcher.give_up(error)
        store = self._detach(stop)
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

        if not run_within(close, max(CLOSING, left(0.0)), self.clock, "smartbatch-close"):
            if store is not None:
                store.give_up()  # else its threads would keep the interpreter from ending
            text = "the store did not answer at the stop: its jobs are given back when their leases are over"
            self.wiring.report(None, StoreError(text))
        if supervisor is not None:
            something_ended()  # not before: the thread of what runs may be the one that closes the store

    def _detach(self, stop: _Stop) -> SqlStore | None:
        """Return the store that a stop closes; ``None`` where another stop does. The cases, in order:

        1. An earlier stop does.
        2. The engine was opened again, or carries jobs on that a later stop is to end: that one does.
        3. Nobody uses it any more.
        """
        with self.lock:
            stop.closes = stop.closes and self._closed and self._supervisor is None
            if not stop.closes:
                return None
            store, self._store = self._store, None
            return store

    def look(
        self, read: Callable[[], T], seconds: float | None, error: Callable[[str], SmartbatchError]
    ) -> T:
        """Return what ``read`` reads of the store.

        Raises:
            SmartbatchError: what ``error`` makes of a text, where it has not answered for ``seconds``.
        """
        if seconds is None:
            return read()
        if found := self._reads.read(read, seconds, "smartbatch-look"):
            return found[0]
        place = "of the client" if self._store is None else self._store.place
        raise error(
            f"the store {place} has not answered for {seconds:.3g} s: another process may hold it, or its "
            "server hang; nothing is lost, look again later"
        )

    def abandon(self, error: WrongProcess) -> None:
        """In a forked child: end the copies of the parent's futures. Takes no inherited lock."""
        self._closed = True
        self.providers.abandon()
        if self._store is not None:
            self._store.abandon()
        for watcher in list(self._watchers.values()):
            watcher.abandon(error)


def _closed() -> ClientClosed:
    return ClientClosed("the client was stopped; call start() to use it again")


def _stopped() -> ClientClosed:
    return ClientClosed(
        "the client was stopped before the result was stored; nothing is lost: the job can be taken up again"
    )
