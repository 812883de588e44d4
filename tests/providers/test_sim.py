"""The embedded provider: answers, faults, limits and streams."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartbatch._clock import VirtualClock
from smartbatch.core.preparation.structured import Parsed, read_answer
from smartbatch.emulator.composed_answers import answer_for
from smartbatch.errors import ConfigError, ErrorKind, ProviderError
from smartbatch.providers import SimProvider
from smartbatch.providers.sim.provider import FAULTS, parse_options
from smartbatch.types import Generation, Message, Request, Usage


def sim(**settings: object) -> tuple[SimProvider, VirtualClock]:
    clock = VirtualClock()
    return SimProvider(sleep=clock.sleep, now=clock.now, **settings), clock


def ask(provider: SimProvider, prompt="Hello?", attempt: int = 0, timeout: float = 60.0, **params: object):
    request = Request(prompt=prompt, params=Generation(**params))
    return provider.generate(request, model="demo", attempt=attempt, timeout=timeout)


def outcomes(provider: SimProvider, n: int = 400) -> list[str]:
    found = []
    for number in range(n):
        try:
            found.append(ask(provider, f"prompt {number}").text)
        except ProviderError as error:
            found.append(f"{error.kind.name} {error.status}")
    return found


def test_an_answer_is_the_emulators():
    provider, _ = sim()
    assert ask(provider).text == answer_for("Hello?", "demo")
    assert ask(sim(seed=3)[0]).text == answer_for("Hello?", "demo", 3)
    talk = (Message("user", "Before"), Message("assistant", "So?"), Message("user", ({"text": "Hello?"},)))
    assert ask(provider, talk).text == ask(provider).text
    assert ask(provider, (*talk, Message("system", "Be brief."))).text == ask(provider).text


def test_latency_passes_on_the_given_clock():
    provider, clock = sim(latency=0.2, per_token=0.01)
    answer = ask(provider)
    assert clock.now() == pytest.approx(0.2 + 0.01 * answer.usage.output_tokens)


def test_a_call_slower_than_its_timeout_ends_there():
    provider, clock = sim(latency=5.0)
    with pytest.raises(ProviderError) as caught:
        ask(provider, timeout=1.0)
    assert (caught.value.kind, clock.now()) == (ErrorKind.TIMEOUT, 1.0)


def test_faults_are_as_frequent_as_asked_and_repeat_with_the_seed():
    found = outcomes(sim(faults=0.25)[0])
    failed = [outcome for outcome in found if not outcome.startswith("answer")]
    assert 60 < len(failed) < 140
    assert set(failed) == {
        "SERVER_ERROR 500",
        "SERVER_ERROR 503",
        "RATE_LIMIT 429",
        "TIMEOUT None",
        "NETWORK_ERROR None",
    }
    assert outcomes(sim(faults=0.25)[0]) == found
    assert outcomes(sim(faults=0.25, seed=1)[0]) != found


def test_a_second_attempt_throws_the_rng_again():
    provider, _ = sim(faults={"503": 0.5})
    results = []
    for attempt in range(40):
        try:
            results.append(bool(ask(provider, attempt=attempt)))
        except ProviderError:
            results.append(False)
    assert 8 < sum(results) < 32


def test_a_request_limit_refuses_and_says_when():
    provider, clock = sim(latency=0.0, rpm=60)
    for _ in range(60):
        ask(provider)
    with pytest.raises(ProviderError) as caught:
        ask(provider)
    assert caught.value.kind is ErrorKind.RATE_LIMIT
    assert caught.value.retry_after == pytest.approx(1.0)
    clock.sleep(caught.value.retry_after)
    ask(provider)


def test_tokens_and_the_output_cap():
    provider, _ = sim()
    answer = ask(provider, "äöü?", max_tokens=3, system="abcdefgh")
    assert answer.usage == Usage(1 + 2, 3)
    assert (len(answer.text), answer.finish_reason) == (12, "length")
    talk = (Message("user", "a" * 40), Message("assistant", "b" * 20), Message("user", "c" * 8))
    assert ask(provider, talk).usage.input_tokens == 10 + 5 + 2
    assert ask(provider, stop=(" ",)).text == "answer"


def test_a_response_format_is_followed():
    provider, _ = sim()
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "number"}}}
    assert json.loads(ask(provider, response_format=form).text) == 0
    assert set(json.loads(ask(provider, response_format={"type": "json_object"}).text)) == {"answer"}
    assert ask(provider, response_format={"type": "text"}).text == ask(provider).text


BOUNDED = {
    "between_0_and_1": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "up_to_a_half": {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5},
    "below_1": {"type": "number", "exclusiveMaximum": 1},
    "whole_below_1": {"type": "integer", "exclusiveMaximum": 1},
    "two_lower_bounds": {"type": "integer", "minimum": 2, "exclusiveMinimum": 2},
    "whole_from_a_fraction": {"type": "integer", "minimum": 1.5},
    "whole_above_a_fraction": {"type": "integer", "exclusiveMinimum": 1.5, "exclusiveMaximum": 3},
    "cents": {"type": "number", "exclusiveMinimum": 0.1, "multipleOf": 0.05},
    "fives": {"type": "integer", "exclusiveMinimum": 5, "maximum": 10, "multipleOf": 2.5},
    "at_most_minus_7": {"type": "integer", "maximum": -7, "multipleOf": 5},
    "any_or_none": {"type": ["number", "null"], "exclusiveMaximum": -1},
}
"""Schemas that only a few numbers satisfy."""
SIZED = {
    "long": {"type": "string", "minLength": 900},
    "pair": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "minItems": 2},
}


@pytest.mark.parametrize("part", [pytest.param(part, id=name) for name, part in (BOUNDED | SIZED).items()])
def test_answers_keep_the_bounds_of_their_schema(part):
    provider, _ = sim()
    schema = {"type": "object", "properties": {"value": part}, "required": ["value"]}
    text = ask(provider, schema=schema).text
    assert read_answer(Generation(schema=schema), text, "stop") == Parsed(json.loads(text))


def test_options_are_read_from_the_model():
    assert parse_options("latency=0.2&sigma=0.5&faults=0.02&rpm=600&seed=3") == {
        "latency": "0.2",
        "latency_sigma": 0.5,
        "faults": 0.02,
        "rpm": 600.0,
        "seed": 3,
    }
    assert parse_options("faults=503:0.1,429:0.05") == {"faults": {"503": 0.1, "429": 0.05}}
    assert parse_options("") == {}


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("latencyy=1", "the options are latency, sigma, per_token, rpm, tpm, batch_seconds, faults, seed"),
        ("rpm=many", "is not a number"),
        ("seed=1.5", "is not a number"),
        ("faults=503:x", "is not a number"),
    ],
)
def test_options_that_are_refused(text, part):
    with pytest.raises(ConfigError, match=part):
        parse_options(text)


@pytest.mark.parametrize(
    "settings",
    [
        {"latency": -1},
        {"latency": "fast"},
        {"latency": ""},
        {"batch_seconds": float("inf")},
        {"latency": float("nan")},
        {"latency_sigma": float("inf")},
        {"rpm": 0},
        {"faults": 1.5},
        {"faults": float("nan")},
        {"faults": {"418": 0.1}},
        {"faults": {"503": 0.7, "429": 0.7}},
    ],
)
def test_settings_that_are_refused(settings):
    with pytest.raises(ConfigError, match="sim:"):
        sim(**settings)


@given(st.text(), st.integers(0, 5))
def test_any_text_has_an_answer(prompt, attempt):
    provider, _ = sim(latency=0.0, latency_sigma=0.1)
    assert ask(provider, prompt, attempt).text == ask(provider, prompt).text


def spoken(provider: SimProvider, attempt: int = 0, timeout: float = 60.0):
    request = Request(prompt="Hello?")
    return provider.stream(request, model="demo", attempt=attempt, timeout=timeout)


def test_a_stream_says_the_same_word_by_word():
    provider, clock = sim(latency=0.2, per_token=0.01)
    stream = spoken(provider)
    times = [(word, clock.now()) for word in stream]
    assert "".join(word for word, _ in times) == stream.answer.text == ask(sim()[0]).text
    assert 0.2 < times[0][1] < 0.25
    assert times[-1][1] == pytest.approx(0.2 + 0.01 * stream.answer.usage.output_tokens)


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_the_connection_come_in_the_middle_of_a_stream(fault):
    provider, _ = sim(faults={fault: 1.0})
    words = []
    with pytest.raises(ProviderError):  # noqa: PT012
        for word in spoken(provider):
            words.append(word)  # noqa: PERF402
    assert bool(words) == (fault in ("timeout", "network"))


def test_a_stream_keeps_its_time_out():
    provider, clock = sim(latency=0.2, per_token=0.1)
    with pytest.raises(ProviderError) as caught:
        list(spoken(provider, timeout=0.5))
    assert caught.value.kind is ErrorKind.TIMEOUT
    assert clock.now() == pytest.approx(0.5)


def test_a_closed_stream_says_nothing_more():
    stream = spoken(sim()[0])
    words = iter(stream)
    next(words)
    stream.close()
    with pytest.raises(ProviderError, match="closed"):
        next(words)
    with pytest.raises(RuntimeError):
        _ = stream.answer
