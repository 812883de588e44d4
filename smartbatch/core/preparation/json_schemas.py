"""Checks that a schema given as a dictionary can be used, and that values follow it.

Some keywords of ``jsonschema`` are replaced, because an answer must be checked exactly and in
bounded time. Patterns run in pydantic's linear-time engine, because :mod:`re` backtracks and some
patterns would hold the interpreter lock for hours. ``jsonschema`` also compares elements pairwise,
checks a part of an answer once per path to it (paths double with each level of a tree of unions),
and divides numbers as binary fractions, in which 19.99 is not a multiple of 0.01.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import islice
from typing import Any
from weakref import WeakValueDictionary

from smartbatch._fork import imported


class PatternError(ValueError):
    """The engine does not accept a pattern; the message says why."""


@lru_cache(maxsize=256)
def compiled(pattern: str) -> Callable[[str], bool]:
    """Return a function that searches for ``pattern`` in a text.

    Raises:
        PatternError: the pattern is invalid, needs backtracking (look-around, back references), or is
            too large.
    """
    core = imported("pydantic_core")
    schema = core.core_schema.str_schema(pattern=pattern, regex_engine="rust-regex")
    try:
        matcher = core.SchemaValidator(schema)
    except core.SchemaError as error:
        reason = str(error).strip().rpartition("\n")[2].strip()
        raise PatternError(f"is not supported: {reason.removeprefix('SchemaError: ')}") from None
    found_in: Callable[[str], bool] = matcher.isinstance_python
    return found_in


MAX_COMPARED_PARTS = 1_000  # parts of a value, for the keywords about unevaluated parts

MAX_FLAWS = 3  # reported per answer


class KnownFlaws:
    """The flaws found in the parts of one answer by following the references of a schema.

    It takes the place of the format checker, which a validator passes on to the validators it creates.
    Formats are not checked.
    """

    def __init__(self) -> None:
        self.found: dict[tuple[int, int], list[Any]] = {}

    def check(self, value: Any, format: str) -> None:
        """Accept any value; formats are not checked."""


def bounded(kind: Any, *, remembers: bool) -> Any:
    """Replace keywords of the validator class ``kind``.

    With ``remembers``, the result of a reference is reused on other paths to the same part.
    """
    own = {name: keyword for name, keyword in _BOUNDED_KEYWORDS.items() if name in kind.VALIDATORS}
    for name in ("unevaluatedItems", "unevaluatedProperties"):
        if name in kind.VALIDATORS:
            own[name] = _limited(name, kind.VALIDATORS[name])
    if remembers:
        own["$ref"] = _once(kind.VALIDATORS["$ref"])
    return imported("jsonschema.validators").extend(kind, own)


def _found(pattern: str, text: str) -> bool:
    """A pattern that the engine rejects counts as a match. If it comes from a class, the class checks values
    itself; a plain schema with such a pattern is rejected before anything is sent.
    """
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
        unexpected = ", ".join(_quoted(key) for key in extras[:5])
        yield _flaw(f"Additional properties are not allowed ({unexpected} unexpected)")


def _multiple_of(validator: Any, step: float, value: Any, _schema: Any) -> Iterator[Any]:
    if validator.is_type(value, "number") and _written(value) % _written(step):
        yield _flaw(f"{_quoted(value)} is not a multiple of {step}")


def _unique_items(validator: Any, unique: Any, value: Any, _schema: Any) -> Iterator[Any]:
    if unique and validator.is_type(value, "array") and len({_form(item) for item in value}) < len(value):
        yield _flaw(f"{_quoted(value)} has non-unique elements")


def _limited(name: str, keyword: Any) -> Any:
    """Apply a keyword to values of at most :data:`MAX_COMPARED_PARTS` parts; larger values fail it.

    ``keyword`` looks up each part in a list, and matches the patterns of ``patternProperties`` itself.
    """

    def limited(validator: Any, schema_of_rest: Any, value: Any, schema: Any) -> Iterator[Any]:
        if isinstance(value, dict | list) and len(value) > MAX_COMPARED_PARTS:
            yield _flaw(f"has more than {MAX_COMPARED_PARTS} parts, which {name} is not applied to")
            return
        yield from keyword(validator, schema_of_rest, value, schema)

    return limited


def _once(keyword: Any) -> Any:
    """Follow a reference once per part of an answer, and then reuse the result."""

    def once(validator: Any, reference: str, value: Any, schema: Any) -> Iterator[Any]:
        known: KnownFlaws = validator.format_checker
        flaws = known.found.get((id(schema), id(value)))
        if flaws is None:
            flaws = list(islice(keyword(validator, reference, value, schema), MAX_FLAWS))
            known.found[id(schema), id(value)] = flaws
        for flaw in flaws:
            yield flaw.create_from(flaw)  # a copy, because the receiver adds its own path

    return once


_BOUNDED_KEYWORDS = {
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


def _written(number: float) -> Fraction:
    """Read a number as written in JSON: 0.1 is a tenth, not the nearest binary fraction."""
    return Fraction(number) if isinstance(number, int) else Fraction(repr(number))


def _form(value: Any) -> str:
    """Return a string that only equal JSON values share: 1 and 1.0 are equal, 1 and true are not."""
    return json.dumps(_plain(value), sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


class Misfit(Exception):
    def __init__(self, message: str, advice: str, place: Sequence[str] = (), reason: str = "") -> None:
        super().__init__(message, advice, place, reason)
        self.message = message  # for errors; names the place but does not quote the value
        self.advice = advice  # for the model that wrote it; may quote the value
        self.place = place  # property names that lead to the flaw
        self.reason = reason  # the flaw in one word


def broken(place: Sequence[str], reason: str, advice: str) -> Misfit:
    where = "/".join(place) or "the top"
    return Misfit(f"the answer violates the schema at {where} ({reason})", f"{advice}.", place, reason)


_NAMED_SCHEMAS = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
_KEYWORDS_OF_VALUES = frozenset({"const", "default", "enum", "examples"})


def with_sorted_keywords(schema: Any) -> Any:
    """Return an equal schema whose text does not depend on the order of its keywords.

    Properties keep their order, in which models write them, as do lists and example values.
    """
    if isinstance(schema, list):
        return [with_sorted_keywords(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    found: dict[str, Any] = {}
    for keyword, value in sorted(schema.items()):
        if keyword in _NAMED_SCHEMAS and isinstance(value, Mapping):
            found[keyword] = {name: with_sorted_keywords(each) for name, each in value.items()}
        else:
            found[keyword] = value if keyword in _KEYWORDS_OF_VALUES else with_sorted_keywords(value)
    return found


def check_schema(schema: Mapping[str, Any]) -> None:
    """Reject a schema against which answers cannot be checked.

    Raises:
        ValueError: it is not a JSON schema, has a pattern that cannot be checked, or refers to something
            that it does not contain. Other documents are never fetched.
    """
    text = json.dumps(schema)
    _validator(text)
    decoded = json.loads(text)
    for pattern in _patterns(decoded):
        try:
            compiled(pattern)
        except PatternError as error:
            raise ValueError(f"cannot be checked: the pattern {pattern[:80]!r} {error}") from None
    if '"$id": ' in text:  # references in a part with its own address are relative to that address
        return
    for reference in _references(decoded):
        if reference.startswith("#/") and "%" not in reference and not _has(decoded, reference):
            raise ValueError(f"refers to {reference[:80]!r}, which it does not contain")


class PlainSchema:
    """A JSON schema given as JSON text. Called with decoded JSON, it returns the value unchanged."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __reduce__(self) -> tuple[Any, ...]:
        return PlainSchema, (self._text,)

    def __call__(self, value: Any) -> Any:
        """Check and return ``value``.

        If this process has a type with exactly this schema, the type checks the value instead, because it
        may accept more. A job stores only the schema of a type.

        Raises:
            Misfit: the value does not follow the schema.
        """
        if (judge := _judges.get(self._text)) is not None:
            judge(value)
            return value
        validator = _validator(self._text).evolve(format_checker=KnownFlaws())
        flaws = list(islice(validator.iter_errors(value), MAX_FLAWS))
        if flaws:
            # Errors may name a place in the schema, but not in the answer, whose keys are private.
            where = "/".join(str(part) for part in flaws[0].absolute_schema_path)
            advice = "; ".join(f"at {flaw.json_path}: {flaw.message[:500]}" for flaw in flaws)
            raise Misfit(f"the answer violates the schema at {where}", f"{advice}.")
        return value


_judges: WeakValueDictionary[str, Callable[[Any], Any]] = WeakValueDictionary()


def judged_by(schema: Mapping[str, Any], judge: Callable[[Any], Any]) -> None:
    """Let ``judge`` check the answers to ``schema`` as long as ``judge`` exists."""
    _judges[json.dumps(schema)] = judge


@lru_cache(maxsize=256)  # equal schemas share one object, by which requests are compared
def plain_schema(text: str) -> PlainSchema:
    return PlainSchema(text)


def _has(schema: Any, reference: str) -> bool:
    """True if a JSON pointer in fragment form (RFC 6901) leads to a part of a schema."""
    for name in reference[2:].split("/"):
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(schema, list) and name.isascii() and name.isdigit() and int(name) < len(schema):
            schema = schema[int(name)]
        elif isinstance(schema, Mapping) and name in schema:
            schema = schema[name]
        else:
            return False
    return True


@lru_cache(maxsize=128)
def _validator(schema: str) -> Any:
    validators = imported("jsonschema.validators")
    decoded = json.loads(schema)
    kind = validators.validator_for(decoded, default=validators.Draft202012Validator)
    try:
        kind.check_schema(decoded)
    except imported("jsonschema.exceptions").SchemaError as error:
        where = "".join(f"[{part!r}]" for part in error.absolute_path)
        problem = f"is not a JSON schema: at {where or 'the top'} it violates {error.validator!r}"
        raise ValueError(problem) from None
    # For this combination, jsonschema would run the patterns itself.
    if '"unevaluatedProperties": ' in schema and '"patternProperties": ' in schema:
        raise ValueError(
            "has both patternProperties and unevaluatedProperties; use additionalProperties with patterns"
        )
    for reference in _references(decoded):
        if not reference.startswith("#"):
            raise ValueError(f"refers to {reference[:80]!r}; only references within the schema are followed")
    by_the_way = '"$dynamicRef": ' in schema or '"$recursiveRef": ' in schema
    # a separate registry, because the default one fetches foreign references over the network
    return bounded(kind, remembers=not by_the_way)(
        _without_dialects(decoded), registry=imported("jsonschema_specifications").REGISTRY
    )


_DATA_KEYWORDS = ("enum", "const", "default", "examples")  # keywords whose values are data, not schemas
# keywords that map names to schemas; the names are not keywords
_NAMED_SCHEMA_KEYWORDS = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")


def _without_dialects(schema: Any) -> Any:
    """Remove the names of dialects from the parts of a schema. For a part with such a name, ``jsonschema``
    would use that dialect's validator, whose keywords are not bounded.
    """
    if isinstance(schema, list):
        return [_without_dialects(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    plain: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _NAMED_SCHEMA_KEYWORDS and isinstance(value, Mapping):
            plain[key] = {name: _without_dialects(inner) for name, inner in value.items()}
        elif key != "$schema" or not isinstance(value, str):
            plain[key] = value if key in _DATA_KEYWORDS else _without_dialects(value)
    return plain


def keywords(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield each keyword of a schema and its parts with its value, except those inside data."""
    if isinstance(schema, list):
        for item in schema:
            yield from keywords(item)
    elif isinstance(schema, Mapping):
        for key, value in schema.items():
            if key not in _DATA_KEYWORDS:
                yield key, value
                named = key in _NAMED_SCHEMA_KEYWORDS and isinstance(value, Mapping)
                yield from keywords(list(value.values()) if named else value)


def _patterns(schema: Any) -> Iterator[str]:
    for key, value in keywords(schema):
        if key == "pattern" and isinstance(value, str):
            yield value
        elif key == "patternProperties" and isinstance(value, Mapping):
            yield from value


def _references(schema: Any) -> Iterator[str]:
    for key, value in keywords(schema):
        if key in ("$ref", "$dynamicRef") and isinstance(value, str):
            yield value
