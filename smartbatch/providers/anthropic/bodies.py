"""Request bodies of Anthropic's Messages API, as plain dictionaries; nothing is sent here.

Source of the fields: the types of the ``anthropic`` SDK 2.11 and Anthropic's API reference of October 2026.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smartbatch.errors import InvalidRequest
from smartbatch.providers.anthropic.schema_dialect import sent_schema
from smartbatch.providers.conversation import INSTRUCTIONS, check_extra, check_format, check_roles, content_of
from smartbatch.providers.schema_forms import instruction
from smartbatch.types import Generation, Message, Request

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
    if params.schema is not None and (schema := sent_schema(params.schema)) is not None:
        form = {"type": "json_schema", "schema": schema}
        body["output_config"] = {**(body.get("output_config") or {}), "format": form}
    return body, dropped


def check_request(request: Request, version: str) -> None:
    """Refuse what the API cannot take, or what would change the shape of the answer; names the field."""
    _check_params(request.params, version)
    check_roles(request.prompt, "Anthropic")
    if "system" in (request.params.extra or {}) and _conversation(request)[0]:
        raise InvalidRequest("system is set twice, by the request and in extra", field="extra")


def _check_params(params: Generation, version: str) -> None:
    if params.response_format is not None:
        raise InvalidRequest("Anthropic has no response_format; use schema", field="response_format")
    check_extra(params.extra or {}, _RESERVED)
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
            messages.append({"role": message.role, "content": content_of(message)})
    if params.schema is not None and sent_schema(params.schema) is None:
        instructions.append(instruction(params.schema))
    return _joined(instructions), messages


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
