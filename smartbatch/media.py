"""Images, documents and audio in prompts.

A file is read twice: when its request is accepted, to detect its type and compute its hash, and when the
request is sent. In between, only its path and its hash are kept.
"""

from __future__ import annotations

import base64
import hashlib
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, ClassVar, Final, Self, TypeAlias

from attrs import evolve, field, frozen

from smartbatch.errors import InvalidRequest
from smartbatch.media_content import (
    MAX_FILE_BYTES,
    PLAIN_TEXT,
    MediaKind,
    examine,
    examined_file,
    identity_of,
    kind_of_type,
    png_of_picture,
    scaled,
    type_of_content,
    written,
)

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
    if _is_picture(value):
        return png_of_picture(value)
    if _is_figure(value):
        return written(lambda file: value.savefig(file, format="png"))
    raise InvalidRequest(
        f"a file must be a path, bytes, an https URL, a PIL image or a matplotlib figure, not "
        f"{type(value).__name__}",
        field="source",
    )


def _is_picture(value: Any) -> bool:
    pictures = sys.modules.get("PIL.Image")
    return pictures is not None and isinstance(value, pictures.Image)


def _is_figure(value: Any) -> bool:
    figures = sys.modules.get("matplotlib.figure")
    return figures is not None and isinstance(value, figures.Figure)


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
        """The identity of the content that is sent for an accepted file."""
        return self.sha256 or ""

    @property
    def sent_type(self) -> str:
        """The media type of the content that is sent for an accepted file."""
        return self.media_type or ""

    def uploaded(self, file_id: str) -> Self:
        """Return the file as one that was uploaded to the provider."""
        return evolve(self, source=None, file_id=file_id, media_type=self.sent_type, sha256=None)

    def stand_in(self) -> Self:
        """Return a file of a single byte that is sent in the same form."""
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
            found = examine(self.source)
            source: str | bytes = self.source
        else:
            source = os.path.abspath(str(self.source))
            try:
                found = examined_file(source, *identity_of(source))
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
            return scaled(data, self.max_pixels or 1)
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


MEDIA_CLASSES: Final[Mapping[str, type[Media]]] = {each.kind: each for each in (Image, Document, Audio)}
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


def kind_of_file(value: Any) -> MediaKind | None:
    """Return the kind of a file or its content; ``None`` for a path, a URL and everything else."""
    if isinstance(value, Media):
        return value.kind
    if isinstance(value, bytes | bytearray | memoryview):
        return kind_of_type(type_of_content(bytes(value)) or "")
    return "image" if _is_picture(value) or _is_figure(value) else None


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
    if f"{prefix}." != _FORM_PREFIX or kind not in MEDIA_CLASSES:
        return None
    given = {name: form[name] for name in _STORED if name in form}
    if folder is not None and given.get("source") == given.get("sha256", ""):
        given["source"] = os.path.join(folder, given["sha256"])
    return MEDIA_CLASSES[kind](**given)


# -- files in answers ----------------------------------------------------------------------------------------

_REFERENCE = "smartbatch.file"
_UNKNOWN_TYPE = "application/octet-stream"


def returned_file(content: bytes, stated: str | None = None) -> Media:
    """Return a file of an answer.

    Args:
        stated: the media type according to the provider, used if the content has no known type.
    """
    found = examine(content)
    is_known = found.media_type is not None and not (stated and found.media_type == PLAIN_TEXT)
    media_type = (found.media_type if is_known else stated) or _UNKNOWN_TYPE
    width, height = found.pixels or (None, None)
    return MEDIA_CLASSES[kind_of_type(media_type)](
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
