"""The input of a run: text, JSON lines or CSV, gzipped or not, from a file or standard input.

A source is read twice (once to check every row, once to send the requests) in constant memory. Text and JSON
lines are cut in bytes, on the newline alone, so U+2028 and other exotic line ends inside a text never split a
row. A row that cannot be read comes as a :class:`BadRow`, not as an exception, so that one pass can report
many.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import os
import shutil
import stat
import string
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import IO, Any, Final, NoReturn, TypeAlias, TypeVar, cast

from attrs import frozen

from smartbatch.errors import InputError
from smartbatch.observe.text import escape

_Read = TypeVar("_Read")

MAX_ROW_BYTES: Final = 64 * 2**20
"""Longest row, bytes: above any request body the providers take, and small enough to hold in memory."""

MAX_DEPTH: Final = 200
"""Deepest nesting of a JSON row: the parser's own limit (near 1,000) depends on who calls it."""

_BOM: Final = b"\xef\xbb\xbf"
_SUFFIXES: Final = {".txt": "txt", ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv"}
_GZIP_MAGIC: Final = b"\x1f\x8b"


@frozen
class Row:
    """One row of the input.

    Attributes:
        index: zero-based position among the rows; blank lines do not count.
        line: one-based line of the file the row begins on.
        fields: the row's columns or keys; a line of text is the field ``prompt``.
    """

    index: int
    line: int
    fields: dict[str, Any]


@frozen
class BadRow:
    """A row that cannot be used: its one-based line, and what is wrong, without the row's content."""

    line: int
    message: str


class Source:
    """An input that can be read from the beginning again and again.

    Args:
        path: a file name, or ``-`` for standard input, which is copied to a temporary file first, as is
            any other stream that cannot be read twice.
        format: ``txt``, ``jsonl`` or ``csv``; by the name when ``None``. A stream is taken for JSON
            lines when its first character is ``{``, else for text.

    Raises:
        InputError: the file cannot be opened, or its format is unknown.
    """

    def __init__(self, path: str, format: str | None = None) -> None:
        self.name = "standard input" if path == "-" else escape(path)
        stem = path[:-3] if path.endswith(".gz") else path
        self.format = format or _SUFFIXES.get(os.path.splitext(stem)[1].lower(), "")
        try:
            self._file, stream = _open_twice_readable(path)
        except OSError as error:
            raise InputError(f"{self.name}: cannot be read: {error.strerror or error}") from error
        if not self.format and not stream:
            self._file.close()
            raise InputError(
                f"{self.name}: cannot tell the format from the name; name it .txt, .jsonl or .csv (and .gz), "
                f"or say --format {'|'.join(READERS)}"
            )
        self._gzipped = path.endswith(".gz") or (stream and self._file.read(2) == _GZIP_MAGIC)
        if not self.format:
            self.format = next(self._guarded(_format_of))

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def same_file(self, path: str) -> bool:
        """True when ``path`` is this very file."""
        with suppress(OSError):
            return os.path.samestat(os.fstat(self._file.fileno()), os.stat(path))
        return False

    def rows(self) -> Iterator[Row | BadRow]:
        """Yield every row from the first on. Only one iteration may be under way at a time.

        Raises:
            InputError: the file as a whole cannot be read on.
        """
        for index, parsed in enumerate(self._guarded(READERS[self.format])):
            yield parsed if isinstance(parsed, BadRow) else Row(index, *parsed)

    def _guarded(self, reader: Callable[[IO[bytes]], Iterator[_Read]]) -> Iterator[_Read]:
        """Read the file from its beginning, with errors that name it."""
        try:
            self._file.seek(0)
            if self._gzipped:
                yield from reader(cast("IO[bytes]", gzip.GzipFile(fileobj=self._file, mode="rb")))
            else:
                yield from reader(self._file)
        except (OSError, EOFError, zlib.error) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise InputError(f"{self.name}: cannot be read to its end: {reason}") from error


def _format_of(file: IO[bytes]) -> Iterator[str]:
    """Yield the format of a stream, by its first character."""
    first = next((line for _, line in lines(file) if line is None or line.strip()), None)
    yield "jsonl" if first and first.lstrip().startswith(b"{") else "txt"


def _open_twice_readable(path: str) -> tuple[IO[bytes], bool]:
    """Return the open file, and whether it is the copy of a stream."""
    if path == "-":
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


# -- formats -------------------------------------------------------------------------------------------------

ParsedRow: TypeAlias = "tuple[int, dict[str, Any]] | BadRow"
"""What a reader yields: a line and its fields, or the error there."""

Reader: TypeAlias = "Callable[[IO[bytes]], Iterator[ParsedRow]]"


def lines(file: IO[bytes]) -> Iterator[tuple[int, bytes | None]]:
    """Yield line numbers and lines without their ends; ``None`` for a line that is too long."""
    number = 0
    while line := file.readline(MAX_ROW_BYTES + 1):
        number += 1
        if number == 1:
            line = line.removeprefix(_BOM)
        if len(line) > MAX_ROW_BYTES and not line.endswith(b"\n"):
            while (rest := file.readline(1 << 20)) and not rest.endswith(b"\n"):
                pass
            yield number, None
        else:
            yield number, line.removesuffix(b"\n").removesuffix(b"\r")


def _line_rows(parse: Callable[[int, str], ParsedRow | None], file: IO[bytes]) -> Iterator[ParsedRow]:
    """Yield what ``parse`` makes of each line; ``None`` is a blank line."""
    for number, line in lines(file):
        if line is None:
            yield BadRow(number, f"the row is longer than {MAX_ROW_BYTES >> 20} MiB")
            continue
        try:
            row = parse(number, line.decode("utf-8"))
        except UnicodeDecodeError as error:
            at = error.start + 1
            yield BadRow(number, f"not valid UTF-8 (byte {at} of the line); save the file as UTF-8")
        else:
            if row is not None:
                yield row


def _text_row(number: int, text: str) -> ParsedRow | None:
    return (number, {"prompt": text}) if text and not text.isspace() else None


def _json_row(number: int, text: str) -> ParsedRow | None:
    if not text.strip(string.whitespace):
        return None
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        return BadRow(number, f"not valid JSON: {error.msg} (character {error.colno})")
    except RecursionError:
        return BadRow(number, f"nested deeper than {MAX_DEPTH} levels")
    except ValueError as error:
        return BadRow(number, f"not valid JSON: {error}")
    if not isinstance(value, dict):
        return BadRow(number, 'not a JSON object; each line must look like {"prompt": "…"}')
    # A deep value has at least as many brackets as levels: few rows need the walk.
    if text.count("[") + text.count("{") > MAX_DEPTH and _deeper_than(value, MAX_DEPTH):
        return BadRow(number, f"nested deeper than {MAX_DEPTH} levels")
    return number, value


def _deeper_than(value: Any, limit: int) -> bool:
    level: list[Any] = [value]
    for _ in range(limit):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is too large")
    return number


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _whole(text: str) -> int:
    if len(text) > 4000:  # Python refuses to convert beyond 4,300 digits, to and fro
        raise ValueError("a number is too long")
    return int(text)


_DECODER: Final = json.JSONDecoder(parse_float=_finite, parse_int=_whole, parse_constant=_no_constant)


def _csv_rows(file: IO[bytes]) -> Iterator[ParsedRow]:
    # An invalid byte decodes to a lone surrogate, which valid UTF-8 cannot hold: it is found per row, and the
    # rest of the file stays readable.
    text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
    before = csv.field_size_limit(MAX_ROW_BYTES)
    try:
        yield from _csv_records(text)
    finally:
        csv.field_size_limit(before)
        text.detach()


def _csv_records(text: io.TextIOWrapper) -> Iterator[ParsedRow]:
    reader = csv.reader(_bounded(text), strict=True)
    begins = 1
    header: list[str] = []
    while True:
        try:
            cells = next(reader, None)
        except (csv.Error, ValueError) as error:
            yield BadRow(begins, f"not valid CSV: {error} (up to line {reader.line_num}); check its quotes")
            return
        if cells is None:
            return
        if not cells:
            pass
        elif not header:
            header = cells
            if message := _header_error(header):
                yield BadRow(begins, message)
                return
        else:
            yield _csv_row(begins, header, cells)
        begins = reader.line_num + 1


def _bounded(text: io.TextIOWrapper) -> Iterator[str]:
    while line := text.readline(MAX_ROW_BYTES):
        if len(line) == MAX_ROW_BYTES and line[-1] not in "\r\n":
            raise ValueError(f"a line is longer than {MAX_ROW_BYTES >> 20} MiB")
        yield line


def _header_error(header: list[str]) -> str | None:
    if any(not _clean(name) for name in header):
        return "the header is not valid UTF-8; save the file as UTF-8"
    twice = [name for name in header if header.count(name) > 1]
    return f"the header names the column {twice[0]!r} twice" if twice else None


def _csv_row(number: int, header: list[str], cells: list[str]) -> ParsedRow:
    if len(cells) != len(header):
        return BadRow(
            number, f"{len(cells)} fields where the header names {len(header)}; quote fields that hold commas"
        )
    fields = dict(zip(header, cells, strict=True))
    for name, value in fields.items():
        if not _clean(value):
            return BadRow(number, f"field {name!r} is not valid UTF-8; save the file as UTF-8")
    return number, fields


def _clean(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


READERS: Final[dict[str, Reader]] = {
    "txt": partial(_line_rows, _text_row),
    "jsonl": partial(_line_rows, _json_row),
    "csv": _csv_rows,
}
