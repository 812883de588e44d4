"""The rules by which the services reject schemas, according to their documentation of November 2026.

Written from the documentation, not from the adapters, so that mistakes in the adapters are detected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

Path: TypeAlias = tuple[str, ...]
Rule: TypeAlias = "Callable[[Mapping[str, Any], Path], str | None]"

_NAMED = ("properties", "$defs", "definitions", "patternProperties")
_DATA = ("enum", "const", "default", "examples")
_COMMON_KEYWORDS = frozenset({"type", "title", "description", "enum", "anyOf", "$ref", "$defs"}) | {
    *("properties", "required", "additionalProperties", "items", "minItems"),
}
_OPENAI_KEYWORDS = _COMMON_KEYWORDS | {
    *("const", "maxItems", "pattern", "format", "multipleOf", "definitions"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
}
_OPENAI_FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid")
_ANTHROPIC_KEYWORDS = _COMMON_KEYWORDS | {"const", "allOf", "default", "format", "definitions"}
_ANTHROPIC_FORMATS = (*_OPENAI_FORMATS, "uri")
_GEMINI_KEYWORDS = _COMMON_KEYWORDS | {
    *("$id", "$anchor", "format", "prefixItems", "maxItems", "minimum", "maximum", "oneOf"),
    "propertyOrdering",
}


def openai_flaw(schema: Mapping[str, Any], *, strict: bool) -> str | None:
    if schema.get("type") != "object" or "anyOf" in schema:
        kind = schema.get("type", "None")
        return f"schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{kind}\"'."
    if not strict:
        return None
    if _levels(schema) > 10:
        return "the schema has more than 10 levels of nesting."
    if sum(len(part.get("properties", ())) for part, _ in _parts(schema, ())) > 5_000:
        return "the schema has more than 5000 properties."
    if sum(len(part.get("enum", ())) for part, _ in _parts(schema, ())) > 1_000:
        return "the schema has more than 1000 enum values."

    def rule(part: Mapping[str, Any], path: Path) -> str | None:
        where = f"In context={path}, "
        if "$ref" in part:
            beside = sorted(key for key in part if key not in ("$ref", "$defs", "definitions"))
            return f"{where}$ref cannot have keywords {beside}." if beside else None
        for key in part:
            if key not in _OPENAI_KEYWORDS:
                return f"{where}'{key}' is not permitted."
        if not {"type", "anyOf"} & set(part):
            return f"{where}schema must have a 'type' key."
        if part.get("format", "date") not in _OPENAI_FORMATS:
            return f"{where}'{part['format']}' is not a valid format."
        if any(mark in part.get("pattern", "") for mark in ("(?=", "(?!", "(?<=", "(?<!")):
            return f"{where}'pattern' has look-around, which is not supported."
        if "array" in _listed(part.get("type")) and "items" not in part:
            return f"{where}array schema missing items."
        if "object" in _listed(part.get("type")):
            if part.get("additionalProperties") is not False:
                return f"{where}'additionalProperties' is required to be supplied and to be false."
            if set(part.get("required", ())) != set(part.get("properties", ())):
                return f"{where}'required' is required to be supplied and to include every key in properties."
        return None

    return _first(schema, rule)


def anthropic_flaw(schema: Mapping[str, Any]) -> str | None:
    def rule(part: Mapping[str, Any], path: Path) -> str | None:
        del path
        kind = part.get("type")
        if beyond := sorted(key for key in part if key not in _ANTHROPIC_KEYWORDS):
            return f"For '{kind}' type, properties {', '.join(beyond)} are not supported"
        if not {"type", "anyOf", "allOf", "$ref", "enum", "const"} & set(part):
            return "Schema type is missing"
        if kind == "object" and part.get("additionalProperties") is not False:
            return "For 'object' type, 'additionalProperties' must be explicitly set to false"
        if part.get("minItems", 0) not in (0, 1):
            return "For 'array' type, 'minItems' values other than 0 or 1 are not supported"
        if part.get("format", "date") not in _ANTHROPIC_FORMATS:
            return f"For 'string' type, format '{part['format']}' is not supported"
        if any(isinstance(value, list | dict) for value in part.get("enum", ())):
            return "Enum values must be strings, numbers, booleans or null"
        return None

    parts = [part for part, _ in _parts(schema, ())]
    optional = sum(len(set(part.get("properties", ())) - set(part.get("required", ()))) for part in parts)
    unions = sum("anyOf" in part or isinstance(part.get("type"), list) for part in parts)
    if optional > 24:
        return f"Schemas contain too many optional parameters ({optional}); the limit is 24"
    if unions > 16:
        return f"Schemas contain too many parameters with union types ({unions}); the limit is 16"
    targets = [part["$ref"] for part in parts if isinstance(part.get("$ref"), str)]
    if any(target in _reached(schema, target) for target in targets):
        return "Recursive schemas are not supported"
    return _first(schema, rule)


def gemini_flaw(schema: Mapping[str, Any]) -> str | None:
    def rule(part: Mapping[str, Any], path: Path) -> str | None:
        where = ".".join(path) or "the root"
        if "$ref" in part and any(key[:1] != "$" for key in part):
            return f"{where}: if $ref is set, only properties starting with $ may be set"
        for key in part:
            if key not in _GEMINI_KEYWORDS:
                return f'{where}: Unknown name "{key}"'
        if any(type(value) not in (str, int, float) for value in part.get("enum", ())):
            return f"{where}: enum values must be strings or numbers"
        home = f"#/$defs/{path[1]}" if path[:1] == ("$defs",) else "#"
        for name, inner in part.get("properties", {}).items():
            if name in part.get("required", ()) and _leads_back(schema, inner, home):
                return f"{where}: the cyclic reference in {name} may only be used in a non-required property"
        outside = {key: value for key, value in part.items() if key not in _NAMED}
        if path[:1] == ("$defs",) and "properties" not in path and _leads_back(schema, outside, home):
            return f"{where}: a cyclic reference may only be used in a property"
        return None

    return _first(schema, rule)


def _first(schema: Mapping[str, Any], rule: Rule) -> str | None:
    return next((flaw for part, path in _parts(schema, ()) if (flaw := rule(part, path)) is not None), None)


def _parts(schema: Any, path: Path) -> Iterator[tuple[Mapping[str, Any], Path]]:
    if not isinstance(schema, Mapping):
        return
    yield schema, path
    for key, value in schema.items():
        if key in _NAMED and isinstance(value, Mapping):
            for name, inner in value.items():
                yield from _parts(inner, (*path, key, name))
        elif key not in _DATA:
            for i, inner in enumerate(value if isinstance(value, list) else [value]):
                yield from _parts(inner, (*path, key, *([str(i)] if isinstance(value, list) else [])))


def _leads_back(root: Mapping[str, Any], part: Any, home: str) -> bool:
    """Whether a part of a schema refers to its own definition, ``home``, directly or indirectly."""
    targets = [inner["$ref"] for inner, _ in _parts(part, ()) if isinstance(inner.get("$ref"), str)]
    return any(target == home or home in _reached(root, target) for target in targets)


def _reached(root: Mapping[str, Any], target: str) -> set[str]:
    reached: set[str] = set()
    further = [target]
    while further:
        found: Any = root
        for name in further.pop().removeprefix("#").split("/")[1:]:
            found = found.get(name, {}) if isinstance(found, Mapping) else {}
        for part, path in _parts(found, ()):
            other = part.get("$ref")
            if isinstance(other, str) and other not in reached and "$defs" not in path:
                reached.add(other)
                further.append(other)
    return reached


def _levels(schema: Any) -> int:
    if not isinstance(schema, Mapping):
        return 0
    inner = [
        part
        for key, value in schema.items()
        if key not in _DATA
        for part in (value.values() if key in _NAMED else value if isinstance(value, list) else [value])
    ]
    return ("properties" in schema) + max(map(_levels, inner), default=0)


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]
