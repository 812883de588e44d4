"""The mock provider for users' tests."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from smartbatch._clock import VirtualClock
from smartbatch.errors import ConfigError, ErrorKind, ProviderError
from smartbatch.testing import MockProvider
from smartbatch.types import Answer, Request, Usage


def ask(provider: MockProvider, prompt: str = "p") -> Answer:
    return provider.generate(Request(prompt=prompt), model="m", attempt=1, timeout=9.0)


def test_without_a_script_an_answer_belongs_to_its_prompt():
    provider = MockProvider()
    assert ask(provider, "a").text != ask(provider, "b").text
    assert ask(provider, "a").text == ask(provider, "a").text
    assert ask(provider, "abcd" * 3).usage.input_tokens == 3


def test_scripts_are_lists_mappings_or_functions():
    listed = MockProvider(["one", Answer(text="two", usage=Usage(7, 8)), ValueError("three"), {"four": 4}])
    assert ask(listed).text == "one"
    assert ask(listed).usage == Usage(7, 8)
    with pytest.raises(ValueError, match="three"):
        ask(listed)
    assert ask(listed).value == {"four": 4}
    with pytest.raises(LookupError, match="4 answers; this is request 5"):
        ask(listed)
    mapped = MockProvider({"a": "A"})
    assert ask(mapped, "a").text == "A"
    with pytest.raises(LookupError):
        ask(mapped, "b")
    assert ask(MockProvider(lambda request: request.prompt * 2), "ab").text == "abab"


def test_calls_fail_where_they_are_told_to():
    mine = RuntimeError("mine")
    provider = MockProvider(rate_limit_on={2}, retry_after=3.0, fail_on={3: ErrorKind.SERVER_ERROR, 4: mine})
    ask(provider)
    found = []
    for _ in range(3):
        with pytest.raises((ProviderError, RuntimeError)) as caught:
            ask(provider)
        found.append(caught.value)
    assert (found[0].kind, found[0].retry_after, found[0].status) == (ErrorKind.RATE_LIMIT, 3.0, 429)
    assert found[1].kind is ErrorKind.SERVER_ERROR
    assert found[2] is mine
    ask(provider)


def test_every_call_is_recorded():
    provider = MockProvider(fail_on={1: ErrorKind.TIMEOUT})
    with pytest.raises(ProviderError):
        ask(provider, "a")
    ask(provider, "b")
    assert provider.prompts == ["a", "b"]
    first = provider.calls[0]
    assert (first.number, first.request.prompt, first.model, first.attempt, first.timeout) == (
        1,
        "a",
        "m",
        1,
        9.0,
    )
    assert first.thread == threading.current_thread().name


def test_latency_passes_on_the_given_clock():
    clock = VirtualClock()
    ask(MockProvider(latency=2.5, sleep=clock.sleep))
    assert clock.now() == 2.5
    with pytest.raises(ConfigError, match="sleep"):
        MockProvider(latency=1.0)


def test_it_counts_what_runs_at_once():
    together = threading.Barrier(8)
    provider = MockProvider(lambda request: together.wait(10))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: ask(provider), range(40)))
    assert provider.max_in_flight == 8
    assert [call.number for call in provider.calls] == list(range(1, 41))


def test_calls_can_be_shared():
    provider = MockProvider({"a": "A", "b": ValueError("B")}, max_shared=3)
    requests = [Request(prompt="a"), Request(prompt="b"), Request(prompt="c")]
    answers = provider.generate_many(requests, model="m", attempt=0, timeout=1.0)
    assert answers[0].text == "A"
    assert isinstance(answers[1], ValueError)
    assert isinstance(answers[2], LookupError)
    assert len(provider.calls) == 1
    assert provider.capabilities.max_shared == 3
