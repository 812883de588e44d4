"""The interface of a provider's explicit prompt caches.

As in :mod:`smartbatch.providers.file_api`, each method makes at most one remote call within a total deadline
and never retries, waits or decides.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod

from attrs import frozen

from smartbatch.errors import ProviderError, as_provider_error
from smartbatch.shared_prefixes import SharedPrefix
from smartbatch.types import Request


@frozen
class RemoteCache:
    id: str
    tokens: int


class CacheApi(ABC):
    """Explicit caches of one account. Safe to use from several threads."""

    scope: str  # as in Provider.scope

    @abstractmethod
    def takes(self, request: Request, prefix: SharedPrefix) -> bool:
        """Whether ``request`` can be sent with a cache of everything up to the end of ``prefix``."""

    @abstractmethod
    def create(
        self, name: str, request: Request, model: str, prefix: SharedPrefix, lifetime: float, timeout: float
    ) -> RemoteCache:
        """Create a cache of everything in ``request`` up to the end of ``prefix``.

        Args:
            name: unique in the account.
            lifetime: seconds until it expires.

        Raises:
            ProviderError: ``maybe_billed`` is False only if the cache certainly was not created.
        """

    @abstractmethod
    def find(self, name: str, timeout: float) -> RemoteCache | None:
        """Return the cache created under ``name``; ``None`` if it is not in the list of all caches."""

    @abstractmethod
    def delete(self, cache_id: str, timeout: float) -> None:
        """Delete a cache. A missing cache counts as deleted."""

    def classify(self, error: Exception) -> ProviderError:
        """Convert an exception that a method raised."""
        return as_provider_error(error, "the call about a cache")


_REFUSED = re.compile(r"cached[ _]?content", re.I)


def is_about_cache(error: ProviderError) -> bool:
    """Whether a provider refused a request because of the explicit cache that it names."""
    return error.status in (400, 403, 404) and _REFUSED.search(error.message) is not None
