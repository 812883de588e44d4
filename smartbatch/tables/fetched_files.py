"""Fetches the https URLs in a table into a folder, for providers that do not accept URLs.

A table may come from a stranger, so a URL must not reach this machine or its network: all addresses of its
host must be public, the connection is made to one of the checked addresses, and redirects are not followed.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import ipaddress
import os
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

from attrs import frozen

from smartbatch._clock import RealClock

MAX_BYTES: Final = 50 * 2**20
_CALL_SECONDS: Final = 30.0  # maximum per wait for the network
_TOTAL_SECONDS: Final = 120.0
_READ_BYTES: Final = 1 << 16
_PORT: Final = 443
_IN_TARGET: Final = "/?:@!$&'()*+,;=%-._~[]"  # characters of a path or query that are not escaped (again)
_GONE: Final = (404, 410)
# IPv6 networks whose addresses contain an IPv4 address, which a gateway may reach
_TRANSLATED: Final = tuple(
    map(ipaddress.IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32"))
)


class NotFetched(Exception):
    """A URL cannot be fetched. The message says why, without naming the URL.

    Attributes:
        is_gone: the server has no such file.
    """

    def __init__(self, reason: str, *, is_gone: bool = False) -> None:
        super().__init__(reason)
        self.is_gone = is_gone


def is_public(address: str) -> bool:
    """Whether an IP address belongs to a host on the internet, not to a private or special network."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        elif any(ip in network for network in _TRANSLATED):
            return False
    return ip.is_global and not ip.is_multicast


@frozen
class FetchedFiles:
    """A folder with the files at URLs. A file is fetched once and named after the hash of its URL.

    Attributes:
        is_allowed: whether a connection to an IP address may be made.
    """

    folder: Path
    is_allowed: Callable[[str], bool] = is_public

    def path_of(self, url: str) -> str:
        """Return the path of the file at an https URL, after fetching it if the folder lacks it.

        Raises:
            NotFetched: it cannot be fetched or saved.
        """
        path = self.folder / hashlib.sha256(url.encode("utf-8", "surrogatepass")).hexdigest()[:40]
        if path.exists():
            return str(path)
        try:
            content = self._content(url)
            self.folder.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
            try:
                partial.write_bytes(content)
                partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)
        except (OSError, ValueError, http.client.HTTPException) as error:  # including TLS errors
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None)
            raise NotFetched(str(reason or error or type(error).__name__)) from None
        return str(path)

    def _content(self, url: str) -> bytes:
        parts = urlsplit(url)
        if parts.username is not None or parts.password is not None:
            raise NotFetched("it contains a user name or password")
        host, port = (parts.hostname or "").encode("idna").decode(), parts.port or _PORT
        target = quote((parts.path or "/") + (f"?{parts.query}" if parts.query else ""), safe=_IN_TARGET)
        ends = RealClock.now() + _TOTAL_SECONDS
        connection = http.client.HTTPSConnection(host, port, timeout=_CALL_SECONDS)
        with contextlib.closing(connection):
            connection.sock = self._connected(host, port)
            connection.request("GET", target, headers={"Accept-Encoding": "identity"})
            response = connection.getresponse()
            if 300 <= response.status < 400:
                raise NotFetched("it redirects to another URL: write that URL into the table")
            if response.status != http.client.OK:
                raise NotFetched(f"HTTP status {response.status}", is_gone=response.status in _GONE)
            content = bytearray()
            while piece := response.read1(_READ_BYTES):
                content += piece
                if len(content) > MAX_BYTES:
                    raise NotFetched(f"it is larger than {MAX_BYTES >> 20} MB")
                if RealClock.now() > ends:
                    raise NotFetched(f"it took longer than {_TOTAL_SECONDS:.0f} s")
            if response.length:
                raise NotFetched("the connection was lost")
        return bytes(content)

    def _connected(self, host: str, port: int) -> ssl.SSLSocket:
        """Connect to a checked address of a host, which must prove its name."""
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(info[4][0]) for info in found))
        if not all(map(self.is_allowed, addresses)):
            raise NotFetched("its host is not on the public internet")
        context = ssl.create_default_context()
        for address in addresses:
            with contextlib.suppress(OSError):
                plain = socket.create_connection((address, port), _CALL_SECONDS)
                break
        else:
            raise NotFetched("its host cannot be reached")
        try:
            return context.wrap_socket(plain, server_hostname=host)
        except BaseException:
            plain.close()
            raise
