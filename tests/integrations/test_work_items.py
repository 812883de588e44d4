"""All kinds of work items alike: provider requests, callables, agents, an agent for each attempt (E1, E5)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from smartbatch import Answer, Attempt, BatchingClient, ErrorKind, Message, ProviderError, Request, Usage
from smartbatch.events import RequestFinished, RetryScheduled
from smartbatch.providers import CallableProvider, Provider
from smartbatch.realtime.call import Call, CallSpec, Outcome
from smartbatch.types import evolve

KINDS = ("provider request", "callable", "agent", "agent factory")

PATIENCE = 30.0  # real seconds
Make = Callable[..., Request]


class Scripted(Provider):
    name = "scripted"
    scope = "scripted"

    def generate(self, request: Request, *, model: str, attempt: int, timeout: float) -> Answer:
        return _call(request, attempt)


@pytest.fixture(params=KINDS)
def item(request):
    provider = Scripted()
    if request.param == "provider request":
        return provider, Request
    if request.param == "callable":
        return provider, lambda prompt, **fields: Request(prompt, call=_call, **fields)
    pytest.importorskip("pydantic_ai", reason="pydantic-ai is not installed")
    call = _agent() if request.param == "agent" else _agents()
    return provider, lambda prompt, **fields: Request(prompt, call=call, **fields)


def _call(request: Request, attempt: int) -> Answer:
    if attempt == 0:
        raise ProviderError("down", kind=ErrorKind.SERVER_ERROR, status=500)
    return Answer(text=f"re: {request.prompt}", usage=Usage(7, 3))


def _model(fail: bool | None = None) -> Any:
    from pydantic_ai import ModelHTTPError
    from pydantic_ai.messages import ModelResponse, TextPart
    from pydantic_ai.models.function import FunctionModel
    from pydantic_ai.usage import RequestUsage

    seen: set[str] = set()

    def answer(messages: list[Any], _: Any) -> ModelResponse:
        prompt = messages[-1].parts[-1].content
        failing = prompt not in seen if fail is None else fail
        seen.add(prompt)
        if failing:
            raise ModelHTTPError(500, "function")
        return ModelResponse([TextPart(f"re: {prompt}")], usage=RequestUsage(input_tokens=7, output_tokens=3))

    return FunctionModel(answer)


def _agent() -> Callable[[Request, int], Answer]:
    from pydantic_ai import Agent

    from smartbatch.integrations.pydantic_ai import agent_call

    return agent_call(Agent(_model()))


def _agents() -> Callable[[Request, int], Answer]:
    from pydantic_ai import Agent

    from smartbatch.integrations.pydantic_ai import agent_factory_call

    return agent_factory_call(lambda request, attempt: Agent(_model(attempt == 0)))


@pytest.fixture
def seen():
    return {"middleware": [], "post": [], "events": []}


@pytest.fixture
def client(item, seen, clock):
    def watch(spec: CallSpec, proceed: Call) -> Sequence[Outcome]:
        outcomes = proceed(spec)
        seen["middleware"].append((spec.requests[0].context["row"], spec.attempt, outcomes[0]))
        return outcomes

    def post(result: Any) -> Any:
        seen["post"].append(result.text)
        return evolve(result, text=result.text.upper())

    client = BatchingClient(
        item[0],
        clock=clock,
        rng=random.Random(1),
        middleware=[watch],
        post_process=post,
        observers=[seen["events"].append],
        parallelism=4,
    )
    with client:
        yield client


def test_context_hooks_and_counts_are_the_same_for_every_kind(item, client, seen):
    _, make = item
    contexts = [{"row": row} for row in range(8)]
    futures = [client.submit(make(f"question {row}", context=contexts[row])) for row in range(8)]
    results = [future.result(PATIENCE) for future in futures]
    assert [result.text for result in results] == [f"RE: QUESTION {row}" for row in range(8)]
    assert all(result.context is context for result, context in zip(results, contexts, strict=True))
    assert {result.attempts for result in results} == {2}
    assert {result.usage for result in results} == {Usage(7, 3)}
    assert sorted(seen["post"]) == [f"re: question {row}" for row in range(8)]
    calls = sorted(seen["middleware"], key=lambda call: call[:2])
    assert [call[:2] for call in calls] == [(row, attempt) for row in range(8) for attempt in (0, 1)]
    assert {call[2].kind for call in calls[::2]} == {ErrorKind.SERVER_ERROR}
    assert {type(call[2]) for call in calls[1::2]} == {Answer}
    counts = client.counts
    assert (counts.submitted, counts.succeeded, counts.failed) == (8, 8, 0)
    client.stop()  # a future is done before the observers are told
    ended = [event for event in seen["events"] if isinstance(event, RequestFinished)]
    again = [event for event in seen["events"] if isinstance(event, RetryScheduled)]
    assert (len(ended), len(again), {event.ok for event in ended}) == (8, 8, {True})


def test_a_conversation_reaches_every_kind(clock, client_of):
    pytest.importorskip("pydantic_ai", reason="pydantic-ai is not installed")
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelResponse, TextPart
    from pydantic_ai.models.function import FunctionModel

    from smartbatch.integrations.pydantic_ai import agent_call

    heard: list[tuple[str, str]] = []

    def listen(messages: list[Any], info: Any) -> ModelResponse:
        heard.extend((part.part_kind, part.content) for message in messages for part in message.parts)
        heard.append(("instructions", messages[-1].instructions))
        return ModelResponse([TextPart("fine")])

    client = client_of(agent_call(Agent(FunctionModel(listen), instructions="Be brief.")))
    talk = [
        Message("system", "You are a clerk."),
        Message("user", "Hello"),
        Message("assistant", "Good day"),
        {"role": "user", "content": [{"type": "text", "text": "And now?"}]},
    ]
    assert client.submit(talk, system="In French.").result(PATIENCE).text == "fine"
    assert heard == [
        ("system-prompt", "You are a clerk."),
        ("user-prompt", "Hello"),
        ("text", "Good day"),
        ("user-prompt", "And now?"),
        ("instructions", "Be brief.\n\nIn French."),
    ]


@pytest.mark.parametrize("kind", ["a request's call", "a provider", "a provider of many"])
def test_own_callables_are_told_the_time_they_have(kind, client_of):
    def call(request: Request, attempt: Attempt) -> Answer:
        return Answer(str(attempt), value=attempt.timeout)

    def many(requests: Sequence[Request], attempt: Attempt) -> list[Answer]:
        return [call(request, attempt) for request in requests]

    model = CallableProvider(call, many=many if kind == "a provider of many" else None)
    own = call if kind == "a request's call" else None
    client = client_of(model, call_timeout=60)
    short = client.submit(Request("a", call=own), timeout=5).result(30)
    assert short.text == "0"
    assert isinstance(short.parsed, float)
    assert 0 < short.parsed <= 5
    assert client.submit(Request("b", call=own)).result(30).parsed == pytest.approx(60)
