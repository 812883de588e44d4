"""The two transports of a provider, opened and closed together."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from urllib3.exceptions import HTTPError
from urllib3.util import Url

from smartbatch._fork import PerProcess, around_fork
from smartbatch.errors import ProviderError
from smartbatch.providers.http.network_errors import failure
from smartbatch.providers.http.transport import DEFAULT_WORKERS, Transport
from smartbatch.types import Duration

_T = TypeVar("_T")


class HttpNetwork:
    """What a provider's service is reached through; the URL and the headers are checked already.

    Attributes:
        realtime: keeps its connections, and sends the headers with every request.
        batches: uses each connection for one call; for files and batches.
    """

    def __init__(
        self,
        url: Url,
        headers: Mapping[str, str] | None = None,
        *,
        connect_timeout: Duration,
        max_body: int,
    ) -> None:
        self._sdk: PerProcess[Any] | None = None
        self._importing: threading.Thread | None = None
        self.realtime = Transport(url, headers, connect_timeout=connect_timeout, max_body=max_body)
        self.batches = Transport(url, connect_timeout=connect_timeout, max_body=max_body, reuse=False)

    def through(self, make: Callable[[Transport], _T]) -> tuple[PerProcess[_T], PerProcess[_T]]:
        """Return the SDK over each transport, made at its first use; opening begins that of real time."""
        self._sdk = realtime = PerProcess(lambda: make(self.realtime))
        return realtime, PerProcess(lambda: make(self.batches))

    def open(self, workers: int) -> None:
        """Make room for ``workers`` calls at once; connections are made when first needed.

        An SDK takes up to a second to be imported, so that begins on a thread of its own. A fork waits for
        it: the child would find a module half imported, whose lock nobody releases.
        """
        self.realtime.open(workers)
        if self._sdk is None or self._sdk.peek() is not None or self._importing is not None:
            return
        self._importing = threading.Thread(target=self._import, name="smartbatch-import", daemon=True)
        around_fork(self)
        with suppress(RuntimeError):  # no thread can be had: it is imported when it is needed
            self._importing.start()

    def ready(self) -> None:
        """Wait until calls can be made.

        Raises:
            Exception: what importing or making the SDK raises.
        """
        if self._sdk is not None:
            self._sdk.get()

    def _import(self) -> None:
        with suppress(Exception):  # :meth:`ready` raises it
            self.ready()

    def before_fork(self) -> None:
        """Wait for the import of an SDK; :mod:`smartbatch._fork` calls it."""
        if self._importing is not None and self._importing.is_alive():
            self._import()

    def after_fork_in_parent(self) -> None:
        """Do nothing; :mod:`smartbatch._fork` calls it."""

    def after_fork(self) -> None:
        """In a forked child, forget the parent's thread; :mod:`smartbatch._fork` calls it."""
        self._importing = None

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
