"""Reads the rows of a run from a file or standard input, compressed or not.

An input is read twice in constant memory, first to check every row, then to send the requests.
"""

from __future__ import annotations

import gzip
import io
import os
import shutil
import stat
import sys
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial
from typing import IO, Any, Final, TypeVar, cast

from attrs import frozen

from smartbatch._words import escape
from smartbatch.errors import InputError
from smartbatch.tables.parquet_rows import parquet_rows
from smartbatch.tables.row_formats import (
    BadRow,
    Reader,
    csv_rows,
    flat_row,
    json_row,
    json_rows,
    line_rows,
    lines,
    missing,
    text_row,
)

# readers by the names in ``--format`` and in file extensions
READERS: Final[dict[str, Reader]] = {
    "txt": partial(line_rows, text_row, lambda _: None),
    "jsonl": partial(line_rows, json_row, flat_row),
    "json": json_rows,
    "csv": csv_rows,
    "tsv": partial(csv_rows, usual="\t"),
    "parquet": parquet_rows,
}

_Read = TypeVar("_Read")

_OTHER_NAMES: Final = {"ndjson": "jsonl"}  # file extensions that differ from the name of their format
_PARQUET_MAGIC: Final = b"PAR1"
_PLACE_INTERVAL_ROWS: Final = 4096  # rows between two remembered file positions, at which reading can resume


@frozen
class Row:
    index: int  # zero-based, without blank lines
    line: int  # one-based line of the file on which the row begins
    fields: dict[str, Any]  # by column or key; a line of text has one field, prompt


class RowSource:
    """An input that can be read from the beginning any number of times.

    Args:
        path: a file name, or ``-`` for standard input. Streams that cannot be read twice, such as standard
            input, are copied to a temporary file.
        format: a key of :data:`READERS`; ``None`` to derive it from the file name. A stream is read as
            Parquet or JSON lines if it begins like one, and otherwise as text.
        delimiter: the character between CSV columns; ``None`` to detect it from the first lines.
        with_bytes: columns of Parquet whose values are not converted to JSON values.

    Attributes:
        places: byte offsets of rows at regular intervals in the part of the file that was read.

    Raises:
        InputError: the file cannot be opened, its format is unknown, or its format does not use the
            delimiter.
    """

    def __init__(
        self,
        path: str,
        format: str | None = None,
        delimiter: str | None = None,
        with_bytes: Collection[str] = (),
    ) -> None:
        self.name = "standard input" if path == "-" else escape(path)
        stem, ending = os.path.splitext(path)
        self.places = [0]
        self._compression = ending[1:].lower() if ending[1:].lower() in MAGIC_BYTES else ""
        suffix = os.path.splitext(stem if self._compression else path)[1][1:].lower()
        suffix = _OTHER_NAMES.get(suffix, suffix)
        self.format = format or (suffix if suffix in READERS else "")
        try:
            self._file, stream = _open_twice_readable(path)
        except OSError as error:
            raise InputError(f"{self.name}: cannot be read: {error.strerror or error}") from error
        try:
            self._find_format(stream)
            if delimiter is not None and self.format not in ("csv", "tsv"):
                raise InputError(f"{self.name}: --delimiter is for CSV, not for {self.format}")
        except BaseException:
            self._file.close()
            raise
        self._reader = READERS[self.format]
        if delimiter is not None:
            self._reader = partial(csv_rows, delimiter=delimiter)
        elif with_bytes and self.format == "parquet":
            self._reader = partial(parquet_rows, with_bytes=with_bytes)

    def _find_format(self, stream: bool) -> None:
        if not self.format and not stream:
            *others, last = (f".{name}" for name in READERS)
            raise InputError(
                f"{self.name}: the name does not show the format; rename it to {', '.join(others)} or "
                f"{last} (optionally with .gz or .zst), or use --format {'|'.join(READERS)}"
            )
        if stream and not self._compression:
            begins = self._file.read(4)
            self._compression = next(
                (name for name, magic in MAGIC_BYTES.items() if begins.startswith(magic)), ""
            )
        if not self.format:
            self.format = next(self._guarded(_format_of))
        if self.format == "parquet" and self._compression:
            packed = self._file
            self._file = next(self._guarded(lambda file: iter([_spooled(file)])))
            self._compression = ""
            packed.close()

    def __enter__(self) -> RowSource:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def place(self, row: Row | BadRow) -> str:
        """Return the position of a row for messages. Rows count from 0, as in results; lines count from 1."""
        if self.format == "parquet":
            return f"row {row.line - 1}"
        return f"line {row.line}" if isinstance(row, BadRow) else f"row {row.index} (line {row.line})"

    def same_file(self, path: str) -> bool:
        with suppress(OSError):
            return os.path.samestat(os.fstat(self._file.fileno()), os.stat(path))
        return False

    def start_before(self, index: int) -> int:
        """Return the last row, at or before ``index``, from which :meth:`rows` can start.

        In the part of an uncompressed JSON lines file that was already read, this row is at most a few
        thousand rows earlier. Otherwise it is the first row.
        """
        return min(index // _PLACE_INTERVAL_ROWS, len(self.places) - 1) * _PLACE_INTERVAL_ROWS

    def rows(self, start: int = 0) -> Iterator[Row | BadRow]:
        """Yield every row from ``start`` on. Only one iteration may be active at a time.

        Args:
            start: from :meth:`start_before`; lines are counted from this row.

        Raises:
            InputError: the rest of the file cannot be read.
        """
        seekable = self.format == "jsonl" and not self._compression
        read = self._guarded(self._reader, self.places[start // _PLACE_INTERVAL_ROWS])
        for index, parsed in enumerate(read, start):
            yield parsed if isinstance(parsed, BadRow) else Row(index, *parsed)
            if seekable and index + 1 == len(self.places) * _PLACE_INTERVAL_ROWS:
                self.places.append(self._file.tell())

    def _guarded(self, reader: Callable[[IO[bytes]], Iterator[_Read]], place: int = 0) -> Iterator[_Read]:
        """Read the file from a position, adding the file name to errors."""
        try:
            self._file.seek(place)
            yield from reader(decompressed(self._file, self._compression))
        except READ_ERRORS as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise InputError(f"{self.name}: cannot be read to the end: {reason}") from error


def _format_of(file: IO[bytes]) -> Iterator[str]:
    first = next((line for _, line in lines(file) if line is None or line.strip()), None)
    begins = (first or b"").lstrip()
    yield "parquet" if begins.startswith(_PARQUET_MAGIC) else "jsonl" if begins.startswith(b"{") else "txt"


def _open_twice_readable(path: str) -> tuple[IO[bytes], bool]:
    """Return the open file, and whether it is a copy of a stream."""
    if path == "-":
        if sys.stdin is None:
            raise InputError("standard input is closed")
        return _spooled(sys.stdin.buffer), True
    file = open(path, "rb")  # noqa: SIM115 - the source keeps it open for both passes
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file, False
    with file:
        return _spooled(file), True


def _spooled(stream: IO[bytes]) -> IO[bytes]:
    spool = cast("IO[bytes]", tempfile.TemporaryFile(prefix="smartbatch-"))  # noqa: SIM115
    try:
        shutil.copyfileobj(stream, spool, 1 << 20)
        spool.seek(0)
    except BaseException:
        spool.close()
        raise
    return spool


# first bytes of compressed files, by file extension
MAGIC_BYTES: Final = {"gz": b"\x1f\x8b", "zst": b"\x28\xb5\x2f\xfd"}
_READ_BYTES: Final = 1 << 9  # compressed bytes per read; four bytes of Zstandard can expand to 128 kB
_MAX_RATIO: Final = 1000  # maximum compression ratio; that of text rarely exceeds 100
_FREE_BYTES: Final = 2**30  # unpacked bytes allowed at any compression ratio
_MAX_LINES_PER_BYTE: Final = 8
"""Maximum lines per compressed byte. Unless lines are identical, each takes several bytes."""
_FREE_LINES: Final = 2_000_000  # lines allowed at any compression ratio

# raised while a damaged or truncated file is read
READ_ERRORS: Final = (OSError, EOFError, zlib.error)


def decompressed(file: IO[bytes], compression: str) -> IO[bytes]:
    """Return the unpacked content of a file from its current position.

    Args:
        compression: ``gz``, ``zst``, or an empty string for none.

    Raises:
        InputError: ``zstandard`` is not installed.
    """
    if compression not in MAGIC_BYTES:
        return file
    begins = file.tell()
    packed = file.seek(0, io.SEEK_END)
    file.seek(begins)
    content: Any = gzip.GzipFile(fileobj=file, mode="rb") if compression == "gz" else _ZstandardFile(file)
    return io.BufferedReader(_Bounded(content, packed))


class _Bounded(io.RawIOBase):
    """The content of a compressed file of ``packed`` bytes, with a limited size and number of lines.

    The limits keep a small file from taking hours to read, or from filling the memory with rows.

    Raises, while it is read:
        OSError: the content has too many bytes or lines.
    """

    def __init__(self, content: Any, packed: int) -> None:
        self._content = content
        self._bytes = self._most_bytes = max(_FREE_BYTES, _MAX_RATIO * packed)
        self._lines = self._most_lines = _FREE_LINES + _MAX_LINES_PER_BYTE * packed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size: int = self._content.readinto(buffer)
        self._bytes -= size
        if self._bytes < 0:
            raise OSError(
                f"the content is longer than {self._most_bytes:,} bytes, over {_MAX_RATIO:,} times the size "
                "of the compressed file; if that is expected, unpack it first"
            )
        with memoryview(buffer) as view:
            read = bytes(view[:size])
        self._lines -= read.count(b"\n") + read.count(b"}")  # a JSON list may be a single line
        if self._lines < 0:
            raise OSError(
                f"the content has more than {self._most_lines:,} lines or objects, unusually many for a "
                "compressed file of this size; if that is expected, unpack it first"
            )
        return size


class _ZstandardFile(io.RawIOBase):
    """The content of Zstandard frames. A stream that ends within a frame raises an error, unlike with the
    readers of ``zstandard``.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        try:
            import zstandard
        except ImportError as error:
            raise missing("zstandard", "zstd", "reading .zst") from error
        self._library = zstandard
        self._frame: Any = None
        self._content = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._content:
            data = b""
            if self._frame is not None and self._frame.eof:
                data, self._frame = self._frame.unused_data, None
            data = data or self._file.read(_READ_BYTES)
            if not data and self._frame is None:
                return 0
            if not data:
                raise EOFError("the compressed content ends too early")
            if self._frame is None:
                self._frame = self._library.ZstdDecompressor().decompressobj()
            try:
                self._content = memoryview(self._frame.decompress(data))
            except self._library.ZstdError as error:
                raise OSError(str(error)) from error
        size = min(len(buffer), len(self._content))
        buffer[:size] = self._content[:size]
        self._content = self._content[size:]
        return size
