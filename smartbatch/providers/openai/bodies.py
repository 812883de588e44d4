"""Request bodies of OpenAI's generation and embeddings APIs as plain dictionaries.

Source of the fields: OpenAI's OpenAPI document 2.3.0 (chat completions and responses).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from smartbatch.errors import InvalidRequest
from smartbatch.providers.cache_marks import with_marks
from smartbatch.providers.conversation import (
    CHOICES,
    all_tools,
    arguments_text,
    check_extra,
    check_format,
    check_tools,
    content_of,
    own_turns,
    refuse_second_control,
    refuse_strict,
    text_of_result,
)
from smartbatch.providers.media_parts import PartForm, translated
from smartbatch.providers.openai.errors import ServerParameters
from smartbatch.providers.openai.parts import CHAT, RESPONSES
from smartbatch.providers.openai.reasoning import add_nested, second_control
from smartbatch.providers.openai.schema_modes import add_schema, check_tool_mode, sent_schema
from smartbatch.types import Embedding, Generation, Message, Request, Tool, ToolCall

MAX_TEXTS = 2048  # inputs per call (OpenAI API reference, embeddings)
# tokens per call: the API accepts 300,000; a third is left as a margin because the count is an estimate
MAX_TEXT_TOKENS = 200_000
MAX_STOPS = 4
_RESERVED = ("model", "messages", "input", "stream", "stream_options", "background")
_PART_TYPES = {"user": "input_text", "system": "input_text", "developer": "input_text"}
_MARKED_TYPES = {**_PART_TYPES, "assistant": "output_text"}
_BREAKPOINT = {"prompt_cache_breakpoint": {"mode": "explicit"}}


def chat_body(
    request: Request,
    model: str,
    parameters: ServerParameters,
    *,
    reasoning: bool = False,
) -> dict[str, Any]:
    """Build the body of ``POST /chat/completions``.

    ``parameters`` are those that the server accepts. ``reasoning`` is True if the server accepts the
    reasoning of earlier turns.
    """
    request, caching = _with_caching(request, CHAT)
    params = request.params
    messages: list[dict[str, Any]] = []
    if params.system is not None:
        messages.append({"role": "system", "content": params.system})
    prompt = translated(request.prompt, CHAT)
    if isinstance(prompt, str):
        messages.append({"role": "user", "content": prompt})
    else:
        messages += [_chat_message(message, reasoning) for message in own_turns(prompt)]
    body: dict[str, Any] = {"model": model, "messages": messages, **caching}
    if params.max_tokens is not None:
        body[parameters.max_tokens_field(model)] = params.max_tokens
    _add_sampling(body, params)
    if params.stop is not None:
        body["stop"] = list(params.stop)
    if params.seed is not None and parameters.sends("seed", model):
        body[parameters.seed_field] = params.seed
    if params.schema is not None:
        add_schema(body, params.schema, parameters.schema_mode(params, model))
    elif params.response_format is not None:
        body["response_format"] = params.response_format
    if params.logprobs:
        body["logprobs"] = True
        if params.logprobs is not True:
            body["top_logprobs"] = params.logprobs
    if params.extra:
        body.update(params.extra)
    if params.reasoning_effort is not None:
        parameters.efforts.add_to(body, params.reasoning_effort)
    if params.tools:
        own = [{"type": "function", "function": _tool(tool)} for tool in params.tools]
        body["tools"] = all_tools(own, params.extra)
    if params.tool_choice in CHOICES:
        body["tool_choice"] = params.tool_choice
    elif params.tool_choice is not None:
        body["tool_choice"] = {"type": "function", "function": {"name": params.tool_choice}}
    return body


def response_body(request: Request, model: str, parameters: ServerParameters) -> dict[str, Any]:
    """Build the body of ``POST /responses``. The provider stores nothing unless ``extra`` enables it."""
    request, caching = _with_caching(request, RESPONSES, _MARKED_TYPES)
    params = request.params
    prompt = translated(request.prompt, RESPONSES)
    body: dict[str, Any] = {
        "model": model,
        "input": prompt
        if isinstance(prompt, str)
        else [item for message in own_turns(prompt) for item in _input_items(message)],
        "store": False,
        **caching,
    }
    if params.system is not None:
        body["instructions"] = params.system
    if params.max_tokens is not None:
        body["max_output_tokens"] = params.max_tokens
    _add_sampling(body, params)
    if params.extra:
        body.update(params.extra)
    if params.reasoning_effort is not None:
        add_nested(body, params.reasoning_effort)
    if params.schema is not None:
        add_schema(body, params.schema, parameters.schema_mode(params, model))
    elif params.response_format is not None:
        form = params.response_format
        if isinstance(inner := form.get("json_schema"), Mapping):
            form = {"type": "json_schema", **inner}  # this API has no inner object
        body["text"] = {**(body.get("text") or {}), "format": form}
    if params.logprobs:
        body["include"] = [*(body.get("include") or ()), "message.output_text.logprobs"]
        if params.logprobs is not True:
            body["top_logprobs"] = params.logprobs
    if params.tools:
        own = [{"type": "function", "strict": False, **_tool(tool)} for tool in params.tools]
        body["tools"] = all_tools(own, params.extra)
    if params.tool_choice in CHOICES:
        body["tool_choice"] = params.tool_choice
    elif params.tool_choice is not None:
        body["tool_choice"] = {"type": "function", "name": params.tool_choice}
    return body


def _with_caching(
    request: Request, form: PartForm, text_types: Mapping[str, str] | None = None
) -> tuple[Request, dict[str, Any]]:
    """Return the request with marks at the ends of its shared prefixes, and the fields for the cache.

    Marks turn off the implicit write of the whole prompt.
    """
    mark = request.cache
    if mark is None:
        return request, {}
    if mark.routing_key is not None:
        return request, {"prompt_cache_key": mark.routing_key} if mark.routing_key else {}
    marks = [_BREAKPOINT] * len(mark.prefixes)
    return with_marks(request, form, marks, text_types), {"prompt_cache_options": {"mode": "explicit"}}


def embeddings_body(
    requests: Sequence[Request], model: str, encoding_format: str | None = "base64"
) -> dict[str, Any]:
    """Base64 takes an eighth of the CPU to parse."""
    body: dict[str, Any] = {"model": model, "input": [request.prompt for request in requests]}
    if encoding_format is not None:
        body["encoding_format"] = encoding_format
    wanted = requests[0].embedding
    if wanted is not None and wanted.dimensions is not None:
        body["dimensions"] = wanted.dimensions
    return body


def dropped_of(embedding: Embedding | None) -> tuple[tuple[str, str], ...]:
    if embedding is None or embedding.task_type is None:
        return ()
    return (("task_type", "OpenAI's embeddings have no task types"),)


def check_params(params: Generation, api: str) -> None:
    if params.stop is not None and len(params.stop) > MAX_STOPS:
        raise InvalidRequest(f"stop has {len(params.stop)} strings; the maximum is {MAX_STOPS}", field="stop")
    if api == "responses":
        for field in ("stop", "seed"):
            if getattr(params, field) is not None:
                raise InvalidRequest(f"the responses API has no {field}; use api='chat'", field=field)
    check_tool_mode(params)
    extra = params.extra or {}
    check_extra(extra, _RESERVED)
    check_tools(params, ("tool_choice",), ("logprobs", "top_logprobs"))
    for tool in params.tools or ():
        _tool(tool)
    if api == "chat":
        check_format(params, ("response_format",))
    else:
        check_format(params, ("format",), within="text")
        if params.system is not None and "instructions" in extra:
            raise InvalidRequest("system is set twice, by the request and in extra", field="extra")
    if params.reasoning_effort is not None and (name := second_control(extra)) is not None:
        raise refuse_second_control(name)
    if extra.get("n", 1) != 1:
        raise InvalidRequest("extra cannot set n: pass it to the call, as in submit(…, n=3)", field="extra")


def _tool(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.parameters
    if tool.strict is not None:
        function["strict"] = tool.strict
    if tool.strict:
        sent = sent_schema(tool.parameters)
        if not sent.strict:
            raise refuse_strict(tool, "OpenAI")
        function["parameters"] = sent.schema
    return function


def _chat_message(message: Message, reasoning: bool) -> dict[str, Any]:
    form: dict[str, Any] = {"role": message.role, "content": content_of(message)}
    if message.tool_call_id is not None:
        form["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        form["content"] = form["content"] or None
        form["tool_calls"] = [_chat_call(call) for call in message.tool_calls]
        if reasoning and message.reasoning is not None:
            form["reasoning_content"] = message.reasoning
    return form


def _chat_call(call: ToolCall) -> dict[str, Any]:
    extra = call.extra or {}
    if extra.get("type") == "custom":
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": arguments_text(call)}}
    function = {"name": call.name, "arguments": arguments_text(call)}
    more = {name: extra[name] for name in _CALL_FIELDS if name in extra}
    return {"id": call.id, "type": "function", "function": function, **more}


# fields returned with an earlier call: signatures of Gemini's OpenAI-compatible layer
_CALL_FIELDS = ("extra_content",)


def _input_items(message: Message) -> Iterator[Mapping[str, Any]]:
    """Yield a message as items of the responses API.

    Text parts name their direction, and calls and results are separate items.
    """
    if message.role == "tool":
        text = text_of_result(message)
        output = _named_parts(message.content, "input_text") if text is None else text
        yield {"type": "function_call_output", "call_id": message.tool_call_id, "output": output}
        return
    if isinstance(message.content, str):
        if message.content or not message.tool_calls:
            yield {"role": message.role, "content": message.content}
    else:
        parts: list[Mapping[str, Any]] = []
        for part in _named_parts(message.content, _PART_TYPES.get(message.role, "output_text")):
            if part.get("type") == "reasoning":  # an item of an earlier answer, sent unchanged
                yield part
            elif part.get("type") == "message":
                parts += part.get("content") or ()
            else:
                parts.append(part)
        if parts:
            yield {"role": message.role, "content": parts}
    for call in message.tool_calls:
        if (call.extra or {}).get("type") == "custom":
            custom = {"type": "custom_tool_call", "input": arguments_text(call)}
            yield {**custom, "call_id": call.id, "name": call.name}
        else:
            function = {"type": "function_call", "arguments": arguments_text(call)}
            yield {**function, "call_id": call.id, "name": call.name}


def _named_parts(parts: Iterable[Any], text_type: str) -> list[Mapping[str, Any]]:
    return [{**part, "type": text_type} if part.get("type") == "text" else part for part in parts]


def _add_sampling(body: dict[str, Any], params: Generation) -> None:
    for name in ("temperature", "top_p"):
        if (value := getattr(params, name)) is not None:
            body[name] = value
