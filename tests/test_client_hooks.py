"""Hooks of users: pre- and post-processing, middleware, and observers."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from smartbatch.client import BatchingClient
from smartbatch.errors import ErrorKind, InvalidRequest, ProviderError, SmartbatchError, ValidationFailed
from smartbatch.events import (
    CallFinished,
    CallStarted,
    ClientStarted,
    Event,
    RequestFinished,
    RequestSubmitted,
)
from smartbatch.providers import MockProvider
from smartbatch.types import Answer, Request, Result, Route, evolve

ClientOf = Callable[..., BatchingClient]
PATIENCE = 30.0


def echo() -> MockProvider:
    return MockProvider(lambda request: f"re: {request.prompt}")


def echo_of_vectors() -> MockProvider:
    provider = MockProvider()
    provider.capabilities = evolve(provider.capabilities, max_texts=10)
    return provider


# -- preprocessing ---------------------------------------------------------------------------------------


def test_a_hook_may_change_a_request(client_of):
    provider = echo()

    def trim(request: Request) -> Request:
        return evolve(request, prompt=str(request.prompt).strip())

    client = client_of(
        provider, preprocess=[trim, lambda request: None, lambda r: evolve(r, prompt=f"{r.prompt}!")]
    )
    assert client.submit("  hello ").result(PATIENCE).text == "re: hello!"


@pytest.mark.parametrize("answer", ["local", Answer("local")])
def test_a_hook_may_answer_locally(answer, client_of):
    provider = echo()
    client = client_of(provider, preprocess=[lambda request: answer])
    future = client.submit("x", context=5, id="mine")
    assert isinstance(future, Future)
    result = future.result(PATIENCE)
    assert (result.text, result.route, result.cost, result.attempts) == ("local", Route.LOCAL, 0.0, 0)
    assert (result.context, result.request_id) == (5, "mine")
    assert provider.calls == []
    assert [result.text for result in client.map(["a", "b"])] == ["local", "local"]


def test_a_local_answer_is_read_as_any_other(client_of):
    def shout(result: Result) -> Result:
        return evolve(result, text=str(result.text).upper())

    answers = {"good": '{"n": 7}', "bad": '{"n": "x"}'}
    hooks = [lambda request: answers[request.prompt]]
    client = client_of(echo(), preprocess=hooks, post_process=shout)
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    result = client.submit("good", schema=schema).result(PATIENCE)
    assert (result.parsed, result.text, result.route) == ({"n": 7}, '{"N": 7}', Route.LOCAL)
    good, bad = client.generate(["good", "bad"], schema=schema)
    assert (good.parsed, good.text) == ({"n": 7}, '{"N": 7}')
    assert isinstance(bad.error, ValidationFailed)
    assert (bad.text, bad.cost, bad.attempts, bad.route) == ('{"n": "x"}', 0.0, 0, Route.LOCAL)
    assert "a preprocess hook answered the request" in str(bad.error)


def test_a_vector_may_be_local(client_of):
    client = client_of(echo_of_vectors(), preprocess=[lambda request: Answer(embedding=[1.0, 2.0])])
    result = client.submit_embedding("x").result(PATIENCE)
    assert (result.embedding, result.route) == (array("f", [1.0, 2.0]), Route.LOCAL)
    error = client.submit_embedding("x", dimensions=3).exception(PATIENCE)
    assert "its vector has 2 numbers instead of 3" in str(error)
    texts = client_of(echo_of_vectors(), preprocess=[lambda request: "a text"])
    assert "it has no vector" in str(texts.submit_embedding("x").exception(PATIENCE))


def test_a_hook_may_reject(client_of):
    def reject(request: Request) -> None:
        raise PermissionError("not this one")

    client = client_of(echo(), preprocess=[reject])
    with pytest.raises(PermissionError, match="not this one"):
        client.submit("x")
    assert client.counts.submitted == 0


def test_what_a_hook_returns_is_checked(client_of):
    client = client_of(echo(), preprocess=[lambda request: evolve(request, prompt="")])
    with pytest.raises(InvalidRequest):
        client.submit("x")


# -- post-processing -------------------------------------------------------------------------------------


def test_a_post_processor_may_change_a_result(client_of):
    client = client_of(echo(), post_process=lambda result: evolve(result, parsed=len(result.text or "")))
    assert client.submit("x").result(PATIENCE).parsed == 5
    assert client_of(echo(), post_process=lambda result: None).submit("x").result(PATIENCE).ok


@pytest.mark.parametrize("error", [ValueError("bad"), SystemExit(1)])
def test_a_post_processor_that_raises_fails_its_request_only(error, client_of):
    def work(result: Result) -> Result:
        if result.context == "bad":
            raise error
        return result

    client = client_of(echo(), post_process=work)
    bad, good = client.submit("x", context="bad"), client.submit("y")
    with pytest.raises(SmartbatchError, match="the answer was paid for") as caught:
        bad.result(PATIENCE)
    assert caught.value.__cause__ is error
    assert good.result(PATIENCE).ok


@pytest.mark.parametrize("nonsense", ["a text", 5, {"text": "x"}])
def test_a_wrong_return_of_a_post_processor_fails_only_its_request(nonsense, client_of):
    client = client_of(
        echo(), post_process=lambda result: nonsense if result.context else result, parallelism=1
    )
    bad, good = client.submit("x", context=1), client.submit("y")
    with pytest.raises(SmartbatchError, match="post_process"):
        bad.result(PATIENCE)
    assert good.result(PATIENCE).ok


def test_a_post_processor_may_fail_a_result(client_of):
    refusal: Any = ValueError("not good enough")
    client = client_of(echo(), post_process=lambda result: evolve(result, error=refusal), parallelism=1)
    future = client.submit("x")
    error = future.exception(PATIENCE)
    assert isinstance(error, SmartbatchError)
    assert error.__cause__ is refusal
    assert client.counts.failed == 1


# -- middleware and observers ----------------------------------------------------------------------------


def test_middleware_surrounds_every_call(client_of):
    seen: list[tuple[int, str]] = []

    def layer(spec: Any, proceed: Any) -> Any:
        outcomes = proceed(spec)
        seen.append((spec.attempt, spec.model))
        return [
            evolve(outcome, text=outcome.text.upper()) if isinstance(outcome, Answer) else outcome
            for outcome in outcomes
        ]

    client = client_of(echo(), middleware=[layer])
    assert client.submit("x").result(PATIENCE).text == "RE: X"
    assert seen == [(0, "mock:default")]


def test_middleware_that_raises_fails_its_call_only(client_of):
    def layer(spec: Any, proceed: Any) -> Any:
        if spec.requests[0].prompt == "bad":
            raise RuntimeError("in a middleware")
        return proceed(spec)

    client = client_of(echo(), middleware=[layer], parallelism=1, retries=0)
    bad, good = client.submit("bad"), client.submit("good")
    error = bad.exception(PATIENCE)
    assert isinstance(error, ProviderError)
    assert error.kind is ErrorKind.UNKNOWN
    assert good.result(PATIENCE).ok


def test_observers_hear_the_life_of_a_request(client_of):
    events: list[Event] = []
    client = client_of(echo(), observers=[events.append])
    client.submit("x", id="mine").result(PATIENCE)
    client.stop()
    names = [type(event) for event in events]
    for kind in (RequestSubmitted, CallStarted, CallFinished, RequestFinished):
        assert names.count(kind) == 1
    (ended,) = [event for event in events if isinstance(event, RequestFinished)]
    assert (ended.request_id, ended.ok, ended.attempts) == ("mine", True, 1)


def test_an_observer_may_use_the_client(client_of):
    futures: list[Any] = []

    def observe(event: Event) -> None:
        if isinstance(event, ClientStarted):
            futures.append(client.submit("at the start"))
        elif isinstance(event, RequestFinished) and event.request_id == "mine":
            futures.append(client.submit("at the end"))

    client = client_of(echo(), observers=[observe])
    assert client.submit("x", id="mine").result(PATIENCE).ok
    client.stop()
    assert len(futures) >= 1
    assert all(future.result(PATIENCE).ok for future in futures)


def test_an_observer_may_be_added_later(client_of):
    events: list[Event] = []
    client = client_of(echo())
    client.submit("before").result(PATIENCE)
    client.observe(events.append)
    client.submit("after", id="after").result(PATIENCE)
    client.stop()
    assert {event.request_id for event in events if isinstance(event, RequestSubmitted)} == {"after"}


def test_no_event_holds_a_prompt_an_answer_or_a_key(client_of):
    events: list[Event] = []
    secret = "the secret of the prompt"
    failing = MockProvider([ValueError(f"echo: {secret}"), "the answer"])
    client = client_of(failing, observers=[events.append], retries=0)
    for _ in range(2):
        client.submit(secret).exception(PATIENCE)
    client.stop()
    told = " ".join(str(event.fields()) for event in events)
    assert secret not in told
    assert "the answer" not in told
