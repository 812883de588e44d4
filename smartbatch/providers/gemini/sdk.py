"""The ``google-genai`` SDK, held to one request a call. Importing this module imports it, in about a second.

Its raw path (``BaseApiClient.request``) is used: the same addresses, headers and key as its typed
methods, at about a third of their CPU. That name is private, so the version is bounded and a test would tell.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import httpx2
from google import genai
from google.genai import types

from smartbatch.errors import ConfigError, ErrorKind, ProviderError
from smartbatch.providers.http.live_reply import LiveReply
from smartbatch.providers.http.replies import Reply
from smartbatch.providers.http.sdk_bridge import http_client, live_of, reply_of, verdict_of
from smartbatch.providers.http.transport import Transport

__all__ = ["GeminiSdk", "Refused", "network_error"]


class Refused(Exception):
    """An answer with another status than 200. Raised before the SDK decodes it, which fails on odd bytes."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


_LONGEST = 3600.0  # seconds; the time-out of a call that names none, which does not happen


class GeminiSdk:
    """One SDK client over one transport, for all threads of a process.

    Args:
        transport: carries the requests.
        key: the API key.
        base_url: without the version.
        version: of the API.
        headers: further headers.

    Raises:
        ConfigError: when the installed SDK cannot be used.
    """

    def __init__(
        self, transport: Transport, key: str, base_url: str, version: str, headers: Mapping[str, str]
    ) -> None:
        self._network = network = http_client(transport)
        self._leads_to = transport.leads_to
        self._base_url, self._headers = base_url.rstrip("/"), dict(headers)
        network.event_hooks = {"response": [_refuse]}
        options = types.HttpOptions(
            base_url=base_url,
            api_version=version,
            headers=dict(headers),
            timeout=int(_LONGEST * 1000),
            retry_options=types.HttpRetryOptions(attempts=1),
            httpx_client=network,
            # Given so that the SDK makes none of its own, with TLS contexts that cost 0.1 s.
            httpx_async_client=httpx2.AsyncClient(transport=_Nowhere(), trust_env=False),
        )
        try:
            client = genai.Client(api_key=key, vertexai=False, http_options=options)
            self._api: Any = client._api_client
            self._request, self._build, self._once = (
                self._api.request,
                self._api._build_request,
                self._api._request_once,
            )
        except (AttributeError, ImportError) as error:
            name = type(error).__name__
            raise ConfigError(
                f"the installed google-genai cannot be used ({name}); install google-genai>=3.4,<4"
            ) from error
        self._client = client

    def options(self, timeout: float, headers: dict[str, str] | None = None) -> types.HttpOptions:
        """Return the options of one call.

        Args:
            timeout: total seconds; the service is told as well, in ``X-Server-Timeout``.
            headers: of this call alone.
        """
        return types.HttpOptions(timeout=max(1, math.ceil(timeout * 1000)), headers=headers)

    def post(self, path: str, body: dict[str, Any], options: types.HttpOptions) -> str:
        """Return the text of a successful answer.

        Raises:
            Refused: for an answer of any other kind.
        """
        found = self._request("post", path, body, options).body
        return found if isinstance(found, str) else ""

    def ask(self, method: str, path: str, body: dict[str, Any], options: types.HttpOptions) -> Reply:
        """Return a successful answer with its headers; otherwise as :meth:`post`.

        Args:
            method: such as ``get``.
            path: below the API's version; ``{api_version}`` in it puts the version elsewhere.
            body: an empty one is not sent.
            options: of this call.
        """
        answer = self._once(self._build(method, path, body, options))
        text = answer.response_stream[0] if answer.response_stream else ""
        return Reply(200, answer.headers, text.encode() if isinstance(text, str) else b"")

    def put(self, address: str, piece: bytes, headers: Mapping[str, str], timeout: float) -> Reply:
        """Post a piece of an upload to an address the service gave; the key is not sent along.

        Prompts go to the base URL's server and to no other. Behind a gateway the address is that of the
        service itself: then its path is asked of the gateway.
        """
        try:
            url = httpx2.URL(address)
            if not self._leads_to(url.scheme, url.host, url.port):
                url = httpx2.URL(self._base_url + url.raw_path.decode("ascii"))
        except httpx2.InvalidURL:
            raise ProviderError(
                "the address to upload to is none", kind=ErrorKind.INVALID_RESPONSE, code="shape"
            ) from None
        sent = {**self._headers, **headers}
        return reply_of(self._network.post(url, content=piece, headers=sent, timeout=timeout))

    def stream(
        self, path: str, body: dict[str, Any], options: types.HttpOptions, method: str = "post"
    ) -> LiveReply:
        """Return a successful answer whose head has come; otherwise as :meth:`post`."""
        answer = self._once(self._build(method, path, body, options), stream=True)
        return live_of(cast(httpx2.Response, answer.response_stream))


def network_error(error: Exception) -> ProviderError | None:
    """Return the meaning of an exception of ``httpx2``; ``None`` for any other."""
    if (ours := verdict_of(error)) is not None:
        return ours
    if isinstance(error, httpx2.DecodingError):
        return _network("the answer was garbled on its way", ErrorKind.NETWORK_ERROR, "truncated", late=True)
    if isinstance(error, httpx2.TransportError):
        return _transport_error(error)
    if isinstance(error, (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError)):
        name = type(error).__name__
        return _network(f"the call could not be made ({name})", ErrorKind.CLIENT_ERROR, "sdk", late=False)
    return None


def _refuse(response: httpx2.Response) -> None:
    if response.status_code == 200:
        return
    try:
        reply = reply_of(response)
    except ProviderError:  # the body of a refused stream was cut; its status says enough
        reply = Reply(response.status_code, dict(response.headers.items()), b"")
    raise Refused(reply)


def _transport_error(error: httpx2.TransportError) -> ProviderError:
    """The table of raw network errors, for an SDK client that was given another network."""
    name = type(error).__name__
    timeout, network = ErrorKind.TIMEOUT, ErrorKind.NETWORK_ERROR
    if isinstance(error, httpx2.ConnectTimeout):
        return _network(
            "the service did not accept a connection in time", network, "connect_timeout", late=False
        )
    if isinstance(error, httpx2.PoolTimeout):
        return _network("no connection was free in time", network, "pool", late=False)
    if isinstance(error, httpx2.TimeoutException):
        return _network("the call took longer than its timeout", timeout, "deadline", late=True)
    if isinstance(error, (httpx2.ConnectError, httpx2.ProxyError)):
        return _network("the service could not be reached", network, "refused", late=False)
    if isinstance(error, httpx2.UnsupportedProtocol):
        return _network("the base URL is no http address", ErrorKind.CLIENT_ERROR, "sdk", late=False)
    return _network(f"the connection broke ({name})", network, "cut", late=True)


def _network(text: str, kind: ErrorKind, code: str, *, late: bool) -> ProviderError:
    return ProviderError(text, kind=kind, code=code, maybe_billed=late)


class _Nowhere(httpx2.AsyncBaseTransport):
    """The network of the SDK's asynchronous half, which nobody uses."""
