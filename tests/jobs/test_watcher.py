"""The thread that serves one job: what it reads, and when it ends."""

from __future__ import annotations

import random
import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from jobs.runtimes import job_wiring
from taking_part import taking_part

from smartbatch._clock import VirtualClock, WaitingThread
from smartbatch.config import BatchingConfig
from smartbatch.errors import ClientClosed, StoreError
from smartbatch.jobs.jobs_engine import JobsEngine
from smartbatch.jobs.records import ResultRow
from smartbatch.jobs.threads import OwnThreads
from smartbatch.jobs.watching import MAX_KNOWN_JOBS, Changes
from smartbatch.types import Result


class ClosedStore:
    """A store that was closed, or deleted, by the time it is read."""

    @property
    def items(self) -> Any:
        raise StoreError("closed")


def engine_on(store: Any, clock: VirtualClock) -> tuple[JobsEngine, list[BaseException]]:
    """An engine whose store is open, and what it reports."""
    reported: list[BaseException] = []
    wiring = job_wiring(report=lambda _, error: reported.append(error))
    engine = JobsEngine(BatchingConfig(), clock, rng=random.Random(1), wiring=wiring)
    engine.client_store.opened = store
    return engine, reported


class SettledFuture(Future[Result]):
    """A future that is settled with a result."""

    def complete(self, result: Result) -> None:
        self.set_result(result)


def test_a_store_that_a_stop_has_closed_is_no_failure(clock: VirtualClock) -> None:
    """What is left fails with the stop's own error, and nothing is reported."""
    engine, reported = engine_on(ClosedStore(), clock)
    engine.halt()
    future = SettledFuture()
    engine.deliver("job-1", {0: future})
    assert isinstance(future.result(60.0).error, ClientClosed)
    assert reported == []


def test_a_store_that_fails_is_reported_once(clock: VirtualClock) -> None:
    engine, reported = engine_on(ClosedStore(), clock)
    future = SettledFuture()
    engine.deliver("job-1", {0: future})
    clock.sleep(600.0)
    assert [str(error) for error in reported] == ["closed"]
    with engine.lock:
        engine._watchers.by_job["job-1"].end_locked(ClientClosed("stopped"))
    assert isinstance(future.result(60.0).error, ClientClosed)
    clock.sleep(1.0)
    assert engine._watchers.by_job == {}


class HangingItems:
    """The results of a store that hangs until it is let go."""

    def __init__(self) -> None:
        self.asked, self.goes_on = threading.Event(), threading.Event()

    def fresh(self, *_: Any, **__: Any) -> list[Any]:
        self.asked.set()
        assert self.goes_on.wait(60.0)
        return [ResultRow(0, None, "succeeded", b"", b"", None, 1)] if not self.answered() else []

    def answered(self) -> bool:
        answered, self._answered = self._answered, True
        return answered

    _answered = False


class ToldOnce:
    """What waits for a result, and can only be settled and abandoned, as the contract says."""

    def __init__(self) -> None:
        self.told: list[Result] = []

    def complete(self, result: Result) -> None:
        self.told.append(result)

    def abandon(self, _: Any) -> None: ...


def test_what_a_store_that_hangs_leaves_is_failed_once(clock: VirtualClock) -> None:
    """Not again when the store answers after all."""
    items, stopped = HangingItems(), ClientClosed("stopped")
    store = SimpleNamespace(items=items, jobs=SimpleNamespace(get=lambda _: None), place="here")
    engine, _ = engine_on(store, clock)
    waiting = [ToldOnce(), ToldOnce()]
    engine.deliver("job-1", dict(enumerate(waiting)))
    watcher = engine._watchers.by_job["job-1"]
    assert items.asked.wait(60.0)
    watcher.give_up(stopped)
    items.goes_on.set()
    with engine.lock:
        watcher.end_locked(stopped)
    watcher.finish(60.0)
    assert not watcher.runs
    assert [[result.error for result in each.told] for each in waiting] == [[stopped], [stopped]]


class CountedWakes(VirtualClock):
    """Counts how often a thread was woken by a notification."""

    wakes = 0

    def wake(self, waiter: WaitingThread, *, notified: bool) -> bool:
        woken = super().wake(waiter, notified=notified)
        self.wakes += woken and notified
        return woken


def test_a_thread_that_waits_for_a_job_sleeps_through_the_news_of_others() -> None:
    """A process carries many jobs on, and each stores results many times a second: whoever waits for the end
    of one is not woken by any of these."""
    clock = CountedWakes()
    with taking_part(clock):
        changes, threads = Changes(clock, threading.Lock()), OwnThreads(clock)
        seen = changes.seen("a", progress=False)
        threads.start(lambda: changes.wait_for_change(seen, 900.0), "waits")
        clock.sleep(1.0)  # it waits now
        changes.notify("b")
        changes.notify("b", progress=True)
        changes.notify("a", progress=True)
        assert clock.wakes == 0
        changes.notify("a")
        assert clock.wakes == 1


def test_a_thread_that_waits_looks_again_when_old_news_is_forgotten() -> None:
    """Else it could miss a change that was counted and forgotten in between."""
    clock = CountedWakes()
    with taking_part(clock):
        changes, threads = Changes(clock, threading.Lock()), OwnThreads(clock)
        seen = changes.seen("a")
        threads.start(lambda: changes.wait_for_change(seen, 900.0), "waits")
        clock.sleep(1.0)
        for number in range(MAX_KNOWN_JOBS + 1):
            changes.notify(f"job {number}")
        assert clock.wakes == 1
