"""Finished requests are released without waiting for the garbage collector (F6)."""

from __future__ import annotations

import gc
import weakref

import pytest
from inside import tickets_in_memory
from scenes import PATIENCE, InTime, Scripted, failure

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.realtime import shared_quota


@pytest.fixture
def without_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.full
@pytest.mark.usefixtures("without_collector")
def test_an_answer_nobody_holds_is_gone_at_once(clock, client_of):
    class Context:
        pass

    client = client_of(Scripted(clock))
    client.submit("warm").result(PATIENCE)
    context = Context()
    future = client.submit("x", context=context)
    dead = [weakref.ref(context), weakref.ref(future.result(PATIENCE)), weakref.ref(future)]
    client.stop()
    del context, future
    assert [reference() for reference in dead] == [None, None, None]


@pytest.mark.full
@pytest.mark.usefixtures("without_collector")
def test_a_future_that_raised_is_gone_at_once(clock, client_of):
    client = client_of(Scripted(clock, lambda *_: failure(ErrorKind.CLIENT_ERROR)))
    future = client.submit("x")
    dead = weakref.ref(future)
    with pytest.raises(ProviderError):
        future.result(PATIENCE)
    client.stop()
    del future
    assert dead() is None


@pytest.mark.full
def test_deadlines_of_ended_requests_are_forgotten(clock, client_of):
    client = client_of(
        Scripted(clock, latency=lambda prompt: 900.0 if prompt == "slow" else 0.01), parallelism=2
    )
    with clock.held():
        client.submit("slow", timeout=1_000.0)

        def stream():
            for number in range(2_000):
                client.submit(f"p{number}", timeout=2_000.0)
                clock.sleep(0.02)

        streaming = InTime(clock, stream)
    streaming.result()
    assert client.counts.succeeded > 1_900
    assert tickets_in_memory() < 200


@pytest.mark.full
def test_cancelled_requests_leave_nothing_in_the_queue(clock, client_of):
    provider = Scripted(clock, latency=100.0)
    client = client_of(provider, parallelism=1)
    with clock.held():
        client.submit("started")
        provider.wait_for(1)
        client.submit("waiting")
        for number in range(2_000):
            client.submit(f"p{number}").cancel()
        assert tickets_in_memory() < 200
    client.stop(timeout=0)


@pytest.mark.full
def test_cancelled_requests_that_joined_one_which_waits_leave_no_time_outs(clock, client_of):
    provider = Scripted(clock, latency=100.0)
    client = client_of(provider, parallelism=1)
    with clock.held():
        client.submit("started")
        provider.wait_for(1)
        client.submit("waiting")
        cancelled = []
        for _ in range(500):
            future = client.submit("waiting", timeout=1_000.0)
            future.cancel()
            cancelled.append(weakref.ref(future))
        del future
        gc.collect()
        assert sum(future() is not None for future in cancelled) < 200
    client.stop(timeout=0)


@pytest.mark.full
def test_a_request_that_waits_long_keeps_nobody_elses_memory(clock, client_of):
    client = client_of(Scripted(clock, latency=0.01, max_shared=4), parallelism=1, batch_window=0.01)
    with clock.held():
        client.submit("first")
        client.submit_background("background", isolation_key="other")

        def stream():
            for number in range(300):
                while client.queue_size < 40:
                    client.submit(f"p{number}-{client.queue_size}")
                clock.sleep(0.01)
            return tickets_in_memory()

        streaming = InTime(clock, stream)
    assert streaming.result() < 600


@pytest.mark.full
def test_quotas_that_no_client_uses_are_let_go_and_the_latest_are_kept(clock, client_of, monkeypatch):
    monkeypatch.setattr(shared_quota, "MAX_UNUSED_QUOTAS", 4)
    scopes = [f"customer {number}" for number in range(40)]

    def asked(scope):
        client = client_of(Scripted(clock, scope=scope))
        client.submit("x").result(PATIENCE)
        return client

    in_use = asked("in use")
    quotas = {"in use": weakref.ref(shared_quota.shared_quota("in use", "default"))}
    for scope in scopes:
        asked(scope).stop()
        quotas[scope] = weakref.ref(shared_quota.shared_quota(scope, "default"))
    gc.collect()
    alive = [scope for scope, quota in quotas.items() if quota() is not None]
    assert alive[0] == "in use"
    assert set(scopes[-4:]) <= set(alive)
    assert len(alive) <= 4 * 4
    in_use.stop()
