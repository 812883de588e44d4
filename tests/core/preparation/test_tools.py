"""Tools, and chats with tool calls."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

import pytest
from attrs import evolve
from pydantic import BaseModel, Field

from smartbatch.core.preparation.fingerprint import fingerprint
from smartbatch.core.preparation.tokens import estimate_request
from smartbatch.core.preparation.validation import admit_defaults, normalise
from smartbatch.errors import InvalidRequest
from smartbatch.types import Generation, Message, Tool, ToolCall

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = Tool("weather", "The weather of a city.", parameters=PARAMETERS)
QUESTION = {"role": "user", "content": "How cold is it in Lima and in Oslo?"}
LIMA, OSLO = ToolCall("c1", "weather", {"city": "Lima"}), ToolCall("c2", "weather", {"city": "Oslo"})


def weather(city: Annotated[str, Field(description="Its name")], unit: Literal["C", "F"] = "C") -> str:
    """The weather
    of a city.

    Not for the model.
    """
    return f"{city}: 5 {unit}"


class Forecast(BaseModel):
    """A forecast to store."""

    city: str


def refused(prompt: Any = "Hi", **params: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        normalise(prompt, **params)
    return caught.value


def openai_call(call: ToolCall, arguments: str | None = None) -> dict[str, Any]:
    text = f'{{"city": "{call.arguments["city"]}"}}' if arguments is None else arguments
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": text}}


def openai_chat(*results: dict[str, Any], calls: list[Any] | None = None) -> list[Any]:
    asked = [openai_call(LIMA), openai_call(OSLO)] if calls is None else calls
    return [QUESTION, {"role": "assistant", "content": None, "tool_calls": asked}, *results]


def result(identity: str, content: Any = "5") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": identity, "content": content}


@pytest.mark.parametrize(
    "given",
    [
        WEATHER,
        {"type": "function", "function": {"name": "weather", "description": WEATHER.description,
                                          "parameters": PARAMETERS}},
        {"type": "function", "name": "weather", "description": WEATHER.description, "parameters": PARAMETERS},
        {"name": "weather", "description": WEATHER.description, "input_schema": PARAMETERS},
        {"name": "weather", "description": WEATHER.description, "parameters": PARAMETERS},
    ],
)  # fmt: skip
def test_a_tool_is_taken_in_every_form(given):
    assert normalise("Hi", tools=[given], tool_choice="weather").params.tools == (WEATHER,)


def test_a_function_is_a_tool_by_its_hints_and_its_docstring():
    (tool,) = normalise("Hi", tools=[weather]).params.tools
    assert (tool.name, tool.description) == ("weather", "The weather of a city.")
    assert tool.parameters["required"] == ["city"]
    assert tool.parameters["properties"]["city"]["description"] == "Its name"
    assert tool.parameters["properties"]["unit"]["enum"] == ["C", "F"]
    (tool,) = normalise("Hi", tools=[Forecast]).params.tools
    assert (tool.name, tool.description) == ("Forecast", "A forecast to store.")
    assert tool.parameters["properties"]["city"]["type"] == "string"


def without_hint(city, *others: str): ...


def by_place(city: str, /): ...


def on_object(city: object.__subclasses__): ...  # type: ignore[valid-type]


@pytest.mark.parametrize(
    ("tools", "field", "says"),
    [
        (WEATHER, "tools", "must be a list of tools"),
        (["weather"], "tools[0]", "is of type str"),
        ([WEATHER, WEATHER], "tools[1].name", "the name of another tool"),
        ([{"name": "a b", "parameters": PARAMETERS}], "tools[0].name", "1 to 64 letters"),
        ([{"name": "required", "parameters": PARAMETERS}], "tools[0].name", "has a meaning in tool_choice"),
        ([{"name": "a"}], "tools[0].parameters", "are missing"),
        ([{"parameters": PARAMETERS}], "tools[0].name", "is missing"),
        ([{"name": "a", "parameters": {"type": "string"}}], "tools[0].parameters", "schema of an object"),
        ([{"name": "a", "parameters": {"type": "object", "properties": 3}}], "tools[0].parameters", ""),
        ([{"name": "a", "parameter": PARAMETERS}], "tools[0]", "did you mean parameters?"),
        ([{"type": "web_search", "name": "web"}], "tools[0]", "in extra"),
        ([without_hint], "tools[0] (without_hint)", "without a type"),
        ([by_place], "tools[0] (by_place)", "by name"),
        ([lambda: 1], "tools[0].name", "1 to 64 letters"),
        ([partial(weather)], "tools[0]", "a partial without a name"),
        ([max], "tools[0] (max)", "no signature"),
        ([on_object], "tools[0] (on_object)", "cannot be expressed in JSON schema"),
        ([evolve(WEATHER, strict="yes")], "tools[0].strict", "must be True or False"),
        ([evolve(WEATHER, name=f"w{n}") for n in range(513)], "tools", "has 513 tools; the maximum is 512"),
    ],
)
def test_a_tool_that_no_provider_takes_is_refused_by_its_place(tools, field, says):
    error = refused(tools=tools)
    assert error.field == field
    assert says in error.message


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("required", "required"),
        ({"type": "function", "function": {"name": "weather"}}, "weather"),
        ({"type": "tool", "name": "weather"}, "weather"),
        ({"type": "any"}, "required"),
        ({"type": "auto"}, "auto"),
    ],
)
def test_a_choice_is_taken_in_every_form(given, expected):
    assert normalise("Hi", tools=[WEATHER], tool_choice=given).params.tool_choice == expected


def test_a_choice_is_one_of_the_tools():
    assert refused(tool_choice="auto").field == "tool_choice"
    error = refused(tools=[WEATHER], tool_choice="wether")
    assert (error.field, "did you mean weather?" in error.message) == ("tool_choice", True)
    assert refused(tools=[WEATHER], tool_choice=7).field == "tool_choice"


def test_the_tools_of_a_request_replace_those_of_the_client():
    defaults = admit_defaults(Generation(tools=[WEATHER], tool_choice="required"))
    assert normalise("Hi", defaults).params.tools == (WEATHER,)
    params = normalise("Hi", defaults, tools=[Forecast]).params
    assert ([tool.name for tool in params.tools], params.tool_choice) == (["Forecast"], "required")
    params = normalise("Hi", defaults, tools=[]).params
    assert (params.tools, params.tool_choice) == ((), None)


@pytest.mark.parametrize(("given", "kept"), [(True, True), (0, True), (5, 5), (False, False)])
def test_logprobs_are_true_or_a_number_of_alternatives(given, kept):
    assert normalise("Hi", logprobs=given).params.logprobs is kept
    assert refused(logprobs=21).field == "logprobs"


@pytest.mark.parametrize(
    "chat",
    [
        openai_chat(result("c2"), result("c1", "")),
        openai_chat(result("c1"), {**result("c2"), "name": "weather"}, QUESTION),
        [QUESTION, Message("assistant", tool_calls=(LIMA,)), Message("tool", "5", tool_call_id="c1")],
        [
            QUESTION,
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "c1", "name": "weather", "input": {}}],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "5"}]},
        ],
        # ids may be repeated in later turns
        [*openai_chat(result("c1"), result("c2")), *openai_chat(result("c1"), result("c2"))[1:]],
        # an answer as dumped by an SDK
        [
            QUESTION,
            {"role": "assistant", "content": "5", "refusal": None, "annotations": [], "tool_calls": None},
        ],
    ],
)
def test_chats_with_calls_and_their_results_are_taken(chat):
    request = normalise(chat)
    assert normalise(request.prompt).prompt == request.prompt


def test_a_call_is_read_back_from_a_result_file():
    call = {"id": "c1", "name": "weather", "arguments": {"city": "Lima"}, "extra": {"signature": "s"}}
    bare = {"id": "c2", "name": "weather"}
    kept = normalise(openai_chat(result("c1"), result("c2"), calls=[call, bare])).prompt[1].tool_calls
    assert kept == (evolve(LIMA, extra={"signature": "s"}), ToolCall("c2", "weather", {}))


def test_calls_are_kept_in_one_form():
    chat = openai_chat(
        result("c1"), result("c2"), calls=[openai_call(LIMA), openai_call(OSLO, '{"city": "Os')]
    )
    assert normalise(chat).prompt[1:3] == (
        Message("assistant", tool_calls=(LIMA, ToolCall("c2", "weather", None, '{"city": "Os'))),
        Message("tool", "5", tool_call_id="c1"),
    )


@pytest.mark.parametrize(
    ("chat", "field", "says"),
    [
        (openai_chat(result("c1")), "prompt[1].tool_calls[1].id", "no result follows that call"),
        (openai_chat(result("c1"), QUESTION), "prompt[1].tool_calls[1].id", "no result follows"),
        (openai_chat(result("c1"), result("c3")), "prompt[3].tool_call_id", "no call with that id"),
        (openai_chat(result("c1"), result("c1")), "prompt[3].tool_call_id", "already has a result"),
        ([QUESTION, result("c1")], "prompt[1].tool_call_id", "no call with that id"),
        (openai_chat(calls=[openai_call(LIMA)] * 2), "prompt[1].tool_calls[1].id", "another call"),
        (openai_chat(calls=openai_call(LIMA)), "prompt[1].tool_calls", "must be a list, not dict"),
        (openai_chat(calls=[{"id": "c1"}]), "prompt[1].tool_calls[0]", "name and arguments"),
        (openai_chat(calls=[{**openai_call(LIMA), "id": None}]), "prompt[1].tool_calls[0].id", "a string"),
        (openai_chat(result("c1", {"cold": 5})), "prompt[2].content", "json.dumps"),
        (
            [QUESTION, {"role": "assistant", "content": "a", "function_call": {"name": "b"}}],
            "prompt[1]",
            "tool_calls",
        ),
        (
            [QUESTION, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1"}]}],
            "prompt[1].content[0].tool_use_id",
            "no call with that id",
        ),
        (
            [
                QUESTION,
                {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "weather"}]},
            ],
            "prompt[1].content[0].id",
            "no result follows",
        ),
    ],
)
def test_a_chat_that_every_provider_refuses_is_refused_before_it_is_sent(chat, field, says):
    error = refused(chat)
    assert error.field == field
    assert says in error.message


def test_tool_calls_count_in_fingerprints_and_tokens():
    chats = [openai_chat(result("c1"), result("c2")), openai_chat(result("c1"), result("c2", "6"))]
    chats.append(openai_chat(result("c1"), result("c2"), calls=[openai_call(OSLO), openai_call(LIMA)]))
    chats[-1][1]["tool_calls"][0]["id"], chats[-1][1]["tool_calls"][1]["id"] = "c1", "c2"
    requests = [normalise(chat) for chat in chats] + [normalise(chats[0], tools=[WEATHER])]
    assert len({fingerprint(request, "m", "s") for request in requests}) == 4
    plain = normalise([QUESTION, {"role": "assistant", "content": "5"}])
    assert estimate_request(plain) < estimate_request(requests[0]) < estimate_request(requests[-1])
