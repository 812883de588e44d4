"""HTTP/1.1 request heads and chunked bodies, parsed by h11.

Clients that keep connections alive send identical heads, so parsed heads are cached. A dictionary look-up
replaces several hundred microseconds of parsing.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import parse_qs, urlsplit

import h11
from attrs import field, frozen

_CACHED_HEADS = 512
_MAX_CACHED_BYTES = 4096  # bytes; larger heads are not cached
_MAX_PARAMETERS = 100  # parameters per query
_cache: dict[bytes, Head] = {}


class BadRequest(Exception):
    """Bytes that are not an HTTP request.

    Args:
        status: HTTP status of the answer, after which the connection is closed.
        body: the body of the answer; empty for an error in OpenAI's format.
    """

    def __init__(self, status: int, message: str, body: bytes = b"") -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.body = body


@frozen
class Head:
    method: str
    path: str
    query: str
    length: int | None  # bytes of the body; ``None`` for a chunked body
    keep_alive: bool  # false if the connection is closed after the answer
    expects_continue: bool  # whether the client waits for ``100 Continue``
    is_http_1_1: bool  # false for HTTP/1.0, which has no chunked bodies
    foreign: bool  # whether a web page from another machine sent it
    headers: Mapping[str, str] = field(repr=False)  # by lower-case name
    raw: bytes = field(repr=False)

    @property
    def parameters(self) -> Mapping[str, list[str]]:
        return parse_qs(self.query)

    @property
    def authorization(self) -> str:
        return self.headers.get("authorization", "")


def parse_head(raw: bytes) -> Head:
    """Parse a head, including its final blank line.

    Raises:
        BadRequest: the bytes are not a request head.
    """
    head = _cache.get(raw)
    if head is None:
        head = _parse(raw)
        if len(raw) <= _MAX_CACHED_BYTES:
            if len(_cache) >= _CACHED_HEADS:
                _cache.clear()
            _cache[raw] = head
    return head


def _parse(raw: bytes) -> Head:
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=len(raw) + 1)
    try:
        connection.receive_data(raw)
        event = connection.next_event()
    except h11.RemoteProtocolError as error:
        raise BadRequest(error.error_status_hint, "Malformed HTTP request.") from None
    if not isinstance(event, h11.Request):
        raise BadRequest(400, "Malformed HTTP request.")
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
    path, _, query = event.target.decode("latin-1").partition("?")
    if query.count("&") >= _MAX_PARAMETERS:
        raise BadRequest(400, f"The query has more than {_MAX_PARAMETERS} parameters.")
    chunked = "transfer-encoding" in headers
    is_http_1_1 = event.http_version >= b"1.1"
    options = {word.strip().lower() for word in headers.get("connection", "").split(",")}
    return Head(
        method=event.method.decode("latin-1"),
        path=path,
        query=query,
        length=None if chunked else int(headers.get("content-length", "0")),
        keep_alive=is_http_1_1 and "close" not in options,
        expects_continue=is_http_1_1 and "100-continue" in headers.get("expect", "").lower(),
        is_http_1_1=is_http_1_1,
        foreign=_is_foreign(headers),
        headers=headers,
        raw=raw,
    )


def _is_foreign(headers: Mapping[str, str]) -> bool:
    """Whether a browser sent the request for a page of another machine.

    Such a request has a foreign origin. With DNS rebinding, the origin is local, but the host is foreign.
    """
    host, origin = headers.get("host"), headers.get("origin")
    if host is not None and not _is_local(f"//{host}"):
        return True
    return origin is not None and not _is_local(origin)


def _is_local(url: str) -> bool:
    try:
        name = urlsplit(url).hostname or ""
        return name == "localhost" or name.endswith(".localhost") or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class ChunkedBody:
    """The parser of one chunked body.

    Args:
        limit: maximum size of the body in bytes.
    """

    def __init__(self, head: Head, limit: int) -> None:
        self._connection = h11.Connection(h11.SERVER, max_incomplete_event_size=64 * 1024)
        self._connection.receive_data(head.raw)
        self._connection.next_event()
        self._limit = limit
        self._body = bytearray()

    def feed(self, data: bytes) -> tuple[bytes, bytes] | None:
        """Parse more bytes. Once the body is complete, return it and the bytes after it.

        Raises:
            BadRequest: the chunks are malformed, or the body is too large.
        """
        if not data:  # h11 treats empty data as the end of the connection
            return None
        try:
            self._connection.receive_data(data)
            while True:
                event = self._connection.next_event()
                if isinstance(event, h11.Data):
                    self._body += event.data
                    if len(self._body) > self._limit:
                        raise BadRequest(413, "Request body too large.")
                elif isinstance(event, h11.EndOfMessage):
                    return bytes(self._body), self._connection.trailing_data[0]
                else:
                    return None
        except h11.RemoteProtocolError as error:
            raise BadRequest(error.error_status_hint, "Malformed chunked body.") from None
