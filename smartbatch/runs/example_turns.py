"""Reads the examples of a run, and checks their answers against the schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from smartbatch.core.preparation.class_schemas import schema_of
from smartbatch.core.preparation.json_schemas import Misfit, plain_schema
from smartbatch.core.preparation.structured import Problem, check_answer
from smartbatch.errors import InputError
from smartbatch.tables.cells import BadField, is_missing, listed
from smartbatch.tables.row_formats import BadRow
from smartbatch.tables.row_prompts import ANSWER_FIELD, MAX_EXAMPLES, RowPrompts
from smartbatch.tables.row_source import RowSource


def example_turns(
    source: RowSource, prompts: RowPrompts, schema: Mapping[str, Any] | None
) -> list[Mapping[str, str]]:
    """Return the turns of all examples; see :meth:`RowPrompts.example`.

    If answers have a schema, an example may have one field per property of the schema in place of the
    answer.

    Raises:
        InputError: there are no examples or too many, or a row is invalid, which the error names.
    """
    turns: list[Mapping[str, str]] = []
    for row in source.rows():
        try:
            if isinstance(row, BadRow):
                raise BadField(row.message)
            if row.index == MAX_EXAMPLES:
                raise BadField(f"is beyond the limit of {MAX_EXAMPLES:,} examples")
            if schema is None:
                turns += prompts.example(row.fields)
                continue
            turns += prompts.example(_with_answer(row.fields, prompts, schema))
            verdict = check_answer(*schema_of(schema), turns[-1]["content"], "stop")
            if isinstance(verdict, Problem):
                raise BadField(f"{verdict.message}; write it as JSON that follows the schema")
        except BadField as error:
            raise InputError(f"--examples {source.name}: {source.place(row)}: {error.message}") from error
    if not turns:
        raise InputError(f"--examples {source.name}: has no rows")
    return turns


def _with_answer(
    fields: Mapping[str, Any], prompts: RowPrompts, schema: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return a row with an answer, made of the fields that the properties of the schema name."""
    properties = schema.get("properties") or {}
    if ANSWER_FIELD in fields or not properties:
        return fields
    absent = [name for name in schema.get("required", properties) if name not in fields]
    if absent:
        raise BadField(
            f"no field {ANSWER_FIELD!r}, and no {absent[0]!r} of the schema; the row has {listed(fields)}"
        )
    answer: dict[str, Any] = {}
    for name, part in properties.items():
        own = part if isinstance(part, Mapping) else {}
        value = _value(fields.get(name), {"$defs": schema.get("$defs", {}), **own})
        if value is not None or name in schema.get("required", ()):
            answer[name] = value
    others = {name: value for name, value in fields.items() if name not in answer or name in prompts.fields}
    return {**others, ANSWER_FIELD: answer}


def _value(cell: Any, schema: Mapping[str, Any]) -> Any:
    """Return the value of a property. A cell of a text file is converted if the schema allows no text."""
    possible = [cell]
    if is_missing(cell) or (isinstance(cell, str) and not cell.strip()):
        possible.append(None)
    elif isinstance(cell, str):
        for text in (cell, cell.lower()):  # true and false may be capitalized
            with suppress(ValueError, RecursionError):
                possible.append(json.loads(text))
    check = plain_schema(json.dumps(schema))
    for value in possible:
        with suppress(Misfit):
            return check(value)
    return cell
