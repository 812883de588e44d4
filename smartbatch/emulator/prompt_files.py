"""Files in requests: their content, given in base64 or uploaded before, and its hash."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from attrs import frozen


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
    sha256: str  # hexadecimal
    uploaded: bool = False  # whether the request names the ID of an uploaded file


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


def hash_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def file_of_base64(data: Any) -> PromptFile:
    """Return a file that a request contains.

    Raises:
        ValueError: ``data`` is not a string in base64, or is empty.
    """
    content = base64.b64decode(data, validate=True) if isinstance(data, str) else b""
    if not content:
        raise ValueError
    return PromptFile(hash_of(content))
