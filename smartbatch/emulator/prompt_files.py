"""Files in requests, given in base64 or uploaded before: their hashes, limits and tokens."""

from __future__ import annotations

import base64
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from attrs import evolve, frozen

from smartbatch.media import Media, returned_file
from smartbatch.media_tokens import media_rule


class UploadedFile(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def purpose(self) -> str:
        """In the terms of the API: OpenAI's purpose, or the media type."""

    @property
    def data(self) -> bytes: ...


@frozen
class PromptFile:
    """A file in a request.

    Attributes:
        where: its place in the request, in the notation of the API.
        media: its properties, without the content.
        encoded: bytes in base64 that the request contains; 0 for an uploaded file.
    """

    where: str
    media: Media
    encoded: int = 0

    @property
    def is_uploaded(self) -> bool:
        return not self.encoded


def uploaded_file(where: str, content: bytes) -> PromptFile:
    return PromptFile(where, media_of(content))


def text_file(where: str, text: str) -> PromptFile:
    return PromptFile(where, media_of(text.encode()), len(text))


def file_of_base64(where: str, data: Any) -> PromptFile:
    """Return a file that a request contains.

    Raises:
        ValueError: ``data`` is not a string in base64, or is empty.
    """
    content = base64.b64decode(data, validate=True) if isinstance(data, str) else b""
    if not content:
        raise ValueError
    return PromptFile(where, media_of(content), len(data))


def media_of(content: bytes) -> Media:
    """Return the properties of a file, without its content."""
    return evolve(returned_file(content), source="")


@frozen(kw_only=True)
class FileRules:
    """The documented limits for files in a request. Sizes are those in base64."""

    image_bytes: float = math.inf
    document_bytes: float = math.inf
    request_bytes: float  # of a request
    images: float  # in a request
    side: float = math.inf  # pixels of the longer side of an image
    many: tuple[int, float] = (0, math.inf)  # with more images than the first number, that side is the second


@frozen
class Excess:
    """How the files of a request exceed a limit."""

    limit: str  # the name of the rule
    most: float
    found: int
    where: str = ""  # the file, for a limit of one file


def excess_of(files: Sequence[PromptFile], rules: FileRules) -> Excess | None:
    """Return the first limit that the files of a request exceed."""
    total = sum(file.encoded for file in files)
    if total > rules.request_bytes:
        return Excess("request_bytes", rules.request_bytes, total)
    images = [file for file in files if file.media.kind == "image"]
    if len(images) > rules.images:
        return Excess("images", rules.images, len(images))
    many, many_side = rules.many
    side, name = (many_side, "many") if len(images) > many else (rules.side, "side")
    for file in files:
        of_kind = "image_bytes" if file.media.kind == "image" else "document_bytes"
        if file.encoded > (most := getattr(rules, of_kind)):
            return Excess(of_kind, most, file.encoded, file.where)
        if (longer := max(file.media.width or 0, file.media.height or 0)) > min(side, rules.side):
            return Excess(name, side, longer, file.where)
    return None


def tokens_by_kind(model: str, files: Sequence[PromptFile]) -> Counter[str]:
    """Return the tokens of files by their kind, counted by the published rule of the model's provider."""
    counted: Counter[str] = Counter()
    for file in files:
        counted[file.media.kind] += media_rule(model).expected(file.media)
    return counted


class UploadGone(Exception):
    """A request refers to a file that the account does not have.

    Args:
        expired: whether the account had it.
    """

    def __init__(self, file_id: str, *, expired: bool = False) -> None:
        super().__init__(file_id)
        self.file_id = file_id
        self.expired = expired


FindUpload: TypeAlias = "Callable[[str], UploadedFile]"
"""Returns the uploaded file of an ID, or raises :class:`UploadGone`."""


def no_uploads(file_id: str) -> UploadedFile:
    """For hosts without uploaded files in requests."""
    raise UploadGone(file_id)
