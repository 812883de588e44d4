"""The public client: its inputs, its results, and callables of users."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from smartbatch.client import BatchingClient
from smartbatch.config import BatchingConfig
from smartbatch.errors import ConfigError, ErrorKind, InvalidRequest, ProviderError
from smartbatch.providers import CallableProvider, MockProvider, SimProvider
from smartbatch.realtime.router import ResponseRouter
from smartbatch.stored_jobs import StoredJobs
from smartbatch.types import Answer, Priority, Request, Route, Usage

ClientOf = Callable[..., BatchingClient]
PATIENCE = 30.0


def echo() -> MockProvider:
    return MockProvider(lambda request: f"re: {request.prompt}")


# -- asking ----------------------------------------------------------------------------------------------


def test_a_prompt_is_a_text_a_chat_or_a_request(client_of):
    client = client_of(SimProvider(sleep=lambda _: None, now=lambda: 0.0))
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
    texts = [client.submit(prompt).result(PATIENCE).text for prompt in ("hello", chat, Request("hello"))]
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize(
    ("how", "priority"),
    [
        ("submit", Priority.NORMAL),
        ("submit_urgent", Priority.URGENT),
        ("submit_background", Priority.DEFERRABLE),
    ],
)
def test_there_is_a_verb_for_each_urgency(how, priority, client_of):
    provider = echo()
    getattr(client_of(provider), how)("x", temperature=0.5).result(PATIENCE)
    assert provider.calls[0].request.priority is priority
    assert provider.calls[0].request.params.temperature == 0.5


def test_a_client_takes_a_model_a_provider_or_a_function(clock, client_of):
    sim = BatchingClient("sim:demo?latency=0.01", clock=clock)
    own = client_of(lambda request, attempt: "mine")
    made = client_of(echo())
    assert sim.submit("x").result(PATIENCE).model == "sim:demo"
    assert own.submit("x").result(PATIENCE).text == "mine"
    assert made.submit("x").result(PATIENCE).model == "mock:default"
    sim.stop()


def test_something_else_is_no_model():
    with pytest.raises(ConfigError, match="a string, a provider or a callable"):
        BatchingClient(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("config", [{"parallelism": 3}, "settings.toml"])
@pytest.mark.parametrize("make", [lambda config: BatchingClient("sim:demo", config), StoredJobs])
def test_what_is_no_config_is_refused_with_what_makes_one(make, config):
    kind = type(config).__name__
    with pytest.raises(ConfigError, match=rf"^config must be a BatchingConfig, not {kind}: .*\.load\("):
        make(config)


def test_settings_may_be_given_by_name_and_win(client_of):
    assert client_of(echo(), config=BatchingConfig(parallelism=3), retries=7).config.parallelism == 3
    assert client_of(echo(), config=BatchingConfig(parallelism=3), parallelism=5).config.parallelism == 5
    with pytest.raises(ConfigError, match="parallelism"):
        client_of(echo(), paralelism=5)


@pytest.mark.parametrize(
    ("prompt", "params", "field"),
    [("", {}, "prompt"), ("x", {"temperature": 9}, "temperature"), ("x", {"timeout": -1}, "timeout")],
)
def test_a_bad_request_raises_at_once_and_is_never_sent(prompt, params, field, client_of):
    provider = echo()
    client = client_of(provider)
    with pytest.raises(InvalidRequest, match=field) as caught:
        client.submit(prompt, **params)
    assert caught.value.field == field
    assert provider.calls == []
    assert client.counts.submitted == 0


def test_an_own_id_and_context_come_back_untouched(client_of):
    client = client_of(echo())
    thing = object()
    result = client.submit("x", id="my id", context=thing).result(PATIENCE)
    assert (result.request_id, result.context) == ("my id", thing)
    ids = {client.submit(f"p{i}").result(PATIENCE).request_id for i in range(10)}
    assert len(ids) == 10


def test_a_client_cannot_be_pickled_and_says_why(client_of):
    with pytest.raises(TypeError, match="threads and connections"):
        pickle.dumps(client_of(echo()))


def test_a_client_describes_itself(client_of):
    client = client_of(echo())
    assert repr(client) == "<BatchingClient mock:default idle>"
    client.start()
    assert "running" in repr(client)
    client.stop()
    assert "stopped" in repr(client)


def test_what_a_result_tells_about_its_call(clock, client_of):
    client = client_of(SimProvider(sleep=clock.sleep, now=clock.now, latency=2.0), parallelism=1)
    with clock.held():
        first, second = client.submit("one"), client.submit("two")
    assert first.result(PATIENCE).queued == 0.0
    result = second.result(PATIENCE)
    assert (result.latency, result.queued, result.attempts) == (2.0, 2.0, 1)
    assert result.route is Route.INDIVIDUAL
    assert result.usage.total_tokens > 0


def test_json_that_was_asked_for_is_parsed(client_of):
    client = client_of(MockProvider({"good": '{"a": 1}', "bad": "no JSON"}))
    schema = {"type": "object"}
    assert client.submit("good", schema=schema).result(PATIENCE).parsed == {"a": 1}
    assert client.submit("good").result(PATIENCE).parsed is None


# -- own callables ---------------------------------------------------------------------------------------


def test_a_request_may_bring_its_own_call(client_of):
    attempts: list[int] = []

    def call(request: Request, attempt: int) -> Any:
        attempts.append(attempt)
        if attempt == 0:
            raise ConnectionError("not yet")
        return {"rows": 3}

    client = client_of(echo(), retry_initial=0.01)
    result = client.submit(Request(call=call, context="c")).result(PATIENCE)
    assert (result.parsed, result.context, result.attempts) == ({"rows": 3}, "c", 2)
    assert attempts == [0, 1]


def test_identical_own_calls_are_all_made(clock, client_of):
    made: list[int] = []
    client = client_of(echo())
    with clock.held():
        futures = [client.submit(Request(call=lambda request, attempt: made.append(1))) for _ in range(5)]
    for future in futures:
        assert future.result(PATIENCE).ok
    assert len(made) == 5


def test_an_own_provider_function_may_answer_with_anything(client_of):
    answers = {"a": "text", "b": Answer("answer", usage=Usage(1, 2), cost=0.5), "c": [1, 2]}
    client = client_of(CallableProvider(lambda request, attempt: answers[str(request.prompt)]))
    a, b, c = (client.submit(name).result(PATIENCE) for name in "abc")
    assert (a.text, a.parsed) == ("text", None)
    assert (b.text, b.usage, b.cost) == ("answer", Usage(1, 2), 0.5)
    assert (c.text, c.parsed) == (None, [1, 2])
    assert client.spent == 0.5


def test_the_users_exception_is_the_cause_of_the_failure(client_of):
    mistake = ZeroDivisionError("mine")

    def call(request: Request, attempt: int) -> str:
        raise mistake

    error = client_of(call, retries=0).submit("x").exception(PATIENCE)
    assert isinstance(error, ProviderError)
    assert error.__cause__ is mistake
    assert error.__cause__.__traceback__ is not None


@pytest.mark.parametrize("value", [Answer(text=5), Answer("x", cost=-1.0), Answer("x", usage="many")])  # type: ignore[arg-type]
def test_an_answer_that_makes_no_sense_fails_its_request_only(value, client_of):
    client = client_of(lambda request, attempt: value if request.prompt == "bad" else "fine", parallelism=1)
    bad, good = client.submit("bad"), client.submit("good")
    error = bad.exception(PATIENCE)
    assert isinstance(error, ProviderError)
    assert error.kind is ErrorKind.INVALID_RESPONSE
    assert good.result(PATIENCE).ok


def test_a_mistake_of_the_library_reaches_the_caller(client_of, monkeypatch):
    mistake = AssertionError("cannot happen")

    def broken(*_: Any) -> None:
        monkeypatch.undo()
        raise mistake

    client = client_of(echo(), parallelism=1, retries=0)
    monkeypatch.setattr(ResponseRouter, "prepare", broken)
    bad, good = client.submit("bad"), client.submit("good")
    error = bad.exception(PATIENCE)
    assert isinstance(error, ProviderError)
    assert error.__cause__ is mistake
    assert good.result(PATIENCE).ok
    assert client.counts.balanced()


def test_the_figures_agree_with_what_happened(clock, client_of):
    client = client_of(MockProvider(latency=1.0, sleep=clock.sleep), parallelism=1)
    with clock.held():
        futures = [client.submit(f"p{i}") for i in range(5)]
        counts = client.counts
        assert counts.submitted == 5
        assert client.queue_size == counts.waiting >= 4
    for future in futures:
        assert future.result(PATIENCE).ok
    assert client.queue_size == 0
    assert client.counts.succeeded == 5
    assert "5" in client.status_summary()


def test_whether_there_are_batches_is_asked_for_texts_and_for_vectors():
    client = BatchingClient("sim:demo")
    assert client.has_batches("generate")
    assert not client.has_batches("embed")
    with pytest.raises(ValueError, match="vectors"):
        client.has_batches("vectors")  # type: ignore[arg-type]
