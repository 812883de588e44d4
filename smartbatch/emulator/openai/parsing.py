"""What OpenAI's real-time API accepts, and how it refuses the rest."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from attrs import frozen

from smartbatch.emulator.composed_answers import count_tokens

__all__ = ["Asked", "Refused", "error_body", "parse_body", "parse_chat", "parse_responses"]

_ROLES = frozenset({"developer", "system", "user", "assistant", "tool", "function"})
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_RANGES = (("temperature", 0, 2), ("top_p", 0, 1), ("frequency_penalty", -2, 2), ("presence_penalty", -2, 2))
_TIERS = ("auto", "default", "flex", "scale", "priority", "fast")
_COUNTS = (("max_tokens", 1), ("max_completion_tokens", 1), ("max_output_tokens", 1), ("n", 1))


class Refused(Exception):
    """A request the service answers with an error.

    Args:
        status: HTTP status.
        message: for people.
        code: for programs, may be ``None``.
        param: the field that is wrong, may be ``None``.
        type_: the service's class of the error.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        type_: str = "invalid_request_error",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = error_body(message, type_=type_, code=code, param=param)


def error_body(message: str, *, type_: str, code: str | None = None, param: str | None = None) -> bytes:
    """Return an error in the service's shape."""
    return json.dumps({"error": {"message": message, "type": type_, "param": param, "code": code}}).encode()


@frozen
class Asked:
    """A request that was understood.

    Attributes:
        model: its model.
        prompt: the text of the last user message (of the last message where no user speaks).
        input_tokens: of all messages.
        max_tokens: the output cap.
        stop: texts that end the output.
        choices: how many answers.
        form: a JSON schema; empty for any JSON object; ``None`` for text.
        stream: True when the answer is streamed.
        include_usage: True when the stream ends with the usage.
        tier: the tier of service.
    """

    model: str
    prompt: str
    input_tokens: int
    max_tokens: int | None
    stop: tuple[str, ...]
    choices: int
    form: Mapping[str, Any] | None
    stream: bool
    include_usage: bool
    tier: str = "default"

    @property
    def charge(self) -> int:
        """Tokens the limits charge at admission: the larger of the output cap and the prompt."""
        return max(self.max_tokens or 0, self.input_tokens)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_decoder = json.JSONDecoder(parse_constant=_no_constant)


def parse_body(body: bytes) -> dict[str, Any]:
    """Return the JSON object in a request's body, or raise :class:`Refused`."""
    try:
        found = _decoder.decode(body.decode())
    except (ValueError, RecursionError):
        raise Refused(400, "We could not parse the JSON body of your request.") from None
    if not isinstance(found, dict):
        raise Refused(400, "Invalid body: expected a JSON object.")
    return found


def parse_chat(body: Mapping[str, Any]) -> Asked:
    """Return what a chat completion asks for, or raise :class:`Refused`."""
    messages = _messages(body, "messages")
    options = body.get("stream_options")
    return _asked(
        body,
        messages,
        max_tokens=body.get("max_completion_tokens", body.get("max_tokens")),
        form=_form(body.get("response_format"), "response_format", nested=True),
        include_usage=isinstance(options, Mapping) and bool(options.get("include_usage")),
    )


def parse_responses(body: Mapping[str, Any]) -> Asked:
    """Return what a response asks for, or raise :class:`Refused`."""
    given = body.get("input")
    messages = [("user", given)] if isinstance(given, str) else _messages(body, "input")
    if isinstance(instructions := body.get("instructions"), str):
        messages.insert(0, ("developer", instructions))
    text = body.get("text")
    shape = text.get("format") if isinstance(text, Mapping) else None
    return _asked(
        body,
        messages,
        max_tokens=body.get("max_output_tokens"),
        form=_form(shape, "text.format", nested=False),
        include_usage=True,
    )


def _asked(
    body: Mapping[str, Any],
    messages: list[tuple[str, str]],
    *,
    max_tokens: int | None,
    form: Mapping[str, Any] | None,
    include_usage: bool,
) -> Asked:
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise Refused(400, "you must provide a model parameter", param="model")
    _check_numbers(body)
    try:
        tokens = sum(count_tokens(text) for _, text in messages if text) or 1
        model.encode()
    except UnicodeEncodeError:
        raise Refused(400, "Invalid body: a text holds half of a surrogate pair.") from None
    spoken = [text for role, text in messages if role == "user"]
    return Asked(
        model=model,
        prompt=spoken[-1] if spoken else messages[-1][1],
        input_tokens=tokens,
        max_tokens=max_tokens,
        stop=_stop(body.get("stop")),
        choices=body.get("n") or 1,
        form=form,
        stream=body.get("stream") is True,
        include_usage=include_usage,
        tier=_tier(body.get("service_tier")),
    )


def _messages(body: Mapping[str, Any], name: str) -> list[tuple[str, str]]:
    given = body.get(name)
    if given is None:
        raise Refused(
            400, f"Missing required parameter: '{name}'.", code="missing_required_parameter", param=name
        )
    if not isinstance(given, list):
        raise Refused(400, f"Invalid type for '{name}': expected an array.", code="invalid_type", param=name)
    if not given:
        raise Refused(
            400,
            f"Invalid '{name}': empty array. Expected an array with minimum length 1.",
            code="empty_array",
            param=name,
        )
    return [_message(item, f"{name}[{number}]") for number, item in enumerate(given)]


def _message(item: Any, where: str) -> tuple[str, str]:
    if not isinstance(item, Mapping):
        raise Refused(400, f"Invalid type for '{where}': expected an object.", param=where)
    role = item.get("role")
    if role not in _ROLES:
        names = ", ".join(sorted(_ROLES))
        raise Refused(
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
    raise Refused(
        400, f"Invalid type for '{where}.content': expected a string or an array.",
        code="invalid_type", param=f"{where}.content",
    )  # fmt: skip


def _check_numbers(body: Mapping[str, Any]) -> None:
    for name, low, high in _RANGES:
        value = body.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Refused(
                400, f"Invalid type for '{name}': expected a decimal.", code="invalid_type", param=name
            )
        if not low <= value <= high:
            side, bound = ("below minimum", f">= {low}") if value < low else ("above maximum", f"<= {high}")
            raise Refused(
                400,
                f"Invalid '{name}': decimal {side} value. Expected a value {bound}, but got {value} instead.",
                code=f"decimal_{side[:5]}_{side[6:9]}_value",
                param=name,
            )
    for name, least in _COUNTS:
        value = body.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise Refused(
                400, f"Invalid type for '{name}': expected an integer.", code="invalid_type", param=name
            )
        if value < least:
            raise Refused(
                400,
                f"Invalid '{name}': integer below minimum value. Expected a value >= {least}.",
                code="integer_below_min_value",
                param=name,
            )
    if (body.get("n") or 1) > 128:
        raise Refused(400, "Invalid 'n': integer above maximum value. Expected a value <= 128.", param="n")


def _tier(given: Any) -> str:
    """Return the tier that serves a request: what is left to the service, or unknown here, is the default."""
    if given is not None and given not in _TIERS:
        names = ", ".join(f"'{name}'" for name in _TIERS)
        raise Refused(
            400,
            f"Invalid value for 'service_tier'. Supported values are: {names}.",
            code="invalid_value",
            param="service_tier",
        )
    return "flex" if given == "flex" else "default"


def _stop(given: Any) -> tuple[str, ...]:
    if given is None:
        return ()
    marks = [given] if isinstance(given, str) else given
    if not isinstance(marks, list) or len(marks) > 4 or not all(isinstance(mark, str) for mark in marks):
        raise Refused(400, "Invalid 'stop': expected a string or up to 4 strings.", param="stop")
    return tuple(marks)


def _form(given: Any, where: str, *, nested: bool) -> Mapping[str, Any] | None:
    kind = given.get("type") if isinstance(given, Mapping) else None
    if given is None or kind == "text":
        return None
    if kind == "json_object":
        return {}
    if kind != "json_schema":
        raise Refused(400, f"Invalid value for '{where}.type'.", code="invalid_value", param=f"{where}.type")
    inner = given.get("json_schema") if nested else given
    where = f"{where}.json_schema" if nested else where
    if not isinstance(inner, Mapping) or not isinstance(inner.get("schema"), Mapping):
        raise Refused(
            400, f"Missing required parameter: '{where}.schema'.",
            code="missing_required_parameter", param=f"{where}.schema",
        )  # fmt: skip
    if not _NAME.fullmatch(str(inner.get("name", ""))):
        raise Refused(
            400, f"Invalid '{where}.name': expected 1 to 64 of a-z, A-Z, 0-9, _ and -.",
            param=f"{where}.name",
        )  # fmt: skip
    schema: Mapping[str, Any] = inner["schema"]
    return schema
