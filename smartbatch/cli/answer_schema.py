"""The JSON schema of the answers, from ``--schema`` or ``--output-field``."""

from __future__ import annotations

import argparse
import json
import os
import pkgutil
import re
import sys
from collections.abc import Mapping
from typing import Any, Final

from smartbatch.core.preparation.class_schemas import schema_of
from smartbatch.core.preparation.validation import admit_defaults
from smartbatch.errors import ConfigError, InvalidRequest, did_you_mean
from smartbatch.types import Generation

_CLASS: Final = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w.]*")  # module:Class
_TYPES: Final[Mapping[str, Mapping[str, Any]]] = {
    "str": {"type": "string"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "date": {"type": "string", "format": "date", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"},
}
_OTHER_TYPES: Final = {"string": "str", "text": "str", "integer": "int", "number": "float", "boolean": "bool"}
_STATEMENTS: Final = frozenset(
    {"type", "properties", "enum", "const", "items", "anyOf", "oneOf", "allOf", "$ref"}
)
"""A schema needs at least one of these keywords; without them, it would allow every answer. The
``json_schema`` of a request, which wraps a schema, has none of them."""
_NUMBER: Final = r"-?[0-9]+(?:\.[0-9]+)?"
_RANGE: Final = re.compile(rf"({_NUMBER}) ?- ?({_NUMBER})")
_LIST: Final = "list of "
_NULL: Final = "|null"
_EXAMPLES: Final = (
    '"sentiment: positive|negative|mixed", "stars: int 1-5", "share: float 0-1", "reason: str", '
    '"refund: bool", "due: date" or "topics: list of str"'
)


def answer_schema(args: argparse.Namespace) -> Mapping[str, Any] | None:
    """Return the schema that the options describe; ``None`` without such an option.

    Raises:
        ConfigError: both options are given, or the file, the class or a field cannot be used.
    """
    if args.schema is None and not args.output_field:
        return None
    if args.schema is not None and args.output_field:
        raise ConfigError("--schema and --output-field both describe the answer: leave one out")
    if args.schema is None:
        return _schema_of_fields(args.output_field)
    from_class = _CLASS.fullmatch(args.schema) and not os.path.exists(args.schema)
    schema = _schema_of_class(args.schema) if from_class else _schema_in_file(args.schema)
    try:
        admit_defaults(Generation(schema=schema))
    except InvalidRequest as error:
        raise ConfigError(f"--schema {args.schema}: {error.message}") from error
    return schema


def _schema_in_file(path: str) -> Any:
    try:
        with open(path, encoding="utf-8-sig") as file:
            schema = json.load(file)
    except OSError as error:
        raise ConfigError(
            f"--schema {path}: cannot be read: {error.strerror or error}; name a JSON file such as "
            "label.json, or a class such as labels:Label"
        ) from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ConfigError(f"--schema {path}: is not valid JSON: {error.msg} ({where})") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--schema {path}: is not valid JSON in UTF-8") from error
    if not isinstance(schema, dict) or not _STATEMENTS & schema.keys():
        raise ConfigError(
            f'--schema {path}: must be a JSON object that describes the answer, such as {{"type": "object", '
            '"properties": …}'
        )
    return schema


def _schema_of_class(name: str) -> Mapping[str, Any]:
    """Return the schema of an importable class. Modules in the current folder can be imported, as with
    ``python -m``.
    """
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())
    try:
        found = pkgutil.resolve_name(name)
    except Exception as error:  # from the user's module
        problem = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ConfigError(f"--schema {name}: cannot be imported: {problem}") from error
    try:
        return dict(schema_of(found)[0])
    except InvalidRequest as error:
        raise ConfigError(f"--schema {name}: {error.message}") from error


def _schema_of_fields(fields: list[str]) -> Mapping[str, Any]:
    properties: dict[str, Any] = {}
    for field in fields:
        name, _, written = (part.strip() for part in field.partition(":"))
        if not name or not written:
            raise ConfigError(f"--output-field {field!r}: needs a name and a type, such as {_EXAMPLES}")
        if name in properties:
            raise ConfigError(f"--output-field {name}: is given twice; leave one out")
        properties[name] = _schema_of_type(re.sub(r"\s*(\||\s)\s*", r"\1", written), name)
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _schema_of_type(written: str, field: str) -> dict[str, Any]:
    def refusal(problem: str) -> ConfigError:
        return ConfigError(f"--output-field {field}: {problem}")

    # 1. A list.
    if written.startswith(_LIST):
        return {"type": "array", "items": _schema_of_type(written.removeprefix(_LIST), field)}
    # 2. A value that may be missing.
    if (always := written.removesuffix(_NULL)) != written:
        return {"anyOf": [_schema_of_type(always, field), {"type": "null"}]}
    # 3. One of several strings.
    if "|" in written:
        values = written.split("|")
        if "" in values or len({*values}) < len(values):
            raise refusal("has an empty or a repeated value; write them as in positive|negative|mixed")
        if "null" in values:
            raise refusal("null comes last, as in positive|negative|null")
        if {*values} <= _TYPES.keys():
            raise refusal("has several types; choose one, or describe the answer with --schema FILE")
        return {"type": "string", "enum": values}
    # 4. A type, and for numbers a range.
    name, _, bounds = written.partition(" ")
    if name not in _TYPES:
        meant = _OTHER_TYPES.get(name)
        hint = did_you_mean(name, _TYPES) if meant is None else f"; did you mean {meant}?"
        raise refusal(f"{name!r} is not a type{hint or f'; write the field as in {_EXAMPLES}'}")
    if not bounds:
        return dict(_TYPES[name])
    if name not in ("int", "float"):
        raise refusal(f"only int and float have a range, not {name}; such as {_EXAMPLES}")
    found = _RANGE.fullmatch(bounds)
    if found is None:
        raise refusal(f"{bounds!r} is not a range; write it as in int 1-5 or float -1-1")
    kind = int if name == "int" else float
    try:
        low, high = kind(found[1]), kind(found[2])
    except ValueError:
        raise refusal(f"the range {bounds} of an int needs whole numbers") from None
    if low >= high:
        raise refusal(f"the range {bounds} is empty: put the lower number first")
    return {**_TYPES[name], "minimum": low, "maximum": high}
