"""One request over a pooled ``urllib3`` connection, within a total deadline and a maximum size of the
decoded body.

``urllib3`` manages the pool, connections, TLS and proxies. The request is written in one piece and
:mod:`smartbatch.providers.http.response` reads the answer, because ``urlopen`` needs twice the CPU
time: it supports retries, redirects and wrapped bodies, which are not used here. A read timeout
restarts with every byte, so a server that sends a byte now and then could keep a call open forever;
the sockets used here apply the deadline of the whole call.
"""

from __future__ import annotations

import ipaddress
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from http.client import HTTPException

from urllib3.exceptions import ClosedPoolError
from urllib3.util import Url, make_headers, parse_url

from smartbatch._fork import PerProcess, on_fork
from smartbatch._words import seconds_of
from smartbatch.errors import ConfigError, ErrorKind, ProviderError
from smartbatch.providers.http.content import SpooledBody
from smartbatch.providers.http.pool import Connection, ConnectionPool, PlainSocket, failure, open_pool
from smartbatch.providers.http.replies import MAX_BODY, LiveReply, Reply, read_whole
from smartbatch.providers.http.response import IncomingResponse
from smartbatch.types import Duration

DEFAULT_WORKERS = 64  # connections of a transport on which open() was not called

Body = bytes | SpooledBody

_OURS = (b"host", b"content-length", b"transfer-encoding", b"connection", b"accept-encoding")


class Transport:
    """Requests to one base URL; safe from any number of threads.

    Nothing is created before the first call. Pool and connections belong to the process that created them; a
    forked child creates its own and does not disturb those of its parent.

    Args:
        base_url: a checked ``http`` or ``https`` URL; its path precedes that of every call.
        headers: sent by :meth:`post`, already checked.
        connect_timeout: maximum seconds until an address answers.
        max_body: maximum bytes of a decoded answer.
        reuse: False for files and batches, where each connection serves one call. A kept connection may
            be dead, and the call that discovers it must not be one that creates a batch. Once a byte of a
            request is written, its outcome is unknown, so an error has ``maybe_billed=True``.
        now: returns monotonic seconds, for the age of idle connections.
    """

    def __init__(
        self,
        base_url: Url,
        headers: Mapping[str, str] | None = None,
        *,
        connect_timeout: Duration = 10.0,
        max_body: int = MAX_BODY,
        reuse: bool = True,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        seconds = seconds_of("connect_timeout", connect_timeout)
        if not seconds:
            raise ConfigError(f"connect_timeout={connect_timeout!r} must be above 0 seconds")
        if max_body < 1:
            raise ConfigError(f"max_body={max_body!r} must be at least 1 byte")
        self.place = base_url.netloc or ""
        self._url = base_url
        self._lines = _encoded(headers or {})
        self.connect_timeout = seconds
        self._max_body = max_body
        self._reuse = reuse
        self._now = now
        self._proxy = find_proxy(base_url)
        self._heads: dict[str, bytes] = {}
        self._workers: int | None = None
        self._closed = False
        self._pool = PerProcess(self._make_pool)

    def open(self, workers: int) -> None:
        """Make room for ``workers`` concurrent calls; connections are made on demand.

        If there is room already, no lock is taken.
        """
        if not self._closed and self._workers is not None and workers <= self._workers:
            return
        with self._pool.lock():
            self._closed = False
            if self._workers is None or workers > self._workers:
                self._workers = max(1, workers)
                outgrown = self._pool.take()
                if outgrown is not None:
                    outgrown.close()

    def close(self) -> None:
        """Close idle connections and end the calls on those in use. May be called twice."""
        self._closed = True
        pool = self._pool.take()
        if pool is not None:
            pool.cut()

    def after_fork(self) -> None:
        """Forget the parent's connections; called by :mod:`smartbatch._fork` in the child."""
        inherited = self._pool.inherited()
        if inherited is not None:
            inherited.forget()

    def post(self, path: str, body: bytes, timeout: float) -> Reply:
        """Send encoded JSON to a path below the base URL, within ``timeout`` seconds in total."""
        return self.send(self.head(path), body, timeout)

    def get(self, path: str, timeout: float) -> Reply:
        """Read a path below the base URL, within ``timeout`` seconds in total."""
        target = (self._url.path or "").rstrip("/") + path
        return self.send(self.head_of("GET", target, self._lines), b"", timeout)

    def begin(self, head: bytes, body: Body, timeout: float, cutoff: Cutoff | None = None) -> LiveReply:
        """Send a request and return once the answer's head has arrived; the body is read piece by piece.

        The deadline covers everything up to the last byte of the body. The steps:

        1. Take a connection from the pool, waiting up to the deadline.
        2. If the connection is new, resolve the name, connect and start TLS, each within the deadline.
        3. Write the request. If that fails, the answer is still read, because a server that refuses early
           gives a reason.
        4. Read the head of the answer; then :class:`LiveReply` holds the connection.

        After an error the connection is returned to the pool. What the error means depends on the step: the
        server can only have executed the call from step 3 on.

        Args:
            head: request line and headers, up to ``Content-Length: ``; see :meth:`head_of`.
            body: the request's body.
            timeout: total seconds.
            cutoff: lets another thread end the wait.
        """
        return LiveReply(*self._answered(head, body, timeout, cutoff), cap=self._max_body)

    def send(self, head: bytes, body: Body, timeout: float) -> Reply:
        return read_whole(*self._answered(head, body, timeout, None), cap=self._max_body)

    def _answered(
        self, head: bytes, body: Body, timeout: float, cutoff: Cutoff | None
    ) -> tuple[Connection, IncomingResponse]:
        try:
            connection = self._pool.get().take(timeout)
        except ClosedPoolError as error:
            raise failure(error, "connect", self.place, late=False) from None
        try:
            if cutoff is not None:
                cutoff.watch(connection)
            response = _exchange(connection, head, body)
        except BaseException as error:
            if cutoff is not None:
                cutoff.let_go()
            ended = cutoff is not None and cutoff.used
            meaning = None  # errors of this library and Ctrl-C are passed on
            if isinstance(error, Exception) and not isinstance(error, ProviderError):
                meaning = connection.meaning_of(error, ended=ended)
            connection.give_back(reusable=False)
            if meaning is None:
                raise
            # Only system errors are chained, because the others contain data from the server.
            raise meaning from (error if isinstance(error, OSError) else None)
        if cutoff is not None:
            cutoff.let_go()
        return connection, response

    def head(self, path: str) -> bytes:
        head = self._heads.get(path)
        if head is None:
            target = (self._url.path or "").rstrip("/") + path
            lines = self._lines + b"Content-Type: application/json\r\n"
            head = self._heads[path] = self.head_of("POST", target, lines)
        return head

    def head_of(self, method: str, target: str, lines: bytes) -> bytes:
        """``target`` includes the base URL's path. ``lines`` are checked headers other than host, length
        and encoding.
        """
        proxy, proxy_headers = self._proxy
        proxied = b""
        if proxy and self._url.scheme == "http":
            target = f"http://{self.place}{target}"
            proxied = _encoded(proxy_headers)
        first = f"{method} {target} HTTP/1.1\r\nHost: {self.place}\r\nAccept-Encoding: identity\r\n"
        return b"%b%b%bContent-Length: " % (first.encode("latin-1"), lines, proxied)

    def head_for(self, method: str, url: Url, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """Build the head of a request made by an SDK or ``requests``; the transport sets some headers itself.

        Raises:
            ProviderError: the base URL is on a different server, or a header contains a line break.
        """
        if not self.leads_to(url.scheme or "", url.host or "", url.port):
            raise ProviderError(
                "the request would go to a different server than the base URL's", kind=ErrorKind.CLIENT_ERROR
            )
        fields = [(name, value) for name, value in headers if name.lower() not in _OURS]
        lines = b"".join(b"%b: %b\r\n" % field for field in fields)
        if lines.count(b"\n") != len(fields) or lines.count(b"\r") != len(fields) or b"\0" in lines:
            raise ProviderError("a header contains a line break", kind=ErrorKind.CLIENT_ERROR)
        return self.head_of(method, url.request_uri, lines)

    def leads_to(self, scheme: str, host: str, port: int | None) -> bool:
        """True for the origin of the transport's base URL."""
        own, usual = self._url, {"http": 80, "https": 443}
        mine = (own.scheme, (own.host or "").strip("[]"), own.port or usual.get(own.scheme or ""))
        return mine == (scheme, host.strip("[]"), port or usual.get(scheme))

    def _make_pool(self) -> ConnectionPool:
        if self._closed:
            raise ClosedPoolError(None, "closed")  # type: ignore[arg-type]
        on_fork(self)
        return open_pool(
            self._url,
            self._workers or DEFAULT_WORKERS,
            self._proxy,
            connect_timeout=self.connect_timeout,
            reuse=self._reuse,
            now=self._now,
        )


def _exchange(connection: Connection, head: bytes, body: Body) -> IncomingResponse:
    if connection.pool.closed:
        raise ConnectionAbortedError("closed before the call began")
    if connection.sock is None:
        connection.dial()
    sock: PlainSocket = connection.sock  # type: ignore[assignment]
    sock.deadline = connection.deadline
    unsent = _send(connection, sock, head, body)
    try:
        response = IncomingResponse(sock)
    except (OSError, HTTPException):
        if unsent is not None:
            raise unsent from None
        raise
    if unsent is not None:  # the request is incomplete
        response.reusable = False
    return response


def _send(connection: Connection, sock: PlainSocket, head: bytes, body: Body) -> OSError | None:
    """Write a request in one piece or, if its body is on disk, while the body is read.

    Returns the error if the connection breaks while writing: the server may have refused early and given
    a reason.
    """
    connection.step = "send"
    try:
        if isinstance(body, bytes):
            sock.sendall(b"%b%d\r\n\r\n%b" % (head, len(body), body))
        else:
            sock.sendall(b"%b%d\r\n\r\n" % (head, len(body)))
            for piece in body:
                sock.sendall(piece)
    except (BrokenPipeError, ConnectionResetError) as error:
        return error
    connection.step = "receive"
    return None


def _encoded(headers: Mapping[str, str]) -> bytes:
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("latin-1")


class Cutoff:
    """Lets any thread end a call that has no answer yet."""

    def __init__(self) -> None:
        self.used = False  # the call was ended
        self._lock = threading.Lock()
        self._connection: Connection | None = None

    def cut(self) -> None:
        """End the call, or prevent it from starting. A call whose head has arrived is not affected."""
        with self._lock:
            self.used = True
            if self._connection is not None:
                self._connection.cut()

    def watch(self, connection: Connection) -> None:
        with self._lock:
            self._connection = connection
            if self.used:
                raise ConnectionAbortedError("ended before the call began")

    def let_go(self) -> None:
        """Forget the connection, which may now serve other calls."""
        with self._lock:
            if self._connection is not None:
                self._connection.is_cut = False
            self._connection = None


def find_proxy(url: Url) -> tuple[str | None, dict[str, str]]:
    """Return the environment's proxy for ``url``, without credentials, and the headers it needs.

    ``HTTP_PROXY``, ``HTTPS_PROXY``, ``ALL_PROXY`` and ``NO_PROXY`` are used; ``NO_PROXY`` may contain
    hosts and ``host:port``. Loopback addresses never use a proxy.

    Raises:
        ConfigError: the proxy is not reached over plain HTTP.
    """
    host = (url.host or "").strip("[]")
    proxies = urllib.request.getproxies()
    named = proxies.get(url.scheme or "") or proxies.get("all")
    if not named or is_loopback(host):
        return None, {}
    if any(urllib.request.proxy_bypass(name) for name in (host, url.netloc or host)):
        return None, {}
    proxy = parse_url(named if "://" in named else f"http://{named}")
    if proxy.scheme != "http" or not proxy.host:
        raise ConfigError("the proxy in the environment must be an http:// URL (it may carry https traffic)")
    headers: dict[str, str] = {}
    if proxy.auth:
        headers = dict(make_headers(proxy_basic_auth=urllib.parse.unquote(proxy.auth)))
        headers = {"Proxy-Authorization": headers["proxy-authorization"]}
    return f"http://{proxy.netloc}", headers


def is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
