"""The tables of pandas, Polars, Arrow and datasets: recognised, read by column, and given back with more.

A table is recognised by the library that is loaded already, since without it there is none of its tables:
nothing is imported to find out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from attrs import frozen

from smartbatch.tables.columns import Columns, to_arrow, to_pandas, to_polars


@frozen
class TableKind:
    """How the tables of a library are read and extended.

    Attributes:
        module: where its classes stand.
        classes: of its tables, by name.
        names: of the columns of a table, in order.
        values: of a column, by its position, as Python's own; ``None`` where one is missing.
        extended: a table with further columns.
        taken: the rows of a table at some positions, which may repeat.
    """

    module: str
    classes: tuple[str, ...]
    names: Callable[[Any], Sequence[Any]]
    values: Callable[[Any, int], list[Any]]
    extended: Callable[[Any, Columns], Any]
    taken: Callable[[Any, list[int]], Any]

    def has(self, given: object) -> bool:
        """Whether a value is a table of this library."""
        return _is_one(given, self.module, self.classes)

    def columns(self, table: Any) -> list[str]:
        """Return the names of the columns of a table, as texts."""
        return [str(name) for name in self.names(table)]


def _is_one(given: object, module: str, classes: Sequence[str]) -> bool:
    loaded = sys.modules.get(module)
    known = [getattr(loaded, name, None) for name in classes]
    return isinstance(given, tuple(each for each in known if isinstance(each, type)))


def _pandas_values(table: Any, position: int) -> list[Any]:
    column = table.iloc[:, position]
    values: list[Any] = column.astype(object).where(column.notna(), None).tolist()
    return [value.tolist() if hasattr(value, "tolist") else value for value in values]


def _pandas_extended(table: Any, columns: Columns) -> Any:
    made = to_pandas(columns, table.index)
    return table.assign(**{name: made[name].array for name in columns})


def _arrow_extended(table: Any, columns: Columns) -> Any:
    made = to_arrow(columns)
    batch = _is_one(table, "pyarrow", ("RecordBatch",))
    for name in columns:
        table = table.append_column(name, made[name].combine_chunks() if batch else made[name])
    return table


def _dataset_values(table: Any, position: int) -> list[Any]:
    name = table.column_names[position]
    values: list[Any] = table.select_columns([name]).with_format("arrow")[:].column(0).to_pylist()
    return values


def _dataset_extended(table: Any, columns: Columns) -> Any:
    import datasets

    made = datasets.Dataset(datasets.table.InMemoryTable(to_arrow(columns)))
    return datasets.concatenate_datasets([table, made], axis=1)


_KINDS: Final = (
    TableKind(
        "pandas",
        ("DataFrame",),
        lambda table: table.columns,
        _pandas_values,
        _pandas_extended,
        lambda table, rows: table.iloc[rows],
    ),
    TableKind(
        "polars",
        ("DataFrame",),
        lambda table: table.columns,
        lambda table, position: table.to_series(position).to_list(),
        lambda table, columns: table.hstack(to_polars(columns)),
        lambda table, rows: table[rows],
    ),
    TableKind(
        "pyarrow",
        ("Table", "RecordBatch"),
        lambda table: table.schema.names,
        lambda table, position: table.column(position).to_pylist(),
        _arrow_extended,
        lambda table, rows: table.take(rows),
    ),
    TableKind(
        "datasets",
        ("Dataset",),
        lambda table: table.column_names,
        _dataset_values,
        _dataset_extended,
        lambda table, rows: table.select(rows),
    ),
)


def kind_of_table(given: object) -> TableKind | None:
    """Return how a value is read as a table; ``None`` where it is none that is known."""
    return next((kind for kind in _KINDS if kind.has(given)), None)


def is_row_stream(given: object) -> bool:
    """Whether a value is a dataset that is read row by row, as a stream."""
    return _is_one(given, "datasets", ("IterableDataset",))


def is_arrow_column(given: object) -> bool:
    """Whether a value is a column of Arrow, whose items are no values of Python."""
    return _is_one(given, "pyarrow", ("Array", "ChunkedArray"))


def index_of(table: Any) -> Any:
    """Return the index of a frame of pandas; ``None`` for every other table."""
    return table.index if _is_one(table, "pandas", ("DataFrame",)) else None


def table_of(given: Any) -> Any:
    """Return the table that prompts come from: a table, a column as one, or a list of rows; ``None`` where
    they come from none."""
    if kind_of_table(given) is not None:
        return given
    if _is_one(given, "pandas", ("Series",)) or _is_one(given, "polars", ("Series",)):
        return given.to_frame("prompt" if given.name in (None, "") else given.name)
    if is_arrow_column(given):
        return sys.modules["pyarrow"].table({"prompt": given})
    if isinstance(given, Sequence) and given and isinstance(given[0], Mapping):
        return given
    return None
