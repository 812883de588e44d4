"""A request's body that is read from disk while it is sent, so that its size costs no memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

__all__ = ["SpooledBody", "carried", "carrying"]

_PIECE = 65536


class SpooledBody:
    """The lines of a file, each with its end, as a body of exactly :func:`len` bytes.

    Args:
        source: a file of lines, each ended by ``\\n``; not changed until the body is sent.
        before, after: bytes around the lines.
        between: one byte in the place of every line end but the last, which is left out; by default the file
            goes as it is.

    Raises:
        OSError: when the file cannot be read.
    """

    def __init__(
        self, source: Path, *, before: bytes = b"", after: bytes = b"", between: bytes | None = None
    ) -> None:
        self._source = source
        self._before, self._after, self._between = before, after, between
        self._file_size = source.stat().st_size
        if between is not None:
            self._file_size -= _ends_with_a_line_end(source)

    def __len__(self) -> int:
        return len(self._before) + self._file_size + len(self._after)

    def __iter__(self) -> Iterator[bytes]:
        """Yield the body in pieces.

        Raises:
            OSError: when the file is shorter than it was.
        """
        if self._before:
            yield self._before
        left = self._file_size
        with open(self._source, "rb") as file:
            while left > 0:
                piece = file.read(min(_PIECE, left))
                if not piece:
                    raise OSError("the spooled input became shorter while it was sent")
                left -= len(piece)
                yield piece if self._between is None else piece.replace(b"\n", self._between)
        if self._after:
            yield self._after


def _ends_with_a_line_end(source: Path) -> bool:
    with open(source, "rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


_body: ContextVar[SpooledBody | None] = ContextVar("smartbatch_body", default=None)


@contextmanager
def carrying(body: SpooledBody | None) -> Iterator[None]:
    """Give the request that this thread makes in the block another body than the SDK in between knows."""
    token = _body.set(body)
    try:
        yield
    finally:
        _body.reset(token)


def carried() -> SpooledBody | None:
    """Return the body of the block this thread is in."""
    return _body.get()
