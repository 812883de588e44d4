"""HTTP answers: complete or as they arrive, decoded, with a maximum decoded size."""

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

MAX_BODY = 64 * 1024 * 1024  # maximum bytes of a decoded answer, which stops a gzip bomb or an endless body

_PIECE = 65536
_FED = 4096  # compressed bytes at a time: the rest is copied after each member, which may be tiny
_MEMBER = b"\x1f"  # the first byte of a gzip member; the second may not have arrived yet


@frozen
class Reply:
    """An HTTP answer: headers by lower-case name, and the decoded body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def ok(self) -> bool:
        """Whether the status is a success."""
        return 200 <= self.status < 300

    def json(self) -> Any:
        """Return the body's JSON value; ``None`` if it is not JSON."""
        try:
            return decode_answer(self.body)
        except (ValueError, RecursionError):
            return None


def _is_plain(headers: Mapping[str, str]) -> bool:
    return _encoding(headers) in ("", "identity")


def is_html(headers: Mapping[str, str]) -> bool:
    """Whether a body is a web page, which comes from a server between us and the provider."""
    return headers.get("content-type", "").lower().startswith("text/html")


def decoded(pieces: Iterable[bytes], headers: Mapping[str, str], cap: int) -> Iterator[bytes]:
    """Yield a body decoded as it arrives, in pieces of at most 64 kB if it is compressed; some are empty.

    At most ``cap`` bytes and a piece are held or decoded, compressed or not. An empty body is empty even if
    it is declared as compressed.

    Raises:
        ProviderError: the body is broken, cut or too large, or has an unknown encoding.
    """
    capped = _capped(pieces, cap)
    return capped if _is_plain(headers) else _capped(_inflated(capped, _encoding(headers)), cap)


def joined(pieces: Iterable[bytes]) -> bytes:
    """Return the pieces of a body joined; a list of tiny pieces would take far more memory."""
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
    """Yield the inflated bytes; for gzip, those of all members, without any data after them."""
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise _encoded_otherwise()
    decoder = _decoder()
    begun = ended = False
    for piece in (each[at : at + _FED] for each in pieces for at in range(0, len(each), _FED)):
        begun = True
        while piece and not ended:
            if decoder.eof:
                ended = encoding == "deflate" or not piece.startswith(_MEMBER)
                decoder = decoder if ended else _decoder()
                continue
            try:
                yield decoder.decompress(piece, _PIECE)
            except zlib.error:
                raise _broken() from None
            piece = decoder.unused_data if decoder.eof else decoder.unconsumed_tail
    yield decoder.flush()
    if begun and not decoder.eof:
        raise _broken()


def _decoder() -> Any:
    return zlib.decompressobj(wbits=47)  # 32 + 15: gzip or zlib, by the header


def _broken() -> ProviderError:
    text = "the compressed answer is broken or did not arrive whole"
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
        """Yield the bytes as they arrive; a compressed body is refused, because its pieces would delay each
        other.
        """
        if not _is_plain(self.headers):
            self.close()
            raise _encoded_otherwise()
        return self.pieces()

    def pieces(self, cap: int | None = None) -> Iterator[bytes]:
        """Yield the decoded bytes as they arrive; ``cap`` replaces the transport's.

        Raises:
            ProviderError: the body is cut, stalls beyond the deadline, is too large or is closed.
        """
        try:
            yield from decoded(iter(self._next_piece, b""), self.headers, cap or self._cap)
        except ProviderError:
            self.close()
            raise

    def whole(self) -> Reply:
        """Return the complete answer; if the body of a refusal is unreadable, it is left empty, because the
        status suffices."""
        try:
            body = joined(self.pieces())
        except ProviderError as error:
            if not _is_clear_from_status(self.status, error):
                raise
            body = b""
        return Reply(self.status, self.headers, body)

    def close(self) -> None:
        """Return the connection; a read in progress in another thread ends at once. May be called twice."""
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
        reused; otherwise it is closed.
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
        # 1. Closed before the read: an error. Released at the end of the body: that end again.
        if not self._begin_read():
            return b""
        problem: ProviderError | None = None
        piece = b""
        try:
            # 2. The read, outside the lock, so that close() can cut it; a body that is too short is an error.
            piece = self._response.piece()
        except Exception as error:
            problem = self._meaning_of(error)
        # 3. Closed during the read: an error, whatever arrived.
        with self._lock:
            self._reading = False
            closed = self._closed
        if problem is None and closed:
            problem = self._meaning_of(ConnectionAbortedError())
        # 4. At the end, or after an error, the connection is returned.
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
    """Return the complete answer and its connection; the fast path if no other thread holds the call."""
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
    """Whether the status alone explains a refusal whose body could not be read because of ``error``."""
    return status >= 300 and error.code != "closed"
