"""One POST over a pooled ``urllib3`` connection, within a total deadline and a cap on the decoded body.

``urllib3`` owns the pool, connecting, TLS and proxies. The request is written in one piece and the answer is
read by ``http.client``: with its retries, redirects and wrapped bodies ``urlopen`` costs twice the CPU, and
none of them is wanted here. A read time-out starts anew with each byte, so it would let a trickling server
hold a worker for ever; the sockets below know when the whole call has to be over.
"""

from __future__ import annotations

import http.client
import os
import queue
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Any, TypeGuard, cast

from urllib3.connectionpool import HTTPConnectionPool
from urllib3.exceptions import ClosedPoolError, EmptyPoolError
from urllib3.util import Url

from smartbatch.errors import ConfigError, ProviderError
from smartbatch.providers.http.connections import (
    Connection,
    PlainSocket,
    build_pool,
    find_proxy,
    forget,
    seconds_left,
)
from smartbatch.providers.http.cutoff import Cutoff, current
from smartbatch.providers.http.live_reply import LiveReply
from smartbatch.providers.http.network_errors import failure
from smartbatch.providers.http.replies import MAX_BODY, Reply, headers_of, inflate, read_body
from smartbatch.providers.http.spooled_body import SpooledBody

__all__ = ["MAX_BODY", "LiveReply", "Reply", "Transport", "inflate"]

DEFAULT_WORKERS = 64
"""Connections of a transport nobody opened for a number of workers."""


class Transport:
    """POSTs to one base URL over kept-alive connections; safe from any number of threads.

    Args:
        base_url: ``http`` or ``https`` URL, already checked; its path is put before every call's.
        headers: sent with every request, already checked.
        connect_timeout: most seconds for one address to answer.
        max_body: most bytes of a decoded answer.

    Raises:
        ConfigError: for a time or a size that nothing could keep to.
    """

    def __init__(
        self, base_url: Url, headers: Mapping[str, str], *, connect_timeout: float, max_body: int
    ) -> None:
        if not connect_timeout > 0:
            raise ConfigError(f"connect_timeout={connect_timeout!r} must be above 0 seconds")
        if max_body < 1:
            raise ConfigError(f"max_body={max_body!r} must be at least 1 byte")
        self.place = base_url.netloc or ""
        self._url = base_url
        self._head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._connect_timeout = connect_timeout
        self.max_body = max_body
        self._proxy, self._proxy_headers = find_proxy(base_url)
        self._heads: dict[str, bytes] = {}
        self._workers = DEFAULT_WORKERS
        self._lock = threading.Lock()
        self._pool: HTTPConnectionPool | None = None
        self._live: set[Connection] = set()
        self._closed = False

    def open(self, workers: int) -> None:
        """Make room for ``workers`` calls at once; connections are made when they are needed."""
        with self._lock:
            self._closed = False
            outgrown = self._pool if workers > self._workers else None
            self._workers = max(1, workers) if self._pool is None else max(self._workers, workers)
            if outgrown is not None:
                self._pool = None
        if outgrown is not None:
            outgrown.close()

    def close(self) -> None:
        """Close idle connections and cut those in use, so that their calls end at once. Idempotent."""
        with self._lock:
            self._closed = True
            pool, self._pool = self._pool, None
            live, self._live = self._live, set()
        for connection in list(live):  # a call may just be adding itself
            connection.cut()
        if pool is not None:
            pool.close()

    def abandon(self) -> None:
        """Forget what a fork brought along: close our copies of the descriptors, say nothing on the wire.

        No inherited lock is taken: a thread that no longer exists may hold it.
        """
        self._lock = threading.Lock()
        pool, self._pool = self._pool, None
        live, self._live = self._live, set()
        forget(live)
        if pool is not None and pool.pool is not None:
            # The pool's finaliser empties this queue at exit and would wait for its lock.
            queue.LifoQueue.__init__(pool.pool)

    def post(self, path: str, body: bytes, timeout: float) -> Reply:
        """Send ``body`` as JSON to ``path`` and return the whole answer, whatever its status.

        Args:
            path: below the base URL, such as ``/chat/completions``.
            body: encoded JSON.
            timeout: total seconds, from here to the last byte.

        Raises:
            ProviderError: where no whole answer came.
        """
        return self.send(self.head(path), body, timeout)

    def send(self, head: bytes, body: bytes | SpooledBody, timeout: float) -> Reply:
        """The same with a head of the caller's: request line and headers, up to ``Content-Length: ``."""
        pool, connection = self._lease(timeout)
        reusable = False
        try:
            reply, reusable = self._exchange(pool, connection, head, body)
            return reply
        except ProviderError:
            raise
        except Exception as error:
            # Only the system's own errors are chained: the others hold pieces of what the server sent.
            raise self.verdict(error, connection) from (error if isinstance(error, OSError) else None)
        finally:
            self.release(pool, connection, reusable=reusable)

    def begin(
        self, head: bytes, body: bytes | SpooledBody, timeout: float, cutoff: Cutoff | None = None
    ) -> LiveReply:
        """Send a request and return once the answer's head is there; its body is read piece by piece.

        Args:
            head: as for :meth:`send`.
            body: encoded JSON.
            timeout: total seconds, from here to the last byte of the body.
            cutoff: lets another thread end the wait; that of the block the call is in, by default.

        Raises:
            ProviderError: where no answer came.
        """
        cutoff = cutoff or current() or Cutoff()
        pool, connection = self._lease(timeout)
        try:
            cutoff.watch(connection)
            response, whole = self._ask(pool, connection, head, body)
        except BaseException as error:
            cutoff.let_go()
            verdict = self.verdict(error, connection, ended=cutoff.used) if _is_plain(error) else None
            self.release(pool, connection, reusable=False)
            if verdict is None:
                raise
            raise verdict from (error if isinstance(error, OSError) else None)
        cutoff.let_go()
        return LiveReply(self, pool, connection, response, whole, self.max_body)

    def head(self, path: str) -> bytes:
        """Return the head of a request to ``path`` with the headers every request has."""
        return self._heads.get(path) or self._prepare_head(path)

    def head_of(self, method: str, target: str, lines: bytes) -> bytes:
        """Return a head with other headers than the usual.

        Args:
            method: such as ``POST``.
            target: path and query, the base URL's path included.
            lines: encoded header lines, besides host, length and encoding, checked by the caller.
        """
        proxied = ""
        if self._proxy and self._url.scheme == "http":
            target = f"http://{self.place}{target}"
            proxied = "".join(f"{name}: {value}\r\n" for name, value in self._proxy_headers.items())
        first = f"{method} {target} HTTP/1.1\r\nHost: {self.place}\r\nAccept-Encoding: identity\r\n{proxied}"
        return b"%b%bContent-Length: " % (first.encode("latin-1"), lines)

    def leads_to(self, scheme: str, host: str, port: int | None) -> bool:
        """True when this transport's base URL has that origin."""
        own, usual = self._url, {"http": 80, "https": 443}
        mine = (own.scheme, (own.host or "").strip("[]"), own.port or usual.get(own.scheme or ""))
        return mine == (scheme, host.strip("[]"), port or usual.get(scheme))

    def release(self, pool: HTTPConnectionPool, connection: Connection, *, reusable: bool) -> None:
        """Give a connection back; one that is not ``reusable`` is closed first."""
        if not reusable:
            connection.close()
        pool._put_conn(connection)

    def verdict(self, error: Exception, connection: Connection, *, ended: bool = False) -> ProviderError:
        """Return the meaning of an exception on ``connection``; ``ended`` says that its caller cut it."""
        late = time.monotonic() >= connection.deadline
        return failure(error, connection.step, self.place, late=late, closed=self._closed or ended)

    def _lease(self, timeout: float) -> tuple[HTTPConnectionPool, Connection]:
        deadline = time.monotonic() + timeout
        try:
            pool = self._pool or self._make_pool()
            connection = cast(Connection, pool._get_conn(timeout=timeout))
        except (EmptyPoolError, ClosedPoolError) as error:
            raise failure(error, "connect", self.place, late=False) from None
        connection.deadline = deadline
        connection.step = "connect"
        self._live.add(connection)
        return pool, connection

    def _exchange(
        self, pool: HTTPConnectionPool, connection: Connection, head: bytes, body: bytes | SpooledBody
    ) -> tuple[Reply, bool]:
        response, whole = self._ask(pool, connection, head, body)
        try:
            data = read_body(response, self.max_body)
        finally:
            response.close()
        headers = headers_of(response)
        if encoding := headers.get("content-encoding"):
            data = inflate(data, encoding, self.max_body)
        return Reply(response.status, headers, data), whole and not response.will_close

    def _ask(
        self, pool: HTTPConnectionPool, connection: Connection, head: bytes, body: bytes | SpooledBody
    ) -> tuple[http.client.HTTPResponse, bool]:
        """Send a request and read the head of its answer; False when not all of it could be sent."""
        if self._closed:
            raise ConnectionAbortedError("closed before the call began")
        if connection.sock is None:
            self._connect(pool, connection)
        sock = cast(PlainSocket, connection.sock)
        sock.deadline = connection.deadline
        connection.step = "send"
        unsent: OSError | None = None
        try:
            _write(sock, head, body)
        except (BrokenPipeError, ConnectionResetError) as error:
            unsent = error  # the server may have refused early, and its answer says why
        else:
            connection.step = "receive"
        response = http.client.HTTPResponse(sock, method="POST")
        try:
            response.begin()
        except (OSError, http.client.HTTPException):
            response.close()
            if unsent is not None:
                raise unsent from None
            raise
        return response, unsent is None

    def _connect(self, pool: HTTPConnectionPool, connection: Connection) -> None:
        connection.connect_timeout = self._connect_timeout
        connection.timeout = min(self._connect_timeout, seconds_left(connection.deadline))
        if pool.proxy is not None and self._url.scheme == "https":
            pool._prepare_proxy(connection)
        else:
            connection.connect()
        if self._closed or connection.is_cut:
            raise ConnectionAbortedError("closed while connecting")

    def _make_pool(self) -> HTTPConnectionPool:
        with self._lock:
            if self._closed:
                raise ClosedPoolError(cast(Any, None), "closed")
            if self._pool is None:
                self._pool = build_pool(self._url, self._workers, self._proxy, self._proxy_headers)
                _opened.add(self)
            return self._pool

    def _prepare_head(self, path: str) -> bytes:
        target = (self._url.path or "").rstrip("/") + path
        proxied = ""
        if self._proxy and self._url.scheme == "http":
            target = f"http://{self.place}{target}"
            proxied = "".join(f"{name}: {value}\r\n" for name, value in self._proxy_headers.items())
        head = f"POST {target} HTTP/1.1\r\nHost: {self.place}\r\n{self._head}{proxied}Content-Length: "
        self._heads[path] = encoded = head.encode("latin-1")
        return encoded


def _write(sock: PlainSocket, head: bytes, body: bytes | SpooledBody) -> None:
    """Write a request: in one piece, or where its body is on disk, as it is read."""
    if isinstance(body, bytes):
        sock.sendall(b"%b%d\r\n\r\n%b" % (head, len(body), body))
        return
    sock.sendall(b"%b%d\r\n\r\n" % (head, len(body)))
    for piece in body:
        sock.sendall(piece)


def _is_plain(error: BaseException) -> TypeGuard[Exception]:
    """True for what the network raises; our own errors and Ctrl-C go on as they are."""
    return isinstance(error, Exception) and not isinstance(error, ProviderError)


_opened: weakref.WeakSet[Transport] = weakref.WeakSet()


def _abandon_all() -> None:
    for transport in list(_opened):
        transport.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)
