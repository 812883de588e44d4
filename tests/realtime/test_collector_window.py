"""The window, end to end: who travels with whom, and when (A1, A2, A3, A11, A12, A13)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from scenes import PATIENCE, Scripted, failure, submit_all

from smartbatch._clock import VirtualClock
from smartbatch.client import BatchingClient
from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers import CallableProvider, MockProvider
from smartbatch.types import Request, Route

ClientOf = Callable[..., BatchingClient]


class Busy:
    """A client whose lane has one call of a second under way, so that further requests gather."""

    def __init__(self, clock: VirtualClock, client_of: ClientOf, **settings: Any) -> None:
        script = settings.pop("script", lambda prompt, attempt: f"re: {prompt}")
        latency = settings.pop("latency", 1.0)
        max_shared = settings.pop("max_shared", 10)
        self.clock = clock
        self.provider = Scripted(clock, script, latency=latency, max_shared=max_shared)
        self.client = client_of(self.provider, **{"parallelism": 20, **settings})

    def first(self) -> None:
        """Send the call that keeps the lane busy."""
        self.client.submit("first")
        self.provider.wait_for(1)

    def later_calls(self) -> list[tuple[float, int]]:
        """When the calls after the first began, and how many requests each carried."""
        self.client.stop()
        return [(start.at, len(start.prompts)) for start in self.provider.starts[1:]]


@pytest.fixture
def busy(clock: VirtualClock, client_of: ClientOf) -> Callable[..., Busy]:
    """Make a lane that can be kept busy."""
    return lambda **settings: Busy(clock, client_of, **settings)


def test_an_idle_lane_adds_no_latency(busy: Callable[..., Busy]) -> None:
    """A single request is on the wire at the moment it is submitted."""
    scene = busy()
    assert scene.client.submit("alone").result(PATIENCE).text == "re: alone"
    assert scene.provider.starts[0].at == 0.0


def test_a_busy_lane_gathers_until_the_window_is_over(busy: Callable[..., Busy]) -> None:
    """Five requests that come during a call share the next one, 100 ms later."""
    scene = busy()
    with scene.clock.held():
        scene.first()
        futures = submit_all(scene.client, "abcde")
    for future in futures:
        future.result(PATIENCE)
    assert scene.later_calls() == [(pytest.approx(0.1), 5)]


def test_the_window_is_as_long_as_configured(busy: Callable[..., Busy]) -> None:
    """Half a second is half a second."""
    scene = busy(batch_window=0.5)
    with scene.clock.held():
        scene.first()
        futures = submit_all(scene.client, "abc")
    for future in futures:
        future.result(PATIENCE)
    assert scene.later_calls() == [(0.5, 3)]


def test_one_request_alone_goes_when_its_window_is_over(busy: Callable[..., Busy]) -> None:
    """No request joins it, and the call under way takes an hour: it waits for the window and no longer."""
    scene = busy(latency=lambda prompt: 3600.0 if prompt == "first" else 1.0)
    with scene.clock.held():
        scene.first()
        future = scene.client.submit("alone", priority="deferrable")
    future.result(PATIENCE)
    assert scene.later_calls() == [(pytest.approx(0.1), 1)]


def test_one_request_alone_goes_when_the_lane_falls_idle(busy: Callable[..., Busy]) -> None:
    """When the call under way ends before the window, only who asked for that has a moment to come back."""
    scene = busy(latency=0.03)
    with scene.clock.held():
        scene.first()
        future = scene.client.submit("alone")
    future.result(PATIENCE)
    assert scene.later_calls() == [(pytest.approx(0.034), 1)]


def test_a_request_may_carry_its_own_max_wait(busy: Callable[..., Busy]) -> None:
    """A request that waits 50 ms at most takes with it those that wait."""
    scene = busy()
    with scene.clock.held():
        scene.first()
        futures = [scene.client.submit("usual"), scene.client.submit("short", max_wait=0.05)]
    for future in futures:
        future.result(PATIENCE)
    assert scene.later_calls() == [(0.05, 2)]


@pytest.mark.parametrize("least", [2, 4])
def test_min_batch_size_holds_from_the_first_call_on(
    clock: VirtualClock, client_of: ClientOf, least: int
) -> None:
    """As many go at once; one less waits for the window, although nothing is in flight at first."""
    provider = Scripted(clock, lambda prompt, attempt: prompt, max_shared=10)
    client = client_of(provider, min_batch_size=least, batch_window=0.5)
    with clock.held():
        futures = submit_all(client, "abcd"[:least])
        provider.wait_for(1)
        futures += submit_all(client, "efg"[: least - 1])
    for future in futures:
        future.result(PATIENCE)
    assert [(start.at, len(start.prompts)) for start in provider.starts] == [(0.0, least), (0.5, least - 1)]


def test_with_a_min_batch_size_of_one_nobody_waits(busy: Callable[..., Busy]) -> None:
    """Neither for the window nor for a call in flight."""
    scene = busy(min_batch_size=1, batch_window=0.5)
    with scene.clock.held():
        scene.first()
        future = scene.client.submit("alone")
        scene.provider.wait_for(2)
    future.result(PATIENCE)
    assert scene.later_calls() == [(0.0, 1)]


def test_a_full_batch_goes_at_once(busy: Callable[..., Busy]) -> None:
    """Ten of ten need no window, and the rest waits for theirs."""
    scene = busy()
    with scene.clock.held():
        scene.first()
        futures = submit_all(scene.client, [f"p{i}" for i in range(23)])
        scene.provider.wait_for(3)
    for future in futures:
        future.result(PATIENCE)
    assert scene.later_calls() == [(0.0, 10), (0.0, 10), (pytest.approx(0.1), 3)]


def test_max_batch_size_holds_below_what_the_provider_takes(busy: Callable[..., Busy]) -> None:
    """The smaller of the two limits counts."""
    scene = busy(max_batch_size=4)
    with scene.clock.held():
        scene.first()
        submit_all(scene.client, "abcdefgh")
    assert scene.later_calls() == [(0.0, 4), (0.0, 4)]


def test_the_provider_limits_the_size_as_well(busy: Callable[..., Busy]) -> None:
    """An API that takes three prompts a call gets three."""
    scene = busy(max_shared=3)
    with scene.clock.held():
        scene.first()
        submit_all(scene.client, "abcdef")
    assert scene.later_calls() == [(0.0, 3), (0.0, 3)]


def test_an_urgent_request_closes_the_window(busy: Callable[..., Busy]) -> None:
    """It goes at once, together with those that wait already."""
    scene = busy()
    with scene.clock.held():
        scene.first()
        submit_all(scene.client, "abc")
        scene.client.submit_urgent("now")
        scene.provider.wait_for(2)
    assert scene.later_calls() == [(0.0, 4)]
    assert scene.provider.starts[1].prompt == "now"


def test_an_urgent_duplicate_of_a_waiting_request_closes_the_window_too(busy: Callable[..., Busy]) -> None:
    """An urgent request that joins an identical one in the window must not wait there."""
    scene = busy()
    with scene.clock.held():
        scene.first()
        scene.client.submit("same")
        scene.client.submit_urgent("same")
        scene.provider.wait_for(2)
    assert scene.later_calls() == [(0.0, 1)]


def test_a_duplicate_with_a_shorter_max_wait_shortens_the_wait(busy: Callable[..., Busy]) -> None:
    """The shorter max_wait of two identical requests counts."""
    scene = busy()
    with scene.clock.held():
        scene.first()
        scene.client.submit("same")
        future = scene.client.submit("same", max_wait=0.05)
    future.result(PATIENCE)
    assert scene.later_calls() == [(0.05, 1)]


def test_flush_sends_what_waits_and_nothing_that_comes_later(busy: Callable[..., Busy]) -> None:
    """After a flush the window gathers again."""
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


def test_stopping_closes_all_windows(busy: Callable[..., Busy]) -> None:
    """A stop does not sit out the window of what is pending."""
    scene = busy(latency=lambda prompt: 60.0 if prompt == "first" else 1.0)
    with scene.clock.held():
        scene.first()
        future = scene.client.submit("pending")
    scene.client.stop()
    assert future.done()
    assert future.result(PATIENCE).text == "re: pending"
    assert scene.provider.starts[1].at < 60.0


def test_requests_of_different_isolation_keys_never_share_a_call(busy: Callable[..., Busy]) -> None:
    """Whatever waits side by side, each call carries one key."""
    scene = busy(max_batch_size=4)
    with scene.clock.held():
        scene.first()
        for i in range(12):
            scene.client.submit(f"{'xyz'[i % 3]} {i}", isolation_key="xyz"[i % 3])
    scene.client.stop()
    for start in scene.provider.starts[1:]:
        assert len({prompt[0] for prompt in start.prompts}) == 1
    assert sum(scene.provider.sizes) == 13


def test_a_requests_own_callable_never_shares_a_call(busy: Callable[..., Busy]) -> None:
    """A work item makes its own call also where the others travel together."""
    scene = busy()
    with scene.clock.held():
        scene.first()
        futures = submit_all(scene.client, "ab")
        own = scene.client.submit(Request("mine", call=lambda request, attempt: "my own answer"))
        futures += submit_all(scene.client, "cd")
    assert own.result(PATIENCE).text == "my own answer"
    assert [future.result(PATIENCE).text for future in futures] == [f"re: {p}" for p in "abcd"]
    assert "mine" not in scene.provider.prompts


def test_a_hundred_requests_behind_a_busy_call_make_ten_calls(busy: Callable[..., Busy]) -> None:
    """The count of calls is what sharing is for."""
    scene = busy()
    with scene.clock.held():
        scene.first()
        futures = submit_all(scene.client, [f"p{i}" for i in range(100)])
    assert [future.result(PATIENCE).text for future in futures] == [f"re: p{i}" for i in range(100)]
    scene.client.stop()
    assert scene.provider.sizes == [1, *[10] * 10]


def test_each_answer_of_a_shared_call_finds_its_request(busy: Callable[..., Busy]) -> None:
    """Text, id, context and route are those of the request."""
    scene = busy()
    with scene.clock.held():
        scene.first()
        futures = {name: scene.client.submit(name, id=f"id-{name}", context=[name]) for name in "abcde"}
    for name, future in futures.items():
        result = future.result(PATIENCE)
        assert (result.text, result.request_id, result.context) == (f"re: {name}", f"id-{name}", [name])
        assert result.route is Route.SHARED
        assert result.attempts == 1


def test_what_a_shared_answer_lacks_is_asked_again_alone(busy: Callable[..., Busy]) -> None:
    """Only the request without an answer is repeated, in a call of its own, and not its neighbours."""
    scene = busy(script=lambda prompt, attempt: None if (prompt, attempt) == ("c", 0) else f"re: {prompt}")
    with scene.clock.held():
        scene.first()
        futures = submit_all(scene.client, "abcde")
    results = [future.result(PATIENCE) for future in futures]
    assert [result.text for result in results] == [f"re: {p}" for p in "abcde"]
    assert [result.attempts for result in results] == [1, 1, 2, 1, 1]
    assert scene.provider.starts[-1].prompts == ("c",)


def test_an_exception_in_a_shared_answer_concerns_its_request_only(busy: Callable[..., Busy]) -> None:
    """A wrong request fails alone; a passing failure is retried alone; the others are answered."""

    def script(prompt: str, attempt: int) -> Any:
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


def test_each_request_of_a_failed_shared_call_gets_an_error_of_its_own(busy: Callable[..., Busy]) -> None:
    """No two futures share one exception, and each error names its request."""

    def script(prompt: str, attempt: int) -> Any:
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


def test_the_individual_strategy_never_shares(busy: Callable[..., Busy]) -> None:
    """strategy="individual" makes a call for each request, without a window."""
    scene = busy(strategy="individual")
    with scene.clock.held():
        scene.first()
        submit_all(scene.client, "abc")
    assert scene.later_calls() == [(0.0, 1)] * 3


def test_an_own_function_for_many_requests_shares_calls(clock: VirtualClock, client_of: ClientOf) -> None:
    """CallableProvider(many=…) is asked for several at once, and each gets its own entry."""
    sizes: list[int] = []

    def many(requests: Any, attempt: int) -> list[str]:
        sizes.append(len(requests))
        clock.sleep(1.0)
        return [f"many {request.prompt}" for request in requests]

    def one(request: Request, attempt: int) -> str:
        clock.sleep(1.0)
        return f"one {request.prompt}"

    client = client_of(CallableProvider(one, many=many), parallelism=1)
    with clock.held():
        futures = submit_all(client, [f"p{i}" for i in range(21)])
    texts = [future.result(PATIENCE).text for future in futures]
    assert [text.split()[1] for text in texts if text] == [f"p{i}" for i in range(21)]
    assert len(sizes) <= 3
    assert max(sizes) == 10


def test_the_mock_provider_shares_calls_as_well(clock: VirtualClock, client_of: ClientOf) -> None:
    """MockProvider(max_shared=…) records how many each call carried."""
    provider = MockProvider(max_shared=5, latency=1.0, sleep=clock.sleep)
    client = client_of(provider, parallelism=1)
    with clock.held():
        futures = submit_all(client, [f"p{i}" for i in range(11)])
    for future in futures:
        assert future.result(PATIENCE).ok
    assert sum(len(call.requests) for call in provider.calls) == 11
    assert len(provider.calls) <= 4


def test_a_window_ends_in_time_although_every_busy_worker_is_busy_for_long(busy: Callable[..., Busy]) -> None:
    """A call of an hour starts in one lane; what gathers for another still goes when its window is over."""
    scene = busy(latency=lambda prompt: 3600.0 if prompt == "first" else 1.0)
    with scene.clock.held():
        scene.first()
        alone = scene.client.submit("alone", call=lambda request, attempt: scene.clock.sleep(3600.0))
        future = scene.client.submit("gathering")
    assert future.result(PATIENCE).ok
    assert scene.provider.starts[-1].at == pytest.approx(0.1)
    assert alone.result(PATIENCE).ok
