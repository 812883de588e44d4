"""Whether a value from a file or the command line has the type that an annotation names."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

_NAMES: Final = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}


def fits(value: Any, kind: Any) -> bool:
    """Whether a value has a type. For a ``Literal``, only the types of its values are compared."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(fits(value, each) for each in inner)
    if origin is Literal:
        return type(value) in map(type, inner)
    if origin is Mapping:
        return isinstance(value, dict) and all(fits(each, inner[1]) for each in value.values())
    if origin is tuple:
        return isinstance(value, tuple) and all(fits(each, inner[0]) for each in value)
    return kind is Any or type(value) in ((int, float) if kind is float else (kind,))


def type_words(kind: Any, mapping: str) -> str:
    """Describe a type to users; ``mapping`` is the word for a mapping in the notation that they use."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(type_words(each, mapping) for each in inner if each is not NoneType)
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin is Mapping:
        return f"{mapping} whose values are each {type_words(inner[1], mapping)}"
    if origin is tuple:
        return f"a list whose values are each {type_words(inner[0], mapping)}"
    return _NAMES.get(kind, "a value that can only be passed in Python")
