"""HTTP/1.1 request heads and chunked bodies, parsed by h11.

Clients that keep connections alive repeat their heads to the byte, so what was parsed is remembered: a look
into a dictionary instead of some hundred microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping

import h11
from attrs import field, frozen

__all__ = ["BadRequest", "Chunks", "Head", "parse_head"]

_KNOWN_HEADS = 512
_KNOWN_SIZE = 4096  # bytes; larger heads are parsed each time
_known: dict[bytes, Head] = {}


class BadRequest(Exception):
    """Bytes that are no request.

    Args:
        status: HTTP status to answer with before the connection is closed.
        message: what is wrong with them.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@frozen
class Head:
    """A request's head.

    Attributes:
        method: such as ``POST``.
        path: without the query.
        query: what follows the question mark.
        length: bytes of the body; ``None`` when it is chunked.
        keep_alive: False when the connection ends with the answer.
        expects_continue: True when the client waits for ``100 Continue``.
        modern: False for HTTP/1.0, which knows no chunks.
        raw: its bytes.
    """

    method: str
    path: str
    query: str
    length: int | None
    keep_alive: bool
    expects_continue: bool
    modern: bool
    headers: Mapping[str, str] = field(repr=False)
    raw: bytes = field(repr=False)

    @property
    def authorization(self) -> str:
        """That header, or an empty text."""
        return self.headers.get("authorization", "")


def parse_head(raw: bytes) -> Head:
    """Return the head in ``raw``, which ends with its blank line.

    Raises:
        BadRequest: when it is none.
    """
    head = _known.get(raw)
    if head is None:
        head = _parse(raw)
        if len(raw) <= _KNOWN_SIZE:
            if len(_known) >= _KNOWN_HEADS:
                _known.clear()
            _known[raw] = head
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
    chunked = "transfer-encoding" in headers
    modern = event.http_version >= b"1.1"
    options = {word.strip().lower() for word in headers.get("connection", "").split(",")}
    return Head(
        method=event.method.decode("latin-1"),
        path=path,
        query=query,
        length=None if chunked else int(headers.get("content-length", "0")),
        keep_alive=modern and "close" not in options,
        expects_continue=modern and "100-continue" in headers.get("expect", "").lower(),
        modern=modern,
        headers=headers,
        raw=raw,
    )


class Chunks:
    """The reader of one chunked body.

    Args:
        head: the request's head.
        most: bytes the body may have.
    """

    def __init__(self, head: Head, most: int) -> None:
        self._connection = h11.Connection(h11.SERVER, max_incomplete_event_size=64 * 1024)
        self._connection.receive_data(head.raw)
        self._connection.next_event()
        self._most = most
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> tuple[bytes, bytes] | None:
        """Take in bytes; return the body and what follows it once it is whole.

        Raises:
            BadRequest: for malformed chunks or a body that is too large.
        """
        if not data:  # no bytes yet; to h11 they would mean that the client is gone
            return None
        try:
            self._connection.receive_data(data)
            while True:
                event = self._connection.next_event()
                if isinstance(event, h11.Data):
                    self._parts.append(bytes(event.data))
                    self._size += len(event.data)
                    if self._size > self._most:
                        raise BadRequest(413, "Request body too large.")
                elif isinstance(event, h11.EndOfMessage):
                    return b"".join(self._parts), self._connection.trailing_data[0]
                else:
                    return None
        except h11.RemoteProtocolError as error:
            raise BadRequest(error.error_status_hint, "Malformed chunked body.") from None
