"""Connections of ``urllib3`` whose reads and writes end at one deadline, and the proxy they go through."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import ssl
import time
import urllib.parse
import urllib.request
from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

from urllib3 import PoolManager, ProxyManager
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.util import Url, make_headers, parse_url

from smartbatch.errors import ConfigError

__all__ = [
    "Connection",
    "Step",
    "TlsConnection",
    "build_pool",
    "find_proxy",
    "forget",
    "is_loopback",
    "seconds_left",
    "tls_context",
]

Step: TypeAlias = Literal["connect", "send", "receive"]
"""How far a call came; from ``receive`` on the provider has the whole request."""


def _keepalive() -> list[tuple[int, int, int]]:
    """Socket options: no delay, and probes that find a silently dropped connection in about 60 s."""
    options = [
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    ]
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    return options


def seconds_left(deadline: float) -> float:
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise TimeoutError("the call's deadline is over")
    return remaining


class PlainSocket(socket.socket):
    """A socket whose every read and write ends at one common deadline (monotonic seconds)."""

    deadline = 0.0

    def recv_into(self, *args: Any) -> int:
        self.settimeout(seconds_left(self.deadline))
        return super().recv_into(*args)

    def sendall(self, *args: Any) -> None:
        self.settimeout(seconds_left(self.deadline))
        return super().sendall(*args)


class _TlsSocket(ssl.SSLSocket):
    """The same over TLS, where everything ends in ``read`` and ``send``."""

    deadline = 0.0

    def read(self, len: int = 1024, buffer: Any = None) -> Any:
        self.settimeout(seconds_left(self.deadline))
        return super().read(len, buffer)

    def send(self, data: Any, flags: int = 0) -> int:
        self.settimeout(seconds_left(self.deadline))
        return super().send(data, flags)


class Connection(HTTPConnection):
    """A connection that dials within the deadline of the call it is dialled for."""

    deadline = 0.0
    connect_timeout = 10.0
    step: Step = "connect"
    dialling: socket.socket | None = None
    is_cut = False

    def cut(self) -> None:
        """End what another thread does with this connection: it fails soon."""
        self.is_cut = True
        for sock in (self.sock, self.dialling):
            if sock is not None:
                with contextlib.suppress(OSError):
                    # Not SSLSocket.shutdown, which takes the TLS object from under the reader.
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def _new_conn(self) -> socket.socket:
        error: OSError = OSError("the name has no address")
        for family, kind, protocol, _, address in socket.getaddrinfo(
            self._dns_host, self.port, type=socket.SOCK_STREAM
        ):
            sock = self.dialling = PlainSocket(family, kind, protocol)
            sock.deadline = self.deadline
            try:
                for option in self.socket_options or ():
                    sock.setsockopt(*option)
                sock.settimeout(min(self.connect_timeout, seconds_left(self.deadline)))
                sock.connect(address)
                return sock
            except OSError as refused:
                error = refused
                sock.close()
        raise error


class TlsConnection(Connection, HTTPSConnection):
    """The same, with TLS on top."""


class _PlainPool(HTTPConnectionPool):
    ConnectionCls = Connection


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = TlsConnection


def build_pool(
    url: Url,
    workers: int,
    proxy: str | None,
    proxy_headers: dict[str, str],
    *,
    context: ssl.SSLContext | None = None,
) -> HTTPConnectionPool:
    """Return the pool of ``workers`` connections to ``url``; nothing is sent yet.

    Args:
        context: from :func:`tls_context`, for who makes many pools; a new one by default.
    """
    settings: dict[str, Any] = {
        "maxsize": workers,
        "block": True,
        "retries": False,
        "socket_options": _keepalive(),
    }
    if url.scheme == "https":
        settings["ssl_context"] = context or tls_context()
    manager = (
        ProxyManager(proxy, proxy_headers=proxy_headers, num_pools=1, **settings)
        if proxy
        else PoolManager(num_pools=1, **settings)
    )
    manager.pool_classes_by_scheme = {"http": _PlainPool, "https": _TlsPool}
    return manager.connection_from_host(url.host, url.port, url.scheme)


def tls_context() -> ssl.SSLContext:
    """Return TLS by the system's certificates, or those ``SSL_CERT_FILE`` or ``SSL_CERT_DIR`` name."""
    context = ssl.create_default_context()
    context.sslsocket_class = _TlsSocket
    return context


def forget(connections: Iterable[Connection]) -> None:
    """Close our copies of a parent process's descriptors, and say nothing on the wire."""
    for connection in connections:
        for sock in (connection.sock, connection.dialling):
            descriptor = sock.detach() if sock is not None else -1
            if descriptor >= 0:
                os.close(descriptor)


def find_proxy(url: Url) -> tuple[str | None, dict[str, str]]:
    """Return the proxy the environment names for ``url``, without credentials, and the headers it wants.

    ``HTTP_PROXY``, ``HTTPS_PROXY``, ``ALL_PROXY`` and ``NO_PROXY`` count; loopback never goes through one.

    Raises:
        ConfigError: for a proxy that is not reached over plain HTTP.
    """
    host = (url.host or "").strip("[]")
    proxies = urllib.request.getproxies()
    named = proxies.get(url.scheme or "") or proxies.get("all")
    if not named or is_loopback(host) or urllib.request.proxy_bypass(host):
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
    """True for ``localhost`` and this machine's own addresses."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
