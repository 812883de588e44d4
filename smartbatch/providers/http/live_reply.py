"""An answer that is read while it is still being made: piece by piece, within one deadline."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from urllib3.connectionpool import HTTPConnectionPool

from smartbatch.errors import ProviderError
from smartbatch.providers.http.connections import Connection
from smartbatch.providers.http.network_errors import failure
from smartbatch.providers.http.replies import encoded_otherwise, headers_of, inflated, too_large

if TYPE_CHECKING:
    from smartbatch.providers.http.transport import Transport

__all__ = ["LiveReply"]

_PIECE = 65536  # bytes asked for at once; what has arrived is handed on without waiting for more


class LiveReply:
    """The body of an answer as it arrives. One thread iterates it, once; any thread may close it.

    It holds a connection of the transport until it is read to its end or closed.

    Attributes:
        status: the HTTP status.
        headers: by lower-case name.
        cap: most bytes of the decoded body; the transport's, may be changed before it is read.
        inflates: True decodes a compressed body as it comes; False refuses it, for those whose pieces must
            not wait for each other.
    """

    def __init__(
        self,
        transport: Transport,
        pool: HTTPConnectionPool,
        connection: Connection,
        response: http.client.HTTPResponse,
        whole: bool,
        cap: int,
    ) -> None:
        self.status = response.status
        self.headers = headers_of(response)
        self._transport = transport
        self._pool = pool
        self._connection = connection
        self._response = response
        self._reusable = whole and not response.will_close
        self.cap = cap
        self.inflates = False
        self._lock = threading.Lock()
        self._reading = False
        self._closed = threading.Event()  # set by any thread
        self._released = False

    def __iter__(self) -> Iterator[bytes]:
        """Yield the bytes as they come.

        Raises:
            ProviderError: for a body that is cut, stalls beyond the deadline, is too large or is closed.
        """
        encoding = self.headers.get("content-encoding", "")
        if not self.inflates and encoding.strip().lower() not in ("", "identity"):
            self.close()
            raise encoded_otherwise()
        size = 0
        for piece in inflated(iter(self._next_piece, b""), encoding):
            size += len(piece)
            if size > self.cap:
                self.close()
                raise too_large(self.cap)
            yield piece

    def close(self) -> None:
        """Give the connection back; a read under way in another thread ends at once. May be called twice."""
        with self._lock:
            self._closed.set()
            if self._reading:
                # The reader sees the end of its connection and gives it back itself.
                sock = self._connection.sock
                if sock is not None:
                    with contextlib.suppress(OSError):
                        socket.socket.shutdown(sock, socket.SHUT_RDWR)
                return
        self._release(reusable=False)

    def drain(self, within: float = 0.25) -> None:
        """Read what should be the last bytes, so that the connection can be used again.

        Args:
            within: most seconds; after them, or after an error, the connection is closed instead.
        """
        sock: Any = self._connection.sock
        if sock is not None:
            sock.deadline = min(sock.deadline, time.monotonic() + within)
        with contextlib.suppress(ProviderError):
            while self._next_piece():
                pass
        self.close()

    def _next_piece(self) -> bytes:
        with self._lock:
            if self._closed.is_set():
                raise self._verdict(ConnectionAbortedError())
            if self._released:
                return b""
            self._reading = True
        problem: ProviderError | None = None
        piece = b""
        try:
            piece = self._response.read1(_PIECE)
            if not piece and self._response.length:
                raise http.client.IncompleteRead(b"", self._response.length)
        except Exception as error:
            problem = self._verdict(error)
        with self._lock:
            self._reading = False
            closed = self._closed.is_set()
        if problem is None and closed:
            problem = self._verdict(ConnectionAbortedError())
        if problem is not None or not piece:
            self._release(reusable=problem is None and self._reusable)
        if problem is not None:
            raise problem
        return piece

    def _verdict(self, error: Exception) -> ProviderError:
        if self._closed.is_set():
            place = self._transport.place
            return failure(error, "receive", place, late=False, closed=True)
        return self._transport.verdict(error, self._connection)

    def _release(self, *, reusable: bool) -> None:
        with self._lock:
            if self._released:
                return
            self._released = True
        with contextlib.suppress(OSError):
            self._response.close()
        self._transport.release(self._pool, self._connection, reusable=reusable)
