"""Who may look at the dashboard, and who may act: checked before anything is read."""

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
"""Says what a request may do; ``None`` is nothing."""

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""Names of this machine for itself."""

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(:[0-9]{1,5})?", re.ASCII)
MAX_QUERY_FIELDS = 50
"""Fields of an address."""
_FORWARDED = ("HTTP_FORWARDED", "HTTP_X_FORWARDED_FOR", "HTTP_X_REAL_IP")


@frozen
class TokenAccess:
    """Everything for those who come from this machine itself and have the token.

    The token comes once in the address (``?token=…``), and from then on in a cookie; or as
    ``Authorization: Bearer …``. A request that a proxy forwarded is refused: behind one every peer is this
    machine.

    Args:
        granted: what those may do; ``"read"`` is to look only.
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
        """Return the header that keeps the token, for a request with the right one in its address."""
        if not self._is_right(_asked(environ)):
            return None
        path = environ.get("SCRIPT_NAME", "") or "/"
        return f"{_cookie_name(environ)}={self.token}; Path={path}; HttpOnly; SameSite=Strict"

    def _is_right(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), self.token.encode())


def is_loopback(environ: WSGIEnvironment) -> bool:
    """Whether the peer is this machine, as far as the server sees."""
    try:
        return ip_address(str(environ.get("REMOTE_ADDR", ""))).is_loopback
    except ValueError:
        return False


def is_known_host(environ: WSGIEnvironment, hosts: Collection[str]) -> bool:
    """Whether the ``Host`` header names one of ``hosts``; ``"*"`` among them is any that is well formed."""
    found = _HOST.fullmatch(environ.get("HTTP_HOST", "").lower())
    return found is not None and ("*" in hosts or found[1] in hosts)


def is_from_own_page(environ: WSGIEnvironment) -> bool:
    """Whether a POST was sent by a page of this very host, as the browser says.

    The cases, in order:

    1. ``Sec-Fetch-Site`` is there and is not ``same-origin``: no.
    2. ``Origin`` is there: it has to have the host and the port that were asked.
    3. ``Sec-Fetch-Site`` alone is enough.
    4. Neither is there: no.
    """
    site, origin = environ.get("HTTP_SEC_FETCH_SITE"), environ.get("HTTP_ORIGIN")
    if site is not None and site != "same-origin":
        return False
    if origin is None:
        return site is not None
    return urlsplit(str(origin)).netloc.lower() == str(environ.get("HTTP_HOST", "-")).lower()


def _tokens(environ: WSGIEnvironment) -> list[str]:
    """Return the tokens that come with a request."""
    scheme, _, bearer = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
    return [
        _asked(environ),
        bearer.strip() if scheme.lower() == "bearer" else "",
        *_kept(environ),
    ]


def _kept(environ: WSGIEnvironment) -> list[str]:
    """Return the tokens in cookies; those of other programs may have any form."""
    pairs = (cookie.partition("=") for cookie in environ.get("HTTP_COOKIE", "").split(";"))
    return [value.strip() for name, _, value in pairs if name.strip() == _cookie_name(environ)]


def _asked(environ: WSGIEnvironment) -> str:
    """Return the token in the address."""
    try:
        values = parse_qs(str(environ.get("QUERY_STRING", "")), max_num_fields=MAX_QUERY_FIELDS)
    except ValueError:
        return ""
    return values.get("token", [""])[-1]


def _cookie_name(environ: WSGIEnvironment) -> str:
    """Return a name of this port's own: all ports of a machine have their cookies in common."""
    return f"smartbatch_token_{environ.get('SERVER_PORT', '')}"
