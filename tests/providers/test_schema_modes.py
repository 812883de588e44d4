"""Schemas for servers without ``json_schema``."""

from __future__ import annotations

import json

import pytest
from asking import ask, begin, fails, request_of
from raw_server import chat, says

from smartbatch.errors import InvalidRequest, ParameterRejected, ProviderError
from smartbatch.providers.openai.schema_modes import ANSWER_TOOL
from smartbatch.types import Message, Tool

SCHEMA = {
    "type": "object",
    "properties": {"label": {"type": "string"}},
    "required": ["label"],
    "additionalProperties": False,
}
REFUSALS = [
    "This response_format type is unavailable now",
    "response_format.type json_schema is unavailable now",
    "response formats of this type are not available",
    "Invalid parameter: 'response_format' of type 'json_schema' is not supported by this server.",
    "unknown variant `json_schema`, expected `text` or `json_object`",
    "body.response_format.type: Input should be 'text' or 'json_object'",
    "'response_format.type' must be one of: text, json_object",
    "response_format value as json_schema is enabled only for api versions 2024-08-01-preview and later",
    "This server does not support response format `json_schema`. Use json_object instead.",
]
FLAWS = [
    "Invalid schema for response_format 'answer': In context=(), 'oneOf' is not permitted.",
    "Invalid schema for response_format: the schema exceeds the maximum depth",
    "Missing required parameter: 'response_format.json_schema.schema'.",
]


def refuses(text: str):
    return says(json.dumps({"error": {"message": text, "type": "invalid_request_error"}}), "400 Bad Request")


def body_of(provider, prompt="Classify.", **params):
    return provider._body((request_of(prompt, schema=SCHEMA, **params),), "m")


def instruction(body) -> str:
    first = body["messages"][0]
    assert first["role"] == "system"
    return first["content"]


@pytest.mark.parametrize("text", REFUSALS)
def test_auto_tries_json_mode_after_the_first_refusal_and_remembers_it(serve, connect, text):
    server = serve(refuses(text), says(chat('{"label": "good"}')))
    provider = connect(server)
    with pytest.raises(ParameterRejected) as caught:
        ask(provider, schema=SCHEMA)
    [(name, reason)] = caught.value.omitted
    assert name == "json_schema"
    assert 'schema_mode="json_schema" sends it anyway' in reason
    for _ in range(2):
        assert ask(provider, schema=SCHEMA).text == '{"label": "good"}'
    first, *others = (each.json() for each in server.requests)
    assert first["response_format"]["type"] == "json_schema"
    for body in others:
        assert body["response_format"] == {"type": "json_object"}
        assert "JSON" in instruction(body)
        assert json.dumps(SCHEMA) in instruction(body)


def test_auto_ends_with_the_prompt_alone(serve, connect):
    json_mode = refuses("response_format: Extra inputs are not permitted")
    provider = connect(serve(json_mode, json_mode, says(chat('{"label": "good"}'))))
    for _ in range(2):
        with pytest.raises(ParameterRejected):
            ask(provider, schema=SCHEMA)
    ask(provider, schema=SCHEMA)
    body = body_of(provider)
    assert "response_format" not in body
    assert json.dumps(SCHEMA) in instruction(body)


@pytest.mark.parametrize("text", FLAWS)
def test_a_flaw_of_one_schema_does_not_change_how_others_are_sent(serve, connect, text):
    provider = connect(serve(refuses(text)))
    error = fails(provider, schema=SCHEMA)
    assert type(error) is ProviderError
    assert body_of(provider)["response_format"]["type"] == "json_schema"


@pytest.mark.parametrize("mode", ["json_schema", "json_object"])
def test_a_mode_that_is_given_is_kept(serve, connect, mode):
    provider = connect(serve(refuses(REFUSALS[0])))
    error = fails(provider, schema=SCHEMA, schema_mode=mode)
    assert type(error) is ProviderError
    assert body_of(provider)["response_format"]["type"] == "json_schema"


def test_a_response_format_of_the_users_own_teaches_nothing(serve, connect):
    provider = connect(serve(refuses("This response_format type is unavailable now: json_object")))
    error = fails(provider, response_format={"type": "json_object"})
    assert type(error) is ProviderError


def test_the_instruction_joins_the_one_that_is_there(connect, serve):
    provider = connect(serve(says(chat())))
    text = instruction(body_of(provider, system="Be brief.", schema_mode="prompt"))
    assert text.startswith("Be brief.\n\nAnswer with one JSON value")
    parts = (Message("system", ({"type": "text", "text": "Be brief."},)), Message("user", "Classify."))
    body = body_of(provider, parts, schema_mode="json_object")
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert body["messages"][0]["content"][0]["text"] == "Be brief."
    assert json.dumps(SCHEMA) in body["messages"][0]["content"][1]["text"]


def test_the_responses_api_has_the_same_modes(connect, serve):
    provider = connect(serve(says(chat())), api="responses")
    assert body_of(provider)["text"]["format"]["type"] == "json_schema"
    body = body_of(provider, schema_mode="json_object", system="Be brief.")
    assert body["text"]["format"] == {"type": "json_object"}
    assert body["instructions"].startswith("Be brief.\n\nAnswer with one JSON value")
    assert "text" not in body_of(provider, schema_mode="prompt")
    body = body_of(provider, schema_mode="tool")
    assert body["tools"][0]["name"] == body["tool_choice"]["name"] == ANSWER_TOOL


def called(arguments: str) -> dict:
    call = {"id": "c1", "type": "function", "function": {"name": ANSWER_TOOL, "arguments": arguments}}
    body = chat(None)
    body["choices"][0]["message"]["tool_calls"] = [call]
    body["choices"][0]["finish_reason"] = "tool_calls"
    return body


@pytest.mark.parametrize("arguments", ['{"label": "good"}', '{"label": '])
def test_the_arguments_of_the_forced_tool_are_the_answer(serve, connect, arguments):
    server = serve(says(called(arguments)))
    answer = ask(connect(server), schema=SCHEMA, schema_mode="tool")
    assert (answer.text, answer.finish_reason, answer.tool_calls) == (arguments, "stop", ())
    body = server.requests[0].json()
    assert body["tools"][0]["function"]["parameters"] == SCHEMA
    assert body["tools"][0]["function"]["strict"] is True
    assert body["tool_choice"] == {"type": "function", "function": {"name": ANSWER_TOOL}}
    assert "response_format" not in body


def test_a_stream_ends_with_the_arguments_as_its_text(serve, connect):
    piece = {"index": 0, "id": "c1", "function": {"name": ANSWER_TOOL, "arguments": '{"label":'}}
    rest = {"index": 0, "function": {"arguments": ' "good"}'}}
    chunks = [{"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]} for call in (piece, rest)]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    data = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    server = serve(says(data, content_type="text/event-stream"))
    stream = begin(connect(server), schema=SCHEMA, schema_mode="tool")
    assert "".join(stream) == '{"label": "good"}'
    assert stream.answer.finish_reason == "stop"


def test_the_tool_mode_excludes_tools(connect, serve):
    provider = connect(serve(says(chat())))
    tool = Tool("look", parameters={"type": "object", "properties": {}})
    for params in ({"tools": (tool,)}, {"extra": {"tools": [{"type": "function"}]}}):
        request = request_of(schema=SCHEMA, schema_mode="tool", **params)
        with pytest.raises(InvalidRequest, match="use another mode with tools"):
            provider.check(request, model="m")
