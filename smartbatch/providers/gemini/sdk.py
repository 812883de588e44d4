"""The ``google-genai`` SDK, limited to one request per call. Importing this module takes about a
second.

The private methods ``_build_request`` and ``_request_once`` are used. They produce the same
addresses, headers and key as the typed methods, at about a third of the CPU. The version is
therefore bounded, and a test checks the names.
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
from smartbatch.providers.gemini.bodies import BETA
from smartbatch.providers.google_cloud import GoogleSignIn
from smartbatch.providers.http.content import decode_json
from smartbatch.providers.http.sdk_bridge import SdkCalls, http_client
from smartbatch.providers.http.transport import Transport

# private names of the SDK; an SDK without them is rejected
_CLIENT, _BUILD, _ONCE = "_api_client", "_build_request", "_request_once"

_MAX_SECONDS = 3600.0  # the SDK's own timeout; every call sets another


class GeminiSdk(SdkCalls):
    """Makes calls through ``google-genai``. ``account`` are the arguments of its client."""

    def __init__(
        self, transport: Transport, base_url: str, version: str, headers: Mapping[str, str], **account: Any
    ) -> None:
        super().__init__(transport)
        self._network = network = http_client(transport)
        self._leads_to = transport.leads_to
        self._base_url, self._headers = base_url.rstrip("/"), dict(headers)
        self._version, self._key = version, account.get("api_key")
        options = types.HttpOptions(
            base_url=base_url,
            api_version=version,
            headers=dict(headers),
            timeout=int(_MAX_SECONDS * 1000),
            retry_options=types.HttpRetryOptions(attempts=1),
            httpx_client=network,
            # Set so that the SDK does not create its own, whose TLS contexts take 0.1 s.
            httpx_async_client=httpx2.AsyncClient(transport=_NoNetwork(), trust_env=False),
            async_client_args={"ssl": ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)},
        )
        try:
            client = genai.Client(**account, http_options=options)
            api = getattr(client, _CLIENT)
            self._build, self._once = getattr(api, _BUILD), getattr(api, _ONCE)
        except (AttributeError, ImportError) as error:
            name = type(error).__name__
            raise ConfigError(
                f"the installed google-genai cannot be used ({name}); install google-genai>=3.4,<4"
            ) from error
        self._client = client

    def url_of(self, path: str) -> str:
        return f"{self._base_url}/{self._version}/{path}"

    def send(self, method: str, path: str, timeout: float, **more: Any) -> object:
        """Make one request.

        Args:
            method: such as ``get``.
            path: below the API's version, which ``{api_version}`` moves, or below :data:`BETA`, which begins
                the path; or a complete URL from the service. A URL on another server is replaced by its path
                on the base URL's server, because a gateway may pass on the URL of the service behind it. Only
                a ``get`` of a URL sends the key.
            timeout: total seconds, also sent as ``X-Server-Timeout``.
            more: ``body`` (a mapping or encoded JSON) and ``headers``.
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
        version = BETA.rstrip("/") if path.startswith(BETA) else None
        path = path.removeprefix(BETA)
        milliseconds = max(1, math.ceil(timeout * 1000))
        options = types.HttpOptions(timeout=milliseconds, headers=headers or None, api_version=version)
        body = more.get("body", {})
        if not isinstance(body, bytes):
            return self._once(self._build(method, path, dict(body), options))
        built = self._build(method, path, {}, options)
        built.data = body
        return self._once(built)


class VertexGeminiSdk(GeminiSdk):
    """Makes calls to Google Cloud."""

    reuses_heads = False  # a head has a token, which expires

    def __init__(
        self,
        transport: Transport,
        base_url: str,
        version: str,
        headers: Mapping[str, str],
        sign_in: GoogleSignIn,
        region: str,
    ) -> None:
        account = {"vertexai": True, "location": region, **sign_in.account()}
        super().__init__(transport, base_url, version, headers, **account)
        self._sign_in = sign_in

    def send(self, method: str, path: str, timeout: float, **more: Any) -> object:
        self._sign_in.refresh(timeout)
        body = more.get("body")
        if isinstance(body, bytes):  # this client encodes the body itself
            more["body"] = decode_json(body)
        return super().send(method, path, timeout, **more)


class _NoNetwork(httpx2.AsyncBaseTransport):
    """Replaces the network of the SDK's asynchronous half, which is unused."""
