"""One request over a pooled ``urllib3`` connection, within a total deadline and a maximum size of the decoded
body.

``urllib3`` owns the pool, connecting, TLS and proxies. The request is written in one piece and the answer is
read by :mod:`smartbatch.providers.http.response`: with its retries, redirects and wrapped bodies ``urlopen``
takes twice the CPU, and none of them is needed here. A read time-out restarts with every byte, so a call to a
server that sends a byte now and then would never end; the sockets used here know the deadline of the whole
call.
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

DEFAULT_WORKERS = 64  # connections of a transport that was not opened for a number of workers

Body = bytes | SpooledBody

_OURS = (b"host", b"content-length", b"transfer-encoding", b"connection", b"accept-encoding")


class Transport:
    """Requests to one base URL; safe from any number of threads.

    Nothing is created before the first call. Pool and connections belong to the process that made them: a
    forked child makes its own and does not disturb its parent's.

    Args:
        base_url: ``http`` or ``https`` URL, already checked; its path precedes that of every call.
        headers: sent by :meth:`post`, already checked.
        connect_timeout: maximum time for one address to answer.
        max_body: maximum bytes of a decoded answer.
        reuse: False for files and batches. Then a connection serves one call: a kept one may be dead
            unnoticed, and a create must not discover that. Once a byte of a request is written, its outcome
            counts as unknown: ``maybe_billed`` of its error is True.
        now: monotonic seconds, for the age of idle connections.
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
        """Make room for ``workers`` concurrent calls; connections are made when needed.

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
        """Close idle connections and cut those in use, so that their calls end at once. Idempotent."""
        self._closed = True
        pool = self._pool.take()
        if pool is not None:
            pool.cut()

    def after_fork(self) -> None:
        """In a forked child, forget the parent's connections; called by :mod:`smartbatch._fork`."""
        inherited = self._pool.inherited()
        if inherited is not None:
            inherited.forget()

    def post(self, path: str, body: bytes, timeout: float) -> Reply:
        """Send encoded JSON to a path below the base URL; return the complete answer, whatever its status.

        ``timeout`` is the total seconds, from now to the last byte.
        """
        return self.send(self.head(path), body, timeout)

    def begin(self, head: bytes, body: Body, timeout: float, cutoff: Cutoff | None = None) -> LiveReply:
        """Send a request and return once the answer's head has arrived; its body is read piece by piece.

        The deadline applies from now to the last byte of the body. In order:

        1. a connection of the pool, with a wait up to the deadline;
        2. unless it is kept from an earlier call: name, dial and TLS, each within the deadline;
        3. the request is written; if that fails, the answer is still read: a server that refuses early gives
           a reason;
        4. the head of the answer; then :class:`LiveReply` holds the connection.

        An error on the way returns the connection and is turned into its meaning, which depends on the
        progress of the call: only from the third step on it may have been executed.

        Args:
            head: request line and headers, up to ``Content-Length: ``; see :meth:`head_of`.
            body: of the request.
            timeout: total seconds.
            cutoff: lets another thread end the wait.
        """
        return LiveReply(*self._answered(head, body, timeout, cutoff), cap=self._max_body)

    def send(self, head: bytes, body: Body, timeout: float) -> Reply:
        """Like :meth:`begin`, with the complete answer."""
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
            meaning = None  # our own errors and Ctrl-C are passed on
            if isinstance(error, Exception) and not isinstance(error, ProviderError):
                meaning = connection.meaning_of(error, ended=ended)
            connection.give_back(reusable=False)
            if meaning is None:
                raise
            # Only the system's own errors are chained: the others contain data from the server.
            raise meaning from (error if isinstance(error, OSError) else None)
        if cutoff is not None:
            cutoff.let_go()
        return connection, response

    def head(self, path: str) -> bytes:
        """Return the head of a POST of JSON to ``path``; cached per path."""
        head = self._heads.get(path)
        if head is None:
            target = (self._url.path or "").rstrip("/") + path
            lines = self._lines + b"Content-Type: application/json\r\n"
            head = self._heads[path] = self.head_of("POST", target, lines)
        return head

    def head_of(self, method: str, target: str, lines: bytes) -> bytes:
        """Return a head; ``target`` includes the base URL's path, ``lines`` are checked header lines besides
        host, length and encoding.
        """
        proxy, proxy_headers = self._proxy
        proxied = b""
        if proxy and self._url.scheme == "http":
            target = f"http://{self.place}{target}"
            proxied = _encoded(proxy_headers)
        first = f"{method} {target} HTTP/1.1\r\nHost: {self.place}\r\nAccept-Encoding: identity\r\n"
        return b"%b%b%bContent-Length: " % (first.encode("latin-1"), lines, proxied)

    def head_for(self, method: str, url: Url, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """Return the head of a request that a library has prepared, without the headers that this transport
        sets itself.

        Raises:
            ProviderError: it would go to another server than the base URL's, or a header has a line break.
        """
        if not self.leads_to(url.scheme or "", url.host or "", url.port):
            raise ProviderError(
                "the request would go to another server than the base URL", kind=ErrorKind.CLIENT_ERROR
            )
        fields = [(name, value) for name, value in headers if name.lower() not in _OURS]
        lines = b"".join(b"%b: %b\r\n" % field for field in fields)
        if lines.count(b"\n") != len(fields) or lines.count(b"\r") != len(fields) or b"\0" in lines:
            raise ProviderError("a header has a line break in it", kind=ErrorKind.CLIENT_ERROR)
        return self.head_of(method, url.request_uri, lines)

    def leads_to(self, scheme: str, host: str, port: int | None) -> bool:
        """Whether this is the origin of the transport's base URL."""
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
    """Write a request: in one piece or, if its body is on disk, while it is read.

    Returns the error if the connection breaks while writing: the server may have refused early and said why.
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
    """Lets any thread end a call that has no answer yet; later the answer itself is closed."""

    def __init__(self) -> None:
        self.used = False  # whether the call was ended
        self._lock = threading.Lock()
        self._connection: Connection | None = None

    def cut(self) -> None:
        """End the call. A call that has not begun will not begin; one with its head is unaffected."""
        with self._lock:
            self.used = True
            if self._connection is not None:
                self._connection.cut()

    def watch(self, connection: Connection) -> None:
        """Note the connection that the call uses from now on."""
        with self._lock:
            self._connection = connection
            if self.used:
                raise ConnectionAbortedError("ended before the call began")

    def let_go(self) -> None:
        """Forget the connection, which other calls may use from now on."""
        with self._lock:
            if self._connection is not None:
                self._connection.is_cut = False
            self._connection = None


def find_proxy(url: Url) -> tuple[str | None, dict[str, str]]:
    """Return the environment's proxy for ``url``, without credentials, and the headers it needs.

    ``HTTP_PROXY``, ``HTTPS_PROXY``, ``ALL_PROXY`` and ``NO_PROXY`` are used, the last one with hosts and with
    ``host:port``; loopback never uses a proxy.

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
    """Whether a host is ``localhost`` or another address of this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
