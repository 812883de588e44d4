"""Estimates the length of answers before any have been observed, for free text and for JSON schemas.

A length is a mean and the range of output tokens that covers 90 % of the answers. Models format JSON
differently, so the estimate for JSON covers both compact and indented text.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import frozen

from smartbatch.core.preparation.calibration import OUTPUT_TOKENS
from smartbatch.types import Generation

CHARS_PER_TOKEN = 3.5  # for JSON, whose punctuation takes more tokens than prose
INDENTATION_FACTOR = 1.8  # how much longer JSON is with one indented line per value
MAX_DEPTH = 4  # levels of a recursive schema that are followed
MAX_KNOWN_SCHEMAS = 256  # schemas remembered by object identity: requests of a list share one


@frozen
class Length:
    """Output tokens; 90 % of the answers have between ``low`` and ``high``."""

    low: float
    expected: float
    high: float

    def times(self, least: float, usual: float, most: float) -> Length:
        """The length of ``least`` to ``most`` independent values."""
        few, many = math.sqrt(least), math.sqrt(most)
        return Length(
            least * self.expected - few * (self.expected - self.low),
            usual * self.expected,
            most * self.expected + many * (self.high - self.expected),
        )


TEXT_LENGTH = Length(1.0, float(OUTPUT_TOKENS), 2.8 * OUTPUT_TOKENS)  # free text: one word or more
NO_LENGTH = Length(0.0, 0.0, 0.0)
ANY_LENGTH = Length(1.0, 40.0, 450.0)  # a value of unknown type
STRING_LENGTH = Length(2.0, 16.0, 150.0)  # a string without an enum: a name, or one or several sentences
# reasoning tokens before an answer; whether a model reasons is known from its first answer
REASONING_TOKENS = 256.0
# mean reasoning tokens by ``reasoning_effort``, until answers with this effort have been observed
EFFORT_TOKENS = {
    "none": 0.0,
    "minimal": 16.0,
    "low": 64.0,
    "medium": 256.0,
    "high": 1024.0,
    "xhigh": 4096.0,
    "max": 8192.0,
}
_EFFORT_RANGE = 4.0  # upper end of the range of reasoning, as a multiple of the mean
_FRAME = Length(0.5, 2.0, 2.5)  # the brackets of an object or an array
_FORMATS = {
    "date": 7.0,
    "time": 8.0,
    "date-time": 16.0,
    "uuid": 26.0,
    "email": 10.0,
    "ipv4": 8.0,
    "uri": 20.0,
}
_SCALARS = {
    "boolean": Length(1.0, 1.0, 1.0),
    "null": Length(1.0, 1.0, 1.0),
    "integer": Length(1.0, 2.0, 7.0),
    "number": Length(1.0, 4.0, 12.0),
}


def length_of(schema: Mapping[str, Any]) -> Length:
    compact = _value(schema, schema, 0)
    return Length(
        compact.low, compact.expected * math.sqrt(INDENTATION_FACTOR), compact.high * INDENTATION_FACTOR
    )


def _value(schema: object, root: Mapping[str, Any], depth: int) -> Length:
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        return ANY_LENGTH if depth <= MAX_DEPTH else Length(1.0, 1.0, 4.0)
    if "const" in schema:
        return _one_of([schema["const"]])
    if isinstance(schema.get("enum"), Sequence) and schema["enum"]:
        return _one_of(schema["enum"])
    reference = schema.get("$ref")
    if isinstance(reference, str):
        return _value(_referred(reference, root), root, depth + 1)
    for name in ("anyOf", "oneOf"):
        if isinstance(schema.get(name), Sequence) and schema[name]:
            return _any([_value(each, root, depth) for each in schema[name]])
    if isinstance(schema.get("allOf"), Sequence) and schema["allOf"]:
        return _sum([_value(each, root, depth) for each in schema["allOf"]])
    kind = schema.get("type")
    if isinstance(kind, list) and kind:
        return _any([_typed(schema, each, root, depth) for each in kind])
    if kind is None:
        kind = "object" if "properties" in schema else "array" if "items" in schema else None
    return _typed(schema, kind, root, depth)


def _typed(schema: Mapping[str, Any], kind: object, root: Mapping[str, Any], depth: int) -> Length:
    if kind == "object":
        return _object(schema, root, depth)
    if kind == "array":
        return _array(schema, root, depth)
    if kind == "string":
        return _string(schema)
    return _SCALARS.get(str(kind), ANY_LENGTH)


def _string(schema: Mapping[str, Any]) -> Length:
    usual = _FORMATS.get(str(schema.get("format")))
    if usual is not None:
        return Length(usual / 2, usual, 2 * usual)
    least = _count(schema.get("minLength"), 0) / CHARS_PER_TOKEN
    most = _count(schema.get("maxLength"), math.inf)  # in some scripts, each character takes a token
    low, high = max(STRING_LENGTH.low, least), max(STRING_LENGTH.high, 2 * least)
    high = max(2.0, min(high, most + 2))
    low = min(low, high)
    return Length(low, min(max(STRING_LENGTH.expected, low), (low + high) / 2), high)


def _array(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Length:
    first = schema.get("prefixItems")
    fixed = [_value(each, root, depth + 1) for each in first] if isinstance(first, Sequence) else []
    least = max(0.0, _count(schema.get("minItems"), 0) - len(fixed))
    most = _count(schema.get("maxItems"), math.inf) - len(fixed)
    if fixed and most == math.inf:
        most = 0.0
    most = max(least, min(most, max(20.0, 3 * least)))
    usual = min(max(least, 4.0), (least + most) / 2)
    item = _sum([_value(schema.get("items"), root, depth + 1), Length(1.0, 1.0, 1.0)])
    return _sum([_FRAME, *fixed, item.times(least, usual, most)])


def _object(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Length:
    properties = schema.get("properties")
    required = schema.get("required")
    needed = set(required) if isinstance(required, Sequence) else set()
    parts = [_FRAME]
    for name, own in properties.items() if isinstance(properties, Mapping) else ():
        key = 2 + len(str(name)) / CHARS_PER_TOKEN
        part = _sum([Length(1 + len(str(name)) / 4, key, key), _value(own, root, depth + 1)])
        parts.append(part if name in needed else Length(0.0, 0.7 * part.expected, part.high))
    more = schema.get("additionalProperties")
    if isinstance(more, Mapping) or (not properties and more is not False):
        part = _sum([STRING_LENGTH, _value(more if isinstance(more, Mapping) else None, root, depth + 1)])
        parts.append(part.times(0.0, 4.0, 20.0) if isinstance(more, Mapping) else ANY_LENGTH)
    return _sum(parts)


def _one_of(values: Sequence[Any]) -> Length:
    sizes = [max(1.0, len(json.dumps(each, default=str)) / CHARS_PER_TOKEN) for each in values]
    return Length(min(sizes) / 2, sum(sizes) / len(sizes), 1.5 * max(sizes) + 1)


def _any(options: Sequence[Length]) -> Length:
    return Length(
        min(each.low for each in options),
        sum(each.expected for each in options) / len(options),
        max(each.high for each in options),
    )


def _sum(parts: Iterable[Length]) -> Length:
    """The total length of independent parts. The distances from ``expected`` to ``high`` are combined like
    standard deviations. The shortest answer has the shortest form of every part.
    """
    low = expected = above = 0.0
    for part in parts:
        low += part.low
        expected += part.expected
        above += (part.high - part.expected) ** 2
    return Length(low, expected, expected + math.sqrt(above))


def _referred(reference: str, root: Mapping[str, Any]) -> object:
    found: object = root
    for name in reference.removeprefix("#").split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _count(value: object, default: float) -> float:
    is_count = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
    return float(value) if is_count else default  # type: ignore[arg-type]


# -- kinds of requests ---------------------------------------------------------------------------------------


@frozen
class AnswerShape:
    """The expected answers of one kind of request."""

    # equal for requests with comparable answers: with the same schema or, for free text, with the same
    # system text, ``max_tokens`` and tools; and with the same effort
    key: str
    length: Length  # of one answer, with reasoning only if ``reasoning_effort`` is set
    by_schema: bool = False  # derived from a schema
    sets_effort: bool = False


FREE_TEXT = AnswerShape("", TEXT_LENGTH)  # for requests without any limit


class AnswerShapes:
    """Finds the shapes of requests. Thread-safe, because entries are replaced as a whole."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str | None], tuple[object, AnswerShape]] = {}
        self._free: dict[tuple[str | None, int | None, tuple[str, ...], str | None], AnswerShape] = {}

    def of(self, params: Generation) -> AnswerShape:
        schema = params.schema
        if schema is None and params.response_format is not None:
            schema = _own_schema(params.response_format)
        if schema is None:
            return self._free_text(params)
        effort = params.reasoning_effort
        known = self._known.get((id(schema), effort))
        if known is not None and known[0] is schema:
            return known[1]
        form = json.dumps(schema, sort_keys=True, default=str)
        shape = _shape(form + (effort or ""), length_of(schema), effort, by_schema=True)
        if len(self._known) >= MAX_KNOWN_SCHEMAS:
            self._known = {}
        self._known[id(schema), effort] = schema, shape
        return shape

    def _free_text(self, params: Generation) -> AnswerShape:
        effort = params.reasoning_effort
        if params.system is None and params.max_tokens is None and not params.tools and effort is None:
            return FREE_TEXT
        kind = (params.system, params.max_tokens, tuple(tool.name for tool in params.tools or ()), effort)
        shape = self._free.get(kind)
        if shape is None:
            shape = _shape(json.dumps(kind), TEXT_LENGTH, effort)
            if len(self._free) >= MAX_KNOWN_SCHEMAS:
                self._free = {}
            self._free[kind] = shape
        return shape


def _shape(kind: str, length: Length, effort: str | None, *, by_schema: bool = False) -> AnswerShape:
    key = hashlib.blake2b(kind.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    if effort is not None:
        reasoned = EFFORT_TOKENS[effort]
        length = Length(length.low, length.expected + reasoned, length.high + _EFFORT_RANGE * reasoned)
    return AnswerShape(key, length, by_schema, sets_effort=effort is not None)


def _own_schema(response_format: Mapping[str, Any]) -> Mapping[str, Any] | None:
    outer = response_format.get("json_schema")
    schema = outer.get("schema") if isinstance(outer, Mapping) else None
    return schema if isinstance(schema, Mapping) else None


SHAPES = AnswerShapes()  # shared by the whole process
