"""Parsing of OpenAI's generation requests, and the errors for what the API does not accept.

Source: the types of the ``openai`` SDK and OpenAI's API reference of November 2026.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from smartbatch.emulator.parsed_requests import (
    ApiError,
    GenerationRequest,
    MalformedBody,
    asked_schema,
    decode_object,
    measure_prompt,
)
from smartbatch.emulator.schema_rules import openai_flaw

_ROLES = frozenset({"developer", "system", "user", "assistant", "tool", "function"})
_SCHEMA_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_RANGES = (("temperature", 0, 2), ("top_p", 0, 1), ("frequency_penalty", -2, 2), ("presence_penalty", -2, 2))
_TIERS = ("auto", "default", "flex", "scale", "priority", "fast")
_COUNTS = (("max_tokens", 1), ("max_completion_tokens", 1), ("max_output_tokens", 1), ("n", 1))
_MAX_CHOICES = 128


def api_error(
    status: int,
    message: str,
    *,
    code: str | None = None,
    param: str | None = None,
    type_: str = "invalid_request_error",
) -> ApiError:
    """Return an error in OpenAI's shape.

    Args:
        status: HTTP status.
        message: for people.
        code: for programs; ``None`` without one.
        param: the invalid field; ``None`` when there is no single one.
        type_: OpenAI's class of the error.
    """
    return ApiError(status, message, error_body(message, type_=type_, code=code, param=param))


def error_body(message: str, *, type_: str, code: str | None = None, param: str | None = None) -> bytes:
    """Return the body of an error in OpenAI's shape."""
    return json.dumps({"error": {"message": message, "type": type_, "param": param, "code": code}}).encode()


def parse_body(body: bytes) -> dict[str, Any]:
    """Return the JSON object in a request's body, or raise :class:`ApiError`."""
    try:
        return decode_object(body)
    except MalformedBody as error:
        raise api_error(400, str(error)) from None


def check_rejected(body: Mapping[str, Any], rejects: Collection[str]) -> None:
    """Refuse a body as a server that lacks some parameters does.

    Args:
        body: decoded.
        rejects: names of parameters, and of types of ``response_format``.

    Raises:
        ApiError: 400, by the parameter's name.
    """
    for name in body:
        if name in rejects:
            message = f"Unsupported parameter: '{name}' is not supported by this server."
            raise api_error(400, message, code="unsupported_parameter", param=name)
    form = body.get("response_format")
    if isinstance(form, Mapping) and form.get("type") in rejects:
        raise api_error(400, f"This response_format type is unavailable now: {form['type']}")


def parse_chat(body: Mapping[str, Any]) -> GenerationRequest:
    """Parse a chat completion, or raise :class:`ApiError`."""
    messages = _messages(body, "messages")
    options = body.get("stream_options")
    return _generation(
        body,
        messages,
        max_tokens=body.get("max_completion_tokens", body.get("max_tokens")),
        schema=_schema(body.get("response_format"), "response_format", nested=True),
        include_usage=isinstance(options, Mapping) and bool(options.get("include_usage")),
    )


def parse_responses(body: Mapping[str, Any]) -> GenerationRequest:
    """Parse a request of the Responses API, or raise :class:`ApiError`."""
    given = body.get("input")
    messages = [("user", given)] if isinstance(given, str) else _messages(body, "input")
    if isinstance(instructions := body.get("instructions"), str):
        messages.insert(0, ("developer", instructions))
    text = body.get("text")
    text_format = text.get("format") if isinstance(text, Mapping) else None
    return _generation(
        body,
        messages,
        max_tokens=body.get("max_output_tokens"),
        schema=_schema(text_format, "text.format", nested=False),
        include_usage=True,
    )


def _generation(
    body: Mapping[str, Any],
    messages: list[tuple[str, str]],
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
        raise api_error(400, "Invalid body: a text holds half of a surrogate pair.") from None
    return GenerationRequest(
        model=model,
        prompt=prompt,
        input_tokens=tokens,
        max_tokens=max_tokens,
        stop=_stop(body.get("stop")),
        choices=body.get("n") or 1,
        schema=asked_schema(schema, [text for role, text in messages if role == "system"]),
        stream=body.get("stream") is True,
        include_usage=include_usage,
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
    """Return the service tier: ``flex``, or ``default`` for all others the API knows."""
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
