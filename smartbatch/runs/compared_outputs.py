"""Compares outputs, given as files or as results."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

from attrs import evolve

from smartbatch.quality.comparison import Comparison
from smartbatch.quality.recorded_row import RecordedRow
from smartbatch.quality.row_matching import compare_rows
from smartbatch.results import ResultList
from smartbatch.runs.output_reader import read_rows
from smartbatch.tables.columns import index_of
from smartbatch.types import Result

__all__ = ["compare"]

MAX_SHOWN_ROWS: Final = 20  # with different answers

Output: TypeAlias = str | os.PathLike[str] | Iterable[Result[Any]]


def compare(first: Output, second: Output, *, rows: int = MAX_SHOWN_ROWS) -> Comparison:
    """Compare two outputs row by row: their agreement, and their failures, cost, tokens and latency.

    Rows of two files match by id and, with several answers per row, by the number of the answer. Two result
    lists match by the index of their pandas tables if both have a unique one; otherwise, and for a list and a
    file, rows match by position. Two files take little memory if their rows are in about the same order.

    Args:
        first, second: each is the path of an output (``.jsonl``, ``.csv`` or ``.parquet``), a
            :class:`ResultList`, or any other results in the order of their requests, such as
            ``job.results()``.
        rows: maximum number of rows in :attr:`Comparison.flipped`, the rows with different answers.

    Raises:
        InputError: a file cannot be read or is not an output, or the outputs have no row in common.
    """
    outputs = (first, second)
    found = [_rows(each) for each in outputs]
    names = ("first", "second")
    paths = [os.fspath(each) for each in outputs if isinstance(each, str | os.PathLike)]
    if len(paths) == 2:
        one, other = map(os.path.basename, paths)
        names = (one, other) if one != other else (paths[0], paths[1])
    elif paths or any(_labels(each) is None for each in outputs):
        found = [(evolve(row, id=row.index) for row in side) for side in found]
    return compare_rows(found[0], found[1], names=names, max_flipped=rows)


def _rows(output: Output) -> Iterator[RecordedRow]:
    if isinstance(output, str | os.PathLike):
        yield from read_rows(os.fspath(output))
        return
    labels = _labels(output)
    for at, result in enumerate(output):
        index = at if result.row is None else result.row
        row = RecordedRow.of_result(index, result)
        yield row if labels is None else evolve(row, id=str(labels[index]))


def _labels(output: Output) -> Any:
    """Return the index of the pandas table that results came from, if it identifies its rows."""
    labels = index_of(output.table) if isinstance(output, ResultList) else None
    return labels if labels is not None and labels.is_unique else None
