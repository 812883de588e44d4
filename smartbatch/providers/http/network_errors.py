"""The meaning of exceptions of the network: one table for every adapter that uses HTTP."""

from __future__ import annotations

import http.client
import socket
import ssl
from typing import Literal, TypeAlias

from urllib3.exceptions import ClosedPoolError, EmptyPoolError, HTTPError, SSLError

from smartbatch.errors import ErrorKind, ProviderError

Step: TypeAlias = Literal["connect", "send", "receive"]
"""How far a call came; from ``receive`` on the provider has the whole request."""

_NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL", "HTTP_REQUEST")


def failure(error: Exception, step: Step, place: str, *, late: bool, closed: bool = False) -> ProviderError:
    """Return the meaning of what ``urllib3``, ``http.client``, ``ssl`` or the system raised.

    Args:
        step: how far the call was; from ``receive`` on it may have been carried out, and billed.
        place: host and port, for the text.
        late: the call's total deadline is over.
        closed: the provider was closed meanwhile.
    """
    kind, code, text = _meaning(error, step, place)
    if closed:
        kind, code, text = ErrorKind.NETWORK_ERROR, "closed", "the provider was closed during the call"
    elif late and kind is ErrorKind.NETWORK_ERROR:
        kind, code, text = ErrorKind.TIMEOUT, "deadline", f"the call to {place} took longer than its timeout"
    return ProviderError(text, kind=kind, code=code, maybe_billed=step == "receive")


def _meaning(error: Exception, step: Step, place: str) -> tuple[ErrorKind, str, str]:
    """Return kind, code and words of an error, by its class. The order counts: most are an ``OSError``, so
    what tells more comes first."""
    network = ErrorKind.NETWORK_ERROR
    if isinstance(error, EmptyPoolError):
        return network, "pool", "no connection was free in time; open() the provider for more workers"
    if isinstance(error, ClosedPoolError):
        return network, "closed", "the provider is closed; open() it again before calling"
    if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return network, "cut", f"{place} closed the connection"
    if isinstance(error, (ssl.SSLError, SSLError, ssl.CertificateError)):
        if step != "connect":
            return network, "tls", f"TLS to {place} broke down"
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
        return network, "truncated", f"the answer of {place} did not arrive whole"
    if isinstance(error, http.client.RemoteDisconnected):
        return network, "cut", f"{place} closed the connection without an answer"
    if isinstance(error, OSError) and str(error).startswith("Tunnel connection failed"):
        if "407" in str(error)[:32]:
            return ErrorKind.CLIENT_ERROR, "proxy", "the proxy wants other credentials; check HTTPS_PROXY"
        return network, "proxy", "the proxy did not open a tunnel"
    if isinstance(error, (http.client.HTTPException, HTTPError)):
        return ErrorKind.INVALID_RESPONSE, "not_http", f"{place} does not answer in HTTP; check the base URL"
    if isinstance(error, (OSError, ValueError)):  # ValueError: read on a socket closed by another thread
        return network, "cut", f"the connection to {place} broke ({type(error).__name__})"
    return ErrorKind.UNKNOWN, "unknown", f"the call to {place} failed ({type(error).__name__})"
