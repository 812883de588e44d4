"""Keywords of JSON schemas that are checked exactly and in bounded time, in place of those of ``jsonschema``.

There, patterns are run by an engine that backtracks, elements are compared each with each, and a part of an
answer is checked once for each way that leads to it: of a tree of unions the ways double with each level.
Numbers are divided as binary fractions, of which 19.99 is no multiple of 0.01.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import islice
from typing import Any

from smartbatch._importing import imported
from smartbatch.core.preparation.patterns import PatternError, compiled

COMPARED = 1_000
"""Parts of one value up to which it is looked for those that no other keyword has checked."""

MAX_FLAWS = 3
"""Flaws of one answer that are told."""


class KnownFlaws:
    """The flaws that the references of a schema found in the parts of one answer. It takes the place of the
    checker of formats, which a validator hands to those it makes; formats are not checked.
    """

    def __init__(self) -> None:
        self.found: dict[tuple[int, int], list[Any]] = {}

    def check(self, value: Any, format: str) -> None:
        """Take any value for one of any format."""


def bounded(kind: Any, *, remembers: bool) -> Any:
    """Return the validator class ``kind`` with the keywords below.

    Args:
        remembers: whether what a reference finds does not depend on the way that led to it.
    """
    own = {name: keyword for name, keyword in _OWN.items() if name in kind.VALIDATORS}
    for name in ("unevaluatedItems", "unevaluatedProperties"):
        if name in kind.VALIDATORS:
            own[name] = _limited(name, kind.VALIDATORS[name])
    if remembers:
        own["$ref"] = _once(kind.VALIDATORS["$ref"])
    return imported("jsonschema.validators").extend(kind, own)


def _found(pattern: str, text: str) -> bool:
    """Whether a pattern matches. One that the engine does not take is left to the class that has it: a plain
    schema with such a pattern is refused before anything is sent."""
    try:
        return compiled(pattern)(text)
    except PatternError:
        return True


def _pattern(validator: Any, pattern: str, value: Any, _schema: Any) -> Iterator[Any]:
    if validator.is_type(value, "string") and not _found(pattern, value):
        yield _flaw(f"{_quoted(value)} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Any, value: Any, _schema: Any) -> Iterator[Any]:
    if not validator.is_type(value, "object"):
        return
    for pattern, schema in patterns.items():
        for key, item in value.items():
            if _found(pattern, key):
                yield from validator.descend(item, schema, path=key, schema_path=pattern)


def _additional_properties(validator: Any, allowed: Any, value: Any, schema: Any) -> Iterator[Any]:
    if not validator.is_type(value, "object"):
        return
    named = schema.get("properties", {})
    patterns = list(schema.get("patternProperties", {}))
    extras = [
        key for key in value if key not in named and not any(_found(pattern, key) for pattern in patterns)
    ]
    if validator.is_type(allowed, "object"):
        for key in extras:
            yield from validator.descend(value[key], allowed, path=key)
    elif not allowed and extras:
        told = ", ".join(_quoted(key) for key in extras[:5])
        yield _flaw(f"Additional properties are not allowed ({told} unexpected)")


def _multiple_of(validator: Any, step: float, value: Any, _schema: Any) -> Iterator[Any]:
    if validator.is_type(value, "number") and not _is_multiple(value, step):
        yield _flaw(f"{_quoted(value)} is not a multiple of {step}")


def _unique_items(validator: Any, unique: Any, value: Any, _schema: Any) -> Iterator[Any]:
    if unique and validator.is_type(value, "array") and len({_form(item) for item in value}) < len(value):
        yield _flaw(f"{_quoted(value)} has non-unique elements")


def _limited(name: str, keyword: Any) -> Any:
    """Return a keyword that is asked about values of at most :data:`COMPARED` parts; longer ones break it.

    It looks each of them up in a list, and runs the patterns of ``patternProperties`` by itself.
    """

    def limited(validator: Any, schema_of_rest: Any, value: Any, schema: Any) -> Iterator[Any]:
        if isinstance(value, dict | list) and len(value) > COMPARED:
            yield _flaw(f"has more than {COMPARED} parts, which {name} is not applied to")
            return
        yield from keyword(validator, schema_of_rest, value, schema)

    return limited


def _once(keyword: Any) -> Any:
    """Return a keyword that follows a reference once for each part of an answer, and finds the same again."""

    def once(validator: Any, reference: str, value: Any, schema: Any) -> Iterator[Any]:
        known: KnownFlaws = validator.format_checker
        flaws = known.found.get((id(schema), id(value)))
        if flaws is None:
            flaws = list(islice(keyword(validator, reference, value, schema), MAX_FLAWS))
            known.found[id(schema), id(value)] = flaws
        for flaw in flaws:
            yield flaw.create_from(flaw)  # whoever gets it adds its own place to it

    return once


_OWN = {
    "multipleOf": _multiple_of,
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "uniqueItems": _unique_items,
}


def _flaw(message: str) -> Any:
    return imported("jsonschema.exceptions").ValidationError(message)


def _quoted(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:199]}…"


def _is_multiple(value: float, step: float) -> bool:
    return _written(value) % _written(step) == 0


def _written(number: float) -> Fraction:
    """Return the number that its JSON text stands for: a tenth for 0.1, not the nearest binary fraction."""
    return Fraction(number) if isinstance(number, int) else Fraction(repr(number))


def _form(value: Any) -> str:
    """Return a text that equal JSON values have in common: 1 and 1.0 are equal, 1 and true are not."""
    return json.dumps(_plain(value), sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
