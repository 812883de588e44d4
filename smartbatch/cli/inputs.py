"""The input of a run: text, JSON lines or CSV, gzipped or not, from a file or standard input.

A source is read twice (once to check every row, once to ask) in constant memory.
"""

from __future__ import annotations

import gzip
import os
import shutil
import stat
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import IO, Any, Final, NoReturn, cast

from attrs import frozen

from smartbatch.cli.readers import READERS, BadRow, Piece, Reader, lines
from smartbatch.errors import InputError

__all__ = ["BadRow", "Row", "Source"]

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


class Source:
    """An input that can be read from the beginning again and again.

    Args:
        path: a file name, or ``-`` for standard input, which is copied to a temporary file first, as is
            any other stream that cannot be read twice.
        format: ``txt``, ``jsonl`` or ``csv``; told from the name when ``None``. A stream is taken for JSON
            lines when its first character is ``{``, else for text.

    Raises:
        InputError: the file cannot be opened, or its format cannot be told.
    """

    def __init__(self, path: str, format: str | None = None) -> None:
        self.name = "standard input" if path == "-" else path
        stem = path[:-3] if path.endswith(".gz") else path
        self.format = format or _SUFFIXES.get(os.path.splitext(stem)[1].lower(), "")
        try:
            self._file, stream = _open_twice_readable(path)
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
        if not self.format and not stream:
            self._file.close()
            raise InputError(
                f"{path}: cannot tell the format from the name; name it .txt, .jsonl or .csv (and .gz), "
                f"or say --format {'|'.join(READERS)}"
            )
        self._gzipped = path.endswith(".gz") or (stream and self._peek(2) == _GZIP_MAGIC)
        if not self.format:
            self.format = self._sniff()

    def __enter__(self) -> Source:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
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
        for index, piece in enumerate(self._guarded(READERS[self.format])):
            yield piece if isinstance(piece, BadRow) else Row(index, *piece)

    def _guarded(self, reader: Reader) -> Iterator[Piece]:
        try:
            yield from reader(self._rewind())
        except (OSError, EOFError, zlib.error) as error:
            self._fail(error)

    def _rewind(self) -> IO[bytes]:
        self._file.seek(0)
        if self._gzipped:
            return cast("IO[bytes]", gzip.GzipFile(fileobj=self._file, mode="rb"))
        return self._file

    def _peek(self, size: int) -> bytes:
        self._file.seek(0)
        return self._file.read(size)

    def _sniff(self) -> str:
        try:
            for _, line in lines(self._rewind()):
                if line is None or line.strip():
                    return "jsonl" if line and line.lstrip().startswith(b"{") else "txt"
        except (OSError, EOFError, zlib.error) as error:
            self._fail(error)
        return "txt"

    def _fail(self, error: Exception) -> NoReturn:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise InputError(f"{self.name}: cannot be read to its end: {reason}") from error


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
    except BaseException:
        spool.close()
        raise
    return spool
