"""The futures of a process's user: ended by the real watcher of a job, once each and after the commit."""

from __future__ import annotations

import weakref
from typing import Any, NoReturn

from smartbatch._clock import Clock, RealClock
from smartbatch.errors import WrongProcess
from smartbatch.jobs.payload import decode_result
from smartbatch.jobs.records import JobRow, ResultRow
from smartbatch.jobs.status import JobStatus
from smartbatch.jobs.watcher import ChangeNotifier, Watcher
from smartbatch.types import Result
from tests.faults.simulation.disk import Disk, SimStore
from tests.faults.simulation.violation import Violation

__all__ = ["Reader", "tell_all"]


class Reader(Watcher):
    """Watches a job without a thread: it reads when it is told to. It ends with its process.

    Attributes:
        given: what the futures ended with, by position.
    """

    def __init__(self, job_id: str, total: int, store: SimStore, disk: Disk) -> None:
        super().__init__(job_id, _Service(store, self, disk))
        self.given: list[Result | None] = [None] * total
        _readers.add(self)
        self.futures(total)

    def look(self) -> None:
        """End the futures of what is new."""
        self.update()

    def close(self) -> None:
        """Its process has crashed."""
        _readers.discard(self)

    def _start_locked(self) -> None:
        """No thread: the world calls :meth:`look`."""


_readers: weakref.WeakSet[Reader] = weakref.WeakSet()


def tell_all() -> None:
    """Let every reader read at once: for the planted bug that delivers results before their commit."""
    for reader in list(_readers):
        reader.look()


class _Future:
    """A place in the list of a reader."""

    def __init__(self, reader: Reader, disk: Disk, ix: int) -> None:
        self._reader = reader
        self._disk = disk
        self._ix = ix

    def settle(self, result: Result) -> None:
        if self._disk.connection.in_transaction:
            raise Violation(f"I4 the future of item {self._ix} ended before its result was committed")
        if self._reader.given[self._ix] is not None:
            raise Violation(f"I4 the future of item {self._ix} ended twice")
        self._reader.given[self._ix] = result

    def abandon(self, error: WrongProcess) -> NoReturn:
        raise AssertionError("nothing forks here")


class _Service:
    """What a watcher needs of the service."""

    clock: Clock = RealClock()  # for locks only: no thread waits here

    def __init__(self, store: SimStore, reader: Reader, disk: Disk) -> None:
        self.store = store
        self.notifier = ChangeNotifier(self.clock)
        self._reader = reader
        self._disk = disk
        self._made = 0

    @property
    def wiring(self) -> Any:
        return self

    def new_future(self) -> Any:
        self._made += 1
        return _Future(self._reader, self._disk, self._made - 1)

    def result_of(self, row: ResultRow, job_id: str) -> Result:
        return decode_result(row.body, request_id=f"{job_id}-{row.ix}")

    def carry_on(self, job_id: str) -> None:
        """The simulation does."""

    def refresh_interval(self, job_id: str) -> NoReturn:
        raise AssertionError("no thread waits here")

    def status_of(self, row: JobRow) -> JobStatus:
        raise AssertionError("there is no listener here")

    def tell_held(self, row: JobRow) -> None:
        """There is nothing to notify."""

    def report(self, job_id: str | None, error: BaseException) -> NoReturn:
        raise error
