"""Access to the dashboard: who may view it and who may act, checked before anything is read."""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Callable, Collection
from ipaddress import ip_address
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import parse_qs, urlsplit

from attrs import field, frozen

from smartbatch.dashboard.page import Granted

if TYPE_CHECKING:
    from wsgiref.types import WSGIEnvironment

Access: TypeAlias = "Callable[[WSGIEnvironment], Granted | None]"
"""Returns what a request may do; ``None`` for nothing."""

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(:[0-9]{1,5})?", re.ASCII)
MAX_QUERY_FIELDS = 50
_FORWARDED = ("HTTP_FORWARDED", "HTTP_X_FORWARDED_FOR", "HTTP_X_REAL_IP")


@frozen
class TokenAccess:
    """Grants access to visitors on this machine who have the token.

    The token is sent once in the address (``?token=…``) and then in a cookie, or as ``Authorization: Bearer
    …``. Requests forwarded by a proxy are refused, because behind one every peer is this machine.

    Args:
        granted: what these visitors may do; ``"read"`` is to view only.
        token: a secret; a new one by default.
    """

    granted: Granted = "all"
    token: str = field(factory=lambda: secrets.token_urlsafe(24), repr=False)

    def __call__(self, environ: WSGIEnvironment) -> Granted | None:
        """Return what a request may do."""
        if not is_loopback(environ) or any(name in environ for name in _FORWARDED):
            return None
        return self.granted if any(self._is_right(one) for one in _tokens(environ)) else None

    def cookie(self, environ: WSGIEnvironment) -> str | None:
        """Return the cookie header that stores the token if the address of a request contains it."""
        if not self._is_right(_token_in_address(environ)):
            return None
        path = environ.get("SCRIPT_NAME", "") or "/"
        return f"{_cookie_name(environ)}={self.token}; Path={path}; HttpOnly; SameSite=Strict"

    def _is_right(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), self.token.encode())


def is_loopback(environ: WSGIEnvironment) -> bool:
    try:
        return ip_address(str(environ.get("REMOTE_ADDR", ""))).is_loopback
    except ValueError:
        return False


def is_known_host(environ: WSGIEnvironment, hosts: Collection[str]) -> bool:
    """Whether the ``Host`` header names one of ``hosts``; ``"*"`` among them allows any well-formed name."""
    found = _HOST.fullmatch(environ.get("HTTP_HOST", "").lower())
    return found is not None and ("*" in hosts or found[1] in hosts)


def is_from_own_page(environ: WSGIEnvironment) -> bool:
    """Whether a POST was sent by a page of this host, according to the browser."""
    site, origin = environ.get("HTTP_SEC_FETCH_SITE"), environ.get("HTTP_ORIGIN")
    if site is not None and site != "same-origin":
        return False
    if origin is None:  # ``Sec-Fetch-Site`` alone is enough; without either header the sender is unknown
        return site is not None
    return urlsplit(str(origin)).netloc.lower() == str(environ.get("HTTP_HOST", "-")).lower()


def _tokens(environ: WSGIEnvironment) -> list[str]:
    scheme, _, bearer = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
    return [
        _token_in_address(environ),
        bearer.strip() if scheme.lower() == "bearer" else "",
        *_tokens_in_cookies(environ),
    ]


def _tokens_in_cookies(environ: WSGIEnvironment) -> list[str]:
    pairs = (cookie.partition("=") for cookie in environ.get("HTTP_COOKIE", "").split(";"))
    return [value.strip() for name, _, value in pairs if name.strip() == _cookie_name(environ)]


def _token_in_address(environ: WSGIEnvironment) -> str:
    try:
        values = parse_qs(str(environ.get("QUERY_STRING", "")), max_num_fields=MAX_QUERY_FIELDS)
    except ValueError:
        return ""
    return values.get("token", [""])[-1]


def _cookie_name(environ: WSGIEnvironment) -> str:
    """Return a name with the port, because all ports of a machine share their cookies."""
    return f"smartbatch_token_{environ.get('SERVER_PORT', '')}"
