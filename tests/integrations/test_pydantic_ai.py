"""PydanticAI agents: what becomes of their outputs, their usage, and all that can go wrong in a run (E1)."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from collections.abc import Callable
from textwrap import dedent
from typing import Any

import pytest
from attrs import frozen
from frameworks.run_script import run_script

pytest.importorskip("pydantic_ai", reason="pydantic-ai is not installed")

from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, RunContext, exceptions
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import RequestUsage, UsageLimits

from smartbatch import BatchingClient, ErrorKind, InvalidRequest, ProviderError, Request, Usage
from smartbatch.integrations.pydantic_ai import AgentProvider, agent_call, agent_factory_call
from smartbatch.testing import Emulator, emulator
from smartbatch.types import Generation, Message, ToolCall
from tests.levels import sampled

PATIENCE = 30.0
REQUEST = Request("Capital of Peru?")


def saying(text: str = "Lima", *, tokens: int = 5) -> FunctionModel:
    usage = RequestUsage(input_tokens=tokens, output_tokens=tokens)
    return FunctionModel(lambda messages, info: ModelResponse([TextPart(text)], usage=usage))


def raising(error: Exception) -> FunctionModel:
    def fail(messages: list[Any], info: Any) -> ModelResponse:
        raise error

    return FunctionModel(fail)


def failure_of(call: Callable[[Request, int], Any], request: Request = REQUEST) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        call(request, 0)
    return caught.value


class City(BaseModel):
    name: str
    people: int


@pytest.mark.parametrize("instructions", ["Be short.", lambda: "Be short.", ["Be short."], ("Be short.",)])
def test_the_system_text_precedes_the_instructions(instructions):
    heard: list[str] = []

    def answer(messages: list[Any], _: Any) -> ModelResponse:
        heard.append(messages[-1].instructions)
        return ModelResponse([TextPart("Lima")])

    call = agent_call(Agent(FunctionModel(answer)), instructions=instructions)
    with BatchingClient(call) as client:
        assert client.submit("Capital of Peru?", system="Speak Quechua.").result(PATIENCE).text == "Lima"
    assert [text.split("\n")[::2] for text in heard] == [["Speak Quechua.", "Be short."]]


def test_a_text_is_the_text_and_an_object_is_the_parsed_value():
    with BatchingClient("sim:demo") as client:
        text = client.submit(Request("x", call=agent_call(Agent(saying())))).result(PATIENCE)
        city = Agent(TestModel(custom_output_args={"name": "Lima", "people": 10}), output_type=City)
        made = client.submit(Request("x", call=agent_call(city))).result(PATIENCE)
    assert (text.text, text.parsed, text.finish_reason) == ("Lima", None, "stop")
    assert (made.text, made.parsed) == (None, City(name="Lima", people=10))


def test_the_usage_of_all_requests_of_a_run_counts():
    agent = Agent(saying(tokens=5))

    @agent.output_validator
    def picky(context: RunContext[None], output: str) -> str:
        if context.retry == 0:
            raise ModelRetry("again")
        return output

    assert agent_call(agent)(REQUEST, 0).usage == Usage(10, 10)


def test_the_usage_of_a_failed_run_is_on_its_error():
    agent = Agent(saying("no number", tokens=5), output_type=int, retries=1)
    error = failure_of(agent_call(agent))
    assert (error.kind, error.code) == (ErrorKind.INVALID_RESPONSE, "invalid_output")
    assert error.usage == Usage(10, 10)


def test_parameters_of_the_request_become_model_settings():
    seen: dict[str, Any] = {}

    def note(messages: list[Any], info: Any) -> ModelResponse:
        seen.update(info.model_settings)
        return ModelResponse([TextPart("ok")])

    agent = Agent(FunctionModel(note), model_settings={"temperature": 0.9, "top_p": 0.5, "max_retries": 7})
    params = Generation(temperature=0.25, max_tokens=50, stop=("end",), seed=3, extra={"user": "x"})
    agent_call(agent, model_settings={"parallel_tool_calls": False})(Request("x", params=params), 0)
    assert seen == {
        "temperature": 0.25,
        "top_p": 0.5,
        "max_tokens": 50,
        "stop_sequences": ["end"],
        "seed": 3,
        "extra_body": {"user": "x"},
        "parallel_tool_calls": False,
        "max_retries": 0,
    }


def test_dependencies_and_other_options_reach_the_run():
    agent = Agent(TestModel(), deps_type=str)
    heard: list[str] = []

    @agent.tool
    def look(context: RunContext[str]) -> str:
        heard.append(context.deps)
        return "seen"

    agent_call(agent, deps="the database")(REQUEST, 0)
    assert heard == ["the database"]


def test_a_factory_makes_another_agent_after_a_bad_output():
    attempts: list[tuple[Any, int]] = []

    def factory(request: Request, attempt: int) -> Agent[None, City]:
        attempts.append((request.context, attempt))
        able = TestModel(custom_output_args={"name": "Lima", "people": 10})
        return Agent(able if attempt else saying("a city", tokens=2), output_type=City, retries=0)

    with BatchingClient(agent_factory_call(factory), retry_initial=0.01) as client:
        result = client.submit("Which?", context="row 7").result(PATIENCE)
    assert (result.parsed, result.attempts) == (City(name="Lima", people=10), 2)
    assert attempts == [("row 7", 0), ("row 7", 1)]
    assert result.usage.total_tokens > 4


HTTP = exceptions.ModelHTTPError
KINDS: list[tuple[Exception, ErrorKind]] = [
    (HTTP(400, "m"), ErrorKind.CLIENT_ERROR),
    (HTTP(401, "m"), ErrorKind.AUTH_ERROR),
    (HTTP(402, "m"), ErrorKind.NO_MONEY),
    (HTTP(403, "m"), ErrorKind.AUTH_ERROR),
    (HTTP(404, "m"), ErrorKind.CLIENT_ERROR),
    (HTTP(408, "m"), ErrorKind.SERVER_ERROR),
    (HTTP(429, "m"), ErrorKind.RATE_LIMIT),
    (HTTP(429, "m", {"message": "Request too large for gpt"}), ErrorKind.CLIENT_ERROR),
    (
        HTTP(429, "m", {"error": {"message": "no"}}, provider_error_code="insufficient_quota"),
        ErrorKind.NO_MONEY,
    ),
    (HTTP(500, "m"), ErrorKind.SERVER_ERROR),
    (HTTP(503, "m"), ErrorKind.SERVER_ERROR),
    (HTTP(529, "m"), ErrorKind.SERVER_ERROR),
    *[
        (HTTP.for_category(category, status_code=status, model_name="m"), kind)
        for category, status, kind in (
            (exceptions.ModelQuotaExceededError, 429, ErrorKind.NO_MONEY),
            (exceptions.ModelContextWindowExceededError, 400, ErrorKind.CONTEXT_TOO_LONG),
            (exceptions.ModelAuthenticationError, 400, ErrorKind.AUTH_ERROR),
            (exceptions.ModelOverloadedError, 529, ErrorKind.SERVER_ERROR),
            (exceptions.ModelNotFoundError, 404, ErrorKind.CLIENT_ERROR),
        )
    ],
    (exceptions.ModelRateLimitError("m", "slow"), ErrorKind.RATE_LIMIT),
    (exceptions.ModelServerError("m", "oops"), ErrorKind.SERVER_ERROR),
    (exceptions.ModelConnectionError("m", "reset"), ErrorKind.NETWORK_ERROR),
    (exceptions.ModelTimeoutError("m", "late"), ErrorKind.TIMEOUT),
    (exceptions.ModelRequestTimeout("m", 3.0), ErrorKind.TIMEOUT),
    (exceptions.ModelAPIError("m", "what"), ErrorKind.UNKNOWN),
    (exceptions.ContentFilterError("filtered"), ErrorKind.CLIENT_ERROR),
    (exceptions.OutputTokenLimitExceeded("cut"), ErrorKind.INVALID_RESPONSE),
    (exceptions.UnexpectedModelBehavior("odd"), ErrorKind.INVALID_RESPONSE),
    (exceptions.UsageLimitExceeded("enough"), ErrorKind.CLIENT_ERROR),
    (exceptions.ConcurrencyLimitExceeded("full"), ErrorKind.RATE_LIMIT),
    (exceptions.UserError("wrong"), ErrorKind.CLIENT_ERROR),
    (TimeoutError(), ErrorKind.TIMEOUT),
    (ConnectionResetError(), ErrorKind.NETWORK_ERROR),
    (KeyError("row"), ErrorKind.UNKNOWN),
]


@pytest.mark.parametrize(("error", "kind"), sampled(KINDS, keep=12), ids=lambda value: str(value)[:40])
def test_every_error_of_a_run_has_its_kind(error, kind):
    found = failure_of(agent_call(Agent(raising(error))))
    assert found.kind is kind
    assert found.status == getattr(error, "status_code", None)


def test_a_wait_the_provider_asked_for_is_kept_and_clamped():
    for said, kept in (("7", 7.0), ("99999", 600.0)):
        error = failure_of(agent_call(Agent(raising(HTTP(429, "m", headers={"Retry-After": said})))))
        assert error.retry_after == kept


def test_no_prompt_and_no_key_comes_back_in_an_error():
    body = {"error": {"message": "bad request: The secret of the vault is 4711, key sk-canary-1234567890"}}
    request = Request("The secret of the vault is 4711")
    with BatchingClient(agent_call(Agent(raising(HTTP(400, "m", body))))) as client:
        error = client.submit(request).exception(PATIENCE)
    assert error is not None
    assert "4711" not in str(error)
    assert error.__cause__ is error.__context__ is None
    body["error"]["message"] = "unknown field; key sk-canary-1234567890"
    assert "canary" not in str(failure_of(agent_call(Agent(raising(HTTP(400, "m", body)))), request))


def test_the_traceback_of_a_users_own_tool_is_kept():
    agent = Agent(TestModel())

    @agent.tool_plain
    def broken() -> str:
        raise ZeroDivisionError("own")

    with BatchingClient(agent_call(agent), retries=0) as client:
        error = client.submit("x").exception(PATIENCE)
    assert isinstance(error, ProviderError)
    assert isinstance(error.__cause__, ZeroDivisionError)


def test_a_failed_fallback_means_what_its_last_model_said():
    models = FallbackModel(raising(HTTP(500, "a")), raising(HTTP(429, "b", headers={"retry-after": "3"})))
    error = failure_of(agent_call(Agent(models)))
    assert (error.kind, error.retry_after) == (ErrorKind.RATE_LIMIT, 3.0)


def test_usage_limits_end_a_run_for_good():
    agent = Agent(saying("no number", tokens=5), output_type=int, retries=5)
    error = failure_of(agent_call(agent, usage_limits=UsageLimits(request_limit=2)))
    assert (error.kind, error.code, error.usage) == (ErrorKind.CLIENT_ERROR, "usage_limit", Usage(10, 10))


@pytest.mark.parametrize("ending", [SystemExit, KeyboardInterrupt])
def test_a_tool_that_ends_the_program_fails_its_run_only(ending):
    agent = Agent(TestModel())

    @agent.tool_plain
    async def leave() -> str:
        raise ending

    for call in (agent_call(agent, timeout=PATIENCE), AgentProvider(agent)):
        with BatchingClient(call, retries=0) as client:
            error = client.submit("x").exception(PATIENCE / 2)
        assert isinstance(error, ProviderError)
        assert isinstance(error.__cause__, ending)
    assert agent_call(Agent(saying()), timeout=PATIENCE / 2)(REQUEST, 0).text == "Lima"


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        ([Message("user", "a"), Message("assistant", "b")], "prompt"),
        (
            [
                Message("user", "a"),
                Message("assistant", tool_calls=(ToolCall("c", "save", {}),)),
                Message("tool", "b", tool_call_id="c"),
                Message("user", "d"),
            ],
            "prompt",
        ),
        ([Message("user", ({"type": "input_audio", "input_audio": {}},))], "prompt"),
    ],
)
def test_what_an_agent_cannot_take_is_refused(prompt, field):
    with BatchingClient(AgentProvider(Agent(saying()))) as client:
        with pytest.raises(InvalidRequest) as caught:
            client.submit(prompt)
        with pytest.raises(InvalidRequest, match="output_type"):
            client.submit("x", schema={"type": "object"})
        with pytest.raises(InvalidRequest, match="set it on the agent"):
            client.submit("x", logprobs=True)
        with pytest.raises(InvalidRequest, match="set it on the agent"):
            client.submit("x", reasoning_effort="low")
    assert caught.value.field == field
    error = failure_of(agent_call(Agent(saying())), Request(tuple(prompt)))
    assert (error.kind, error.code) == (ErrorKind.CLIENT_ERROR, "invalid_request")


def stuck(begun: threading.Event, ended: threading.Event | None = None) -> FunctionModel:
    async def wait(messages: list[Any], info: Any) -> ModelResponse:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            if ended is not None:
                ended.set()
        raise AssertionError

    return FunctionModel(wait)


def test_a_run_ends_with_its_timeout():
    error = failure_of(agent_call(Agent(stuck(threading.Event())), timeout="50ms"))
    assert (error.kind, error.code) == (ErrorKind.TIMEOUT, "deadline")


def test_stopping_the_client_cancels_the_runs_of_its_provider():
    begun, ended = threading.Event(), threading.Event()
    provider = AgentProvider(Agent(stuck(begun, ended)))
    client = BatchingClient(provider, retries=0)
    future = client.submit("x")
    assert begun.wait(PATIENCE)
    client.stop(timeout=0)
    assert future.exception(PATIENCE) is not None
    assert ended.wait(PATIENCE)


def test_the_loop_is_started_by_the_next_run_where_no_thread_could_be_had():
    ended = run_script(
        """
        import threading
        from smartbatch.integrations.event_loop import Tasks

        async def done():
            return "done"

        def refused(thread):
            raise RuntimeError("can't start new thread")

        start, threading.Thread.start = threading.Thread.start, refused
        try:
            Tasks().run(done, 5.0)
        except RuntimeError as error:
            print(error)
        threading.Thread.start = start
        print(Tasks().run(done, 5.0))
        """
    )
    assert (ended.err, ended.lines, ended.code) == ("", ["can't start new thread", "done"], 0)


def test_the_provider_of_a_client_takes_agents_and_factories():
    with BatchingClient(AgentProvider(Agent(saying("a")))) as client:
        assert client.submit("x").result(PATIENCE).text == "a"
    with BatchingClient(AgentProvider(lambda request, attempt: Agent(saying("b")), name="fresh")) as client:
        result = client.submit("x").result(PATIENCE)
    assert (result.text, result.model) == ("b", "fresh:default")


@frozen
class Reached:
    emu: Emulator
    agent: Agent[None, str]


@pytest.fixture
def real():
    with emulator(latency=0.005) as emu:
        provider = OpenAIProvider(base_url=emu.base_url, api_key="sk-of-the-test")
        agent = Agent(OpenAIChatModel("gpt-5-mini", provider=provider))
        yield Reached(emu, agent)
        with BatchingClient(AgentProvider(agent)) as client:  # which closes its connections
            client.submit("the last").result(PATIENCE)


@pytest.mark.full
def test_one_agent_serves_many_threads_over_real_http(real):
    prompts = [f"Question {number}" for number in range(50)]
    for _ in range(2):
        with BatchingClient(agent_call(real.agent), parallelism=8, deduplicate=False) as client:
            results = client.generate(prompts)
        assert [result.error for result in results if not result.ok] == []
        assert {result.attempts for result in results} == {1}
        assert all(result.text and result.usage.input_tokens and result.cost for result in results)
    assert real.emu.ledger.received == 100


def test_retrying_is_done_in_one_place(real):
    real.emu.configure(faults={"500": 1.0})
    with BatchingClient(agent_call(real.agent), retries=2, retry_initial=0.01) as client:
        error = client.submit("Hello").exception(PATIENCE)
    assert isinstance(error, ProviderError)
    assert (error.kind, error.status) == (ErrorKind.SERVER_ERROR, 500)
    assert real.emu.ledger.received == 3
    real.emu.configure(faults=0.0)


@pytest.mark.full
def test_no_connection_is_left_behind(real):
    made: list[Agent[None, str]] = []

    def factory(request: Request, attempt: int) -> Agent[None, str]:
        provider = OpenAIProvider(base_url=real.emu.base_url, api_key="sk-of-the-test")
        made.append(Agent(OpenAIChatModel("gpt-5-mini", provider=provider)))
        return made[-1]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        for source in (factory, factory(REQUEST, 0)):
            with BatchingClient(AgentProvider(source), parallelism=4) as client:
                assert client.generate(["a", "b", "c"]).succeeded == 3
        made.clear()
        del source
        gc.collect()
    assert [str(warning.message) for warning in caught] == []


SERVED = """
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider
    from smartbatch import BatchingClient
    from smartbatch.integrations.pydantic_ai import agent_call
    from smartbatch.testing import emulator

    emu = emulator(latency=0.2).start()
    provider = OpenAIProvider(base_url=emu.base_url, api_key="sk-of-the-test")
    call = agent_call(Agent(OpenAIChatModel("gpt-5-mini", provider=provider)))
    client = BatchingClient(call)
    def ask(text):
        return client.submit(text).result(10).ok
"""


def ends_well(script: str, out: list[str]) -> None:
    ended = run_script(dedent(SERVED) + dedent(script))
    assert (ended.err, ended.lines, ended.code) == ("", out, 0)


@pytest.mark.full
def test_a_forked_child_runs_the_agent_on_a_loop_of_its_own():
    ends_well(
        """
        import os, sys
        print(ask("before"), flush=True)
        if not (pid := os.fork()):
            print(ask("child"), ask("child again"), flush=True)
            sys.exit()
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), ask("after"))
        """,
        ["True", "True True", "0 True"],
    )


@pytest.mark.full
def test_runs_under_way_at_the_end_of_a_script_are_finished():
    ends_well(
        """
        import time
        client.submit('last').add_done_callback(lambda future: print(future.result().ok))
        while not emu.ledger.received:
            time.sleep(0.01)
        """,
        ["True"],
    )
