"""Anthropic's Messages API, through the vendor's SDK, which is imported on first use."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from attrs import evolve

from smartbatch._fork import one_at_a_time
from smartbatch.errors import ConfigError, InvalidRequest
from smartbatch.providers.anthropic.answers import MessageReader, read_message
from smartbatch.providers.anthropic.batches import AnthropicBatches
from smartbatch.providers.anthropic.bodies import API_VERSION, OLD_API_VERSION, check_request, message_body
from smartbatch.providers.anthropic.errors import ERRORS
from smartbatch.providers.anthropic.files import AnthropicFiles
from smartbatch.providers.anthropic.parts import BLOCKS
from smartbatch.providers.base import AnswerStream, Capabilities, Provider
from smartbatch.providers.batch_api import BatchApi
from smartbatch.providers.cache_marks import anthropic_rules
from smartbatch.providers.error_reader import ErrorReader, ServiceAddress
from smartbatch.providers.file_api import FileApi
from smartbatch.providers.foreign_text import PLAIN_ID
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
from smartbatch.providers.http.event_stream import EVENT_STREAM_TYPE, EventStream, events
from smartbatch.providers.http.replies import MAX_BODY
from smartbatch.providers.http.transport import Transport
from smartbatch.providers.media_parts import PartForm
from smartbatch.shared_prefixes import CachingRules
from smartbatch.types import Answer, Duration, Generation, Request

if TYPE_CHECKING:
    from smartbatch.providers.anthropic.sdk import AnthropicSdk, MessagesSdk

_HOST = HOSTS["anthropic"]
DEFAULT_MAX_TOKENS = 4096

_MESSAGES_PATH = "/v1/messages"


class MessagesProvider(Provider):
    """Messages in Anthropic's format, at Anthropic or another host.

    Args:
        name: the prefix of the models.
        scope: see :class:`Provider`.
        errors: reads the errors of the host.
        network: leads to the checked base URL.
        sdk: creates the client over a transport.
        api_version: the version of the API, which decides which parameters are sent.
        default_max_tokens: sent for requests without ``max_tokens``.
    """

    capabilities = Capabilities(max_shared=1, streams=True, schemas=True)
    models = PLAIN_ID
    """The form of a model's name."""
    versions = (API_VERSION, OLD_API_VERSION)
    """Accepted values of ``api_version``."""
    parts: PartForm = BLOCKS
    """What the API accepts in the content of messages."""
    accept = EVENT_STREAM_TYPE
    """The content type that streams ask for."""
    split: Callable[[Iterable[bytes]], Iterator[tuple[str, bytes]]] = staticmethod(events)
    """Splits the body of a stream into events."""

    def __init__(
        self,
        *,
        name: str,
        scope: str,
        errors: ErrorReader,
        network: HttpNetwork,
        sdk: Callable[[Transport], MessagesSdk],
        api_version: str,
        default_max_tokens: int,
    ) -> None:
        if api_version not in self.versions:
            known = " or ".join(map(repr, self.versions))
            raise ConfigError(f"api_version={api_version!r} is unknown; use {known}")
        if default_max_tokens < 1:
            raise ConfigError(f"default_max_tokens={default_max_tokens!r} must be at least 1")
        self.name, self.scope = name, scope
        self._errors = evolve(errors, address=ServiceAddress(network.url, versioned=False))
        self._version = api_version
        self._default_max_tokens = default_max_tokens
        self.capabilities = evolve(type(self).capabilities, output_limit=default_max_tokens)
        self.network: HttpNetwork = network
        self._sdk, self._batch_sdk = self.network.through(sdk)
        self._checked: tuple[Generation | None, str] = (None, "")

    def generate(self, request: Request, *, model: str, attempt: int, timeout: float) -> Answer:  # noqa: ARG002
        body, dropped = self._message(request, model)
        path, body = self.call(body, stream=False)
        reply = self._sdk.get().post(path, encode_json(body), timeout)
        return read_message(self._errors.answer(reply, (request,)), reply, dropped, self._errors)

    def stream(self, request: Request, *, model: str, attempt: int, timeout: float) -> AnswerStream:  # noqa: ARG002
        body, dropped = self._message(request, model)
        path, body = self.call(body, stream=True)
        content = encode_json(body)
        return EventStream(
            lambda left, cutoff: self._sdk.get().begin(path, left, self.accept, cutoff=cutoff, body=content),
            MessageReader(self._errors, dropped),
            request,
            timeout,
            split=self.split,
        )

    def call(self, body: dict[str, Any], *, stream: bool) -> tuple[str, dict[str, Any]]:
        """Return the path and the body of a call; ``body`` is that of Anthropic's own API."""
        return _MESSAGES_PATH, {**body, "stream": True} if stream else body

    def check(self, request: Request, *, model: str) -> None:
        if not self.models.fullmatch(model):
            raise InvalidRequest("the model name is empty or contains invalid characters", field="model")
        params, checked_model = self._checked
        if request.params is not params or model != checked_model or not isinstance(request.prompt, str):
            check_request(request, model, self._version, self._default_max_tokens, self.parts)
            self._checked = (request.params, model)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.scope!r}, api_version={self._version!r})"

    __reduce__ = not_pickled

    def _message(self, request: Request, model: str) -> tuple[dict[str, Any], tuple[tuple[str, str], ...]]:
        return message_body(request, model, self._version, self._default_max_tokens, self.parts)


class AnthropicProvider(MessagesProvider):
    """Messages of Anthropic, or of any server that implements its API.

    The key never appears in a string, a ``repr`` or a pickle; a provider cannot be pickled.

    Args:
        api_key: ``ANTHROPIC_API_KEY`` by default. Optional for servers other than Anthropic's.
        auth_token: ``ANTHROPIC_AUTH_TOKEN`` by default; used if there is no key.
        base_url: ``ANTHROPIC_BASE_URL`` by default; without the version, such as
            ``https://api.anthropic.com``.
        api_version: ``2026-10-21`` accepts no sampling parameters; they are dropped and listed in
            ``Answer.dropped``. ``2023-06-01`` sends them, for models that still accept them.
        default_max_tokens: sent for requests without ``max_tokens``, which the API requires.
        headers: further headers, treated as secrets. If ``x-api-key`` is one of them, no ``Authorization``
            is sent, for gateways that accept only that header.
        connect_timeout: maximum time until an address accepts the connection.
        max_body: maximum bytes of a decoded answer.
        allow_http: whether the key may be sent over plain ``http`` to another machine.

    Raises:
        ConfigError: a key is missing or a setting is invalid; the message names it and the variable to set.
    """

    name = _HOST.name

    def __init__(
        self,
        api_key: str | None = None,
        base_url: str | None = None,
        *,
        auth_token: str | None = None,
        api_version: str = API_VERSION,
        default_max_tokens: int = DEFAULT_MAX_TOKENS,
        headers: Mapping[str, str] | None = None,
        connect_timeout: Duration = 10.0,
        max_body: int = MAX_BODY,
        allow_http: bool = False,
    ) -> None:
        own = own_headers(headers)
        key, token = _credentials(api_key, auth_token)
        custom = custom_headers()
        url = checked_url(
            base_url,
            _HOST.address_variables,
            _HOST.address,
            carries_secret=bool(key or token or own or custom),
            allow_http=allow_http,
        )
        known = frozenset(name.lower() for name in (*own, *custom))
        if not (key or token or known & {"authorization", "x-api-key"}) and _HOST.serves(url.host or ""):
            raise ConfigError(
                "no API key: set ANTHROPIC_API_KEY (or ANTHROPIC_AUTH_TOKEN) in the environment, "
                "or set the provider option api_key"
            )

        def sdk_over(transport: Transport) -> AnthropicSdk:
            with one_at_a_time():
                from smartbatch.providers.anthropic.sdk import AnthropicSdk

            authorization = "authorization" in known or ("x-api-key" not in known and bool(key or token))
            sent = {"anthropic-version": api_version, **own}
            return AnthropicSdk(transport, url.url, key, token, sent, authorization=authorization)

        super().__init__(
            name=self.name,
            scope=scope_of(self.name, url, key, token, sorted({**custom, **own}.items())),
            errors=evolve(
                ERRORS,
                secrets=secrets_of(key, token, own.values(), custom.values()),
                key_source=key_source(api_key or auth_token, _HOST.key_variables, own),
            ),
            network=HttpNetwork(url, connect_timeout=connect_timeout, max_body=max_body),
            sdk=sdk_over,
            api_version=api_version,
            default_max_tokens=default_max_tokens,
        )
        self._batches = AnthropicBatches(
            self.scope,
            self._errors,
            sdk=self._batch_sdk.get,
            leads_to=self.network.batches.leads_to,
            message=self._message,
        )

        self._files = AnthropicFiles(self.scope, self._errors, sdk=self._batch_sdk.get)

    def caching(self, model: str) -> CachingRules | None:
        return anthropic_rules(model)

    def check_access(self, timeout: float) -> None:
        reply = self._sdk.get().ask("get", "/v1/models", timeout)
        if not reply.ok:
            raise self._errors.refused(reply, ())

    def batches(self) -> BatchApi:
        self.network.open_batches()
        return self._batches

    def files(self) -> FileApi | None:
        """The older version of the API has no files."""
        if self._version != API_VERSION:
            return None
        self.network.open_batches()
        return self._files


def custom_headers() -> dict[str, str]:
    """Return the headers that the SDK adds itself, to keep them out of errors."""
    pairs = (line.partition(":") for line in os.environ.get("ANTHROPIC_CUSTOM_HEADERS", "").split("\n"))
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}


def _credentials(api_key: str | None, auth_token: str | None) -> tuple[str | None, str | None]:
    """Arguments take precedence over the environment, and the key takes precedence over the token."""
    if api_key is not None and auth_token is not None:
        raise ConfigError("api_key and auth_token are alternatives; pass one of them")
    key = setting(api_key, "ANTHROPIC_API_KEY") if auth_token is None else None
    token = setting(auth_token, "ANTHROPIC_AUTH_TOKEN") if key is None else None
    secret = key or token
    if secret is not None and not (secret.isascii() and secret.isprintable()):
        raise ConfigError("the API key or token contains characters not allowed in HTTP; check its source")
    return key, token
