"""What the content of a file says about it: its type, pixels, pages and seconds.

Only the beginning of images is read, without a library for images; scaling them needs Pillow.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import re
import stat
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias

from attrs import frozen

MediaKind: TypeAlias = Literal["image", "document", "audio"]

MAX_FILE_BYTES: Final = 512 * 2**20
"""Larger files are rejected unread; no provider accepts them."""
PDF: Final = "application/pdf"
PLAIN_TEXT: Final = "text/plain"
BROWSER_IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""Types of images that browsers show and that contain no scripts."""


def kind_of_type(media_type: str) -> MediaKind:
    family = media_type.partition("/")[0]
    return "image" if family == "image" else "audio" if family == "audio" else "document"


@frozen
class Examined:
    """What the content of a file says about it."""

    sha256: str
    size: int
    media_type: str | None  # None if unknown
    pixels: tuple[int, int] | None  # width and height of an image, if its header has them
    pages: int | None
    seconds: float | None


def identity_of(path: str) -> tuple[int, int, int]:
    """Return inode, time of change and size of a file, which change with its content.

    Raises:
        ValueError: it is not a regular file, or too large.
    """
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("not a regular file")
    if found.st_size >= MAX_FILE_BYTES:
        raise ValueError(f"{found.st_size:,} bytes; the maximum is {MAX_FILE_BYTES - 1:,}")
    return found.st_ino, found.st_mtime_ns, found.st_size


@lru_cache(maxsize=2**15)  # about 500 bytes each; requests may share files, and tables are read twice
def examined_file(path: str, inode: int, changed: int, size: int) -> Examined:  # noqa: ARG001 - the cache's key
    with open(path, "rb") as file:
        return examine(file.read(MAX_FILE_BYTES))


def examine(data: bytes) -> Examined:
    media_type = type_of_content(data)
    return Examined(
        hashlib.sha256(data).hexdigest(),
        len(data),
        media_type,
        pixels_of(data, media_type),
        pages_of(data) if media_type == PDF else None,
        seconds_of_audio(data, media_type) if media_type and kind_of_type(media_type) == "audio" else None,
    )


# bytes at the beginning of a file and, for containers, also those at offset 8
_MAGIC: Final[tuple[tuple[bytes, bytes, str], ...]] = (
    (b"\x89PNG\r\n\x1a\n", b"", "image/png"),
    (b"\xff\xd8\xff", b"", "image/jpeg"),
    (b"GIF87a", b"", "image/gif"),
    (b"GIF89a", b"", "image/gif"),
    (b"RIFF", b"WEBP", "image/webp"),
    (b"RIFF", b"WAVE", "audio/wav"),
    (b"FORM", b"AIFF", "audio/aiff"),
    (b"FORM", b"AIFC", "audio/aiff"),
    (b"fLaC", b"", "audio/flac"),
    (b"OggS", b"", "audio/ogg"),
    (b"ID3", b"", "audio/mpeg"),
    (b"%PDF-", b"", PDF),
)
_HEIF_BRANDS: Final = {
    **dict.fromkeys((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx"), "image/heic"),
    **dict.fromkeys((b"mif1", b"msf1"), "image/heif"),
}


def type_of_content(data: bytes) -> str | None:
    """Return the media type of a file by its first bytes; text in UTF-8 is ``text/plain``."""
    for start, inner, media_type in _MAGIC:
        if data.startswith(start) and data[8 : 8 + len(inner)] == inner:
            return media_type
    if data[4:8] == b"ftyp":
        return _HEIF_BRANDS.get(data[8:12])
    if len(data) > 1 and data[0] == 0xFF and data[1] & 0xE0 == 0xE0:  # frames of MPEG audio; layer 0 is AAC
        return "audio/aac" if data[1] & 0x06 == 0 else "audio/mpeg"
    if b"%PDF-" in data[:1024]:  # readers accept other bytes before it
        return PDF
    try:
        return None if b"\0" in data else data.decode() and PLAIN_TEXT
    except UnicodeDecodeError:
        return None


# not those of the module mimetypes, which depend on the Python version and on files of the system
_EXTENSIONS: Final = {
    "image/png": ".png",
    "image/jpeg": ".jpg",
    "image/gif": ".gif",
    "image/webp": ".webp",
    "image/heic": ".heic",
    "image/heif": ".heif",
    "image/svg+xml": ".svg",
    "audio/wav": ".wav",
    "audio/mpeg": ".mp3",
    "audio/flac": ".flac",
    "audio/ogg": ".ogg",
    "audio/aac": ".aac",
    "audio/aiff": ".aiff",
    "audio/l16": ".pcm",
    PDF: ".pdf",
    PLAIN_TEXT: ".txt",
}
_TYPES_BY_EXTENSION: Final = {extension: media_type for media_type, extension in _EXTENSIONS.items()}


def extension_of(media_type: str | None) -> str:
    """Return the usual file extension of a type, such as ``.png``; ``.bin`` for unknown types."""
    return _EXTENSIONS.get((media_type or "").partition(";")[0].strip().lower(), ".bin")


def type_of_extension(extension: str) -> str | None:
    """Inverse of :func:`extension_of`."""
    return _TYPES_BY_EXTENSION.get(extension.lower())


def pixels_of(data: bytes, media_type: str | None) -> tuple[int, int] | None:
    """Return width and height from the header of a PNG, GIF, WebP or JPEG; ``None`` if it has none."""
    if len(data) < 30:
        return None
    match media_type:
        case "image/png" if data[12:16] == b"IHDR":
            return int.from_bytes(data[16:20]), int.from_bytes(data[20:24])
        case "image/gif":
            return int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")
        case "image/webp" if data[12:16] == b"VP8X":
            return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
        case "image/webp" if data[12:16] == b"VP8L":
            bits = int.from_bytes(data[21:25], "little")
            return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
        case "image/webp" if data[12:16] == b"VP8 ":
            size = int.from_bytes(data[26:28], "little"), int.from_bytes(data[28:30], "little")
            return size[0] & 0x3FFF, size[1] & 0x3FFF
        case "image/jpeg":
            return _pixels_of_jpeg(data)
    return None


def _pixels_of_jpeg(data: bytes) -> tuple[int, int] | None:
    """Segments precede the frame header, which has the size."""
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return int.from_bytes(data[at + 7 : at + 9]), int.from_bytes(data[at + 5 : at + 7])
        # fill bytes are skipped one by one
        at += 1 if marker == 0xFF else 2 + int.from_bytes(data[at + 2 : at + 4])
    return None


_PAGE = re.compile(rb"/Type\s*/Page(?![a-zA-Z])")
_PDF_PAGE_BYTES = 50_000  # assumed for a PDF whose pages are in compressed streams
_AUDIO_BYTES_PER_SECOND = 16_000  # assumed for MP3, Ogg and AAC: 128 kbit/s


def pages_of(data: bytes) -> int:
    return len(_PAGE.findall(data)) or math.ceil(len(data) / _PDF_PAGE_BYTES)


def seconds_of_audio(data: bytes, media_type: str) -> float:
    if media_type == "audio/wav" and data[12:16] == b"fmt " and len(data) > 44:
        rate = int.from_bytes(data[28:32], "little")
        return len(data) / (rate or _AUDIO_BYTES_PER_SECOND)
    if media_type == "audio/flac" and len(data) >= 26 and (rate := int.from_bytes(data[18:21]) >> 4):
        return (int.from_bytes(data[21:26]) & 0xF_FFFF_FFFF) / rate
    return len(data) / _AUDIO_BYTES_PER_SECOND


# -- images --------------------------------------------------------------------------------------------------


def scaled(data: bytes, max_pixels: int) -> bytes:
    """Return an upright image of at most ``max_pixels``; a JPEG stays one, any other becomes a PNG."""
    from PIL import Image as Pictures
    from PIL import ImageOps

    with Pictures.open(io.BytesIO(data)) as opened:
        upright: Any = ImageOps.exif_transpose(opened)
        is_jpeg = opened.format == "JPEG"
    factor = math.sqrt(max_pixels / (upright.width * upright.height))
    if factor < 1:
        if upright.mode not in ("L", "LA", "RGB", "RGBA"):
            upright = upright.convert("RGBA" if "transparency" in upright.info else "RGB")
        size = max(1, int(upright.width * factor)), max(1, int(upright.height * factor))
        upright = upright.resize(size, Pictures.Resampling.LANCZOS)
    if is_jpeg:
        return written(lambda file: upright.convert("RGB").save(file, format="JPEG", quality=90))
    return written(lambda file: upright.save(file, format="PNG"))


def png_of_picture(picture: Any) -> bytes:
    from PIL import ImageOps  # already loaded, because the picture is a PIL image

    upright: Any = ImageOps.exif_transpose(picture)
    if upright.mode not in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"):
        upright = upright.convert("RGB")
    return written(lambda file: upright.save(file, format="PNG"))


def written(write: Callable[[io.BytesIO], object]) -> bytes:
    file = io.BytesIO()
    write(file)
    return file.getvalue()
