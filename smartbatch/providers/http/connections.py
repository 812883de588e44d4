"""Connections whose every read and write ends at one deadline, and the proxy they go through."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import ssl
import time
import urllib.parse
import urllib.request
from typing import Any, Literal, TypeAlias

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.util import Url, make_headers, parse_url

from smartbatch.errors import ConfigError

__all__ = [
    "KEEP_ALIVE",
    "Connection",
    "PlainSocket",
    "Step",
    "TlsConnection",
    "TlsSocket",
    "find_proxy",
    "is_loopback",
    "seconds_left",
]

Step: TypeAlias = Literal["connect", "send", "receive"]
"""How far a call came; from ``receive`` on the provider has the whole request."""


_PROBES = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))

KEEP_ALIVE = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *((socket.IPPROTO_TCP, getattr(socket, name), n) for name, n in _PROBES if hasattr(socket, name)),
]
"""Socket options: no delay, and probes that find a silently dropped connection in about 60 s."""


def seconds_left(deadline: float) -> float:
    """Return the seconds until ``deadline``, in monotonic time.

    Raises:
        TimeoutError: when it is over.
    """
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


class TlsSocket(ssl.SSLSocket):
    """The same over TLS, where everything ends in ``read`` and ``send``."""

    deadline = 0.0

    def read(self, len: int = 1024, buffer: Any = None) -> Any:
        self.settimeout(seconds_left(self.deadline))
        return super().read(len, buffer)

    def send(self, data: Any, flags: int = 0) -> int:
        self.settimeout(seconds_left(self.deadline))
        return super().send(data, flags)


class Connection(HTTPConnection):
    """A connection that dials within the deadline of the call it is dialled for.

    Attributes:
        deadline: when the call has to be over, monotonic seconds.
        connect_timeout: most seconds for one address to answer.
        step: how far the call is.
        dialling: the socket of the address that is being tried.
        is_cut: True once another thread ended the call.
        idle_since: when it was put back into the pool, by the pool's clock.
    """

    deadline = 0.0
    connect_timeout = 10.0
    idle_since = 0.0
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
