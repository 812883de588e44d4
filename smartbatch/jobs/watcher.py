"""Waiting for news of jobs: a notifier that wakes waiting threads, and a watcher that serves one job.

A watcher settles futures and calls callbacks from what is stored, and from nothing else.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from attrs import define, frozen

from smartbatch._clock import Clock, Monitor
from smartbatch.errors import JobNotFound, SmartbatchError, StoreError, WrongProcess
from smartbatch.jobs.records import JobRow, JobState, ResultRow
from smartbatch.jobs.status import JobStatus
from smartbatch.jobs.store import SqlStore
from smartbatch.jobs.threads import OwnThreads, wait_while
from smartbatch.jobs.wiring import JobWiring
from smartbatch.observe import logs
from smartbatch.types import Result

PAGE = 1000
"""Results read at a time."""
REMEMBERED = 1_000
"""Jobs whose changes are counted before all are forgotten."""


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


class ChangeNotifier:
    """Wakes threads that wait for a change of a job in the store, and only those that wait for that one. Safe
    from any thread.

    Ask for :meth:`seen` before reading the store, and hand it to :meth:`wait_for_change` afterwards: a change
    between the two ends the wait at once.
    """

    def __init__(self, clock: Clock) -> None:
        self._monitor = clock.monitor()
        self._clock = clock
        self._changes: Counter[str] = Counter()
        self._progress: Counter[str] = Counter()
        self._waiting: dict[Monitor, SeenChanges] = {}
        self._forgotten = 0

    def notify(self, job_id: str, *, progress: bool = False) -> None:
        """Wake the threads that wait for a job; now and then all of them, to forget jobs.

        Args:
            progress: results of it were stored, and nothing else has changed.
        """
        with self._monitor:
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
        with self._monitor:
            return self._seen_locked(job_id, progress=progress)

    def _seen_locked(self, job_id: str, *, progress: bool) -> SeenChanges:
        told = self._progress[job_id] if progress else None
        return SeenChanges(job_id, self._forgotten, self._changes[job_id], told)

    def wait_for_change(self, seen: SeenChanges, timeout: float) -> None:
        """Wait for a change after ``seen``, or for ``timeout`` seconds."""
        progress = seen.progress is not None
        waiter = self._clock.monitor(self._monitor.lock)
        with self._monitor:
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


class ItemWaiter(Protocol):
    """Waits for the result of an item, as a future does."""

    def settle(self, result: Result) -> None:
        """Take the result as it is stored, or one with the error that ended the waiting for it."""
        ...

    def abandon(self, error: WrongProcess) -> None:
        """In a forked child: what was waited for belongs to the parent. Takes no inherited lock."""
        ...


class WatchedService(Protocol):
    """What a watcher needs of :class:`smartbatch.jobs.service.JobService`."""

    @property
    def store(self) -> SqlStore: ...

    clock: Clock
    notifier: ChangeNotifier

    @property
    def wiring(self) -> JobWiring: ...

    def carry_on(self, job_id: str) -> None: ...

    def refresh_interval(self, job_id: str) -> float: ...

    def status_of(self, row: JobRow) -> JobStatus: ...

    def result_of(self, row: ResultRow, job_id: str) -> Result: ...

    def tell_held(self, row: JobRow) -> None: ...


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
    """Watches one job. Its thread runs while there are unsettled futures or callbacks."""

    def __init__(self, job_id: str, service: WatchedService) -> None:
        self._job_id = job_id
        self._service = service
        self._monitor = service.clock.monitor()
        self._threads = OwnThreads(service.clock)
        self._running = False
        self._groups: list[_FutureGroup] = []
        self._settling: Any = None  # hooks of the user's may run for it, and a process fork meanwhile
        self._callbacks: list[_Callback] = []
        self._ending: SmartbatchError | None = None

    @property
    def is_idle(self) -> bool:
        """Whether there is nobody left to tell."""
        return not self._running

    def futures(self, total: int) -> list[Future[Result]]:
        """Return a future for each item, in order.

        Raises:
            RuntimeError: no thread can be had; nothing is kept. So it is below.
        """
        futures = [self._service.wiring.new_future() for _ in range(total)]
        if futures:
            self._settle_later(_FutureGroup(dict(enumerate(futures)), self._service.result_of))
        return futures

    def deliver(
        self, waiters: Mapping[int, Any], read: Callable[[ResultRow, str], Result], *, after: int = 0
    ) -> None:
        """Settle ``waiters``, by the position of their item, with what ``read`` makes of each result whose
        sequence number is above ``after``."""
        self._settle_later(_FutureGroup(dict(waiters), read, after))

    def _settle_later(self, group: _FutureGroup) -> None:
        with self._monitor:
            self._start_locked()
            self._groups.append(group)
        self._service.notifier.notify(self._job_id)

    def listen(self, call: Callable[[JobStatus], object]) -> None:
        """Call ``call`` with the status, now and after each change, up to the end."""
        with self._monitor:
            self._start_locked()
            self._callbacks.append(_Callback(call))
        self._service.notifier.notify(self._job_id)

    def end(self, error: SmartbatchError) -> None:
        """Settle futures with what is stored by now, fail the others with ``error``, and end the thread."""
        with self._monitor:
            self._ending = error
        self._service.notifier.notify(self._job_id)

    def finish(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds for the thread to end; return at once in a callback."""
        with self._monitor:
            if not self._threads.has_current():
                wait_while(lambda: self._running, self._monitor, self._service.clock, timeout)

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

    def _start_locked(self) -> None:
        if not self._running:
            self._threads.start(self._watch, "smartbatch-job")
            self._running = True

    def _watch(self) -> None:
        service, failed = self._service, False
        while True:
            seen, ending = service.notifier.seen(self._job_id), self._ending
            try:
                self.update()
                failed = False
            except JobNotFound as error:  # it was deleted from the store
                ending = error
            except Exception as error:
                if self._ending is None and not failed:  # reported once, not with every try, nor after a stop
                    service.wiring.report(self._job_id, error)
                failed = True
            if self._has_ended(ending):
                return
            if ending is None:
                service.notifier.wait_for_change(seen, service.refresh_interval(self._job_id))

    def update(self) -> None:
        """Settle the futures whose results are stored, call the callbacks whose status changed, and have the
        job carried on.

        Raises:
            JobNotFound: the job was deleted from the store.
        """
        with self._monitor:
            self._groups = _merged(self._groups)
            groups, callbacks = list(self._groups), list(self._callbacks)
        for group in groups:
            self._settle(group)
        row = stored_job(self._service.store, self._job_id)
        if row.state is not JobState.DONE:
            self._service.carry_on(self._job_id)
        if groups:
            self._service.tell_held(row)
        if callbacks:
            self._call(callbacks, row)
        with self._monitor:
            self._groups = [group for group in self._groups if group.waiting]
            if row.state is JobState.DONE:  # keep those that were added meanwhile: they get their one call
                self._callbacks = [one for one in self._callbacks if one not in callbacks]

    def _settle(self, group: _FutureGroup) -> None:
        while group.waiting:
            page = self._service.store.items.fresh(self._job_id, after=group.after, limit=PAGE)
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
            return group.read(row, self._job_id)
        except StoreError as error:
            return Result("", error=error)

    def _call(self, callbacks: Sequence[_Callback], row: JobRow) -> None:
        status = self._service.status_of(row)
        visible = _visible(status)
        for callback in callbacks:
            if callback.last == visible:
                continue
            callback.last = visible
            try:
                callback.call(status)
            except BaseException as error:  # a user's error must not end this thread
                logs.user_error("on_progress", error)

    def _has_ended(self, ending: SmartbatchError | None) -> bool:
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
            self._running = False
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
