"""Templates: the text of a prompt with the names of fields in braces, filled from the fields of a row."""

from __future__ import annotations

import json
import string
from collections.abc import Iterable, Mapping
from datetime import date, time
from typing import Any, TypeAlias

from smartbatch.errors import SmartbatchError

_MAX_NAMES = 12
"""Field names listed in an error."""
_HINT = "write {field} for a field, {{ and }} for braces"

Part: TypeAlias = "tuple[str, str | None]"
"""Literal text, then the field that follows it."""


class TemplateError(SmartbatchError, ValueError):
    """The template cannot be used; the text says where."""


class BadField(SmartbatchError, ValueError):
    """A row lacks a field of its prompt or its id; the text names the field, never its content."""


def parse_template(template: str) -> tuple[Part, ...]:
    """Cut a ``str.format``-like template into literals and plain field names.

    Attribute access, indexing, conversions and format specifications are refused: a template picks fields,
    it does not run code. ``{{`` and ``}}`` stand for braces.

    Raises:
        TemplateError: the template cannot be used.
    """
    try:
        pieces = list(string.Formatter().parse(template))
    except ValueError as error:
        raise TemplateError(f"{error}; {_HINT}") from error
    for _, name, spec, conversion in pieces:
        if name is None:
            continue
        if not name or spec or conversion or any(c in name for c in ".[]{}"):
            written = name + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "")
            raise TemplateError(f"{{{written}}} is not a plain field name; {_HINT}")
    if all(name is None for _, name, _, _ in pieces):
        raise TemplateError(f"no field is named, so every row would ask the same; {_HINT}")
    return tuple((literal, name) for literal, name, _, _ in pieces)


def fields_of(parts: Iterable[Part]) -> list[str]:
    """Return the fields that a template names, each once."""
    return list(dict.fromkeys(name for _, name in parts if name is not None))


def fill(parts: Iterable[Part], fields: Mapping[str, Any]) -> str:
    """Return the text of a row: texts as they are, everything else as JSON.

    Raises:
        BadField: a field is missing or null.
    """
    pieces: list[str] = []
    for literal, name in parts:
        pieces.append(literal)
        if name is not None:
            pieces.append(text_of(field(fields, name)))
    return "".join(pieces)


def field(fields: Mapping[str, Any], name: str) -> Any:
    """Return a field of a row.

    Raises:
        BadField: it is missing or null.
    """
    try:
        value = fields[name]
    except KeyError:
        raise BadField(f"no field {name!r}; the row has {listed(fields)}") from None
    if is_missing(value):
        raise BadField(f"field {name!r} is null")
    return value


def is_missing(value: Any) -> bool:
    """Whether a value stands for none: ``None``, or a number that is not equal to itself."""
    return value is None or (isinstance(value, float) and value != value)


def listed(names: Iterable[object]) -> str:
    """Return names for an error: the first of them, in quotes."""
    names = list(names)
    more = ", …" if len(names) > _MAX_NAMES else ""
    return ", ".join(repr(name) for name in names[:_MAX_NAMES]) + more if names else "no fields"


def text_of(value: Any) -> str:
    """Return a value as text: a text as it is, a moment in its ISO form, what JSON has as JSON, and all else,
    such as a decimal number, as Python writes it."""
    if isinstance(value, str):
        return value
    if isinstance(value, date | time):
        return value.isoformat()
    if value is None or isinstance(value, bool | int | float | list | tuple | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)
