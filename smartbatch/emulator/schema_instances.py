"""A value that follows a JSON schema: the same value for the same schema and seed text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from fractions import Fraction
from math import ceil, floor, isfinite
from typing import Any

_DEPTH = 16  # recursive schemas end here
_SIZE = 10_000  # and so do those that branch while they recurse

_FORMATS = {
    "binary": "bytes",
    "date": "2026-01-01",
    "date-time": "2026-01-01T00:00:00Z",
    "duration": "PT1S",
    "time": "00:00:00Z",
    "email": "someone@example.org",
    "uri": "https://example.org/",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "hostname": "example.org",
    "uri-reference": "/a",
    "json-string": "1",
}

_TOLD = (
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength"),
    *("minItems", "maxItems", "uniqueItems", "minProperties", "prefixItems", "enum"),
)
_decoder = json.JSONDecoder()


def _told(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords in a description, which an adapter put there for the model to read."""
    description = schema.get("description")
    found: dict[str, Any] = {}
    if isinstance(description, str) and description.endswith("}"):
        text = description[description.rfind("\n\n") + 2 :] if "\n\n" in description else description
        for word in _TOLD:
            at = max(text.find(f"{{{word}: "), text.find(f", {word}: "))
            if at >= 0:
                with suppress(ValueError):
                    found[word] = _decoder.raw_decode(text, text.index(": ", at) + 2)[0]
        at = max(text.find("{format: "), text.find(", format: "))
        if at >= 0:
            rest = text[text.index(": ", at) + 2 : -1]
            found["format"] = rest.partition(",")[0]
    return found


def instance(schema: Mapping[str, Any], text: str) -> Any:
    """Return a value that follows ``schema``.

    Objects get all their properties, strings get ``text``, choices are drawn by a digest of ``text``.
    Regular expressions (``pattern``) are not followed; keywords that an adapter moved into a description are.
    """
    return _Builder(schema, text).value(schema, 0)


class _Builder:
    def __init__(self, root: Mapping[str, Any], text: str) -> None:
        self._root = root
        self._text = text
        self._size = 0
        self._uniform = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")

    def value(self, schema: Any, depth: int) -> Any:
        self._size += 1
        if not isinstance(schema, Mapping) or depth > _DEPTH or self._size > _SIZE:
            return None
        if isinstance(ref := schema.get("$ref"), str):
            return self.value(self._resolve(ref), depth + 1)
        schema = {**_told(schema), **schema}
        if "const" in schema:
            return schema["const"]
        choices = schema.get("enum")
        if isinstance(choices, list) and choices:
            return choices[self._uniform % len(choices)]
        for word in ("anyOf", "oneOf", "allOf"):
            branches = schema.get(word)
            if isinstance(branches, list) and branches:
                # Deep in a recursion the last branch is taken: by custom it is the one that ends it.
                return self.value(branches[0 if depth < _DEPTH // 2 else -1], depth + 1)
        return self._typed(schema, depth)

    def _typed(self, schema: Mapping[str, Any], depth: int) -> Any:
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = next((k for k in kind if k != "null"), "null")
        if kind is None:
            kind = "object" if "properties" in schema else "array" if "items" in schema else "string"
        match kind:
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "string":
                return self._string(schema)
            case "integer" | "number":
                number = _number_within({**schema, "type": kind}, 0)
                return number if kind == "integer" else float(number)
            case "boolean":
                return self._uniform % 2 == 0
        return None

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties = schema.get("properties")
        if not isinstance(properties, Mapping):
            properties = {}
        required = schema.get("required")
        names = list(properties)
        if depth >= _DEPTH // 2 and isinstance(required, list):
            names = [name for name in names if name in required or _ends(properties[name])]
        if not names and (least := int(schema.get("minProperties", 0))):
            further = schema.get("additionalProperties", {})
            return {str(i): self.value(further, depth + 1) for i in range(min(least, 1000))}
        return {name: self.value(properties.get(name, {}), depth + 1) for name in names}

    def _array(self, schema: Mapping[str, Any], depth: int) -> list[Any]:
        first = schema.get("prefixItems")
        items = [self.value(part, depth + 1) for part in first] if isinstance(first, list) else []
        least = int(schema.get("minItems", 0 if depth > _DEPTH // 2 or items else 1))
        least = min(least, int(schema.get("maxItems", least)), 1000)
        for i in range(len(items), least):
            item = self.value(schema.get("items", {}), depth + 1)
            items.append(_another(item, i) if schema.get("uniqueItems") else item)
        return items

    def _string(self, schema: Mapping[str, Any]) -> str:
        text = _FORMATS.get(str(schema.get("format")), self._text)
        text = text.ljust(min(int(schema.get("minLength", 0)), 100_000), ".")
        most = schema.get("maxLength")
        return text if most is None else text[: int(most)]

    def _resolve(self, ref: str) -> Any:
        found: Any = self._root
        for part in ref.removeprefix("#").split("/"):
            if part:
                found = (
                    found.get(part.replace("~1", "/").replace("~0", "~"))
                    if isinstance(found, Mapping)
                    else None
                )
        return found


def _ends(schema: Any) -> bool:
    """Whether a value of a schema has no parts of its own kind where a recursion ends."""
    if not isinstance(schema, Mapping):
        return False
    branches = schema.get("anyOf")
    last = branches[-1] if isinstance(branches, list) and branches else schema
    return isinstance(last, Mapping) and last.get("type") in ("array", "null") and not last.get("minItems")


def _another(item: Any, position: int) -> Any:
    """Return an item that differs from those before it, as far as its type allows."""
    if isinstance(item, str):
        return f"{item}{position}" if position else item
    return item + position if isinstance(item, int | float) and not isinstance(item, bool) else item


def _number_within(schema: Mapping[str, Any], usual: int) -> int | float:
    """Return a number of the type, bounds and step of a schema: the least, or ``usual`` where that is none.

    Where its bounds leave no number, any is returned.
    """
    step = _exact(schema.get("multipleOf"))
    if schema.get("type") == "integer":
        step = Fraction(step.numerator if step else 1)  # what is whole of the multiples of p/q
    low, above = _exact(schema.get("minimum")), _exact(schema.get("exclusiveMinimum"))
    high, below = _exact(schema.get("maximum")), _exact(schema.get("exclusiveMaximum"))
    least = max((bound for bound in (low, above) if bound is not None), default=None)
    most = min((bound for bound in (high, below) if bound is not None), default=None)
    wanted = [] if least is None else [least, least + (step or 1)]
    wanted.append(Fraction(usual))
    wanted += [] if most is None else [most, most - (step or 1)]
    wanted += [] if least is None or most is None else [(least + most) / 2]
    numbers = [
        number
        for each in wanted
        for number in ((ceil(each / step) * step, floor(each / step) * step) if step else (each,))
    ]
    fitting = (
        number
        for number in numbers
        if (least is None or number >= least)
        and (most is None or number <= most)
        and number not in (above, below)
    )
    found = next(fitting, numbers[0])
    return found.numerator if found.denominator == 1 else float(found)


def _exact(number: Any) -> Fraction | None:
    """Return a number of a schema as it is written: 0.1 is a tenth. ``None`` for anything else."""
    if isinstance(number, int) and not isinstance(number, bool):
        return Fraction(number)
    return Fraction(repr(number)) if isinstance(number, float) and isfinite(number) else None
