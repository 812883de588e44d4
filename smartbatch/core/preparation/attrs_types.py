"""Types with classes in them that pydantic does not know: their JSON schema, and objects made by cattrs.

These are attrs classes and, before Python 3.12, the TypedDicts of :mod:`typing`. cattrs builds them, and the
dataclasses, TypedDicts and containers that have some; all else in them is pydantic's, which knows dates,
bounds, enums, models and the like.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from itertools import islice
from typing import Any, Union, get_args, get_origin

import attrs

from smartbatch._importing import imported
from smartbatch.core.preparation.keywords import MAX_FLAWS
from smartbatch.core.preparation.plain_schemas import Misfit, broken
from smartbatch.core.preparation.pydantic_types import pydantic_type, schema_generator, unbuilt
from smartbatch.errors import InvalidRequest

_LISTS = (list, Sequence, tuple, set, frozenset)
_MAPPINGS = (dict, Mapping)


def is_for_cattrs(kind: Any) -> bool:
    """Whether a class that pydantic does not know is a part of a type."""
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
        except NameError:  # pydantic says which
            return False
    return any(_is_for_cattrs(part, seen) for part in parts)


def _is_old_dictionary(kind: Any) -> bool:
    """Whether a type is a TypedDict that pydantic refuses: it has lost what its parents require."""
    is_old = not hasattr(typing, "TypeAliasType")  # as before Python 3.12
    return is_old and type(kind).__module__ == "typing" and typing.is_typeddict(kind)


class AttrsType:
    """A type as cattrs structures it; called with decoded JSON it returns an object.

    Args:
        kind: a type with an attrs class in it.

    Attributes:
        schema: its JSON schema.

    Raises:
        InvalidRequest: it has a part that JSON cannot express; the text names the field.
    """

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self.schema = _Writer(kind).whole()
        self._structure = _converter().get_structure_hook(kind)  # refuses unions that cannot be told apart

    def __reduce__(self) -> tuple[Any, ...]:
        return AttrsType, (self._kind,)

    def __call__(self, value: Any) -> Any:
        """Return the object that ``value`` stands for.

        Raises:
            Misfit: a part of the type does not accept it.
        """
        try:
            return self._structure(value, self._kind)
        except Exception as error:  # cattrs', and those of the user's classes
            raise _misfit(error) from None


def _misfit(error: Exception) -> Misfit:
    """Return what an error of cattrs says about an answer; it names the place of the first flaw."""
    flaws = list(islice(_flaws(error, ()), MAX_FLAWS))
    place, first = flaws[0]
    told = "; ".join(
        f"in {'.'.join(path) or 'the whole'}: {_told(flaw)}"[:500].rstrip(".") for path, flaw in flaws
    )
    if isinstance(first, Misfit):
        return broken([*place, *first.place], first.reason, told)
    if isinstance(first, KeyError) and type(first) is KeyError:
        return broken(place, "missing", told)
    return unbuilt(first)


def _told(flaw: Exception) -> str:
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
    for kind in (str, int, float, bytes, Enum):  # cattrs has hooks of its own for these and their subclasses
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
    """A union with classes in it: the class that has most of an answer's properties is tried first."""

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
            except Exception as error:  # cattrs', and those of the user's classes
                failure = failure or error
        assert failure is not None
        raise failure


def _shared_names(kind: Any, value: Any) -> int:
    bare = get_origin(kind) or kind
    names = getattr(bare, "__annotations__", {})
    return sum(name in names for name in value) if isinstance(value, dict) else 0


class _Writer:
    """Writes the schema of one type; its classes become definitions, so they may be recursive.

    What is pydantic's is written at the end, all at once, so that pydantic finds names for its definitions.
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
        if whole is not None:  # the root is no reference
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
        """Return the schema of a type. The cases, in order: one of pydantic's; annotated; a union; a list; a
        mapping; a class. Any other is refused."""
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
        raise _refusal(f"cannot have {path}: {kind} with an attrs class in it has no schema")

    def _check(self, kind: Any, path: str) -> None:
        try:
            pydantic_type(kind)
        except Exception as error:
            raise _refusal(f"cannot have {path}: {' '.join(str(error).split())[:300]}") from None

    def _class(self, kind: Any, path: str) -> dict[str, Any]:
        if kind not in self._classes:
            written = self._classes[kind] = {}  # first: one of its fields may be of the same class
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
    """Return the names, types and necessity of what a class is made of."""
    bare = get_origin(kind) or kind
    try:
        if attrs.has(bare):
            attrs.resolve_types(bare, include_extras=True)
        hints = typing.get_type_hints(bare, include_extras=True)
    except NameError as error:
        raise _refusal(f"cannot be made of {path}: {error}; annotate with names the module knows") from None
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
            raise _refusal(f"cannot have {path}.{name}: it has no annotation")
    return [(name, hints[name], needed) for name, needed in found]


def _name(kind: Any) -> str:
    return str(getattr(get_origin(kind) or kind, "__name__", kind))


def _refusal(problem: str) -> InvalidRequest:
    return InvalidRequest(f"schema {problem}", field="schema")
