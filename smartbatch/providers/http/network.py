"""The two transports of a provider, opened and closed together."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TypeVar

from urllib3.exceptions import HTTPError
from urllib3.util import Url

from smartbatch._fork import PerProcess
from smartbatch.errors import ProviderError
from smartbatch.providers.http.network_errors import failure
from smartbatch.providers.http.replies import MAX_BODY
from smartbatch.providers.http.transport import DEFAULT_WORKERS, Transport
from smartbatch.types import Duration

_T = TypeVar("_T")


class HttpNetwork:
    """What a provider's service is reached through; the URL and the headers are checked already.

    Attributes:
        realtime: keeps its connections, and sends the headers with every request.
        batches: uses each connection for one call; for files and batches.
        prepare: is called by :meth:`open`; imports the SDK of an adapter that has one.
    """

    def __init__(
        self,
        url: Url,
        headers: Mapping[str, str] | None = None,
        *,
        connect_timeout: Duration = 10.0,
        max_body: int = MAX_BODY,
    ) -> None:
        self.prepare: Callable[[], object] = lambda: None
        self.realtime = Transport(url, headers, connect_timeout=connect_timeout, max_body=max_body)
        self.batches = Transport(url, connect_timeout=connect_timeout, max_body=max_body, reuse=False)

    def through(self, make: Callable[[Transport], _T]) -> tuple[PerProcess[_T], PerProcess[_T]]:
        """Return the SDK over each transport, made at its first use; opening makes that of real time."""
        realtime = PerProcess(lambda: make(self.realtime))
        batches = PerProcess(lambda: make(self.batches))
        self.prepare = realtime.get
        return realtime, batches

    def open(self, workers: int) -> None:
        """Make room for ``workers`` calls at once; connections are made when first needed."""
        self.realtime.open(workers)
        self.prepare()

    def open_batches(self) -> None:
        """Let files and batches be reached, again after a close."""
        self.batches.open(DEFAULT_WORKERS)

    def close(self) -> None:
        """Close all connections; calls under way end at once with ``NETWORK_ERROR``, code ``closed``."""
        self.realtime.close()
        self.batches.close()

    def meaning_of(self, error: Exception) -> ProviderError | None:
        """Return the meaning of an exception of the network; ``None`` for any other."""
        if isinstance(error, (HTTPError, OSError)):  # how far the call was is not known
            return failure(error, "receive", self.realtime.place, late=isinstance(error, TimeoutError))
        if "httpx2" not in sys.modules:  # nothing of an SDK can have been raised
            return None
        from smartbatch.providers.http.sdk_bridge import meaning_of

        return meaning_of(error)
