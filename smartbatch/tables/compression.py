"""Compressed inputs: gzip by the standard library, Zstandard by the library ``zstandard``."""

from __future__ import annotations

import gzip
import io
import zlib
from typing import IO, Any, Final

from smartbatch.tables.parsed_rows import missing

MAGIC: Final = {"gz": b"\x1f\x8b", "zst": b"\x28\xb5\x2f\xfd"}
"""How compressed files begin, by their endings."""
_BLOCK: Final = 1 << 9
"""Compressed bytes read at a time: four of Zstandard may stand for 128 kB."""
_MAX_RATIO: Final = 1000
"""Bytes that a compressed byte may stand for on average; text is rarely over 100."""
_FREE_BYTES: Final = 2**30
"""Bytes that a file may unpack to however small it is."""
_MAX_LINES_PER_BYTE: Final = 8
"""Lines that a compressed byte may stand for on average; equal lines aside, each takes some bytes."""
_FREE_LINES: Final = 2_000_000
"""Lines that a file may have however small it is."""

ERRORS: Final = (OSError, EOFError, zlib.error)
"""What reading raises where a file is damaged or ends too early."""


def decompressed(file: IO[bytes], compression: str) -> IO[bytes]:
    """Return a file's content, read from where the file stands.

    Args:
        compression: ``gz``, ``zst``, or empty for none.

    Raises:
        InputError: ``zstandard`` is not installed.
    """
    if compression not in MAGIC:
        return file
    begins = file.tell()
    packed = file.seek(0, io.SEEK_END)
    file.seek(begins)
    content: Any = gzip.GzipFile(fileobj=file, mode="rb") if compression == "gz" else _ZstandardFile(file)
    return io.BufferedReader(_Bounded(content, packed))


class _Bounded(io.RawIOBase):
    """The content of a compressed file of ``packed`` bytes, as long as that is not out of all proportion.

    Reading takes time for each byte, and each line may be a row that is remembered.

    Raises, as it is read:
        OSError: the content has too many bytes or lines.
    """

    def __init__(self, content: Any, packed: int) -> None:
        self._content = content
        self._bytes = self._most_bytes = max(_FREE_BYTES, _MAX_RATIO * packed)
        self._lines = self._most_lines = _FREE_LINES + _MAX_LINES_PER_BYTE * packed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size: int = self._content.readinto(buffer)
        self._bytes -= size
        if self._bytes < 0:
            raise OSError(
                f"the content is longer than {self._most_bytes:,} bytes, over {_MAX_RATIO:,} times the size "
                "of the compressed file; unpack it first if that is right"
            )
        with memoryview(buffer) as view:
            read = bytes(view[:size])
        self._lines -= read.count(b"\n") + read.count(b"}")  # a list of JSON may have no lines
        if self._lines < 0:
            raise OSError(
                f"the content has more than {self._most_lines:,} lines or objects, far more than so small a "
                "compressed file should have; unpack it first if that is right"
            )
        return size


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
