"""Columns of plain values, and their conversion to and from tables of pandas, Polars, Arrow and Datasets.

The libraries accept different types, so smartbatch determines the shape of each column. A column whose
values have no common shape becomes text.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from attrs import evolve, frozen

from smartbatch.errors import ConfigError
from smartbatch.tables.cells import text_of

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow


Columns: TypeAlias = "dict[str, list[Any]]"  # values by column name; all columns have the same length

_MIN_INTEGER, _INTEGER_END = -(2**63), 2**63  # range of integers in a column
_MAX_LEVELS: Final = 30
"""Maximum levels of nested lists and records. Parquet readers reject a hundred levels; a list counts as two.
"""
_MAX_FIELDS: Final = 1000
"""Maximum fields of the records in a column. With more, keys are probably data, and the column becomes text.
"""


@frozen
class Shape:
    """The common type of the values in a column. ``None`` fits every shape."""

    # none: no values; mixed: values without a common shape
    kind: Literal["none", "bool", "int", "float", "float32", "text", "list", "record", "mixed"]
    inner: Shape | None = None  # shape of list items
    fields: tuple[tuple[str, Shape], ...] = ()  # shapes of record fields


NONE: Final = Shape("none")
_MIXED: Final = Shape("mixed")
VECTOR: Final = Shape("list", Shape("float32"))
_SCALARS: Final = {str: Shape("text"), bool: Shape("bool"), float: Shape("float")}
_WHOLE: Final = Shape("int")


def shape_of(values: Iterable[Any], levels: int = _MAX_LEVELS) -> Shape:
    """Return the common shape of values.

    Args:
        levels: maximum levels of lists and records; deeper values are mixed.
    """
    shape = NONE
    for value in values:
        if value is not None and shape is not _MIXED:
            shape = joined(shape, shape_of_value(value, levels))
    return shape


def shape_of_value(value: Any, levels: int = _MAX_LEVELS) -> Shape:
    if value is None:
        return NONE
    if isinstance(value, int) and not isinstance(value, bool):
        return _WHOLE if _MIN_INTEGER <= value < _INTEGER_END else _MIXED
    if isinstance(value, array):
        return VECTOR
    if isinstance(value, list):
        return Shape("list", shape_of(value, levels - 1)) if levels else _MIXED
    if isinstance(value, dict):
        named = {str(name): inner for name, inner in value.items()}
        # No file format can store a record without fields, or a field whose name is not UTF-8.
        if not (named and levels and all(name == column_name(name) for name in named)):
            return _MIXED
        fields = tuple((name, shape_of_value(inner, levels - 1)) for name, inner in named.items())
        return Shape("record", fields=fields)
    return _SCALARS.get(type(value), _MIXED)


def column_name(name: str) -> str:
    """Return the column name of a field, with lone surrogates escaped because UTF-8 cannot represent them."""
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
    """Convert a value for its column: integers in a float column become floats, mixed values become text."""
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
    """Replace an ImportError in the block by a ConfigError that names the extra to install."""
    try:
        yield
    except ImportError as missing:
        raise ConfigError(
            f"this table needs the extra {name!r}: pip install 'smartbatch-llm[{name}]'"
        ) from missing


def to_pandas(columns: Columns, index: Any = None) -> pandas.DataFrame:
    """Return a pandas DataFrame, in which nested and mixed values are Python objects.

    Args:
        index: index of the rows; ``None`` for row numbers.
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
        shapes: shapes of the whole columns, if ``columns`` contains only some of the rows.
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
    """How the tables of a library are read and extended."""

    module: str
    classes: tuple[str, ...]
    names: Callable[[Any], Sequence[Any]]  # returns the column names in order
    values: Callable[[Any, int], list[Any]]  # returns the column at a position; missing values are None
    extended: Callable[[Any, Columns], Any]  # returns the table with additional columns
    taken: Callable[[Any, list[int]], Any]  # returns the rows at some positions, which may repeat

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
    return next((kind for kind in _KINDS if kind.has(given)), None)


def is_row_stream(given: object) -> bool:
    """Whether a value is a dataset that is streamed row by row."""
    return _is_one(given, "datasets", ("IterableDataset",))


def is_arrow_column(given: object) -> bool:
    """Whether a value is an Arrow column. Its items are not Python values."""
    return _is_one(given, "pyarrow", ("Array", "ChunkedArray"))


def index_of(table: Any) -> Any:
    """Return the index of a pandas DataFrame; ``None`` for other tables."""
    return table.index if _is_one(table, "pandas", ("DataFrame",)) else None


def table_of(given: Any) -> Any:
    """Return the table of prompts: a table, a column converted to a table, or a list of rows; ``None`` for
    other values.
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
