"""Request bodies of Anthropic's Messages API, as plain dictionaries; nothing is sent here.

Source of the fields: the types of the ``anthropic`` SDK 2.11 and Anthropic's API reference of October 2026.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from smartbatch.errors import InvalidRequest
from smartbatch.providers.conversation import (
    INSTRUCTIONS,
    all_tools,
    arguments_sent,
    check_extra,
    check_format,
    check_tools,
    check_turns,
    content_of,
    refuse_strict,
)
from smartbatch.providers.schema_forms import Dialect, NotExpressible, in_dialect, instruction, subschemas
from smartbatch.types import Generation, Message, Request, Tool, ToolCall

DIALECT = Dialect(
    keywords=frozenset({"format", "minItems"}),
    formats=frozenset({"date-time", "time", "date", "duration", "email", "hostname", "uri"})
    | {"ipv4", "ipv6", "uuid"},
    recursion="none",
)
MAX_OPTIONAL = 24
"""Properties of one request that may be left out."""
MAX_UNIONS = 16
"""Parts of one request that have several types."""


def sent_schema(schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return a schema as it is sent, or ``None`` where the API cannot enforce it."""
    return _sent(json.dumps(schema))


@lru_cache(maxsize=256)  # the requests of a client have the same schema
def _sent(text: str) -> Mapping[str, Any] | None:
    try:
        form = in_dialect(json.loads(text), DIALECT)
    except NotExpressible:
        return None
    parts = list(_parts(form))
    optional = sum(len(set(part.get("properties", ())) - set(part.get("required", ()))) for part in parts)
    unions = sum("anyOf" in part or isinstance(part.get("type"), list) for part in parts)
    return form if optional <= MAX_OPTIONAL and unions <= MAX_UNIONS else None


def _parts(form: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield form
    for part in subschemas(form):
        if isinstance(part, Mapping):
            yield from _parts(part)


VERSION = "2026-10-21"
"""The API version this adapter was written for; it takes no sampling parameters."""
OLD_VERSION = "2023-06-01"
"""The version before, which takes them for the models that still know them."""

_RESERVED = ("model", "messages", "stream")


def message_body(
    request: Request, model: str, version: str, default_max_tokens: int
) -> tuple[dict[str, Any], tuple[tuple[str, str], ...]]:
    """Return the body of ``POST /v1/messages``, and what was left out of it with the reasons.

    ``default_max_tokens`` are for requests without ``max_tokens``, which the API requires.
    """
    params = request.params
    system, messages = _conversation(request)
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": default_max_tokens if params.max_tokens is None else params.max_tokens,
        "messages": messages,
    }
    if system:
        body["system"] = system
    if params.stop is not None:
        body["stop_sequences"] = list(params.stop)
    dropped = _add_sampling(body, params, version)
    if params.extra:
        body.update(params.extra)
    if params.tools:
        body["tools"] = all_tools([_tool(tool) for tool in params.tools], params.extra)
    if params.tool_choice is not None:
        kind = _CHOICES.get(params.tool_choice)
        body["tool_choice"] = {"type": kind} if kind else {"type": "tool", "name": params.tool_choice}
    if params.schema is not None and (schema := sent_schema(params.schema)) is not None:
        form = {"type": "json_schema", "schema": schema}
        body["output_config"] = {**(body.get("output_config") or {}), "format": form}
    return body, dropped


def check_request(request: Request, version: str) -> None:
    """Refuse what the API cannot take, or what would change the shape of the answer; names the field."""
    _check_params(request.params, version)
    check_turns(request.prompt)
    if "system" in (request.params.extra or {}) and _conversation(request)[0]:
        raise InvalidRequest("system is set twice, by the request and in extra", field="extra")


def _check_params(params: Generation, version: str) -> None:
    if params.response_format is not None:
        raise InvalidRequest("Anthropic has no response_format; use schema", field="response_format")
    if params.logprobs:
        raise InvalidRequest("Anthropic returns no log-probabilities; leave logprobs out", field="logprobs")
    check_extra(params.extra or {}, _RESERVED)
    check_tools(params, ("tool_choice",))
    for tool in params.tools or ():
        _tool(tool)
    check_format(params, ("format",), within="output_config")
    if version != VERSION and params.temperature is not None and params.temperature > 1:
        raise InvalidRequest("Anthropic takes temperatures from 0 to 1", field="temperature")


def _add_sampling(body: dict[str, Any], params: Generation, version: str) -> tuple[tuple[str, str], ...]:
    """Add the sampling parameters the version takes; return the others."""
    dropped = []
    for name in ("temperature", "top_p"):
        value = getattr(params, name)
        if value is None:
            continue
        if version == VERSION:
            dropped.append(
                (
                    name,
                    f"Anthropic's API {VERSION} takes no sampling parameters; "
                    f"api_version='{OLD_VERSION}' sends them to models that still do",
                )
            )
        else:
            body[name] = value
    if params.seed is not None:
        dropped.append(("seed", "Anthropic's API knows no seed"))
    return tuple(dropped)


def _conversation(request: Request) -> tuple[str | list[Any], list[dict[str, Any]]]:
    """Instructions and messages: the API takes instructions outside of the messages only."""
    params, prompt = request.params, request.prompt
    instructions: list[Any] = [] if params.system is None else [params.system]
    messages: list[dict[str, Any]] = []
    for message in (Message("user", prompt),) if isinstance(prompt, str) else prompt:
        if message.role in INSTRUCTIONS:
            instructions.append(content_of(message))
        else:
            _add_turn(messages, message)
    if params.schema is not None and sent_schema(params.schema) is None:
        instructions.append(instruction(params.schema))
    return _joined(instructions), messages


def _add_turn(messages: list[dict[str, Any]], message: Message) -> None:
    """Add a message. Results of tools, and what the user says after them, are one message of the user."""
    if message.role == "tool":
        result = {"type": "tool_result", "tool_use_id": _identity(str(message.tool_call_id))}
        turn = {"role": "user", "content": [{**result, "content": content_of(message)}]}
    elif message.tool_calls:
        turn = {"role": message.role, "content": [*_blocks(message), *map(_call, message.tool_calls)]}
    else:
        turn = {"role": message.role, "content": content_of(message)}
    if turn["role"] == "user" and messages and _has_results(messages[-1]):
        content = turn["content"]
        messages[-1]["content"] += (
            [{"type": "text", "text": content}] if isinstance(content, str) else content
        )
    else:
        messages.append(turn)


def _has_results(turn: Mapping[str, Any]) -> bool:
    content = turn["content"]
    return isinstance(content, list) and any(part.get("type") == "tool_result" for part in content)


def _blocks(message: Message) -> list[Mapping[str, Any]]:
    if isinstance(message.content, str):
        return [{"type": "text", "text": message.content}] if message.content.strip() else []
    return list(message.content)


def _call(call: ToolCall) -> dict[str, Any]:
    extra = call.extra or {}
    more = {name: extra[name] for name in _CALL_FIELDS if name in extra}
    block = {"type": "tool_use", "id": _identity(call.id), "name": call.name}
    return {**block, "input": arguments_sent(call), **more}


_CALL_FIELDS = ("caller", "cache_control")
"""What goes back with a call of Anthropic's."""
_NO_ID = re.compile(r"[^a-zA-Z0-9_-]")


def _identity(identity: str) -> str:
    """Return an id that the API takes; those of other providers may have other characters."""
    return _NO_ID.sub("_", identity)


_CHOICES = {"auto": "auto", "none": "none", "required": "any"}


def _tool(tool: Tool) -> dict[str, Any]:
    described: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        described["description"] = tool.description
    described["input_schema"] = tool.parameters
    if tool.strict is not None:
        described["strict"] = tool.strict
    if tool.strict:
        described["input_schema"] = sent_schema(tool.parameters)
        if described["input_schema"] is None:
            raise refuse_strict(tool, "Anthropic")
    return described


def _joined(instructions: Sequence[Any]) -> str | list[Any]:
    """One text, or a list of blocks where one of them is a list (which may carry cache marks)."""
    if all(isinstance(text, str) for text in instructions):
        return "\n\n".join(text for text in instructions if text)
    blocks: list[Any] = []
    for text in instructions:
        if not isinstance(text, str):
            blocks += text
        elif text:
            blocks.append({"type": "text", "text": text})
    return blocks
