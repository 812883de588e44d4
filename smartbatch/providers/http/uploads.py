"""A multipart form with one file, read from the disk while it is sent: memory does not grow with the file."""

from __future__ import annotations

import io
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from smartbatch.errors import ErrorKind, ProviderError

__all__ = ["Upload"]


class Upload:
    """The body of a ``multipart/form-data`` request; used once, in a ``with`` block.

    Args:
        fields: the form's plain fields.
        source: the file; its size is taken now and may not change while it is sent.
        filename: what the server is told it is called; plain characters only.
        part_type: the content type of the file.

    Attributes:
        content_type: of the whole body, with its boundary.
        size: bytes of the file.
    """

    def __init__(
        self,
        fields: Mapping[str, str],
        source: Path,
        *,
        filename: str,
        part_type: str = "application/octet-stream",
    ) -> None:
        boundary = secrets.token_hex(16)
        self.content_type = f"multipart/form-data; boundary={boundary}"
        plain = "".join(
            f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
            for name, value in fields.items()
        )
        head = (
            f'{plain}--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{filename}"\r\n'
            f"Content-Type: {part_type}\r\n\r\n"
        ).encode()
        tail = f"\r\n--{boundary}--\r\n".encode()
        self._file: BinaryIO = open(source, "rb")  # noqa: SIM115 - closed by the block around the upload
        self.size = self._left = os.fstat(self._file.fileno()).st_size
        self._length = len(head) + self.size + len(tail)
        self._head, self._tail = io.BytesIO(head), io.BytesIO(tail)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[bytes]:
        while piece := self.read(65536):
            yield piece

    def read(self, size: int) -> bytes:
        """Return at most ``size`` further bytes of the body; none at its end.

        Raises:
            ProviderError: when the file cannot be read, or has become shorter.
        """
        if piece := self._head.read(size):
            return piece
        if self._left:
            try:
                piece = self._file.read(min(size, self._left))
            except OSError as error:
                raise _unreadable(f"cannot be read ({error.strerror})") from error
            if not piece:
                raise _unreadable("has become shorter while it was sent")
            self._left -= len(piece)
            return piece
        return self._tail.read(size)

    def __enter__(self) -> Upload:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def _unreadable(what: str) -> ProviderError:
    return ProviderError(
        f"the local file of the batch's input {what}; nothing of it is used, it can be sent again",
        kind=ErrorKind.NETWORK_ERROR,
        code="source",
        maybe_billed=True,
    )
