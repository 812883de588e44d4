"""Reads rows from Parquet files in bounded memory.

A page of a few hundred bytes may unpack to a gigabyte, and ``pyarrow`` allocates the size given in the page's
header. All headers are therefore checked before pages are read.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Collection, Iterator
from typing import IO, Any, Final

from attrs import define

from smartbatch.tables import row_formats
from smartbatch.tables.answer_columns import plain
from smartbatch.tables.row_formats import BadRow, ParsedRow, header_error, missing

_READ_BYTES: Final = 1 << 20  # bytes of a column per read
_MAX_HELD_ROWS: Final = 1000  # rows in memory
_MAX_HELD_BYTES: Final = 16 * 2**20  # bytes of the rows in memory, unless a single row is longer
_FREE_ROWS: Final = 10_000_000  # rows allowed in a file of any size
_ROWS_PER_BYTE: Final = 8  # additional rows allowed per byte of the file


def parquet_rows(file: IO[bytes], with_bytes: Collection[str] = ()) -> Iterator[ParsedRow]:
    """Yield the rows of a Parquet file, numbered from 1. In a damaged file, an error replaces the remaining
    rows.

    Args:
        with_bytes: columns whose values stay as they are; those of all others become JSON values.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise missing("pyarrow", "arrow", "reading Parquet") from error
    number = 0
    try:
        # Columns are read in blocks, because a file may consist of one group of a million rows.
        source = pyarrow.parquet.ParquetFile(file, pre_buffer=False, buffer_size=_READ_BYTES)
        names: list[str] = source.schema_arrow.names
        if message := header_error(names):
            yield BadRow(1, message)
            return
        size, rows = file.seek(0, 2), source.metadata.num_rows
        if rows > _FREE_ROWS + _ROWS_PER_BYTE * size:
            raise TooLarge(f"the file claims {rows:,} rows in {size:,} bytes")
        for group, chunks in enumerate(column_chunks(file)):
            kept, size = _plan(pyarrow.types, file, source, chunks, group)
            reader = pyarrow.parquet.ParquetFile(
                file,
                metadata=source.metadata,
                pre_buffer=False,
                buffer_size=_READ_BYTES,
                read_dictionary=kept,
            )
            for batch in reader.iter_batches(size, row_groups=[group], use_threads=False):
                columns = [
                    _column(pyarrow.types, column, _unchanged if name in with_bytes else _as_json)
                    for name, column in zip(names, batch.columns, strict=True)
                ]
                for row in zip(*columns, strict=True):
                    number += 1
                    yield _row(number, dict(zip(names, row, strict=True)))
    except TooLarge as error:
        yield BadRow(
            number + 1, f"the file cannot be read in bounded memory: {error}; write it with smaller pages"
        )
    except (pyarrow.ArrowException, OSError, ValueError) as error:  # raised for damaged files
        text = str(error).splitlines() or [type(error).__name__]
        yield BadRow(number + 1, f"not a complete Parquet file: {text[0]}")


def _plan(
    kinds: Any, file: IO[bytes], source: Any, chunks: list[dict[int, Any]], group: int
) -> tuple[list[str], int]:
    """Return the columns of a group to read as dictionaries, and the number of rows that fit into memory.

    A dictionary stores a repeated text once. But the reader keeps every text of such a column, so a column
    with texts outside the file's dictionary would grow with its rows.

    Raises:
        TooLarge, ValueError: see :func:`column_sizes`.
    """
    texts = {each.name for each in source.schema_arrow if _is_text(kinds, each.type)}
    rows = max(1, source.metadata.row_group(group).num_rows)
    paths = [source.schema.column(at).path for at in range(len(source.schema))]
    kept = []
    longest = 1.0
    for path, chunk in zip(paths, chunks, strict=True):
        sizes = column_sizes(file, chunk)
        if path in texts and sizes.in_dictionary:
            kept.append(path)
            longest += sizes.value
        else:
            longest += max(sizes.value, sizes.dictionary_value) * max(1, sizes.values / rows)
    return kept, max(1, min(_MAX_HELD_ROWS, int(_MAX_HELD_BYTES / longest)))


def _is_text(kinds: Any, kind: Any) -> bool:
    checks = (kinds.is_string, kinds.is_large_string, kinds.is_binary, kinds.is_large_binary)
    return any(check(kind) for check in checks)


def _row(number: int, fields: dict[str, Any]) -> ParsedRow:
    # Each character has at least one byte, and counting characters is fast.
    size = sum(len(value) for value in fields.values() if isinstance(value, str))
    if size > row_formats.MAX_ROW_BYTES:
        return BadRow(number, f"the row is longer than {row_formats.MAX_ROW_BYTES >> 20} MiB")
    return number, fields


def _column(kinds: Any, column: Any, convert: Callable[[Any], Any]) -> list[Any]:
    if kinds.is_dictionary(column.type):
        places = column.indices.to_pylist()
        used = set(places) - {None}
        if used and not 0 <= min(used) <= max(used) < len(column.dictionary):
            raise ValueError("a value is not in its dictionary")
        values = {place: column.dictionary[place].as_py() for place in used}
        if not _is_string(kinds, column.type.value_type):
            values = {place: convert(value) for place, value in values.items()}
        return [None if place is None else values[place] for place in places]
    values_of: list[Any] = column.to_pylist()
    if _is_string(kinds, column.type) or kinds.is_integer(column.type):
        return values_of
    return [convert(value) for value in values_of]


def _is_string(kinds: Any, kind: Any) -> bool:
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind))


def _unchanged(value: Any) -> Any:
    return value


def _as_json(value: Any) -> Any:
    """Convert a value for JSON: NaN becomes null, bytes become text or Base64, and times become text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    if isinstance(value, dict):
        return {str(name): _as_json(item) for name, item in value.items()}
    return plain(value)


MAX_PAGE_BYTES: Final = 256 * 2**20
"""Maximum bytes of an unpacked page. Writers start a new page after 1 MB, but not before 1,024 rows."""
_MAX_HEADER_BYTES: Final = 16 * 2**20
_FREE_VALUES: Final = 10_000_000  # values allowed in a column of any size
# additional values allowed per byte of the column: a value takes at least one bit
_VALUES_PER_BYTE: Final = 8

_DICTIONARY_PAGE: Final = 2
# fields of a page header: its type and sizes, and the headers of the page types, which begin with the
# number of values
_TYPE, _UNPACKED, _PACKED = 1, 2, 3
_DATA, _DICTIONARY, _NEWER_DATA = 5, 7, 8
_ENCODING: Final = {_DATA: 2, _NEWER_DATA: 4}
_IN_DICTIONARY: Final = (2, 8)  # encodings of pages that contain dictionary positions instead of values
# fields on the path from the footer to a column, and the type of texts
_GROUPS, _COLUMNS, _COLUMN, _BYTES = 4, 1, 3, 6
# fields of a column
_KIND, _VALUES, _COLUMN_UNPACKED, _COLUMN_PACKED, _FIRST_PAGE, _DICTIONARY_PLACE = 1, 5, 6, 7, 9, 11
_BOOLEANS: Final = (1, 2)
_BYTE, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 3, 7, 8, 9, 10, 12  # types of Thrift's compact protocol
_MAX_LEVELS: Final = 16
_DAMAGED_HEADER: Final = "the header of a page is damaged"


class TooLarge(ValueError):
    """A column or page exceeds the memory limits of this process."""


@define
class ColumnSizes:
    """The largest sizes in a column of a row group."""

    values: int = 0  # number of values
    value: float = 0.0  # mean bytes per value on the page with the largest values
    dictionary_value: float = 0.0  # bytes of the largest value in the dictionary; 0 without a dictionary
    in_dictionary: bool = True  # no page has values outside the dictionary


def column_chunks(file: IO[bytes]) -> list[list[dict[int, Any]]]:
    """Return the metadata of each column of each row group, by the Thrift numbers of its fields.

    ``pyarrow`` can read the metadata too, but crashes the process if a column is damaged.

    Raises:
        ValueError: the footer is damaged.
    """
    end = file.seek(0, 2) - 8
    file.seek(end)
    size = int.from_bytes(file.read(4), "little")
    file.seek(end - size)
    try:
        footer = _Compact(file.read(size)).struct(_MAX_LEVELS)
        return [[chunk[_COLUMN] for chunk in group[_COLUMNS]] for group in footer.get(_GROUPS, ())]
    except (LookupError, TypeError):
        raise ValueError("the footer is damaged") from None


def column_sizes(file: IO[bytes], column: dict[int, Any]) -> ColumnSizes:
    """Return the sizes in a column of a row group.

    Args:
        column: from :func:`column_chunks`.

    Raises:
        TooLarge: a page is too large, or the column claims far more values than it could store.
        ValueError: a header is damaged.
    """
    sizes = ColumnSizes(_number(column, _VALUES))
    stored = _number(column, _COLUMN_UNPACKED)
    if sizes.values > _FREE_VALUES + _VALUES_PER_BYTE * stored:
        raise TooLarge(f"a column claims {sizes.values:,} values in {stored:,} bytes")
    for header in _page_headers(file, column) if sizes.values else ():
        unpacked = _number(header, _UNPACKED)
        if unpacked > MAX_PAGE_BYTES:
            raise TooLarge(f"a page of {unpacked:,} bytes is longer than {MAX_PAGE_BYTES >> 20} MiB")
        kind = next((each for each in (_DATA, _DICTIONARY, _NEWER_DATA) if each in header), None)
        if kind is None:
            continue
        values = _number(header[kind], 1)
        if header.get(_TYPE) == _DICTIONARY_PAGE:
            # A single text may fill the whole page. Values of other types have equal sizes.
            largest = unpacked if column.get(_KIND) == _BYTES else unpacked / max(1, values)
            sizes.dictionary_value = max(sizes.dictionary_value, largest)
        elif values:
            sizes.value = max(sizes.value, unpacked / values)
            sizes.in_dictionary &= header[kind].get(_ENCODING.get(kind)) in _IN_DICTIONARY
    return sizes


def _number(fields: Any, field: int) -> int:
    found = fields.get(field) if isinstance(fields, dict) else None
    if not isinstance(found, int) or found < 0:
        raise ValueError(_DAMAGED_HEADER)
    return found


def _page_headers(file: IO[bytes], column: dict[int, Any]) -> Iterator[dict[int, Any]]:
    place = _number(column, _FIRST_PAGE)
    if column.get(_DICTIONARY_PLACE):
        place = min(place, _number(column, _DICTIONARY_PLACE))
    end = place + _number(column, _COLUMN_PACKED)
    if end > file.seek(0, 2):
        raise ValueError("a column extends beyond the end of the file")
    while place < end:
        size = 1 << 12
        while True:
            file.seek(place)
            compact = _Compact(file.read(size))
            try:
                header = compact.struct(_MAX_LEVELS)
                break
            except IndexError:
                if size >= _MAX_HEADER_BYTES or len(compact.data) < size:
                    raise ValueError(_DAMAGED_HEADER) from None
                size <<= 4
        yield header
        place += compact.place + _number(header, _PACKED)


class _Compact:
    """Reads integers, structs and lists of Thrift's compact protocol. Other values become ``None``."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.place = 0

    def struct(self, levels: int) -> dict[int, Any]:
        """Return the values of a struct by field number.

        Raises:
            IndexError: the data ends within the struct.
            ValueError: the struct is damaged.
        """
        found: dict[int, Any] = {}
        number = 0
        while (head := self._byte()) != 0:
            number = number + (head >> 4) if head >> 4 else self._signed()
            found[number] = self._value(head & 15, levels, in_struct=True)
        return found

    def _value(self, kind: int, levels: int, *, in_struct: bool) -> Any:
        if not levels:
            raise ValueError("a header is nested too deeply")
        if kind in _BOOLEANS:
            return None if in_struct else self._byte()
        if kind == _STRUCT:
            return self.struct(levels - 1)
        if kind == _BYTE:
            return self._byte()
        if kind == _DOUBLE:
            return self._skip(8)
        if kind == _BINARY:
            return self._skip(self._unsigned())
        if kind in (_LIST, _SET):
            head = self._byte()
            size = head >> 4 if head >> 4 < 15 else self._unsigned()
            return [self._value(head & 15, levels - 1, in_struct=False) for _ in range(size)]
        if kind in (4, 5, 6):  # integers of 16, 32 and 64 bits
            return self._signed()
        raise ValueError(_DAMAGED_HEADER)

    def _byte(self) -> int:
        self.place += 1
        return self.data[self.place - 1]

    def _unsigned(self) -> int:
        number = shift = 0
        while True:
            byte = self._byte()
            number |= (byte & 127) << shift
            if byte < 128:
                return number
            shift += 7
            if shift > 63:
                raise ValueError(_DAMAGED_HEADER)

    def _signed(self) -> int:
        number = self._unsigned()
        return (number >> 1) ^ -(number & 1)

    def _skip(self, size: int) -> None:
        self.place += size
        if self.place > len(self.data):
            raise IndexError
