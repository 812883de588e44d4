"""CSV: its delimiter, which is found if nobody names it, and its rows, in constant memory."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import IO, Final

from smartbatch.tables import parsed_rows
from smartbatch.tables.parsed_rows import BadRow, ParsedRow, header_error, is_clean

DELIMITERS: Final = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|"}
"""The delimiters that are detected, by the names under which ``--delimiter`` takes them."""

_SAMPLE_LINES: Final = 50
_SAMPLE_CHARACTERS: Final = 1 << 18
"""The beginning of a file by which its delimiter is found."""
_SEPARATOR_LINE: Final = "sep="
"""How the first line of some spreadsheets begins, which names the delimiter and is no row."""


def csv_rows(file: IO[bytes], *, delimiter: str | None = None, usual: str = ",") -> Iterator[ParsedRow]:
    """Yield the rows of a file of CSV.

    Args:
        delimiter: one character; found by the first lines if ``None``.
        usual: the delimiter where the first lines leave it open.
    """
    # An invalid byte decodes to a lone surrogate, which valid UTF-8 cannot hold: it is found per row, and the
    # rest of the file stays readable.
    text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
    before = csv.field_size_limit(parsed_rows.MAX_ROW_BYTES)
    try:
        yield from _records(_bounded(text), delimiter, usual)
    finally:
        csv.field_size_limit(before)
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
            yield _row(begins, header, cells, delimiter)
        begins = reader.line_num + skipped + 1


def _bounded(text: io.TextIOWrapper) -> Iterator[str]:
    longest = parsed_rows.MAX_ROW_BYTES
    while line := text.readline(longest):
        if len(line) == longest and line[-1] not in "\r\n":
            raise ValueError(f"a line is longer than {longest >> 20} MiB")
        yield line


def _sample(lines: Iterator[str]) -> list[str]:
    """Return the first lines, without reading far."""
    sample: list[str] = []
    size = 0
    for line in islice(lines, _SAMPLE_LINES):
        sample.append(line)
        size += len(line)
        if size > _SAMPLE_CHARACTERS:
            break
    return sample


def _detected(sample: Sequence[str], usual: str) -> str:
    """Return the delimiter that cuts the first lines into most columns, with as many cells in all rows, or
    else in half of them, as in the header. Of equals, and if none fits, the usual one counts."""
    candidates = [usual, *(each for each in DELIMITERS.values() if each != usual)]
    fits = {each: _fit(sample, each) for each in candidates}
    return max(candidates, key=fits.__getitem__)


def _fit(sample: Sequence[str], delimiter: str) -> tuple[bool, int]:
    """Return whether all rows have as many cells as the header, and how many those are; 0 if they are one,
    or fewer than half of the rows have as many."""
    records = csv.reader(iter(sample), strict=True, delimiter=delimiter)
    sizes: list[int] = []
    with suppress(csv.Error):  # perhaps only the sample ends within quotes
        sizes.extend(len(cells) for cells in records if cells)
    if not sizes or sizes[0] == 1:
        return False, 0
    same = sizes.count(sizes[0])
    return same == len(sizes), sizes[0] if 2 * same >= len(sizes) else 0


def _row(number: int, header: list[str], cells: list[str], delimiter: str) -> ParsedRow:
    if len(cells) != len(header):
        shown = next((name for name, each in DELIMITERS.items() if each == delimiter), repr(delimiter))
        return BadRow(
            number,
            f"{len(cells)} fields where the header names {len(header)} (the delimiter is the {shown}); quote "
            "fields that hold it, or name another with --delimiter",
        )
    fields = dict(zip(header, cells, strict=True))
    for name, value in fields.items():
        if not is_clean(value):
            return BadRow(number, f"field {name!r} is not valid UTF-8; save the file as UTF-8")
    return number, fields
