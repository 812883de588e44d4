"""Tools in Anthropic's requests, and the errors for what the API does not accept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from attrs import evolve

from smartbatch.emulator.anthropic.parsing import api_error
from smartbatch.emulator.composed_answers import count_tokens
from smartbatch.emulator.parsed_requests import GenerationRequest
from smartbatch.emulator.schema_rules import anthropic_flaw
from smartbatch.emulator.tool_calls import NAME, OfferedTools, ToolTurn, flaw_of


def with_tools(request: GenerationRequest, body: Mapping[str, Any]) -> GenerationRequest:
    """Return a parsed request with its tools, and whether it asks for thinking.

    Raises:
        ApiError: for tools, a choice or turns that the API refuses.
    """
    blocks = [_blocks(message) for message in body["messages"]]
    turns = [
        ToolTurn(
            [str(block.get("tool_use_id")) for block in each if block.get("type") == "tool_result"],
            [str(block.get("id")) for block in each if block.get("type") == "tool_use"],
        )
        for each in blocks
    ]
    _check_turns(turns)
    for place, (each, turn) in enumerate(zip(blocks, turns, strict=True)):
        first = [block.get("type") for block in each[: len(turn.results)]]
        if any(kind != "tool_result" for kind in first):
            raise api_error(400, f"messages.{place}: `tool_result` blocks must come first in the content")
    texts = [block for each in blocks for block in each if block.get("type") in ("tool_use", "tool_result")]
    counted = [body.get("tools"), *texts]
    thinking = body.get("thinking")
    return evolve(
        request,
        input_tokens=request.input_tokens + sum(count_tokens(json.dumps(each)) for each in counted if each),
        tools=_tools(body, bool(turns[-1].results)),
        reasoning=isinstance(thinking, Mapping) and thinking.get("type") in ("enabled", "adaptive"),
    )


def _blocks(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    content = message.get("content")
    return content if isinstance(content, list) else []


def _check_turns(turns: list[ToolTurn]) -> None:
    flaw = flaw_of(turns)
    if flaw is None:
        return
    if flaw.ids:
        raise api_error(
            400,
            f"messages.{flaw.place}: `tool_use` ids were found without `tool_result` blocks immediately "
            f"after: {', '.join(flaw.ids)}. Each `tool_use` block must have a corresponding `tool_result` "
            "block in the next message.",
        )
    raise api_error(
        400,
        f"messages.{flaw.place}.content.0: unexpected `tool_use_id` found in `tool_result` blocks: "
        f"{flaw.unexpected}. Each `tool_result` block must have a corresponding `tool_use` block in the "
        "previous message.",
    )


def _tools(body: Mapping[str, Any], answered: bool) -> OfferedTools | None:
    choice = body.get("tool_choice")
    given = body.get("tools")
    if not given:
        if choice is not None:
            raise api_error(400, "tool_choice: may only be specified while providing `tools`.")
        return None
    parameters = {
        _name(tool, place): _schema(tool, place)
        for place, tool in enumerate(given)
        if tool.get("type", "custom") == "custom"
    }
    kind = choice.get("type") if isinstance(choice, Mapping) else "auto"
    chosen = choice.get("name") if isinstance(choice, Mapping) and kind == "tool" else _WORDS.get(str(kind))
    if chosen is None:
        raise api_error(400, f"tool_choice: Input tag '{kind}' does not match 'auto', 'any', 'tool', 'none'")
    if kind == "tool" and chosen not in parameters:
        raise api_error(400, f"Tool '{chosen}' not found in provided tools")
    return OfferedTools(parameters, chosen, answered) if parameters else None


_WORDS = {"auto": "auto", "any": "required", "none": "none"}


def _name(tool: Mapping[str, Any], place: int) -> str:
    name = tool.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        text = f"tools.{place}.custom.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'"
        raise api_error(400, text)
    return name


def _schema(tool: Mapping[str, Any], place: int) -> Mapping[str, Any]:
    schema = tool.get("input_schema")
    if not isinstance(schema, Mapping) or schema.get("type") != "object":
        raise api_error(400, f"tools.{place}.custom.input_schema.type: Field required")
    if tool.get("strict") and (flaw := anthropic_flaw(schema)) is not None:
        raise api_error(400, f"tools.{place}.custom: {flaw}")
    return schema
