"""Parquet: its rows in bounded memory, whatever their size."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from typing import IO, Any, Final

from smartbatch.tables import parsed_rows
from smartbatch.tables.answer_columns import plain
from smartbatch.tables.parquet_pages import TooLarge, column_chunks, column_sizes
from smartbatch.tables.parsed_rows import BadRow, ParsedRow, header_error, missing

_BLOCK: Final = 1 << 20
"""Bytes of a column that are read at a time."""
_ROWS: Final = 1000
"""Most rows that are held at a time."""
_HELD_BYTES: Final = 16 * 2**20
"""Bytes of rows that are held at a time, if a row is not longer by itself."""
_FREE_ROWS: Final = 10_000_000
"""Rows that a file may have however short it is."""
_ROWS_PER_BYTE: Final = 8
"""Rows for each byte of a longer file."""


def parquet_rows(file: IO[bytes]) -> Iterator[ParsedRow]:
    """Yield the rows of a file of Parquet, numbered from 1; of a damaged one the rest is left out."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise missing("pyarrow", "arrow", "reading Parquet") from error
    number = 0
    try:
        # A column is read in blocks: a file may well be one group of a million rows.
        source = pyarrow.parquet.ParquetFile(file, pre_buffer=False, buffer_size=_BLOCK)
        names: list[str] = source.schema_arrow.names
        if message := header_error(names):
            yield BadRow(1, message)
            return
        _check_rows(file, source.metadata.num_rows)
        for group, chunks in enumerate(column_chunks(file)):
            kept, size = _plan(pyarrow.types, file, source, chunks, group)
            reader = pyarrow.parquet.ParquetFile(
                file, metadata=source.metadata, pre_buffer=False, buffer_size=_BLOCK, read_dictionary=kept
            )
            for batch in reader.iter_batches(size, row_groups=[group], use_threads=False):
                columns = [_column(pyarrow.types, column) for column in batch.columns]
                for row in zip(*columns, strict=True):
                    number += 1
                    yield _row(number, dict(zip(names, row, strict=True)))
    except TooLarge as error:
        yield BadRow(
            number + 1, f"the file cannot be read in bounded memory: {error}; write it with smaller pages"
        )
    except (pyarrow.ArrowException, OSError, ValueError) as error:  # damage comes as any of them
        text = str(error).splitlines() or [type(error).__name__]
        yield BadRow(number + 1, f"not a whole Parquet file: {text[0]}")


def _check_rows(file: IO[bytes], rows: int) -> None:
    file.seek(0, 2)
    size = file.tell()
    if rows > _FREE_ROWS + _ROWS_PER_BYTE * size:
        raise TooLarge(f"{size:,} bytes stand for {rows:,} rows")


def _plan(
    kinds: Any, file: IO[bytes], source: Any, chunks: list[dict[int, Any]], group: int
) -> tuple[list[str], int]:
    """Return which columns of a group stay in their dictionaries, and how many rows fit into memory.

    A text that repeats is then held once. The reader never forgets a text it has put into such a column, so
    one with texts outside the dictionary of the file would grow with its rows.

    Raises:
        TooLarge, ValueError: as :func:`column_sizes`.
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
    return kept, max(1, min(_ROWS, int(_HELD_BYTES / longest)))


def _is_text(kinds: Any, kind: Any) -> bool:
    checks = (kinds.is_string, kinds.is_large_string, kinds.is_binary, kinds.is_large_binary)
    return any(check(kind) for check in checks)


def _row(number: int, fields: dict[str, Any]) -> ParsedRow:
    # Characters are counted, of which each is a byte or more: a quick look that most rows pass.
    size = sum(len(value) for value in fields.values() if isinstance(value, str))
    if size > parsed_rows.MAX_ROW_BYTES:
        return BadRow(number, f"the row is longer than {parsed_rows.MAX_ROW_BYTES >> 20} MiB")
    return number, fields


def _column(kinds: Any, column: Any) -> list[Any]:
    """Return the values of a column as JSON has them."""
    if kinds.is_dictionary(column.type):
        places = column.indices.to_pylist()
        used = set(places) - {None}
        if used and not 0 <= min(used) <= max(used) < len(column.dictionary):
            raise ValueError("a value is not in its dictionary")
        values = {place: column.dictionary[place].as_py() for place in used}
        if not _is_string(kinds, column.type.value_type):
            values = {place: _as_json(value) for place, value in values.items()}
        return [None if place is None else values[place] for place in places]
    values_of: list[Any] = column.to_pylist()
    if _is_string(kinds, column.type) or kinds.is_integer(column.type):
        return values_of
    return [_as_json(value) for value in values_of]


def _is_string(kinds: Any, kind: Any) -> bool:
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind))


def _as_json(value: Any) -> Any:
    """Return a value as JSON has it: no number that is none, bytes as text or in base 64, moments as text."""
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
