"""JSON schemas made of types, and objects made of JSON.

Pydantic models, dataclasses, TypedDicts and plain types are pydantic's; types with attrs classes in them are
made by cattrs, with pydantic for all that is no attrs class. An answer is checked as the type itself checks
it: what the type accepts is accepted.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from smartbatch._importing import one_at_a_time
from smartbatch.core.preparation.attrs_types import AttrsType, is_for_cattrs
from smartbatch.core.preparation.plain_schemas import judged_by, plain_schema
from smartbatch.core.preparation.pydantic_types import PydanticType
from smartbatch.errors import InvalidRequest

Build: TypeAlias = Callable[[Any], Any]
"""Makes an object of decoded JSON, or raises :class:`~smartbatch.core.preparation.plain_schemas.Misfit`."""

MAX_TYPES = 256
"""Types whose schemas are kept; the oldest is forgotten first."""
_NO_TYPES = (str, bytes, int, float, types.FunctionType, types.MethodType, types.BuiltinFunctionType, partial)


class BuiltSchema(dict[str, Any]):
    """A JSON schema with the function that builds objects of answers.

    It is sent to the provider like any other dictionary; the reader of the answer calls ``build``.

    Attributes:
        build: makes an object of an answer that follows the schema.
    """

    build: Build

    def __init__(self, schema: Mapping[str, Any], build: Build) -> None:
        super().__init__(schema)
        self.build = build

    def __reduce__(self) -> tuple[Any, ...]:
        return BuiltSchema, (dict(self), self.build)


def schema_of(kind: Any) -> tuple[dict[str, Any], Build]:
    """Return the JSON schema of ``kind`` and a function that makes an object of an answer.

    Args:
        kind: a JSON schema, or a type: an attrs class, a pydantic model, a dataclass, a TypedDict, or a type
            such as ``list[int]`` or ``Literal["a", "b"]``.

    Raises:
        InvalidRequest: for anything else, and for a type that JSON cannot express; the text says why.
    """
    if isinstance(kind, BuiltSchema):
        return kind, kind.build
    if isinstance(kind, Mapping):
        return dict(kind), plain_schema(json.dumps(kind))
    if kind is None or isinstance(kind, _NO_TYPES):
        raise _refusal("must be a JSON schema (a dict) or a type, such as a class, list[int] or a Literal")
    try:
        known = _types.get(kind)
    except TypeError:  # annotated with something mutable
        return _made(kind)
    if known is None:
        with one_at_a_time():  # neither library promises that threads may make the same class at once
            known = _types.get(kind) or _made(kind)
            if len(_types) >= MAX_TYPES:
                del _types[next(iter(_types))]
            _types[kind] = known
    return known


_types: dict[Any, tuple[dict[str, Any], Build]] = {}
"""The same function for the same type, as fingerprints compare it."""


def _made(kind: Any) -> tuple[dict[str, Any], Build]:
    try:
        made = AttrsType(kind) if is_for_cattrs(kind) else PydanticType(kind)
    except InvalidRequest:
        raise
    except Exception as error:  # pydantic's, cattrs' and those of the user's own classes
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise _refusal(f"cannot be made of {getattr(kind, '__name__', kind)}: {reason}") from error
    judged_by(made.schema, made)
    return made.schema, made


def _refusal(problem: str) -> InvalidRequest:
    return InvalidRequest(f"schema {problem}", field="schema")
