"""Google's Gemini API through the ``google-genai`` SDK, over this library's connection pool.

The SDK signs requests and provides their addresses. Its network is replaced (see
:mod:`smartbatch.providers.http.sdk_bridge`), because it has no timeout by default, keeps twenty
connections for five seconds, and applies timeouts to each read. Its typed models are not used:
they take more CPU than the call itself, drop unknown fields, make further calls to continue an
answer, and merge a list of strings into one vector. The adapter builds bodies and reads answers
itself, so every call is exactly one request.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import evolve

from smartbatch._fork import one_at_a_time
from smartbatch.errors import ConfigError
from smartbatch.providers.base import AnswerStream, Capabilities, FlexTier, Provider
from smartbatch.providers.batch_api import BatchApi
from smartbatch.providers.cache_api import CacheApi
from smartbatch.providers.cache_marks import gemini_rules
from smartbatch.providers.error_reader import ErrorReader, ServiceAddress
from smartbatch.providers.file_api import FileApi
from smartbatch.providers.gemini.answers import ChunkReader, read_answer, read_embeddings
from smartbatch.providers.gemini.batches import GeminiBatches
from smartbatch.providers.gemini.bodies import (
    BETA,
    MAX_TEXT_TOKENS,
    MAX_TEXTS,
    check_request,
    embed_body,
    resource,
)
from smartbatch.providers.gemini.caches import GeminiCaches, body_of
from smartbatch.providers.gemini.errors import ERRORS, FLEX_TIER
from smartbatch.providers.gemini.files import GeminiFiles
from smartbatch.providers.hosts import HOSTS
from smartbatch.providers.http.content import encode_json
from smartbatch.providers.http.endpoint import (
    HttpNetwork,
    checked_url,
    key_source,
    not_pickled,
    own_headers,
    scope_of,
    secrets_of,
    setting,
)
from smartbatch.providers.http.event_stream import EVENT_STREAM_TYPE, EventStream
from smartbatch.providers.http.replies import MAX_BODY
from smartbatch.providers.http.transport import Transport
from smartbatch.shared_prefixes import CachingRules
from smartbatch.types import Answer, Duration, Request

if TYPE_CHECKING:
    from smartbatch.providers.gemini.sdk import GeminiSdk

_HOST = HOSTS["gemini"]
DEFAULT_VERSION = "v1"  # the version that the SDK 3.4 uses; ``v1beta`` has more features

_KEY = re.compile(r"[\x21-\x7e]{1,512}")
_VERSION = re.compile(r"[a-z0-9]{1,32}")
OWN_HEADERS = ("accept", "x-goog-api-key")


class ContentProvider(Provider):
    """Gemini's ``generateContent`` and its stream, at the Gemini API or another host.

    Args:
        name: the prefix of the models.
        scope: see :class:`Provider`.
        errors: reads the errors of the host.
        network: leads to the checked base URL.
        sdk: creates the client over a transport.
        api_version: the version of the API.
    """

    capabilities = Capabilities(streams=True, schemas=True)

    def __init__(
        self,
        *,
        name: str,
        scope: str,
        errors: ErrorReader,
        network: HttpNetwork,
        sdk: Callable[[Transport], GeminiSdk],
        api_version: str,
    ) -> None:
        if not _VERSION.fullmatch(api_version):
            raise ConfigError("api_version (GOOGLE_GENAI_API_VERSION) is not a version such as v1 or v1beta")
        self.name, self.scope = name, scope
        self._errors = evolve(errors, address=ServiceAddress(network.url, versioned=False))
        self._version = api_version
        self.network: HttpNetwork = network
        self._sdk, self._batch_sdk = self.network.through(sdk)

    def generate(self, request: Request, *, model: str, attempt: int, timeout: float) -> Answer:  # noqa: ARG002
        path = f"{self.path(request, model)}:generateContent"
        return read_answer(self._ask(path, self.body(request, model), (request,), timeout))

    def stream(self, request: Request, *, model: str, attempt: int, timeout: float) -> AnswerStream:  # noqa: ARG002
        path = f"{self.path(request, model)}:streamGenerateContent?alt=sse"
        body = self.body(request, model)
        return EventStream(
            lambda left, cutoff: self._sdk.get().begin(
                path, left, EVENT_STREAM_TYPE, cutoff=cutoff, body=body
            ),
            ChunkReader(self._errors),
            request,
            timeout,
        )

    def path(self, request: Request, model: str) -> str:  # noqa: ARG002
        """Return the path of the model that answers a request, as in ``GeminiSdk.send``."""
        return resource(model)

    def body(self, request: Request, model: str) -> dict[str, Any]:
        """Return the body of a call."""
        return body_of(request, model)

    def check(self, request: Request, *, model: str) -> None:
        check_request(request, model)

    def caching(self, model: str) -> CachingRules | None:
        return gemini_rules(model).without_explicit()

    def takes_temperature(self, model: str) -> bool:  # noqa: ARG002
        return True

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.scope!r}, api_version={self._version!r})"

    __reduce__ = not_pickled

    def _ask(
        self, path: str, body: dict[str, Any], requests: Sequence[Request], timeout: float
    ) -> dict[str, Any]:
        reply = self._sdk.get().post(path, encode_json(body), timeout)
        if reply.status != 200:  # this API has no other success status
            raise self._errors.refused(reply, requests)
        return self._errors.answer(reply, requests)


class GeminiProvider(ContentProvider):
    """Generation, streams and embeddings of the Gemini API.

    The key is sent in a header only and never appears in a string or a ``repr``; a provider cannot be
    pickled.

    Vectors are exact. Those of ``gemini-embedding-001`` have unit length only at their full 3,072 dimensions;
    normalize shorter ones before comparing them by dot product.

    Args:
        api_key: ``GOOGLE_API_KEY``, or else ``GEMINI_API_KEY``, by default.
        base_url: ``GOOGLE_GEMINI_BASE_URL`` by default; without the version.
        api_version: ``GOOGLE_GENAI_API_VERSION`` by default, or else ``v1``, and ``v1beta`` for calls with
            explicit caches, which ``v1`` does not have.
        headers: further headers, treated as secrets.
        connect_timeout: maximum time until an address accepts the connection.
        max_body: maximum bytes of a decoded answer.
        flex: whether the server supports ``serviceTier: flex``; by default only Google's own does. The tier
            is used only for models that have a price for it. The bundled table has none, so set one under
            ``prices``.
        allow_http: whether the key may be sent over plain ``http`` to another machine.

    Raises:
        ConfigError: a key is missing or a setting is invalid; the message names it and the variable to set.
    """

    name = _HOST.name
    capabilities = Capabilities(
        max_texts=MAX_TEXTS, max_text_tokens=MAX_TEXT_TOKENS, streams=True, schemas=True
    )

    def __init__(
        self,
        api_key: str | None = None,
        base_url: str | None = None,
        *,
        api_version: str | None = None,
        headers: Mapping[str, str] | None = None,
        connect_timeout: Duration = 10.0,
        max_body: int = MAX_BODY,
        flex: bool | None = None,
        allow_http: bool = False,
    ) -> None:
        key = _check_key(setting(api_key, *_HOST.key_variables))
        chosen = setting(api_version, "GOOGLE_GENAI_API_VERSION")
        version = chosen or DEFAULT_VERSION
        version = "v1beta" if version == "beta" else version
        own = own_headers(headers, OWN_HEADERS)
        url = checked_url(
            base_url,
            _HOST.address_variables,
            _HOST.address,
            carries_secret=True,
            allow_http=allow_http,
        )
        self._flex = _HOST.serves(url.host or "") if flex is None else flex

        def sdk_over(transport: Transport) -> GeminiSdk:
            with one_at_a_time():
                from smartbatch.providers.gemini.sdk import GeminiSdk

            return GeminiSdk(transport, url.url, version, own, api_key=key, vertexai=False)

        super().__init__(
            name=self.name,
            scope=scope_of(self.name, url, key, sorted(own.items())),
            errors=evolve(
                ERRORS,
                secrets=secrets_of(key, own.values()),
                key_source=key_source(api_key, _HOST.key_variables),
            ),
            network=HttpNetwork(url, connect_timeout=connect_timeout, max_body=max_body),
            sdk=sdk_over,
            api_version=version,
        )
        self._batches = GeminiBatches(self.scope, self._errors, self._batch_sdk.get)
        self._cache_path = BETA if chosen is None else ""
        self._has_caches = bool(self._cache_path) or version != DEFAULT_VERSION
        self._caches = GeminiCaches(self.scope, self._errors, self._batch_sdk.get, self._cache_path)
        self._files = GeminiFiles(self.scope, self._errors, self._batch_sdk.get)

    def path(self, request: Request, model: str) -> str:
        names_cache = request.cache is not None and request.cache.cache_id is not None
        return f"{self._cache_path if names_cache else ''}{resource(model)}"

    def caching(self, model: str) -> CachingRules | None:
        rules = gemini_rules(model)
        return rules if self._has_caches else rules.without_explicit()

    def embed(
        self,
        requests: Sequence[Request],
        *,
        model: str,
        attempt: int,  # noqa: ARG002
        timeout: float,
    ) -> list[Answer]:
        path = f"{resource(model)}:batchEmbedContents"
        return read_embeddings(self._ask(path, embed_body(requests, model), requests, timeout), requests)

    def flex(self, model: str) -> FlexTier | None:  # noqa: ARG002
        return FLEX_TIER if self._flex else None

    def check_access(self, timeout: float) -> None:
        reply = self._sdk.get().ask("get", "models", timeout)
        if not reply.ok:
            raise self._errors.refused(reply, ())

    def batches(self) -> BatchApi:
        self.network.open_batches()
        return self._batches

    def files(self) -> FileApi:
        self.network.open_batches()
        return self._files

    def caches(self) -> CacheApi | None:
        if not self._has_caches:
            return None
        self.network.open_batches()
        return self._caches


def _check_key(key: str | None) -> str:
    if key is None:
        raise ConfigError(
            "no API key: set GEMINI_API_KEY in the environment (GOOGLE_API_KEY takes precedence), "
            "or set the provider option api_key"
        )
    if not _KEY.fullmatch(key):
        raise ConfigError("the API key contains characters not allowed in a key; check its source")
    if key.startswith("auth_tokens/"):
        raise ConfigError("the API key is a short-lived token of the live API; set GEMINI_API_KEY to a key")
    return key
