"""Parsing of Anthropic's messages, and the errors for invalid ones.

Source: the types of the ``anthropic`` SDK 2.11 and Anthropic's API reference of October 2026.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve

from smartbatch.emulator.composed_answers import NAME, OfferedTools, ToolTurn, count_tokens, flaw_of
from smartbatch.emulator.http.head import Head
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
    text_file,
    tokens_by_kind,
    uploaded_file,
)
from smartbatch.emulator.schema_rules import anthropic_flaw

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
_VERSIONS = ("2026-10-21", "2023-06-01")
FILES_BETA = "files-api-2025-04-14"
_SAMPLING = ("temperature", "top_p", "top_k")
_FIELDS = frozenset(
    {
        *("model", "messages", "max_tokens", "prefill", "cache_control", "container", "diagnostics"),
        *("inference_geo", "metadata", "output_config", "service_tier", "speed", "stop_sequences"),
        *("stream", "system", "thinking", "tool_choice", "tools"),
    }
)
_MAX_MESSAGES = 100_000


def error_body(status: int, message: str, code: str | None = None) -> bytes:
    error: dict[str, Any] = {"type": _TYPES.get(status, "api_error"), "message": message}
    if code is not None:
        error["details"] = {"error_code": code}
    return json.dumps({"type": "error", "error": error, "request_id": None}).encode()


def api_error(status: int, message: str, code: str | None = None) -> ApiError:
    return ApiError(status, message, error_body(status, message, code))


def parse_body(body: bytes) -> dict[str, Any]:
    try:
        return decode_object(body)
    except MalformedBody:
        raise api_error(400, "The request body is not valid JSON") from None


def check_version(head: Head) -> str:
    """Return the API version named by a request.

    Raises:
        ApiError: the header is missing, or the version is unknown.
    """
    version = head.headers.get("anthropic-version")
    if version is None:
        raise api_error(400, "anthropic-version: header is required")
    if version not in _VERSIONS:
        raise api_error(400, f'anthropic-version: "{version}" is not a valid version.')
    return version


def has_files(head: Head) -> bool:
    """Whether requests may refer to uploaded files: with version 2023-06-01 only as a beta feature."""
    named = head.headers.get("anthropic-beta", "").replace(" ", "").split(",")
    return FILES_BETA in named or head.headers.get("anthropic-version") != _VERSIONS[1]


def parse_messages(
    head: Head, body: Mapping[str, Any], find: FindUpload, *, counting: bool = False
) -> GenerationRequest:
    """Parse a request for a message or for a count of tokens.

    Args:
        head: names the version, which decides whether sampling parameters are known, and beta features.
        find: finds uploaded files.
        counting: True for a count of tokens, which needs no output limit.

    Raises:
        ApiError: the API does not accept the request.
    """
    _check_fields(body, check_version(head))
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise api_error(400, "model: Field required")
    max_tokens = body.get("max_tokens")
    if max_tokens is None and not counting:
        raise api_error(400, "max_tokens: Field required")
    if max_tokens is not None and (type(max_tokens) is not int or max_tokens < 0):
        raise api_error(400, "max_tokens: Input should be a valid integer of 0 or more")
    messages = _messages(body)
    try:
        prompt, tokens = measure_prompt(model, messages, _system(body))
    except UnicodeEncodeError:
        raise api_error(400, "The request body is not valid JSON: no low surrogate in string") from None
    files = tuple(_files(body["messages"], "messages", find if has_files(head) else None))
    if (excess := excess_of(files, _RULES)) is not None:
        message = _EXCESSES[excess.limit].format(excess.where, excess.found, excess.most)
        raise api_error(413 if excess.limit == "request_bytes" else 400, message)
    counted = tokens_by_kind(model, files)
    return GenerationRequest(
        model=model,
        prompt=prompt,
        input_tokens=tokens + counted.total(),
        file_tokens=counted,
        max_tokens=max_tokens,
        stop=_stop(body.get("stop_sequences")),
        choices=1,
        schema=asked_schema(_schema(body.get("output_config")), _system(body)),
        stream=body.get("stream") is True and not counting,
        include_usage=True,
        files=files,
    )


def _check_fields(body: Mapping[str, Any], version: str) -> None:
    known = _FIELDS if version == _VERSIONS[0] else _FIELDS.union(_SAMPLING)
    for name in body:
        if name not in known:
            raise api_error(400, f"{name}: Extra inputs are not permitted")
    for name in ("temperature", "top_p"):
        value = body.get(name)
        if value is not None and (type(value) not in (int, float) or not 0 <= value <= 1):
            raise api_error(400, f"{name}: range: 0..1")


def _messages(body: Mapping[str, Any]) -> list[tuple[str, str]]:
    given = body.get("messages")
    if given is None:
        raise api_error(400, "messages: Field required")
    if not isinstance(given, list):
        raise api_error(400, "messages: Input should be a valid list")
    if not given:
        raise api_error(400, "messages: at least one message is required")
    if len(given) > _MAX_MESSAGES:
        raise api_error(400, f"messages: at most {_MAX_MESSAGES} messages are allowed")
    return [_message(item, f"messages.{number}") for number, item in enumerate(given)]


def _message(item: Any, where: str) -> tuple[str, str]:
    if not isinstance(item, Mapping):
        raise api_error(400, f"{where}: Input should be a valid dictionary")
    role = item.get("role")
    if role not in ("user", "assistant"):
        hint = ". The Messages API accepts a top-level `system` parameter" if role == "system" else ""
        raise api_error(400, f'{where}.role: Unexpected role "{role}"{hint}')
    return str(role), _text(item.get("content"), f"{where}.content")


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise api_error(400, f"{where}: Input should be a valid string or list")
    for number, part in enumerate(content):
        if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
            raise api_error(400, f"{where}.{number}.type: Field required")
    texts = [part.get("text") for part in content]
    return "".join(text for text in texts if isinstance(text, str))


# Anthropic's guide to vision of November 2026, and its errors as users report them
_RULES = FileRules(image_bytes=10 * 2**20, request_bytes=32 * 2**20, images=600, side=8000, many=(20, 2000))
_EXCESSES = {
    "image_bytes": "{0}.source.base64: image exceeds 10 MB maximum: {1} bytes > {2} bytes",
    "request_bytes": "Request exceeds the maximum size",
    "images": "messages: {1} images, more than the maximum of {2}",
    "side": "{0}.source: At least one of the image dimensions exceed max allowed size: {2} pixels",
    "many": (
        "{0}.source: At least one of the image dimensions exceed max allowed size for many-image requests: "
        "{2} pixels"
    ),
}
_BLOCKS = frozenset(
    {
        *("text", "image", "document", "search_result", "thinking", "redacted_thinking", "tool_use"),
        *("tool_result", "server_tool_use", "container_upload"),
    }
)
_IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")


def _files(items: Sequence[Any], where: str, find: FindUpload | None) -> Iterator[PromptFile]:
    """Yield all files, and check the types of all blocks.

    Args:
        find: finds uploaded files; ``None`` if the request may not refer to any.
    """
    for number, item in enumerate(items):
        content = item.get("content")
        for place, block in enumerate(content if isinstance(content, list) else ()):
            field = f"{where}.{number}.content.{place}"
            kind = block["type"]
            if kind not in _BLOCKS and not kind.endswith("_tool_result"):
                raise api_error(400, f"{field}: Input tag '{kind}' found using 'type' does not match")
            if kind == "tool_result":
                yield from _files([block], field, find)
            source = block.get("source") if kind in ("image", "document") else None
            if not isinstance(source, Mapping):
                continue
            accepted = _IMAGE_TYPES if kind == "image" else ("application/pdf", "text/plain")
            if source.get("type") == "file":
                yield _uploaded(source.get("file_id"), accepted, f"{field}.{kind}.source", find)
            if source.get("type") not in ("base64", "text"):
                continue
            if source.get("media_type") not in accepted:
                names = ", ".join(accepted)
                raise api_error(400, f"{field}.source.media_type: Input should be {names}")
            if source["type"] == "text":
                yield text_file(field, str(source.get("data")))
                continue
            try:
                yield file_of_base64(f"{field}.{kind}", source.get("data"))
            except ValueError:
                raise api_error(400, f"{field}.source.base64: invalid base64 data") from None


def _uploaded(file_id: Any, accepted: Sequence[str], field: str, find: FindUpload | None) -> PromptFile:
    if find is None:
        tags = "the expected tags: 'base64', 'text', 'url'"
        raise api_error(400, f"{field}: Input tag 'file' found using 'type' does not match any of {tags}")
    if not isinstance(file_id, str):
        raise api_error(400, f"{field}.file.file_id: Field required")
    try:
        file = find(file_id)
    except UploadGone as gone:
        code = "file_expired" if gone.expired else None
        raise api_error(404, f"File not found: {file_id}", code) from None
    if file.purpose not in accepted:
        raise api_error(400, f"{field}.file: the file {file_id} is {file.purpose}, not {', '.join(accepted)}")
    return uploaded_file(field, file.data)


def _system(body: Mapping[str, Any]) -> list[str]:
    given = body.get("system")
    return [] if given is None else [_text(given, "system")]


def _stop(given: Any) -> tuple[str, ...]:
    if given is None:
        return ()
    if not isinstance(given, list) or not all(isinstance(sequence, str) for sequence in given):
        raise api_error(400, "stop_sequences: Input should be a valid list of strings")
    if any(not sequence.strip() for sequence in given):
        raise api_error(400, "stop_sequences: each stop sequence must contain non-whitespace")
    return tuple(given)


def _schema(config: Any) -> Mapping[str, Any] | None:
    if config is None:
        return None
    if not isinstance(config, Mapping):
        raise api_error(400, "output_config: Input should be a valid dictionary")
    output_format = config.get("format")
    if output_format is None:
        return None
    if not isinstance(output_format, Mapping) or output_format.get("type") != "json_schema":
        raise api_error(400, "output_config.format.type: Input should be 'json_schema'")
    schema = output_format.get("schema")
    if not isinstance(schema, Mapping):
        raise api_error(400, "output_config.format.schema: Field required")
    if (flaw := anthropic_flaw(schema)) is not None:
        raise api_error(400, f"output_config.format.schema: {flaw}")
    return schema


def with_tools(request: GenerationRequest, body: Mapping[str, Any]) -> GenerationRequest:
    """Add tools and thinking to a parsed request.

    Raises:
        ApiError: the API rejects the tools, the choice or the turns.
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
        _name(tool, place): _input_schema(tool, place)
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


def _input_schema(tool: Mapping[str, Any], place: int) -> Mapping[str, Any]:
    schema = tool.get("input_schema")
    if not isinstance(schema, Mapping) or schema.get("type") != "object":
        raise api_error(400, f"tools.{place}.custom.input_schema.type: Field required")
    if tool.get("strict") and (flaw := anthropic_flaw(schema)) is not None:
        raise api_error(400, f"tools.{place}.custom: {flaw}")
    return schema
