"""Anthropic's Messages API, through the vendor's SDK, which is imported when it is first needed."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from smartbatch.errors import ConfigError, InvalidRequest, ProviderError
from smartbatch.providers.anthropic.answers import read_message
from smartbatch.providers.anthropic.batches import AnthropicBatches
from smartbatch.providers.anthropic.bodies import OLD_VERSION, VERSION, check_request, message_body
from smartbatch.providers.anthropic.errors import read_error
from smartbatch.providers.anthropic.streams import MessageStream
from smartbatch.providers.base import AnswerStream, Capabilities, Provider
from smartbatch.providers.batch_api import BatchApi
from smartbatch.providers.foreign_text import PLAIN_ID
from smartbatch.providers.http.batch_transport import BatchTransport
from smartbatch.providers.http.endpoint import (
    check_headers,
    check_url,
    not_pickled,
    scope_of,
    secrets_of,
    setting,
)
from smartbatch.providers.http.network_errors import failure_of_call
from smartbatch.providers.http.transport import DEFAULT_WORKERS, MAX_BODY, Transport
from smartbatch.types import Answer, Generation, Request

if TYPE_CHECKING:
    import anthropic

__all__ = ["AnthropicProvider"]

DEFAULT_BASE_URL = "https://api.anthropic.com"
DEFAULT_MAX_TOKENS = 4096

_PATH = "/v1/messages"
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class AnthropicProvider(Provider):
    """Messages at Anthropic, or at any server that speaks its API.

    The key is never part of a text, a ``repr`` or a pickle; a provider cannot be pickled at all.

    Args:
        api_key: ``ANTHROPIC_API_KEY`` by default. Optional for servers other than Anthropic's.
        auth_token: ``ANTHROPIC_AUTH_TOKEN`` by default; counts when there is no key.
        base_url: without the version, such as ``https://api.anthropic.com``; by default
            ``ANTHROPIC_BASE_URL``.
        api_version: ``2026-10-21`` takes no sampling parameters: they are dropped, which ``Answer.dropped``
            tells. ``2023-06-01`` sends them, for models that still take them.
        default_max_tokens: sent for requests without ``max_tokens``, which the API requires.
        headers: further headers; they count as secrets. With an ``x-api-key`` among them no
            ``Authorization`` is sent, for gateways that only know that header.
        connect_timeout: most seconds until an address accepts the connection.
        max_body: most bytes of a decoded answer.
        allow_http: send the key over plain ``http`` to another machine.

    Raises:
        ConfigError: for a missing key or a setting that cannot be used; names it and the variable to set.
    """

    name = "anthropic"
    capabilities = Capabilities(max_shared=1, streams=True, schemas=True)

    def __init__(
        self,
        api_key: str | None = None,
        base_url: str | None = None,
        *,
        auth_token: str | None = None,
        api_version: str = VERSION,
        default_max_tokens: int = DEFAULT_MAX_TOKENS,
        headers: Mapping[str, str] | None = None,
        connect_timeout: float = 10.0,
        max_body: int = MAX_BODY,
        allow_http: bool = False,
    ) -> None:
        _check_settings(api_version, default_max_tokens)
        own = dict(headers or {})
        check_headers(own)
        key, token = _credentials(api_key, auth_token)
        # The SDK adds these by itself; known here so that they are kept out of errors.
        custom = _custom_headers(os.environ.get("ANTHROPIC_CUSTOM_HEADERS", ""))
        url = check_url(
            setting(base_url, "ANTHROPIC_BASE_URL") or DEFAULT_BASE_URL,
            example=DEFAULT_BASE_URL,
            source="base_url= or ANTHROPIC_BASE_URL",
            carries_secret=bool(key or token or own or custom),
            allow_http=allow_http,
        )
        known = {name.lower() for name in (*own, *custom)}
        if not (key or token or known & {"authorization", "x-api-key"}) and url.host == "api.anthropic.com":
            raise ConfigError(
                "no API key: set ANTHROPIC_API_KEY (or ANTHROPIC_AUTH_TOKEN) in the environment, "
                "or pass api_key="
            )
        self._secrets = secrets_of(key, token, tuple(own.values()), tuple(custom.values()))
        self._version = api_version
        self._default_max_tokens = default_max_tokens
        self._settings = (key, token, own, known)
        self.scope = scope_of(self.name, url, key, token, sorted({**custom, **own}.items()))
        self._address = url.url
        self._batch_transport = BatchTransport(url, {}, connect_timeout=connect_timeout, max_body=max_body)
        self._batches: AnthropicBatches | None = None
        self._transport = Transport(url, {}, connect_timeout=connect_timeout, max_body=max_body)
        self._lock = threading.Lock()
        self._client: anthropic.Anthropic | None = None
        self._checked: Generation | None = None

    def generate(self, request: Request, *, model: str, attempt: int, timeout: float) -> Answer:  # noqa: ARG002
        """Make one call; see :meth:`Provider.generate <smartbatch.providers.base.Provider.generate>`.

        Raises:
            ProviderError: for every failure; ``maybe_billed`` says whether the work may have been done.
        """
        from smartbatch.providers.http.sdk_bridge import reply_of

        body, dropped = message_body(request, model, self._version, self._default_max_tokens)
        response = self._post(request, body, timeout, stream=False)
        return read_message(reply_of(response), request, dropped, *self._secrets)

    def stream(self, request: Request, *, model: str, attempt: int, timeout: float) -> AnswerStream:  # noqa: ARG002
        """Begin to stream one answer; see :meth:`Provider.stream`.

        Raises:
            ProviderError: when the provider did not accept the request.
        """
        from smartbatch.providers.http.sdk_bridge import live_of

        body, dropped = message_body(request, model, self._version, self._default_max_tokens)
        response = self._post(request, {**body, "stream": True}, timeout, stream=True)
        return MessageStream(live_of(response), request, dropped, *self._secrets)

    def check(self, request: Request, *, model: str) -> None:
        """Refuse what this API cannot take, before the request is queued.

        Raises:
            InvalidRequest: names the field.
        """
        if not PLAIN_ID.fullmatch(model):
            raise InvalidRequest("the model's name is empty or has characters no model has", field="model")
        if request.params is not self._checked or not isinstance(request.prompt, str):
            check_request(request, self._version)
            self._checked = request.params

    def batches(self) -> BatchApi:
        """Return the API of Message Batches; it has connections of its own."""
        with self._lock:
            if self._batches is None:
                self._batch_transport.open(DEFAULT_WORKERS)
                self._batches = AnthropicBatches(
                    self.scope, self._batch_transport, self._build, self._message, self._secrets
                )
            return self._batches

    def classify(self, error: Exception) -> ProviderError:
        """Return the meaning of an exception; those of the network have their own table."""
        return failure_of_call(error, self._transport.place) or super().classify(error)

    def open(self, workers: int) -> None:
        """Import the SDK, and make room for ``workers`` calls at once."""
        self._transport.open(workers)
        self._sdk()

    def close(self) -> None:
        """Close all connections; calls under way end at once with ``NETWORK_ERROR``, code ``closed``."""
        self._transport.close()
        self._batch_transport.close()
        self._batches = None  # asked for again, it is open again

    def abandon(self) -> None:
        """Drop what a fork brought along; the parent's connections are not disturbed."""
        self._lock = threading.Lock()
        self._client = None
        self._transport.abandon()
        if self._batches is not None:
            self._batches.abandon()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.scope!r}, api_version={self._version!r})"

    __reduce__ = not_pickled

    def _post(self, request: Request, body: Mapping[str, Any], timeout: float, *, stream: bool) -> Any:
        """Send through the SDK's lowest call that signs requests and knows errors; it parses nothing."""
        import anthropic
        import httpx2

        from smartbatch.providers.http.sdk_bridge import reply_of, verdict_of

        client = self._client or self._sdk()
        content = _encode(body).encode("ascii")
        headers = {"Accept": "text/event-stream"} if stream else {}
        options: Any = {"timeout": timeout, "headers": headers}
        try:
            return client.post(
                _PATH,
                content=content,
                cast_to=httpx2.Response,
                options=options,
                stream=stream,
                stream_cls=anthropic.Stream[Any],
            )
        except anthropic.APIStatusError as error:
            problem = read_error(reply_of(error.response), request, *self._secrets)
        except anthropic.APIConnectionError as error:
            problem = verdict_of(error) or self.classify(error)
        # Raised out here: the SDK's errors hold the request with the key and the prompt.
        raise problem

    def _sdk(self) -> anthropic.Anthropic:
        with self._lock:
            if self._client is None:
                self._client = self._build(self._transport)
            return self._client

    def _message(self, request: Request, model: str) -> tuple[Mapping[str, Any], tuple[tuple[str, str], ...]]:
        return message_body(request, model, self._version, self._default_max_tokens)

    def _build(self, transport: Transport) -> anthropic.Anthropic:
        import anthropic

        from smartbatch.providers.http.sdk_bridge import http_client

        _keep_prompts_out_of_logs()
        key, token, own, known = self._settings
        headers: dict[str, Any] = {"anthropic-version": self._version, **own}
        if "authorization" not in known and ("x-api-key" in known or not (key or token)):
            headers["Authorization"] = anthropic.Omit()
        # Something must be passed for both, or the SDK would look for credentials elsewhere.
        identity: dict[str, Any] = {"auth_token": token} if token and not key else {"api_key": key or "none"}
        return anthropic.Anthropic(
            **identity,
            base_url=self._address,
            max_retries=0,
            timeout=600.0,
            default_headers=headers,
            open_telemetry=False,
            http_client=http_client(transport),
        )


def _credentials(api_key: str | None, auth_token: str | None) -> tuple[str | None, str | None]:
    """Key or token: what was passed goes before the environment, the key before the token."""
    if api_key is not None and auth_token is not None:
        raise ConfigError("api_key and auth_token are two ways to say the same; pass one of them")
    key = setting(api_key, "ANTHROPIC_API_KEY") if auth_token is None else None
    token = setting(auth_token, "ANTHROPIC_AUTH_TOKEN") if key is None else None
    secret = key or token
    if secret is not None and not (secret.isascii() and secret.isprintable()):
        raise ConfigError("the API key or token has characters HTTP does not allow; check its source")
    return key, token


def _check_settings(version: str, max_tokens: int) -> None:
    if version not in (VERSION, OLD_VERSION):
        raise ConfigError(f"api_version={version!r} is unknown; use {VERSION!r} or {OLD_VERSION!r}")
    if max_tokens < 1:
        raise ConfigError(f"default_max_tokens={max_tokens!r} must be at least 1")


def _custom_headers(text: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.split("\n"))
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}


def _not_a_body(record: logging.LogRecord) -> bool:
    return not (isinstance(record.msg, str) and record.msg.startswith("Request options"))


def _keep_prompts_out_of_logs() -> None:
    """At level DEBUG the SDK logs whole requests; only who sets ``ANTHROPIC_LOG`` has asked for that."""
    logger = logging.getLogger("anthropic._base_client")
    if not os.environ.get("ANTHROPIC_LOG") and _not_a_body not in logger.filters:
        logger.addFilter(_not_a_body)
