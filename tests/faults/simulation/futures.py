"""The futures of a process's user: ended by the real watcher of a job, once each and after the commit."""

from __future__ import annotations

import threading
import weakref
from typing import NoReturn

from smartbatch._clock import RealClock
from smartbatch.errors import WrongProcess
from smartbatch.jobs.payload import decode_result
from smartbatch.jobs.records import ResultRow
from smartbatch.jobs.watching import Changes, Watcher
from smartbatch.types import Result
from tests.faults.simulation.crash_points import Violation
from tests.faults.simulation.disk import Disk, SimStore


class Reader(Watcher):
    """Watches a job without a thread: it reads when it is told to. It ends with its process."""

    def __init__(self, job_id: str, total: int, store: SimStore, disk: Disk) -> None:
        clock = RealClock()  # for locks only: no thread waits here
        super().__init__(job_id, clock, Changes(clock, threading.Lock()))
        self.given: list[Result | None] = [None] * total
        self._store = store
        _readers.add(self)
        self.deliver_locked({ix: _Future(self, disk, ix) for ix in range(total)}, _result_of)

    def look(self) -> None:
        self.complete_stored(self._store)

    def close(self) -> None:
        _readers.discard(self)


_readers: weakref.WeakSet[Reader] = weakref.WeakSet()


def tell_all() -> None:
    for reader in list(_readers):
        reader.look()


class _Future:
    def __init__(self, reader: Reader, disk: Disk, ix: int) -> None:
        self._reader = reader
        self._disk = disk
        self._ix = ix

    def complete(self, result: Result) -> None:
        if self._disk.connection.in_transaction:
            raise Violation(f"I4 the future of item {self._ix} ended before its result was committed")
        if self._reader.given[self._ix] is not None:
            raise Violation(f"I4 the future of item {self._ix} ended twice")
        self._reader.given[self._ix] = result

    def abandon(self, error: WrongProcess) -> NoReturn:
        raise AssertionError("nothing forks here")


def _result_of(row: ResultRow, job_id: str) -> Result:
    return decode_result(row.body, request_id=f"{job_id}-{row.ix}")
