"""The formats of an input: how rows are read out of text and JSON, in constant memory.

Text and JSON lines are cut in bytes, on the newline alone, so U+2028 and other exotic line ends inside a text
never split a row. A row that cannot be read comes as a :class:`BadRow`, not as an exception, so that one pass
can report many.
"""

from __future__ import annotations

import io
import json
import math
import re
import string
from collections.abc import Callable, Iterator
from functools import partial
from typing import IO, Any, Final, NoReturn

from smartbatch.tables import parsed_rows
from smartbatch.tables.csv_rows import csv_rows
from smartbatch.tables.parquet_rows import parquet_rows
from smartbatch.tables.parsed_rows import BadRow, ParsedRow, Reader, is_clean

_fast: Callable[[bytes], Any] | None
try:
    from orjson import loads as _fast
except ImportError:  # the extra "fast" is not installed
    _fast = None

MAX_DEPTH: Final = 200
"""Deepest nesting of a JSON row: the parser's own limit (near 1,000) depends on who calls it."""

_FLAT: Final = frozenset({str, int, bool, type(None)})
_BOM: Final = b"\xef\xbb\xbf"
_SPACE: Final = re.compile("[ \t\r\n]*")
_BLOCK: Final = 1 << 20
"""Characters of a JSON array that are read at a time."""


def lines(file: IO[bytes]) -> Iterator[tuple[int, bytes | None]]:
    """Yield line numbers and lines without their ends; ``None`` for a line that is too long."""
    number = 0
    while line := file.readline(parsed_rows.MAX_ROW_BYTES + 1):
        number += 1
        if number == 1:
            line = line.removeprefix(_BOM)
        if len(line) > parsed_rows.MAX_ROW_BYTES and not line.endswith(b"\n"):
            while (rest := file.readline(1 << 20)) and not rest.endswith(b"\n"):
                pass
            yield number, None
        else:
            yield number, line.removesuffix(b"\n").removesuffix(b"\r")


def _line_rows(
    parse: Callable[[int, str], ParsedRow | None],
    quick: Callable[[bytes], dict[str, Any] | None],
    file: IO[bytes],
) -> Iterator[ParsedRow]:
    """Yield what ``quick`` makes of each line, and where that is ``None``, what ``parse`` makes of its text;
    ``None`` is a blank line."""
    for number, line in lines(file):
        if line is None:
            yield BadRow(number, f"the row is longer than {parsed_rows.MAX_ROW_BYTES >> 20} MiB")
            continue
        if (fields := quick(line)) is not None:
            yield number, fields
            continue
        try:
            row = parse(number, line.decode("utf-8"))
        except UnicodeDecodeError as error:
            at = error.start + 1
            yield BadRow(number, f"not valid UTF-8 (byte {at} of the line); save the file as UTF-8")
        else:
            if row is not None:
                yield row


def _flat_row(line: bytes) -> dict[str, Any] | None:
    """Return an object of texts and small whole numbers, as most rows are; ``None`` for any other line.

    Of these, ``orjson`` and the standard library make the same. It refuses what is no UTF-8, and makes floats
    of whole numbers beyond 64 bits.
    """
    try:
        value = None if _fast is None else _fast(line)
    except ValueError:
        return None
    return value if type(value) is dict and _FLAT.issuperset(map(type, value.values())) else None


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
    return _object_row(number, value, text)


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


# -- JSON arrays ---------------------------------------------------------------------------------------------


def _json_rows(file: IO[bytes]) -> Iterator[ParsedRow]:
    text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
    try:
        yield from _array_rows(_JsonText(text))
    finally:
        text.detach()


class _JsonText:
    """The text of a JSON array, of which a value and the block after it are held.

    Attributes:
        line: one-based, of the next character.
    """

    def __init__(self, file: io.TextIOWrapper) -> None:
        self._file = file
        self._held = ""
        self._place = 0
        self.line = 1

    def next(self) -> str:
        """Skip white space and return the character after it, which stays; empty at the end."""
        while True:
            space = _SPACE.match(self._held, self._place)
            self._advance(self._place if space is None else space.end())
            if self._place < len(self._held):
                return self._held[self._place]
            if not self._read(_BLOCK):
                return ""

    def skip(self) -> None:
        """Pass over the next character."""
        self._advance(self._place + 1)

    def value(self) -> tuple[Any, str]:
        """Return the next value and its text.

        Raises:
            ValueError: it is not valid JSON, or too long.
            RecursionError: it is nested too deeply.
        """
        while True:
            try:
                value, end = _DECODER.raw_decode(self._held, self._place)
            except json.JSONDecodeError:  # perhaps only cut off
                held = len(self._held) - self._place
                if held > parsed_rows.MAX_ROW_BYTES:
                    raise ValueError(
                        f"the row is longer than {parsed_rows.MAX_ROW_BYTES >> 20} MiB"
                    ) from None
                if not self._read(max(held, _BLOCK)):
                    raise
            else:
                text = self._held[self._place : end]
                self._advance(end)
                return value, text

    def _advance(self, place: int) -> None:
        self.line += self._held.count("\n", self._place, place)
        self._place = place

    def _read(self, size: int) -> bool:
        more = self._file.read(size)
        self._held, self._place = self._held[self._place :] + more, 0
        return bool(more)


def _array_rows(text: _JsonText) -> Iterator[ParsedRow]:
    """Yield the objects of an array; what is no valid JSON ends it."""
    if text.next() != "[":
        yield BadRow(text.line, "not a JSON array of objects; one object a line is --format jsonl")
        return
    text.skip()
    between = text.next() != "]"
    while between:
        text.next()
        line = text.line
        try:
            value, written = text.value()
        except json.JSONDecodeError as error:
            yield BadRow(line, f"not valid JSON: {error.msg}, in the row that begins here")
            return
        except RecursionError:
            yield BadRow(line, f"nested deeper than {MAX_DEPTH} levels")
            return
        except ValueError as error:
            yield BadRow(line, f"not valid JSON: {error}")
            return
        yield _object_row(line, value, written)
        after = text.next()
        if after not in (",", "]"):
            yield BadRow(text.line, "not valid JSON: no comma after a row, and no end of the array")
            return
        if between := after == ",":
            text.skip()
    text.skip()
    if text.next():
        yield BadRow(text.line, "not valid JSON: there is more after the end of the array")


def _object_row(line: int, value: Any, written: str) -> ParsedRow:
    if not is_clean(written):
        return BadRow(line, "not valid UTF-8; save the file as UTF-8")
    if not isinstance(value, dict):
        return BadRow(line, 'not a JSON object; each row must look like {"prompt": "…"}')
    # A deep value has at least as many brackets as levels: few rows need the walk.
    if written.count("[") + written.count("{") > MAX_DEPTH and _deeper_than(value, MAX_DEPTH):
        return BadRow(line, f"nested deeper than {MAX_DEPTH} levels")
    return line, value


READERS: Final[dict[str, Reader]] = {
    "txt": partial(_line_rows, _text_row, lambda _: None),
    "jsonl": partial(_line_rows, _json_row, _flat_row),
    "json": _json_rows,
    "csv": csv_rows,
    "tsv": partial(csv_rows, usual="\t"),
    "parquet": parquet_rows,
}
"""The reader of each format, by its name on the command line and the ending of a file."""
