"""A request's body that is read from disk while it is sent, so that its size costs no memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from urllib3.filepost import encode_multipart_formdata

from smartbatch.errors import ErrorKind, ProviderError

_PIECE = 65536


class SpooledBody:
    """The lines of a file, each with its end, as a body of exactly :func:`len` bytes.

    A file that cannot be read is an error with the code ``source``, here and while the body is sent.

    Args:
        source: a file of lines, each ended by ``\\n``; not changed until the body is sent.
        before, after: bytes around the lines.
        between: one byte in the place of every line end but the last, which is left out; by default the file
            goes as it is.
    """

    def __init__(
        self, source: Path, *, before: bytes = b"", after: bytes = b"", between: bytes | None = None
    ) -> None:
        self._source = source
        self._before, self._after, self._between = before, after, between
        try:
            self.file_size = source.stat().st_size
            if between is not None:
                self.file_size -= _ends_with_a_line_end(source)
        except OSError as error:
            raise _unreadable(f"cannot be read ({error.strerror})", sent=False) from error

    def __len__(self) -> int:
        return len(self._before) + self.file_size + len(self._after)

    def __iter__(self) -> Iterator[bytes]:
        """Yield the body in pieces; a file that is shorter than it was is an error too."""
        if self._before:
            yield self._before
        left = self.file_size
        try:
            with open(self._source, "rb") as file:
                while left > 0 and (piece := file.read(min(_PIECE, left))):
                    left -= len(piece)
                    yield piece if self._between is None else piece.replace(b"\n", self._between)
        except OSError as error:
            raise _unreadable(f"cannot be read ({error.strerror})") from error
        if left:
            raise _unreadable("has become shorter while it was sent")
        if self._after:
            yield self._after


def upload_form(fields: Mapping[str, str], source: Path, filename: str) -> tuple[SpooledBody, str]:
    """Return a ``multipart/form-data`` body with plain fields and one file, and its content type."""
    file = ("file", (filename, b"", "application/octet-stream"))
    form, content_type = encode_multipart_formdata([*fields.items(), file])
    end = form.rindex(b"\r\n--")  # the file's bytes belong before it
    return SpooledBody(source, before=form[:end], after=form[end:]), content_type


def _unreadable(what: str, *, sent: bool = True) -> ProviderError:
    return ProviderError(
        f"the local file of the batch's input {what}; nothing of it is used, it can be sent again",
        kind=ErrorKind.NETWORK_ERROR,
        code="source",
        maybe_billed=sent,
    )


def _ends_with_a_line_end(source: Path) -> bool:
    with open(source, "rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
