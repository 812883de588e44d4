"""``requests`` for files and batches, over our own transport.

``requests`` prepares a request (address, query, JSON, headers) and gives its answer as a ``Response``. Its
network has a time-out for each read, no cap on bodies and nothing against forks; so the session's adapter
sends prepared requests through :class:`~smartbatch.providers.http.transport.Transport`, as
:mod:`smartbatch.providers.http.sdk_bridge` does for the SDKs.

Importing this module imports ``requests``; adapters do so when their Batch API is first used.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from requests import PreparedRequest, Response, Session
from requests.adapters import BaseAdapter
from requests.structures import CaseInsensitiveDict
from urllib3.util import parse_url

from smartbatch.providers.http.replies import visible
from smartbatch.providers.http.transport import Transport

__all__ = ["open_session"]


def open_session(transport: Transport, headers: Mapping[str, str]) -> Session:
    """Return a session whose requests all go through ``transport``, each exactly once.

    Nothing of the environment counts but what the transport reads, no redirect is followed and no cookie is
    kept. The ``timeout`` of a request is the total seconds of the call, and must be given. The answer to a
    request with ``stream=True`` comes once its head is there: its ``raw`` is the
    :class:`~smartbatch.providers.http.live_reply.LiveReply`, to be read in pieces and closed by the caller.
    ``headers`` are sent with every request, and checked already.
    """
    session = Session()
    session.trust_env = False
    session.headers = CaseInsensitiveDict({name: value.strip() for name, value in headers.items()})
    for scheme in ("https://", "http://"):
        session.mount(scheme, _TransportAdapter(transport))
    return session


class _TransportAdapter(BaseAdapter):
    def __init__(self, transport: Transport) -> None:
        super().__init__()
        self._transport = transport

    def send(
        self,
        request: PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: Any = True,  # noqa: ARG002
        cert: Any = None,  # noqa: ARG002
        proxies: Any = None,  # noqa: ARG002
    ) -> Response:
        """Send a request; TLS and proxies are the transport's own."""
        if timeout is None:
            raise TypeError("a request without a time-out")
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in _texts(request)]
        head = self._transport.head_for(request.method or "", parse_url(request.url or ""), headers)
        live = self._transport.begin(head, request.body or b"", timeout)  # type: ignore[arg-type]
        response = Response()
        response.status_code = live.status
        # Without its address a redirect cannot be followed.
        shown = visible(live.headers)
        shown.pop("location", None)
        response.headers = CaseInsensitiveDict(shown)
        response.url, response.request = request.url or "", request
        response.raw = live if stream else io.BytesIO(live.whole().body)
        return response

    def close(self) -> None:
        """Nothing: the transport's owner closes it."""


def _texts(request: PreparedRequest) -> list[tuple[str, str]]:
    return [(name, str(value)) for name, value in request.headers.items()]
