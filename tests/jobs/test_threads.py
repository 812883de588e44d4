"""Threads that serve waiters or time-limited reads, and threads that cannot start."""

from __future__ import annotations

import random
import threading
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from jobs.remote import Remote
from jobs.runtimes import job_wiring
from taking_part import taking_part

from smartbatch._clock import VirtualClock
from smartbatch.config import BatchingConfig
from smartbatch.errors import ClientClosed, StoreError
from smartbatch.jobs.jobs_engine import JobsEngine
from smartbatch.jobs.records import ResultRow
from smartbatch.jobs.threads import MAX_HUNG_READS, OwnThreads, TimedReads, run_within
from smartbatch.jobs.watching import MAX_KNOWN_JOBS, Changes
from smartbatch.types import Result


class ClosedStore:
    @property
    def items(self):
        raise StoreError("closed")


def engine_on(store, clock):
    reported = []
    wiring = job_wiring(report=lambda _, error: reported.append(error))
    engine = JobsEngine(BatchingConfig(), clock, rng=random.Random(1), wiring=wiring)
    engine.client_store.opened = store
    return engine, reported


class SettledFuture(Future[Result]):
    def complete(self, result):
        self.set_result(result)


def test_a_store_that_a_stop_has_closed_is_no_failure(clock):
    engine, reported = engine_on(ClosedStore(), clock)
    engine.halt()
    future = SettledFuture()
    engine.deliver("job-1", {0: future})
    assert isinstance(future.result(60.0).error, ClientClosed)
    assert reported == []


def test_a_store_that_fails_is_reported_once(clock):
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
    def __init__(self):
        self.asked, self.goes_on = threading.Event(), threading.Event()

    def fresh(self, *_, **__):
        self.asked.set()
        assert self.goes_on.wait(60.0)
        return [ResultRow(0, None, "succeeded", b"", b"", None, 1)] if not self.answered() else []

    def answered(self):
        answered, self._answered = self._answered, True
        return answered

    _answered = False


class ToldOnce:
    """A waiter with nothing but the methods of the protocol."""

    def __init__(self):
        self.told = []

    def complete(self, result):
        self.told.append(result)

    def abandon(self, _): ...


def test_what_a_store_that_hangs_leaves_is_failed_once(clock):
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
    wakes = 0

    def wake(self, waiter, *, notified):
        woken = super().wake(waiter, notified=notified)
        self.wakes += woken and notified
        return woken


def test_a_thread_that_waits_for_a_job_sleeps_through_the_news_of_others():
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


def test_a_thread_that_waits_looks_again_when_old_news_is_forgotten():
    """Otherwise a change could be missed."""
    clock = CountedWakes()
    with taking_part(clock):
        changes, threads = Changes(clock, threading.Lock()), OwnThreads(clock)
        seen = changes.seen("a")
        threads.start(lambda: changes.wait_for_change(seen, 900.0), "waits")
        clock.sleep(1.0)
        for number in range(MAX_KNOWN_JOBS + 1):
            changes.notify(f"job {number}")
        assert clock.wakes == 1


NAME = "smartbatch-test-read"


def readers():
    return sum(thread.name == NAME for thread in threading.enumerate())


def test_a_read_returns_what_was_read_or_raises_it(clock):
    reads = TimedReads(clock)
    assert reads.read(lambda: "row", 1.0, NAME) == ["row"]
    with pytest.raises(ZeroDivisionError):
        reads.read(lambda: 1 // 0, 1.0, NAME)


def test_who_asks_again_and_again_leaves_few_threads(clock):
    reads = TimedReads(clock)

    def hang():
        clock.sleep(1_000.0)
        return "late"

    seen = []

    def ask():
        answers = [reads.read(hang, 2.0, NAME) for _ in range(5 * MAX_HUNG_READS)]
        assert answers == [[]] * 5 * MAX_HUNG_READS
        seen.extend((readers(), clock.now()))
        clock.sleep(2_000.0)
        assert reads.read(lambda: "row", 1.0, NAME) == ["row"]

    assert run_within(ask, 1e6, clock, "smartbatch-test")
    left, now = seen
    assert left <= MAX_HUNG_READS
    assert now == 2.0 * 5 * MAX_HUNG_READS


MINUTES = 600.0


def refuse_once(monkeypatch, name):
    start, refused = threading.Thread.start, []

    def refuses(thread):
        if thread.name == name and not refused:
            refused.append(name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuses)
    return refused


@pytest.mark.parametrize("how", ["wait", "futures"])
def test_a_job_runs_although_its_thread_was_refused_at_first(how, client_of, clock, store, monkeypatch):
    refused = refuse_once(monkeypatch, "smartbatch-supervisor")
    job = client_of(Remote(clock), store=store).submit_batch(["a", "b"])
    if how == "wait":
        assert job.wait(MINUTES).completed == 2
    else:
        futures = job.futures()
        clock.sleep(MINUTES)
        assert [future.result(0).ok for future in futures] == [True, True]
    assert refused


@pytest.mark.catches("RuntimeError")
@pytest.mark.parametrize("name", ["smartbatch-realtime", "smartbatch-results"])
def test_real_time_items_run_although_a_thread_was_refused(name, client_of, clock, store, monkeypatch):
    refused = refuse_once(monkeypatch, name)
    client = client_of(Remote(clock), store=store)
    job = client.submit_batch(["a", "b"], strategy="individual", batch_fallback="individual")
    assert job.wait(MINUTES).completed == 2
    assert refused
