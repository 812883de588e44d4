"""Waiting for changes of jobs: wakes threads after changes, and serves the waiters of each job.

A watcher completes futures and calls callbacks from stored results only.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from attrs import define, evolve, frozen

from smartbatch._clock import Clock, Monitor
from smartbatch.core.preparation.structured import Parsed, read_answer
from smartbatch.errors import AnswerUnread, JobNotFound, SmartbatchError, StoreError, WrongProcess
from smartbatch.events import JobFinished
from smartbatch.jobs.payload import (
    context_of,
    decode_params,
    decode_request,
    decode_result,
    item_id,
    place_of,
    with_earlier_tries,
)
from smartbatch.jobs.records import JobRow, JobState, ResultRow
from smartbatch.jobs.status import JobStatus
from smartbatch.jobs.store import SqlStore
from smartbatch.jobs.threads import OwnThreads, wait_while
from smartbatch.jobs.wiring import JobWiring
from smartbatch.observe import logs
from smartbatch.types import Result, Usage

PAGE_RESULTS = 1000
MAX_KNOWN_JOBS = 1_000
"""Maximum number of jobs whose changes are counted, and of finished jobs that are remembered.

A few finished jobs would do, because threads that publish the end of the same job do so within moments.
"""


def stored_job(store: SqlStore, job_id: str) -> JobRow:
    """Return the current row of a job.

    Raises:
        JobNotFound: the job was deleted from the store.
    """
    row = store.jobs.get(job_id)
    if row is None:
        raise JobNotFound(f"job {job_id} is no longer in the store {store.place}")
    return row


def result_of_row(row: ResultRow, job_id: str, files: str) -> Result:
    """Return the result of an item. An item that shares the answer of another one cost nothing."""
    request_id = item_id(job_id, row.ix, row.user_id)
    result = decode_result(row.body, request_id=request_id, request=row.payload, files=files)
    # the body of an error is shared by many rows and does not contain their costs
    result = result if result.cost is not None else evolve(result, cost=row.cost)
    result = with_earlier_tries(result, row.earlier)
    if row.follower:
        return evolve(result, context=context_of(row.payload), usage=Usage(), cost=0.0, deduplicated=True)
    return result


def result_as_stored(row: ResultRow, job_id: str, files: str, params: Callable[[], bytes]) -> Result:
    """Return a result with the position of its prompt and the number of the answer.

    Args:
        files: the folder of the job's files.
        params: returns the parameters that all requests of the job share.
    """
    result = result_of_row(row, job_id, files)
    prompt, sample = place_of(row.payload)
    result = result if prompt is None else evolve(result, row=prompt, sample=sample)
    return _read_again(result, row, params) if isinstance(result.error, AnswerUnread) else result


def _read_again(result: Result, row: ResultRow, params: Callable[[], bytes]) -> Result:
    """Parse an answer again that smartbatch failed to parse earlier. The stored row is not changed."""
    unread = result.error
    assert isinstance(unread, AnswerUnread)
    request = decode_request(row.payload, decode_params(params()), id=result.request_id)
    verdict = read_answer(request.params, result.text, unread.finish_reason)
    if isinstance(verdict, Parsed):
        return evolve(result, parsed=verdict.value, error=None)
    error = verdict.error(
        text=result.text,
        finish_reason=unread.finish_reason,
        tries=unread.tries,
        usage=unread.usage,
        request_id=result.request_id,
    )
    error.attempts, error.route = unread.attempts, unread.route
    return evolve(result, error=error)


@frozen
class SeenChanges:
    """The number of changes published up to some moment."""

    job_id: str
    forgotten: int  # number of times all counts were dropped
    changes: int
    progress: int | None  # None to ignore progress


class Changes:
    """Wakes threads that wait for a change of a job, and remembers the published ends and holds. Thread-safe.

    Methods ending in ``_locked`` need the engine's lock. Call :meth:`seen` before reading the store, and pass
    its value to :meth:`wait_for_change` afterwards: a change during the read then ends the wait immediately.
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
        """Wake threads that wait for a job. ``progress`` is true if only the number of results changed."""
        with self.lock:
            self.notify_locked(job_id, progress=progress)

    def notify_locked(self, job_id: str, *, progress: bool = False) -> None:
        # drop the counts and wake all threads
        if len(self._changes) + len(self._progress) >= MAX_KNOWN_JOBS:
            self._changes.clear()
            self._progress.clear()
            self._forgotten += 1
        (self._progress if progress else self._changes)[job_id] += 1
        for waiter, seen in self._waiting.items():
            concerned = seen.job_id == job_id and (seen.progress is not None or not progress)
            if concerned or seen.forgotten != self._forgotten:
                waiter.notify()

    def seen(self, job_id: str, *, progress: bool = True) -> SeenChanges:
        with self.lock:
            return self._seen_locked(job_id, progress=progress)

    def _seen_locked(self, job_id: str, *, progress: bool) -> SeenChanges:
        seen = self._progress[job_id] if progress else None
        return SeenChanges(job_id, self._forgotten, self._changes[job_id], seen)

    def wait_for_change(self, seen: SeenChanges, timeout: float) -> None:
        """Wait for a change after ``seen``, at most ``timeout`` seconds."""
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
        """Return true if the end of a job has not been published yet. A job with retried rows ends again."""
        end = evolve(event, at=0.0)
        if self._ends.get(event.job_id) == end:
            return False
        self._ends[event.job_id] = end
        if len(self._ends) > MAX_KNOWN_JOBS:
            del self._ends[next(iter(self._ends))]
        self.clear_held_locked(event.job_id)
        return True

    def is_newly_held_locked(self, row: JobRow) -> bool:
        """Return true if a job is held for a reason other than the last published one."""
        if row.state is not JobState.HELD:
            self.clear_held_locked(row.id)
            return False
        if row.id in self._held and self._held[row.id] == row.note:
            return False
        self._held[row.id] = row.note
        return True

    def clear_held_locked(self, job_id: str) -> None:
        self._held.pop(job_id, None)


class ItemWaiter(Protocol):
    """Receives the result of an item, like a future."""

    def complete(self, result: Result) -> None:
        """Receive the stored result, or a result with the error that ended the wait."""
        ...

    def abandon(self, error: WrongProcess) -> None:
        """End the wait in a forked child. Must not take an inherited lock."""
        ...


@define(eq=False)
class _FutureGroup:
    waiting: dict[int, Any]  # incomplete futures by item position
    read: Callable[[ResultRow, str], Result]
    after: int = 0  # sequence number of the last result read for the group

    def take(self) -> Any:
        """Remove an incomplete future, so that no other thread completes it."""
        with contextlib.suppress(KeyError):
            return self.waiting.popitem()[1]
        return None


@define(eq=False)
class _Callback:
    call: Callable[[JobStatus], object]
    last: tuple[Any, ...] | None = None  # compared part of the last status


class Watcher:
    """The waiters of one job, served by one thread while there are any.

    Methods ending in ``_locked`` need the engine's lock.

    Attributes:
        threads: starts the thread.
        runs: true while the thread runs.
        ending: the error for futures without a stored result when the watch ends.
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
        self._completing: Any = None  # running a user's hooks, during which the process may fork
        self._callbacks: list[_Callback] = []

    def deliver_locked(
        self, waiters: Mapping[int, Any], read: Callable[[ResultRow, str], Result], *, after: int = 0
    ) -> None:
        """Deliver results after sequence number ``after``, processed by ``read``, to ``waiters``."""
        self._groups.append(_FutureGroup(dict(waiters), read, after))
        self._changes.notify_locked(self.job_id)

    def listen_locked(self, call: Callable[[JobStatus], object]) -> None:
        """Call ``call`` with the status, now and after each change, until the job ends."""
        self._callbacks.append(_Callback(call))
        self._changes.notify_locked(self.job_id)

    def end_locked(self, error: SmartbatchError) -> None:
        """Complete futures with stored results, fail the others with ``error``, and end the thread."""
        self.ending = error
        self._changes.notify_locked(self.job_id)

    def finish(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds for the thread to end. In a callback, return immediately."""
        with self._monitor:
            if not self.threads.has_current():
                wait_while(lambda: self.runs, self._monitor, self._clock, timeout)

    def give_up(self, error: SmartbatchError) -> None:
        """Fail the remaining futures, because the thread is waiting for a store that does not answer."""
        with self._monitor:
            groups, self._groups, self._callbacks = self._groups, [], []
        for group in groups:
            while (future := group.take()) is not None:
                future.complete(Result("", error=error))

    def abandon(self, error: WrongProcess) -> None:
        """In a forked child, fail the copies of the parent's futures."""
        for group in list(self._groups):
            for future in list(group.waiting.values()):
                future.abandon(error)
        completing = self._completing
        if completing is not None:
            completing.abandon(error)

    def complete_stored(self, store: SqlStore) -> bool:
        """Complete the futures whose results are stored. Return true if any were waiting."""
        with self._monitor:
            self._groups = _merged(self._groups)
            groups = list(self._groups)
        for group in groups:
            self._complete_group(group, store)
        return bool(groups)

    def call(self, status_of: Callable[[], JobStatus], *, ended: bool) -> None:
        """Call the callbacks for which the status changed. The call at the end of the job is the last one."""
        with self._monitor:
            callbacks = list(self._callbacks)
        if callbacks:
            self._call(callbacks, status_of())
        with self._monitor:
            self._groups = [group for group in self._groups if group.waiting]
            if ended:  # keep callbacks that were added in the meantime, so that each is called once
                self._callbacks = [one for one in self._callbacks if one not in callbacks]

    def _complete_group(self, group: _FutureGroup, store: SqlStore) -> None:
        while group.waiting:
            page = store.items.fresh(self.job_id, after=group.after, limit=PAGE_RESULTS)
            for row in page:
                group.after = row.seq
                # set before the removal, so that a forked child finds the future in one of the two places
                self._completing = group.waiting.get(row.ix)
                future = group.waiting.pop(row.ix, None)
                if future is not None:
                    future.complete(self._read(group, row))
                self._completing = None
            if not page:
                return

    def _read(self, group: _FutureGroup, row: ResultRow) -> Result:
        try:
            return group.read(row, self.job_id)
        except StoreError as error:  # the row is damaged, or was written by a newer version
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
        """Return true if the thread should end. ``ending`` is the error that ends the watch."""
        # 1. futures or callbacks are left, and the watch continues
        with self._monitor:
            if ending is None and (self._groups or self._callbacks):
                return False
            groups, self._groups, self._callbacks = self._groups, [], []
        # 2. the watch ends: fail the remaining futures
        for group in groups:
            while (future := group.take()) is not None:
                future.complete(Result("", error=ending))
        # 3. waiters were added in the meantime: serve them too
        with self._monitor:
            if self._groups or self._callbacks:
                return False
            self.runs = False
            self._monitor.notify_all()
        return True


class Watchers:
    """The watchers of an engine's jobs. Methods ending in ``_locked`` need the engine's lock.

    Args:
        serve: completes the futures and calls the callbacks of a watcher once.
        refresh_interval: seconds until the next read of a job whose change was not published.
    """

    def __init__(
        self,
        clock: Clock,
        changes: Changes,
        wiring: JobWiring,
        *,
        serve: Callable[[Watcher], None],
        refresh_interval: Callable[[str], float],
    ) -> None:
        self._clock = clock
        self._changes = changes
        self._wiring = wiring
        self._serve = serve
        self._refresh_interval = refresh_interval
        self.by_job: dict[str, Watcher] = {}

    def running_locked(self, job_id: str, ending: SmartbatchError | None) -> Watcher:
        """Return the watcher of a job with its thread running. With ``ending``, it ends after one round.

        Raises:
            RuntimeError: no thread is available.
        """
        watcher = Watcher(job_id, self._clock, self._changes)
        if ending is not None:
            watcher.end_locked(ending)
        else:
            watcher = self.by_job.setdefault(job_id, watcher)
        if not watcher.runs:
            watcher.threads.start(partial(self._watch, watcher), "smartbatch-job")
            watcher.runs = True
        return watcher

    def runs_locked(self, job_id: str) -> bool:
        watcher = self.by_job.get(job_id)
        return watcher is not None and watcher.runs

    def take_locked(self) -> list[Watcher]:
        """Hand all watchers to the caller, who ends them."""
        watchers, self.by_job = list(self.by_job.values()), {}
        return watchers

    def finish(self, job_id: str, timeout: float) -> None:
        """Wait up to ``timeout`` seconds for a job's watcher to end."""
        with self._changes.lock:
            watcher = self.by_job.get(job_id)
        if watcher is not None:
            watcher.finish(timeout)

    def abandon(self, error: WrongProcess) -> None:
        """In a forked child, fail the copies of the parent's futures. Must not take an inherited lock."""
        for watcher in list(self.by_job.values()):
            watcher.abandon(error)

    def _watch(self, watcher: Watcher) -> None:
        failed = False
        while True:
            seen, ending = self._changes.seen(watcher.job_id), watcher.ending
            try:
                self._serve(watcher)
                failed = False
            except JobNotFound as error:  # the job was deleted from the store
                ending = error
            except Exception as error:
                if watcher.ending is None and not failed:  # only once, and not after a stop
                    self._wiring.report(watcher.job_id, error)
                failed = True
            if watcher.has_ended(ending):
                break
            if ending is None:
                self._changes.wait_for_change(seen, self._refresh_interval(watcher.job_id))
        with self._changes.lock:
            if not watcher.runs and self.by_job.get(watcher.job_id) is watcher:
                del self.by_job[watcher.job_id]


def _merged(groups: Iterable[_FutureGroup]) -> list[_FutureGroup]:
    """Merge groups with the same reader, so that each result is read once for all of them.

    Single requests of a job form a group each. Groups that wait for the same item stay separate.
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
    """Return the part of a status whose change triggers a callback, which excludes the time left."""
    return (
        *(status.state, status.submitted, status.finished, status.failed, status.running, status.note),
        *((shard.no, shard.state, shard.done) for shard in status.shards),
        len(status.incidents),
    )
