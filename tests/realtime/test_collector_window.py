"""The window: which requests share a call, and when it starts (A1, A2, A3, A11, A12, A13)."""

from __future__ import annotations

import pytest
from scenes import PATIENCE, Scripted, failure, submit_all

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers import CallableProvider
from smartbatch.types import Request, Route


class Busy:
    def __init__(self, clock, client_of, **settings):
        script = settings.pop("script", lambda prompt, attempt: f"re: {prompt}")
        latency = settings.pop("latency", 1.0)
        max_shared = settings.pop("max_shared", 10)
        self.clock = clock
        self.provider = Scripted(clock, script, latency=latency, max_shared=max_shared)
        self.client = client_of(self.provider, **{"parallelism": 20, **settings})

    def first(self):
        self.client.submit("first")
        self.provider.wait_for(1)

    def later_calls(self):
        self.client.stop()
        return [(start.at, len(start.prompts)) for start in self.provider.starts[1:]]


@pytest.fixture
def busy(clock, client_of):
    return lambda **settings: Busy(clock, client_of, **settings)


@pytest.mark.parametrize(
    ("settings", "asked", "calls"),
    [
        ({}, [(prompt, {}) for prompt in "abcde"], [(0.1, 5)]),
        ({"batch_window": 0.5}, [("a", {}), ("b", {})], [(0.5, 2)]),
        ({}, [("usual", {}), ("short", {"max_wait": 0.05})], [(0.05, 2)]),
        ({}, [("same", {}), ("same", {"max_wait": 0.05})], [(0.05, 1)]),
        ({"strategy": "individual"}, [("a", {}), ("b", {})], [(0.0, 1)] * 2),
        ({"max_batch_size": 4}, [(prompt, {}) for prompt in "abcdefgh"], [(0.0, 4)] * 2),
        ({"max_shared": 3}, [(prompt, {}) for prompt in "abcdef"], [(0.0, 3)] * 2),
    ],
    ids=[
        "window",
        "its length",
        "max_wait",
        "of a duplicate",
        "individual",
        "client's size",
        "provider's size",
    ],
)
def test_requests_gather_behind_a_busy_call(busy, settings, asked, calls):
    scene = busy(**settings)
    with scene.clock.held():
        scene.first()
        futures = [scene.client.submit(prompt, **params) for prompt, params in asked]
    for future in futures:
        future.result(PATIENCE)
    assert scene.later_calls() == [(pytest.approx(at), size) for at, size in calls]


def test_one_request_alone_goes_when_the_lane_falls_idle(busy):
    scene = busy(latency=0.03)
    with scene.clock.held():
        scene.first()
        future = scene.client.submit("alone")
    future.result(PATIENCE)
    assert scene.later_calls() == [(pytest.approx(0.034), 1)]


@pytest.mark.parametrize("least", [2, 4])
def test_min_batch_size_holds_from_the_first_call_on(clock, client_of, least):
    provider = Scripted(clock, lambda prompt, attempt: prompt, max_shared=10)
    client = client_of(provider, min_batch_size=least, batch_window=0.5)
    with clock.held():
        futures = submit_all(client, "abcd"[:least])
        provider.wait_for(1)
        futures += submit_all(client, "efg"[: least - 1])
    for future in futures:
        future.result(PATIENCE)
    assert [(start.at, len(start.prompts)) for start in provider.starts] == [(0.0, least), (0.5, least - 1)]


def test_with_a_min_batch_size_of_one_nobody_waits(busy):
    scene = busy(min_batch_size=1, batch_window=0.5)
    with scene.clock.held():
        scene.first()
        future = scene.client.submit("alone")
        scene.provider.wait_for(2)
    future.result(PATIENCE)
    assert scene.later_calls() == [(0.0, 1)]


def test_a_full_batch_goes_at_once(busy):
    scene = busy()
    with scene.clock.held():
        scene.first()
        futures = submit_all(scene.client, [f"p{i}" for i in range(23)])
        scene.provider.wait_for(3)
    for future in futures:
        future.result(PATIENCE)
    assert scene.later_calls() == [(0.0, 10), (0.0, 10), (pytest.approx(0.1), 3)]


def test_an_urgent_request_closes_the_window(busy):
    scene = busy()
    with scene.clock.held():
        scene.first()
        submit_all(scene.client, "abc")
        scene.client.submit_urgent("now")
        scene.provider.wait_for(2)
    assert scene.later_calls() == [(0.0, 4)]
    assert scene.provider.starts[1].prompt == "now"


def test_flush_sends_what_waits_and_nothing_that_comes_later(busy):
    scene = busy(latency=lambda prompt: 60.0 if prompt == "first" else 1.0)
    with scene.clock.held():
        scene.first()
        scene.client.submit("flushed")
        scene.client.flush()
        scene.provider.wait_for(2)
        futures = submit_all(scene.client, ["later", "and later"])
    for future in futures:
        future.result(PATIENCE)
    assert scene.later_calls() == [(0.0, 1), (pytest.approx(0.1), 2)]


def test_stopping_closes_all_windows(busy):
    scene = busy(latency=lambda prompt: 60.0 if prompt == "first" else 1.0)
    with scene.clock.held():
        scene.first()
        future = scene.client.submit("pending")
    scene.client.stop()
    assert future.done()
    assert future.result(PATIENCE).text == "re: pending"
    assert scene.provider.starts[1].at < 60.0


def test_requests_of_different_isolation_keys_never_share_a_call(busy):
    scene = busy(max_batch_size=4)
    with scene.clock.held():
        scene.first()
        for i in range(12):
            scene.client.submit(f"{'xyz'[i % 3]} {i}", isolation_key="xyz"[i % 3])
    scene.client.stop()
    for start in scene.provider.starts[1:]:
        assert len({prompt[0] for prompt in start.prompts}) == 1
    assert sum(scene.provider.sizes) == 13


def test_a_requests_own_callable_never_shares_a_call(busy):
    scene = busy()
    with scene.clock.held():
        scene.first()
        futures = submit_all(scene.client, "ab")
        own = scene.client.submit(Request("mine", call=lambda request, attempt: "my own answer"))
        futures += submit_all(scene.client, "cd")
    assert own.result(PATIENCE).text == "my own answer"
    assert [future.result(PATIENCE).text for future in futures] == [f"re: {p}" for p in "abcd"]
    assert "mine" not in scene.provider.prompts


def test_each_answer_of_a_shared_call_finds_its_request(busy):
    scene = busy()
    with scene.clock.held():
        scene.first()
        futures = {name: scene.client.submit(name, id=f"id-{name}", context=[name]) for name in "abcde"}
    for name, future in futures.items():
        result = future.result(PATIENCE)
        assert (result.text, result.request_id, result.context) == (f"re: {name}", f"id-{name}", [name])
        assert result.route is Route.SHARED
        assert result.attempts == 1


def test_what_a_shared_answer_lacks_is_asked_again_alone(busy):
    scene = busy(script=lambda prompt, attempt: None if (prompt, attempt) == ("c", 0) else f"re: {prompt}")
    with scene.clock.held():
        scene.first()
        futures = submit_all(scene.client, "abcde")
    results = [future.result(PATIENCE) for future in futures]
    assert [result.text for result in results] == [f"re: {p}" for p in "abcde"]
    assert [result.attempts for result in results] == [1, 1, 2, 1, 1]
    assert scene.provider.starts[-1].prompts == ("c",)


def test_an_exception_in_a_shared_answer_concerns_its_request_only(busy):
    def script(prompt, attempt):
        if prompt == "b":
            return failure(ErrorKind.CLIENT_ERROR, status=400)
        if prompt == "d" and attempt == 0:
            return failure(ErrorKind.SERVER_ERROR, status=500)
        return f"re: {prompt}"

    scene = busy(script=script)
    with scene.clock.held():
        scene.first()
        futures = dict(zip("abcde", submit_all(scene.client, "abcde"), strict=True))
    with pytest.raises(ProviderError) as caught:
        futures.pop("b").result(PATIENCE)
    assert caught.value.kind is ErrorKind.CLIENT_ERROR
    assert [future.result(PATIENCE).text for future in futures.values()] == [f"re: {p}" for p in "acde"]
    assert scene.provider.prompts.count("a") == 1
    assert scene.provider.prompts.count("d") == 2


def test_each_request_of_a_failed_shared_call_gets_an_error_of_its_own(busy):
    def script(prompt, attempt):
        if prompt != "first":
            raise failure(ErrorKind.CLIENT_ERROR, status=400)
        return "fine"

    scene = busy(script=script)
    with scene.clock.held():
        scene.first()
        futures = [scene.client.submit(name, id=f"id-{name}") for name in "abc"]
    errors = [future.exception(PATIENCE) for future in futures]
    assert [getattr(error, "request_id", None) for error in errors] == ["id-a", "id-b", "id-c"]
    assert len({id(error) for error in errors}) == 3


def test_an_own_function_for_many_requests_shares_calls(clock, client_of):
    sizes = []

    def many(requests, attempt):
        sizes.append(len(requests))
        clock.sleep(1.0)
        return [f"many {request.prompt}" for request in requests]

    def one(request, attempt):
        clock.sleep(1.0)
        return f"one {request.prompt}"

    client = client_of(CallableProvider(one, many=many), parallelism=1)
    with clock.held():
        futures = submit_all(client, [f"p{i}" for i in range(21)])
    texts = [future.result(PATIENCE).text for future in futures]
    assert [text.split()[1] for text in texts if text] == [f"p{i}" for i in range(21)]
    assert len(sizes) <= 3
    assert max(sizes) == 10


def test_a_window_ends_in_time_although_every_busy_worker_is_busy_for_long(busy):
    scene = busy(latency=lambda prompt: 3600.0 if prompt == "first" else 1.0)
    with scene.clock.held():
        scene.first()
        alone = scene.client.submit("alone", call=lambda request, attempt: scene.clock.sleep(3600.0))
        future = scene.client.submit("gathering")
    assert future.result(PATIENCE).ok
    assert scene.provider.starts[-1].at == pytest.approx(0.1)
    assert alone.result(PATIENCE).ok
