"""Columns of plain values, and their conversion from and to tables of pandas, Polars, Arrow and Datasets.

The libraries accept different types, so the shape of a column is determined here. A column whose values have
no common shape becomes text.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from attrs import evolve, frozen

from smartbatch.errors import ConfigError
from smartbatch.tables.row_prompts import text_of

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow


Columns: TypeAlias = "dict[str, list[Any]]"
"""The values of each column, by its name; all columns have the same length."""

_SMALLEST, _ABOVE = -(2**63), 2**63
"""Range of the whole numbers that a column can store."""
_DEEPEST: Final = 30
"""Maximum levels of lists and records in a column. Parquet readers reject a hundred; a list counts as two."""
_MAX_FIELDS: Final = 1000
"""Maximum fields in the records of a column. With more, as when keys are data, the column becomes text."""


@frozen
class Shape:
    """What the values of a column have in common; ``None`` fits every shape."""

    # none: no value was seen; mixed: the values have nothing in common
    kind: Literal["none", "bool", "int", "float", "float32", "text", "list", "record", "mixed"]
    inner: Shape | None = None  # of the items of lists
    fields: tuple[tuple[str, Shape], ...] = ()  # of the values of records


NONE: Final = Shape("none")
_MIXED: Final = Shape("mixed")
VECTOR: Final = Shape("list", Shape("float32"))
"""The shape of a vector."""
_SCALARS: Final = {str: Shape("text"), bool: Shape("bool"), float: Shape("float")}
_WHOLE: Final = Shape("int")


def shape_of(values: Iterable[Any], levels: int = _DEEPEST) -> Shape:
    """Return the common shape of values.

    Args:
        levels: maximum levels of lists and records; deeper values are mixed.
    """
    shape = NONE
    for value in values:
        if value is not None and shape is not _MIXED:
            shape = joined(shape, shape_of_value(value, levels))
    return shape


def shape_of_value(value: Any, levels: int = _DEEPEST) -> Shape:
    """Return the shape of one plain value; ``levels`` as for :func:`shape_of`."""
    if value is None:
        return NONE
    if isinstance(value, int) and not isinstance(value, bool):
        return _WHOLE if _SMALLEST <= value < _ABOVE else _MIXED
    if isinstance(value, array):
        return VECTOR
    if isinstance(value, list):
        return Shape("list", shape_of(value, levels - 1)) if levels else _MIXED
    if isinstance(value, dict):
        named = {str(name): inner for name, inner in value.items()}
        # No file can store a record without fields, or a field whose name is not UTF-8.
        if not (named and levels and all(name == column_name(name) for name in named)):
            return _MIXED
        fields = tuple((name, shape_of_value(inner, levels - 1)) for name, inner in named.items())
        return Shape("record", fields=fields)
    return _SCALARS.get(type(value), _MIXED)


def column_name(name: str) -> str:
    """Return the column name of a field: lone surrogates, which UTF-8 cannot contain, are escaped."""
    return name if name.isascii() else name.encode("utf-8", "backslashreplace").decode()


def joined(one: Shape, other: Shape) -> Shape:
    if one == other or other is NONE:
        return one
    if one is NONE:
        return other
    kinds = {one.kind, other.kind}
    if kinds in ({"int", "float"}, {"float32", "float"}):
        return one if one.kind == "float" else other
    if kinds == {"list"} and one.inner is not None and other.inner is not None:
        return evolve(one, inner=joined(one.inner, other.inner))
    if kinds == {"record"}:
        fields = dict(one.fields)
        for name, shape in other.fields:
            fields[name] = joined(fields.get(name, NONE), shape)
        if len(fields) > _MAX_FIELDS:
            return _MIXED
        return evolve(one, fields=tuple(fields.items()))
    return _MIXED


def fitted(value: Any, shape: Shape) -> Any:
    """Return a value as its column stores it: whole numbers in a float column as floats, mixed values as
    text.
    """
    if value is None or shape.kind in ("bool", "int", "float32"):
        return value
    if shape.kind == "list" and shape.inner is not None:
        return value if isinstance(value, array) else [fitted(item, shape.inner) for item in value]
    if shape.kind == "record":
        return {name: fitted(value.get(name), inner) for name, inner in shape.fields}
    if shape.kind == "float":
        return float(value)
    text = text_of(value)
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


@contextmanager
def _extra(name: str) -> Iterator[None]:
    """Turn an ImportError in the block into a ConfigError that names the extra to install."""
    try:
        yield
    except ImportError as missing:
        raise ConfigError(
            f"this table needs the extra {name!r}: pip install 'smartbatch-llm[{name}]'"
        ) from missing


def to_pandas(columns: Columns, index: Any = None) -> pandas.DataFrame:
    """Return a pandas frame; nested and mixed values are Python objects.

    Args:
        index: the index of its rows; ``None`` for row numbers.
    """
    with _extra("pandas"):
        import pandas

    kinds = {"int": ("int64", "Int64"), "bool": ("bool", "boolean"), "float": ("float64", "float64")}

    def series(values: list[Any]) -> Any:
        shape = shape_of(values)
        whole, with_gaps = kinds.get(shape.kind, (None, None))
        kind: Any = with_gaps if any(value is None for value in values) else whole
        if shape.kind == "text":
            values = [fitted(value, shape) for value in values]
        return pandas.Series(values, index=index, dtype=kind or (None if values else object))

    made = {name: series(values) for name, values in columns.items()}
    return pandas.DataFrame(made, index=index, columns=list(columns))


def to_polars(columns: Columns) -> polars.DataFrame:
    with _extra("polars"):
        import polars

    def kind(shape: Shape) -> Any:
        if shape.kind == "list" and shape.inner is not None:
            return polars.List(kind(shape.inner))
        if shape.kind == "record":
            return polars.Struct({name: kind(inner) for name, inner in shape.fields})
        scalars = {"bool": polars.Boolean, "int": polars.Int64, "float": polars.Float64}
        return polars.Float32 if shape.kind == "float32" else scalars.get(shape.kind, polars.String)

    def series(name: str, values: list[Any]) -> polars.Series:
        shape = shape_of(values)
        return polars.Series(name, [fitted(value, shape) for value in values], dtype=kind(shape))

    return polars.DataFrame([series(name, values) for name, values in columns.items()])


def to_arrow(columns: Columns, shapes: Mapping[str, Shape] | None = None) -> pyarrow.Table:
    """Return an Arrow table.

    Args:
        shapes: the shapes of whole columns, if ``columns`` has only a part of their rows.
    """
    with _extra("arrow"):
        import pyarrow

    shapes = {name: shape_of(values) for name, values in columns.items()} if shapes is None else shapes
    arrays = [
        pyarrow.array([fitted(value, shapes[name]) for value in values], arrow_type(shapes[name]))
        for name, values in columns.items()
    ]
    return pyarrow.table(arrays, names=list(columns))


def arrow_type(shape: Shape) -> Any:
    import pyarrow

    if shape.kind == "list" and shape.inner is not None:
        return pyarrow.list_(arrow_type(shape.inner))
    if shape.kind == "record":
        return pyarrow.struct([(name, arrow_type(inner)) for name, inner in shape.fields])
    scalars = {"bool": "bool", "int": "int64", "float": "float64", "float32": "float32"}
    return pyarrow.type_for_alias(scalars.get(shape.kind, "string"))


@frozen
class TableKind:
    """How the tables of a library are read and extended.

    Attributes:
        module: name of the module with its classes.
        classes: names of its table classes.
        names: returns the names of a table's columns, in order.
        values: returns the values of the column at a position, as Python values; missing ones are ``None``.
        extended: returns a table with additional columns.
        taken: returns the rows of a table at some positions, which may repeat.
    """

    module: str
    classes: tuple[str, ...]
    names: Callable[[Any], Sequence[Any]]
    values: Callable[[Any, int], list[Any]]
    extended: Callable[[Any, Columns], Any]
    taken: Callable[[Any, list[int]], Any]

    def has(self, given: object) -> bool:
        return _is_one(given, self.module, self.classes)

    def columns(self, table: Any) -> list[str]:
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
    """Return how a value is read as a table; ``None`` if it is not a known table."""
    return next((kind for kind in _KINDS if kind.has(given)), None)


def is_row_stream(given: object) -> bool:
    """Whether a value is a dataset that is streamed row by row."""
    return _is_one(given, "datasets", ("IterableDataset",))


def is_arrow_column(given: object) -> bool:
    """Whether a value is an Arrow column, whose items are not Python values."""
    return _is_one(given, "pyarrow", ("Array", "ChunkedArray"))


def index_of(table: Any) -> Any:
    """Return the index of a pandas frame; ``None`` for other tables."""
    return table.index if _is_one(table, "pandas", ("DataFrame",)) else None


def table_of(given: Any) -> Any:
    """Return the table of prompts: a table, a column as a table, or a list of rows; ``None`` for anything
    else.
    """
    if kind_of_table(given) is not None:
        return given
    if _is_one(given, "pandas", ("Series",)) or _is_one(given, "polars", ("Series",)):
        return given.to_frame("prompt" if given.name in (None, "") else given.name)
    if is_arrow_column(given):
        return sys.modules["pyarrow"].table({"prompt": given})
    if isinstance(given, Sequence) and given and isinstance(given[0], Mapping):
        return given
    return None
