"""JSON schemas that are given as dictionaries: whether they can be used, and whether a value follows one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any
from weakref import WeakValueDictionary

from smartbatch._importing import imported
from smartbatch.core.preparation.keywords import MAX_FLAWS, KnownFlaws, bounded
from smartbatch.core.preparation.patterns import PatternError, compiled


class Misfit(Exception):
    """A value is not what was asked for.

    Args:
        message: for errors; says where and repeats nothing of the value.
        advice: for the model that wrote it; may quote it.
        place: the names of the properties that lead to it.
        reason: what is wrong there, in a word.
    """

    def __init__(self, message: str, advice: str, place: Sequence[str] = (), reason: str = "") -> None:
        super().__init__(message, advice, place, reason)
        self.message = message
        self.advice = advice
        self.place = place
        self.reason = reason


def broken(place: Sequence[str], reason: str, told: str) -> Misfit:
    """Return a flaw that is wrong at ``place``."""
    where = "/".join(place) or "the top"
    return Misfit(f"the answer breaks the schema at {where} ({reason})", f"{told}.", place, reason)


def check_schema(schema: Mapping[str, Any]) -> None:
    """Check that answers can be checked against ``schema``.

    Raises:
        ValueError: it is no JSON schema, has a pattern that cannot be checked, or refers to what it does not
            have, such as another document: none is ever fetched.
    """
    text = json.dumps(schema)
    _validator(text)
    decoded = json.loads(text)
    for pattern in _patterns(decoded):
        try:
            compiled(pattern)
        except PatternError as error:
            raise ValueError(f"cannot be checked: the pattern {pattern[:80]!r} {error}") from None
    if '"$id": ' in text:  # a part with an address of its own has references of its own
        return
    for reference in _references(decoded):
        if reference.startswith("#/") and "%" not in reference and not _has(decoded, reference):
            raise ValueError(f"refers to {reference[:80]!r}, which it does not have")


class PlainSchema:
    """A JSON schema; called with decoded JSON it returns it.

    Args:
        text: the schema, as JSON text.
    """

    def __init__(self, text: str) -> None:
        self._text = text

    def __reduce__(self) -> tuple[Any, ...]:
        return PlainSchema, (self._text,)

    def __call__(self, value: Any) -> Any:
        """Return ``value``.

        A type of this process that has this very schema judges in its place, as it may accept more: a job
        keeps the schema of a type alone.

        Raises:
            Misfit: it does not follow the schema.
        """
        if (judge := _judges.get(self._text)) is not None:
            judge(value)
            return value
        validator = _validator(self._text).evolve(format_checker=KnownFlaws())
        flaws = list(islice(validator.iter_errors(value), MAX_FLAWS))
        if flaws:
            # The path within the schema is the caller's own; the path within the answer may hold its keys.
            where = "/".join(str(part) for part in flaws[0].absolute_schema_path)
            told = "; ".join(f"at {flaw.json_path}: {flaw.message[:500]}" for flaw in flaws)
            raise Misfit(f"the answer breaks the schema at {where}", f"{told}.")
        return value


_judges: WeakValueDictionary[str, Callable[[Any], Any]] = WeakValueDictionary()


def judged_by(schema: Mapping[str, Any], judge: Callable[[Any], Any]) -> None:
    """Let ``judge`` check the answers to ``schema`` for as long as it exists."""
    _judges[json.dumps(schema)] = judge


@lru_cache(maxsize=256)  # equal schemas have the same one, by which requests are compared
def plain_schema(text: str) -> PlainSchema:
    return PlainSchema(text)


def _has(schema: Any, reference: str) -> bool:
    """Whether a JSON pointer, as a fragment (RFC 6901), leads to a part of a schema."""
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
        problem = f"is no JSON schema: at {where or 'the top'} it breaks {error.validator!r}"
        raise ValueError(problem) from None
    if '"unevaluatedProperties": ' in schema and '"patternProperties": ' in schema:  # jsonschema runs these
        raise ValueError(
            "has patternProperties and unevaluatedProperties; use additionalProperties with patterns"
        )
    for reference in _references(decoded):
        if not reference.startswith("#"):
            raise ValueError(f"refers to {reference[:80]!r}; only references within the schema are followed")
    by_the_way = '"$dynamicRef": ' in schema or '"$recursiveRef": ' in schema
    # A registry of our own: the default one fetches foreign references over the network.
    return bounded(kind, remembers=not by_the_way)(
        _without_dialects(decoded), registry=imported("jsonschema_specifications").REGISTRY
    )


_VALUES = ("enum", "const", "default", "examples")
"""Keywords that hold values, not schemas."""
_BY_NAME = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
"""Keywords that hold schemas by names, which are no keywords whatever they are."""


def _without_dialects(schema: Any) -> Any:
    """Return a schema no part of which names its dialect: for one that does, ``jsonschema`` takes the
    dialect's own validator, whose keywords are not bounded."""
    if isinstance(schema, list):
        return [_without_dialects(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    plain: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _BY_NAME and isinstance(value, Mapping):
            plain[key] = {name: _without_dialects(inner) for name, inner in value.items()}
        elif key != "$schema" or not isinstance(value, str):
            plain[key] = value if key in _VALUES else _without_dialects(value)
    return plain


def keywords(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield the keywords of a schema, and of those within it, with their values; what is data has none."""
    if isinstance(schema, list):
        for item in schema:
            yield from keywords(item)
    elif isinstance(schema, Mapping):
        for key, value in schema.items():
            if key not in _VALUES:
                yield key, value
                named = key in _BY_NAME and isinstance(value, Mapping)
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
