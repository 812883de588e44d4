"""The ``google-genai`` SDK, held to one request a call. Importing this module imports it, in about a second.

Its raw path (``_build_request`` and ``_request_once``) is used: the same addresses, headers and key as its
typed methods, at about a third of their CPU. Those names are private, so the version is bounded and a test
would tell.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import Mapping
from typing import Any

import httpx2
from google import genai
from google.genai import types

from smartbatch.errors import ConfigError
from smartbatch.providers.http.sdk_bridge import SdkCalls, http_client
from smartbatch.providers.http.transport import Transport

_CLIENT, _BUILD, _ONCE = "_api_client", "_build_request", "_request_once"
"""The SDK's private names this file needs; an SDK without them is refused."""

_LONGEST = 3600.0  # seconds; the time-out of a call that names none, which does not happen


class GeminiSdk(SdkCalls):
    """Calls through ``google-genai``.

    An installed SDK that cannot be used is a ``ConfigError``. The base URL comes without the API's version.
    """

    def __init__(
        self, transport: Transport, key: str, base_url: str, version: str, headers: Mapping[str, str]
    ) -> None:
        super().__init__(transport)
        self._network = network = http_client(transport)
        self._leads_to = transport.leads_to
        self._base_url, self._headers = base_url.rstrip("/"), dict(headers)
        self._version, self._key = version, key
        options = types.HttpOptions(
            base_url=base_url,
            api_version=version,
            headers=dict(headers),
            timeout=int(_LONGEST * 1000),
            retry_options=types.HttpRetryOptions(attempts=1),
            httpx_client=network,
            # Given so that the SDK makes none of its own, with TLS contexts that cost 0.1 s.
            httpx_async_client=httpx2.AsyncClient(transport=_NoNetwork(), trust_env=False),
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

    def url_of(self, path: str) -> str:
        """Return the whole address of a path below the API's version."""
        return f"{self._base_url}/{self._version}/{path}"

    def send(self, method: str, path: str, timeout: float, **more: Any) -> object:
        """Make one request.

        Args:
            method: such as ``get``.
            path: below the API's version; ``{api_version}`` in it puts the version elsewhere. An address the
                service gave is asked as it is, of the base URL's server and of no other: behind a gateway the
                address is that of the service itself. The key is sent with a ``get`` only.
            timeout: total seconds; the service is told as well, in ``X-Server-Timeout``.
            more: the ``body`` as a mapping or as encoded JSON, and ``headers``, of this call.
        """
        headers = more.get("headers", {})
        if "://" in path:
            url = httpx2.URL(path)
            if not self._leads_to(url.scheme, url.host, url.port):
                url = httpx2.URL(self._base_url + url.raw_path.decode("ascii"))
            if method == "get":
                given = {**self._headers, "x-goog-api-key": self._key, **headers}
                return self._network.request("GET", url, headers=given, timeout=timeout)
            return self._network.post(url, headers={**self._headers, **headers}, timeout=timeout)
        options = types.HttpOptions(timeout=max(1, math.ceil(timeout * 1000)), headers=headers or None)
        body = more.get("body", {})
        if not isinstance(body, bytes):
            return self._once(self._build(method, path, dict(body), options))
        built = self._build(method, path, {}, options)
        built.data = body
        return self._once(built)


class _NoNetwork(httpx2.AsyncBaseTransport):
    """The network of the SDK's asynchronous half, which nobody uses."""
