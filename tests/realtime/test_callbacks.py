"""The thread for users' callbacks: in order, once each, and whatever they raise is only reported (A5)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from inside import callback_threads
from scenes import PATIENCE, Aside, eventually

from smartbatch import BatchingClient, Result
from smartbatch._clock import RealClock
from smartbatch.realtime.engine import CallbackThread


def test_callables_run_in_order_on_one_thread() -> None:
    """And not on the thread that settles the future."""
    thread = CallbackThread(RealClock(), lambda error: None)
    ran: list[tuple[int, str]] = []
    for i in range(100):
        thread.run_later(lambda i=i: ran.append((i, threading.current_thread().name)))  # type: ignore[misc]
    assert thread.drain(PATIENCE)
    assert ran == [(i, "smartbatch-callbacks") for i in range(100)]


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_what_is_raised_is_reported(error: type[BaseException]) -> None:
    """The next one runs all the same."""
    reported: list[BaseException] = []
    ran: list[str] = []
    thread = CallbackThread(RealClock(), reported.append)

    def mistake() -> None:
        raise error

    thread.run_later(mistake)
    thread.run_later(lambda: ran.append("next"))
    assert thread.drain(PATIENCE)
    assert ([type(one) for one in reported], ran) == ([error], ["next"])


def test_a_drain_waits_no_longer_than_it_is_told() -> None:
    """A callback that blocks holds a stop up for the time given, not for ever."""
    go = threading.Event()
    thread = CallbackThread(RealClock(), lambda error: None)
    thread.run_later(lambda: go.wait(PATIENCE))
    assert thread.drain(0.01) is False
    go.set()
    assert thread.drain(PATIENCE)


def test_a_callback_does_not_wait_for_itself() -> None:
    """drain() on the callback thread returns at once."""
    thread = CallbackThread(RealClock(), lambda error: None)
    drained: list[bool] = []
    thread.run_later(lambda: drained.append(thread.drain(None)))
    assert thread.drain(PATIENCE)
    assert drained == [True]


def test_nothing_runs_before_the_first_callback() -> None:
    """A client without callbacks has no thread for them."""
    before = threading.active_count()
    thread = CallbackThread(RealClock(), lambda error: None)
    assert thread.drain(None)
    thread.close()
    assert threading.active_count() == before


def test_a_closed_thread_ends_and_still_runs_what_comes_late() -> None:
    """The future of a stopped client may get a callback: it runs, and its thread ends after it."""
    thread, before = CallbackThread(RealClock(), lambda error: None), callback_threads()
    ran: list[int] = []
    for i in range(3):
        thread.run_later(lambda i=i: ran.append(i))  # type: ignore[misc]
        thread.close()
        assert thread.drain(PATIENCE)
        eventually(lambda: callback_threads() <= before)
    assert ran == [0, 1, 2]


def test_callbacks_of_many_threads_run_once_each() -> None:
    """Handing over is safe from any thread, also while the thread ends."""
    thread = CallbackThread(RealClock(), lambda error: None)
    ran: list[int] = []
    thread.close()
    threads = [Aside(lambda: [thread.run_later(lambda: ran.append(1)) for _ in range(200)]) for _ in range(8)]
    for each in threads:
        each.result()
    assert thread.drain(PATIENCE)
    assert len(ran) == 1_600


def test_what_runs_callbacks_is_around_all_of_them(tmp_path: Path) -> None:
    """Those of futures, of jobs, and ``post_process``; what it returns is the value."""
    around = threading.local()
    ran: list[tuple[str, bool]] = []

    def run(call: Callable[[], Any]) -> Any:
        around.it = True
        try:
            return call()
        finally:
            around.it = False

    def note(name: str) -> None:
        ran.append((name, getattr(around, "it", False)))

    def shout(result: Result) -> Result:
        note("post_process")
        return evolve(result, text=result.text.upper())

    store = str(tmp_path / "jobs.db")
    added = threading.Event()  # what is added to a future that is done is called by who adds it

    def answer(*_: object) -> str:
        assert added.wait(PATIENCE)
        return "fine"

    with BatchingClient(answer, post_process=shout, run_callback=run, store=store) as client:
        future = client.submit("a")
        future.add_done_callback(lambda _: note("callback"))
        added.set()
        assert future.result().text == "FINE"
        job = client.submit_batch(["b"], batch_fallback="individual")
        job.on_progress(lambda _: note("on_progress"))
        job.wait()
    assert set(ran) == {("post_process", True), ("callback", True), ("on_progress", True)}
