"""The thread that tells of one job: it ends futures and calls callbacks, of what is stored only."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from attrs import define

from smartbatch._clock import Clock
from smartbatch.errors import JobNotFound, SmartbatchError, WrongProcess
from smartbatch.jobs.notifier import ChangeNotifier
from smartbatch.jobs.records import JobRow, JobState, ResultRow
from smartbatch.jobs.status import JobStatus
from smartbatch.jobs.store.base import Store
from smartbatch.types import Result

__all__ = ["JobFuture", "Watched", "Watcher"]

PAGE = 1000
"""Results read at a time."""


class JobFuture(Protocol):
    """What a watcher needs of a future besides what ``concurrent.futures`` gives it."""

    def settle(self, result: Result) -> None: ...

    def abandon(self, error: WrongProcess) -> None: ...


class Watched(Protocol):
    """Where a watcher finds what it tells of; see :class:`smartbatch.jobs.service.JobService`."""

    @property
    def store(self) -> Store: ...

    clock: Clock
    notifier: ChangeNotifier

    def patience(self, job_id: str) -> float: ...

    def status_of(self, row: JobRow) -> JobStatus: ...

    def result_of(self, row: ResultRow, job_id: str) -> Result: ...

    def new_future(self) -> Any: ...

    def tell_held(self, row: JobRow) -> None: ...

    def report(self, job_id: str | None, error: BaseException) -> None: ...


@define(eq=False)
class _Book:
    """Futures that were handed out together, by position, and how far results were read for them."""

    waiting: dict[int, Any]
    after: int = 0


@define(eq=False)
class _Listener:
    """A callback, and what it was told last."""

    call: Callable[[JobStatus], object]
    told: tuple[Any, ...] | None = None


class Watcher:
    """Watches one job for those who want to hear of it; its thread lives while somebody does."""

    def __init__(self, job_id: str, service: Watched) -> None:
        self._job_id = job_id
        self._service = service
        self._monitor = service.clock.monitor()
        self._thread: threading.Thread | None = None
        self._counts: list[_Book] = []
        self._listeners: list[_Listener] = []
        self._ending: SmartbatchError | None = None

    def futures(self, total: int) -> list[Future[Result]]:
        """Return a future for each item, in order."""
        futures = [self._service.new_future() for _ in range(total)]
        if futures:
            with self._monitor:
                self._counts.append(_Book(dict(enumerate(futures))))
                self._start_locked()
            self._service.notifier.ring()
        return futures

    def listen(self, call: Callable[[JobStatus], object]) -> None:
        """Call ``call`` with the status, now and after each change, up to the end."""
        with self._monitor:
            self._listeners.append(_Listener(call))
            self._start_locked()
        self._service.notifier.ring()

    def end(self, error: SmartbatchError) -> None:
        """Tell what is stored by now, fail the futures that are left with ``error``, and end."""
        with self._monitor:
            self._ending = error
        self._service.notifier.ring()

    def finish(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds until everything was told; not at all from a callback."""
        until = self._service.clock.now() + timeout
        with self._monitor:
            while self._thread is not None and self._thread is not threading.current_thread():
                remaining = until - self._service.clock.now()
                if remaining <= 0:
                    return
                self._monitor.wait(remaining)

    def abandon(self, error: WrongProcess) -> None:
        """In a forked child: end the copies of the parent's futures."""
        for book in list(self._counts):
            for future in list(book.waiting.values()):
                future.abandon(error)

    def _start_locked(self) -> None:
        if self._thread is not None:
            return
        clock = self._service.clock
        thread = threading.Thread(target=self._watch, name="smartbatch-job", daemon=True)
        clock.spawned()
        try:
            thread.start()
        except RuntimeError:
            clock.unspawned()
            raise
        self._thread = thread

    def _watch(self) -> None:
        service = self._service
        service.clock.began()
        stumbled = False
        try:
            while True:
                seen, ending = service.notifier.rings, self._ending
                try:
                    self._look()
                    stumbled = False
                except JobNotFound as error:  # forgotten meanwhile
                    ending = error
                except Exception as error:
                    if not stumbled:
                        service.report(self._job_id, error)
                    stumbled = True
                if self._over(ending):
                    return
                if ending is None:
                    service.notifier.listen(seen, service.patience(self._job_id))
        finally:
            service.clock.ended()

    def _look(self) -> None:
        """Tell everybody what is new."""
        with self._monitor:
            counts, listeners = list(self._counts), list(self._listeners)
        for book in counts:
            self._settle(book)
        row = self._service.store.job(self._job_id)
        if row is None:
            raise JobNotFound(f"job {self._job_id} is no longer in the store {self._service.store.place}")
        if counts:
            self._service.tell_held(row)
        if listeners:
            self._call(listeners, row)
        with self._monitor:
            self._counts = [book for book in self._counts if book.waiting]
            if row.state is JobState.DONE:
                told = set(listeners)
                self._listeners = [one for one in self._listeners if one not in told]

    def _settle(self, book: _Book) -> None:
        while True:
            page = self._service.store.fresh(self._job_id, after=book.after, limit=PAGE)
            for row in page:
                book.after = row.seq
                future = book.waiting.pop(row.ix, None)
                if future is not None:
                    future.settle(self._service.result_of(row, self._job_id))
            if not page:
                return

    def _call(self, listeners: Sequence[_Listener], row: JobRow) -> None:
        status = self._service.status_of(row)
        news = _news(status)
        for listener in listeners:
            if listener.told == news:
                continue
            listener.told = news
            try:
                listener.call(status)
            except BaseException as error:  # a callback hurts nobody
                self._service.report(self._job_id, error)

    def _over(self, ending: SmartbatchError | None) -> bool:
        """Whether nobody wants to hear of the job any more, or nothing will come."""
        with self._monitor:
            if ending is None and (self._counts or self._listeners):
                return False
            counts, self._counts, self._listeners = self._counts, [], []
        for book in counts:
            for future in book.waiting.values():
                future.settle(Result("", error=ending))
        with self._monitor:
            if self._counts or self._listeners:
                return False  # somebody came meanwhile
            self._thread = None
            self._monitor.notify_all()
        return True


def _news(status: JobStatus) -> tuple[Any, ...]:
    """What makes two statuses differ for people; time alone does not."""
    return (
        *(status.state, status.submitted, status.finished, status.failed, status.running, status.note),
        *((shard.no, shard.state, shard.done) for shard in status.shards),
        len(status.incidents),
    )
