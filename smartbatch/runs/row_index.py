"""Finds the rows of an output by their position, in 16 bytes of memory per row."""

from __future__ import annotations

import json
import os
import re
import tempfile
import weakref
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from itertools import compress, islice
from operator import lt
from typing import IO, Final, final

from attrs import frozen

from smartbatch._words import escape
from smartbatch.core.preparation.validation import MAX_SAMPLES
from smartbatch.errors import InputError
from smartbatch.quality.recorded_row import RecordedRow
from smartbatch.quality.row_filter import RowFilter
from smartbatch.runs.output_lines import sample_of
from smartbatch.runs.output_reader import read_lines, result_of, results_in, row_of, which_counts
from smartbatch.runs.table_output import table_format
from smartbatch.tables.result_files import Line, to_line

_READ_BYTES: Final = 4096  # bytes per read
_STRING: Final = rb'"(?:[^"\\]|\\.)*"'
_HEAD: Final = re.compile(
    rb'\{"index": (\d{1,9}), "id": (?:%s|[^",]*)(?:, "row": \d+)?(?:, "sample": (\d{1,3}))?, "' % _STRING
)
"""The beginning of a line written by the library."""

_WORDS: Final = re.compile("[a-z0-9 ]+")  # characters that JSON never escapes
_NO_VERDICTS: Final[Mapping[int, Set[str]]] = {}


@frozen
class FoundRows:
    """Rows of an output that a search found.

    Attributes:
        rows: the position and content of each row.
        searched: position of the last row that was searched.
        is_last: whether no row is left to be searched.
    """

    rows: Sequence[tuple[int, RecordedRow]]
    searched: int
    is_last: bool


@final
class RowIndex:
    """The rows of an output (.jsonl, .csv, .parquet) in the order of the input, by position. Thread-safe.

    The file is read once and kept open. Rows that are written later are not seen; if the file is replaced,
    the old content stays. A table is copied to a temporary file of JSON lines.

    Raises:
        InputError: the file cannot be read, or is not an output.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._version = _version_of(path)
            is_table = table_format(path) is not None
            self._file = _copy_of(path) if is_table else open(path, "rb")  # noqa: SIM115
            weakref.finalize(self, self._file.close)  # not closed earlier, because any thread may be reading
            plain = _found_by_head(self._file)
            self._is_plain = plain is not None
            self._places, self._offsets = plain or _found_by_content(self._file, path)
        except OSError as error:
            raise InputError(f"{escape(path)}: cannot be read: {error.strerror or error}") from error

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def has_changed(self) -> bool:
        """Whether the file was written to or replaced since it was opened."""
        try:
            return _version_of(self.path) != self._version
        except OSError:
            return True

    def row(self, position: int) -> RecordedRow:
        """Return the row at a position from 0 to ``len(self) - 1``.

        Raises:
            InputError: the line of the row is damaged.
        """
        return self._decoded(self._line(self._offsets[position]), position)

    def position_of(self, index: int, sample: int) -> int | None:
        """Return the position of a row; ``None`` if the output has no such row."""
        place = index * MAX_SAMPLES + sample
        at = bisect_left(self._places, place)
        return at if at < len(self._places) and self._places[at] == place else None

    def find(
        self,
        wanted: RowFilter,
        *,
        verdicts: Mapping[int, Set[str]] = _NO_VERDICTS,
        after: int = -1,
        limit: int | None = None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> FoundRows:
        """Return the first rows after a position that match.

        Args:
            verdicts: the marks of rows, by position.
            limit: maximum number of rows to return.
            is_over: called after each row; the search stops when it returns true.

        Raises:
            InputError: the line of a row is damaged.
        """
        rows: list[tuple[int, RecordedRow]] = []
        hints = _hints(wanted) if self._is_plain else ()
        positions: Sequence[int] = range(after + 1, len(self))
        if wanted.verdict not in (None, "none"):
            positions = sorted(at for at in verdicts if at > after)
        for number, position in enumerate(positions, 1):
            line = self._line(self._offsets[position])
            lower = line.lower() if hints else line
            if all(hint in lower for hint in hints):
                row = self._decoded(line, position)
                if wanted.matches(row, verdicts.get(position, frozenset())):
                    rows.append((position, row))
            if len(rows) == limit or is_over():
                return FoundRows(rows, position, number == len(positions))
        return FoundRows(rows, len(self) - 1, True)

    def _decoded(self, line: bytes, position: int) -> RecordedRow:
        with suppress(ValueError, RecursionError):
            if (result := result_of(json.loads(line))) is not None:
                return row_of(result)
        index = self._places[position] // MAX_SAMPLES
        raise InputError(f"{escape(self.path)}: the line of row {index} is damaged")

    def _line(self, offset: int) -> bytes:
        found = bytearray()
        while more := os.pread(self._file.fileno(), _READ_BYTES, offset + len(found)):
            found += more
            if (end := found.find(b"\n", len(found) - len(more))) >= 0:
                del found[end:]
                break
        return bytes(found)


def _hints(wanted: RowFilter) -> Sequence[bytes]:
    """Return lowercase text that every matching line contains. Lines without it need not be decoded."""
    texts = [wanted.search, *(value for _, value in wanted.where)]
    words = [max(_WORDS.findall(text.lower()), key=len, default="") for text in texts]
    if wanted.failed:
        words.append('"error": {')
    if wanted.error_kind is not None:
        words.append('"error": {"kind": "')
    return [word.encode() for word in words if word]


def _version_of(path: str) -> tuple[int, int, int]:
    found = os.stat(path)
    return found.st_ino, found.st_size, found.st_mtime_ns


def _copy_of(table: str) -> IO[bytes]:
    copy = tempfile.TemporaryFile(prefix="smartbatch-")  # noqa: SIM115 - the caller closes it
    copy.writelines(map(to_line, read_lines(table)))
    copy.seek(0)
    return copy


def _found_by_head(file: IO[bytes]) -> tuple[array[int], array[int]] | None:
    """Return the places and offsets of the lines, in the order of the rows, without decoding them.

    The result is ``None`` if they must be decoded: a row has several lines, the last line is incomplete, or
    another program wrote the file.
    """
    places, offsets = array("q"), array("q")
    end = 0
    for line in file:
        head = _HEAD.match(line)
        if head is None or not line.endswith(b"\n"):
            return None
        places.append(int(head[1]) * MAX_SAMPLES + int(head[2] or 0))
        offsets.append(end)
        end += len(line)
    if all(map(lt, places, islice(places, 1, None))):
        return places, offsets
    places, offsets = _in_order(places, offsets, range(len(places)))
    return (places, offsets) if all(map(lt, places, islice(places, 1, None))) else None


def _found_by_content(file: IO[bytes], path: str) -> tuple[array[int], array[int]]:
    """Decode all lines, and return the places and offsets of those that count, in the order of the rows."""
    places, offsets = array("q"), array("q")

    def located(end: int = 0) -> Iterator[bytes]:
        for line in file:
            offsets.append(end)
            end += len(line)
            yield line

    def placed() -> Iterator[Line]:
        for line in results_in(located(), escape(path)):
            places.append(line["index"] * MAX_SAMPLES + sample_of(line))
            yield line

    file.seek(0)
    counts = which_counts(placed())
    return _in_order(places, offsets, compress(range(len(counts)), counts))


def _in_order(places: array[int], offsets: array[int], lines: Iterable[int]) -> tuple[array[int], array[int]]:
    order = sorted(lines, key=places.__getitem__)
    return array("q", map(places.__getitem__, order)), array("q", map(offsets.__getitem__, order))
