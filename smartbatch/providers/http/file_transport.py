"""Calls to a server's files and batches over ``requests``: seldom, large, each on a connection of its own.

``requests`` prepares and sends what a call says. What it does besides is off: retries, redirects, cookies,
``.netrc`` and its own certificates. Below it are the sockets of the real-time path, so that every call has
one total deadline, from looking up the name to the last byte, and goes through the same proxy. A connection
serves one call only: a create must not meet one that the server has just closed, and the next poll is half a
minute away anyway. So there is nothing kept alive, and nothing a fork could share, but calls under way.

Importing this module imports ``requests``; adapters do so when a batch is first asked for.
"""

from __future__ import annotations

import http.client
import os
import queue
import ssl
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

import requests
from attrs import define
from requests.adapters import HTTPAdapter
from urllib3.connectionpool import HTTPConnectionPool
from urllib3.exceptions import HTTPError
from urllib3.util import Url

from smartbatch.errors import ProviderError
from smartbatch.providers.http.connections import (
    Connection,
    TlsConnection,
    build_pool,
    find_proxy,
    forget,
    seconds_left,
    tls_context,
)
from smartbatch.providers.http.network_errors import failure
from smartbatch.providers.http.replies import MAX_BODY, Reply, inflated, too_large
from smartbatch.providers.http.uploads import Upload

__all__ = ["FileTransport", "Incoming"]

_PIECE = 65536


class FileTransport:
    """Calls to one base URL; safe from any number of threads.

    Args:
        base_url: ``http`` or ``https``, already checked; its path is put before every call's.
        headers: sent with every call, already checked; a ``Content-Type`` among them is left out.
        connect_timeout: most seconds for one address to answer.
        max_body: most bytes of a decoded answer that is read whole.
    """

    def __init__(
        self, base_url: Url, headers: Mapping[str, str], *, connect_timeout: float, max_body: int = MAX_BODY
    ) -> None:
        self.place = base_url.netloc or ""
        self._url = base_url
        self._headers = {name: text for name, text in headers.items() if name.lower() != "content-type"}
        self._connect_timeout = connect_timeout
        self._max_body = max_body
        self._proxy, self._proxy_headers = find_proxy(base_url)
        self._context: ssl.SSLContext | None = None
        self._lock = threading.Lock()
        self._live: set[_CallConnection] = set()
        self._closed = False
        _made.add(self)

    def call(
        self,
        method: str,
        path: str,
        timeout: float,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | Upload | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Make one call and return the whole answer, whatever its status.

        Args:
            method: such as ``GET``.
            path: below the base URL; ids in it are checked by the caller.
            timeout: total seconds, from here to the last byte.
            query: what comes after the question mark.
            body: JSON, or an upload, which is read as it is sent.
            headers: for this call only.

        Raises:
            ProviderError: where no whole answer came; ``maybe_billed`` is False when nothing was written.
        """
        with self.begin(method, path, timeout, query=query, body=body, headers=headers) as incoming:
            return incoming.whole(self._max_body)

    @contextmanager
    def begin(
        self,
        method: str,
        path: str,
        timeout: float,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | Upload | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[Incoming]:
        """The same, but the answer's body is read by the caller, within the same deadline.

        Raises:
            ProviderError: as :meth:`call`; errors of the reading too.
        """
        target = (self._url.url or "").rstrip("/") + path + (f"?{urlencode(query)}" if query else "")
        kind = {} if body is None else {"Content-Type": getattr(body, "content_type", "application/json")}
        prepared = requests.Request(method, target, headers={**self._headers, **kind, **(headers or {})})
        call = self._prepare(time.monotonic() + timeout)
        response: requests.Response | None = None
        with requests.Session() as session:
            session.trust_env = False
            session.headers.clear()
            session.headers["Connection"] = "close"
            session.mount(f"{self._url.scheme}://", _OneCall(call))
            request = session.prepare_request(prepared)
            if body is not None:
                request.prepare_body(body, None)
            try:
                response = session.send(
                    request, stream=True, timeout=max(timeout, 1e-3), allow_redirects=False
                )
                yield Incoming(
                    response.status_code,
                    {name.lower(): value for name, value in response.headers.items()},
                    response,
                )
            except ProviderError:
                raise
            except (OSError, HTTPError, http.client.HTTPException) as error:
                raise self._verdict(error, call) from None  # its text may hold what the server sent
            finally:
                self._live.discard(call)
                if response is not None:
                    response.close()
                call.close()

    def close(self) -> None:
        """Cut the calls under way, so that they end at once, and refuse new ones. May be called twice."""
        with self._lock:
            self._closed = True
            live, self._live = self._live, set()
        for connection in live:
            connection.cut()

    def abandon(self) -> None:
        """Forget the calls of a parent process; no inherited lock is taken, nothing is said on the wire."""
        self._lock = threading.Lock()
        live, self._live = self._live, set()
        forget(live)
        for connection in live:
            if connection.home.pool is not None:
                # The pool's finaliser empties this queue at exit and would wait for its lock.
                queue.LifoQueue.__init__(connection.home.pool)

    def _prepare(self, deadline: float) -> _CallConnection:
        if self._url.scheme == "https" and self._context is None:
            self._context = tls_context()  # reading the certificates takes some 30 ms
        pool = build_pool(self._url, 1, self._proxy, self._proxy_headers, context=self._context)
        pool.ConnectionCls = _TlsCall if self._url.scheme == "https" else _CallConnection
        call = pool._get_conn()
        assert isinstance(call, _CallConnection)
        call.deadline, call.connect_timeout, call.home = deadline, self._connect_timeout, pool
        pool._put_conn(call)
        with self._lock:
            if self._closed:
                raise failure(ConnectionAbortedError(), "connect", self.place, late=False, closed=True)
            self._live.add(call)
        return call

    def _verdict(self, error: Exception, call: _CallConnection) -> ProviderError:
        if isinstance(call.trouble, ProviderError):
            return call.trouble
        late = time.monotonic() >= call.deadline
        meaning = failure(
            call.trouble or _inner(error), call.step, self.place, late=late, closed=self._closed
        )
        meaning.maybe_billed = call.step != "connect"
        return meaning


@define
class Incoming:
    """An answer whose body is still to be read.

    Attributes:
        status: the HTTP status.
        headers: by lower-case name.
    """

    status: int
    headers: Mapping[str, str]
    _response: requests.Response

    def pieces(self, cap: int) -> Iterator[bytes]:
        """Yield the decoded body as it comes, in pieces of at most 64 kB.

        Args:
            cap: most bytes of it; pieces may be empty.

        Raises:
            ProviderError: for a body that is compressed in an unknown way or larger than ``cap``.
            Exception: of the network, which :meth:`Control.begin` gives a meaning.
        """
        size = 0
        for piece in inflated(self._raw(), self.headers.get("content-encoding", "")):
            size += len(piece)
            if size > cap:
                raise too_large(cap)
            yield piece

    def whole(self, cap: int) -> Reply:
        """Return the answer with its body; that of a refusal may be cut, and is empty then."""
        try:
            return Reply(self.status, self.headers, b"".join(self.pieces(cap)))
        except HTTPError:
            if self.status < 400:
                raise
            return Reply(self.status, self.headers, b"")

    def _raw(self) -> Iterator[bytes]:
        """What has arrived, without waiting for more; a body that is shorter than promised raises."""
        while piece := self._response.raw.read1(_PIECE, decode_content=False):
            yield piece


class _CallConnection(Connection):
    """A connection for one call, which keeps how far it came and what it met.

    Attributes:
        trouble: the first exception, before ``urllib3`` and ``requests`` wrapped it.
        home: the pool of this one connection.
    """

    trouble: Exception | None = None
    home: HTTPConnectionPool
    _dialling_out = False

    def connect(self) -> None:
        self._dialling_out = True
        try:
            super().connect()
            sock: Any = self.sock
            sock.deadline = self.deadline
        except Exception as error:
            self.trouble = error
            raise
        finally:
            self._dialling_out = False
        if self.is_cut:
            raise ConnectionAbortedError("closed while connecting")

    def send(self, data: Any) -> None:
        if self.sock is None and not self._dialling_out:
            self.connect()
        if not self._dialling_out:
            seconds_left(self.deadline)
            self.step = "send"
        try:
            super().send(data)
        except Exception as error:
            self.trouble = error
            raise

    def getresponse(self) -> Any:
        if self.step == "send" and self.trouble is None:
            self.step = "receive"
        try:
            response = super().getresponse()
        except Exception as error:
            self.trouble = self.trouble or error
            raise
        self.trouble = None  # the server refused before it had read all, and says why
        return response


class _TlsCall(_CallConnection, TlsConnection):
    """The same with TLS on top."""


class _OneCall(HTTPAdapter):
    """Sends one request, once, over a connection that was prepared for it."""

    def __init__(self, call: _CallConnection) -> None:
        super().__init__(pool_connections=1, pool_maxsize=1, max_retries=0)
        self._pool = call.home

    def get_connection_with_tls_context(self, *_: Any, **__: Any) -> HTTPConnectionPool:
        return self._pool

    def cert_verify(self, *_: Any, **__: Any) -> None:
        """The pool has its certificates: the system's, as in the real-time path."""

    def request_url(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> str:
        if self._pool.proxy is not None and self._pool.scheme == "http":
            return str(request.url)
        return request.path_url


def _inner(error: Exception) -> Exception:
    """Return the exception that ``urllib3`` wrapped while a body was read."""
    while isinstance(error.__cause__, Exception):
        error = error.__cause__
    return error


_made: weakref.WeakSet[FileTransport] = weakref.WeakSet()


def _abandon_all() -> None:
    for control in list(_made):
        control.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)
