"""Parses OpenAI's generation requests, and creates the errors for invalid ones.

Source: the types of the ``openai`` SDK and OpenAI's API reference of November 2026.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from attrs import evolve

from smartbatch.emulator.composed_answers import NAME, OfferedTools, ToolTurn, count_tokens, flaw_of
from smartbatch.emulator.parsed_requests import (
    ApiError,
    GenerationRequest,
    MalformedBody,
    asked_schema,
    decode_object,
    measure_prompt,
)
from smartbatch.emulator.prompt_files import (
    FileRules,
    FindUpload,
    PromptFile,
    UploadGone,
    excess_of,
    file_of_base64,
    tokens_by_kind,
    uploaded_file,
)
from smartbatch.emulator.schema_rules import openai_flaw
from smartbatch.media_content import PDF, type_of_content

_ROLES = frozenset({"developer", "system", "user", "assistant", "tool", "function"})
_SCHEMA_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_RANGES = (("temperature", 0, 2), ("top_p", 0, 1), ("frequency_penalty", -2, 2), ("presence_penalty", -2, 2))
_TIERS = ("auto", "default", "flex", "scale", "priority", "fast")
_COUNTS = (("max_tokens", 1), ("max_completion_tokens", 1), ("max_output_tokens", 1), ("n", 1))
_MAX_CHOICES = 128
_CHAT_PARTS = frozenset({"text", "refusal", "image_url", "input_audio", "file"})
_INPUT_PURPOSES = ("user_data", "vision", "assistants")  # of files that requests may refer to
_IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_NOT_AN_IMAGE = (
    "You uploaded an unsupported image. Please make sure your image has one of the following formats: "
    "['png', 'jpeg', 'gif', 'webp']."
)
_RESPONSE_PARTS = frozenset({"input_text", "output_text", "refusal", "input_image", "input_file"})


def api_error(
    status: int,
    message: str,
    *,
    code: str | None = None,
    param: str | None = None,
    type_: str = "invalid_request_error",
) -> ApiError:
    """Return an error in OpenAI's format.

    Args:
        param: the invalid field, if there is only one.
        type_: OpenAI's class of the error.
    """
    return ApiError(status, message, error_body(message, type_=type_, code=code, param=param))


def error_body(message: str, *, type_: str, code: str | None = None, param: str | None = None) -> bytes:
    return json.dumps({"error": {"message": message, "type": type_, "param": param, "code": code}}).encode()


def parse_body(body: bytes) -> dict[str, Any]:
    try:
        return decode_object(body)
    except MalformedBody as error:
        raise api_error(400, str(error)) from None


def check_rejected(body: Mapping[str, Any], rejects: Collection[str]) -> None:
    """Reject a body like a server that lacks some parameters.

    Args:
        rejects: names of parameters, and types of ``response_format``.

    Raises:
        ApiError: 400, naming the parameter.
    """
    for name in body:
        if name in rejects:
            message = f"Unsupported parameter: '{name}' is not supported by this server."
            raise api_error(400, message, code="unsupported_parameter", param=name)
    form = body.get("response_format")
    if isinstance(form, Mapping) and form.get("type") in rejects:
        raise api_error(400, f"This response_format type is unavailable now: {form['type']}")


def parse_chat(body: Mapping[str, Any], find: FindUpload) -> GenerationRequest:
    messages = _messages(body, "messages")
    files = _files(body["messages"], "messages", _CHAT_PARTS, find)
    options = body.get("stream_options")
    return _generation(
        body,
        messages,
        files,
        max_tokens=body.get("max_completion_tokens", body.get("max_tokens")),
        schema=_schema(body.get("response_format"), "response_format", nested=True),
        include_usage=isinstance(options, Mapping) and bool(options.get("include_usage")),
    )


def parse_responses(body: Mapping[str, Any], find: FindUpload) -> GenerationRequest:
    given = body.get("input")
    messages = [("user", given)] if isinstance(given, str) else _messages(body, "input")
    if isinstance(instructions := body.get("instructions"), str):
        messages.insert(0, ("developer", instructions))
    files = () if isinstance(given, str) else _files(given, "input", _RESPONSE_PARTS, find)
    text = body.get("text")
    text_format = text.get("format") if isinstance(text, Mapping) else None
    return _generation(
        body,
        messages,
        files,
        max_tokens=body.get("max_output_tokens"),
        schema=_schema(text_format, "text.format", nested=False),
        include_usage=True,
    )


def _generation(
    body: Mapping[str, Any],
    messages: list[tuple[str, str]],
    files: tuple[PromptFile, ...],
    *,
    max_tokens: int | None,
    schema: Mapping[str, Any] | None,
    include_usage: bool,
) -> GenerationRequest:
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise api_error(400, "you must provide a model parameter", param="model")
    _check_numbers(body)
    try:
        prompt, tokens = measure_prompt(model, messages)
    except UnicodeEncodeError:
        raise api_error(400, "Invalid body: a text contains half of a surrogate pair.") from None
    counted = tokens_by_kind(model, files)
    return GenerationRequest(
        model=model,
        prompt=prompt,
        input_tokens=tokens + counted.total(),
        file_tokens=counted,
        max_tokens=max_tokens,
        stop=_stop(body.get("stop")),
        choices=body.get("n") or 1,
        schema=asked_schema(schema, [text for role, text in messages if role == "system"]),
        stream=body.get("stream") is True,
        include_usage=include_usage,
        files=files,
        tier=_tier(body.get("service_tier")),
    )


def _messages(body: Mapping[str, Any], name: str) -> list[tuple[str, str]]:
    given = body.get(name)
    if given is None:
        raise api_error(
            400, f"Missing required parameter: '{name}'.", code="missing_required_parameter", param=name
        )
    if not isinstance(given, list):
        raise api_error(
            400, f"Invalid type for '{name}': expected an array.", code="invalid_type", param=name
        )
    if not given:
        raise api_error(
            400,
            f"Invalid '{name}': empty array. Expected an array with minimum length 1.",
            code="empty_array",
            param=name,
        )
    return [_message(item, f"{name}[{number}]") for number, item in enumerate(given)]


def _message(item: Any, where: str) -> tuple[str, str]:
    if not isinstance(item, Mapping):
        raise api_error(400, f"Invalid type for '{where}': expected an object.", param=where)
    role = item.get("role")
    if role not in _ROLES:
        names = ", ".join(sorted(_ROLES))
        raise api_error(
            400, f"Invalid value for '{where}.role'. Supported values are: {names}.",
            code="invalid_value", param=f"{where}.role",
        )  # fmt: skip
    content = item.get("content")
    if isinstance(content, str):
        return role, content
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, Mapping)]
        return role, "".join(part for part in parts if isinstance(part, str))
    if content is None and role == "assistant":
        return role, ""
    raise api_error(
        400, f"Invalid type for '{where}.content': expected a string or an array.",
        code="invalid_type", param=f"{where}.content",
    )  # fmt: skip


def _files(items: Any, where: str, known: Collection[str], find: FindUpload) -> tuple[PromptFile, ...]:
    """Return all files, and check the types of all parts."""
    found = []
    for number, item in enumerate(items):
        content = item.get("content")
        for place, part in enumerate(content if isinstance(content, list) else ()):
            field = f"{where}[{number}].content[{place}]"
            kind = part.get("type") if isinstance(part, Mapping) else None
            if kind not in known:
                names = ", ".join(f"'{name}'" for name in sorted(known))
                raise api_error(
                    400, f"Invalid value: '{kind}'. Supported values are: {names}.",
                    code="invalid_value", param=f"{field}.type",
                )  # fmt: skip
            if (file_id := _upload_in(part)) is not None:
                found.append(_uploaded(part["type"], file_id, field, find))
            elif (data := _data_of(part)) is not None:
                try:
                    found.append(file_of_base64(field, data))
                except ValueError:
                    raise api_error(400, f"Invalid '{field}': not a file in base64.", param=field) from None
    if (excess := excess_of(found, _RULES)) is not None:
        where = excess.where or where
        text = _EXCESSES[excess.limit].format(found=excess.found, most=excess.most)
        raise api_error(400, f"Invalid '{where}': {text}", param=where)
    return tuple(found)


# OpenAI's guides to images and to file inputs, November 2026; they do not quote the errors
_RULES = FileRules(document_bytes=50_000_000, request_bytes=512_000_000, images=1500)
_EXCESSES = {
    "document_bytes": "the file has {found} bytes, but at most {most} are accepted.",
    "request_bytes": "the files have {found} bytes, but at most {most} are accepted.",
    "images": "{found} images, but at most {most} are accepted.",
}


def _upload_in(part: Mapping[str, Any]) -> Any:
    inner = part["file"] if part["type"] == "file" else part
    return inner.get("file_id") if part["type"] in ("file", "input_file", "input_image") else None


def _uploaded(part_type: str, file_id: Any, field: str, find: FindUpload) -> PromptFile:
    """Return an uploaded file, and check that it can be used here."""
    try:
        file = find(file_id)
    except UploadGone:
        raise api_error(404, f"No such File object: {file_id}", param=field) from None
    if file.purpose not in _INPUT_PURPOSES:
        message = f"The file {file_id} has the purpose '{file.purpose}', not 'user_data'."
        raise api_error(400, message, param=field)
    found = type_of_content(file.data)
    if part_type == "file" and found != PDF:
        message = (
            "Invalid file data: 'file_id'. Expected a file with an application/pdf MIME type, but got "
            f"unsupported MIME type '{found}'."
        )
        raise api_error(400, message, param=field)
    if part_type == "input_image" and found not in _IMAGE_TYPES:
        raise api_error(400, _NOT_AN_IMAGE, code="invalid_image_format", param=field)
    return uploaded_file(field, file.data)


def _data_of(part: Mapping[str, Any]) -> Any:
    """Return the base64 data of a file; ``None`` for text, URLs and uploaded files."""
    match part["type"]:
        case "input_audio":
            return part["input_audio"]["data"]
        case "image_url":
            data = part["image_url"]["url"]
        case "input_image":
            data = part.get("image_url")
        case "file":
            data = part["file"].get("file_data")
        case "input_file":
            data = part.get("file_data")
        case _:
            return None
    is_url = isinstance(data, str) and data.startswith("https://")
    return None if data is None or is_url else data.partition(",")[2] or data


def _check_numbers(body: Mapping[str, Any]) -> None:
    for name, low, high in _RANGES:
        value = body.get(name)
        if value is None:
            continue
        if type(value) not in (int, float):
            raise api_error(
                400, f"Invalid type for '{name}': expected a decimal.", code="invalid_type", param=name
            )
        if not low <= value <= high:
            side, bound = ("below minimum", f">= {low}") if value < low else ("above maximum", f"<= {high}")
            raise api_error(
                400,
                f"Invalid '{name}': decimal {side} value. Expected a value {bound}, but got {value} instead.",
                code=f"decimal_{side[:5]}_{side[6:9]}_value",
                param=name,
            )
    for name, least in _COUNTS:
        value = body.get(name)
        if value is None:
            continue
        if type(value) is not int:
            raise api_error(
                400, f"Invalid type for '{name}': expected an integer.", code="invalid_type", param=name
            )
        if value < least:
            raise api_error(
                400,
                f"Invalid '{name}': integer below minimum value. Expected a value >= {least}.",
                code="integer_below_min_value",
                param=name,
            )
    if (body.get("n") or 1) > _MAX_CHOICES:
        raise api_error(400, "Invalid 'n': integer above maximum value. Expected a value <= 128.", param="n")


def _tier(given: Any) -> str:
    """Return the service tier: ``flex``, or ``default`` for all other known tiers."""
    if given is not None and given not in _TIERS:
        names = ", ".join(f"'{name}'" for name in _TIERS)
        raise api_error(
            400,
            f"Invalid value for 'service_tier'. Supported values are: {names}.",
            code="invalid_value",
            param="service_tier",
        )
    return "flex" if given == "flex" else "default"


def _stop(given: Any) -> tuple[str, ...]:
    if given is None:
        return ()
    sequences = [given] if isinstance(given, str) else given
    if (
        not isinstance(sequences, list)
        or len(sequences) > 4
        or not all(isinstance(sequence, str) for sequence in sequences)
    ):
        raise api_error(400, "Invalid 'stop': expected a string or up to 4 strings.", param="stop")
    return tuple(sequences)


def _schema(given: Any, where: str, *, nested: bool) -> Mapping[str, Any] | None:
    kind = given.get("type") if isinstance(given, Mapping) else None
    if given is None or kind == "text":
        return None
    if kind == "json_object":
        return {}
    if kind != "json_schema":
        raise api_error(
            400, f"Invalid value for '{where}.type'.", code="invalid_value", param=f"{where}.type"
        )
    inner = given.get("json_schema") if nested else given
    where = f"{where}.json_schema" if nested else where
    if not isinstance(inner, Mapping) or not isinstance(inner.get("schema"), Mapping):
        raise api_error(
            400, f"Missing required parameter: '{where}.schema'.",
            code="missing_required_parameter", param=f"{where}.schema",
        )  # fmt: skip
    if not _SCHEMA_NAME.fullmatch(str(inner.get("name", ""))):
        raise api_error(
            400, f"Invalid '{where}.name': expected 1 to 64 of a-z, A-Z, 0-9, _ and -.",
            param=f"{where}.name",
        )  # fmt: skip
    schema: Mapping[str, Any] = inner["schema"]
    if (flaw := openai_flaw(schema, strict=inner.get("strict") is True)) is not None:
        name = inner["name"]
        raise api_error(400, f"Invalid schema for response_format '{name}': {flaw}", param=where)
    return schema


def with_chat_tools(request: GenerationRequest, body: Mapping[str, Any]) -> GenerationRequest:
    """Add tools and the other options of the answer to a parsed chat completion.

    Raises:
        ApiError: the API rejects the tools, the choice or the turns.
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
        reasoning=body.get("include_reasoning")
        is True,  # OpenRouter's parameter; OpenAI's chats have no reasoning
    )


def with_response_tools(request: GenerationRequest, body: Mapping[str, Any]) -> GenerationRequest:
    """Add tools and the other options of the answer to a parsed request of the Responses API."""
    items = body["input"] if isinstance(body.get("input"), list) else []
    _check_turns([_turn_of_item(item) for item in items], items)
    reasoning = body.get("reasoning")
    asked = "message.output_text.logprobs" in (body.get("include") or ())
    answered = bool(items) and items[-1].get("type") == "function_call_output"
    return evolve(
        request,
        input_tokens=request.input_tokens + _more_tokens(body, items),
        tools=_tools(body, answered, nested=False),
        draws=any(tool.get("type") == "image_generation" for tool in body.get("tools") or ()),
        logprobs=_alternatives(body) if asked else None,
        reasoning=isinstance(reasoning, Mapping) and bool(reasoning.get("summary")),
    )


def as_messages(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Convert the calls and results in a body of the Responses API to messages."""
    items = body.get("input")
    return {**body, "input": list(_tool_turns(items))} if isinstance(items, list) and items else body


def _tool_turns(items: list[Any]) -> Iterator[Any]:
    for item in items:
        kind = item.get("type") if isinstance(item, Mapping) else None
        if kind == "function_call":
            yield {"role": "assistant", "content": ""}
        elif kind == "function_call_output":
            yield {"role": "tool", "content": item.get("output")}
        elif kind != "reasoning":
            yield item


def _more_tokens(body: Mapping[str, Any], messages: list[Any]) -> int:
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
        raise api_error(400, f"Invalid value: '{choice}' is not a function in 'tools'.", param="tool_choice")
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
