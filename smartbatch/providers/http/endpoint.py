"""The endpoint of a provider: base URL, proxy, headers, secrets, scope; checked before anything is sent."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import re
import urllib.parse
import urllib.request
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NoReturn

from urllib3.exceptions import LocationParseError
from urllib3.util import Url, make_headers, parse_url

from smartbatch.errors import ConfigError, scrub

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\x20-\x7e\xa0-\xff]*")
_FRAMING = ("host", "content-length", "content-type", "transfer-encoding", "connection", "accept-encoding")


def setting(value: str | None, *variables: str) -> str | None:
    """Return the argument, or else the first variable of the environment that is set; blank is missing."""
    if value is not None and not isinstance(value, str):
        raise ConfigError(
            f"what stands for {' or '.join(variables)} must be a text, not {type(value).__name__}"
        )
    texts = [value] if value is not None else [os.environ.get(name) for name in variables]
    return next((text.strip() for text in texts if text and text.strip()), None)


def checked_url(
    value: str | None, variable: str, default: str, *, carries_secret: bool, allow_http: bool
) -> Url:
    """Return the base URL: ``base_url=``, or the variable of the environment, or the default; checked.

    A key goes over plain ``http`` to this machine only, or where the user allows it.
    """
    address = setting(value, variable) or default
    source = f"base_url= or {variable}"
    bare = "://" not in address and not address.startswith("http")
    try:
        url = parse_url(f"http://{address}" if bare else address)
    except (LocationParseError, ValueError):
        raise ConfigError(f"the base URL ({source}) is not a URL") from None
    if url.auth:
        raise ConfigError(f"the base URL ({source}) carries a name or password; pass them as key or headers=")
    if bare or url.scheme not in ("http", "https") or not url.host:
        scheme = "http" if _is_loopback((url.host or "").strip("[]")) else "https"
        given = scrub(f"{url.netloc or ''}{url.path or ''}", limit=120)
        hint = f" (try {scheme}://{given})" if bare else ""
        raise ConfigError(f"the base URL must be like {default}{hint}; check {source}")
    if url.query or url.fragment:
        raise ConfigError(f"the base URL ({source}) may not have a query or a fragment")
    host = url.host.strip("[]")
    if _is_link_local(host):
        raise ConfigError(f"the base URL points at {host}, a link-local address where no provider lives")
    if url.scheme == "http" and carries_secret and not allow_http and not _is_loopback(host):
        raise ConfigError(
            f"the key would go to {host} in the clear; use https, or allow_http=True in a private network"
        )
    return url


def own_headers(headers: Mapping[str, str] | None, reserved: Collection[str] = ()) -> dict[str, str]:
    """Return a user's headers, checked; ``reserved`` are names in lower case that the client sets itself.

    An error names the header, never its value.
    """
    if not isinstance(headers or {}, Mapping):
        raise ConfigError(f"headers must be a dictionary, not {type(headers).__name__}")
    for name, value in (headers or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ConfigError(f"headers must hold texts: {name!r} is given {type(value).__name__}")
        if name.lower() in (*_FRAMING, *reserved):
            raise ConfigError(f"headers may not set {name!r}; the client sets it")
        if not _HEADER_NAME.fullmatch(name):
            raise ConfigError("headers has a name that is not an HTTP header name")
        if not _HEADER_VALUE.fullmatch(value):
            raise ConfigError(
                f"the value of the header {name} has characters HTTP does not allow; check its source"
            )
    return dict(headers or {})


def scope_of(prefix: str, url: Url, *identity: Any) -> str:
    """Return the name of a quota: prefix, host and a fingerprint of whatever tells two accounts apart."""
    digest = hashlib.sha256(json.dumps([url.url, *identity]).encode()).hexdigest()[:12]
    return f"{prefix}:{url.netloc}:{digest}"


def secrets_of(*values: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return the texts among ``values`` that are long enough to be looked for in foreign texts."""
    flat = [text for value in values for text in ([value] if isinstance(value, str) else value or ()) if text]
    return tuple(text for text in flat if len(text) >= 8)


def not_pickled(provider: object) -> NoReturn:  # noqa: ARG001
    """Refuse to be pickled; the ``__reduce__`` of every provider with a key."""
    raise TypeError(
        "a provider holds connections and a key and cannot be pickled; create it where it is used"
    )


def find_proxy(url: Url) -> tuple[str | None, dict[str, str]]:
    """Return the proxy the environment names for ``url``, without credentials, and the headers it wants.

    ``HTTP_PROXY``, ``HTTPS_PROXY``, ``ALL_PROXY`` and ``NO_PROXY`` count, the last one with hosts and with
    ``host:port``; loopback never goes through one.

    Raises:
        ConfigError: for a proxy that is not reached over plain HTTP.
    """
    host = (url.host or "").strip("[]")
    proxies = urllib.request.getproxies()
    named = proxies.get(url.scheme or "") or proxies.get("all")
    if not named or _is_loopback(host):
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


def _is_loopback(host: str) -> bool:
    """True for ``localhost`` and this machine's own addresses."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_link_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_link_local
    except ValueError:
        return False
