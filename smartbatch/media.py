"""Images, documents and audio in prompts.

A file is read twice: when its request is accepted, to detect its type and compute its hash, and when the
request is sent. In between, only its path and its hash are kept.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
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
    """Copy what may change later: buffers, images of PIL and figures of matplotlib."""
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
    from PIL import ImageOps  # loaded, because the picture is one of its objects

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
        sha256: of the content, hexadecimal; set by the library.
        size: bytes of the content; set by the library.

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
            other = kind.capitalize()
            raise self._refusal(
                field, f"which is {found.media_type}, not {_KNOWN[self.kind]}: use {other}(…)"
            )
        return evolve(self, source=source, sha256=found.sha256, size=found.size, media_type=found.media_type)

    def content(self, field: str) -> bytes:
        """Return the content of an accepted file.

        Raises:
            InvalidRequest: the file has changed since it was accepted, or can no longer be read.
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

    def _refusal(self, field: str, problem: str) -> InvalidRequest:
        return InvalidRequest(f"{field} is {self.described()}, {problem}", field=field)


@frozen(repr=False)
class Image(Media):
    """An image in a prompt: PNG, JPEG, WebP or GIF, for Gemini also HEIC and HEIF.

    Images of PIL and figures of matplotlib are accepted as well and sent as PNG; a PIL image is turned
    upright as its EXIF data says. See :class:`Media` for the arguments and errors.
    """

    kind = "image"


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
_STORED = ("source", "file_id", "media_type", "name", "sha256", "size")


def media_form(media: Media) -> dict[str, Any]:
    """Return what a store keeps of an accepted file: never its content.

    Raises:
        InvalidRequest: the content was given as bytes.
    """
    if isinstance(media.source, bytes):
        raise InvalidRequest(
            "prompt contains a file given as bytes, but a job stores only paths: save it and pass its path, "
            "or send it in real time with strategy='individual'",
            field="prompt",
        )
    given = {name: value for name in _STORED if (value := getattr(media, name)) is not None}
    return {"type": _FORM_PREFIX + media.kind, **given}


def media_identity(media: Media) -> dict[str, Any]:
    """Return what distinguishes an accepted file from others, regardless of its path."""
    form = {name: getattr(media, name) for name in ("file_id", "media_type", "name", "sha256")}
    return {"type": _FORM_PREFIX + media.kind, "url": media.url, **form}


def read_media(form: Mapping[str, Any]) -> Media | None:
    """Inverse of :func:`media_form`; ``None`` for any other form."""
    prefix, _, kind = str(form.get("type")).rpartition(".")
    if f"{prefix}." != _FORM_PREFIX or kind not in _CLASSES:
        return None
    return _CLASSES[kind](**{name: form[name] for name in _STORED if name in form})


# -- content -------------------------------------------------------------------------------------------------


@frozen
class _Examined:
    sha256: str
    size: int
    media_type: str | None  # None if unknown


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


@lru_cache(maxsize=4096)  # many requests may use the same file
def _examined_file(path: str, inode: int, changed: int, size: int) -> _Examined:  # noqa: ARG001 - the cache's key
    with open(path, "rb") as file:
        return _examine(file.read(MAX_FILE_BYTES))


def _examine(data: bytes) -> _Examined:
    return _Examined(hashlib.sha256(data).hexdigest(), len(data), type_of_content(data))


# bytes at the beginning of a file, and for containers also those at the position 8
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


def kind_of_type(media_type: str) -> MediaKind:
    family = media_type.partition("/")[0]
    return "image" if family == "image" else "audio" if family == "audio" else "document"
