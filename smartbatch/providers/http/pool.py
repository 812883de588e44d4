"""The connections of one transport in one process: how many, how long they are kept, who holds which."""

from __future__ import annotations

import os
import queue
import ssl
import time
from collections.abc import Callable
from typing import Any, cast

from attrs import define
from urllib3 import PoolManager, ProxyManager
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ClosedPoolError, EmptyPoolError
from urllib3.util import Url

from smartbatch.errors import ProviderError
from smartbatch.providers.http.connections import (
    KEEP_ALIVE,
    Connection,
    TlsConnection,
    TlsSocket,
    seconds_left,
)
from smartbatch.providers.http.network_errors import failure

__all__ = ["IDLE_SECONDS", "ConnectionPool", "Lease"]

IDLE_SECONDS = 60.0
"""A connection that was idle for so long is closed by us: servers, gateways and address translation drop it
about then, some without a word, and only a failed call would find that out."""


class ConnectionPool:
    """Connections to one server, at most ``workers`` at once; ``urllib3`` owns queue, TLS and proxies.

    Args:
        proxy: from :func:`find_proxy <smartbatch.providers.http.connections.find_proxy>`.
        connect_timeout: most seconds for one address to answer.
        reuse: keep a connection for the next call, see :class:`Transport`.
        now: monotonic seconds, for the age of idle connections.
    """

    def __init__(
        self,
        url: Url,
        workers: int,
        *,
        proxy: tuple[str | None, dict[str, str]],
        connect_timeout: float,
        reuse: bool,
        now: Callable[[], float],
    ) -> None:
        self.closed = False
        self.reuse = reuse
        self.place = url.netloc or ""
        self._connect_timeout = connect_timeout
        self._now = now
        self._next_sweep = now() + IDLE_SECONDS
        self._pool = _urllib3_pool(url, workers, *proxy)
        self._used: set[Connection] = set()

    def lease(self, timeout: float) -> Lease:
        """Return a connection for a call that may take ``timeout`` seconds in all; none in time is an
        error.
        """
        deadline = time.monotonic() + timeout
        self._sweep()
        try:
            connection = self._pool.take(max(0.0, timeout))
        except (EmptyPoolError, ClosedPoolError) as error:
            raise failure(error, "connect", self.place, late=timeout <= 0) from None
        if connection.sock is not None and self._is_stale(connection):
            connection.close()
        connection.deadline = deadline
        connection.step = "connect"
        self._used.add(connection)
        return Lease(connection, self)

    def put(self, connection: Connection, *, reusable: bool) -> None:
        """Take a connection back; one that is not ``reusable`` is closed."""
        if reusable and self.reuse:
            connection.idle_since = self._now()
        else:
            connection.close()
        self._pool.put_back(connection)

    def connect(self, connection: Connection) -> None:
        """Dial, by the proxy's tunnel where there is one, within the deadline of the call."""
        connection.connect_timeout = self._connect_timeout
        connection.timeout = min(self._connect_timeout, seconds_left(connection.deadline))
        self._pool.dial(connection)
        if self.closed or connection.is_cut:
            raise ConnectionAbortedError("closed while connecting")

    def retire(self) -> None:
        """Close idle connections; those in use are closed when they come back."""
        self._pool.close()

    def close(self) -> None:
        """Close idle connections and cut those in use, so that their calls end at once."""
        self.closed = True
        for connection in list(self._used):  # a call may just be adding itself
            connection.cut()
        self._pool.close()

    def forget(self) -> None:
        """In a forked child: close our copies of the parent's descriptors, and say nothing on the wire."""
        for connection in self._used:
            for sock in (connection.sock, connection.dialling):
                descriptor = sock.detach() if sock is not None else -1
                if descriptor >= 0:
                    os.close(descriptor)
        if self._pool.pool is not None:
            # The pool's finaliser empties this queue at exit; a thread of the parent may hold its lock.
            queue.LifoQueue.__init__(self._pool.pool)

    def _is_stale(self, connection: Connection) -> bool:
        return self._now() - connection.idle_since >= IDLE_SECONDS

    def _sweep(self) -> None:
        """Close what nobody uses any more, about once a minute: the last one back is the first one taken, so
        others may never be looked at."""
        if self._now() < self._next_sweep or self._pool.pool is None:
            return
        self._next_sweep = self._now() + IDLE_SECONDS
        idle = self._pool.pool
        with idle.mutex:  # nobody takes a connection meanwhile
            for connection in idle.queue:
                if connection is not None and connection.sock is not None and self._is_stale(connection):
                    connection.close()


@define(eq=False)
class Lease:
    """A connection that one call holds until it gives it back; it knows the call's deadline, and how far
    it is.
    """

    connection: Connection
    pool: ConnectionPool

    def give_back(self, *, reusable: bool) -> None:
        """Others may use the connection next; one that is not ``reusable`` is closed."""
        self.pool.put(self.connection, reusable=reusable)

    def meaning_of(self, error: Exception, *, ended: bool = False) -> ProviderError:
        """Return the meaning of an exception of the network; ``ended`` says that the caller itself cut the
        call.
        """
        connection = self.connection
        late = time.monotonic() >= connection.deadline
        found = failure(error, connection.step, self.pool.place, late=late, closed=ended or self.pool.closed)
        if not self.pool.reuse:  # from the first byte on the outcome counts as unknown
            found.maybe_billed = connection.step != "connect"
        return found


class _PlainPool(HTTPConnectionPool):
    ConnectionCls = Connection

    def take(self, timeout: float) -> Connection:
        return cast(Connection, self._get_conn(timeout=timeout))

    def put_back(self, connection: Connection) -> None:
        self._put_conn(connection)

    def dial(self, connection: Connection) -> None:
        if self.proxy is not None and self.scheme == "https":
            self._prepare_proxy(connection)
        else:
            connection.connect()


class _TlsPool(_PlainPool, HTTPSConnectionPool):
    ConnectionCls = TlsConnection


def _urllib3_pool(url: Url, workers: int, proxy: str | None, proxy_headers: dict[str, str]) -> _PlainPool:
    """The pool of ``workers`` connections; reading the certificates for TLS takes some 30 ms."""
    settings: dict[str, Any] = {
        "maxsize": workers,
        "block": True,
        "retries": False,
        "socket_options": KEEP_ALIVE,
    }
    if url.scheme == "https":
        # The system's certificates, or those that SSL_CERT_FILE or SSL_CERT_DIR name.
        settings["ssl_context"] = context = ssl.create_default_context()
        context.sslsocket_class = TlsSocket
    manager = (
        ProxyManager(proxy, proxy_headers=proxy_headers, num_pools=1, **settings)
        if proxy
        else PoolManager(num_pools=1, **settings)
    )
    manager.pool_classes_by_scheme = {"http": _PlainPool, "https": _TlsPool}
    return cast(_PlainPool, manager.connection_from_host(url.host, url.port, url.scheme))
