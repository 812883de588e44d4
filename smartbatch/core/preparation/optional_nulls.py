"""Nulls that stand for "left out".

Some APIs require every property, so an optional one becomes nullable there, and models write ``null`` for
what they would leave out. Where the schema knows no such null, it is dropped, and the default holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any


def without_nulls(schema: Mapping[str, Any], value: Any) -> Any:
    """Return ``value`` without the properties that are ``null``, optional, and not allowed to be ``null``;
    ``value`` itself where it has none."""
    return _Cleaning(schema).cleaned([schema], value) if _has_null(value) else value


def _has_null(value: Any) -> bool:
    if isinstance(value, dict):
        return any(item is None or _has_null(item) for item in value.values())
    return isinstance(value, list) and any(map(_has_null, value))


class _Cleaning:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root

    def cleaned(self, schemas: Iterable[Any], value: Any) -> Any:
        """Return a part of an answer, which follows one of ``schemas``, without such nulls."""
        leaves = list(self._leaves(schemas, set()))
        if isinstance(value, list):
            return [
                self.cleaned([part for leaf in leaves for part in _items(leaf, i)], item)
                for i, item in enumerate(value)
            ]
        if not isinstance(value, dict):
            return value
        objects = [leaf for leaf in leaves if isinstance(leaf.get("properties"), Mapping)]
        objects = [each for each in objects if self._may_be(each, value)] or objects
        kept: dict[str, Any] = {}
        for name, item in value.items():
            owners = [each for each in objects if name in each["properties"]]
            parts = [each["properties"][name] for each in owners]
            optional = any(name not in each.get("required", ()) for each in owners)
            if item is None and optional and not self._takes_null(parts):
                continue
            further = [leaf["additionalProperties"] for leaf in leaves if "additionalProperties" in leaf]
            kept[name] = self.cleaned(parts or further, item)
        return kept

    def _leaves(self, schemas: Iterable[Any], seen: set[int]) -> Iterator[Mapping[str, Any]]:
        """Yield the schemas that a value may follow, with references followed and choices opened."""
        for schema in schemas:
            if not isinstance(schema, Mapping) or id(schema) in seen:
                continue
            seen.add(id(schema))
            yield schema
            if isinstance(target := schema.get("$ref"), str):
                yield from self._leaves([self._target(target)], seen)
            for word in ("anyOf", "oneOf", "allOf"):
                yield from self._leaves(schema.get(word, ()), seen)

    def _target(self, target: str) -> Any:
        found: Any = self._root
        for part in target.removeprefix("#").split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, Mapping) else None
        return found

    def _may_be(self, schema: Mapping[str, Any], value: Mapping[str, Any]) -> bool:
        """Whether the properties with fixed values have one of these: they tell the branches of a union."""
        for name, part in schema["properties"].items():
            if name in value:
                fixed = [values for leaf in self._leaves([part], set()) if (values := _fixed(leaf))]
                if fixed and not any(value[name] in values for values in fixed):
                    return False
        return True

    def _takes_null(self, schemas: Iterable[Any]) -> bool:
        leaves = list(self._leaves(schemas, set()))
        return not leaves or any(
            None in _fixed(leaf)
            or "null" in _listed(leaf.get("type"))
            or not {"type", "const", "enum", "$ref", "anyOf", "oneOf", "allOf"} & set(leaf)
            for leaf in leaves
        )


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _fixed(schema: Mapping[str, Any]) -> list[Any]:
    return [schema["const"]] if "const" in schema else _listed(schema.get("enum", []))


def _items(schema: Mapping[str, Any], position: int) -> Iterator[Any]:
    first = schema.get("prefixItems", ())
    if position < len(first):
        yield first[position]
    elif "items" in schema:
        yield schema["items"]
