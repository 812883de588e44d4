"""Rewrites JSON schemas in the dialects of the APIs that enforce them.

An API accepts only a part of JSON Schema. References are followed, ``allOf`` is merged, ``oneOf``
becomes ``anyOf``, and unsupported keywords move into the description, which the model reads. The
rewritten schema may allow answers that the original rejects, because every answer is checked against
the original. It never excludes a kind of answer that the original allows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from attrs import frozen

T = TypeVar("T")

# keywords that map user-defined names, which may be keywords themselves, to schemas
BY_NAME = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
VALUES = ("enum", "const", "default", "examples")  # keywords with data, not schemas
_IGNORED_KEYWORDS = frozenset(
    {"$schema", "$comment", "$defs", "definitions", "discriminator", "deprecated"}
) | {
    "readOnly",
    "writeOnly",
}
_ANNOTATIONS = ("title", "description", "default", "examples")
_CHOICES = ("anyOf", "oneOf")
_SHAPES = ("properties", "required", "additionalProperties", "patternProperties", "items", "prefixItems")
_OF_TYPE = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
_SCHEMA_INSTRUCTION = "Answer with one JSON value that follows this JSON schema, and with nothing else:\n"


class NotExpressible(ValueError):
    """A schema cannot be expressed in a dialect without excluding valid answers. The message says why."""


@frozen
class Dialect:
    """The part of JSON Schema that an API accepts."""

    keywords: frozenset[str]  # limits of strings, numbers and arrays
    formats: frozenset[str]  # supported values of format
    open_objects: bool = False  # objects may have unnamed properties, and values may have any type
    all_required: bool = False  # every property is required; optional properties become nullable
    tuples: bool = False  # prefixItems is supported
    # types of enum values; const is supported if bool is one of them
    constants: tuple[type, ...] = (str, int, float, bool, type(None))
    # "any", "optional" (only below optional properties) or "none"
    recursion: str = "any"


def in_dialect(schema: Mapping[str, Any], dialect: Dialect) -> dict[str, Any]:
    """Rewrite ``schema`` in a dialect, with its references below ``$defs``.

    Raises:
        NotExpressible: the dialect cannot express it.
    """
    return _DialectWriter(schema, dialect).whole()


def once_per_schema(write: Callable[[dict[str, Any]], T]) -> Callable[[Mapping[str, Any]], T]:
    """Cache the results of ``write``, because the requests of a client usually share one schema."""

    @lru_cache(maxsize=256)
    def written(text: str) -> T:
        return write(json.loads(text))

    return lambda schema: written(json.dumps(schema))


def instruction(schema: Mapping[str, Any]) -> str:
    """Describe a schema in the prompt, for an API that cannot enforce it."""
    return _SCHEMA_INSTRUCTION + json.dumps(schema, ensure_ascii=False, separators=(",", ":"))


def subschemas(schema: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the direct subschemas of a schema, but not the values of keywords with data."""
    for key, value in schema.items():
        if key in BY_NAME and isinstance(value, Mapping):
            yield from value.values()
        elif key not in VALUES:
            yield from value if isinstance(value, list) else (value,)


def references(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        if isinstance(target := schema.get("$ref"), str):
            yield target
        for inner in subschemas(schema):
            yield from references(inner)


class _DialectWriter:
    """Writes one schema in a dialect. Referenced parts become definitions, so the schema may be recursive."""

    def __init__(self, root: Mapping[str, Any], dialect: Dialect) -> None:
        self._root = root
        self._dialect = dialect
        self._names: dict[str, str] = {}
        self._definitions: dict[str, Any] = {}
        self._open: list[str] = []  # targets being written

    def whole(self) -> dict[str, Any]:
        form = self._form(self._root)
        if self._dialect.recursion != "any":
            self._restrict_recursion(form)
        return {**form, "$defs": self._definitions} if self._definitions else form

    # -- one schema ------------------------------------------------------------------------------------------

    def _form(self, schema: Any) -> dict[str, Any]:
        if not isinstance(schema, Mapping):
            if schema is False:
                raise NotExpressible("a part of it allows no value at all")
            schema = {}
        merged = _MergedSchema(self._root, self._open)
        merged.add_part(schema)
        depth = len(self._open)
        self._open += merged.inlined
        try:
            return self._whole_form(merged.schema, merged.notes)
        finally:
            del self._open[depth:]

    def _whole_form(self, schema: dict[str, Any], notes: dict[str, Any]) -> dict[str, Any]:
        # 1. A reference.
        if "$ref" in schema:
            return self._described({"$ref": self._reference(schema["$ref"])}, schema, notes)
        # 2. A choice of schemas; keywords next to it apply to each branch.
        choice = next((word for word in _CHOICES if isinstance(schema.get(word), list)), None)
        if choice is not None:
            rest = {key: value for key, value in schema.items() if key != choice}
            if any(key in rest for key in ("type", *_SHAPES)):
                common = {key: value for key, value in rest.items() if key not in _ANNOTATIONS}
                branches = [self._form({"allOf": [common, branch]}) for branch in schema[choice]]
            else:
                notes |= self._left_over(rest, ())
                branches = [self._form(branch) for branch in schema[choice]]
            return self._described({"anyOf": branches}, schema, notes)
        # 3. A choice of values.
        if "enum" in schema or "const" in schema:
            return self._constants(schema, notes)
        # 4. A type, or several.
        return self._typed(schema, notes)

    def _typed(self, schema: Mapping[str, Any], notes: dict[str, Any]) -> dict[str, Any]:
        types = _types(schema)
        if not types:
            if not self._dialect.open_objects:
                raise NotExpressible("a part of it allows a value of any type")
            return self._described({}, schema, notes | self._left_over(schema, ()))
        form: dict[str, Any] = {"type": types[0] if len(types) == 1 else types}
        taken = ["type"]
        if "object" in types:
            form |= self._object(schema)
            taken += ["properties", "required", "additionalProperties"]
        if "array" in types:
            form |= self._items(schema, notes)
            taken += ["items", "prefixItems"]
        for key, value in schema.items():
            if key in self._dialect.keywords and self._takes(key, value):
                form[key] = value
                taken.append(key)
        return self._described(form, schema, notes | self._left_over(schema, taken))

    def _takes(self, key: str, value: Any) -> bool:
        if key == "format":
            return value in self._dialect.formats
        if key == "pattern":  # no API supports lookaround or backreferences
            return isinstance(value, str) and "(?" not in value.replace("(?:", "") and not _refers_back(value)
        if key == "minItems" and "maxItems" not in self._dialect.keywords:
            return value in (0, 1)
        return True

    def _constants(self, schema: Mapping[str, Any], notes: dict[str, Any]) -> dict[str, Any]:
        values = schema["enum"] if isinstance(schema.get("enum"), list) else [schema.get("const")]
        known = [value for value in values if type(value) in self._dialect.constants]
        other = [value for value in values if type(value) not in self._dialect.constants]
        if any(isinstance(value, list | dict) for value in other):
            raise NotExpressible("its choice of values includes objects or lists")
        notes |= self._left_over(schema, ("type", "enum", "const"))
        branches: list[dict[str, Any]] = []
        if known:
            types = list(dict.fromkeys(_OF_TYPE[type(value)] for value in known))
            form: dict[str, Any] = {"type": types[0] if len(types) == 1 else types}
            only = "const" in schema and "enum" not in schema and bool in self._dialect.constants
            branches.append(form | ({"const": known[0]} if only else {"enum": known}))
        branches += [{"type": kind} for kind in dict.fromkeys(_OF_TYPE[type(value)] for value in other)]
        if any(isinstance(value, bool) for value in other):
            notes["enum"] = values
        form = branches[0] if len(branches) == 1 else {"anyOf": branches}
        return self._described(form, schema, notes)

    def _object(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        named = schema.get("properties")
        further = schema.get("additionalProperties", named is None)
        properties = {name: self._form(part) for name, part in (named or {}).items()}
        required = [name for name in schema.get("required", ()) if name in properties]
        form: dict[str, Any] = {"properties": properties}
        if self._dialect.open_objects:
            if "additionalProperties" in schema:
                form["additionalProperties"] = (
                    self._form(further) if isinstance(further, Mapping) else further
                )
            if not properties:
                del form["properties"]
            return form | ({"required": required} if required else {})
        if further is not False or schema.get("patternProperties"):
            raise NotExpressible("it has an object whose properties are not all named")
        if self._dialect.all_required:
            for name in set(properties).difference(required):
                properties[name] = _nullable(properties[name])
            required = list(properties)
        return form | {"required": required, "additionalProperties": False}

    def _items(self, schema: Mapping[str, Any], notes: dict[str, Any]) -> dict[str, Any]:
        first, rest = schema.get("prefixItems"), schema.get("items", schema.get("maxItems") != 0)
        if isinstance(first, list) and len(first) == schema.get("maxItems"):
            rest = False
        if self._dialect.tuples:
            form: dict[str, Any] = {"prefixItems": [self._form(part) for part in first]} if first else {}
            return form | ({"items": self._form(rest)} if isinstance(rest, Mapping) else {})
        parts = [self._form(part) for part in first or ()]
        if rest is not False:
            parts.append(self._form(rest))
        unique = [part for i, part in enumerate(parts) if part not in parts[:i]] or [{"type": "null"}]
        if len(unique) == 1:
            return {"items": unique[0]}
        notes["prefixItems"] = first
        return {"items": {"anyOf": unique}}

    # -- what is left over -----------------------------------------------------------------------------------

    def _left_over(self, schema: Mapping[str, Any], taken: Iterable[str]) -> dict[str, Any]:
        """Return the keywords that the dialect lacks and the model should know."""
        skipped = {*taken, *_CHOICES, *_IGNORED_KEYWORDS, "title", "description", "$ref"}
        left = {key: value for key, value in schema.items() if key not in skipped}
        if left.get("default", 1) is None:
            del left["default"]
        return left

    def _described(
        self, form: dict[str, Any], schema: Mapping[str, Any], notes: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Add the title and the description, extended by ``notes``."""
        text = str(schema.get("description") or "")
        if notes:
            words = ", ".join(f"{key}: {_written(value)}" for key, value in notes.items())
            text = f"{text}\n\n{{{words}}}" if text else f"{{{words}}}"
        more = {"title": schema["title"]} if isinstance(schema.get("title"), str) else {}
        if text:
            more["description"] = text
        if "$ref" in form and more:
            form = {"anyOf": [form]} if text else form
        return form if "$ref" in form else form | more

    # -- references ------------------------------------------------------------------------------------------

    def _reference(self, target: str) -> str:
        name = self._names.get(target)
        if name is None:
            schema = _target(self._root, target)
            name = base = "".join(c if c.isalnum() else "_" for c in target.rpartition("/")[2]) or "Whole"
            while name in self._definitions:
                name += "_"
            if name == "_" * len(name):
                raise NotExpressible(f"its definition {base!r} has a name that the dialect does not accept")
            self._names[target] = name
            self._definitions[name] = {}  # added first, because the definition may refer to itself
            self._open.append(target)
            self._definitions[name] = self._form(schema)
            self._open.pop()
        return f"#/$defs/{name}"

    def _restrict_recursion(self, root: dict[str, Any]) -> None:
        """Make properties that lead back to their own schema optional, or reject the schema."""
        same_as_root = [name for name, form in self._definitions.items() if form == root]
        direct = {name: set(references(form)) for name, form in self._definitions.items()}
        leads_to = {name: _reached(name, direct) for name in direct}
        for name, form in self._definitions.items():
            back = {f"#/$defs/{other}" for other in leads_to[name] if name in leads_to[other]}
            if not back:
                continue
            if self._dialect.recursion == "none":
                raise NotExpressible("it is recursive")
            if not _made_optional(form, back):
                raise NotExpressible("it is recursive without an intermediate property")
            if name in same_as_root:
                _made_optional(root, back)


class _MergedSchema:
    """A schema without ``allOf``, and without references next to other keywords."""

    def __init__(self, root: Mapping[str, Any], open_targets: Sequence[str]) -> None:
        self._root = root
        self._open = open_targets
        self.schema: dict[str, Any] = {}
        self.notes: dict[str, Any] = {}  # contradictory keywords of the parts
        self.inlined: list[str] = []  # targets of the references that were replaced

    def add_part(self, schema: Mapping[str, Any]) -> None:
        target, parts = schema.get("$ref"), schema.get("allOf") or ()
        own = {
            key: value for key, value in schema.items() if key not in ("allOf", "$ref", *_IGNORED_KEYWORDS)
        }
        if isinstance(target, str):
            if not self.schema and not own and not parts:  # a reference without other keywords is kept
                self.schema["$ref"] = target
                return
            if target in (*self._open, *self.inlined):  # the schema would contain itself
                if parts or not {*self.schema, *own} <= {*_ANNOTATIONS}:
                    raise NotExpressible("it refers to itself next to other keywords")
                self._combine({**own, "anyOf": [{"$ref": target}]})
                return
            self._follow(target)
        for i, part in enumerate(parts):
            if isinstance(part, Mapping) and (
                i or len(parts) > 1 or own or self.schema or "$ref" not in part
            ):
                self.add_part(part)
            elif isinstance(part, Mapping):
                self.schema["$ref"] = part["$ref"]
        self._combine(own)

    def _follow(self, target: str) -> None:
        self.inlined.append(target)
        self.add_part(_target(self._root, target))

    def _combine(self, own: Mapping[str, Any]) -> None:
        if own and isinstance(target := self.schema.pop("$ref", None), str):
            self._follow(target)
        for key, value in own.items():
            known: Any = self.schema.get(key)
            if key not in self.schema or key in _ANNOTATIONS:
                self.schema[key] = value
            elif key == "required":
                self.schema[key] = list(dict.fromkeys([*known, *value]))
            elif key == "properties":
                both = {name: {"allOf": [known[name], value[name]]} for name in known if name in value}
                self.schema[key] = {**known, **value, **both}
            elif known != value:
                self.notes[key] = value


def _target(root: Mapping[str, Any], target: str) -> Mapping[str, Any]:
    found: Any = root
    for part in target.removeprefix("#").split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            found = found.get(name) if isinstance(found, Mapping) else None
    if target[:1] != "#" or target[1:2] not in ("", "/") or not isinstance(found, Mapping):
        raise NotExpressible("it has a reference to another document")
    return found


def _reached(name: str, direct: Mapping[str, set[str]]) -> set[str]:
    """Return the definitions that a definition refers to, directly or through others."""
    reached: set[str] = set()
    further = [name]
    while further:
        for target in direct[further.pop()]:
            other = target.removeprefix("#/$defs/")
            if other not in reached:
                reached.add(other)
                further.append(other)
    return reached


def _made_optional(form: dict[str, Any], back: set[str]) -> bool:
    """Make properties with a reference in ``back`` optional; False if one is outside all properties."""
    if form.get("$ref") in back:
        return False
    properties = form.get("properties", {})
    for name, part in properties.items():
        if back.intersection(references(part)):
            form["required"] = [other for other in form.get("required", ()) if other != name]
            if not form["required"]:
                del form["required"]
    inner = [value for key, value in form.items() if key not in ("properties", *VALUES)]
    parts = [part for value in inner for part in (value if isinstance(value, list) else (value,))]
    return all(_made_optional(part, back) for part in parts if isinstance(part, dict))


def _types(schema: Mapping[str, Any]) -> list[str]:
    given = schema.get("type")
    if given is not None:
        return list(given) if isinstance(given, list) else [given]
    if "properties" in schema or "additionalProperties" in schema:
        return ["object"]
    return ["array"] if "items" in schema or "prefixItems" in schema else []


def _nullable(form: dict[str, Any]) -> dict[str, Any]:
    return form if _takes_null(form) else {"anyOf": [form, {"type": "null"}]}


def _takes_null(form: Mapping[str, Any]) -> bool:
    types = form.get("type")
    if "enum" in form or "const" in form:
        return None in form.get("enum", [form.get("const", 0)])
    return (
        types == "null"
        or (isinstance(types, list) and "null" in types)
        or any(map(_takes_null, form.get("anyOf", ())))
    )


def _refers_back(pattern: str) -> bool:
    return any(f"\\{digit}" in pattern.replace("\\\\", "") for digit in "123456789")


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
