"""Downloads behind redirects: services keep results in a store of their own and answer with its address.

Only downloads are followed. The key goes to the server of the base URL and nowhere else: another server is
asked without any of our headers, as the address itself is the permission. A download that began with TLS
never goes on without it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from urllib.parse import urljoin

from urllib3.exceptions import LocationParseError
from urllib3.util import Url, parse_url

from smartbatch.errors import ProviderError
from smartbatch.providers.foreign_text import unusable
from smartbatch.providers.http.live_reply import LiveReply
from smartbatch.providers.http.transport import Transport

MOST = 5
"""Redirects of one download."""
_REDIRECTS = (301, 302, 303, 307, 308)
_PORTS = {"http": 80, "https": 443}
_LONGEST = 8192


@contextlib.contextmanager
def followed(begin: Callable[[str, float], LiveReply], url: str, timeout: float) -> Iterator[LiveReply]:
    """Yield the answer to a download, behind its redirects; it is closed afterwards.

    Args:
        begin: asks the server of the base URL, with the key: takes an address and seconds.
        url: of the download, at that server.
        timeout: seconds for all of it.

    Raises:
        ProviderError: a redirect leads nowhere, back from TLS, or to another one too often.
    """
    deadline, own = time.monotonic() + timeout, _parsed(url)
    with contextlib.ExitStack() as opened:
        live = begin(url, timeout)
        opened.callback(live.close)
        for _ in range(MOST):
            if live.status not in _REDIRECTS:
                break
            url, target = _target(url, live.headers.get("location"), own)
            live.close()
            left = max(0.001, deadline - time.monotonic())
            if _origin(target) == _origin(own):
                live = begin(url, left)
            else:
                elsewhere = Transport(
                    Url(scheme=target.scheme, host=target.host, port=target.port), reuse=False
                )
                opened.callback(elsewhere.close)
                live = elsewhere.begin(elsewhere.head_of("GET", target.request_uri, b""), b"", left)
            opened.callback(live.close)
        else:
            if live.status in _REDIRECTS:
                raise _refused(live.status, f"leads from one address to another more than {MOST} times")
        yield live


def _target(url: str, location: str | None, own: Url) -> tuple[str, Url]:
    """Return where a redirect leads, as a text and taken apart."""
    if not location or len(location) > _LONGEST or not (location.isascii() and location.isprintable()):
        raise _refused(None, "does not say where to")
    address = urljoin(url, location).partition("#")[0]
    target = _parsed(address)
    if target.scheme not in _PORTS or not target.host or target.auth:
        raise _refused(None, "leads to no address of the web")
    if own.scheme == "https" and target.scheme != "https":
        raise _refused(None, "leads to an address without TLS")
    return address, target


def _parsed(url: str) -> Url:
    try:
        return parse_url(url)
    except LocationParseError:
        raise _refused(None, "leads to no address of the web") from None


def _origin(url: Url) -> tuple[str | None, str | None, int | None]:
    return url.scheme, url.host, url.port or _PORTS.get(url.scheme or "")


def _refused(status: int | None, what: str) -> ProviderError:
    return unusable(f"the redirect of the results {what}", "redirect", status=status)
