"""Clients without a reference finish what is pending and end by themselves (A9, F7)."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable

import smartbatch
from smartbatch import BatchingClient

NAME = "smartbatch"
FEW = 10
"""Threads that may be left."""
SOON = 2.0
"""Seconds after which no more may be left."""


def own_threads() -> int:
    return sum(thread.name.startswith(NAME) for thread in threading.enumerate())


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Whether a condition becomes true in time; it is checked again whenever another thread ran."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        sys.setswitchinterval(sys.getswitchinterval())  # let other threads run
    return True


def test_two_hundred_forgotten_clients_leave_hardly_a_thread() -> None:
    before = own_threads()
    for number in range(200):
        client = BatchingClient("sim:demo?latency=0", parallelism=2)
        assert client.submit(f"prompt {number}").result(30).ok
    del client
    gc.collect()
    assert within(SOON, lambda: own_threads() - before <= FEW)


def test_a_forgotten_client_answers_what_it_was_asked() -> None:
    """The future is all that is held."""
    future = BatchingClient("sim:demo?latency=0.05").submit("prompt")
    gc.collect()
    assert future.result(30).ok


def test_a_list_keeps_its_client() -> None:
    results = BatchingClient("sim:demo?latency=0", parallelism=1).map(f"prompt {n}" for n in range(50))
    gc.collect()
    assert all(result.ok for result in results)


def test_a_job_keeps_its_client(tmp_path) -> None:
    store = str(tmp_path / "jobs.db")
    client = BatchingClient("sim:demo?latency=0", store=store)
    job = client.submit_batch(["one", "two"], batch_fallback="individual", strategy="individual")
    del client
    gc.collect()
    assert job.wait(30).completed == 2
    assert smartbatch.job(job.id, store=store).status().done


def test_a_forgotten_client_that_is_busy_holds_up_no_other() -> None:
    asked, answer = threading.Event(), threading.Event()

    def slow(_request: object, _attempt: int) -> str:
        asked.set()
        assert answer.wait(30)
        return "done"

    busy = BatchingClient(slow, parallelism=1).submit("prompt")
    gc.collect()
    assert asked.wait(30)
    before = own_threads()
    idle = BatchingClient("sim:demo?latency=0", parallelism=2)
    assert idle.submit("prompt").result(30).ok
    del idle
    gc.collect()
    assert within(SOON, lambda: own_threads() <= before)
    assert not busy.done()
    answer.set()
    assert busy.result(30).ok
