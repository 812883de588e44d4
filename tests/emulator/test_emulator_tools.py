"""Tool calls and errors for invalid turns, with the real SDKs."""

from __future__ import annotations

import json

import anthropic
import openai
import pytest
from google import genai
from google.genai import errors, types

from smartbatch.testing import emulator

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
QUESTION = {"role": "user", "content": "Use weather."}


@pytest.fixture(scope="module")
def emu():
    with emulator() as emu:
        yield emu


def test_openais_sdk_reads_calls_and_goes_on(emu):
    function = {"name": "weather", "parameters": SCHEMA}
    tools = [{"type": "function", "function": function}]
    with openai.OpenAI(base_url=emu.base_url, api_key="k", max_retries=0) as sdk:
        ask = sdk.chat.completions.create
        choice = ask(model="gpt-5-mini", messages=[QUESTION], tools=tools).choices[0]
        (call,) = choice.message.tool_calls
        assert (choice.finish_reason, choice.message.content, call.function.name) == (
            "tool_calls",
            None,
            "weather",
        )
        assert set(json.loads(call.function.arguments)) == {"city"}
        result = {"role": "tool", "tool_call_id": call.id, "content": "5"}
        chat = [QUESTION, choice.message.model_dump(exclude_none=True), result]
        assert ask(model="gpt-5-mini", messages=chat, tools=tools).choices[0].finish_reason == "stop"
        with pytest.raises(openai.BadRequestError, match=f"did not have response messages: {call.id}"):
            ask(model="gpt-5-mini", messages=chat[:2], tools=tools)
        with pytest.raises(openai.BadRequestError, match="must be a response to a preceeding message"):
            ask(model="gpt-5-mini", messages=[QUESTION, result])
        with pytest.raises(openai.BadRequestError, match="only allowed when 'tools' are specified"):
            ask(model="gpt-5-mini", messages=[QUESTION], tool_choice="auto")
        with pytest.raises(openai.BadRequestError, match="does not match pattern"):
            ask(
                model="gpt-5-mini",
                messages=[QUESTION],
                tools=[{**tools[0], "function": {**function, "name": "a b"}}],
            )
        said = ask(model="gpt-5-mini", messages=[QUESTION], logprobs=True, top_logprobs=2).choices[0]
        assert "".join(token.token for token in said.logprobs.content) == said.message.content


def test_anthropics_sdk_reads_calls_and_thinking_and_goes_on(emu):
    tools = [{"name": "weather", "input_schema": SCHEMA}]
    more = {"model": "claude-haiku-5-5", "max_tokens": 2000, "thinking": {"type": "adaptive"}}
    with anthropic.Anthropic(base_url=emu.url, api_key="k", max_retries=0) as sdk:
        ask = sdk.messages.create
        first = ask(messages=[QUESTION], tools=tools, **more)
        thinking, call = first.content
        assert (first.stop_reason, thinking.type, call.name) == ("tool_use", "thinking", "weather")
        assert set(call.input) == {"city"}
        with sdk.messages.stream(messages=[QUESTION], tools=tools, **more) as stream:
            assert [block.type for block in stream.get_final_message().content] == ["thinking", "tool_use"]
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "5"}
        chat = [
            QUESTION,
            {"role": "assistant", "content": first.content},
            {"role": "user", "content": [result]},
        ]
        assert ask(messages=chat, tools=tools, **more).stop_reason == "end_turn"
        with pytest.raises(anthropic.BadRequestError, match="ids were found without `tool_result`"):
            ask(messages=[*chat[:2], QUESTION], tools=tools, **more)
        with pytest.raises(anthropic.BadRequestError, match="unexpected `tool_use_id` found"):
            ask(messages=[{"role": "user", "content": [result]}], tools=tools, **more)


def test_googles_sdk_reads_calls_and_goes_on(emu):
    declared = types.FunctionDeclaration(name="weather", parameters_json_schema=SCHEMA)
    config = types.GenerateContentConfig(
        tools=[types.Tool(function_declarations=[declared])],
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    )
    options = types.HttpOptions(base_url=emu.url)
    with genai.Client(api_key="k", vertexai=False, http_options=options) as sdk:
        question = types.Content(role="user", parts=[types.Part(text="Use weather.")])
        first = sdk.models.generate_content(model="gemini-3.8-flash", contents=[question], config=config)
        (call,) = first.function_calls
        assert (call.name, set(call.args)) == ("weather", {"city"})
        assert first.candidates[0].content.parts[0].thought_signature
        result = types.Part.from_function_response(name="weather", response={"output": "5"})
        chat = [question, first.candidates[0].content, types.Content(role="user", parts=[result])]
        second = sdk.models.generate_content(model="gemini-3.8-flash", contents=chat, config=config)
        assert second.text
        with pytest.raises(errors.ClientError, match="number of function response parts is equal"):
            sdk.models.generate_content(
                model="gemini-3.8-flash", contents=[*chat[:2], question], config=config
            )
