"""Images, documents and audio in prompts.

A file is read twice: when its request is accepted, to detect its type and compute its hash, and when the
request is sent. In between, only its path and its hash are kept.
"""

from __future__ import annotations

import base64
import hashlib
import io
import math
import os
import re
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, ClassVar, Final, Literal, Self, TypeAlias

from attrs import evolve, field, frozen

from smartbatch.errors import InvalidRequest

MediaKind: TypeAlias = Literal["image", "document", "audio"]

MAX_FILE_BYTES: Final = 512 * 2**20
"""Larger files are rejected unread; no provider accepts them."""
PDF: Final = "application/pdf"
PLAIN_TEXT: Final = "text/plain"
_KNOWN: Final[Mapping[MediaKind, str]] = {
    "image": "an image (PNG, JPEG, WebP, GIF, HEIC, HEIF)",
    "document": "a document (PDF or text in UTF-8)",
    "audio": "audio (WAV, MP3, FLAC, Ogg, AIFF, AAC)",
}


def _source(value: Any) -> str | bytes | None:
    """Copy what may change later: buffers, PIL images and matplotlib figures."""
    if value is None or isinstance(value, (str, bytes)):
        return value
    if isinstance(value, os.PathLike):
        path: Any = os.fspath(value)
        return os.fsdecode(path)
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if (image := sys.modules.get("PIL.Image")) is not None and isinstance(value, image.Image):
        return _png_of_picture(value)
    if (figures := sys.modules.get("matplotlib.figure")) is not None and isinstance(value, figures.Figure):
        return _written(lambda file: value.savefig(file, format="png"))
    raise InvalidRequest(
        f"a file must be a path, bytes, an https URL, a PIL image or a matplotlib figure, not "
        f"{type(value).__name__}",
        field="source",
    )


def _png_of_picture(picture: Any) -> bytes:
    from PIL import ImageOps  # already loaded, because the picture is a PIL image

    upright: Any = ImageOps.exif_transpose(picture)
    if upright.mode not in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"):
        upright = upright.convert("RGB")
    return _written(lambda file: upright.save(file, format="PNG"))


def _written(write: Callable[[io.BytesIO], object]) -> bytes:
    file = io.BytesIO()
    write(file)
    return file.getvalue()


@frozen(repr=False)
class Media:
    """A file in a prompt: an :class:`Image`, a :class:`Document` or :class:`Audio`.

    Args:
        source: a path, the content as bytes, or an https URL that the provider reads.
        file_id: instead of ``source``, the id of a file uploaded to the provider; for Gemini, its URI.
        media_type: of a URL or an uploaded file, such as ``image/png``; ``None`` for the type that the end of
            the URL suggests. For all other files, it is detected from the content.
        name: sent as the title or file name of a document, if the provider has a field for it.
        sha256, size: hash (hexadecimal) and bytes of the content; set by the library, like the following.
        width, height: pixels of an image.
        pages: pages of a PDF, estimated if the PDF is compressed.
        seconds: length of a recording, estimated if its format does not state it.

    Raises:
        InvalidRequest: the source is missing or of an unsupported type. Files are read when a request with
            them is accepted; this raises the same error, with the path, for a file that is missing, empty or
            of another kind.
    """

    kind: ClassVar[MediaKind]
    source: str | bytes | None = field(default=None, converter=_source)
    file_id: str | None = field(default=None, kw_only=True)
    media_type: str | None = field(default=None, kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    sha256: str | None = field(default=None, kw_only=True)
    size: int | None = field(default=None, kw_only=True)
    width: int | None = field(default=None, kw_only=True)
    height: int | None = field(default=None, kw_only=True)
    pages: int | None = field(default=None, kw_only=True)
    seconds: float | None = field(default=None, kw_only=True)

    def __attrs_post_init__(self) -> None:
        if (self.source is None) == (self.file_id is None):
            raise InvalidRequest(
                f"{type(self).__name__} needs a path, bytes or a URL, or else file_id", field="source"
            )
        for name in ("file_id", "media_type", "name"):
            if (value := getattr(self, name)) is not None and not (isinstance(value, str) and value):
                raise InvalidRequest(f"{type(self).__name__}: {name} must be a string", field=name)
        if isinstance(self.source, str) and self.source.startswith(("http://", "data:")):
            raise InvalidRequest(
                f"{type(self).__name__}: pass an https URL, a path or bytes, not an address of the kind "
                f"{self.source.partition(':')[0]}:",
                field="source",
            )

    @property
    def url(self) -> str | None:
        return self.source if isinstance(self.source, str) and self.source.startswith("https://") else None

    @property
    def upload_key(self) -> str:
        """What distinguishes the content that is sent of an accepted file from that of others."""
        return self.sha256 or ""

    @property
    def sent_type(self) -> str:
        """The media type of what is sent of an accepted file."""
        return self.media_type or ""

    def uploaded(self, file_id: str) -> Self:
        """Return the file as one that was uploaded to the provider."""
        return evolve(self, source=None, file_id=file_id, media_type=self.sent_type, sha256=None)

    def stand_in(self) -> Self:
        """Return a file that is sent in the same form but has a single byte."""
        return evolve(self, source=b"x", media_type=self.sent_type, size=1)

    def described(self) -> str:
        """Name the file for errors, without its content and without the query of a URL."""
        if self.file_id is not None:
            return f"the uploaded file {self.file_id!r}"
        if self.url is not None:
            return f"the URL {self.url.partition('?')[0]!r}"
        if isinstance(self.source, str):
            return f"the file {self.source!r}"
        return f"a file of {len(self.source or b''):,} bytes"

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.described()}>"

    def accepted(self, field: str) -> Self:
        """Return the file with its hash, size, detected type and absolute path.

        Raises:
            InvalidRequest: it cannot be read, is empty, or is of another kind. The error names ``field``.
        """
        if self.sha256 is not None or self.file_id is not None or self.url is not None:
            return self
        if isinstance(self.source, bytes):
            found = _examine(self.source)
            source: str | bytes = self.source
        else:
            source = os.path.abspath(str(self.source))
            try:
                found = _examined_file(source, *_identity(source))
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or error
                raise self._refusal(field, f"which cannot be read ({reason})") from None
        if not found.size:
            raise self._refusal(field, "which is empty")
        if found.media_type is None:
            raise self._refusal(field, f"which is not {_KNOWN[self.kind]}")
        if (kind := kind_of_type(found.media_type)) != self.kind:
            found_kind = _KNOWN[kind].partition(" (")[0]
            raise self._refusal(field, f"which is {found_kind} ({found.media_type}), not {_KNOWN[self.kind]}")
        width, height = found.pixels or (None, None)
        known = evolve(self, source=source, sha256=found.sha256, size=found.size)
        known = evolve(known, media_type=found.media_type, width=width, height=height)
        return evolve(known, pages=found.pages, seconds=found.seconds)

    def content(self, field: str = "the file") -> bytes:
        """Return the content of a file in an answer, or of an accepted file of a request.

        Args:
            field: names the file in errors.

        Raises:
            InvalidRequest: the file has changed since then, or can no longer be read.
        """
        if isinstance(self.source, bytes):
            return self.source
        try:
            with open(str(self.source), "rb") as file:
                data = file.read(MAX_FILE_BYTES)
        except OSError as error:
            raise self._refusal(field, f"which can no longer be read ({error.strerror})") from None
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise self._refusal(field, "which has changed since the request was accepted")
        return data

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the :meth:`content` to ``path``, replacing a file of that name.

        Raises:
            InvalidRequest: as :meth:`content`.
            OSError: the file cannot be written.
        """
        content = self.content()
        with open(path, "wb") as file:
            file.write(content)

    def _refusal(self, field: str, problem: str) -> InvalidRequest:
        return InvalidRequest(f"{field} is {self.described()}, {problem}", field=field)


@frozen(repr=False)
class Image(Media):
    """An image in a prompt: PNG, JPEG, WebP or GIF, for Gemini also HEIC and HEIF.

    Args:
        max_pixels: a larger image is turned upright and scaled down to this many pixels when it is sent;
            this needs Pillow. ``None`` sends it as it is.

    PIL images and matplotlib figures are also accepted and sent as PNG; a PIL image is turned upright
    according to its EXIF data. See :class:`Media` for the other arguments and the errors.
    """

    kind = "image"
    max_pixels: int | None = field(default=None, kw_only=True)

    def __attrs_post_init__(self) -> None:
        Media.__attrs_post_init__(self)
        most = self.max_pixels
        if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
            raise InvalidRequest("Image: max_pixels must be a whole number above 0", field="max_pixels")
        if most is not None and (self.file_id is not None or self.url is not None):
            raise InvalidRequest("Image: max_pixels needs the file itself", field="max_pixels")

    @property
    def is_scaled(self) -> bool:
        """Whether the accepted image is larger than :attr:`max_pixels`."""
        if self.max_pixels is None:
            return False
        return self.width is None or self.height is None or self.width * self.height > self.max_pixels

    def sent_size(self) -> tuple[int, int]:
        """Return width and height of the image that is sent, if those of the file are known."""
        width, height = self.width or 0, self.height or 0
        if not (self.is_scaled and self.max_pixels and width and height):
            return width, height
        factor = math.sqrt(self.max_pixels / (width * height))
        return max(1, int(width * factor)), max(1, int(height * factor))

    @property
    def upload_key(self) -> str:
        return f"{self.sha256}-{self.max_pixels}" if self.is_scaled else self.sha256 or ""

    @property
    def sent_type(self) -> str:
        return "image/png" if self.is_scaled and self.media_type != "image/jpeg" else self.media_type or ""

    def uploaded(self, file_id: str) -> Self:
        return evolve(
            self, source=None, file_id=file_id, media_type=self.sent_type, sha256=None, max_pixels=None
        )

    def stand_in(self) -> Self:
        return evolve(self, source=b"x", media_type=self.sent_type, size=1, max_pixels=None)

    def accepted(self, field: str) -> Self:
        found = Media.accepted(self, field)
        if found.is_scaled and find_spec("PIL") is None:
            raise self._refusal(field, "which max_pixels can scale only with Pillow: pip install pillow")
        return found

    def content(self, field: str = "the file") -> bytes:
        data = Media.content(self, field)
        if not self.is_scaled:
            return data
        try:
            return _scaled(data, self.max_pixels or 1)
        except Exception as error:  # Pillow's readers raise many kinds of errors for damaged files
            raise self._refusal(field, f"which Pillow cannot scale ({type(error).__name__})") from None


@frozen(repr=False)
class Document(Media):
    """A document in a prompt: a PDF, or text in UTF-8. See :class:`Media` for the arguments and errors."""

    kind = "document"


@frozen(repr=False)
class Audio(Media):
    """A recording in a prompt: WAV or MP3, for Gemini also FLAC, Ogg, AIFF and AAC.

    See :class:`Media` for the arguments and errors.
    """

    kind = "audio"


_CLASSES: Final[Mapping[str, type[Media]]] = {each.kind: each for each in (Image, Document, Audio)}
_FORM_PREFIX = "smartbatch."
_STORED = (
    "source",
    "file_id",
    "media_type",
    "name",
    "sha256",
    "size",
    "width",
    "height",
    "max_pixels",
    "pages",
    "seconds",
)


KeepContent: TypeAlias = Callable[[Media], str | None]
"""Writes a file to the folder of its job and returns its name there; ``None`` if its path is enough."""


def media_form(media: Media, keep: KeepContent | None = None) -> dict[str, Any]:
    """Return what a store keeps of an accepted file: never its content.

    Args:
        keep: ``None`` rejects files given as bytes.

    Raises:
        InvalidRequest: the content was given as bytes.
        StoreError: it could not be written.
    """
    given = {name: value for name in _STORED if (value := getattr(media, name, None)) is not None}
    name = None if keep is None else keep(media)
    if name is not None:
        given["source"] = name
    elif isinstance(media.source, bytes):
        raise InvalidRequest(
            "prompt contains a file given as bytes, but a store on a server keeps only paths: save it at a "
            "path that all processes can read and pass the path, or send it in real time with "
            "strategy='individual'",
            field="prompt",
        )
    return {"type": _FORM_PREFIX + media.kind, **given}


def media_identity(media: Media) -> dict[str, Any]:
    """Return what distinguishes an accepted file from others, regardless of its path."""
    names = ("file_id", "media_type", "name", "sha256", "max_pixels")
    form = {name: getattr(media, name, None) for name in names}
    return {"type": _FORM_PREFIX + media.kind, "url": media.url, **form}


def read_media(form: Mapping[str, Any], folder: str | None = None) -> Media | None:
    """Inverse of :func:`media_form`; ``None`` for any other form.

    Args:
        folder: contains the files given as bytes; ``None`` if their content is not needed.
    """
    prefix, _, kind = str(form.get("type")).rpartition(".")
    if f"{prefix}." != _FORM_PREFIX or kind not in _CLASSES:
        return None
    given = {name: form[name] for name in _STORED if name in form}
    if folder is not None and given.get("source") == given.get("sha256", ""):
        given["source"] = os.path.join(folder, given["sha256"])
    return _CLASSES[kind](**given)


# -- files in answers ----------------------------------------------------------------------------------------

_REFERENCE = "smartbatch.file"
_UNKNOWN_TYPE = "application/octet-stream"
_EXTENSIONS: Final[Mapping[str, str]] = {
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


def returned_file(content: bytes, stated: str | None = None) -> Media:
    """Return a file of an answer.

    Args:
        stated: the media type according to the provider, used if the content has no known type.
    """
    found = _examine(content)
    is_known = found.media_type is not None and not (stated and found.media_type == PLAIN_TEXT)
    media_type = (found.media_type if is_known else stated) or _UNKNOWN_TYPE
    width, height = found.pixels or (None, None)
    return _CLASSES[kind_of_type(media_type)](
        content,
        media_type=media_type,
        sha256=found.sha256,
        size=found.size,
        width=width,
        height=height,
        pages=found.pages,
        seconds=found.seconds,
    )


def as_returned(file: Media | bytes) -> Media:
    """Return a file that a user's callable put into an answer, with its hash, size and type.

    Raises:
        InvalidRequest: it is a path that cannot be read.
    """
    if isinstance(file, bytes):
        return returned_file(file)
    if isinstance(file.source, bytes) and file.sha256 is None:
        return returned_file(file.source, file.media_type)
    return file.accepted("files")


def extension_of(media: Media) -> str:
    """Return the usual end of the file's name, such as ``.png``; ``.bin`` for other types."""
    return _EXTENSIONS.get((media.media_type or "").partition(";")[0].strip().lower(), ".bin")


def reference_to(number: int) -> dict[str, int]:
    """Return what replaces a file's content in a part of an answer. ``number`` is its position."""
    return {_REFERENCE: number}


def with_contents(part: Any, files: Sequence[Media]) -> Any:
    """Return a part of an answer with the content of its files in base64 instead of the references."""
    if isinstance(part, list):
        return [with_contents(each, files) for each in part]
    if not isinstance(part, Mapping):
        return part
    if isinstance(number := part.get(_REFERENCE), int) and 0 <= number < len(files):
        return base64.b64encode(files[number].content()).decode()
    return {name: with_contents(value, files) for name, value in part.items()}


# -- content -------------------------------------------------------------------------------------------------


@frozen
class _Examined:
    sha256: str
    size: int
    media_type: str | None  # None if unknown
    pixels: tuple[int, int] | None  # width and height of an image, if its header has them
    pages: int | None
    seconds: float | None


def _identity(path: str) -> tuple[int, int, int]:
    """Return inode, time of change and size of a file.

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
def _examined_file(path: str, inode: int, changed: int, size: int) -> _Examined:  # noqa: ARG001 - the cache's key
    with open(path, "rb") as file:
        return _examine(file.read(MAX_FILE_BYTES))


def _examine(data: bytes) -> _Examined:
    media_type = type_of_content(data)
    return _Examined(
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


def _scaled(data: bytes, max_pixels: int) -> bytes:
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
        return _written(lambda file: upright.convert("RGB").save(file, format="JPEG", quality=90))
    return _written(lambda file: upright.save(file, format="PNG"))


def kind_of_type(media_type: str) -> MediaKind:
    family = media_type.partition("/")[0]
    return "image" if family == "image" else "audio" if family == "audio" else "document"
