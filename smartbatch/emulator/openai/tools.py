"""Tools in OpenAI's requests, chats and responses, and the errors for what the API does not accept."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import evolve

from smartbatch.emulator.composed_answers import count_tokens
from smartbatch.emulator.openai.parsing import api_error
from smartbatch.emulator.parsed_requests import GenerationRequest
from smartbatch.emulator.schema_rules import openai_flaw
from smartbatch.emulator.tool_calls import NAME, OfferedTools, ToolTurn, flaw_of


def with_chat_tools(request: GenerationRequest, body: Mapping[str, Any]) -> GenerationRequest:
    """Return a parsed chat completion with its tools, and what else is asked for of the answer.

    Raises:
        ApiError: for tools, a choice or turns that the API refuses.
    """
    messages = body["messages"]
    _check_turns([_turn(message) for message in messages], messages)
    asked = body.get("logprobs") is True
    if body.get("top_logprobs") is not None and not asked:
        message = "The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled."
        raise api_error(400, message, param="top_logprobs")
    return evolve(
        request,
        input_tokens=request.input_tokens + _more_tokens(body, messages),
        tools=_tools(body, messages[-1].get("role") == "tool", nested=True),
        logprobs=_alternatives(body) if asked else None,
        reasoning=body.get("include_reasoning") is True,  # OpenRouter's; OpenAI's chats have no reasoning
    )


def with_response_tools(request: GenerationRequest, body: Mapping[str, Any]) -> GenerationRequest:
    """Return a parsed request of the Responses API, likewise."""
    items = body["input"] if isinstance(body.get("input"), list) else []
    _check_turns([_turn_of_item(item) for item in items], items)
    reasoning = body.get("reasoning")
    asked = "message.output_text.logprobs" in (body.get("include") or ())
    answered = bool(items) and items[-1].get("type") == "function_call_output"
    return evolve(
        request,
        input_tokens=request.input_tokens + _more_tokens(body, items),
        tools=_tools(body, answered, nested=False),
        logprobs=_alternatives(body) if asked else None,
        reasoning=isinstance(reasoning, Mapping) and bool(reasoning.get("summary")),
    )


def as_messages(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a body of the Responses API whose calls and results are messages."""
    items = body.get("input")
    return {**body, "input": list(_messages(items))} if isinstance(items, list) and items else body


def _messages(items: list[Any]) -> Iterator[Any]:
    for item in items:
        kind = item.get("type") if isinstance(item, Mapping) else None
        if kind == "function_call":
            yield {"role": "assistant", "content": ""}
        elif kind == "function_call_output":
            yield {"role": "tool", "content": item.get("output")}
        elif kind != "reasoning":
            yield item


def _more_tokens(body: Mapping[str, Any], messages: list[Any]) -> int:
    """Tokens of tools and calls."""
    texts = [message.get("tool_calls") or message.get("arguments") for message in messages]
    return sum(count_tokens(json.dumps(each)) for each in (body.get("tools"), *texts) if each)


def _alternatives(body: Mapping[str, Any]) -> int:
    number = body.get("top_logprobs") or 0
    if type(number) is not int or not 0 <= number <= 20:
        message = "Invalid 'top_logprobs': integer above maximum value. Expected a value <= 20."
        raise api_error(400, message, code="integer_above_max_value", param="top_logprobs")
    return number


def _turn(message: Mapping[str, Any]) -> ToolTurn:
    if message.get("role") == "tool":
        return ToolTurn(results=(str(message.get("tool_call_id")),), results_follow=True)
    calls = message.get("tool_calls") or ()
    return ToolTurn(calls=[str(call.get("id")) for call in calls if isinstance(call, Mapping)])


def _turn_of_item(item: Mapping[str, Any]) -> ToolTurn:
    if item.get("type") == "function_call_output":
        return ToolTurn(results=(str(item.get("call_id")),), results_follow=True)
    calls = (str(item.get("call_id")),) if item.get("type") == "function_call" else ()
    return ToolTurn(calls=calls, results_follow=bool(calls))


def _check_turns(turns: list[ToolTurn], messages: list[Any]) -> None:
    flaw = flaw_of(turns)
    if flaw is None:
        return
    if "role" not in messages[flaw.place]:
        missing = f"No tool output found for function call {', '.join(flaw.ids)}."
        unknown = f"No tool call found for function call output with call_id {flaw.unexpected}."
        raise api_error(400, missing if flaw.ids else unknown, param="input")
    if flaw.ids:
        message = (
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            "'tool_call_id'. The following tool_call_ids did not have response messages: "
            f"{', '.join(flaw.ids)}"
        )
        raise api_error(400, message, param="messages")
    message = (
        "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with "
        "'tool_calls'."
    )
    raise api_error(400, message, param=f"messages.[{flaw.place}].role")


def _tools(body: Mapping[str, Any], answered: bool, *, nested: bool) -> OfferedTools | None:
    choice = body.get("tool_choice")
    given = body.get("tools")
    if not given:
        if choice is not None:
            message = (
                "Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are specified."
            )
            raise api_error(400, message, param="tool_choice")
        return None
    parameters: dict[str, Mapping[str, Any]] = {}
    for place, tool in enumerate(given):
        function = tool.get("function") if nested else tool
        if tool.get("type") == "function":
            where = f"tools[{place}].function" if nested else f"tools[{place}]"
            parameters[_name(function, where)] = _parameters(function, where)
    if isinstance(choice, Mapping):
        choice = (choice.get("function") or {}).get("name") if nested else choice.get("name")
    if choice not in (None, "auto", "none", "required", *parameters):
        raise api_error(400, f"Invalid value: '{choice}' is no function in 'tools'.", param="tool_choice")
    return OfferedTools(parameters, choice or "auto", answered) if parameters else None


def _name(function: Any, where: str) -> str:
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not NAME.fullmatch(name):
        message = f"Invalid '{where}.name': string does not match pattern. Expected a string that matches"
        raise api_error(
            400, f"{message} the pattern '^[a-zA-Z0-9_-]+$'.", code="invalid_value", param=f"{where}.name"
        )
    return name


def _parameters(function: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    parameters: Mapping[str, Any] = function.get("parameters") or {"type": "object", "properties": {}}
    if (flaw := openai_flaw(parameters, strict=function.get("strict") is True)) is not None:
        message = f"Invalid schema for function '{function['name']}': {flaw}"
        raise api_error(400, message, code="invalid_function_parameters", param=f"{where}.parameters")
    return parameters
