"""The answer to one request: its head, parsed as far as needed, and its body as it arrives.

``http.client`` passes each head to the e-mail parser, which takes more CPU than the rest of a call.
Its exceptions are still used, because it sets up proxy tunnels and all errors are looked up in one
table.
"""

from __future__ import annotations

import re
from functools import lru_cache
from http.client import BadStatusLine, HTTPException, IncompleteRead, LineTooLong, RemoteDisconnected
from typing import Any

MAX_HEAD = 65536  # maximum bytes of the head, interim answers, chunk extensions and trailers together
MAX_LINES = 100  # maximum header lines, as in ``http.client``

_MAX_CACHED_HEAD_CHARACTERS = 8192  # lines of longer heads are not cached
_HEAD_READ_BYTES = 8192  # bytes per read until the head is complete; usually the whole answer
_PIECE_BYTES = 65536  # bytes per read of a body
_BUFFER_GROWTH_BYTES = 1 << 20  # bytes by which a body's buffer grows; the announced length may never arrive

_STATUS = re.compile(r"HTTP/1\.(\d)[ \t]+([1-9]\d\d)(?:[ \t\r]|$)", re.ASCII)
_FIELD = re.compile(r"([^\x00-\x20:\x7f]+):([^\r\n\x00]*)")
_FOLD = re.compile(r"\r?\n[ \t]+")
_SIZE = re.compile(rb"[0-9a-fA-F]{1,16}")
_DIGITS = re.compile(r"[0-9]{1,18}")


class IncomingResponse:
    """One answer on a socket. One thread reads it, once.

    Attributes:
        status: HTTP status.
        headers: by lower-case name; the last of repeated headers wins.
        length: remaining bytes of the body; ``None`` if unknown.
        reusable: the connection can serve another call once the body is read.

    Args:
        sock: the socket of the connection, after the request has been written.

    Raises:
        RemoteDisconnected: nothing arrived.
        HTTPException: the head is not HTTP, is too long, or has two lengths.
    """

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._rest = b""
        self._left = MAX_HEAD
        while True:
            head = self._head()
            found = _STATUS.match(head)
            if found is None:
                raise BadStatusLine("")
            self.status = int(found[2])
            if self.status >= 200 or self.status == 101:  # an interim answer is followed by another
                break
        self.headers, whole = _fields(head)
        self._chunked = False
        self.length: int | None = None
        framed = self._framed() and whole
        self.reusable = framed and _keeps(self.headers, old=found[1] == "0")
        self._chunk: int | None = None  # remaining bytes of the current chunk; None before the first

    def whole(self, length: int) -> bytes:
        """Read a body of known :attr:`length` into one buffer."""
        rest = self._rest
        if len(rest) < length:
            rest = self._filled(rest, length)
        self._ended(rest[length:])
        return rest if len(rest) == length else rest[:length]

    def piece(self) -> bytes:
        """Return the bytes of the body that have arrived; empty at its end.

        Raises:
            IncompleteRead: the connection ended before the body.
        """
        # 1. Chunked body: the rest of the chunk, or the next chunk.
        if self._chunked:
            return self._chunk_piece()
        # 2. Known length: up to that length. 3. Otherwise: up to the end of the connection.
        if self.length == 0:
            return b""
        piece = self._some(_PIECE_BYTES if self.length is None else min(_PIECE_BYTES, self.length))
        if self.length is None:
            return piece
        if not piece:
            raise IncompleteRead(b"", self.length)
        self.length -= len(piece)
        if not self.length:
            self._ended(self._rest)
        return piece

    # -- the head --------------------------------------------------------------------------------------------

    def _head(self) -> str:
        """Read the head of an answer without the empty line; further bytes stay in the buffer."""
        data = self._rest or self._received(_HEAD_READ_BYTES)
        found = _end_of_head(data)
        if found is None:
            data, found = self._long_head(data)
        end, after = found
        if after > self._left:
            raise LineTooLong("head")
        self._left -= after
        self._rest = data[after:]
        return data[:end].decode("latin-1")

    def _long_head(self, start: bytes) -> tuple[bytes, tuple[int, int]]:
        """Read a head that arrives in several parts; return it with the bytes after it and the position of
        its end.
        """
        data = bytearray(start)
        while True:
            if not data.startswith(b"HTTP/1."[: len(data)]):
                raise RemoteDisconnected("no answer") if not data else BadStatusLine("")
            if len(data) > self._left:
                raise LineTooLong("head")
            piece = self._received(_HEAD_READ_BYTES)
            if not piece:
                raise RemoteDisconnected("no answer") if not data else HTTPException("the head was cut")
            searched = max(0, len(data) - 3)
            data += piece
            found = _end_of_head(data, searched)
            if found is not None:
                return bytes(data), found

    def _framed(self) -> bool:
        """Determine how the body ends; False if only the end of the connection shows it."""
        headers = self.headers
        coding = headers.get("transfer-encoding", "identity").strip().lower()
        if coding != "identity":
            self._chunked = coding == "chunked"
            return self._chunked and "content-length" not in headers
        sure = "transfer-encoding" not in headers  # otherwise the sender may mean another length
        if self.status in (204, 304) or self.status < 200:
            self.length = 0
            return sure
        length = headers.get("content-length")
        if length is None or not _DIGITS.fullmatch(length):
            return False
        self.length = int(length)
        return sure

    # -- the body --------------------------------------------------------------------------------------------

    def _filled(self, start: bytes, length: int) -> bytes:
        buffer, filled = bytearray(min(length, len(start) + _BUFFER_GROWTH_BYTES)), len(start)
        buffer[:filled] = start
        while filled < length:
            if filled == len(buffer):
                buffer += bytes(min(filled, length - filled))
            with memoryview(buffer) as view:
                received = self._sock.recv_into(view[filled:])
            if not received:
                raise IncompleteRead(b"", length - filled)
            filled += received
        return bytes(buffer)

    def _chunk_piece(self) -> bytes:
        if not self._chunk:
            if self._chunk == 0 and self._line():
                raise IncompleteRead(b"")  # the chunk is longer than announced
            value, _, remark = self._line().partition(b";")
            self._left -= len(remark)
            if self._left < 0:
                raise LineTooLong("chunk")
            size = _SIZE.fullmatch(value.strip())
            if size is None:
                raise IncompleteRead(b"")
            self._chunk = int(size[0], 16)
            if not self._chunk:
                self._trailers()
                return b""
        piece = self._some(min(_PIECE_BYTES, self._chunk))
        if not piece:
            raise IncompleteRead(b"", self._chunk)
        self._chunk -= len(piece)
        return piece

    def _trailers(self) -> None:
        """Skip the trailers of the last chunk. Some servers omit even the empty line."""
        self._chunked = False
        try:
            while line := self._line():
                self._left -= len(line)
                if self._left < 0:
                    raise LineTooLong("trailers")
        except IncompleteRead:
            self.reusable = False
        self._ended(self._rest)

    def _line(self) -> bytes:
        while (end := self._rest.find(b"\n")) < 0:
            piece = self._received(_HEAD_READ_BYTES)
            if not piece:
                raise IncompleteRead(self._rest)
            self._rest += piece
            if len(self._rest) > MAX_HEAD:
                raise LineTooLong("chunk")
        line, self._rest = self._rest[:end], self._rest[end + 1 :]
        return line.removesuffix(b"\r")

    def _some(self, most: int) -> bytes:
        """Return up to ``most`` bytes that are available, or arrive next."""
        if not self._rest:
            return self._received(most)
        piece, self._rest = self._rest[:most], self._rest[most:]
        return piece

    def _ended(self, surplus: bytes) -> None:
        """Record the end of the body. A connection with unrequested bytes is not reused."""
        self._rest = b""
        self.length = 0
        if surplus:
            self.reusable = False

    def _received(self, most: int) -> bytes:
        received: bytes = self._sock.recv(most)
        return received


def _end_of_head(data: bytes | bytearray, start: int = 0) -> tuple[int, int] | None:
    """Return the end of the head's last line and the beginning of the body; ``None`` if the head is
    incomplete.
    """
    at = data.find(b"\n\r\n", start)
    bare = data.find(b"\n\n", start, at + 1 if at >= 0 else None)
    if bare >= 0:
        at, after = bare, bare + 2
    elif at >= 0:
        after = at + 3
    else:
        return None
    return at - data.startswith(b"\r", max(0, at - 1), at), after


def _fields(head: str) -> tuple[dict[str, str], bool]:
    """Parse the header fields. The flag is False if an invalid line was left out.

    A value continued on the next line, an obsolete form, is joined with a blank.
    """
    lines = head.split("\r\n")[1:]
    if head.count("\n") != len(lines) or "\n " in head or "\n\t" in head:  # bare line ends or folded lines
        lines = _FOLD.sub(" ", head).replace("\r\n", "\n").split("\n")[1:]
    if len(lines) > MAX_LINES:
        raise HTTPException("got more than 100 headers")
    field = _field if len(head) <= _MAX_CACHED_HEAD_CHARACTERS else _field.__wrapped__
    fields = list(map(field, lines))
    found = [each for each in fields if each is not None]
    headers = dict(found)
    if len(headers) != len(found):
        lengths = {value for name, value in found if name == "content-length"}
        if len(lengths) > 1:
            raise HTTPException("the answer has two lengths")
    return headers, len(found) == len(fields)


@lru_cache(maxsize=512)  # most of a server's header lines never change
def _field(line: str) -> tuple[str, str] | None:
    found = _FIELD.fullmatch(line)
    return None if found is None else (found[1].lower(), found[2].strip(" \t"))


def _keeps(headers: dict[str, str], *, old: bool) -> bool:
    """HTTP/1.1 servers keep connections by default; ``old`` servers do not."""
    value = headers.get("connection")
    if old:
        kept = f"{value} {headers.get('proxy-connection')}".lower()
        return "keep-alive" in headers or "keep-alive" in kept
    return value is None or "close" not in value.lower()
