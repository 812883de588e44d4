"""The thread that serves one job: what it reads, and when it ends."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from taking_part import taking_part

from smartbatch._clock import VirtualClock, WaitingThread
from smartbatch.errors import ClientClosed, StoreError
from smartbatch.jobs.records import ResultRow
from smartbatch.jobs.threads import OwnThreads
from smartbatch.jobs.watcher import REMEMBERED, ChangeNotifier, Watcher
from smartbatch.types import Result


class ClosedStore:
    """A store that was closed, or deleted, by the time it is read."""

    @property
    def items(self) -> Any:
        raise StoreError("closed")


class Service:
    """What a watcher needs; its store is closed, and what it reports is kept."""

    store: Any = ClosedStore()

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.notifier = ChangeNotifier(clock)
        self.reported: list[BaseException] = []

    def report(self, _: str | None, error: BaseException) -> None:
        self.reported.append(error)

    def refresh_interval(self, _: str) -> float:
        return 60.0

    def result_of(self, *_: Any) -> Result:
        raise AssertionError("nothing can be read")

    @property
    def wiring(self) -> Any:
        return self

    def new_future(self) -> Any:
        return SettledFuture()


class SettledFuture(Future[Result]):
    """A future that is settled with a result."""

    def settle(self, result: Result) -> None:
        self.set_result(result)


def test_a_store_that_a_stop_has_closed_is_no_failure(clock: VirtualClock) -> None:
    """What is left fails with the stop's own error, and nothing is reported."""
    service: Any = Service(clock)
    watcher = Watcher("job-1", service)
    stopped = ClientClosed("stopped")
    watcher.end(stopped)
    [future] = watcher.futures(1)
    assert future.result(60.0).error is stopped
    watcher.finish(60.0)
    assert watcher.is_idle
    assert service.reported == []


def test_a_store_that_fails_is_reported_once(clock: VirtualClock) -> None:
    service: Any = Service(clock)
    watcher = Watcher("job-1", service)
    [future] = watcher.futures(1)
    clock.sleep(600.0)
    assert [str(error) for error in service.reported] == ["closed"]
    watcher.end(ClientClosed("stopped"))
    assert isinstance(future.result(60.0).error, ClientClosed)


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

    def settle(self, result: Result) -> None:
        self.told.append(result)

    def abandon(self, _: Any) -> None: ...


def test_what_a_store_that_hangs_leaves_is_failed_once(clock: VirtualClock) -> None:
    """Not again when the store answers after all."""
    service: Any = Service(clock)
    items = HangingItems()
    service.store = SimpleNamespace(items=items, jobs=SimpleNamespace(get=lambda _: None))
    watcher = Watcher("job-1", service)
    waiting = [ToldOnce(), ToldOnce()]
    watcher.deliver(dict(enumerate(waiting)), lambda *_: Result("answered"))
    assert items.asked.wait(60.0)
    watcher.give_up(stopped := ClientClosed("stopped"))
    items.goes_on.set()
    watcher.end(stopped)
    watcher.finish(60.0)
    assert watcher.is_idle
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
        notifier, threads = ChangeNotifier(clock), OwnThreads(clock)
        seen = notifier.seen("a", progress=False)
        threads.start(lambda: notifier.wait_for_change(seen, 900.0), "waits")
        clock.sleep(1.0)  # it waits now
        notifier.notify("b")
        notifier.notify("b", progress=True)
        notifier.notify("a", progress=True)
        assert clock.wakes == 0
        notifier.notify("a")
        assert clock.wakes == 1


def test_a_thread_that_waits_looks_again_when_old_news_is_forgotten() -> None:
    """Else it could miss a change that was counted and forgotten in between."""
    clock = CountedWakes()
    with taking_part(clock):
        notifier, threads = ChangeNotifier(clock), OwnThreads(clock)
        seen = notifier.seen("a")
        threads.start(lambda: notifier.wait_for_change(seen, 900.0), "waits")
        clock.sleep(1.0)
        for number in range(REMEMBERED + 1):
            notifier.notify(f"job {number}")
        assert clock.wakes == 1
