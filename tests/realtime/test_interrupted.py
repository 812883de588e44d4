"""Interruptions by Ctrl-C and finalisers leave consistent counts and no held locks (A9, E7)."""

from __future__ import annotations

import threading

import pytest
from ctrl_c import interrupted_at_every_moment
from inside import callback_threads, engine_of, inside
from scenes import PATIENCE, Aside, Scripted, eventually, submit_all

from smartbatch.client import BatchingClient
from smartbatch.core.limits.budget_reservations import JobReservations
from smartbatch.events import RequestSubmitted
from smartbatch.jobs.store.jobs import JobTable
from smartbatch.realtime.lane_queue import LaneQueue


def test_a_submit_that_is_interrupted_at_its_end_sends_nothing(clock, client_of):
    def observer(event):
        if isinstance(event, RequestSubmitted):
            raise KeyboardInterrupt

    provider = Scripted(clock)
    client = client_of(provider, observers=[observer], max_rpm=1)
    with clock.held():
        with pytest.raises(KeyboardInterrupt):
            client.submit("x")
        with pytest.raises(KeyboardInterrupt):
            client.submit("y")
        counts = client.counts
    assert counts.balanced()
    assert counts.cancelled >= 1  # a call that has started continues


def test_an_interrupted_cancel_leaves_nothing_to_wait_for(clock, client_of, monkeypatch):
    provider = Scripted(clock)
    client = client_of(provider, parallelism=1)
    with clock.held():
        started = client.submit("started")
        provider.wait_for(1)
        waiting = client.submit("waiting")

        def interrupted(lane, ticket):
            monkeypatch.undo()
            lane.remove(ticket)
            raise KeyboardInterrupt

        monkeypatch.setattr(LaneQueue, "remove", interrupted)
        with pytest.raises(KeyboardInterrupt):
            waiting.cancel()
    Aside(client.stop).result()
    assert started.result(PATIENCE).ok
    assert provider.prompts == ["started"]


def test_an_interrupted_stop_leaves_no_thread(clock, client_of, monkeypatch):
    provider = Scripted(clock)
    client = client_of(provider)
    told = threading.Event()
    with clock.held():
        before = callback_threads()
        client.submit("x").add_done_callback(lambda _: told.set())
        provider.wait_for(1)
        engine = engine_of(client)

        def interrupted(_):
            raise KeyboardInterrupt

        monkeypatch.setattr(engine.queue, "wait_idle", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.stop()
    assert told.wait(PATIENCE)
    eventually(lambda: callback_threads() <= before)


@pytest.mark.parametrize("started", [False, True])
def test_money_for_a_job_locks_nobody_out_whenever_ctrl_c_comes(started):
    client = BatchingClient(lambda _: "done", budget=1.0)
    if started:
        client.start()
    realtime = inside(client).realtime
    reservations = JobReservations(realtime.budget, realtime.guard_budget, "account")
    for at in interrupted_at_every_moment(lambda: reservations.reserve(0.5, lambda held: held.usd)):
        going_on = threading.Thread(target=realtime.guard_budget, args=(list,), daemon=True)
        going_on.start()
        going_on.join(PATIENCE)
        assert not going_on.is_alive(), f"blocked after an interrupt at moment {at}"
    client.stop()


def test_a_list_that_is_given_up_locks_nobody_out_whenever_ctrl_c_comes(clock, client_of):
    client = client_of(Scripted(clock))
    engine = engine_of(client)
    for at in interrupted_at_every_moment(lambda: engine.abandon_futures([])):
        looking = threading.Thread(target=lambda: client.queue_size, daemon=True)
        looking.start()
        looking.join(PATIENCE)
        assert not looking.is_alive(), f"blocked after an interrupt at moment {at}"


@pytest.mark.parametrize("stored", [True, False])
def test_a_job_that_ctrl_c_leaves_stored_keeps_its_money(stored, tmp_path, monkeypatch):
    store = str(tmp_path / "jobs.db")
    client = BatchingClient("sim:demo?latency=0", store=store, budget=10.0)
    accept = JobTable.accept

    def interrupted(*args, **words):
        if stored:
            accept(*args, **words)
        raise KeyboardInterrupt

    monkeypatch.setattr(JobTable, "accept", interrupted)
    with pytest.raises(KeyboardInterrupt):
        client.submit_batch(["p"], key="k", batch_fallback="individual", strategy="individual", budget=4.0)
    monkeypatch.undo()
    budget = inside(client).realtime.budget
    assert budget.left == (6.0 if stored else 10.0)
    if stored:
        assert client.job("k").wait(PATIENCE).completed == 1
        eventually(lambda: budget.left == 10.0)  # the simulator's answers are free
    client.stop()


def test_what_a_finaliser_cancels_is_told_as_well(clock, client_of):
    provider = Scripted(clock)
    client = client_of(provider, parallelism=1)
    with clock.held():
        futures = submit_all(client, "abcdefg")
        provider.wait_for(1)
        with engine_of(client).queue.monitor:
            engine_of(client).abandon_futures(futures)
    client.stop()
    figures = client.metrics.snapshot()
    assert (figures.submitted, figures.waiting, figures.cancelled) == (7, 0, 6)
    assert provider.prompts == ["a"]
