"""A client has one running state per process, created at first use."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import Future
from typing import Any

import pytest
from inside import engine_of, inside, store_of

import smartbatch
from smartbatch import BatchingClient, BatchingConfig
from smartbatch.jobs.watching import Watcher
from smartbatch.providers import MockProvider
from tests.threads_together import run_together

THREADS = 16


def store_job(store: str | None, *, key: str) -> None:
    """Use a client that ends here: a dropped one would end after the folder of the test is gone."""
    with BatchingClient("sim:demo", store=store) as client:
        client.submit_batch(["one"], key=key)


def test_nothing_that_holds_a_process_is_made_with_a_client(monkeypatch):
    def refused(*_: object, **__: object) -> Any:
        raise AssertionError("made at construction")

    for name in ("Lock", "RLock", "Condition", "Thread"):
        monkeypatch.setattr(threading, name, refused)
    client = BatchingClient("sim:demo")
    monkeypatch.undo()
    assert client.submit("prompt").result(30).ok
    client.stop()


def test_threads_that_come_first_share_one_state():
    client = BatchingClient("sim:demo")
    states: list[object] = []
    run_together(lambda _: states.append(inside(client)), range(THREADS))
    assert len(set(map(id, states))) == 1


def test_observers_that_are_added_at_once_are_all_told():
    client = BatchingClient("sim:demo?latency=0")
    heard: set[tuple[int, int]] = set()

    def observer(number: int) -> Any:
        return lambda event: heard.add(number)

    run_together(
        lambda number: [client.observe(observer(100 * number + n)) for n in range(50)], range(THREADS)
    )
    client.submit("prompt").result(30)
    client.stop()
    assert len(heard) == 50 * THREADS


def test_opening_a_provider_keeps_nobody_waiting_who_needs_no_start():
    opening, opened = threading.Event(), threading.Event()

    class Slow(MockProvider):
        def open(self, workers: int) -> None:
            opening.set()
            assert opened.wait(30)
            super().open(workers)

    client = BatchingClient(Slow())
    first: list[Future[Any]] = []
    starter = threading.Thread(target=lambda: first.append(client.submit("prompt")))
    starter.start()
    assert opening.wait(30)
    # all that others need while no call runs
    assert inside(client).realtime.guard_budget(lambda: client.spent) == 0.0
    opened.set()
    starter.join()
    assert first[0].result(30).ok
    client.stop()


def test_one_lock_guards_the_money_of_a_run_that_stopped_and_of_the_next():
    client = BatchingClient(lambda _: "done", budget=1.0)
    engines = []
    for _ in range(2):
        client.start()
        engines.append(engine_of(client))
        client.stop()
    locks = [engine.queue.monitor.lock for engine in engines]
    assert inside(client).realtime.guard_budget(lambda: [lock.locked() for lock in locks]) == [True, True]


def test_a_second_configuration_of_a_store_is_honoured(tmp_path, monkeypatch):
    store = str(tmp_path / "jobs.db")
    store_job(store, key="first")
    slow = smartbatch.job("first", store=store)
    monkeypatch.setenv("SMARTBATCH_PARALLELISM", "7")
    quick = smartbatch.job("first", store=store)
    assert store_of(slow).config.parallelism == BatchingConfig().parallelism
    assert store_of(quick).config.parallelism == 7
    assert store_of(smartbatch.job("first", store=store)) is store_of(quick)


@pytest.mark.parametrize("store", [None, "jobs.db", "sqlite:///jobs.db"])
def test_a_job_is_looked_for_in_the_store_that_is_meant_now(store, tmp_path, monkeypatch):
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        monkeypatch.setenv("XDG_STATE_HOME", str(folder))
        store_job(store, key=name)
        assert store_of(smartbatch.job(name, store=store)).place.startswith(str(folder))


@pytest.mark.full
def test_finished_jobs_leave_nothing_behind(tmp_path, monkeypatch):
    client = BatchingClient("sim:demo?latency=0", store=str(tmp_path / "jobs.db"))
    for number in range(40):
        job = client.submit_batch([f"prompt {number}"], batch_fallback="individual", strategy="individual")
        (future,) = job.futures()
        assert future.result(60).ok
        del job, future
    gc.collect()
    kept = sum(type(one) is Watcher for one in gc.get_objects())
    assert kept <= 12
    client.stop()


@pytest.mark.full
def test_a_list_is_dropped_by_a_thread_that_holds_the_queues_lock():
    client = BatchingClient("sim:demo?latency=0", parallelism=1)
    engine = engine_of(client)
    results = [client.map([f"prompt {n}" for n in range(50)])]
    assert next(results[0]).ok

    def drop() -> None:
        with engine.queue.monitor:
            results.clear()
            gc.collect()

    dropping = threading.Thread(target=drop, daemon=True)
    dropping.start()
    dropping.join(30)
    assert not dropping.is_alive()
    client.stop()
