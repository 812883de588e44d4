"""The pages of a Parquet file, by their headers: how much memory a column takes is known before it is read.

The footer says how long a column is in the file. What a page becomes is in the page's own header, which the
reader allocates by: a few hundred bytes may stand for a gigabyte.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any, Final

from attrs import define

MAX_PAGE_BYTES: Final = 256 * 2**20
"""Largest page, bytes, unpacked: a writer cuts pages at 1 MB, but at least after 1,024 rows."""
_MAX_HEADER_BYTES: Final = 16 * 2**20
_FREE_VALUES: Final = 10_000_000
"""Values that a column may have however short it is."""
_VALUES_PER_BYTE: Final = 8
"""Values for each byte of a longer column: each takes at least a bit."""

_DICTIONARY_PAGE: Final = 2
_TYPE, _UNPACKED, _PACKED = 1, 2, 3
_DATA, _DICTIONARY, _NEWER_DATA = 5, 7, 8
"""Fields of a page header in Thrift: its type, its two sizes, and the header of its kind, whose first field
is the number of values."""
_ENCODING: Final = {_DATA: 2, _NEWER_DATA: 4}
_IN_DICTIONARY: Final = (2, 8)
"""Encodings of pages that hold places in the dictionary instead of values."""
_GROUPS, _COLUMNS, _COLUMN, _BYTES = 4, 1, 3, 6
"""Fields on the way from the footer to a column, and the type of texts."""
_KIND, _VALUES, _COLUMN_UNPACKED, _COLUMN_PACKED, _FIRST_PAGE, _DICTIONARY_PLACE = 1, 5, 6, 7, 9, 11
"""Fields of a column."""
_BOOLEANS: Final = (1, 2)
_BYTE, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 3, 7, 8, 9, 10, 12
"""Types of Thrift's compact protocol."""
_MAX_LEVELS: Final = 16
_DAMAGED: Final = "the header of a page is damaged"


class TooLarge(ValueError):
    """A column or page becomes larger than this process may hold; the text says so."""


@define
class ColumnSizes:
    """The largest sizes in a column of a row group, in bytes of memory.

    Attributes:
        values: their number.
        value: mean of a value, on the page where they are largest.
        dictionary_value: the most that one value of its dictionary may take, 0 for no dictionary.
        in_dictionary: no page holds values outside the dictionary.
    """

    values: int = 0
    value: float = 0.0
    dictionary_value: float = 0.0
    in_dictionary: bool = True


def column_chunks(file: IO[bytes]) -> list[list[dict[int, Any]]]:
    """Return the metadata of each column of each row group, by the numbers of their fields in Thrift.

    ``pyarrow`` has them too, but ends the process when it is asked for those of a damaged column.

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
        column: one of :func:`column_chunks`.

    Raises:
        TooLarge: a page is too large, or the column has far more values than it could store.
        ValueError: a header is damaged.
    """
    sizes = ColumnSizes(_number(column, _VALUES))
    stored = _number(column, _COLUMN_UNPACKED)
    if sizes.values > _FREE_VALUES + _VALUES_PER_BYTE * stored:
        raise TooLarge(f"a column of {sizes.values:,} values is {stored:,} bytes long")
    for header in _page_headers(file, column) if sizes.values else ():
        unpacked = _number(header, _UNPACKED)
        if unpacked > MAX_PAGE_BYTES:
            raise TooLarge(f"a page of {unpacked:,} bytes is longer than {MAX_PAGE_BYTES >> 20} MiB")
        kind = next((each for each in (_DATA, _DICTIONARY, _NEWER_DATA) if each in header), None)
        if kind is None:
            continue
        values = _number(header[kind], 1)
        if header.get(_TYPE) == _DICTIONARY_PAGE:
            # Of texts one may be as long as all together; other values are equally long.
            largest = unpacked if column.get(_KIND) == _BYTES else unpacked / max(1, values)
            sizes.dictionary_value = max(sizes.dictionary_value, largest)
        elif values:
            sizes.value = max(sizes.value, unpacked / values)
            sizes.in_dictionary &= header[kind].get(_ENCODING.get(kind)) in _IN_DICTIONARY
    return sizes


def _number(fields: Any, field: int) -> int:
    found = fields.get(field) if isinstance(fields, dict) else None
    if not isinstance(found, int) or found < 0:
        raise ValueError(_DAMAGED)
    return found


def _page_headers(file: IO[bytes], column: dict[int, Any]) -> Iterator[dict[int, Any]]:
    place = _number(column, _FIRST_PAGE)
    if column.get(_DICTIONARY_PLACE):
        place = min(place, _number(column, _DICTIONARY_PLACE))
    end = place + _number(column, _COLUMN_PACKED)
    if end > file.seek(0, 2):
        raise ValueError("a column ends after the file does")
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
                    raise ValueError(_DAMAGED) from None
                size <<= 4
        yield header
        place += compact.place + _number(header, _PACKED)


class _Compact:
    """Reads values of Thrift's compact protocol: whole numbers, structs and lists; the rest is ``None``."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.place = 0

    def struct(self, levels: int) -> dict[int, Any]:
        """Return the values of a struct, by the numbers of their fields.

        Raises:
            IndexError: the data end before it does.
            ValueError: it is damaged.
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
        if kind in (4, 5, 6):  # whole numbers of 16, 32 and 64 bits
            return self._signed()
        raise ValueError(_DAMAGED)

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
                raise ValueError(_DAMAGED)

    def _signed(self) -> int:
        number = self._unsigned()
        return (number >> 1) ^ -(number & 1)

    def _skip(self, size: int) -> None:
        self.place += size
        if self.place > len(self.data):
            raise IndexError
