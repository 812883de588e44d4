"""The formats of an input: text, JSON lines and CSV, each cut into rows with the line they begin on.

Text and JSON lines are cut in bytes, on the newline alone, so U+2028 and other exotic line ends inside a
text never split a row. A row that cannot be read comes as a :class:`BadRow`, not as an exception, so that one
pass can report many.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator
from typing import IO, Any, Final, NoReturn, TypeAlias

from attrs import frozen

__all__ = ["READERS", "BadRow", "Piece", "Reader", "lines"]

MAX_ROW_BYTES: Final = 64 * 2**20
"""Longest row, bytes: above any request body the providers take, and small enough to hold in memory."""

MAX_DEPTH: Final = 200
"""Deepest nesting of a JSON row: the parser's own limit (near 1,000) depends on who calls it."""

_BOM: Final = b"\xef\xbb\xbf"


@frozen
class BadRow:
    """A row that cannot be used.

    Attributes:
        line: one-based line of the file.
        message: what is wrong, without the row's content.
    """

    line: int
    message: str


Piece: TypeAlias = "tuple[int, dict[str, Any]] | BadRow"
"""What a reader yields: line and fields, or what is wrong there."""

Reader: TypeAlias = "Callable[[IO[bytes]], Iterator[Piece]]"


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


def _too_long(number: int) -> BadRow:
    return BadRow(number, f"the row is longer than {MAX_ROW_BYTES >> 20} MiB")


def _bad_utf8(number: int, error: UnicodeDecodeError) -> BadRow:
    return BadRow(number, f"not valid UTF-8 (byte {error.start + 1} of the line); save the file as UTF-8")


def _text_rows(file: IO[bytes]) -> Iterator[Piece]:
    for number, line in lines(file):
        if line is None:
            yield _too_long(number)
            continue
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            yield _bad_utf8(number, error)
            continue
        if text and not text.isspace():
            yield number, {"prompt": text}


def _json_rows(file: IO[bytes]) -> Iterator[Piece]:
    for number, line in lines(file):
        if line is None:
            yield _too_long(number)
        elif line and not line.isspace():
            yield _json_row(number, line)


def _json_row(number: int, line: bytes) -> Piece:
    try:
        value = _DECODER.decode(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return _bad_utf8(number, error)
    except json.JSONDecodeError as error:
        return BadRow(number, f"not valid JSON: {error.msg} (character {error.colno})")
    except RecursionError:
        return BadRow(number, f"nested deeper than {MAX_DEPTH} levels")
    except ValueError as error:
        return BadRow(number, f"not valid JSON: {error}")
    if not isinstance(value, dict):
        return BadRow(number, 'not a JSON object; each line must look like {"prompt": "…"}')
    # As many brackets as levels is the least a deep value needs: the walk is for the rare suspects.
    if line.count(b"[") + line.count(b"{") > MAX_DEPTH and _deeper_than(value, MAX_DEPTH):
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


def _csv_rows(file: IO[bytes]) -> Iterator[Piece]:
    # An invalid byte decodes to a lone surrogate, which valid UTF-8 cannot hold: it is found per row, and the
    # rest of the file stays readable.
    text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
    before = csv.field_size_limit(MAX_ROW_BYTES)
    try:
        yield from _csv_records(text)
    finally:
        csv.field_size_limit(before)
        text.detach()


def _csv_records(text: io.TextIOWrapper) -> Iterator[Piece]:
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
            if complaint := _header_complaint(header):
                yield BadRow(begins, complaint)
                return
        else:
            yield _csv_row(begins, header, cells)
        begins = reader.line_num + 1


def _bounded(text: io.TextIOWrapper) -> Iterator[str]:
    while line := text.readline(MAX_ROW_BYTES):
        if len(line) == MAX_ROW_BYTES and line[-1] not in "\r\n":
            raise ValueError(f"a line is longer than {MAX_ROW_BYTES >> 20} MiB")
        yield line


def _header_complaint(header: list[str]) -> str | None:
    if any(not _clean(name) for name in header):
        return "the header is not valid UTF-8; save the file as UTF-8"
    twice = [name for name in header if header.count(name) > 1]
    return f"the header names the column {twice[0]!r} twice" if twice else None


def _csv_row(number: int, header: list[str], cells: list[str]) -> Piece:
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


READERS: Final[dict[str, Reader]] = {"txt": _text_rows, "jsonl": _json_rows, "csv": _csv_rows}
