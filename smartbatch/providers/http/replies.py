"""HTTP answers, complete or as they arrive, decoded within a maximum size."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO
from typing import TYPE_CHECKING, Any

from attrs import frozen

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.foreign_text import unusable
from smartbatch.providers.http.content import decode_answer

if TYPE_CHECKING:
    from smartbatch.providers.http.pool import Connection
    from smartbatch.providers.http.response import IncomingResponse

MAX_BODY = 64 * 1024 * 1024  # maximum bytes of a decoded answer; stops gzip bombs and endless bodies

_PIECE_BYTES = 65536
# compressed bytes per step; the rest is copied after each gzip member, which may be tiny
_INFLATED_STEP_BYTES = 4096
_GZIP_FIRST_BYTE = b"\x1f"  # first byte of a gzip member; the second may not have arrived yet


@frozen
class Reply:
    """An HTTP answer with its decoded body. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    def json(self) -> Any:
        try:
            return decode_answer(self.body)
        except (ValueError, RecursionError):
            return None


def _is_plain(headers: Mapping[str, str]) -> bool:
    return _encoding(headers) in ("", "identity")


def is_html(headers: Mapping[str, str]) -> bool:
    """Web pages come from a server between the client and the provider."""
    return headers.get("content-type", "").lower().startswith("text/html")


def decoded(pieces: Iterable[bytes], headers: Mapping[str, str], cap: int) -> Iterator[bytes]:
    """Decode a body as it arrives. Compressed bodies are yielded in pieces of at most 64 kB; pieces may be
    empty.

    At most ``cap`` bytes and one piece are held or decoded. An empty body may be declared as compressed.
    A body that is broken, truncated or too large, or has an unknown encoding, raises a
    ``ProviderError``.
    """
    capped = _capped(pieces, cap)
    return capped if _is_plain(headers) else _capped(_inflated(capped, _encoding(headers)), cap)


def joined(pieces: Iterable[bytes]) -> bytes:
    """Join the pieces of a body without a list, which takes far more memory if the pieces are tiny."""
    whole = BytesIO()
    whole.writelines(pieces)
    return whole.getvalue()


def _capped(pieces: Iterable[bytes], cap: int) -> Iterator[bytes]:
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > cap:
            text = f"the answer is larger than max_body={cap} bytes; raise it if that is expected"
            raise unusable(text, "too_large")
        yield piece


def _encoded_otherwise() -> ProviderError:
    return unusable("the answer has a content encoding that was not requested", "encoding")


def _encoding(headers: Mapping[str, str]) -> str:
    return headers.get("content-encoding", "").strip().lower()


def _inflated(pieces: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    """Yield the inflated bytes of all gzip members, without any data after them."""
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise _encoded_otherwise()
    decoder = _decoder()
    begun = ended = False
    for piece in (
        each[at : at + _INFLATED_STEP_BYTES]
        for each in pieces
        for at in range(0, len(each), _INFLATED_STEP_BYTES)
    ):
        begun = True
        while piece and not ended:
            if decoder.eof:
                ended = encoding == "deflate" or not piece.startswith(_GZIP_FIRST_BYTE)
                decoder = decoder if ended else _decoder()
                continue
            try:
                yield decoder.decompress(piece, _PIECE_BYTES)
            except zlib.error:
                raise _broken() from None
            piece = decoder.unused_data if decoder.eof else decoder.unconsumed_tail
    yield decoder.flush()
    if begun and not decoder.eof:
        raise _broken()


def _decoder() -> Any:
    return zlib.decompressobj(wbits=47)  # 32 + 15: gzip or zlib, by the header


def _broken() -> ProviderError:
    text = "the compressed answer is corrupt or incomplete"
    return unusable(text, "truncated", kind=ErrorKind.NETWORK_ERROR)


class LiveReply:
    """The body of an answer as it arrives. One thread reads it, once; any thread may close it.

    It holds a connection until it is read to its end or closed.

    Args:
        connection: returned to its pool at the end.
        response: its head has been read.
        cap: maximum bytes of the decoded body.
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
        """Yield bytes as they arrive. A compressed body is rejected, because its pieces would delay each
        other.
        """
        if not _is_plain(self.headers):
            self.close()
            raise _encoded_otherwise()
        return self.pieces()

    def pieces(self, cap: int | None = None) -> Iterator[bytes]:
        """Yield decoded bytes as they arrive; ``cap`` replaces the transport's maximum.

        Raises:
            ProviderError: the body is truncated, stalls beyond the deadline, is too large or is closed.
        """
        try:
            yield from decoded(iter(self._next_piece, b""), self.headers, cap or self._cap)
        except ProviderError:
            self.close()
            raise

    def whole(self) -> Reply:
        """Read the complete answer. If the body of a refusal is unreadable, it is left empty, because the
        status suffices.
        """
        try:
            body = joined(self.pieces())
        except ProviderError as error:
            if not _is_clear_from_status(self.status, error):
                raise
            body = b""
        return Reply(self.status, self.headers, body)

    def close(self) -> None:
        """Return the connection; a read in another thread ends immediately. May be called twice."""
        with self._lock:
            if self._released:
                return
            self._closed = True
            if self._reading:
                # The reader sees the end of its connection and returns it itself.
                sock = self._connection.sock
                if sock is not None:
                    with contextlib.suppress(OSError):
                        socket.socket.shutdown(sock, socket.SHUT_RDWR)
                return
        self._release(reusable=False)

    def drain(self) -> None:
        """Read the expected last bytes for at most a quarter of a second, so that the connection can be
        reused; otherwise close it.
        """
        sock: Any = self._connection.sock
        if sock is not None:
            sock.deadline = min(sock.deadline, time.monotonic() + 0.25)
        with contextlib.suppress(ProviderError):
            while self._next_piece():
                pass
        self.close()

    def _next_piece(self) -> bytes:
        """Return the bytes that have arrived; empty at the end of the body."""
        # 1. Closed before the read: an error. Already read to its end: return nothing.
        if not self._begin_read():
            return b""
        problem: ProviderError | None = None
        piece = b""
        try:
            # 2. Read outside the lock, so that close() can interrupt it. A body that is too short is an
            # error.
            piece = self._response.piece()
        except Exception as error:
            problem = self._meaning_of(error)
        # 3. Closed during the read: an error, whatever arrived.
        with self._lock:
            self._reading = False
            closed = self._closed
        if problem is None and closed:
            problem = self._meaning_of(ConnectionAbortedError())
        # 4. At the end or after an error, return the connection.
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
    """Read the complete answer and return its connection. A fast path if no other thread holds the call."""
    headers, body, whole = response.headers, b"", False
    try:
        size = response.length
        if size is not None and size <= cap and _is_plain(headers):
            body = response.whole(size)
        else:
            body = joined(decoded(iter(response.piece, b""), headers, cap))
        whole = True
    except Exception as error:
        meaning = error if isinstance(error, ProviderError) else connection.meaning_of(error)
        if not _is_clear_from_status(response.status, meaning):
            raise meaning from (error if isinstance(error, OSError) else None)
    finally:
        connection.give_back(reusable=whole and response.reusable)
    return Reply(response.status, headers, body)


def _is_clear_from_status(status: int, error: ProviderError) -> bool:
    return status >= 300 and error.code != "closed"
