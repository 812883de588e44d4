"""Connections that apply one deadline to all reads and writes, their pool, and their errors."""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import os
import queue
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from urllib3 import PoolManager, ProxyManager
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ClosedPoolError, EmptyPoolError, HTTPError, SSLError
from urllib3.util import Url

from smartbatch._clock import RealClock
from smartbatch._fork import identity
from smartbatch.errors import ErrorKind, ProviderError

# progress of a call; from ``receive`` on the provider has the whole request
Step: TypeAlias = Literal["connect", "send", "receive"]

_NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL", "HTTP_REQUEST")


def failure(error: Exception, step: Step, place: str, *, late: bool, closed: bool = False) -> ProviderError:
    """Convert an exception of ``urllib3``, ``http.client``, ``ssl`` or the operating system.

    Args:
        error: the exception.
        step: the progress of the call; from ``receive`` on, it may have been executed and billed.
        place: host and port.
        late: the call's deadline has passed.
        closed: the provider was closed during the call.
    """
    kind, code, text = _meaning(error, step, place)
    if closed:
        kind, code, text = ErrorKind.NETWORK_ERROR, "closed", "the provider was closed during the call"
    elif late and kind is ErrorKind.NETWORK_ERROR:
        kind, code, text = ErrorKind.TIMEOUT, "deadline", f"the call to {place} took longer than its timeout"
    return ProviderError(text, kind=kind, code=code, maybe_billed=step == "receive")


def _meaning(error: Exception, step: Step, place: str) -> tuple[ErrorKind, str, str]:
    """Return kind, code and text. Specific classes come first, because most derive from ``OSError``."""
    network = ErrorKind.NETWORK_ERROR
    if isinstance(error, EmptyPoolError):
        return network, "pool", "no connection was free in time; open() the provider for more workers"
    if isinstance(error, ClosedPoolError):
        return network, "closed", "the provider is closed; open() it again before calling"
    if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return network, "cut", f"{place} closed the connection"
    if isinstance(error, (ssl.SSLError, SSLError, ssl.CertificateError)):
        if step != "connect":
            return network, "tls", f"the TLS connection to {place} failed"
        reason = getattr(error, "verify_message", "") or getattr(error, "reason", "") or "handshake failed"
        if reason in _NOT_TLS:
            text = f"{place} does not use TLS; check the base URL, or try http:// in it. Nothing was sent"
            return ErrorKind.CLIENT_ERROR, "tls", text
        return ErrorKind.CLIENT_ERROR, "tls", f"TLS to {place} is not trusted ({reason}); nothing was sent"
    if isinstance(error, socket.gaierror):
        return network, "dns", f"the name of {place} cannot be resolved; check the base URL"
    if isinstance(error, TimeoutError):
        return network, "connect_timeout", f"{place} did not accept a connection in time"
    if isinstance(error, ConnectionRefusedError):
        return network, "refused", f"{place} refused the connection; check base URL and port"
    if isinstance(error, http.client.IncompleteRead):
        return network, "truncated", f"the answer from {place} is incomplete"
    if isinstance(error, http.client.RemoteDisconnected):
        return network, "cut", f"{place} closed the connection without an answer"
    if isinstance(error, OSError) and str(error).startswith("Tunnel connection failed"):
        if "407" in str(error)[:32]:
            return ErrorKind.CLIENT_ERROR, "proxy", "the proxy rejected the credentials; check HTTPS_PROXY"
        return network, "proxy", "the proxy did not open a tunnel"
    if isinstance(error, (http.client.HTTPException, HTTPError)):
        return ErrorKind.INVALID_RESPONSE, "not_http", f"{place} does not answer in HTTP; check the base URL"
    if isinstance(error, (OSError, ValueError)):  # ValueError: read from a socket that another thread closed
        return network, "cut", f"the connection to {place} broke ({type(error).__name__})"
    return ErrorKind.UNKNOWN, "unknown", f"the call to {place} failed ({type(error).__name__})"


IDLE_SECONDS = 60.0
"""Servers, gateways and address translation drop idle connections after about this time. Some do so silently,
which only a failed call would reveal.
"""

_TIMEOUT_TOLERANCE_SECONDS = 0.01
_TIMEOUT_TOLERANCE_SHARE = 1 / 500
"""A timeout may be wrong by this many seconds or this fraction of the remaining time, whichever is more (1.2
s of ten minutes). A new timeout includes half of this tolerance, so that the next call can keep it.
"""

_PROBES = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))

# socket options: no delay, and probes that detect a silently dropped connection in about 60 s
_KEEP_ALIVE = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *((socket.IPPROTO_TCP, getattr(socket, name), n) for name, n in _PROBES if hasattr(socket, name)),
]

_STALE_LOOKUP = 30.0  # seconds after which a hanging lookup is no longer shared; the resolver may work again

# lookups in progress by process, host and port; a forked child has none of the parent's threads
_lookups: dict[tuple[tuple[int, bool], str, int | None], _Lookup] = {}


def seconds_left(deadline: float) -> float:
    """Return the seconds until ``deadline`` (monotonic time); raise ``TimeoutError`` if it has passed."""
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise TimeoutError("the call's deadline has passed")
    return remaining


if TYPE_CHECKING:
    _Plain: TypeAlias = socket.socket
    _Tls: TypeAlias = ssl.SSLSocket
else:  # green threads have their own socket classes, which may not be installed yet
    _Plain = _Tls = object


class PlainSocket(_Plain):
    """A socket that applies one deadline (monotonic seconds) to all reads and writes.

    :func:`_over` combines it with the socket class in use when a connection is made.
    """

    deadline = 0.0

    def recv(self, *args: Any) -> bytes:
        _arm(self)
        return super().recv(*args)

    def recv_into(self, *args: Any) -> int:
        _arm(self)
        return super().recv_into(*args)

    def sendall(self, data: Any, *args: Any) -> None:
        _arm(self)
        super().sendall(data, *args)


class _TlsSocket(_Tls):
    """The TLS variant, which reads with ``read`` and writes with ``send``."""

    deadline = 0.0

    def read(self, len: int = 1024, buffer: Any = None) -> Any:
        _arm(self)
        return super().read(len, buffer)

    def send(self, data: Any, flags: int = 0, **more: Any) -> int:
        _arm(self)
        return super().send(data, flags, **more)

    def sendall(self, data: Any, flags: int = 0) -> None:
        _arm(self)  # green threads read the timeout once, at the start
        return super().sendall(data, flags)


def _arm(sock: Any) -> None:
    """Set the timeout of a socket's next read or write to its deadline, or slightly later.

    A timeout that is nearly right is kept, because setting one is a system call that releases the
    interpreter lock.
    """
    left = seconds_left(sock.deadline)
    nearly = max(_TIMEOUT_TOLERANCE_SECONDS, left * _TIMEOUT_TOLERANCE_SHARE)
    at_hand = sock.gettimeout()
    if at_hand is None or not 0 <= at_hand - left < nearly:
        sock.settimeout(left + nearly / 2)


@lru_cache(maxsize=8)
def _over(deadline: Any, base: Any) -> Any:
    """Combine the socket class ``base`` with the reads and writes of ``deadline``."""
    return type(deadline.__name__, (deadline, base), {})


class Connection(HTTPConnection):
    """A connection that is established within the deadline of the call that uses it."""

    pool: ConnectionPool  # receives the connection after the call
    deadline = 0.0  # of the call, monotonic seconds
    idle_since = 0.0  # when it was returned, by the pool's clock
    step: Step = "connect"  # progress of the call
    dialling: socket.socket | None = None  # socket of the address being tried
    is_cut = False  # another thread ended the call
    _watch: tuple[socket.socket, Callable[[int], object]] | None = None

    @property
    def is_connected(self) -> bool:
        """False if the server closed the connection or sent unrequested data."""
        sock = self.sock
        if sock is None:
            return False
        if not hasattr(select, "poll"):
            return super().is_connected
        if self._watch is None or self._watch[0] is not sock:
            poll = select.poll()
            poll.register(sock, select.POLLIN)
            self._watch = sock, poll.poll
        return not self._watch[1](0)

    def cut(self) -> None:
        """End the call that another thread makes on this connection."""
        self.is_cut = True
        for sock in (self.sock, self.dialling):
            if sock is not None:
                with contextlib.suppress(OSError):
                    # Not SSLSocket.shutdown: it frees the TLS object that the reader uses.
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def dial(self) -> None:
        """Connect within the call's deadline, through the proxy's tunnel if there is one."""
        pool = self.pool
        self.timeout = min(pool.connect_timeout, seconds_left(self.deadline))
        if pool.proxy is not None and pool.scheme == "https":
            host = f"[{pool.host}]" if ":" in pool.host else pool.host
            self.set_tunnel(host, pool.port, pool.proxy_headers)
        self.connect()
        if pool.closed or self.is_cut:
            raise ConnectionAbortedError("closed while connecting")

    def give_back(self, *, reusable: bool) -> None:
        self.pool.put(self, reusable=reusable)

    def meaning_of(self, error: Exception, *, ended: bool = False) -> ProviderError:
        """Convert a network exception. ``ended`` means that the caller itself ended the call."""
        late = time.monotonic() >= self.deadline
        found = failure(error, self.step, self.pool.place, late=late, closed=ended or self.pool.closed)
        if not self.pool.reuse:  # after connecting, the outcome is unknown
            found.maybe_billed = self.step != "connect"
        return found

    def _new_conn(self) -> socket.socket:
        error: OSError = OSError("the name has no address")
        until = min(self.deadline, time.monotonic() + self.pool.connect_timeout)
        for family, kind, protocol, _, address in _resolve(self._dns_host, self.port, until):
            sock: PlainSocket
            sock = self.dialling = _over(PlainSocket, socket.socket)(family, kind, protocol)
            sock.deadline = self.deadline
            try:
                for option in self.socket_options or ():
                    sock.setsockopt(*option)
                sock.settimeout(min(self.pool.connect_timeout, seconds_left(self.deadline)))
                sock.connect(address)
                return sock
            except OSError as refused:
                error = refused
                sock.close()
        raise error


class _TlsConnection(Connection, HTTPSConnection):
    pass


class ConnectionPool(HTTPConnectionPool):
    """A limited number of connections to one server. ``urllib3`` manages the queue, TLS and proxies.

    ``close`` closes idle connections only; those in use are closed when they are returned.
    """

    ConnectionCls = Connection
    place: str  # host and port, for error texts
    connect_timeout: float  # maximum seconds until an address answers
    reuse: bool  # keep connections for further calls; see :class:`Transport`
    now: Callable[[], float]  # monotonic seconds, for the age of idle connections
    closed = False  # calls in progress were ended

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._used: set[Connection] = set()
        self._next_sweep = 0.0

    def take(self, timeout: float) -> Connection:
        """Take a connection for a call of at most ``timeout`` seconds; fails if none becomes free in time."""
        deadline = time.monotonic() + timeout
        self._sweep()
        try:
            connection: Connection = self._get_conn(timeout=max(0.0, timeout))  # type: ignore[assignment]
        except (EmptyPoolError, ClosedPoolError) as error:
            raise failure(error, "connect", self.place, late=timeout <= 0) from None
        if connection.sock is not None and self._is_stale(connection):
            connection.close()
        connection.pool = self
        connection.deadline = deadline
        connection.step = "connect"
        self._used.add(connection)
        return connection

    def put(self, connection: Connection, *, reusable: bool) -> None:
        if reusable and self.reuse:
            connection.idle_since = self.now()
        else:
            connection.close()
        self._put_conn(connection)

    def cut(self) -> None:
        """Close idle connections and end the calls on those in use."""
        self.closed = True
        for connection in list(self._used):  # a copy: a call may be adding itself
            connection.cut()
        self.close()

    def forget(self) -> None:
        """In a forked child, close the inherited descriptors without sending anything."""
        for connection in self._used:
            for sock in (connection.sock, connection.dialling):
                descriptor = sock.detach() if sock is not None else -1
                if descriptor >= 0:
                    os.close(descriptor)
        if self.pool is not None:
            # The pool's finalizer empties this queue at exit, but a thread of the parent may hold the queue's
            # lock.
            self.pool.__init__()  # type: ignore[misc]

    def _is_stale(self, connection: Connection) -> bool:
        return self.now() - connection.idle_since >= IDLE_SECONDS

    def _sweep(self) -> None:
        """Close unused connections about once a minute. Connections returned last are taken first, so others
        may never be checked otherwise.
        """
        if self.now() < self._next_sweep or self.pool is None:
            return
        self._next_sweep = self.now() + IDLE_SECONDS
        idle: list[Any] = []
        with contextlib.suppress(queue.Empty):
            while True:
                idle.append(self.pool.get(block=False))
        for connection in reversed(idle):  # keeps the order
            if connection is not None and connection.sock is not None and self._is_stale(connection):
                connection.close()
            self.pool.put(connection)


class _TlsPool(ConnectionPool, HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


def open_pool(
    url: Url,
    workers: int,
    proxy: tuple[str | None, dict[str, str]],
    *,
    connect_timeout: float,
    reuse: bool,
    now: Callable[[], float],
) -> ConnectionPool:
    """``proxy`` comes from :func:`find_proxy <smartbatch.providers.http.transport.find_proxy>`. Reading the
    certificates for TLS takes about 30 ms.
    """
    settings: dict[str, Any] = {
        "maxsize": workers,
        "block": True,
        "retries": False,
        "socket_options": _KEEP_ALIVE,
    }
    if url.scheme == "https":
        # The system's certificates, or those in SSL_CERT_FILE or SSL_CERT_DIR.
        settings["ssl_context"] = context = ssl.create_default_context()
        native: Any = context.sslsocket_class
        context.sslsocket_class = _over(_TlsSocket, native)
    address, headers = proxy
    manager = (
        ProxyManager(address, proxy_headers=headers, num_pools=1, **settings)
        if address
        else PoolManager(num_pools=1, **settings)
    )
    manager.pool_classes_by_scheme = {"http": ConnectionPool, "https": _TlsPool}
    pool = cast(ConnectionPool, manager.connection_from_host(url.host, url.port, url.scheme))
    pool.place, pool.connect_timeout, pool.reuse, pool.now = url.netloc or "", connect_timeout, reuse, now
    return pool


def _resolve(host: str, port: int | None, deadline: float) -> list[Any]:
    """Resolve ``host`` with ``socket.getaddrinfo``; fails if the deadline passes.

    The lookup runs on a thread that may outlast the call. Calls for the same name share the lookup, so a
    hanging resolver occupies one thread, not one per call.
    """
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return _addresses(host, port)
    key = identity(), host, port
    lookup = _lookups.get(key)
    if lookup is None or time.monotonic() - lookup.began > _STALE_LOOKUP:
        mine = _lookups[key] = _Lookup()
        threading.Thread(target=mine.run, args=key, name="smartbatch-resolver", daemon=True).start()
        lookup = mine
    if not RealClock.acquire(lookup.pending, max(0.0, deadline - time.monotonic())):
        raise socket.gaierror(socket.EAI_AGAIN, "the name was not resolved in time")
    lookup.pending.release()
    if lookup.error is not None:
        # each call raises its own error, because a traceback is added to it
        raise type(lookup.error)(*lookup.error.args)
    return lookup.found


class _Lookup:
    """One lookup; ``pending`` is locked until it finishes."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.found: list[Any] = []
        self.error: Exception | None = None
        self.pending = threading.Lock()
        self.pending.acquire(blocking=False)

    def run(self, owner: tuple[int, bool], host: str, port: int | None) -> None:
        try:
            self.found = _addresses(host, port)
        except Exception as error:
            self.error = (
                error if isinstance(error, OSError) else socket.gaierror(socket.EAI_NONAME, "no name")
            )
        finally:
            if _lookups.get((owner, host, port)) is self:
                del _lookups[owner, host, port]
            self.pending.release()


def _addresses(host: str, port: int | None) -> list[Any]:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
