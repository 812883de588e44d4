"""Workers grow with the load and end when there is none for a while (E9)."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from smartbatch.client import BatchingClient
from smartbatch.providers import MockProvider
from smartbatch.realtime.worker_threads import WorkerThreads

PATIENCE = 30.0


def run(threads: WorkerThreads) -> threading.Thread:
    """Return the thread that did some work."""
    done: list[threading.Thread] = []
    ended = threading.Event()

    def work() -> None:
        done.append(threading.current_thread())
        ended.set()

    threads.run(work)
    assert ended.wait(PATIENCE)
    return done[0]


def test_a_thread_without_work_ends_and_another_is_started_on_demand() -> None:
    threads = WorkerThreads(linger=0.01)
    first = run(threads)
    first.join(PATIENCE)
    assert not first.is_alive()
    assert run(threads) is not first


def test_an_idle_thread_takes_the_next_work_and_ends_with_the_client() -> None:
    threads = WorkerThreads(linger=PATIENCE)
    first = run(threads)
    while not threads._idle:  # it is about to
        pass
    assert run(threads) is first
    threads.close()
    first.join(PATIENCE)
    assert not first.is_alive()


def test_a_client_that_was_busy_keeps_no_worker_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smartbatch.realtime.dispatcher.WorkerThreads", partial(WorkerThreads, linger=0.01))
    workers: set[threading.Thread] = set()
    meeting = threading.Barrier(8)

    def answer(request: object) -> str:
        workers.add(threading.current_thread())
        if len(workers) <= 8:
            meeting.wait(PATIENCE)
        return "yes"

    with BatchingClient(MockProvider(answer), parallelism=8) as client:
        client.generate([f"p{n}" for n in range(8)])
        assert len(workers) == 8
        for worker in workers:
            worker.join(PATIENCE)
        assert not any(worker.is_alive() for worker in workers)
        assert client.submit("again").result(PATIENCE).text == "yes"
