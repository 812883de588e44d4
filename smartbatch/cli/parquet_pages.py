"""The pages of a Parquet file, by their headers: how much memory a column takes is known before it is read.

The footer says how long a column is in the file. What a page becomes is in the page's own header, which the
reader allocates by: a few hundred bytes may stand for a gigabyte.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any, Final

from attrs import define

from smartbatch._values import Record

MAX_PAGE_BYTES: Final = 256 * 2**20
"""Largest page, bytes, unpacked: a writer cuts pages at 1 MB, but at least after 1,024 rows."""
_MAX_HEADER_BYTES: Final = 16 * 2**20
_FREE_VALUES: Final = 10_000_000
"""Values that a column may have however short it is."""
_VALUES_PER_BYTE: Final = 8
"""Values for each byte of a longer column: each takes at least a bit."""

_DICTIONARY_PAGE: Final = 2
_TYPE, _UNPACKED, _PACKED = 1, 2, 3
_HEADERS_WITH_VALUES: Final = (5, 7, 8)
"""Fields of a page header in Thrift: its type, its two sizes, and the header of its kind, whose first field
is the number of values."""
_BOOLEANS: Final = (1, 2)
_BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 3, 7, 8, 9, 10, 11, 12
"""Types of Thrift's compact protocol."""
_MAX_LEVELS: Final = 8


class TooLarge(ValueError):
    """A column or page becomes larger than this process may hold; the text says so."""


@define(eq=False, repr=False)
class ColumnSizes(Record):
    """The largest sizes in a column of a row group, in bytes of memory.

    Attributes:
        dictionary: of its dictionary, 0 for none.
        value: mean of a value, on the page where they are largest.
    """

    dictionary: int = 0
    value: float = 0.0


def column_sizes(file: IO[bytes], column: Any) -> ColumnSizes:
    """Return the sizes in a column of a row group.

    Args:
        column: its metadata, as ``pyarrow`` has it.

    Raises:
        TooLarge: a page is too large, or the column has far more values than it could store.
        ValueError: a header is damaged.
    """
    if column.num_values > _FREE_VALUES + _VALUES_PER_BYTE * column.total_uncompressed_size:
        raise TooLarge(
            f"a column of {column.num_values:,} values is {column.total_uncompressed_size:,} bytes long"
        )
    sizes = ColumnSizes()
    for header in _page_headers(file, column):
        unpacked = header.get(_UNPACKED, 0)
        if not 0 <= unpacked <= MAX_PAGE_BYTES:
            raise TooLarge(f"a page of {unpacked:,} bytes is longer than {MAX_PAGE_BYTES >> 20} MiB")
        values = next((header[kind][1] for kind in _HEADERS_WITH_VALUES if 1 in header.get(kind, ())), 0)
        if header.get(_TYPE) == _DICTIONARY_PAGE:
            sizes.dictionary = max(sizes.dictionary, unpacked)
        elif values > 0:
            sizes.value = max(sizes.value, unpacked / values)
    return sizes


def _page_headers(file: IO[bytes], column: Any) -> Iterator[dict[int, Any]]:
    places = (column.dictionary_page_offset, column.data_page_offset)
    place = min(each for each in places if each)
    end = place + column.total_compressed_size
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
                    raise ValueError("the header of a page is damaged") from None
                size <<= 4
        yield header
        packed = header.get(_PACKED, -1)
        if not isinstance(packed, int) or packed < 0:
            raise ValueError("the header of a page is damaged")
        place += compact.place + packed


class _Compact:
    """Reads values of Thrift's compact protocol: structs of whole numbers; everything else is passed over."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.place = 0

    def struct(self, levels: int) -> dict[int, Any]:
        """Return the whole numbers and structs of a struct, by the numbers of their fields.

        Raises:
            IndexError: the data end before it does.
            ValueError: it is damaged.
        """
        if not levels:
            raise ValueError("the header of a page is nested too deeply")
        found: dict[int, Any] = {}
        number = 0
        while (head := self._byte()) != 0:
            number = number + (head >> 4) if head >> 4 else self._signed()
            found[number] = self._value(head & 15, levels, in_struct=True)
        return found

    def _value(self, kind: int, levels: int, *, in_struct: bool) -> Any:
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
            for _ in range(size):
                self._value(head & 15, levels - 1, in_struct=False)
            return None
        if kind in (4, 5, 6):  # whole numbers of 16, 32 and 64 bits
            return self._signed()
        raise ValueError("the header of a page is damaged")

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
                raise ValueError("the header of a page is damaged")

    def _signed(self) -> int:
        number = self._unsigned()
        return (number >> 1) ^ -(number & 1)

    def _skip(self, size: int) -> None:
        self.place += size
        if self.place > len(self.data):
            raise IndexError
