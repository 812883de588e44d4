"""The front door and its hooks: what goes in, what comes out, and what users may hang in between (A8, A10,
A18, A21, E1, E5)."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

import smartbatch
from smartbatch._clock import VirtualClock
from smartbatch.client import BatchingClient
from smartbatch.config import BatchingConfig
from smartbatch.errors import ConfigError, ErrorKind, InvalidRequest, ProviderError, SmartbatchError
from smartbatch.events import (
    CallFinished,
    CallStarted,
    ClientStarted,
    Event,
    RequestFinished,
    RequestSubmitted,
)
from smartbatch.providers import CallableProvider, MockProvider, SimProvider
from smartbatch.realtime.router import ResponseRouter
from smartbatch.types import Answer, Priority, Request, Result, Route, Usage, evolve

ClientOf = Callable[..., BatchingClient]
PATIENCE = 30.0


def echo() -> MockProvider:
    """A mock that repeats its prompt."""
    return MockProvider(lambda request: f"re: {request.prompt}")


# -- misspelt words ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"max_tokns": 4}, "max_tokens"),
        ({"dedline": "2h"}, "deadline"),
        ({"paralelism": 4}, "parallelism"),
        ({"midleware": []}, "middleware"),
        ({"strategy": "individul"}, "individual"),
        ({"prefer": "sped"}, "speed"),
        ({"on_error": "rase"}, "raise"),
    ],
)
def test_a_script_is_told_the_nearest_name(given: dict[str, Any], meant: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean {meant}\\?$"):
        smartbatch.generate(["a"], model="sim:demo", progress=False, **given)


@pytest.mark.parametrize(
    ("call", "given", "meant"),
    [
        ("submit", {"max_tokns": 4}, "max_tokens"),
        ("submit", {"priority": "urgnt"}, "urgent"),
        ("map", {"dedline": "2h"}, "deadline"),
        ("map", {"on_error": "rase"}, "raise"),
        ("as_completed", {"strategi": "auto"}, "strategy"),
        ("embed", {"purpos": "search"}, "purpose"),
        ("plan", {"strategy": "individul"}, "individual"),
        ("submit_batch", {"batch_fallback": "individul"}, "individual"),
        ("submit_and_wait", {"budgt": 1}, "budget"),
    ],
)
def test_a_misspelt_word_is_refused_at_once_with_the_nearest(
    call: str, given: dict[str, Any], meant: str, client_of: ClientOf
) -> None:
    """Before a lazily read list is looked at, and before anything is queued or stored."""
    client = client_of(SimProvider(sleep=lambda _: None, now=lambda: 0.0))
    prompt = "a" if call == "submit" else iter(["a"])
    with pytest.raises((ConfigError, InvalidRequest), match=f"did you mean {meant}\\?$"):
        getattr(client, call)(prompt, **given)
    assert client.counts.submitted == 0


def test_a_request_and_a_model_are_told_the_nearest_name() -> None:
    with pytest.raises(ValueError, match=r"did you mean urgent\?$"):
        Request("a", priority="urgnt")
    with pytest.raises(ConfigError, match=r"unknown provider; known are .*did you mean openai\?$"):
        BatchingClient("opnai:gpt-5-mini")


@pytest.mark.parametrize(
    ("model", "given", "meant"),
    [
        ("openai:gpt-5-mini", {"base_ulr": "http://localhost"}, "base_url"),
        ("anthropic:claude-haiku-5-5", {"api_kye": "x"}, "api_key"),
        ("gemini:gemini-3.8-flash", {"api_kye": "x"}, "api_key"),
        ("sim:demo", {"latncy": 1}, "latency"),
    ],
)
def test_a_misspelt_option_of_a_provider_is_told_the_nearest(
    model: str, given: dict[str, Any], meant: str
) -> None:
    with pytest.raises(ConfigError, match=f"did you mean {meant}\\?$"):
        BatchingClient(model, provider_options=given)


def test_a_job_takes_nothing_that_it_could_not_keep(client_of: ClientOf) -> None:
    client = client_of(SimProvider(sleep=lambda _: None, now=lambda: 0.0))
    with pytest.raises(InvalidRequest, match="timeout is no parameter here"):
        client.submit_batch(["a"], timeout=5)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("api_key", r"is an option of the provider: provider_options=\{'api_key': …\}"),
        ("base_url", "is an option of the provider"),
        ("max_workers", r"did you mean parallelism\?"),
        ("batch_size", r"did you mean max_batch_size\?"),
    ],
)
def test_a_name_of_another_library_is_told_what_it_is_here(given: str, told: str) -> None:
    wrong: dict[str, Any] = {given: 3}
    with pytest.raises(ConfigError, match=told):
        BatchingClient("openai:m", **wrong)
    with pytest.raises(ConfigError, match=told):
        smartbatch.generate(["x"], model="openai:m", **wrong)


def test_a_setting_among_the_parameters_of_a_call_is_told_where_it_belongs(client_of: ClientOf) -> None:
    client = client_of(SimProvider(sleep=lambda _: None, now=lambda: 0.0))
    for call in (client.generate, client.submit, client.submit_batch):
        with pytest.raises(InvalidRequest, match=r"is a setting of the client, .*parallelism=…"):
            call(["a"], parallelism=8)  # type: ignore[operator]


# -- asking ----------------------------------------------------------------------------------------------


def test_a_prompt_is_a_text_a_chat_or_a_request(client_of: ClientOf) -> None:
    """The three forms are answered alike."""
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
def test_there_is_a_verb_for_each_urgency(how: str, priority: Priority, client_of: ClientOf) -> None:
    """submit, submit_urgent and submit_background differ in the priority."""
    provider = echo()
    getattr(client_of(provider), how)("x", temperature=0.5).result(PATIENCE)
    assert provider.calls[0].request.priority is priority
    assert provider.calls[0].request.params.temperature == 0.5


def test_a_client_takes_a_model_a_provider_or_a_function(clock: VirtualClock, client_of: ClientOf) -> None:
    """And says which model answered."""
    sim = BatchingClient("sim:demo?latency=0.01", clock=clock)
    own = client_of(lambda request, attempt: "mine")
    made = client_of(echo())
    assert sim.submit("x").result(PATIENCE).model == "sim:demo"
    assert own.submit("x").result(PATIENCE).text == "mine"
    assert made.submit("x").result(PATIENCE).model == "mock:default"
    sim.stop()


def test_something_else_is_no_model() -> None:
    """The error says what may be given."""
    with pytest.raises(ConfigError, match="text, a provider or a callable"):
        BatchingClient(5)  # type: ignore[arg-type]


def test_settings_may_be_given_by_name_and_win(client_of: ClientOf) -> None:
    """Over a config object; an unknown one suggests the nearest."""
    assert client_of(echo(), config=BatchingConfig(parallelism=3), retries=7).config.parallelism == 3
    assert client_of(echo(), config=BatchingConfig(parallelism=3), parallelism=5).config.parallelism == 5
    with pytest.raises(ConfigError, match="parallelism"):
        client_of(echo(), paralelism=5)


@pytest.mark.parametrize(
    ("prompt", "params", "field"),
    [("", {}, "prompt"), ("x", {"temperature": 9}, "temperature"), ("x", {"timeout": -1}, "timeout")],
)
def test_a_bad_request_raises_at_once_and_is_never_sent(
    prompt: str, params: dict[str, Any], field: str, client_of: ClientOf
) -> None:
    """The error names the field; nothing is counted."""
    provider = echo()
    client = client_of(provider)
    with pytest.raises(InvalidRequest, match=field) as caught:
        client.submit(prompt, **params)
    assert caught.value.field == field
    assert provider.calls == []
    assert client.counts.submitted == 0


def test_an_own_id_and_context_come_back_untouched(client_of: ClientOf) -> None:
    """The context is the very object; ids that were not given differ."""
    client = client_of(echo())
    thing = object()
    result = client.submit("x", id="my id", context=thing).result(PATIENCE)
    assert (result.request_id, result.context) == ("my id", thing)
    ids = {client.submit(f"p{i}").result(PATIENCE).request_id for i in range(10)}
    assert len(ids) == 10


def test_a_client_cannot_be_pickled_and_says_why(client_of: ClientOf) -> None:
    """It has threads and connections."""
    with pytest.raises(TypeError, match="threads and connections"):
        pickle.dumps(client_of(echo()))


def test_a_client_describes_itself(client_of: ClientOf) -> None:
    """Its model, and whether it runs; never a key or a prompt."""
    client = client_of(echo())
    assert repr(client) == "<BatchingClient mock:default idle>"
    client.start()
    assert "running" in repr(client)
    client.stop()
    assert "stopped" in repr(client)


def test_what_a_result_tells_about_its_call(clock: VirtualClock, client_of: ClientOf) -> None:
    """Latency of the call, seconds in the queue, attempts, route and tokens."""
    client = client_of(SimProvider(sleep=clock.sleep, now=clock.now, latency=2.0), parallelism=1)
    with clock.held():
        first, second = client.submit("one"), client.submit("two")
    assert first.result(PATIENCE).queued == 0.0
    result = second.result(PATIENCE)
    assert (result.latency, result.queued, result.attempts) == (2.0, 2.0, 1)
    assert result.route is Route.INDIVIDUAL
    assert result.usage.total_tokens > 0


def test_json_that_was_asked_for_is_parsed(client_of: ClientOf) -> None:
    """And an answer that is none leaves parsed empty."""
    client = client_of(MockProvider({"good": '{"a": 1}', "bad": "no JSON"}))
    schema = {"type": "object"}
    assert client.submit("good", schema=schema).result(PATIENCE).parsed == {"a": 1}
    assert client.submit("good").result(PATIENCE).parsed is None


# -- preprocessing ---------------------------------------------------------------------------------------


def test_a_hook_may_change_a_request(client_of: ClientOf) -> None:
    """Hooks run in order, each on what the one before returned; None leaves it as it is."""
    provider = echo()

    def trim(request: Request) -> Request:
        return evolve(request, prompt=str(request.prompt).strip())

    client = client_of(
        provider,
        preprocess=[trim, lambda request: None, lambda r: evolve(r, prompt=f"{r.prompt}!")],
    )
    assert client.submit("  hello ").result(PATIENCE).text == "re: hello!"


@pytest.mark.parametrize("answer", ["local", Answer("local")])
def test_a_hook_may_answer_locally(answer: Any, client_of: ClientOf) -> None:
    """Without a call and without cost."""
    provider = echo()
    client = client_of(provider, preprocess=[lambda request: answer])
    future = client.submit("x", context=5, id="mine")
    assert isinstance(future, Future)
    result = future.result(PATIENCE)
    assert (result.text, result.route, result.cost, result.attempts) == ("local", Route.LOCAL, 0.0, 0)
    assert (result.context, result.request_id) == (5, "mine")
    assert provider.calls == []
    assert [result.text for result in client.map(["a", "b"])] == ["local", "local"]


def test_a_hook_may_reject(client_of: ClientOf) -> None:
    """What it raises reaches the caller of submit."""

    def reject(request: Request) -> None:
        raise PermissionError("not this one")

    client = client_of(echo(), preprocess=[reject])
    with pytest.raises(PermissionError, match="not this one"):
        client.submit("x")
    assert client.counts.submitted == 0


def test_what_a_hook_returns_is_checked(client_of: ClientOf) -> None:
    """A hook cannot smuggle a bad request past the gate."""
    client = client_of(echo(), preprocess=[lambda request: evolve(request, prompt="")])
    with pytest.raises(InvalidRequest):
        client.submit("x")


# -- post-processing -------------------------------------------------------------------------------------


def test_a_post_processor_may_change_a_result(client_of: ClientOf) -> None:
    """It is called with each answered result; None leaves it."""
    client = client_of(echo(), post_process=lambda result: evolve(result, parsed=len(result.text or "")))
    assert client.submit("x").result(PATIENCE).parsed == 5
    assert client_of(echo(), post_process=lambda result: None).submit("x").result(PATIENCE).ok


@pytest.mark.parametrize("error", [ValueError("bad"), SystemExit(1)])
def test_a_post_processor_that_raises_fails_its_request_only(
    error: BaseException, client_of: ClientOf
) -> None:
    """The error says that the answer was paid for, and carries the cause."""

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
def test_a_post_processor_that_returns_something_else_fails_its_request_only(
    nonsense: Any, client_of: ClientOf
) -> None:
    """A worker survives it, and the error says what was returned."""
    client = client_of(
        echo(), post_process=lambda result: nonsense if result.context else result, parallelism=1
    )
    bad, good = client.submit("x", context=1), client.submit("y")
    with pytest.raises(SmartbatchError, match="post_process"):
        bad.result(PATIENCE)
    assert good.result(PATIENCE).ok


def test_a_post_processor_may_fail_a_result(client_of: ClientOf) -> None:
    """A result with an error of any kind fails its request."""
    refusal: Any = ValueError("not good enough")
    client = client_of(echo(), post_process=lambda result: evolve(result, error=refusal), parallelism=1)
    future = client.submit("x")
    error = future.exception(PATIENCE)
    assert isinstance(error, SmartbatchError)
    assert error.__cause__ is refusal
    assert client.counts.failed == 1


# -- middleware and observers ----------------------------------------------------------------------------


def test_middleware_surrounds_every_call(client_of: ClientOf) -> None:
    """It sees requests and outcomes, and may replace either."""
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


def test_middleware_that_raises_fails_its_call_only(client_of: ClientOf) -> None:
    """With the usual verdict of an unknown error."""

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


def test_observers_hear_the_life_of_a_request(client_of: ClientOf) -> None:
    """Submitted, started, finished call, finished request."""
    events: list[Event] = []
    client = client_of(echo(), observers=[events.append])
    client.submit("x", id="mine").result(PATIENCE)
    client.stop()
    names = [type(event) for event in events]
    for kind in (RequestSubmitted, CallStarted, CallFinished, RequestFinished):
        assert names.count(kind) == 1
    (ended,) = [event for event in events if isinstance(event, RequestFinished)]
    assert (ended.request_id, ended.ok, ended.attempts) == ("mine", True, 1)


def test_an_observer_may_use_the_client(client_of: ClientOf) -> None:
    """No lock is held while observers are told: not at the start, and not at a request's end."""
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


def test_an_observer_may_be_added_later(client_of: ClientOf) -> None:
    """It gets the events from then on."""
    events: list[Event] = []
    client = client_of(echo())
    client.submit("before").result(PATIENCE)
    client.observe(events.append)
    client.submit("after", id="after").result(PATIENCE)
    client.stop()
    assert {event.request_id for event in events if isinstance(event, RequestSubmitted)} == {"after"}


def test_no_event_holds_a_prompt_an_answer_or_a_key(client_of: ClientOf) -> None:
    """Not even of a request that failed."""
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


# -- own callables ---------------------------------------------------------------------------------------


def test_a_request_may_bring_its_own_call(client_of: ClientOf) -> None:
    """It goes through the same queue and retries, is told the attempt, and may return any object."""
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


def test_identical_own_calls_are_all_made(clock: VirtualClock, client_of: ClientOf) -> None:
    """What a function does is unknown, so it is never shared."""
    made: list[int] = []
    client = client_of(echo())
    with clock.held():
        futures = [client.submit(Request(call=lambda request, attempt: made.append(1))) for _ in range(5)]
    for future in futures:
        assert future.result(PATIENCE).ok
    assert len(made) == 5


def test_an_own_provider_function_may_answer_with_anything(client_of: ClientOf) -> None:
    """A text, an Answer with usage and cost, or an object."""
    answers = {"a": "text", "b": Answer("answer", usage=Usage(1, 2), cost=0.5), "c": [1, 2]}
    client = client_of(CallableProvider(lambda request, attempt: answers[str(request.prompt)]))
    a, b, c = (client.submit(name).result(PATIENCE) for name in "abc")
    assert (a.text, a.parsed) == ("text", None)
    assert (b.text, b.usage, b.cost) == ("answer", Usage(1, 2), 0.5)
    assert (c.text, c.parsed) == (None, [1, 2])
    assert client.spent == 0.5


def test_the_users_exception_is_the_cause_of_the_failure(client_of: ClientOf) -> None:
    """With its traceback, so that the mistake can be found."""
    mistake = ZeroDivisionError("mine")

    def call(request: Request, attempt: int) -> str:
        raise mistake

    error = client_of(call, retries=0).submit("x").exception(PATIENCE)
    assert isinstance(error, ProviderError)
    assert error.__cause__ is mistake
    assert error.__cause__.__traceback__ is not None


@pytest.mark.parametrize("value", [Answer(text=5), Answer("x", cost=-1.0), Answer("x", usage="many")])  # type: ignore[arg-type]
def test_an_answer_that_makes_no_sense_fails_its_request_only(value: Answer, client_of: ClientOf) -> None:
    """The worker and the counts survive it."""
    client = client_of(lambda request, attempt: value if request.prompt == "bad" else "fine", parallelism=1)
    bad, good = client.submit("bad"), client.submit("good")
    error = bad.exception(PATIENCE)
    assert isinstance(error, ProviderError)
    assert error.kind is ErrorKind.INVALID_RESPONSE
    assert good.result(PATIENCE).ok


def test_a_mistake_of_the_library_reaches_the_caller(
    client_of: ClientOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unexpected error ends the request with its cause, and the worker goes on."""
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


def test_the_figures_agree_with_what_happened(clock: VirtualClock, client_of: ClientOf) -> None:
    """queue_size, counts and the summary for people."""
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


def test_whether_there_are_batches_is_asked_for_texts_and_for_vectors() -> None:
    """By the words of the reference; the embedded provider has batches of texts."""
    client = BatchingClient("sim:demo")
    assert client.has_batches("generate")
    assert not client.has_batches("embed")
    with pytest.raises(ValueError, match="vectors"):
        client.has_batches("vectors")  # type: ignore[arg-type]
