"""The server and its connections, on a thread in the caller's process or in a separate process."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import struct
import threading
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Unpack

from attrs import evolve

from smartbatch.emulator.batches.webhook_sender import WebhookSender
from smartbatch.emulator.hosts.host_api import dialect_named
from smartbatch.emulator.http.head import BadRequest, ChunkedBody, Head, parse_head
from smartbatch.emulator.ledger import Ledger
from smartbatch.emulator.openai.parsing import error_body
from smartbatch.emulator.provider_api import ServerReply
from smartbatch.emulator.request_handling import RequestHandler
from smartbatch.emulator.settings import EmulatorParams, EmulatorSettings, loopback
from smartbatch.errors import ConfigError

_HEAD_END = re.compile(rb"\r?\n\r?\n")
_MAX_HEAD_BYTES = 64 * 1024  # total bytes of all header lines
_MAX_PIPELINED_BYTES = 32 * 2**20  # received while a request is answered
_LINGER_SECONDS = 1.0  # seconds from an error answer until the connection is closed
_SLOW_BODY_CHUNKS = 20  # chunks of a slow body
_STATUS_LINES = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n" for s in HTTPStatus}
_STATUS_LINES[498] = "HTTP/1.1 498 Flex Tier Capacity Exceeded\r\n"
_STATUS_LINES[499] = "HTTP/1.1 499 Client Closed Request\r\n"
_STATUS_LINES[529] = "HTTP/1.1 529 Overloaded\r\n"


class ServerConnection(asyncio.Protocol):
    """The server's side of a connection.

    Args:
        open_connections: all open connections; this one is added and removed.
    """

    def __init__(
        self,
        handler: RequestHandler,
        loop: asyncio.AbstractEventLoop,
        open_connections: set[ServerConnection],
    ) -> None:
        self._handler = handler
        self._loop = loop
        self._open = open_connections
        self._buffer = bytearray()
        self._head: Head | None = None
        self._chunks: ChunkedBody | None = None
        self._busy = False
        self._draining = False
        self._closed = False
        self._unsent: list[ServerReply] = []
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        # With this limit, resume_writing is called once all bytes have been written.
        transport.set_write_buffer_limits(high=0)
        self._open.add(self)
        if len(self._open) > self._handler.settings.max_connections:
            self._refuse(BadRequest(503, "Too many connections."))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._closed = True
        self._open.discard(self)
        self._buffer.clear()

    def resume_writing(self) -> None:
        for reply in self._unsent:
            self._record(reply, delivered=True)
            if reply.delivered is not None:
                reply.delivered()
        self._unsent.clear()

    def data_received(self, data: bytes) -> None:
        if self._draining:
            return
        self._buffer += data
        if not self._busy:
            self._read()
        elif len(self._buffer) > _MAX_PIPELINED_BYTES:
            self._transport.pause_reading()

    def abort(self) -> None:
        self._transport.abort()

    def _read(self) -> None:
        """Handle requests from the buffer until one is incomplete or in progress."""
        try:
            while not self._busy and not self._draining and self._buffer:
                found = self._next_request()
                if found is None:
                    return
                self._busy = True
                self._answer(*found)
        except BadRequest as error:
            self._refuse(error)

    def _next_request(self) -> tuple[Head, bytes] | None:
        if self._head is None and not self._take_head():
            return None
        head = self._head
        assert head is not None
        if self._chunks is not None:
            found = self._chunks.feed(bytes(self._buffer))
            self._buffer.clear()
            if found is None:
                return None
            body, rest = found
            self._buffer += rest
        else:
            length = head.length or 0
            if len(self._buffer) < length:
                return None
            body = bytes(self._buffer[:length])
            del self._buffer[:length]
        self._head = self._chunks = None
        return head, body

    def _take_head(self) -> bool:
        """Take the head of the next request out of the buffer. Return False while it is incomplete.

        A head that is too long or malformed, or whose body is too large, is rejected. A sender that waits for
        ``100 Continue`` gets it.
        """
        while self._buffer and self._buffer[0] in b"\r\n":  # blank lines between requests are allowed
            del self._buffer[:1]
        if not self._buffer:
            return False
        end = self._buffer.find(b"\r\n\r\n") + 4
        if end < 4:
            found = _HEAD_END.search(bytes(self._buffer))
            end = found.end() if found else 0
        if not end or end > _MAX_HEAD_BYTES:
            if len(self._buffer) > _MAX_HEAD_BYTES:
                raise BadRequest(431, "Request header fields too large.")
            if self._buffer[0] <= 0x20:
                raise BadRequest(400, "Malformed HTTP request.")
            return False
        head = parse_head(bytes(self._buffer[:end]))
        del self._buffer[:end]
        limit = self._handler.max_body_size(head)
        if head.length is None:
            self._chunks = ChunkedBody(head, limit)
        elif head.length > limit:
            error = self._handler.too_large(head)
            raise BadRequest(error.status, str(error), error.body)
        if head.expects_continue:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._head = head
        return True

    def _refuse(self, error: BadRequest) -> None:
        """Answer an invalid request, then close. Keep reading, because a reset could discard the answer."""
        self._draining = True
        self._buffer.clear()
        body = error.body or error_body(error.message, type_="invalid_request_error")
        self._transport.write(_head_bytes(error.status, "application/json", len(body), [], keep=False) + body)
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._loop.call_later(_LINGER_SECONDS, self._transport.close)

    def _answer(self, head: Head, body: bytes) -> None:
        reply = self._handler.handle(head, body, self._loop.time())
        if reply.delay > 0:
            self._loop.call_later(reply.delay, self._deliver, head, reply)
        else:
            self._deliver(head, reply)

    def _deliver(self, head: Head, reply: ServerReply) -> None:
        """Record a reply in the ledger and send it, damaged by its fault."""
        if self._closed or self._transport.is_closing():
            self._record(reply, delivered=False, sent=False)
            return
        match reply.damage:
            case "reset_before" | "reset":
                self._record(reply, delivered=False, sent=False)
                self._reset()
            case "hang":
                self._record(reply, delivered=False, sent=False)
                self._loop.call_later(self._handler.settings.hang_seconds, self.abort)
            case "truncated":
                self._record(reply, delivered=False)
                data = _encoded(head, reply)
                self._transport.write(_half(data, reply))
                self._transport.close()
            case "stall":
                self._record(reply, delivered=False)
                self._transport.write(_half(_encoded(head, reply), reply))
                self._loop.call_later(self._handler.settings.hang_seconds, self.abort)
            case "slow_body":
                self._send_slowly(head, reply)
            case _ if reply.event_interval > 0 and isinstance(reply.body, list):
                self._send_events(head, reply, reply.body)
            case _:
                self._send(head, reply, _encoded(head, reply))

    def _send(self, head: Head, reply: ServerReply, data: bytes) -> None:
        """Send the last bytes of a reply and continue with the next request."""
        # Recorded before it is written, so that a client with the answer finds it in the ledger.
        if reply.delivered is not None:
            # The last byte is sent separately: this shows whether the kernel accepts a large reply as a
            # whole.
            self._transport.write(data[:-1])
            if not self._transport.get_write_buffer_size():
                reply.delivered()
                reply = evolve(reply, delivered=None)
            data = data[-1:]
        self._record(reply, delivered=True)
        self._transport.write(data)
        if self._transport.get_write_buffer_size():
            self._record(reply, delivered=False)
            self._unsent.append(reply)
        if not head.keep_alive:
            self._transport.close()
            return
        self._busy = False
        if self._buffer:
            self._transport.resume_reading()
            # Deferred, because many pipelined requests would recurse and block other connections.
            self._loop.call_soon(self._read)

    def _send_slowly(self, head: Head, reply: ServerReply) -> None:
        data = _encoded(head, reply)
        start = len(data) - _body_size(reply)
        step = max(1, (len(data) - start) // _SLOW_BODY_CHUNKS)
        pieces = [data[at : at + step] for at in range(start, len(data), step)]
        self._send_pieces(
            head, reply, [data[:start], *pieces], self._handler.settings.hang_seconds / len(pieces)
        )

    def _send_events(self, head: Head, reply: ServerReply, events: list[bytes]) -> None:
        first = _first_bytes(head, reply, None)
        pieces = [_chunk(event) if head.is_http_1_1 else event for event in events]
        pieces[0] = first + pieces[0]
        if head.is_http_1_1:
            pieces[-1] += b"0\r\n\r\n"
        self._send_pieces(head, reply, pieces, reply.event_interval)

    def _send_pieces(self, head: Head, reply: ServerReply, pieces: list[bytes], pause: float) -> None:
        """Send chunks with a pause in seconds between them. The reply is billed with the first chunk."""
        self._record(reply, delivered=False)
        rest = iter(pieces[:-1])

        def step() -> None:
            if self._closed or self._transport.is_closing():
                return
            piece = next(rest, None)
            if piece is None:
                self._send(head, reply, pieces[-1])
            else:
                self._transport.write(piece)
                self._loop.call_later(pause, step)

        step()

    def _record(self, reply: ServerReply, *, delivered: bool, sent: bool = True) -> None:
        if reply.call is not None:
            self._handler.ledger.close(
                reply.call, status=reply.status if sent else None, billed=reply.billed, delivered=delivered
            )

    def _reset(self) -> None:
        sock: Any = self._transport.get_extra_info("socket")
        # With a linger time of zero, the kernel sends a reset instead of a regular end.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()


def _body_size(reply: ServerReply) -> int:
    return len(reply.body) if isinstance(reply.body, bytes) else sum(map(len, reply.body))


def _half(data: bytes, reply: ServerReply) -> bytes:
    return data[: len(data) - max(1, _body_size(reply) // 2)]


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _encoded(head: Head, reply: ServerReply) -> bytes:
    """Return the whole reply as bytes. A stream is chunked or, for HTTP/1.0, ends with the connection."""
    body = reply.body
    size = len(body) if isinstance(body, bytes) else None
    first = _first_bytes(head, reply, size)
    if isinstance(body, bytes):
        return first if head.method == "HEAD" else first + body
    if not head.is_http_1_1:
        return first + b"".join(body)
    return first + b"".join(map(_chunk, body)) + b"0\r\n\r\n"


def _first_bytes(head: Head, reply: ServerReply, size: int | None) -> bytes:
    return _head_bytes(
        reply.status, reply.content_type, size, reply.headers, keep=head.keep_alive, chunked=head.is_http_1_1
    )


def _head_bytes(
    status: int,
    content_type: str,
    size: int | None,
    headers: list[tuple[str, str]],
    *,
    keep: bool,
    chunked: bool = True,
) -> bytes:
    lines = [_STATUS_LINES[status], f"content-type: {content_type}\r\n"]
    if size is not None:
        lines.append(f"content-length: {size}\r\n")
    elif chunked:
        lines.append("transfer-encoding: chunked\r\n")
    lines += [f"{name}: {value}\r\n" for name, value in headers]
    lines.append("\r\n" if keep else "connection: close\r\n\r\n")
    return "".join(lines).encode("latin-1")


_BACKLOG_CONNECTIONS = 1024  # connections queued by the kernel before they are accepted


class Emulator:
    """The APIs of OpenAI, Anthropic and Gemini, or that of one host, on a loopback address, offline.

    ``with Emulator(latency=0.05) as emulator: …`` serves on a separate thread until the block ends. The port
    is open as soon as the object exists.

    Args:
        host: a loopback address.
        port: 0 selects a free one.
        ledger_file: see :class:`~smartbatch.emulator.ledger.Ledger`.
        settings: see :class:`~smartbatch.emulator.settings.EmulatorSettings`.

    Attributes:
        ledger: every request, and every line of a batch that has run.
        handler: answers the requests; can be replaced before the start.

    Raises:
        ConfigError: a setting is out of range, no dialect has the name, the port is in use, or the address is
            not loopback.
    """

    ledger: Ledger
    handler: RequestHandler

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        ledger_file: str | Path | None = None,
        **settings: Unpack[EmulatorParams],
    ) -> None:
        checked = EmulatorSettings(**EmulatorSettings.check_names(settings))
        self._host = loopback(host)
        self._socket = _listen(self._host, port)
        self.port: int = self._socket.getsockname()[1]
        try:
            self.ledger = Ledger(ledger_file)
            self.handler = RequestHandler(checked, self.ledger)
        except ConfigError:
            self._socket.close()
            raise
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopped = False

    @property
    def url(self) -> str:
        """The server's address, for ``ANTHROPIC_BASE_URL`` and ``GOOGLE_GEMINI_BASE_URL``."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}"

    @property
    def base_url(self) -> str:
        """The address for ``OPENAI_BASE_URL``, or for the variable of the emulated host."""
        dialect = self.settings.dialect
        return f"{self.url}{'/v1' if dialect is None else dialect_named(dialect).path}"

    @property
    def settings(self) -> EmulatorSettings:
        return self.handler.settings

    def configure(self, **changes: Unpack[EmulatorParams]) -> None:
        """Change settings while serving. Requests in progress keep the old ones.

        Raises:
            ConfigError: a name is unknown or a value out of range; nothing is changed.
        """
        self.handler.configure(**changes)

    def reset(self) -> None:
        """Delete the ledger, files and batches, and restart limits, faults and indexes."""
        self.handler.reset()

    def __enter__(self) -> Emulator:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> Emulator:
        """Start serving on a separate thread. A second call has no effect.

        Raises:
            ConfigError: the emulator was stopped before.
        """
        if self._stopped:
            raise ConfigError("this emulator was stopped and cannot be started again; create a new one")
        if self._thread is None:
            self._loop = asyncio.new_event_loop()
            self._end = self._loop.create_future()
            self._thread = threading.Thread(
                target=self._run, args=(self._loop, self._end), name="smartbatch-emulator", daemon=True
            )
            self._thread.start()
        return self

    def stop(self) -> None:
        """Close every connection and the port. Can be called more than once."""
        if self._stopped:
            return
        self._stopped = True
        if self._thread is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(_finish, self._end)
            self._thread.join()
        self._socket.close()
        self.ledger.end()

    def serve(self, ready: Callable[[], object] = lambda: None) -> None:
        """Serve on the current thread, the main one, until SIGINT or SIGTERM, then stop.

        Args:
            ready: called once the signal handlers are installed.
        """
        loop = asyncio.new_event_loop()
        end = loop.create_future()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, _finish, end)
        try:
            ready()
            self._run(loop, end)
        finally:
            self.stop()

    def _run(self, loop: asyncio.AbstractEventLoop, end: asyncio.Future[None]) -> None:
        sender = WebhookSender(self.handler.backend, self.handler.signing_keys, lambda: self.settings)
        self.handler.backend.on_callback = sender.start
        if self.settings.batch_webhook_url is not None:
            sender.start()
        try:
            loop.run_until_complete(self._serve_until(loop, end))
        finally:
            loop.close()
            sender.stop()

    async def _serve_until(self, loop: asyncio.AbstractEventLoop, end: asyncio.Future[None]) -> None:
        connections: set[ServerConnection] = set()
        server = await loop.create_server(
            lambda: ServerConnection(self.handler, loop, connections),
            sock=self._socket,
            backlog=_BACKLOG_CONNECTIONS,
        )
        await end
        server.close()
        for connection in tuple(connections):
            connection.abort()
        turn = loop.create_future()  # one more iteration, which closes the connections
        loop.call_soon(_finish, turn)
        await turn


def _finish(end: asyncio.Future[None]) -> None:
    if not end.done():
        end.set_result(None)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if not 0 <= port <= 65535:
        raise ConfigError(f"port {port} does not exist; use 1 to 65535, or 0 for a free one")
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG_CONNECTIONS)
    except OSError as error:
        raise ConfigError(
            f"port {port} on {host}: {error.strerror}; name another port, or 0 for a free one"
        ) from error
