"""A provider's endpoint: base URL, headers, secrets and scope, checked before anything is sent, and its
transports.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn, TypeVar

from urllib3.exceptions import HTTPError, LocationParseError
from urllib3.util import Url, parse_url

from smartbatch._fork import PerProcess, around_fork
from smartbatch.errors import ConfigError, ProviderError, scrub
from smartbatch.providers.http.pool import failure
from smartbatch.providers.http.transport import DEFAULT_WORKERS, Transport, is_loopback
from smartbatch.types import Duration

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\x20-\x7e\xa0-\xff]*")
_FRAMING = ("host", "content-length", "content-type", "transfer-encoding", "connection", "accept-encoding")


def setting(value: str | None, *variables: str) -> str | None:
    """Return the argument, or else the first environment variable that is not blank."""
    if value is not None and not isinstance(value, str):
        raise ConfigError(
            f"the argument for {' or '.join(variables)} must be a string, not {type(value).__name__}"
        )
    texts = [value] if value is not None else [os.environ.get(name) for name in variables]
    return next((text.strip() for text in texts if text and text.strip()), None)


def key_source(value: str | None, variables: Sequence[str], headers: Iterable[str] = ()) -> str:
    """Return the setting that a provider's key comes from, or the one to set if there is no key.

    ``headers`` are the names of a user's headers, one of which may hold the key.
    """
    if value is not None:
        return "api_key"
    named = next((name for name in variables if os.environ.get(name, "").strip()), None)
    return named or ("headers" if any(headers) else " or ".join(variables))


def checked_url(
    value: str | None,
    variables: Sequence[str],
    default: str | None,
    *,
    carries_secret: bool,
    allow_http: bool,
    path: str = "",
) -> Url:
    """Check the base URL from ``base_url=``, an environment variable or the default.

    A key is sent over plain ``http`` only to this machine, unless the user allows other servers. ``path`` is
    added to a URL without one.
    """
    source = f"base_url= or {' or '.join(variables)}"
    address = setting(value, *variables) or default
    if address is None:
        raise ConfigError(f"no base URL: set {' or '.join(variables)}, or the provider option base_url")
    bare = "://" not in address and not address.startswith("http")
    try:
        url = parse_url(f"http://{address}" if bare else address)
    except (LocationParseError, ValueError):
        raise ConfigError(f"the base URL ({source}) is not a URL") from None
    if url.auth:
        raise ConfigError(
            f"the base URL ({source}) contains a user name or password; pass them as key or headers="
        )
    if bare or url.scheme not in ("http", "https") or not url.host:
        scheme = "http" if is_loopback((url.host or "").strip("[]")) else "https"
        given = scrub(f"{url.netloc or ''}{url.path or ''}", limit=120)
        hint = f" (try {scheme}://{given})" if bare else ""
        usual = default or f"https://…{path}"
        raise ConfigError(f"the base URL must look like {usual}{hint}; check {source}")
    if url.query or url.fragment:
        raise ConfigError(f"the base URL ({source}) must not have a query or a fragment")
    host = url.host.strip("[]")
    if _is_link_local(host):
        raise ConfigError(f"the base URL points to {host}, a link-local address, which no provider uses")
    if url.scheme == "http" and carries_secret and not allow_http and not is_loopback(host):
        raise ConfigError(
            f"the key would be sent to {host} unencrypted; use https, or allow_http=True in a private network"
        )
    has_path = url.path not in (None, "", "/")
    return url if has_path or not path else parse_url(url.url.rstrip("/") + path)


def own_headers(headers: Mapping[str, str] | None, reserved: Collection[str] = ()) -> dict[str, str]:
    """Check a user's headers. ``reserved`` are lower-case names that the client sets itself. Errors never
    show values.
    """
    if not isinstance(headers or {}, Mapping):
        raise ConfigError(f"headers must be a dictionary, not {type(headers).__name__}")
    for name, value in (headers or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ConfigError(f"headers must contain strings: {name!r} is of type {type(value).__name__}")
        if name.lower() in (*_FRAMING, *reserved):
            raise ConfigError(f"headers cannot set {name!r}; the client sets it")
        if not _HEADER_NAME.fullmatch(name):
            raise ConfigError("headers contains an invalid HTTP header name")
        if not _HEADER_VALUE.fullmatch(value):
            raise ConfigError(
                f"the value of the header {name} contains characters not allowed in HTTP; check its source"
            )
    return dict(headers or {})


def scope_of(prefix: str, url: Url, *identity: Any) -> str:
    """Identify a quota by prefix, host and a fingerprint of the account."""
    digest = hashlib.sha256(json.dumps([url.url, *identity]).encode()).hexdigest()[:12]
    return f"{prefix}:{url.netloc}:{digest}"


def secrets_of(*values: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return the strings that are long enough to be removed from foreign messages."""
    flat = [text for value in values for text in ([value] if isinstance(value, str) else value or ()) if text]
    return tuple(text for text in flat if len(text) >= 8)


def not_pickled(provider: object) -> NoReturn:  # noqa: ARG001
    """The ``__reduce__`` of every provider with a key."""
    raise TypeError(
        "a provider holds connections and a key and cannot be pickled; create it where it is used"
    )


def _is_link_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_link_local
    except ValueError:
        return False


_T = TypeVar("_T")


class HttpNetwork:
    """The two transports to a provider's service. URL and headers have already been checked."""

    def __init__(
        self,
        url: Url,
        headers: Mapping[str, str] | None = None,
        *,
        connect_timeout: Duration,
        max_body: int,
    ) -> None:
        self.url = url.url
        self._sdk: PerProcess[Any] | None = None
        self._importing: threading.Thread | None = None
        # reuses connections, and sends the headers with every request
        self.realtime = Transport(url, headers, connect_timeout=connect_timeout, max_body=max_body)
        # uses each connection for one call; for files and batches
        self.batches = Transport(url, connect_timeout=connect_timeout, max_body=max_body, reuse=False)

    def through(self, make: Callable[[Transport], _T]) -> tuple[PerProcess[_T], PerProcess[_T]]:
        """Create the SDK over each transport on first use. :meth:`open` starts the real-time one."""
        self._sdk = realtime = PerProcess(lambda: make(self.realtime))
        return realtime, PerProcess(lambda: make(self.batches))

    def open(self, workers: int) -> None:
        """Make room for ``workers`` concurrent calls; connections are made on demand.

        Importing an SDK takes up to a second, so it starts on a separate thread. A fork waits for it;
        otherwise the child would inherit a half-imported module whose lock is never released.
        """
        self.realtime.open(workers)
        if self._sdk is None or self._sdk.peek() is not None or self._importing is not None:
            return
        self._importing = threading.Thread(target=self._import, name="smartbatch-import", daemon=True)
        around_fork(self)
        with suppress(RuntimeError):  # no thread is available; the SDK is imported on demand
            self._importing.start()

    def ready(self) -> None:
        """Wait until calls can be made; raise if importing or creating the SDK failed."""
        if self._sdk is not None:
            self._sdk.get()

    def _import(self) -> None:
        with suppress(Exception):  # :meth:`ready` raises it again
            self.ready()

    def before_fork(self) -> None:
        """Wait for the import of an SDK; called by :mod:`smartbatch._fork`."""
        if self._importing is not None and self._importing.is_alive():
            self._import()

    def after_fork_in_parent(self) -> None:
        """Called by :mod:`smartbatch._fork`."""

    def after_fork(self) -> None:
        """Forget the parent's thread; called by :mod:`smartbatch._fork` in the child."""
        self._importing = None

    def open_batches(self) -> None:
        """Allow calls for files and batches, including after a close."""
        self.batches.open(DEFAULT_WORKERS)

    def close(self) -> None:
        """Close all connections; calls in progress fail with ``NETWORK_ERROR``, code ``closed``."""
        self.realtime.close()
        self.batches.close()

    def meaning_of(self, error: Exception) -> ProviderError | None:
        """Convert a network exception; ``None`` for any other."""
        if isinstance(error, (HTTPError, OSError)):  # how far the call got is unknown
            return failure(error, "receive", self.realtime.place, late=isinstance(error, TimeoutError))
        if "httpx2" not in sys.modules:  # no SDK is imported
            return None
        from smartbatch.providers.http.sdk_bridge import meaning_of

        return meaning_of(error)
