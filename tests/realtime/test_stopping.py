"""Starting and stopping: pending requests finish or fail with a reason, and nothing hangs (A9)."""

from __future__ import annotations

import gc
import threading
import time
from functools import partial

import pytest
from inside import engine_of, inside
from scenes import PATIENCE, Aside, InTime, Scripted, eventually, submit_all

from smartbatch._clock import RealClock
from smartbatch.client import BatchingClient
from smartbatch.errors import ClientClosed
from smartbatch.events import ClientStopped, RequestFinished
from smartbatch.types import Request


def test_leaving_the_with_block_completes_what_is_pending(clock, client_of):
    heard = []
    with client_of(Scripted(clock), parallelism=2) as client:
        futures = submit_all(client, [f"p{i}" for i in range(20)])
        for future in futures:
            future.add_done_callback(lambda future: heard.append(future.result().text))
    assert all(future.done() for future in futures)
    assert sorted(text or "" for text in heard) == sorted(f"re: p{i}" for i in range(20))


def test_a_stop_waits_until_the_last_observer_has_heard(client_of):
    hears, go = threading.Event(), threading.Event()

    def slow(event):
        if isinstance(event, RequestFinished):
            hears.set()
            go.wait(PATIENCE)

    client = client_of(lambda request, attempt: "fine", clock=RealClock(), observers=[slow])
    client.submit("x")
    assert hears.wait(PATIENCE)
    engine = inside(client).realtime.engine
    assert engine is not None
    assert engine.counts().succeeded == 1
    assert engine.queue.wait_idle(0.0) is False
    stop = Aside(client.stop)
    eventually(lambda: engine.queue.closed is not None)
    go.set()
    stop.result()
    assert engine.queue.wait_idle(0.0) is True


@pytest.mark.full
@pytest.mark.parametrize("heard", [RequestFinished, ClientStopped])
def test_an_observer_that_never_returns_does_not_hold_a_stop(client_of, heard):
    goes_on = threading.Event()

    def observe(event):
        if isinstance(event, heard):
            goes_on.wait(PATIENCE)

    def answer(request, attempt):
        goes_on.wait(PATIENCE)
        return "late"

    client = client_of(answer, clock=RealClock(), observers=[observe])
    future = client.submit("x")
    begun = time.monotonic()
    try:
        client.stop(timeout=0.1)
        assert time.monotonic() - begun < 10.0
        assert isinstance(future.exception(0.0), ClientClosed)
    finally:
        goes_on.set()


def test_a_stop_fails_what_is_unanswered_when_its_time_ends(clock, client_of):
    provider = Scripted(clock, latency=lambda prompt: 1.0 if prompt == "quick" else 100.0)
    events = []
    client = client_of(provider, parallelism=1, observers=[events.append])
    with clock.held():
        quick, slow, waiting = submit_all(client, ["quick", "slow", "waiting"])
        provider.wait_for(1)
        engine = inside(client).realtime.engine
        stopping = InTime(clock, lambda: (client.stop(timeout=10.0), clock.now()))
    assert stopping.result()[1] == 10.0
    assert quick.result(PATIENCE).ok
    for future in (slow, waiting):
        with pytest.raises(ClientClosed, match="was stopped before the request was answered") as caught:
            future.result(PATIENCE)
        assert caught.value.request_id
    assert engine is not None
    counts = engine.counts()
    assert counts.balanced()
    assert (counts.waiting, counts.in_flight, counts.succeeded, counts.failed) == (0, 0, 1, 2)
    assert [event.failed for event in events if isinstance(event, ClientStopped)] == [2]


def test_the_late_answer_of_a_stopped_client_hurts_nobody(clock, client_of):
    provider = Scripted(clock, latency=100.0)
    client = client_of(provider)
    with clock.held():
        future = client.submit("x")
        provider.wait_for(1)
        engine = inside(client).realtime.engine
        client.stop(timeout=0)
    assert isinstance(future.exception(PATIENCE), ClientClosed)
    eventually(lambda: provider.in_flight == 0)
    assert engine is not None
    eventually(lambda: engine.gates.permits_out == 0)
    assert engine.counts().balanced()


def test_a_stopped_client_takes_nothing(clock, client_of):
    client = client_of(Scripted(clock))
    client.stop()
    with pytest.raises(ClientClosed, match=r"start\(\)"):
        client.submit("x")


def test_a_stopped_client_may_be_started_again(clock, client_of):
    provider = Scripted(clock)
    client = client_of(provider)
    for round_ in range(3):
        assert client.start().start() is client
        assert client.submit(f"p{round_}").result(PATIENCE).ok
        client.stop()
    assert (provider.opened, provider.closed) == (3, 3)
    client.stop()


def test_the_counts_outlive_the_stop_until_the_next_start(clock, client_of):
    client = client_of(Scripted(clock))
    for prompts in (3, 2):
        client.start()
        futures = [client.submit(f"p{number}") for number in range(prompts)]
        client.stop()
        assert all(future.result().ok for future in futures)
        assert (client.counts.submitted, client.counts.succeeded) == (prompts, prompts)


def test_a_client_that_never_ran_may_be_stopped(clock, client_of):
    provider = Scripted(clock)
    client = client_of(provider)
    client.stop()
    assert provider.opened == 0
    assert client.queue_size == 0


def test_two_threads_may_stop_a_client(clock, client_of):
    client = client_of(Scripted(clock), parallelism=1)
    with clock.held():
        futures = submit_all(client, "abc")
        stops = [InTime(clock, lambda: (client.stop(), [f.done() for f in futures])) for _ in range(2)]
    for stop in stops:
        assert stop.result()[1] == [True] * 3


def test_a_stop_with_a_time_ends_one_without(clock, client_of):
    provider = Scripted(clock, latency=1_000.0)
    events = []
    client = client_of(provider, parallelism=1, observers=[events.append])
    with clock.held():
        future = client.submit("x")
        provider.wait_for(1)
        unlimited = InTime(clock, client.stop)
        limited = InTime(clock, lambda: client.stop(timeout=1.0))
    limited.result()
    assert isinstance(future.exception(PATIENCE), ClientClosed)
    unlimited.result()
    assert [event.failed for event in events if isinstance(event, ClientStopped)] == [1]


def test_a_callback_may_stop_the_client(client_of):
    go = threading.Event()
    client = client_of(lambda request, attempt: str(go.wait(PATIENCE)), clock=RealClock(), parallelism=1)
    stopped = threading.Event()

    def stop(_):
        client.stop()
        stopped.set()

    first, second = submit_all(client, ["first", "second"])
    first.add_done_callback(stop)
    go.set()
    assert stopped.wait(PATIENCE)
    assert second.done()


@pytest.mark.parametrize("where", ["observer", "own callable"])
def test_a_worker_may_stop_the_client(where, client_of):
    stopped = threading.Event()
    calls = []

    def call(request, attempt):
        calls.append(str(request.prompt))
        if where == "own callable" and len(calls) == 1:
            client.stop()
        return "fine"

    def observe(event):
        if isinstance(event, ClientStopped):
            stopped.set()
        if where == "observer" and isinstance(event, RequestFinished):
            client.stop()

    client = client_of(call, clock=RealClock(), parallelism=1, observers=[observe])
    future = client.submit("x")
    assert future.result(PATIENCE).text == "fine"
    assert stopped.wait(PATIENCE)
    with pytest.raises(ClientClosed):
        client.submit("y")


def test_an_observer_may_stop_the_client_while_it_stops(client_of):
    stopped, meet = threading.Event(), threading.Barrier(2)

    def call(request, attempt):
        meet.wait(PATIENCE)
        return "fine"

    def observe(event):
        if isinstance(event, ClientStopped):
            stopped.set()
        if isinstance(event, RequestFinished):
            meet.wait(PATIENCE)
            client.stop()
            eventually(lambda: inside(client).realtime.engine is None)
            client.stop()

    client = client_of(call, clock=RealClock(), parallelism=2, observers=[observe])
    for future in submit_all(client, "ab"):
        assert future.result(PATIENCE).text == "fine"
    assert stopped.wait(PATIENCE)


@pytest.mark.parametrize(
    "cancel",
    [BatchingClient.cancel_pending, partial(BatchingClient.stop, cancel_waiting=True)],
    ids=["by cancel_pending", "by a second stop"],
)
def test_what_waits_is_seen_and_may_be_cancelled_while_the_client_stops(cancel, clock, client_of):
    provider = Scripted(clock)
    client = client_of(provider, parallelism=1)
    with clock.held():
        running, *waiting = submit_all(client, "abc")
        provider.wait_for(1)
        stopping = InTime(clock, client.stop)
        eventually(lambda: inside(client).realtime.state == "stopped")
        assert client.status.waiting == 2
        cancelling = InTime(clock, lambda: cancel(client))
        eventually(lambda: inside(client).realtime.counts.cancelled == 2)
    cancelling.result()
    stopping.result()
    assert running.result(PATIENCE).text == "re: a"
    assert [future.cancelled() for future in waiting] == [True, True]


def slow_for_old(clock):
    return Scripted(clock, latency=lambda prompt: 100.0 if prompt == "old" else 1.0)


def started_while_it_stops(client, provider, clock):
    with clock.held():
        old = client.submit("old")
        provider.wait_for(1)
        stopping = InTime(clock, client.stop)
        eventually(lambda: inside(client).realtime.engine is None)
        client.start()
        return old, stopping, client.submit("new")


def test_a_client_may_be_started_while_it_still_stops(clock, client_of):
    provider = slow_for_old(clock)
    client = client_of(provider, parallelism=1)
    old, stopping, new = started_while_it_stops(client, provider, clock)
    assert new.result(PATIENCE).text == "re: new"
    assert old.result(PATIENCE).text == "re: old"
    stopping.result()
    assert client.submit("newer").result(PATIENCE).text == "re: newer"
    assert provider.closed == 0  # another client still uses it


def test_a_second_run_that_ends_first_leaves_the_first_its_provider(clock, client_of):
    provider = slow_for_old(clock)
    client = client_of(provider, parallelism=1)
    old, stopping, new = started_while_it_stops(client, provider, clock)
    client.stop()
    assert (new.done(), old.done(), provider.closed) == (True, False, 0)
    stopping.result()
    assert old.result(PATIENCE).text == "re: old"
    assert provider.closed == 1


@pytest.mark.parametrize("started", [False, True])
def test_a_list_that_is_dropped_while_its_client_stops_is_cancelled(started, clock, client_of):
    go = threading.Event()
    provider = Scripted(clock, lambda prompt, attempt: prompt if prompt != "1" else str(go.wait(PATIENCE)))
    client = client_of(provider, parallelism=1)
    results = client.map(iter("0123456789"))
    assert next(results).text == "0"
    provider.wait_for(2)
    counts = engine_of(client).counts
    stopping = InTime(clock, client.stop)
    eventually(lambda: inside(client).realtime.state == "stopped")
    if started:
        client.start()
    del results
    gc.collect()
    go.set()
    stopping.result()
    assert provider.prompts == ["0", "1"]
    assert (counts().succeeded, counts().cancelled) == (2, 8)
    if started:
        assert client.submit("new").result(PATIENCE).text == "new"
        assert client.counts.balanced()


def test_an_exception_in_the_with_block_cancels_what_has_not_started(clock, client_of):
    provider = Scripted(clock, latency=1.0)
    mistake = ValueError("mine")

    def work():
        with client_of(provider, parallelism=1) as client:
            with clock.held():
                futures.extend(submit_all(client, ["running", "waiting"]))
                provider.wait_for(1)
                futures.append(client)
            raise mistake

    futures = []
    with pytest.raises(ValueError, match="mine") as caught:
        work()
    running, waiting, _ = futures
    assert caught.value is mistake
    assert running.result(PATIENCE).ok
    assert waiting.cancelled() or waiting.done()


def test_cancelling_all_leaves_the_client_usable(clock, client_of):
    provider = Scripted(clock)
    client = client_of(provider, parallelism=1)
    with clock.held():
        first = client.submit("first")
        provider.wait_for(1)
        waiting = submit_all(client, [f"p{i}" for i in range(50)])
        assert client.cancel_pending() == 50
        assert client.queue_size == 0
    assert all(future.cancelled() for future in waiting)
    assert first.result(PATIENCE).ok
    assert client.submit("next").result(PATIENCE).ok


def test_stopping_leaves_no_threads(clock, client_of):
    client = client_of(Scripted(clock))
    before = set(threading.enumerate())
    for _ in range(10):
        client.start()
        future = client.submit("x")
        future.add_done_callback(lambda _: None)
        assert future.result(PATIENCE).ok
        client.stop()
    eventually(lambda: set(threading.enumerate()) <= before)


def test_submitting_threads_meet_a_stop_cleanly(clock, client_of):
    client = client_of(Scripted(clock, latency=0.0), parallelism=4, deduplicate=False)
    accepted = []

    def ask():
        for i in range(10_000):
            try:
                accepted.append(client.submit(f"p{i}"))
            except ClientClosed:
                return i
        return -1

    threads = [Aside(ask) for _ in range(8)]
    eventually(lambda: len(accepted) > 200)
    client.stop()
    for thread in threads:
        thread.result()
    assert all(future.done() and future.result(0).ok for future in accepted)


def test_a_stop_keeps_to_its_time_and_a_second_whatever_hangs(clock, client_of, tmp_path):
    never = threading.Event()

    def hang(*_):
        clock.sleep(1e6)
        never.wait(PATIENCE)

    client = client_of(
        Scripted(clock, latency=1e6), store=str(tmp_path / "jobs.db"), observers=[lambda _: None]
    )

    def stop():
        done = client.submit(Request("quick", call=lambda *_: "at once"))
        done.result(PATIENCE)
        hung = client.submit("hangs")
        hung.add_done_callback(hang)
        job = client.submit_batch(["p"], batch_fallback="individual", strategy="individual")
        job.on_progress(hang)
        job.futures()[0].add_done_callback(hang)
        began = clock.now()
        client.stop(timeout=1.0)
        assert isinstance(hung.exception(PATIENCE), ClientClosed)
        return clock.now() - began

    assert InTime(clock, stop).result() <= 2.0
    never.set()


def test_an_idle_client_ends_its_workers_and_still_works(clock, client_of):
    workers = set()

    def answer(prompt, attempt):
        workers.add(threading.current_thread())
        return "yes"

    client = client_of(Scripted(clock, answer), parallelism=8)
    client.generate([f"p{n}" for n in range(8)])
    busy = set(workers)
    assert len(busy) == 8
    still = []

    def wait():
        clock.sleep(20.0)
        client.submit("in between")
        clock.sleep(29.0)  # 1 s of it passed during the call
        still.extend(worker for worker in busy if worker.is_alive())
        clock.sleep(3.0)

    InTime(clock, wait).result()
    assert set(still) == busy
    for worker in busy:
        worker.join(PATIENCE)
        assert not worker.is_alive()
    assert client.submit("again").result(PATIENCE).text == "yes"
    assert not workers.isdisjoint(threading.enumerate())


def test_a_call_of_an_hour_is_no_idle_time(clock, client_of):
    workers = []

    def answer(prompt, attempt):
        workers.append(threading.current_thread())
        return "yes"

    provider = Scripted(clock, answer, latency=lambda prompt: 3600.0 if prompt == "long" else 1.0)
    client = client_of(provider, parallelism=1, call_timeout=7200.0)
    with clock.held():
        futures = [client.submit("long"), client.submit("short")]
    assert [future.result(PATIENCE).ok for future in futures] == [True, True]
    assert workers[0] is workers[1]
