"""Clients without a reference finish what is pending and end by themselves (A9, F7)."""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable

import pytest

import smartbatch
from smartbatch import BatchingClient

NAME = "smartbatch"
FEW = 10
SOON = 2.0


def own_threads() -> int:
    return sum(thread.name.startswith(NAME) for thread in threading.enumerate())


def stopping() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == f"{NAME}-stop"}


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        sys.setswitchinterval(sys.getswitchinterval())  # let other threads run
    return True


@pytest.mark.full
def test_two_hundred_forgotten_clients_leave_hardly_a_thread():
    before = own_threads()
    for number in range(200):
        client = BatchingClient("sim:demo?latency=0", parallelism=2)
        assert client.submit(f"prompt {number}").result(30).ok
    del client
    gc.collect()
    assert within(SOON, lambda: own_threads() - before <= FEW)


class Application:
    def __init__(self) -> None:
        self.seen = 0
        self.client = BatchingClient(self.answer, observers=[self.see], post_process=self.process)

    def see(self, _event: object) -> None:
        self.seen += 1

    def process(self, result: smartbatch.Result) -> smartbatch.Result:
        return result

    def answer(self, request: smartbatch.Request, _attempt: int) -> str:
        return f"answer to {request.prompt}"


@pytest.mark.full
def test_clients_whose_own_observers_refer_to_them_are_collected():
    before, applications, kept = own_threads(), [], []
    for number in range(6):
        application = Application()
        kept.append(application.client.submit(f"prompt {number}"))
        assert kept[-1].result(30).ok
        applications.append(weakref.ref(application))
    del application

    def all_gone() -> bool:
        gc.collect()
        return own_threads() <= before and not any(reference() for reference in applications)

    assert within(30.0, all_gone)  # a pass of the collector may come while a worker still tells of its call


@pytest.mark.full
def test_a_client_known_to_its_observer_alone_answers():
    asked, answer = threading.Event(), threading.Event()

    def slow(_request: object, _attempt: int) -> str:
        asked.set()
        assert answer.wait(30)
        return "done"

    client = BatchingClient(slow, parallelism=1)
    client.observe(lambda _, client=client: None)
    futures = [client.submit(f"prompt {n}") for n in range(3)]
    del client
    assert asked.wait(30)
    gc.collect()
    answer.set()
    assert [future.result(30).text for future in futures] == ["done"] * 3


def test_a_forgotten_client_answers_what_it_was_asked():
    future = BatchingClient("sim:demo?latency=0.05").submit("prompt")
    gc.collect()
    assert future.result(30).ok


@pytest.mark.full
def test_a_job_keeps_its_client(tmp_path):
    store = str(tmp_path / "jobs.db")
    client = BatchingClient("sim:demo?latency=0", store=store)
    job = client.submit_batch(["one", "two"], batch_fallback="individual", strategy="individual")
    del client
    gc.collect()
    assert job.wait(30).completed == 2
    assert smartbatch.job(job.id, store=store).status().done


@pytest.mark.full
def test_a_forgotten_client_that_is_busy_holds_up_no_other():
    asked, answer = threading.Event(), threading.Event()

    def slow(_request: object, _attempt: int) -> str:
        asked.set()
        assert answer.wait(30)
        return "done"

    of_others = stopping()
    busy = BatchingClient(slow, parallelism=1).submit("prompt")
    gc.collect()
    assert asked.wait(30)
    assert within(SOON, lambda: bool(stopping() - of_others))  # the one that waits for the answer
    before = own_threads()
    idle = BatchingClient("sim:demo?latency=0", parallelism=2)
    assert idle.submit("prompt").result(30).ok
    del idle
    gc.collect()
    assert within(SOON, lambda: own_threads() <= before)
    assert not busy.done()
    answer.set()
    assert busy.result(30).ok
