"""JSON schemas of types, and objects of those types made from JSON.

Pydantic handles its models, dataclasses, TypedDicts and plain types. cattrs handles types that
contain attrs classes or, before Python 3.12, TypedDicts of :mod:`typing`; pydantic still handles all
other parts of these types. The type itself checks an answer: whatever the type accepts is accepted.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache, lru_cache, partial
from itertools import islice
from typing import Any, TypeAlias, Union, get_args, get_origin

import attrs

from smartbatch._fork import imported, one_at_a_time
from smartbatch.core.preparation.json_schemas import (
    MAX_FLAWS,
    Misfit,
    broken,
    judged_by,
    keywords,
    plain_schema,
)
from smartbatch.errors import InvalidRequest


class PydanticType:
    """A type validated by pydantic. Called with decoded JSON, it returns an object."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._adapter = imported("pydantic").TypeAdapter(kind)
        self.schema = with_object_root(self._adapter.json_schema(schema_generator=schema_generator()))
        self._names = set(_property_names(self.schema))

    def __reduce__(self) -> tuple[Any, ...]:
        return PydanticType, (self._kind,)

    def __call__(self, value: Any) -> Any:
        # JSON has its own rules; for example, a strict type accepts a date as a string.
        written = json.dumps(value)
        try:
            return self._adapter.validate_json(written)
        except imported("pydantic").ValidationError as error:
            raise self._misfit(error) from None
        except Exception as error:  # from a user's validator
            raise unbuilt(error) from None

    def _misfit(self, error: Any) -> Misfit:
        flaws = error.errors(include_url=False, include_context=False)
        # A name that the schema does not have may be a key of the answer.
        place = [part for part in flaws[0]["loc"] if part in self._names]
        flaw_texts = "; ".join(
            f"at {'.'.join(map(str, flaw['loc'])) or 'the top'}: {flaw['msg'][:500]}, not {_shown(flaw)}"
            for flaw in flaws[:MAX_FLAWS]
        )
        return broken(place, flaws[0]["type"], flaw_texts)


def _shown(flaw: Mapping[str, Any]) -> str:
    """Quote the value that the model wrote, shortened."""
    return json.dumps(flaw["input"], ensure_ascii=False, default=repr)[:200]


@lru_cache(maxsize=256)
def pydantic_type(kind: Any) -> PydanticType:
    return PydanticType(kind)


def unbuilt(error: Exception) -> Misfit:
    """Convert an exception raised by the user's class."""
    name = type(error).__name__
    problem = f"the answer follows the schema, but no object could be made from it: {name}"
    return Misfit(problem, f"{name}: {error}"[:1000])


@cache
def schema_generator() -> Any:
    """Pydantic's JSON schema generator, without titles that only repeat names."""
    return type(
        "Generator",
        (imported("pydantic.json_schema").GenerateJsonSchema,),
        {
            "ignored_warning_kinds": {"skipped-choice", "non-serializable-default"},
            "field_title_should_be_set": lambda *_: False,
        },
    )


def with_object_root(schema: dict[str, Any]) -> dict[str, Any]:
    """Replace a root that is a reference, which pydantic makes for recursive classes."""
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    if name in schema.get("$defs", {}):
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        return {**schema["$defs"][name], **rest}
    return schema


def _property_names(schema: Mapping[str, Any]) -> Iterator[str]:
    for key, value in keywords(schema):
        if key == "properties" and isinstance(value, Mapping):
            yield from value


_LISTS = (list, Sequence, tuple, set, frozenset)
_MAPPINGS = (dict, Mapping)


def is_for_cattrs(kind: Any) -> bool:
    """True if a type contains a class that pydantic does not support."""
    return _is_for_cattrs(kind, set())


def _is_for_cattrs(kind: Any, seen: set[int]) -> bool:
    if id(kind) in seen:
        return False
    seen.add(id(kind))
    if attrs.has(get_origin(kind) or kind) or _is_old_dictionary(kind):
        return True
    parts = list(get_args(kind))
    if dataclasses.is_dataclass(kind) or typing.is_typeddict(kind):
        try:
            parts += typing.get_type_hints(kind).values()
        except NameError:  # pydantic reports the missing name
            return False
    return any(_is_for_cattrs(part, seen) for part in parts)


def _is_old_dictionary(kind: Any) -> bool:
    """Pydantic rejects a TypedDict that does not record which inherited keys are required."""
    is_old = not hasattr(typing, "TypeAliasType")  # before Python 3.12
    return is_old and type(kind).__module__ == "typing" and typing.is_typeddict(kind)


class AttrsType:
    """A type structured by cattrs. Called with decoded JSON, it returns an object."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self.schema = _TypeWriter(kind).whole()
        # Rejects unions whose members cannot be distinguished.
        self._structure = _converter().get_structure_hook(kind)

    def __reduce__(self) -> tuple[Any, ...]:
        return AttrsType, (self._kind,)

    def __call__(self, value: Any) -> Any:
        try:
            return self._structure(value, self._kind)
        except Exception as error:  # from cattrs or the user's classes
            raise _misfit(error) from None


def _misfit(error: Exception) -> Misfit:
    """Report the first problem and its path."""
    flaws = list(islice(_flaws(error, ()), MAX_FLAWS))
    place, first = flaws[0]
    flaw_texts = "; ".join(
        f"in {'.'.join(path) or 'the whole'}: {_flaw_text(flaw)}"[:500].rstrip(".") for path, flaw in flaws
    )
    if isinstance(first, Misfit):
        return broken([*place, *first.place], first.reason, flaw_texts)
    if isinstance(first, KeyError) and type(first) is KeyError:
        return broken(place, "missing", flaw_texts)
    return unbuilt(first)


def _flaw_text(flaw: Exception) -> str:
    return flaw.advice.removeprefix("at the top: ") if isinstance(flaw, Misfit) else str(flaw)


def _flaws(error: Exception, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Exception]]:
    names = [note.name for note in getattr(error, "__notes__", ()) if hasattr(note, "name")]
    path = (*path, *names)
    if not isinstance(error, ExceptionGroup):
        yield path, error
        return
    for inner in error.exceptions:
        yield from _flaws(inner, path)


@cache
def _converter() -> Any:
    converter = imported("cattrs").Converter()
    for kind in (str, int, float, bytes, Enum):  # cattrs has its own hooks for these and their subclasses
        converter.register_structure_hook(kind, _by_pydantic)
    converter.register_structure_hook_func(lambda kind: not is_for_cattrs(kind), _by_pydantic)
    converter.register_structure_hook_factory(
        lambda kind: _is_union(kind) and is_for_cattrs(kind), lambda kind: _Union(kind, converter)
    )
    return converter


def _by_pydantic(value: Any, kind: Any) -> Any:
    return pydantic_type(kind)(value)


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType)


class _Union:
    """A union that contains classes. The class that shares the most properties with the answer is tried
    first.
    """

    def __init__(self, kind: Any, converter: Any) -> None:
        self._converter = converter
        branches = get_args(kind)
        self._classes = [branch for branch in branches if is_for_cattrs(branch)]
        others = tuple(branch for branch in branches if branch not in self._classes)
        self._others = [Union[others]] if others else []  # noqa: UP007

    def __call__(self, value: Any, _: Any) -> Any:
        likely = sorted(self._classes, key=lambda branch: -_shared_names(branch, value))
        failure: Exception | None = None
        for branch in likely + self._others if isinstance(value, dict | list) else self._others + likely:
            try:
                return self._converter.structure(value, branch)
            except Exception as error:  # from cattrs or the user's classes
                failure = failure or error
        assert failure is not None
        raise failure


def _shared_names(kind: Any, value: Any) -> int:
    bare = get_origin(kind) or kind
    names = getattr(bare, "__annotations__", {})
    return sum(name in names for name in value) if isinstance(value, dict) else 0


class _TypeWriter:
    """Writes the schema of one type. Its classes become definitions, so they may be recursive.

    Parts handled by pydantic are written together at the end, because pydantic names its own
    definitions.
    """

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._classes: dict[Any, dict[str, Any]] = {}
        self._references: list[tuple[dict[str, Any], Any]] = []
        self._others: list[tuple[dict[str, Any], Any]] = []

    def whole(self) -> dict[str, Any]:
        root = self._type(self._kind, _name(self._kind))
        definitions = self._write_others()
        names: dict[Any, str] = {}
        for kind in self._classes:
            name = _name(kind)
            while name in definitions or name in names.values():
                name += "_"
            names[kind] = name
        for reference, kind in self._references:
            reference["$ref"] = f"#/$defs/{names[kind]}"
        definitions |= {names[kind]: schema for kind, schema in self._classes.items()}
        whole = next((kind for reference, kind in self._references if reference is root), None)
        if whole is not None:  # the root is not a reference
            root = self._classes[whole]
            if sum(kind is whole for _, kind in self._references) == 1:
                del definitions[names[whole]]
        return {**root, "$defs": definitions} if definitions else root

    def _write_others(self) -> dict[str, Any]:
        if not self._others:
            return {}
        adapter = imported("pydantic").TypeAdapter
        inputs = [(i, "validation", adapter(kind)) for i, (_, kind) in enumerate(self._others)]
        schemas, common = adapter.json_schemas(inputs, schema_generator=schema_generator())
        for i, (place, _) in enumerate(self._others):
            place |= schemas[i, "validation"]
        return dict(common.get("$defs", {}))

    def _type(self, kind: Any, path: str) -> dict[str, Any]:
        if get_origin(kind) in (typing.Required, typing.NotRequired):
            kind = get_args(kind)[0]
        if not is_for_cattrs(kind):
            place: dict[str, Any] = {}
            self._others.append((place, kind))
            self._check(kind, path)
            return place
        origin, arguments = get_origin(kind), get_args(kind)
        if origin is typing.Annotated:
            return self._type(arguments[0], path)
        if _is_union(kind):
            return {"anyOf": [self._type(branch, path) for branch in arguments]}
        if origin is tuple and arguments[1:] != (Ellipsis,):
            parts = [self._type(part, path) for part in arguments]
            return {"type": "array", "prefixItems": parts, "minItems": len(parts), "maxItems": len(parts)}
        if origin in _LISTS:
            return {"type": "array", "items": self._type(arguments[0], f"{path}[]")}
        if origin in _MAPPINGS:
            return {"type": "object", "additionalProperties": self._type(arguments[1], f"{path}[]")}
        if isinstance(origin or kind, type):
            return self._class(kind, path)
        raise _refusal(f"cannot include {path}: {kind} that contains an attrs class has no schema")

    def _check(self, kind: Any, path: str) -> None:
        try:
            pydantic_type(kind)
        except Exception as error:
            raise _refusal(f"cannot include {path}: {' '.join(str(error).split())[:300]}") from None

    def _class(self, kind: Any, path: str) -> dict[str, Any]:
        if kind not in self._classes:
            written = self._classes[kind] = {}  # added before its fields, which may use the same class
            fields = _fields(kind, path)
            written["type"] = "object"
            written["properties"] = {
                name: self._type(annotation, f"{path}.{name}") for name, annotation, _ in fields
            }
            if required := [name for name, _, needed in fields if needed]:
                written["required"] = required
        reference: dict[str, Any] = {}
        self._references.append((reference, kind))
        return reference


def _fields(kind: Any, path: str) -> list[tuple[str, Any, bool]]:
    """Return the name and type of each field, and whether it is required."""
    bare = get_origin(kind) or kind
    try:
        if attrs.has(bare):
            attrs.resolve_types(bare, include_extras=True)
        hints = typing.get_type_hints(bare, include_extras=True)
    except NameError as error:
        raise _refusal(
            f"cannot be made from {path}: {error}; use annotations that are defined in its module"
        ) from None
    if typing.is_typeddict(bare):
        return [(name, hint, name in bare.__required_keys__) for name, hint in hints.items()]
    if attrs.has(bare):
        found = [(own.name, own.default is attrs.NOTHING) for own in attrs.fields(bare) if own.init]
    else:
        missing = dataclasses.MISSING
        found = [
            (own.name, own.default is missing and own.default_factory is missing)
            for own in dataclasses.fields(bare)
            if own.init
        ]
    for name, _ in found:
        if name not in hints:
            raise _refusal(f"cannot include {path}.{name}: it has no annotation")
    return [(name, hints[name], needed) for name, needed in found]


def _name(kind: Any) -> str:
    return str(getattr(get_origin(kind) or kind, "__name__", kind))


Build: TypeAlias = Callable[[Any], Any]
"""Makes an object from decoded JSON, or raises :class:`~smartbatch.core.preparation.json_schemas.Misfit`."""

MAX_KNOWN_TYPES = 256  # types whose schemas are kept; the oldest is dropped first
_NOT_SCHEMA_TYPES = (
    str,
    bytes,
    int,
    float,
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    partial,
)


class BuiltSchema(dict[str, Any]):
    """A JSON schema with the function that builds objects from answers.

    It is sent to the provider like any other dictionary. Only the answer reader uses ``build``.
    """

    build: Build

    def __init__(self, schema: Mapping[str, Any], build: Build) -> None:
        super().__init__(schema)
        self.build = build

    def __reduce__(self) -> tuple[Any, ...]:
        return BuiltSchema, (dict(self), self.build)


def schema_of(kind: Any) -> tuple[dict[str, Any], Build]:
    """Return the JSON schema of ``kind`` and a function that makes an object from an answer.

    Args:
        kind: a JSON schema, or a type: an attrs class, a pydantic model, a dataclass, a TypedDict, or a
            type such as ``list[int]`` or ``Literal["a", "b"]``.

    Raises:
        InvalidRequest: ``kind`` is neither a schema nor a type, or JSON cannot express the type.
    """
    if isinstance(kind, BuiltSchema):
        return kind, kind.build
    if isinstance(kind, Mapping):
        return dict(kind), plain_schema(json.dumps(kind))
    if kind is None or isinstance(kind, _NOT_SCHEMA_TYPES):
        raise _refusal("must be a JSON schema (a dict) or a type, such as a class, list[int] or a Literal")
    try:
        known = _types.get(kind)
    except TypeError:  # annotated with a mutable value
        return _made(kind)
    if known is None:
        with one_at_a_time():  # neither library is known to be thread-safe for this
            known = _types.get(kind) or _made(kind)
            if len(_types) >= MAX_KNOWN_TYPES:
                del _types[next(iter(_types))]
            _types[kind] = known
    return known


# one function per type, because fingerprints compare it
_types: dict[Any, tuple[dict[str, Any], Build]] = {}


def _made(kind: Any) -> tuple[dict[str, Any], Build]:
    try:
        made = AttrsType(kind) if is_for_cattrs(kind) else PydanticType(kind)
    except InvalidRequest:
        raise
    except Exception as error:  # from pydantic, cattrs or the user's own classes
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise _refusal(f"cannot be made from {getattr(kind, '__name__', kind)}: {reason}") from error
    judged_by(made.schema, made)
    return made.schema, made


def _refusal(problem: str) -> InvalidRequest:
    return InvalidRequest(f"schema {problem}", field="schema")
