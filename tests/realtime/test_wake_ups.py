"""Everything that makes a waiting request ready wakes the collector (A2, A7, A16, B2)."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
from inside import engine_of, has_looked
from scenes import PATIENCE, Aside, Embedder, InTime, Scripted, eventually, submit_all, unavailable

from smartbatch.config import BatchingConfig
from smartbatch.core.preparation.calibration import Calibration
from smartbatch.realtime.lane import LaneFactory
from smartbatch.realtime.setup import RealtimeSetup
from smartbatch.types import Embedding


def test_an_urgent_identical_request_closes_the_window_at_once(clock, client_of):
    provider = Scripted(clock, max_shared=10)
    client = client_of(provider, parallelism=5, batch_window=0.1)
    with clock.held():
        client.submit("first")
        provider.wait_for(1)
        client.submit("same")

        def submit_later():
            clock.sleep(0.05)
            client.submit_urgent("same")

        submitting = InTime(clock, submit_later)
    submitting.result()
    client.stop()
    assert [start.at for start in provider.starts] == [0.0, 0.05]


def test_cancelling_what_others_wait_behind_lets_them_go(clock, client_of):
    provider = Scripted(clock)
    client = client_of(provider, max_tpm=6_000)
    with clock.held():
        client.submit("first", max_tokens=5_900)
        provider.wait_for(1)
        large = client.submit("large", max_tokens=5_000)
        small = client.submit("small", max_tokens=10)

        def cancel():
            clock.sleep(2.0)
            assert large.cancel()

        cancelling = InTime(clock, cancel)
    cancelling.result()
    assert small.result(PATIENCE).ok
    assert provider.starts[1].at == 2.0


def test_a_late_call_of_a_stopped_client_makes_room_for_the_other(clock, client_of):
    theirs, mine = (Scripted(clock, latency=latency, scope="account") for latency in (0.2, 1.0))
    other = client_of(theirs, parallelism=8, max_tpm=10**9)
    client = client_of(mine, max_tpm=10**9)
    with clock.held():
        submit_all(other, "abcd")  # as many as are sent until a configured limit is proven
        theirs.wait_for(4)
        future = client.submit("mine")

        def stop():
            clock.sleep(0.1)
            other.stop(timeout=0)

        stopping = InTime(clock, stop)
    stopping.result()
    assert future.result(PATIENCE).ok
    assert mine.starts[0].at == 0.2, "with time it would go at 0.32 s"


def test_a_call_that_never_went_makes_room_for_the_other(clock, client_of, monkeypatch):
    theirs, mine = (Scripted(clock, latency=100.0, scope="account") for _ in range(2))
    other, client = (client_of(provider, parallelism=8, max_tpm=10**9) for provider in (theirs, mine))
    engine_of(client)
    queue = engine_of(other).queue
    start = queue.start_locked

    def slowly(ticket, now):
        if ticket.request.prompt == "cancelled":
            client.submit("mine")
            eventually(lambda: has_looked(client, 0.0))
            Future.cancel(ticket.waiters[0].future)
        return start(ticket, now)

    with clock.held():
        submit_all(other, "abc")  # one fewer than are sent until a configured limit is proven
        theirs.wait_for(3)
        monkeypatch.setattr(queue, "start_locked", slowly)
        other.submit("cancelled")
        mine.wait_for(1)
    assert mine.starts[0].at == 0.0
    for each in (client, other):
        each.stop(timeout=0)


def test_a_limit_that_leaves_with_its_client_holds_nobody_back(clock, client_of):
    theirs, mine = (Scripted(clock, scope="account") for _ in range(2))
    other, client = client_of(theirs, max_rpm=1), client_of(mine)
    with clock.held():
        other.submit("theirs")
        theirs.wait_for(1)
        future = client.submit("mine")

        def stop():
            clock.sleep(5.0)
            other.stop()

        stopping = InTime(clock, stop)
    stopping.result()
    assert future.result(PATIENCE).ok
    assert mine.starts[0].at == 5.0


def test_a_lane_that_opens_after_the_stop_leaves_no_limit_behind(clock, client_of):
    provider, theirs = (Scripted(clock, scope="account") for _ in range(2))
    client, other = client_of(provider, max_rpm=1), client_of(theirs)
    engine = engine_of(client)
    client.stop()
    engine.lanes.of(provider, client.model, None)
    with clock.held():
        futures = submit_all(other, "abc")
    assert all(future.result(PATIENCE).ok for future in futures)
    assert clock.now() < 10


def test_what_moves_to_the_fallback_is_served_there_at_once(clock, client_of):
    provider = Embedder(clock, lambda *_: unavailable())
    client = client_of(
        provider,
        parallelism=1,
        on_breaker_open="fallback",
        fallback_model="sim:spare",
        breaker_threshold=2,
        breaker_pause=1_000.0,
        breaker_max_pause=1_000.0,
    )
    engine = engine_of(client)
    engine.lanes.of(provider, client.model, Embedding())  # a single lane would be checked anyway
    with clock.held():
        futures = submit_all(client, "abc")
    assert {future.result(PATIENCE).model for future in futures} == {"sim:spare"}
    assert clock.now() < 10


def test_a_lane_whose_opening_is_interrupted_is_opened_again(clock):
    served = []
    interrupts = [KeyboardInterrupt()]

    def opened(lane):
        if interrupts:
            raise interrupts.pop()
        served.append(lane)

    lanes = LaneFactory(RealtimeSetup(BatchingConfig(), clock), opened)
    provider = Scripted(clock)
    with pytest.raises(KeyboardInterrupt):
        lanes.of(provider, "model")
    assert lanes.of(provider, "model") in served


def factory(clock, calibration=lambda *_: Calibration(), **settings):
    return LaneFactory(
        RealtimeSetup(BatchingConfig(**settings), clock, calibration=calibration), lambda _: None
    )


def test_a_model_whose_tokens_are_read_holds_up_no_other_model(clock):
    provider = Scripted(clock)
    other = []

    def read(label, _):
        if label.endswith(":slow"):
            other.append(Aside(lambda: lanes.of(provider, "quick")).result())
        return Calibration()

    lanes = factory(clock, read)
    lane = lanes.of(provider, "slow")
    assert [each.model for each in (lane, *other)] == ["slow", "quick"]
