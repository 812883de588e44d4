"""The marks of an output, in a file of JSON lines next to it."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Sequence
from typing import IO, Final, final

from attrs import asdict

from smartbatch._files import lock_file
from smartbatch._words import escape
from smartbatch.errors import InputError
from smartbatch.quality.marks import Mark, MarkedPlace

_SUFFIX: Final = ".marks.jsonl"
_MAX_LINE: Final = 1 << 20  # bytes


def marks_path(output: str) -> str:
    """Return where the marks of an output are kept: for ``out.jsonl`` in ``out.marks.jsonl``, for ``out.csv``
    in ``out.csv.marks.jsonl``.
    """
    stem, suffix = os.path.splitext(output)
    return (stem if suffix.lower() in (".jsonl", ".ndjson") else output) + _SUFFIX


def output_of_marks(path: str) -> str | None:
    """Return the existing output whose marks are kept in a file; ``None`` if there is none."""
    stem = path.removesuffix(_SUFFIX)
    candidates = (stem, *(stem + suffix for suffix in (".jsonl", ".ndjson")))
    return next((each for each in candidates if os.path.isfile(each) and marks_path(each) == path), None)


@final
class MarksFile:
    """Reads and appends marks. If a row and field has several marks, the last one counts. Thread-safe, and
    safe if several processes mark rows of the same output.

    Args:
        path: created when the first mark is added.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._marks: dict[MarkedPlace, Mark] = {}
        self._end = 0  # bytes read

    def read(self) -> Sequence[Mark]:
        """Return the marks that count, including those that other processes have added.

        Raises:
            InputError: the file cannot be read, or contains something else.
        """
        with self._lock:
            try:
                with open(self.path, "rb") as file:
                    if os.fstat(file.fileno()).st_size < self._end:  # replaced by a shorter file
                        self._marks, self._end = {}, 0
                    file.seek(self._end)
                    for line in file:
                        if not line.endswith(b"\n"):  # being written, or cut off by a kill
                            break
                        mark = _mark_of(line, self.path)
                        self._marks[mark.place] = mark
                        self._end += len(line)
            except FileNotFoundError:
                self._marks, self._end = {}, 0
            except OSError as error:
                raise _failure(self.path, "read", error) from error
            return [mark for mark in self._marks.values() if mark.verdict is not None]

    def add(self, mark: Mark) -> None:
        """Append a mark. Once this returns, the mark survives the process and a power failure.

        Raises:
            InputError: the file cannot be written.
        """
        line = json.dumps(asdict(mark)).encode() + b"\n"
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666)
            with open(fd, "r+b", buffering=0) as file:
                lock_file(fd, wait=True)
                _remove_cut_line(file)
                if file.write(line) != len(line):
                    _remove_cut_line(file)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(fd)
        except OSError as error:
            raise _failure(self.path, "written", error) from error


def _remove_cut_line(file: IO[bytes]) -> None:
    """Truncate a file after its last complete line."""
    size = file.seek(0, os.SEEK_END)
    start = file.seek(max(0, size - _MAX_LINE))
    complete = start + file.read().rfind(b"\n") + 1
    if complete < size:
        file.truncate(complete)


def _mark_of(line: bytes, path: str) -> Mark:
    try:
        return Mark(**json.loads(line))
    except (ValueError, TypeError, RecursionError):
        raise InputError(
            f"{escape(path)}: has a line that is not a mark; move the file to begin new marks"
        ) from None


def _failure(path: str, verb: str, error: OSError) -> InputError:
    return InputError(f"{escape(path)}: cannot be {verb}: {error.strerror or error}")
