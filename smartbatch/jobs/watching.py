"""Waiting for news of jobs: what was told of each, and a watcher that serves one of them.

A watcher settles futures and calls callbacks from what is stored, and from nothing else.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from attrs import define, evolve, frozen

from smartbatch._clock import Clock, Monitor
from smartbatch.errors import JobNotFound, SmartbatchError, StoreError, WrongProcess
from smartbatch.events import JobFinished
from smartbatch.jobs.records import JobRow, JobState, ResultRow
from smartbatch.jobs.status import JobStatus
from smartbatch.jobs.store import SqlStore
from smartbatch.jobs.threads import OwnThreads, wait_while
from smartbatch.observe import logs
from smartbatch.types import Result

PAGE = 1000
"""Results read at a time."""
REMEMBERED = 1_000
"""Jobs whose changes are counted before all are forgotten, and finished jobs that are remembered. Few of the
latter are needed: two threads may tell the end of a job, and do so within moments."""


def stored_job(store: SqlStore, job_id: str) -> JobRow:
    """Return a job as it stands.

    Raises:
        JobNotFound: it was deleted from the store.
    """
    row = store.jobs.get(job_id)
    if row is None:
        raise JobNotFound(f"job {job_id} is no longer in the store {store.place}")
    return row


@frozen
class SeenChanges:
    """What was told of a job up to a moment.

    Attributes:
        forgotten: how often jobs were forgotten.
        changes, progress: how often it was told of the job; progress is ``None`` where it does not matter.
    """

    job_id: str
    forgotten: int
    changes: int
    progress: int | None


class Changes:
    """Wakes threads that wait for a change of a job in the store, and only those that wait for that one; and
    says whether the end of a job, or that it is held, is news. Safe from any thread.

    Ask for :meth:`seen` before reading the store, and hand it to :meth:`wait_for_change` afterwards: a change
    between the two ends the wait at once.

    Args:
        lock: of the engine, which methods in ``_locked`` need.
    """

    def __init__(self, clock: Clock, lock: threading.Lock) -> None:
        self.lock = lock
        self._clock = clock
        self._changes: Counter[str] = Counter()
        self._progress: Counter[str] = Counter()
        self._waiting: dict[Monitor, SeenChanges] = {}
        self._forgotten = 0
        self._ends: dict[str, JobFinished] = {}
        self._held: dict[str, str | None] = {}

    def notify(self, job_id: str, *, progress: bool = False) -> None:
        """Wake the threads that wait for a job; now and then all of them, to forget jobs.

        Args:
            progress: results of it were stored, and nothing else has changed.
        """
        with self.lock:
            self.notify_locked(job_id, progress=progress)

    def notify_locked(self, job_id: str, *, progress: bool = False) -> None:
        if len(self._changes) + len(self._progress) >= REMEMBERED:
            self._changes.clear()
            self._progress.clear()
            self._forgotten += 1
        (self._progress if progress else self._changes)[job_id] += 1
        for waiter, seen in self._waiting.items():
            concerned = seen.job_id == job_id and (seen.progress is not None or not progress)
            if concerned or seen.forgotten != self._forgotten:
                waiter.notify()

    def seen(self, job_id: str, *, progress: bool = True) -> SeenChanges:
        """Return what was told of a job by now, with its progress or without."""
        with self.lock:
            return self._seen_locked(job_id, progress=progress)

    def _seen_locked(self, job_id: str, *, progress: bool) -> SeenChanges:
        told = self._progress[job_id] if progress else None
        return SeenChanges(job_id, self._forgotten, self._changes[job_id], told)

    def wait_for_change(self, seen: SeenChanges, timeout: float) -> None:
        """Wait for a change after ``seen``, or for ``timeout`` seconds."""
        progress = seen.progress is not None
        waiter = self._clock.monitor(self.lock)
        with waiter:
            try:
                self._waiting[waiter] = seen
                wait_while(
                    lambda: self._seen_locked(seen.job_id, progress=progress) == seen,
                    waiter,
                    self._clock,
                    timeout,
                )
            finally:
                self._waiting.pop(waiter, None)

    def is_new_end_locked(self, event: JobFinished) -> bool:
        """Whether the end of a job was not told yet. One whose failed rows were asked again has another."""
        end = evolve(event, at=0.0)
        if self._ends.get(event.job_id) == end:
            return False
        self._ends[event.job_id] = end
        if len(self._ends) > REMEMBERED:
            del self._ends[next(iter(self._ends))]
        self.goes_on_locked(event.job_id)
        return True

    def is_newly_held_locked(self, row: JobRow) -> bool:
        """Whether a job is held, and for another reason than the one told last."""
        if row.state is not JobState.HELD:
            self.goes_on_locked(row.id)
            return False
        if row.id in self._held and self._held[row.id] == row.note:
            return False
        self._held[row.id] = row.note
        return True

    def goes_on_locked(self, job_id: str) -> None:
        """A job is held no longer."""
        self._held.pop(job_id, None)


class ItemWaiter(Protocol):
    """Waits for the result of an item, as a future does."""

    def settle(self, result: Result) -> None:
        """Take the result as it is stored, or one with the error that ended the waiting for it."""
        ...

    def abandon(self, error: WrongProcess) -> None:
        """In a forked child: what was waited for belongs to the parent. Takes no inherited lock."""
        ...


@define(eq=False)
class _FutureGroup:
    """Futures that were made by one call.

    Attributes:
        waiting: those that are not settled, by the position of their item. They can be settled and abandoned.
        read: makes the result that they get.
        after: sequence number of the last result that was read for them.
    """

    waiting: dict[int, Any]
    read: Callable[[ResultRow, str], Result]
    after: int = 0

    def take(self) -> Any:
        """Take one that is not settled, which no other thread settles then; ``None`` when all are."""
        with contextlib.suppress(KeyError):
            return self.waiting.popitem()[1]
        return None


@define(eq=False)
class _Callback:
    """A user's callback, and the part of the status it was called with last."""

    call: Callable[[JobStatus], object]
    last: tuple[Any, ...] | None = None


class Watcher:
    """Those who wait for one job; a thread of the engine serves them while there are any. Methods in
    ``_locked`` need the engine's lock.

    Attributes:
        threads: the thread that serves them.
        runs: whether it runs.
        ending: what the futures fail with that are not stored, once the watch ends.
    """

    def __init__(self, job_id: str, clock: Clock, changes: Changes) -> None:
        self.job_id = job_id
        self._clock = clock
        self._changes = changes
        self._monitor = clock.monitor(changes.lock)
        self.threads = OwnThreads(clock)
        self.runs = False
        self.ending: SmartbatchError | None = None
        self._groups: list[_FutureGroup] = []
        self._settling: Any = None  # hooks of the user's may run for it, and a process fork meanwhile
        self._callbacks: list[_Callback] = []

    def deliver_locked(
        self, waiters: Mapping[int, Any], read: Callable[[ResultRow, str], Result], *, after: int = 0
    ) -> None:
        """Settle ``waiters``, by the position of their item, with what ``read`` makes of each result whose
        sequence number is above ``after``."""
        self._groups.append(_FutureGroup(dict(waiters), read, after))
        self._changes.notify_locked(self.job_id)

    def listen_locked(self, call: Callable[[JobStatus], object]) -> None:
        """Call ``call`` with the status, now and after each change, up to the end."""
        self._callbacks.append(_Callback(call))
        self._changes.notify_locked(self.job_id)

    def end_locked(self, error: SmartbatchError) -> None:
        """Settle futures with what is stored by now, fail the others with ``error``, and end the thread."""
        self.ending = error
        self._changes.notify_locked(self.job_id)

    def finish(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds for the thread to end; return at once in a callback."""
        with self._monitor:
            if not self.threads.has_current():
                wait_while(lambda: self.runs, self._monitor, self._clock, timeout)

    def give_up(self, error: SmartbatchError) -> None:
        """Fail the futures that are left, where the store does not answer and the thread waits for it."""
        with self._monitor:
            groups, self._groups, self._callbacks = self._groups, [], []
        for group in groups:
            while (future := group.take()) is not None:
                future.settle(Result("", error=error))

    def abandon(self, error: WrongProcess) -> None:
        """In a forked child: end the copies of the parent's futures."""
        for group in list(self._groups):
            for future in list(group.waiting.values()):
                future.abandon(error)
        settling = self._settling
        if settling is not None:
            settling.abandon(error)

    def settle(self, store: SqlStore) -> bool:
        """Settle the futures whose results are stored; return whether any were waiting."""
        with self._monitor:
            self._groups = _merged(self._groups)
            groups = list(self._groups)
        for group in groups:
            self._settle(group, store)
        return bool(groups)

    def call(self, status_of: Callable[[], JobStatus], *, ended: bool) -> None:
        """Call the callbacks whose part of the status changed: for the last time where the job has ended."""
        with self._monitor:
            callbacks = list(self._callbacks)
        if callbacks:
            self._call(callbacks, status_of())
        with self._monitor:
            self._groups = [group for group in self._groups if group.waiting]
            if ended:  # keep those that were added meanwhile: they get their one call
                self._callbacks = [one for one in self._callbacks if one not in callbacks]

    def _settle(self, group: _FutureGroup, store: SqlStore) -> None:
        while group.waiting:
            page = store.items.fresh(self.job_id, after=group.after, limit=PAGE)
            for row in page:
                group.after = row.seq
                self._settling = group.waiting.get(row.ix)  # first: a forked child finds it in one of the two
                future = group.waiting.pop(row.ix, None)
                if future is not None:
                    future.settle(self._read(group, row))
                self._settling = None
            if not page:
                return

    def _read(self, group: _FutureGroup, row: ResultRow) -> Result:
        """Return the result in a row; a failed one where it is damaged, or of a newer version."""
        try:
            return group.read(row, self.job_id)
        except StoreError as error:
            return Result("", error=error)

    def _call(self, callbacks: Sequence[_Callback], status: JobStatus) -> None:
        visible = _visible(status)
        for callback in callbacks:
            if callback.last == visible:
                continue
            callback.last = visible
            try:
                callback.call(status)
            except BaseException as error:  # a user's error must not end this thread
                logs.user_error("on_progress", error)

    def has_ended(self, ending: SmartbatchError | None) -> bool:
        """Fail what is left where the watch ends, and say whether the thread is to end.

        1. Futures or callbacks are left, and the watch goes on: False.
        2. Nothing is left: True.
        3. The watch ends with ``ending``: the futures that are left fail with it, then True.
        4. Something was added while they failed: False, so that it is served as well.
        """
        with self._monitor:
            if ending is None and (self._groups or self._callbacks):
                return False
            groups, self._groups, self._callbacks = self._groups, [], []
        for group in groups:
            while (future := group.take()) is not None:
                future.settle(Result("", error=ending))
        with self._monitor:
            if self._groups or self._callbacks:
                return False
            self.runs = False
            self._monitor.notify_all()
        return True


def _merged(groups: Iterable[_FutureGroup]) -> list[_FutureGroup]:
    """Merge groups that are read alike, so that each result is read once for all of them.

    Single requests of one job make a group each. Groups that wait for the same item stay separate.
    """
    merged: list[_FutureGroup] = []
    for group in groups:
        for other in merged:
            if other.read == group.read and other.waiting.keys().isdisjoint(group.waiting):
                other.waiting.update(group.waiting)
                other.after = min(other.after, group.after)
                break
        else:
            merged.append(group)
    return merged


def _visible(status: JobStatus) -> tuple[Any, ...]:
    """Return the part of a status whose change is worth a callback; a change of the time is not."""
    return (
        *(status.state, status.submitted, status.finished, status.failed, status.running, status.note),
        *((shard.no, shard.state, shard.done) for shard in status.shards),
        len(status.incidents),
    )
