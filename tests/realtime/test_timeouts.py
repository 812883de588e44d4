"""A request's timeout applies while it waits, during its call, and between tries (A5, A7)."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
from scenes import PATIENCE, InTime, Scripted, broken, submit_all

from smartbatch.errors import RequestTimeout
from smartbatch.results import ResultList
from smartbatch.types import Route


def test_a_waiting_request_fails_when_its_time_ends(clock, client_of):
    provider = Scripted(clock, latency=10.0)
    client = client_of(provider, parallelism=1)
    ended = []
    with clock.held():
        first = client.submit("first")
        provider.wait_for(1)
        future = client.submit("x", timeout=3.0, id="mine")
        future.add_done_callback(lambda _: ended.append(clock.now()))
    with pytest.raises(RequestTimeout) as caught:
        future.result(PATIENCE)
    assert first.result(PATIENCE).ok
    client.stop()
    assert ended == [3.0]
    assert caught.value.request_id == "mine"
    assert "0 finished calls" in str(caught.value)
    assert provider.prompts == ["first"]


def test_the_provider_is_told_how_much_time_is_left(clock, client_of):
    provider = Scripted(clock, latency=2.0)
    client = client_of(provider, parallelism=1)
    with clock.held():
        submit_all(client, ["first"])
        provider.wait_for(1)
        future = client.submit("x", timeout=5.0)
    assert future.result(PATIENCE).ok
    assert [start.timeout for start in provider.starts] == [600.0, 3.0]


def test_a_failed_result_has_the_latency_and_route_of_its_last_call(clock, client_of):
    provider = Scripted(clock, lambda prompt, _: broken() if prompt == "breaks" else "fine", latency=2.0)
    client = client_of(provider, parallelism=1, retries=0)
    with clock.held():
        first = client.submit("breaks")
        provider.wait_for(1)
        futures = [first, client.submit("late", timeout=3.0), client.submit("waits", timeout=3.5)]
    for future in futures:
        assert future.exception(PATIENCE) is not None
    broke, late, waited = (future.outcome for future in futures)
    assert (broke.latency, broke.queued, broke.route, broke.attempts) == (2.0, 0.0, Route.INDIVIDUAL, 1)
    assert (late.latency, late.queued, late.route, late.attempts) == (1.0, 2.0, Route.INDIVIDUAL, 1)
    assert (waited.latency, waited.queued, waited.route, waited.attempts) == (0.0, 3.5, None, 0)
    assert "not sent 1" in repr(ResultList([broke, late, waited]))


def test_a_call_gets_no_more_than_call_timeout(clock, client_of):
    provider = Scripted(clock)
    client = client_of(provider, call_timeout=30.0)
    assert client.submit("x", timeout=100.0).result(PATIENCE).ok
    assert provider.starts[0].timeout == 30.0


def test_a_callable_that_ignores_its_deadline_is_not_waited_for(clock, client_of):
    ended = []

    def stubborn(request, attempt):
        clock.sleep(100.0)
        return "far too late"

    client = client_of(stubborn, parallelism=1)
    with clock.held():
        future = client.submit("x", timeout=5.0)
        future.add_done_callback(lambda _: ended.append(clock.now()))
        behind = client.submit("behind")

        def look():
            clock.sleep(50.0)
            return client.counts

        looking = InTime(clock, look)
    with pytest.raises(RequestTimeout):
        future.result(PATIENCE)
    counts = looking.result()
    assert counts.balanced()
    assert (counts.failed, counts.in_flight, counts.waiting) == (1, 0, 1)
    assert behind.result(PATIENCE).text == "far too late"
    client.stop()
    assert ended == [5.0]


def test_the_settings_may_give_every_request_a_time_out(clock, client_of):
    client = client_of(Scripted(clock, latency=10.0), request_timeout=4.0)
    with clock.held():
        usual, long = client.submit("x"), client.submit("y", timeout=60.0)
    with pytest.raises(RequestTimeout):
        usual.result(PATIENCE)
    assert long.result(PATIENCE).ok


def test_time_also_ends_between_two_tries(clock, client_of):
    ended = []
    client = client_of(Scripted(clock, lambda *_: broken(), latency=0.1), retry_initial=10.0)
    with clock.held():
        future = client.submit("x", timeout=3.0)
        future.add_done_callback(lambda _: ended.append(clock.now()))
    with pytest.raises(RequestTimeout, match="1 finished call"):
        future.result(PATIENCE)
    client.stop()
    assert ended == [3.0]


def test_a_request_that_is_being_cancelled_when_its_time_ends_is_cancelled(clock, client_of):
    provider = Scripted(clock, latency=10.0)
    client = client_of(provider, parallelism=1)
    with clock.held():
        first = client.submit("first")
        provider.wait_for(1)
        future = client.submit("x", timeout=3.0)
        assert Future.cancel(future)  # cancelled, but not yet reported when it times out
    assert first.result(PATIENCE).ok
    assert future.cancelled()
    counts = client.counts
    assert (counts.cancelled, counts.failed, counts.succeeded) == (1, 0, 1)


def test_who_has_little_time_left_does_not_spoil_a_call_for_the_others(clock, client_of):
    class Punctual(Scripted):
        def generate_many(self, requests, **details):
            answers = super().generate_many(requests, **details)
            if details["timeout"] < 1.0:
                raise TimeoutError
            return answers

    provider = Punctual(clock, latency=1.0, max_shared=10)
    client = client_of(provider, parallelism=1)
    with clock.held():
        client.submit("first")
        provider.wait_for(1)
        long, short = client.submit("long", timeout=60.0), client.submit("short", timeout=1.5)
    assert isinstance(short.exception(PATIENCE), RequestTimeout)
    assert long.result(PATIENCE).attempts == 1
    assert [start.timeout for start in provider.starts] == [600.0, 59.0]
