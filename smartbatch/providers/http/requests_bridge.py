"""``requests`` for files and batches, over this library's transport.

``requests`` prepares requests. Its own network code has a timeout per read, no maximum body size
and no protection against forks. The session's adapter therefore sends prepared requests through
:class:`~smartbatch.providers.http.transport.Transport`. Importing this module imports ``requests``;
adapters import it when their Batch API is first used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from requests import PreparedRequest, Response, Session
from requests.adapters import BaseAdapter
from requests.structures import CaseInsensitiveDict
from urllib3.util import parse_url

from smartbatch.providers.http.replies import LiveReply, Reply
from smartbatch.providers.http.transport import Transport


class RequestsSession:
    """A session whose requests all use one transport, each exactly once.

    Only the transport's environment variables have an effect. Redirects are not followed and cookies are
    not kept, because ``requests`` receives only the status of an answer. ``url`` includes the version.
    ``headers`` are already checked and are sent with every request.
    """

    def __init__(self, transport: Transport, url: str, headers: Mapping[str, str]) -> None:
        self._url = url.rstrip("/")
        self._session = Session()
        self._session.trust_env = False
        self._session.headers = CaseInsensitiveDict({name: value.strip() for name, value in headers.items()})
        for scheme in ("https://", "http://"):
            self._session.mount(scheme, _TransportAdapter(transport))

    def ask(self, method: str, path: str, timeout: float, **more: Any) -> Reply:
        """Make one request within ``timeout`` seconds in total.

        ``more`` are arguments of ``requests``, such as ``params``, ``json``, ``data`` and ``headers``.
        """
        return self.begin(method, path, timeout, **more).whole()

    def url_of(self, path: str) -> str:
        return path if "://" in path else self._url + path

    def begin(self, method: str, path: str, timeout: float, **more: Any) -> LiveReply:
        """Return the answer once its head has arrived. ``path`` may be a complete URL on the server."""
        response = self._session.request(
            method, self.url_of(path), timeout=timeout, stream=True, allow_redirects=False, **more
        )
        return cast(LiveReply, response.raw)


class _TransportAdapter(BaseAdapter):
    def __init__(self, transport: Transport) -> None:
        super().__init__()
        self._transport = transport

    def send(
        self,
        request: PreparedRequest,
        stream: bool = False,  # noqa: ARG002
        timeout: Any = None,
        verify: Any = True,  # noqa: ARG002
        cert: Any = None,  # noqa: ARG002
        proxies: Any = None,  # noqa: ARG002
    ) -> Response:
        """The transport has its own TLS and proxies, so the other arguments have no effect."""
        texts = ((name, str(value)) for name, value in request.headers.items())
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in texts]
        head = self._transport.head_for(request.method or "", parse_url(request.url or ""), headers)
        response = Response()
        response.raw = self._transport.begin(head, request.body or b"", timeout)  # type: ignore[arg-type]
        response.status_code = response.raw.status
        return response

    def close(self) -> None:
        """The transport's owner closes the transport."""
