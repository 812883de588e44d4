"""The ``google-genai`` SDK, held to one request a call. Importing this module imports it, in about a second.

Its raw path (``_build_request`` and ``_request_once``) is used: the same addresses, headers and key as its
typed methods, at about a third of their CPU. Those names are private, so the version is bounded and a test
would tell.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import Mapping
from typing import Any, cast

import httpx2
from google import genai
from google.genai import types

from smartbatch.errors import ConfigError, ErrorKind, ProviderError
from smartbatch.providers.http.live_reply import LiveReply
from smartbatch.providers.http.replies import Reply
from smartbatch.providers.http.sdk_bridge import http_client, live_of, reply_of, through_sdk
from smartbatch.providers.http.transport import Transport

__all__ = ["GeminiSdk"]


_CLIENT, _BUILD, _ONCE = "_api_client", "_build_request", "_request_once"
"""The SDK's private names this file needs; an SDK without them is refused."""

_LONGEST = 3600.0  # seconds; the time-out of a call that names none, which does not happen


class GeminiSdk:
    """One SDK client over one transport, for all threads of a process.

    An installed SDK that cannot be used is a ``ConfigError``. The base URL comes without the API's version.
    """

    def __init__(
        self, transport: Transport, key: str, base_url: str, version: str, headers: Mapping[str, str]
    ) -> None:
        self._network = network = http_client(transport)
        self._leads_to = transport.leads_to
        self._base_url, self._headers = base_url.rstrip("/"), dict(headers)
        options = types.HttpOptions(
            base_url=base_url,
            api_version=version,
            headers=dict(headers),
            timeout=int(_LONGEST * 1000),
            retry_options=types.HttpRetryOptions(attempts=1),
            httpx_client=network,
            # Given so that the SDK makes none of its own, with TLS contexts that cost 0.1 s.
            httpx_async_client=httpx2.AsyncClient(transport=_Nowhere(), trust_env=False),
            async_client_args={"ssl": ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)},
        )
        try:
            client = genai.Client(api_key=key, vertexai=False, http_options=options)
            api = getattr(client, _CLIENT)
            self._build, self._once = getattr(api, _BUILD), getattr(api, _ONCE)
        except (AttributeError, ImportError) as error:
            name = type(error).__name__
            raise ConfigError(
                f"the installed google-genai cannot be used ({name}); install google-genai>=3.4,<4"
            ) from error
        self._client = client

    def ask(
        self,
        method: str,
        path: str,
        timeout: float,
        *,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Make one request and return the whole answer, whatever its status.

        Args:
            method: such as ``get``.
            path: below the API's version; ``{api_version}`` in it puts the version elsewhere.
            timeout: total seconds; the service is told as well, in ``X-Server-Timeout``.
            body, headers: of this call.
        """

        def call() -> Reply:
            answer = self._once(self._build(method, path, dict(body or {}), _options(timeout, headers)))
            text = answer.response_stream[0] if answer.response_stream else ""
            return Reply(200, answer.headers, text.encode() if isinstance(text, str) else b"")

        return through_sdk(call)

    def begin(
        self, method: str, path: str, timeout: float, accept: str, *, body: Mapping[str, Any] | None = None
    ) -> LiveReply | Reply:
        """Return a success once its head has come; of a refusal the whole answer. Otherwise as :meth:`ask`.

        ``accept`` is the content type of what is read in pieces.
        """
        options = _options(timeout, {"Accept": accept})

        def call() -> LiveReply:
            answer = self._once(self._build(method, path, dict(body or {}), options), stream=True)
            return live_of(cast(httpx2.Response, answer.response_stream))

        return through_sdk(call)

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
        return through_sdk(
            lambda: reply_of(self._network.post(url, content=piece, headers=sent, timeout=timeout))
        )


def _options(timeout: float, headers: Mapping[str, str] | None) -> types.HttpOptions:
    return types.HttpOptions(
        timeout=max(1, math.ceil(timeout * 1000)), headers=dict(headers) if headers else None
    )


class _Nowhere(httpx2.AsyncBaseTransport):
    """The network of the SDK's asynchronous half, which nobody uses."""
