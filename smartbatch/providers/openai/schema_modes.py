"""Sends a schema natively, in JSON mode, in the prompt alone, or as the only tool to call.

Strict mode is used if it can express the schema. The client validates the answer in every mode.

Source: OpenAI's guide on structured outputs, "Supported schemas" (November 2026).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from attrs import evolve, frozen

from smartbatch.errors import InvalidRequest
from smartbatch.providers.conversation import INSTRUCTIONS
from smartbatch.providers.schema_forms import (
    VALUES,
    Dialect,
    NotExpressible,
    in_dialect,
    once_per_schema,
    subschemas,
)
from smartbatch.types import WRAPPER_PROPERTY, Answer, Generation

STRICT = Dialect(
    keywords=frozenset({"pattern", "format", "multipleOf", "minimum", "maximum"})
    | {"exclusiveMinimum", "exclusiveMaximum", "minItems", "maxItems"},
    formats=frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}),
    all_required=True,
)
MAX_PROPERTIES = 5_000
MAX_LEVELS = 10
MAX_CHOICES = 1_000
MAX_CHARACTERS = 120_000  # in all names of properties and definitions and all enum values together


@frozen
class SentSchema:
    """A schema as it is sent. Its root is an object."""

    strict: bool  # the API enforces the schema
    schema: Mapping[str, Any]  # any other root becomes the property WRAPPER_PROPERTY


@once_per_schema
def sent_schema(schema: dict[str, Any]) -> SentSchema:
    """Rewrite a schema for strict mode if that mode can express it; otherwise return it unchanged."""
    try:
        form = in_dialect(schema, STRICT)
        root = form
        if set(form) <= {"$ref", "$defs"} and "$ref" in form:
            root = {**form["$defs"][form["$ref"].rpartition("/")[2]], "$defs": form["$defs"]}
        if root.get("type") != "object":
            definitions = {"$defs": form.pop("$defs")} if "$defs" in form else {}
            root = _wrapped(form) | definitions
        _check_size(root)
    except NotExpressible:
        return SentSchema(False, schema if _is_object(schema) else _wrapped(_moved(schema)))
    return SentSchema(True, root)


def _wrapped(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {WRAPPER_PROPERTY: schema},
        "required": [WRAPPER_PROPERTY],
        "additionalProperties": False,
    }


def _is_object(schema: Mapping[str, Any]) -> bool:
    target = str(schema.get("$ref"))
    definitions = {f"#/$defs/{name}": part for name, part in schema.get("$defs", {}).items()}
    return bool(definitions.get(target, schema).get("type") == "object")


def _moved(schema: Any) -> Any:
    """Rewrite a schema for use as a property: its references start from the new root."""
    if isinstance(schema, list):
        return [_moved(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    moved = {key: value if key in VALUES else _moved(value) for key, value in schema.items()}
    if isinstance(target := moved.get("$ref"), str) and target.startswith("#"):
        moved["$ref"] = f"#/properties/{WRAPPER_PROPERTY}{target[1:]}"
    return moved


def _check_size(form: Mapping[str, Any]) -> None:
    parts = [form, *_within(form)]
    names = [name for part in parts for key in ("properties", "$defs") for name in part.get(key, ())]
    choices = [value for part in parts for value in part.get("enum", ())]
    characters = sum(map(len, names)) + sum(len(value) for value in choices if isinstance(value, str))
    if (
        sum(len(part.get("properties", ())) for part in parts) > MAX_PROPERTIES
        or len(choices) > MAX_CHOICES
        or characters > MAX_CHARACTERS
        or _levels(form) > MAX_LEVELS
    ):
        raise NotExpressible("it is too large for strict mode")


def _within(form: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for part in subschemas(form):
        if isinstance(part, Mapping):
            yield part
            yield from _within(part)


def _levels(form: Mapping[str, Any]) -> int:
    inner = [part for part in subschemas(form) if isinstance(part, Mapping)]
    return ("properties" in form) + max(map(_levels, inner), default=0)


ANSWER_TOOL: Final = "structured_answer"  # the function that the model must call in the mode ``tool``

_SCHEMA_INSTRUCTION = (
    "Answer with one JSON value that follows this JSON schema, and with nothing else: no explanation and no "
    "code fence.\n"
)


def add_schema(body: dict[str, Any], schema: Mapping[str, Any], mode: str) -> None:
    """Add the schema to the body of a chat or a response.

    Args:
        body: has ``messages``, or the ``input`` of a response; changed in place.
        schema: a JSON schema.
        mode: ``json_schema``, ``json_object``, ``prompt`` or ``tool``.
    """
    sent = sent_schema(schema)
    chat = "messages" in body
    if mode == "tool":
        forced = {"name": ANSWER_TOOL}
        function = {
            **forced,
            "description": "Takes the whole answer.",
            "strict": sent.strict,
            "parameters": sent.schema,
        }
        body["tools"] = [{"type": "function", **({"function": function} if chat else function)}]
        body["tool_choice"] = {"type": "function", **({"function": forced} if chat else forced)}
        return
    if mode == "json_schema":
        named = {"name": "answer", "strict": sent.strict, "schema": sent.schema}
        form = {"type": "json_schema", **({"json_schema": named} if chat else named)}
    else:
        _instruct(body, _SCHEMA_INSTRUCTION + json.dumps(sent.schema, ensure_ascii=False))
        if mode == "prompt":
            return
        form = {"type": "json_object"}
    if chat:
        body["response_format"] = form
    else:
        body["text"] = {**(body.get("text") or {}), "format": form}


def form_of(body: Mapping[str, Any]) -> str | None:
    """Return the output format that a body requests; ``None`` if the model chooses the format."""
    form = body["response_format"] if "response_format" in body else (body.get("text") or {}).get("format")
    kind = form.get("type") if isinstance(form, Mapping) else None
    return kind if isinstance(kind, str) else None


def check_tool_mode(params: Generation) -> None:
    """Reject tools in the mode that uses a tool itself."""
    tools = params.tools or (params.extra or {}).get("tools")
    if params.schema is not None and params.schema_mode == "tool" and tools:
        raise InvalidRequest(
            "schema_mode='tool' forces a tool of its own; use another mode with tools",
            field="schema_mode",
        )


def read_tool_answer(answer: Answer) -> Answer:
    """If an answer calls only :data:`ANSWER_TOOL`, use the arguments as its text."""
    if len(answer.tool_calls) != 1 or answer.tool_calls[0].name != ANSWER_TOOL:
        return answer
    call = answer.tool_calls[0]
    text = (
        call.arguments_text or ""
        if call.arguments is None
        else json.dumps(call.arguments, ensure_ascii=False)
    )
    reason = "stop" if answer.finish_reason == "tool_calls" else answer.finish_reason
    return evolve(answer, text=text, tool_calls=(), finish_reason=reason)


def _instruct(body: dict[str, Any], text: str) -> None:
    if "messages" not in body:
        own = body.get("instructions")
        body["instructions"] = f"{own}\n\n{text}" if own else text
        return
    # some servers accept only one system message, in the first place
    first, *others = body["messages"]
    content = first.get("content")
    if first["role"] not in INSTRUCTIONS:
        body["messages"] = [{"role": "system", "content": text}, first, *others]
    elif isinstance(content, str):
        body["messages"] = [{**first, "content": f"{content}\n\n{text}"}, *others]
    else:
        body["messages"] = [{**first, "content": [*content, {"type": "text", "text": text}]}, *others]
