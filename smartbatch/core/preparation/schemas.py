"""JSON schemas made of classes, and objects made of JSON.

Takes attrs classes, dataclasses and pydantic models. The schemas are of the strict kind that providers
enforce: objects are closed and all their properties required; an optional property may be ``null``.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin

import attrs

from smartbatch.errors import InvalidRequest

Build: TypeAlias = Callable[[Any], Any]
"""Makes an object of decoded JSON, or raises."""

_SCALARS: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    None: {"type": "null"},
    type(None): {"type": "null"},
}
_LISTS = (list, Sequence)
_MAPPINGS = (dict, Mapping)


def _as_it_is(value: Any) -> Any:
    return value


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
        kind: a JSON schema, an attrs class, a dataclass or a pydantic model. Fields may be ``str``, ``int``,
            ``float``, ``bool``, ``None``, enums, literals, other such classes, optional ones, lists, and
            dictionaries with text keys.

    Raises:
        InvalidRequest: for anything else; the text names the field.
    """
    if isinstance(kind, BuiltSchema):
        return kind, kind.build
    if isinstance(kind, Mapping):
        return dict(kind), _as_it_is
    if not isinstance(kind, type):
        raise _refusal("must be a JSON schema (a dict), an attrs class, a dataclass or a pydantic model")
    return _of_class(kind)


@lru_cache(maxsize=256)
def _of_class(kind: type[Any]) -> tuple[dict[str, Any], Build]:
    """As :func:`schema_of`; the same function for the same class, as fingerprints compare it."""
    if callable(getattr(kind, "model_json_schema", None)) and callable(getattr(kind, "model_validate", None)):
        model: Any = kind
        return _closed(model.model_json_schema()), model.model_validate
    if not (attrs.has(kind) or dataclasses.is_dataclass(kind)):
        raise _refusal(f"cannot be {kind.__name__}: it is no attrs class, dataclass or pydantic model")
    return _Writer(kind).whole(), _structurer(kind)


def _structurer(kind: type[Any]) -> Build:
    converter: Any = None

    def build(value: Any) -> Any:
        nonlocal converter
        if converter is None:
            from cattrs import Converter
            from cattrs.strategies import configure_union_passthrough

            converter = Converter(detailed_validation=False, forbid_extra_keys=True)
            configure_union_passthrough(Union[str, int, float, bool, None], converter)  # noqa: UP007
        return converter.structure(value, kind)

    return build


class _Writer:
    """Writes the schema of one class; classes in its fields become definitions, so they may be recursive."""

    def __init__(self, root: type[Any]) -> None:
        self._root = root
        self._names: dict[type[Any], str] = {}
        self._definitions: dict[str, Any] = {}

    def whole(self) -> dict[str, Any]:
        schema = self._object(self._root, self._root.__name__)
        return {**schema, "$defs": self._definitions} if self._definitions else schema

    def _object(self, kind: type[Any], path: str) -> dict[str, Any]:
        properties = {
            name: self._type(annotation, f"{path}.{name}") for name, annotation in _fields(kind, path)
        }
        return {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }

    def _type(self, kind: Any, path: str) -> dict[str, Any]:
        """Return the schema of a type. The cases, in order: annotated; plain; a choice of values; a union; a
        list; a mapping by texts; an enum; a class. Any other is refused."""
        origin = get_origin(kind)
        arguments = get_args(kind)
        if origin is typing.Annotated:
            return self._type(arguments[0], path)
        if kind in _SCALARS:
            return dict(_SCALARS[kind])
        if origin is Literal:
            return _choice(arguments, path)
        if origin in (Union, types.UnionType):
            return self._union(arguments, path)
        if (origin in _LISTS and arguments) or (origin is tuple and arguments[1:] == (Ellipsis,)):
            return {"type": "array", "items": self._type(arguments[0], f"{path}[]")}
        if origin in _MAPPINGS and arguments and arguments[0] is str:
            return {"type": "object", "additionalProperties": self._type(arguments[1], f"{path}[]")}
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return _choice(tuple(member.value for member in kind), path)
        if isinstance(kind, type) and (attrs.has(kind) or dataclasses.is_dataclass(kind)):
            return {"$ref": self._reference(kind, path)}
        raise _refusal(
            f"cannot have {path}: {_name(kind)} has no schema here; use str, int, float, bool, an enum, a "
            "Literal, a list or dict[str, …] of these, a class, or an optional one"
        )

    def _union(self, branches: tuple[Any, ...], path: str) -> dict[str, Any]:
        some = [branch for branch in branches if branch is not type(None)]
        if len(some) > 1 and not all(branch in _SCALARS for branch in some):
            raise _refusal(
                f"cannot have {path}: of a union only plain types can be told apart; use one class or None"
            )
        return {"anyOf": [self._type(branch, path) for branch in branches]}

    def _reference(self, kind: type[Any], path: str) -> str:
        if kind is self._root:
            return "#"
        name = self._names.get(kind)
        if name is None:
            name = kind.__name__
            while name in self._definitions:
                name += "_"
            self._names[kind] = name
            self._definitions[name] = {}  # first: one of its fields may be of the same class
            self._definitions[name] = self._object(kind, path)
        return f"#/$defs/{name}"


def _fields(kind: type[Any], path: str) -> list[tuple[str, Any]]:
    try:
        hints = typing.get_type_hints(kind, include_extras=True)
    except NameError as error:
        raise _refusal(f"cannot be made of {path}: {error}; annotate with names the module knows") from None
    own: tuple[Any, ...] = attrs.fields(kind) if attrs.has(kind) else dataclasses.fields(kind)
    names = [field.name for field in own if field.init]
    for name in names:
        if name not in hints:
            raise _refusal(f"cannot have {path}.{name}: it has no annotation")
    return [(name, hints[name]) for name in names]


def _choice(values: tuple[Any, ...], path: str) -> dict[str, Any]:
    kinds = {type(value) for value in values}
    if not kinds or not kinds <= {str, int, bool, type(None)}:
        raise _refusal(f"cannot have {path}: its values must be texts, whole numbers, True, False or None")
    if len(kinds) > 1:
        return {"enum": list(values)}
    return {**_SCALARS[kinds.pop()], "enum": list(values)}


def _closed(schema: Any) -> Any:
    """Close the objects of a schema and require all their properties, unless it says otherwise itself."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {
        key: value if key in ("default", "enum", "const") else _closed(value) for key, value in schema.items()
    }
    if isinstance(properties := closed.get("properties"), dict) and closed.get("type") == "object":
        closed.setdefault("additionalProperties", False)
        closed["required"] = list(properties)
    return closed


def _name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)


def _refusal(problem: str) -> InvalidRequest:
    return InvalidRequest(f"schema {problem}", field="schema")
