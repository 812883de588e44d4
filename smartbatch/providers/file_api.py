"""The interface of every provider's Files API: upload a file once, refer to it by id in many prompts.

As in :mod:`smartbatch.providers.batch_api`, each method makes one remote call within a total deadline and
never retries, waits or decides; :meth:`FileApi.classify` converts every exception. ``maybe_billed`` is True
if an upload may have succeeded although no answer arrived.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod

from attrs import frozen

from smartbatch.errors import ProviderError, as_provider_error
from smartbatch.media import Media

LIFETIME_SECONDS = 30 * 86_400
"""Uploads expire after 30 days if the provider supports it, which removes files that no process deletes."""


@frozen
class FileAbilities:
    max_bytes: int  # per file
    lifetime: float = math.inf  # seconds until an upload expires, as far as it is known before the upload


@frozen
class RemoteUpload:
    id: str  # as in Media.file_id
    expires_at: float = math.inf  # Unix seconds
    size: int | None = None  # bytes, if reported
    ready: bool = True  # False while the provider still processes it


class FileApi(ABC):
    """A provider's Files API, for files in prompts. Safe to use from several threads."""

    scope: str  # account, server and organization, as in Provider.scope
    abilities: FileAbilities

    def accepts(self, media: Media) -> bool:
        """Whether the accepted file ``media`` can be uploaded for requests."""
        return self.takes(media) and (media.size or 0) <= self.abilities.max_bytes

    @abstractmethod
    def takes(self, media: Media) -> bool:
        """Whether requests may refer to a file of this kind by id, in real time and in batches."""

    @abstractmethod
    def upload(self, name: str, media_type: str, content: bytes, timeout: float) -> RemoteUpload:
        """Upload ``content`` under ``name``, which must be unique in the account.

        Raises:
            ProviderError: ``maybe_billed`` is False only if the file certainly was not stored.
        """

    @abstractmethod
    def find(self, name: str, timeout: float) -> RemoteUpload | None:
        """Return the file uploaded under ``name``; ``None`` if it certainly does not exist."""

    @abstractmethod
    def delete(self, file_id: str, timeout: float) -> None:
        """Delete a file. A missing file counts as deleted."""

    def classify(self, error: Exception) -> ProviderError:
        """Convert an exception that a method raised."""
        return as_provider_error(error, "the call about a file")


_GONE = re.compile(
    r"no such file|\bfiles?\b.{0,160}(?:not found|not exist|no longer|expired|been deleted)|"
    r"not found.{0,40}\bfiles?\b",
    re.I | re.S,
)


def is_about_missing_file(error: ProviderError) -> bool:
    """Whether a provider rejected a request because a file that it refers to no longer exists.

    OpenAI, Anthropic and Gemini answer 400, 404 or 403 and name the file. In a batch, the status is missing.
    """
    return error.status in (None, 400, 403, 404) and _GONE.search(error.message) is not None
