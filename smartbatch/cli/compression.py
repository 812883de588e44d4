"""Compressed inputs: gzip by the standard library, Zstandard by the library ``zstandard``."""

from __future__ import annotations

import gzip
import io
import zlib
from typing import IO, Any, Final, cast

from smartbatch.cli.optional import missing

MAGIC: Final = {"gz": b"\x1f\x8b", "zst": b"\x28\xb5\x2f\xfd"}
"""How compressed files begin, by their endings."""
_BLOCK: Final = 1 << 9
"""Compressed bytes read at a time: four of Zstandard may stand for 128 kB."""

ERRORS: Final = (OSError, EOFError, zlib.error)
"""What reading raises where a file is damaged or ends too early."""


def decompressed(file: IO[bytes], compression: str) -> IO[bytes]:
    """Return a file's content, read from where the file stands.

    Args:
        compression: ``gz``, ``zst``, or empty for none.

    Raises:
        InputError: ``zstandard`` is not installed.
    """
    if compression == "gz":
        return cast("IO[bytes]", gzip.GzipFile(fileobj=file, mode="rb"))
    if compression == "zst":
        return io.BufferedReader(_ZstandardFile(file))
    return file


class _ZstandardFile(io.RawIOBase):
    """The content of Zstandard frames. That the stream ends within a frame is an error here; the readers of
    ``zstandard`` itself take it for the end."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        try:
            import zstandard
        except ImportError as error:
            raise missing("zstandard", "zstd", "reading .zst") from error
        self._library = zstandard
        self._frame: Any = None
        self._content = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._content:
            data = b""
            if self._frame is not None and self._frame.eof:
                data, self._frame = self._frame.unused_data, None
            data = data or self._file.read(_BLOCK)
            if not data and self._frame is None:
                return 0
            if not data:
                raise EOFError("the compressed content ends too early")
            if self._frame is None:
                self._frame = self._library.ZstdDecompressor().decompressobj()
            try:
                self._content = memoryview(self._frame.decompress(data))
            except self._library.ZstdError as error:
                raise OSError(str(error)) from error
        size = min(len(buffer), len(self._content))
        buffer[:size] = self._content[:size]
        self._content = self._content[size:]
        return size
