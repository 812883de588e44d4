"""JSON schemas as OpenAI takes them: in strict mode where a schema can be written so, otherwise without.

Source: OpenAI's guide on structured outputs, "Supported schemas", of November 2026.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from attrs import frozen

from smartbatch.providers.schema_forms import VALUES, Dialect, NotExpressible, in_dialect, subschemas
from smartbatch.types import WRAPPED

STRICT = Dialect(
    keywords=frozenset({"pattern", "format", "multipleOf", "minimum", "maximum"})
    | {"exclusiveMinimum", "exclusiveMaximum", "minItems", "maxItems"},
    formats=frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}),
    all_required=True,
)
MAX_PROPERTIES = 5_000
MAX_LEVELS = 10
MAX_CHOICES = 1_000
MAX_CHARACTERS = 120_000
"""Of the names of properties and definitions and of the values of choices, in all."""


@frozen
class SentSchema:
    """A schema as it is sent.

    Attributes:
        strict: whether the API enforces it.
        schema: its root is an object. A schema with another root is the property :data:`WRAPPED` of it.
    """

    strict: bool
    schema: Mapping[str, Any]


def sent_schema(schema: Mapping[str, Any]) -> SentSchema:
    """Return a schema as it is sent: in strict mode where that mode can express it, otherwise as it is."""
    return _sent(json.dumps(schema))


@lru_cache(maxsize=256)  # the requests of a client have the same schema
def _sent(text: str) -> SentSchema:
    schema = json.loads(text)
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
        return SentSchema(False, schema if _is_object(schema, schema) else _wrapped(_moved(schema)))
    return SentSchema(True, root)


def _wrapped(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {WRAPPED: schema},
        "required": [WRAPPED],
        "additionalProperties": False,
    }


def _is_object(schema: Mapping[str, Any], root: Mapping[str, Any]) -> bool:
    target = str(schema.get("$ref"))
    if target in ("#/$defs/" + name for name in root.get("$defs", ())):
        return bool(root["$defs"][target.removeprefix("#/$defs/")].get("type") == "object")
    return schema.get("type") == "object"


def _moved(schema: Any) -> Any:
    """Return a schema that becomes a part of another one: its references lead from the new root."""
    if isinstance(schema, list):
        return [_moved(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    moved = {key: value if key in VALUES else _moved(value) for key, value in schema.items()}
    if isinstance(target := moved.get("$ref"), str) and target.startswith("#"):
        moved["$ref"] = f"#/properties/{WRAPPED}{target[1:]}"
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
        raise NotExpressible("it is larger than strict mode takes")


def _within(form: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for part in subschemas(form):
        if isinstance(part, Mapping):
            yield part
            yield from _within(part)


def _levels(form: Mapping[str, Any]) -> int:
    inner = [part for part in subschemas(form) if isinstance(part, Mapping)]
    return ("properties" in form) + max(map(_levels, inner), default=0)
