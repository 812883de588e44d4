"""What Anthropic's Messages API accepts, and how it refuses the rest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from attrs import frozen

from smartbatch.emulator.composed_answers import count_tokens
from smartbatch.emulator.http.head import Head
from smartbatch.emulator.openai.parsing import Asked, Refused

__all__ = ["Asking", "error_body", "parse_messages", "refused", "version_of"]

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
_SAMPLING = ("temperature", "top_p", "top_k")
_FIELDS = frozenset(
    {
        *("model", "messages", "max_tokens", "prefill", "cache_control", "container", "diagnostics"),
        *("inference_geo", "metadata", "output_config", "service_tier", "speed", "stop_sequences"),
        *("stream", "system", "thinking", "tool_choice", "tools"),
    }
)
_MOST_MESSAGES = 100_000


@frozen
class Asking:
    """A request that was understood.

    Attributes:
        asked: what every API asks for.
        version: the API version it was sent under.
    """

    asked: Asked
    version: str


def error_body(status: int, message: str, code: str | None = None) -> bytes:
    """Return an error in the service's shape."""
    error: dict[str, Any] = {"type": _TYPES.get(status, "api_error"), "message": message}
    if code is not None:
        error["details"] = {"error_code": code}
    return json.dumps({"type": "error", "error": error, "request_id": None}).encode()


def refused(status: int, message: str) -> Refused:
    """Return a refusal in the service's shape."""
    found = Refused(status, message)
    found.body = error_body(status, message)
    return found


def version_of(head: Head) -> str:
    """Return the API version of a request, or raise :class:`Refused`."""
    version = head.headers.get("anthropic-version")
    if version is None:
        raise refused(400, "anthropic-version: header is required")
    if version not in _VERSIONS:
        raise refused(400, f'anthropic-version: "{version}" is not a valid version.')
    return version


def parse_messages(head: Head, body: Mapping[str, Any], *, counting: bool = False) -> Asking:
    """Return what a request asks for.

    Args:
        head: has the version, which decides whether sampling parameters are known.
        body: the decoded body.
        counting: for a count of tokens, which needs no output cap.

    Raises:
        Refused: for what the service does not take.
    """
    version = version_of(head)
    _check_fields(body, version)
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise refused(400, "model: Field required")
    most = body.get("max_tokens")
    if most is None and not counting:
        raise refused(400, "max_tokens: Field required")
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 0):
        raise refused(400, "max_tokens: Input should be a valid integer of 0 or more")
    messages = _messages(body)
    texts = [*_system(body), *(text for _, text in messages)]
    try:
        tokens = sum(count_tokens(text) for text in texts if text) or 1
        model.encode()
    except UnicodeEncodeError:
        raise refused(400, "The request body is not valid JSON: no low surrogate in string") from None
    spoken = [text for role, text in messages if role == "user"]
    asked = Asked(
        model=model,
        prompt=spoken[-1] if spoken else messages[-1][1],
        input_tokens=tokens,
        max_tokens=most,
        stop=_stop(body.get("stop_sequences")),
        choices=1,
        form=_form(body.get("output_config")),
        stream=body.get("stream") is True and not counting,
        include_usage=True,
    )
    return Asking(asked, version)


def _check_fields(body: Mapping[str, Any], version: str) -> None:
    known = _FIELDS if version == _VERSIONS[0] else _FIELDS.union(_SAMPLING)
    for name in body:
        if name not in known:
            raise refused(400, f"{name}: Extra inputs are not permitted")
    for name in ("temperature", "top_p"):
        value = body.get(name)
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1
        ):
            raise refused(400, f"{name}: range: 0..1")


def _messages(body: Mapping[str, Any]) -> list[tuple[str, str]]:
    given = body.get("messages")
    if given is None:
        raise refused(400, "messages: Field required")
    if not isinstance(given, list):
        raise refused(400, "messages: Input should be a valid list")
    if not given:
        raise refused(400, "messages: at least one message is required")
    if len(given) > _MOST_MESSAGES:
        raise refused(400, f"messages: at most {_MOST_MESSAGES} messages are allowed")
    return [_message(item, f"messages.{number}") for number, item in enumerate(given)]


def _message(item: Any, where: str) -> tuple[str, str]:
    if not isinstance(item, Mapping):
        raise refused(400, f"{where}: Input should be a valid dictionary")
    role = item.get("role")
    if role not in ("user", "assistant"):
        hint = ". The Messages API accepts a top-level `system` parameter" if role == "system" else ""
        raise refused(400, f'{where}.role: Unexpected role "{role}"{hint}')
    return str(role), _text(item.get("content"), f"{where}.content")


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise refused(400, f"{where}: Input should be a valid string or list")
    for number, part in enumerate(content):
        if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
            raise refused(400, f"{where}.{number}.type: Field required")
    texts = [part.get("text") for part in content]
    return "".join(text for text in texts if isinstance(text, str))


def _system(body: Mapping[str, Any]) -> list[str]:
    given = body.get("system")
    return [] if given is None else [_text(given, "system")]


def _stop(given: Any) -> tuple[str, ...]:
    if given is None:
        return ()
    if not isinstance(given, list) or not all(isinstance(mark, str) for mark in given):
        raise refused(400, "stop_sequences: Input should be a valid list of strings")
    if any(not mark.strip() for mark in given):
        raise refused(400, "stop_sequences: each stop sequence must contain non-whitespace")
    return tuple(given)


def _form(config: Any) -> Mapping[str, Any] | None:
    if config is None:
        return None
    if not isinstance(config, Mapping):
        raise refused(400, "output_config: Input should be a valid dictionary")
    form = config.get("format")
    if form is None:
        return None
    if not isinstance(form, Mapping) or form.get("type") != "json_schema":
        raise refused(400, "output_config.format.type: Input should be 'json_schema'")
    schema = form.get("schema")
    if not isinstance(schema, Mapping):
        raise refused(400, "output_config.format.schema: Field required")
    return schema
