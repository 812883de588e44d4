"""Request bodies of Anthropic's Messages API as plain dictionaries, and its dialect of JSON Schema.

Sources: the types of the ``anthropic`` SDK 2.11, Anthropic's API reference (October 2026) and its
guide "JSON Schema limitations" (November 2026). ``anthropic.transform_schema`` moves the same
keywords into the description, but it also closes objects that stand for dictionaries.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from smartbatch.errors import InvalidRequest
from smartbatch.providers.anthropic.parts import BLOCKS
from smartbatch.providers.anthropic.reasoning import add_effort, check_thinking
from smartbatch.providers.cache_marks import with_marks
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
from smartbatch.providers.media_parts import PartForm, check_parts, translated
from smartbatch.providers.schema_forms import (
    Dialect,
    NotExpressible,
    in_dialect,
    instruction,
    once_per_schema,
    subschemas,
)
from smartbatch.types import Generation, Message, Request, Tool, ToolCall

DIALECT = Dialect(
    keywords=frozenset({"format", "minItems"}),
    formats=frozenset({"date-time", "time", "date", "duration", "email", "hostname", "uri"})
    | {"ipv4", "ipv6", "uuid"},
    recursion="none",
)
MAX_OPTIONAL = 24  # optional properties per request
MAX_UNIONS = 16  # schemas with several types per request


@once_per_schema
def sent_schema(schema: dict[str, Any]) -> Mapping[str, Any] | None:
    """``None`` if the API cannot enforce the schema."""
    try:
        form = in_dialect(schema, DIALECT)
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


API_VERSION = "2026-10-21"  # version used by this adapter; takes no sampling parameters
# the previous version, which accepts sampling parameters for models that still support them
OLD_API_VERSION = "2023-06-01"

_RESERVED = ("model", "messages", "stream")


def message_body(
    request: Request, model: str, version: str, default_max_tokens: int, parts: PartForm = BLOCKS
) -> tuple[dict[str, Any], tuple[tuple[str, str], ...]]:
    """Build the body of ``POST /v1/messages``, and list the omitted parameters with the reasons.

    ``default_max_tokens`` applies to requests without ``max_tokens``, which the API requires. ``parts`` is
    the form of content parts.
    """
    request, mark = _with_cache_marks(request, parts)
    params = request.params
    system, messages = _conversation(request, parts)
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
    if params.reasoning_effort is not None:
        add_effort(body, params.reasoning_effort, model)
    if params.tools:
        body["tools"] = all_tools([_tool(tool) for tool in params.tools], params.extra)
        if mark and not system and request.cache is not None and request.cache.prefixes[0].message < 0:
            body["tools"][-1] = {**body["tools"][-1], **mark}
    if params.tool_choice is not None:
        kind = _CHOICES.get(params.tool_choice)
        body["tool_choice"] = {"type": kind} if kind else {"type": "tool", "name": params.tool_choice}
    if params.schema is not None and (schema := sent_schema(params.schema)) is not None:
        form = {"type": "json_schema", "schema": schema}
        body["output_config"] = {**(body.get("output_config") or {}), "format": form}
    return body, dropped


def _with_cache_marks(request: Request, parts: PartForm) -> tuple[Request, dict[str, Any]]:
    """Return the request with marks at the ends of its shared prefixes, and the first mark."""
    cache = request.cache
    if cache is None or not cache.prefixes:
        return request, {}
    short = {"cache_control": {"type": "ephemeral"}}
    long = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    marks = [long] * cache.long + [short] * (len(cache.prefixes) - cache.long)
    return with_marks(request, parts, marks), marks[0]


def check_request(
    request: Request, model: str, version: str, default_max_tokens: int, parts: PartForm = BLOCKS
) -> None:
    params = request.params
    max_tokens = default_max_tokens if params.max_tokens is None else params.max_tokens
    check_thinking(params, model, max_tokens, samples=version != API_VERSION)
    if params.response_format is not None:
        raise InvalidRequest("Anthropic has no response_format; use schema", field="response_format")
    if params.logprobs:
        raise InvalidRequest("Anthropic returns no log-probabilities; leave logprobs out", field="logprobs")
    check_extra(params.extra or {}, _RESERVED)
    check_tools(params, ("tool_choice",))
    for tool in params.tools or ():
        _tool(tool)
    check_format(params, ("format",), within="output_config")
    if version != API_VERSION and params.temperature is not None and params.temperature > 1:
        raise InvalidRequest("Anthropic takes temperatures from 0 to 1", field="temperature")
    check_turns(request.prompt)
    check_parts(request.prompt, parts)
    if "system" in (params.extra or {}) and _conversation(request, parts)[0]:
        raise InvalidRequest("system is set twice, by the request and in extra", field="extra")


def _add_sampling(body: dict[str, Any], params: Generation, version: str) -> tuple[tuple[str, str], ...]:
    """Add the sampling parameters that the version accepts; return the others with the reasons."""
    dropped = []
    for name in ("temperature", "top_p"):
        value = getattr(params, name)
        if value is None:
            continue
        if version == API_VERSION:
            dropped.append(
                (
                    name,
                    f"Anthropic's API {API_VERSION} takes no sampling parameters; "
                    f"api_version='{OLD_API_VERSION}' sends them to models that still do",
                )
            )
        else:
            body[name] = value
    if params.seed is not None:
        dropped.append(("seed", "Anthropic's API has no seed"))
    return tuple(dropped)


def _conversation(request: Request, parts: PartForm) -> tuple[str | list[Any], list[dict[str, Any]]]:
    """Separate the instructions, which the API accepts only outside the messages."""
    params, prompt = request.params, translated(request.prompt, parts)
    instructions: list[Any] = [] if params.system is None else [params.system]
    messages: list[dict[str, Any]] = []
    for message in (Message("user", prompt),) if isinstance(prompt, str) else prompt:
        if message.role in INSTRUCTIONS:
            instructions.append(content_of(message))
        else:
            _add_turn(messages, message)
    if params.schema is not None and sent_schema(params.schema) is None:
        instructions.append(instruction(params.schema))
    if all(isinstance(text, str) for text in instructions):
        return "\n\n".join(text for text in instructions if text), messages
    blocks: list[Any] = []  # instructions in parts may have cache marks
    for text in instructions:
        if not isinstance(text, str):
            blocks += text
        elif text:
            blocks.append({"type": "text", "text": text})
    return blocks, messages


def _add_turn(messages: list[dict[str, Any]], message: Message) -> None:
    content: Any = content_of(message)
    role = message.role
    if role == "tool":
        role = "user"
        result = {"type": "tool_result", "tool_use_id": _NO_ID.sub("_", str(message.tool_call_id))}
        content = [{**result, "content": content}]
    elif message.tool_calls:
        if isinstance(content, str):
            content = [{"type": "text", "text": content}] if content.strip() else []
        content = [*content, *map(_call, message.tool_calls)]
    before: Any = messages[-1]["content"] if messages else None
    has_results = isinstance(before, list) and any(part.get("type") == "tool_result" for part in before)
    if role == "user" and has_results:  # tool results and the user's next text form one message
        before += [{"type": "text", "text": content}] if isinstance(content, str) else content
    else:
        messages.append({"role": role, "content": content})


def _call(call: ToolCall) -> dict[str, Any]:
    extra = call.extra or {}
    more = {name: extra[name] for name in _CALL_FIELDS if name in extra}
    block = {"type": "tool_use", "id": _NO_ID.sub("_", call.id), "name": call.name}
    return {**block, "input": arguments_sent(call), **more}


_CALL_FIELDS = ("caller", "cache_control")  # fields returned with an earlier call
_NO_ID = re.compile(r"[^a-zA-Z0-9_-]")  # characters that ids from other providers may contain


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
