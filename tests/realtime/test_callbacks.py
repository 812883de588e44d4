"""The thread for user callbacks (A5)."""

from __future__ import annotations

import threading

from attrs import evolve
from inside import callback_threads
from scenes import PATIENCE, Aside, eventually

from smartbatch import BatchingClient
from smartbatch._clock import RealClock
from smartbatch.realtime.engine import CallbackThread


def test_a_closed_thread_ends_and_still_runs_what_comes_late():
    thread, before = CallbackThread(RealClock(), lambda error: None), callback_threads()
    ran = []
    for i in range(3):
        thread.run_later(lambda i=i: ran.append(i))
        thread.close()
        assert thread.drain(PATIENCE)
        eventually(lambda: callback_threads() <= before)
    assert ran == [0, 1, 2]


def test_callbacks_of_many_threads_run_once_each():
    thread = CallbackThread(RealClock(), lambda error: None)
    ran = []
    thread.close()
    threads = [Aside(lambda: [thread.run_later(lambda: ran.append(1)) for _ in range(200)]) for _ in range(8)]
    for each in threads:
        each.result()
    assert thread.drain(PATIENCE)
    assert len(ran) == 1_600


def test_what_runs_callbacks_is_around_all_of_them(tmp_path):
    around = threading.local()
    ran = []

    def run(call):
        around.it = True
        try:
            return call()
        finally:
            around.it = False

    def note(name):
        ran.append((name, getattr(around, "it", False)))

    def shout(result):
        note("post_process")
        return evolve(result, text=result.text.upper())

    store = str(tmp_path / "jobs.db")
    added = threading.Event()  # a callback added to a complete future would run on the caller's thread

    def answer(*_):
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
