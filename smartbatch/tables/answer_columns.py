"""Results as columns, one row per request, and tables of prompts with results added."""

from __future__ import annotations

import dataclasses
import enum
from array import array
from collections.abc import Collection, Mapping, Sequence, Set
from datetime import date, time
from typing import Any

import attrs

from smartbatch.chats import PART_FORMS
from smartbatch.errors import did_you_mean, kind_name
from smartbatch.media import Media
from smartbatch.tables.cells import listed
from smartbatch.tables.columns import Columns, column_name, kind_of_table
from smartbatch.types import Result

_USAGE = ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens")


def answer_columns(
    results: Sequence[Result[Any]], chosen: Sequence[str] | None = None, suffix: str = ""
) -> Columns:
    """Return results as columns: text, fields of parsed objects, usage, cost, latency, route, attempts,
    model, finish reason and error; and vectors, tool calls, reasoning, log-probabilities and files, if there
        are any.

    A field of parsed objects that has the name of another column is called ``parsed_…``. Objects without
    fields are in the column ``parsed``.

    Args:
        chosen: names of the wanted columns, in this order; ``None`` for all.
        suffix: appended to each name.

    Raises:
        ValueError: a chosen column does not exist.
    """
    columns = _all_columns(results)
    if isinstance(chosen, str):
        chosen = (chosen,)
    for name in chosen or ():
        if name not in columns:
            raise ValueError(
                f"there is no answer column {name!r:.80}{did_you_mean(name, columns)}; the columns are "
                f"{listed(columns)}"
            )
    return {f"{name}{suffix}": columns[name] for name in (columns if chosen is None else chosen)}


def _all_columns(results: Sequence[Result[Any]]) -> Columns:
    columns: Columns = {}
    if has_samples(results):
        columns |= {"row": rows_of(results), "sample": [result.sample for result in results]}
    columns["text"] = [result.text for result in results]
    vectors = [result.embedding for result in results]
    usages = [
        None if result.usage.unknown and not result.usage.total_tokens else result.usage for result in results
    ]
    after: Columns = {
        name: [None if usage is None else getattr(usage, name) for usage in usages] for name in _USAGE
    }
    after |= {
        "cost": [result.cost for result in results],
        "latency": [result.latency for result in results],
        "route": [None if result.route is None else result.route.value for result in results],
        "attempts": [result.attempts for result in results],
        "model": [result.model for result in results],
        "finish_reason": [result.finish_reason for result in results],
        "error_kind": [None if result.error is None else kind_name(result.error) for result in results],
        "error": [None if result.error is None else result.error.message for result in results],
    }
    for name in ("tool_calls", "reasoning", "logprobs"):
        if any(getattr(result, name) for result in results):
            write = PART_FORMS[name][0]
            after[name] = [write(value) if (value := getattr(result, name)) else None for result in results]
    if any(result.files for result in results):
        after["files"] = [[_file_fields(file) for file in result.files] for result in results]
    if any(vector is not None for vector in vectors):
        if not any(columns["text"]):
            del columns["text"]
        columns["embedding"] = vectors
    parsed = parsed_columns([plain(result.parsed) for result in results])
    return columns | renamed(parsed, "parsed_", {*columns, *after}) | after


def _file_fields(file: Media) -> dict[str, Any]:
    path = file.source if isinstance(file.source, str) else None
    return {"media_type": file.media_type, "size": file.size, "sha256": file.sha256, "path": path}


def has_samples(results: Sequence[Result[Any]]) -> bool:
    return any(result.sample is not None for result in results)


def rows_of(results: Sequence[Result[Any]]) -> list[int]:
    return [at if result.row is None else result.row for at, result in enumerate(results)]


def fits(table: Any, results: Sequence[Result[Any]]) -> bool:
    """Whether each row of a table has a result, or several if there are several answers per prompt."""
    size = row_count(table)
    if not has_samples(results):
        return size == len(results)
    return set(rows_of(results)) == set(range(size))


def parsed_columns(values: Sequence[Any]) -> Columns:
    names = dict.fromkeys(name for value in values if isinstance(value, dict) for name in value)
    columns: Columns = {
        column_name(name): [value.get(name) if isinstance(value, dict) else None for value in values]
        for name in names
    }
    others = [None if isinstance(value, dict) else value for value in values]
    if any(value is not None for value in others):
        columns |= renamed({"parsed": others}, "parsed_", columns)
    return columns


def renamed(columns: Columns, prefix: str, taken: Collection[str]) -> Columns:
    """Return columns under unused names, made by adding the prefix as many times as needed."""
    made: Columns = {}
    for name, values in columns.items():
        free = name
        while free in taken or free in made or (free != name and free in columns):
            free = prefix + free
        made[free] = values
    return made


def plain(value: Any) -> Any:
    """Return a parsed object as JSON values. Records become dictionaries; times and other types become
    strings.
    """
    if value is None or (isinstance(value, str | int | float) and not isinstance(value, enum.Enum)):
        return value
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if attrs.has(type(value)):
        return {name: plain(getattr(value, name)) for name in attrs.fields_dict(type(value))}
    if dataclasses.is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if hasattr(value, "model_dump"):
        return plain(value.model_dump())
    if isinstance(value, list | tuple | Set | array):
        return [plain(item) for item in value]
    return value.isoformat() if isinstance(value, date | time) else str(value)


def row_count(table: Any) -> int:
    return int(table.num_rows) if hasattr(table, "num_rows") else len(table)


def taken(table: Any, rows: list[int]) -> Any:
    """Return the rows of a table or list of rows at some positions, which may repeat."""
    kind = kind_of_table(table)
    return [table[row] for row in rows] if kind is None else kind.taken(table, rows)


def with_answers(table: Any, results: Sequence[Result[Any]], answers: Columns) -> Any:
    """Return a table or list of rows of the same type, with columns of answers added.

    An answer column with the name of an existing column is called ``result_…``. With several answers per
    prompt, the prompt's row is repeated for each.

    Raises:
        ValueError: the table does not have one row per prompt, or its type is unknown.
    """
    kind = kind_of_table(table)
    rows = isinstance(table, Sequence) and all(isinstance(row, Mapping) for row in table)
    if kind is None and (not rows or isinstance(table, str)):
        raise ValueError(
            "the prompts did not come from a table: pass one, as in to_table(table), or use a method for one "
            "type, such as to_pandas()"
        )
    if not fits(table, results):
        prompts = len(set(rows_of(results))) if has_samples(results) else len(results)
        of = f" of {prompts:,} prompts" if prompts < len(results) else ""
        raise ValueError(
            f"the table has {row_count(table):,} rows, but there are {len(results):,} results{of}"
        )
    if has_samples(results):
        rows_wanted = rows_of(results)
        table = taken(table, rows_wanted)
    own_names = (name for row in table for name in row)
    names = list(dict.fromkeys(own_names)) if kind is None else kind.columns(table)
    columns = renamed(answers, "result_", names)
    if kind is not None:
        return kind.extended(table, columns)
    return [{**row, **own} for row, own in zip(table, as_rows(columns), strict=True)]


def as_rows(columns: Columns) -> list[dict[str, Any]]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
