"""An answer that is read while it is still being made: in pieces, within one deadline, up to a cap."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

from smartbatch.errors import ProviderError
from smartbatch.providers.http.pool import Connection
from smartbatch.providers.http.replies import Reply, decoded, encoded_otherwise, is_plain, joined
from smartbatch.providers.http.response import IncomingResponse


class LiveReply:
    """The body of an answer as it arrives. One thread reads it, once; any thread may close it.

    It holds a connection until it is read to its end or closed.

    Args:
        connection: given back at the end.
        response: its head is read.
        cap: most bytes of the decoded body.
    """

    def __init__(self, connection: Connection, response: IncomingResponse, *, cap: int) -> None:
        self.status = response.status
        self.headers = response.headers
        self._connection = connection
        self._response = response
        self._cap = cap
        self._lock = threading.Lock()
        self._reading = False
        self._closed = False  # set by any thread, under the lock
        self._released = False

    def __iter__(self) -> Iterator[bytes]:
        """Yield the bytes as they come; a compressed body is refused, whose pieces would wait for each
        other.
        """
        if not is_plain(self.headers):
            self.close()
            raise encoded_otherwise()
        return self.pieces()

    def pieces(self, cap: int | None = None) -> Iterator[bytes]:
        """Yield the decoded bytes as they come; ``cap`` replaces the transport's.

        Raises:
            ProviderError: for a body that is cut, stalls beyond the deadline, is too large or is closed.
        """
        try:
            yield from decoded(iter(self._next_piece, b""), self.headers, cap or self._cap)
        except ProviderError:
            self.close()
            raise

    def whole(self) -> Reply:
        """Return the answer with its body; that of a refusal is empty where it cannot be read: its status
        says enough.
        """
        try:
            body = joined(self.pieces())
        except ProviderError as error:
            if not _is_told_by_status(self.status, error):
                raise
            body = b""
        return Reply(self.status, self.headers, body)

    def close(self) -> None:
        """Give the connection back; a read under way in another thread ends at once. May be called twice."""
        with self._lock:
            if self._released:
                return
            self._closed = True
            if self._reading:
                # The reader sees the end of its connection and gives it back itself.
                sock = self._connection.sock
                if sock is not None:
                    with contextlib.suppress(OSError):
                        socket.socket.shutdown(sock, socket.SHUT_RDWR)
                return
        self._release(reusable=False)

    def drain(self) -> None:
        """Read what should be the last bytes, for a quarter of a second, so that the connection can be used
        again; where that fails it is closed instead.
        """
        sock: Any = self._connection.sock
        if sock is not None:
            sock.deadline = min(sock.deadline, time.monotonic() + 0.25)
        with contextlib.suppress(ProviderError):
            while self._next_piece():
                pass
        self.close()

    def _next_piece(self) -> bytes:
        """Read what has arrived; empty at the end of the body. In order:

        1. closed before the read: an error; released at the end of the body: that end again;
        2. the read, outside the lock, so that :meth:`close` can cut it;
        3. a body that is shorter than promised: an error;
        4. closed during the read: an error, whatever came;
        5. at the end, or after an error, the connection is given back.
        """
        if not self._begin_read():
            return b""
        problem: ProviderError | None = None
        piece = b""
        try:
            piece = self._response.piece()
        except Exception as error:
            problem = self._meaning_of(error)
        with self._lock:
            self._reading = False
            closed = self._closed
        if problem is None and closed:
            problem = self._meaning_of(ConnectionAbortedError())
        if problem is not None or not piece:
            self._release(reusable=problem is None and self._response.reusable)
        if problem is not None:
            raise problem
        return piece

    def _begin_read(self) -> bool:
        with self._lock:
            if self._closed:
                raise self._meaning_of(ConnectionAbortedError())
            self._reading = not self._released
            return self._reading

    def _meaning_of(self, error: Exception) -> ProviderError:
        return self._connection.meaning_of(error, ended=self._closed)

    def _release(self, *, reusable: bool) -> None:
        with self._lock:
            if self._released:
                return
            self._released = True
        self._connection.give_back(reusable=reusable)


def read_whole(connection: Connection, response: IncomingResponse, *, cap: int) -> Reply:
    """As :meth:`LiveReply.whole`, and the connection is given back. The quick way for what nobody else
    holds.
    """
    headers, body, whole = response.headers, b"", False
    try:
        size = response.length
        if size is not None and size <= cap and is_plain(headers):
            body = response.whole(size)
        else:
            body = joined(decoded(iter(response.piece, b""), headers, cap))
        whole = True
    except Exception as error:
        meaning = error if isinstance(error, ProviderError) else connection.meaning_of(error)
        if not _is_told_by_status(response.status, meaning):
            raise meaning from (error if isinstance(error, OSError) else None)
    finally:
        connection.give_back(reusable=whole and response.reusable)
    return Reply(response.status, headers, body)


def _is_told_by_status(status: int, error: ProviderError) -> bool:
    """Whether an answer is a refusal that is understood although ``error`` kept its body from being read.

    A call that was closed is not judged.
    """
    return status >= 300 and error.code != "closed"
