"""Reads rows from text, JSON and CSV in constant memory.

Text and JSON lines are split at newline bytes only, so U+2028 and other line separators inside a text never
split a row. A row that cannot be read becomes a :class:`BadRow` instead of an exception, so that one pass can
report many of them.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import string
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import IO, Any, Final, NoReturn, TypeAlias

from attrs import frozen

from smartbatch.errors import InputError

MAX_ROW_BYTES: Final = 64 * 2**20
"""Maximum bytes of a row. This is more than any provider accepts in a request, and small enough for memory.
"""


@frozen
class BadRow:
    """An unusable row, with its one-based line and the problem, but without its content."""

    line: int
    message: str


ParsedRow: TypeAlias = "tuple[int, dict[str, Any]] | BadRow"  # one-based line number and fields, or the error

Reader: TypeAlias = "Callable[[IO[bytes]], Iterator[ParsedRow]]"


def header_error(header: Sequence[str]) -> str | None:
    """Return the problem with column names; ``None`` if there is none."""
    if any(not is_clean(name) for name in header):
        return "the header is not valid UTF-8; save the file as UTF-8"
    name, times = Counter(header).most_common(1)[0] if header else ("", 0)
    return f"the header names the column {name[:100]!r} twice" if times > 1 else None


def is_clean(text: str) -> bool:
    """Whether a string was decoded from valid UTF-8. Invalid bytes were decoded to lone surrogates."""
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def missing(package: str, extra: str, purpose: str) -> InputError:
    """Return the error for a missing library, with the command to install it."""
    return InputError(
        f"{purpose} needs {package}: pip install {package}, or the extra {extra!r} of smartbatch-llm"
    )


_fast: Callable[[bytes], Any] | None
try:
    from orjson import loads as _fast
except ImportError:  # the extra "fast" is not installed
    _fast = None

MAX_DEPTH: Final = 200
"""Maximum nesting of a JSON row. The parser's own limit, about 1,000, depends on the caller's stack."""

_FLAT: Final = frozenset({str, int, bool, type(None)})
_BOM: Final = b"\xef\xbb\xbf"
_SPACE: Final = re.compile("[ \t\r\n]*")
_READ_CHARACTERS: Final = 1 << 20  # characters of a JSON array per read


def lines(file: IO[bytes]) -> Iterator[tuple[int, bytes | None]]:
    """Yield line numbers and lines without line ends; ``None`` stands for a line that is too long."""
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


def line_rows(
    parse: Callable[[int, str], ParsedRow | None],
    quick: Callable[[bytes], dict[str, Any] | None],
    file: IO[bytes],
) -> Iterator[ParsedRow]:
    """Yield the row of each line, parsed by ``quick`` or, if that returns ``None``, by ``parse``. Blank lines
    are skipped.
    """
    for number, line in lines(file):
        if line is None:
            yield BadRow(number, f"the row is longer than {MAX_ROW_BYTES >> 20} MiB")
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


def flat_row(line: bytes) -> dict[str, Any] | None:
    """Parse an object that contains only strings and small integers, as most rows do; return ``None`` for any
    other line.

    For such objects, ``orjson`` and the standard library agree. In general, ``orjson`` rejects invalid UTF-8
    and reads integers beyond 64 bits as floats.
    """
    try:
        value = None if _fast is None else _fast(line)
    except ValueError:
        return None
    return value if type(value) is dict and _FLAT.issuperset(map(type, value.values())) else None


def text_row(number: int, text: str) -> ParsedRow | None:
    return (number, {"prompt": text}) if text and not text.isspace() else None


def json_row(number: int, text: str) -> ParsedRow | None:
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
    if len(text) > 4000:  # Python converts at most 4,300 digits, in either direction
        raise ValueError("a number is too long")
    return int(text)


_DECODER: Final = json.JSONDecoder(parse_float=_finite, parse_int=_whole, parse_constant=_no_constant)


# -- JSON arrays ---------------------------------------------------------------------------------------------


def json_rows(file: IO[bytes]) -> Iterator[ParsedRow]:
    text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
    try:
        yield from _array_rows(_JsonText(text))
    finally:
        text.detach()


class _JsonText:
    """The text of a JSON array. Only one value and the following block are kept in memory."""

    def __init__(self, file: io.TextIOWrapper) -> None:
        self._file = file
        self._held = ""
        self._place = 0
        self.line = 1

    def next(self) -> str:
        """Skip white space and return the next character without consuming it; empty at the end."""
        while True:
            space = _SPACE.match(self._held, self._place)
            self._advance(self._place if space is None else space.end())
            if self._place < len(self._held):
                return self._held[self._place]
            if not self._read(_READ_CHARACTERS):
                return ""

    def skip(self) -> None:
        self._advance(self._place + 1)

    def value(self) -> tuple[Any, str]:
        """Return the next value and its text.

        Raises:
            ValueError: it is not valid JSON, or it is too long.
            RecursionError: it is nested too deeply.
        """
        while True:
            try:
                value, end = _DECODER.raw_decode(self._held, self._place)
            except json.JSONDecodeError:  # the block may end inside the value
                held = len(self._held) - self._place
                if held > MAX_ROW_BYTES:
                    raise ValueError(f"the row is longer than {MAX_ROW_BYTES >> 20} MiB") from None
                if not self._read(max(held, _READ_CHARACTERS)):
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
    """Yield the objects of an array, up to the first invalid JSON."""
    if text.next() != "[":
        yield BadRow(text.line, "not a JSON array of objects; for one object per line, use --format jsonl")
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
            yield BadRow(text.line, "not valid JSON: a comma or the end of the array is missing after a row")
            return
        if between := after == ",":
            text.skip()
    text.skip()
    if text.next():
        yield BadRow(text.line, "not valid JSON: there is text after the end of the array")


def _object_row(line: int, value: Any, written: str) -> ParsedRow:
    if not is_clean(written):
        return BadRow(line, "not valid UTF-8; save the file as UTF-8")
    if not isinstance(value, dict):
        return BadRow(line, 'not a JSON object; each row must look like {"prompt": "…"}')
    # A value has at least as many brackets as levels, so few rows need the full check.
    if written.count("[") + written.count("{") > MAX_DEPTH and _deeper_than(value, MAX_DEPTH):
        return BadRow(line, f"nested deeper than {MAX_DEPTH} levels")
    return line, value


# detected delimiters by their names in ``--delimiter``
DELIMITERS: Final = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|"}

_SAMPLE_LINES: Final = 50
_SAMPLE_CHARACTERS: Final = 1 << 18  # characters from which the delimiter is detected
_SEPARATOR_LINE: Final = "sep="
"""Prefix of the first line in which some spreadsheets name the delimiter. That line is not a row."""


def csv_rows(file: IO[bytes], *, delimiter: str | None = None, usual: str = ",") -> Iterator[ParsedRow]:
    """Yield the rows of a CSV file.

    Args:
        delimiter: one character; ``None`` to detect it from the first lines.
        usual: the delimiter if the first lines are ambiguous.
    """
    # Invalid bytes are decoded to lone surrogates, which valid UTF-8 never contains. The affected rows are
    # found that way, and the rest of the file can be read.
    text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
    before = csv.field_size_limit(MAX_ROW_BYTES)
    try:
        yield from _records(_bounded(text), delimiter, usual)
    finally:
        csv.field_size_limit(before)
        if not file.closed:  # by an error while the rows were read
            text.detach()


def _records(lines: Iterator[str], delimiter: str | None, usual: str) -> Iterator[ParsedRow]:
    skipped = 0
    if delimiter is None:
        try:
            sample = _sample(lines)
        except ValueError as error:
            yield BadRow(1, f"not valid CSV: {error}; check its quotes")
            return
        delimiter = usual
        if sample and sample[0].lower().startswith(_SEPARATOR_LINE) and len(sample[0].strip()) == 5:
            delimiter, skipped = sample[0][len(_SEPARATOR_LINE)], 1
        else:
            delimiter = _detected(sample, usual)
        lines = chain(sample[skipped:], lines)
    reader = csv.reader(lines, strict=True, delimiter=delimiter)
    begins = 1 + skipped
    header: list[str] = []
    while True:
        try:
            cells = next(reader, None)
        except (csv.Error, ValueError) as error:
            last = reader.line_num + skipped
            yield BadRow(begins, f"not valid CSV: {error} (up to line {last}); check its quotes")
            return
        if cells is None:
            return
        if not cells:
            pass
        elif not header:
            header = cells
            if message := header_error(header):
                yield BadRow(begins, message)
                return
        else:
            yield _csv_row(begins, header, cells, delimiter)
        begins = reader.line_num + skipped + 1


def _bounded(text: io.TextIOWrapper) -> Iterator[str]:
    longest = MAX_ROW_BYTES
    while line := text.readline(longest):
        if len(line) == longest and line[-1] not in "\r\n":
            raise ValueError(f"a line is longer than {longest >> 20} MiB")
        yield line


def _sample(lines: Iterator[str]) -> list[str]:
    sample: list[str] = []
    size = 0
    for line in islice(lines, _SAMPLE_LINES):
        sample.append(line)
        size += len(line)
        if size > _SAMPLE_CHARACTERS:
            break
    return sample


def _detected(sample: Sequence[str], usual: str) -> str:
    """Return the delimiter that splits the first lines into the most columns.

    A delimiter that gives all rows the same number of cells is preferred, then one that does so for at least
    half of them. ``usual`` is returned for ties and if none fits.
    """
    candidates = [usual, *(each for each in DELIMITERS.values() if each != usual)]
    fits = {each: _fit(sample, each) for each in candidates}
    return max(candidates, key=fits.__getitem__)


def _fit(sample: Sequence[str], delimiter: str) -> tuple[bool, int]:
    """Return whether all rows have as many cells as the header, and that number. The number is 0 if there is
    only one column, or if fewer than half of the rows match.
    """
    records = csv.reader(iter(sample), strict=True, delimiter=delimiter)
    sizes: list[int] = []
    with suppress(csv.Error):  # the sample may end inside quotes
        sizes.extend(len(cells) for cells in records if cells)
    if not sizes or sizes[0] == 1:
        return False, 0
    same = sizes.count(sizes[0])
    return same == len(sizes), sizes[0] if 2 * same >= len(sizes) else 0


def _csv_row(number: int, header: list[str], cells: list[str], delimiter: str) -> ParsedRow:
    if len(cells) != len(header):
        shown = next((name for name, each in DELIMITERS.items() if each == delimiter), repr(delimiter))
        return BadRow(
            number,
            f"{len(cells)} fields, but the header has {len(header)} (the delimiter is the {shown}); quote "
            "fields that contain it, or choose another with --delimiter",
        )
    fields = dict(zip(header, cells, strict=True))
    for name, value in fields.items():
        if not is_clean(value):
            return BadRow(number, f"field {name!r} is not valid UTF-8; save the file as UTF-8")
    return number, fields
