"""OpenAI and compatible servers, over a pool of persistent connections."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

from attrs import evolve
from urllib3 import HTTPHeaderDict

from smartbatch._fork import PerProcess, one_at_a_time
from smartbatch._version import __version__
from smartbatch.errors import ConfigError, InvalidRequest, ProviderError
from smartbatch.providers.base import AnswerStream, Capabilities, FlexTier, Provider
from smartbatch.providers.batch_api import BatchApi
from smartbatch.providers.cache_marks import openai_rules
from smartbatch.providers.conversation import check_effort
from smartbatch.providers.error_reader import ServiceAddress
from smartbatch.providers.file_api import FileApi
from smartbatch.providers.hosts import HOSTS, Host, host_at
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
from smartbatch.providers.http.event_stream import EventStream
from smartbatch.providers.http.replies import MAX_BODY, Reply
from smartbatch.providers.media_parts import check_parts
from smartbatch.providers.openai.answers import read_chat, read_embeddings, read_response
from smartbatch.providers.openai.batches import OpenAIBatches
from smartbatch.providers.openai.bodies import (
    MAX_TEXT_TOKENS,
    MAX_TEXTS,
    chat_body,
    check_params,
    embeddings_body,
    response_body,
)
from smartbatch.providers.openai.dialect import BatchDialect
from smartbatch.providers.openai.errors import (
    ERRORS,
    FLEX_TIER,
    EncodingFormat,
    MaxTokensField,
    ServerParameters,
    understand,
)
from smartbatch.providers.openai.files import OpenAIFiles
from smartbatch.providers.openai.parts import CHAT, RESPONSES, form_for
from smartbatch.providers.openai.streams import ChatReader, ResponseReader
from smartbatch.shared_prefixes import CachingRules
from smartbatch.types import Answer, Duration, Generation, Request, SchemaMode

if TYPE_CHECKING:
    from smartbatch.providers.http.requests_bridge import RequestsSession

_OUR_HEADERS = {
    "Accept": "application/json",
    "User-Agent": f"smartbatch/{__version__}",
}
_MODEL = re.compile(r"[^\x00-\x1f\x7f]{1,256}")

_REASONS = re.compile(r"(?:.*/)?(?:o\d|gpt-5)")  # models that reject a temperature


class OpenAIProvider(Provider):
    """The Chat Completions or Responses API of OpenAI, another host, or any compatible server.

    The key never appears in a string, a ``repr`` or a pickle; a provider cannot be pickled.

    Args:
        api_key: ``OPENAI_API_KEY`` by default, or the host's own variable. Optional for unknown servers.
        base_url: ``OPENAI_BASE_URL`` by default, or the host's own variable; includes the version, as in
            ``https://api.openai.com/v1``.
        host: the host's record; by default that of the base URL's server.
        region: one of the host's regions, instead of ``base_url``.
        organization: ``OPENAI_ORG_ID`` by default.
        project: ``OPENAI_PROJECT_ID`` by default.
        api: ``chat`` for ``/chat/completions``, ``responses`` for ``/responses``.
        headers: further headers, such as ``{"api-key": …}``, treated as secrets.
        connect_timeout: maximum seconds until an address accepts the connection.
        max_body: maximum bytes of a decoded answer.
        max_tokens_field: the name of ``max_tokens`` in a chat body; by default the host's, and the other one
            as soon as the server rejects it.
        batch_window: the time allowed for a batch, by default the host's; some accept ``1h`` or ``7d``.
        batch_purpose: the purpose of a batch's input file, by default the host's.
        stream_usage: whether to send ``stream_options`` with streamed chats, to receive their usage. ``None``
            sends it until the server rejects it.
        encoding_format: format of embeddings: ``base64``, ``float``, or ``omit`` to leave the choice to the
            server. ``None`` sends ``base64`` until the server rejects it.
        send_seed: whether to send a request's ``seed``. ``None`` sends it until the server rejects it;
            results then show that it was not sent.
        flex: whether the server supports ``service_tier: flex``; by default as the host's record says. The
            tier is used only for models that have a price for it.
        uploads: whether prompts may refer by id to files with purpose ``user_data``; by default, only at
            OpenAI's own server. See the guide to files.
        prompt_cache: whether the server accepts ``prompt_cache_key`` and, from gpt-5.6 on, breakpoints; by
            default as the host's record says.
        allow_http: whether the key may be sent over plain ``http`` to another machine.

    Raises:
        ConfigError: a key is missing or a setting is invalid; the message names it and the variable to set.
    """

    name = "openai"
    capabilities = Capabilities(
        streams=True,
        schemas=True,
        schema_modes=frozenset(get_args(SchemaMode)),
        max_texts=MAX_TEXTS,
        max_text_tokens=MAX_TEXT_TOKENS,
    )

    def __init__(
        self,
        api_key: str | None = None,
        base_url: str | None = None,
        *,
        host: Host | None = None,
        region: str | None = None,
        organization: str | None = None,
        project: str | None = None,
        api: Literal["chat", "responses"] = "chat",
        headers: Mapping[str, str] | None = None,
        connect_timeout: Duration = 10.0,
        max_body: int = MAX_BODY,
        max_tokens_field: MaxTokensField | None = None,
        stream_usage: bool | None = None,
        encoding_format: EncodingFormat | None = None,
        send_seed: bool | None = None,
        batch_window: str | None = None,
        batch_purpose: str | None = None,
        flex: bool | None = None,
        uploads: bool | None = None,
        prompt_cache: bool | None = None,
        allow_http: bool = False,
    ) -> None:
        if api not in ("chat", "responses"):
            raise ConfigError(f"api={api!r} is unknown; use 'chat' or 'responses'")
        prefix = host or HOSTS[type(self).name]
        key = setting(api_key, *prefix.key_variables)
        organization = setting(organization, *prefix.account_variables[:1])
        project = setting(project, *prefix.account_variables[1:])
        own = own_headers(headers)
        url = checked_url(
            base_url,
            prefix.address_variables,
            prefix.address_in(region),
            carries_secret=bool(key or own),
            allow_http=allow_http,
            path=prefix.path,
        )
        host = host or host_at(url.host or "")
        if key is None:
            _check_keyless(host, own, prefix.key_variables)
        self._errors = evolve(
            ERRORS,
            understand=partial(understand, kinds=host.error_kinds),
            secrets=secrets_of(key, own.values()),
            address=ServiceAddress(url.url, versioned=True),
            key_source=key_source(api_key, prefix.key_variables, own),
        )
        self._api = api
        self._path = "/chat/completions" if api == "chat" else "/responses"
        self._parameters = ServerParameters(
            host,
            encoding_format=encoding_format,
            stream_usage=stream_usage,
            send_seed=send_seed,
            max_tokens_field=max_tokens_field,
        )
        self._reasoning = host.reasoning_turns
        self._caches = host.prompt_cache if prompt_cache is None else prompt_cache
        self._flex = host.flex if flex is None else flex
        self._checked: Generation | None = None
        self.name = prefix.name
        self.scope = scope_of(self.name, url, key, organization, project, sorted(own.items()))
        self.capabilities = evolve(
            type(self).capabilities,
            max_texts=MAX_TEXTS if host.embeddings else 0,
            priced=host.priced,
            max_calls=host.max_calls,
        )
        sent = _headers(host.key_header, key, organization, project, own)
        self.network: HttpNetwork = HttpNetwork(url, sent, connect_timeout=connect_timeout, max_body=max_body)
        session = PerProcess(partial(_session, self.network, url.url, sent)).get
        takes_uploads = host.uploads if uploads is None else uploads
        self._files = OpenAIFiles(session, self._errors, scope=self.scope, api=api, uploads=takes_uploads)
        self._batches: OpenAIBatches | None = None
        if (dialect := host.batches) is not None:
            window, purpose = batch_window or dialect.window, batch_purpose or dialect.purpose
            self._batches = self._batch_api(session, evolve(dialect, window=window, purpose=purpose))

    def _batch_api(self, session: Callable[[], RequestsSession], dialect: BatchDialect) -> OpenAIBatches:
        return OpenAIBatches(
            session,
            self._errors,
            name=self.name,
            scope=self.scope,
            api=self._api,
            body=self._body,
            parameters=self._parameters,
            caching=self.caching,
            dialect=dialect,
        )

    def generate(self, request: Request, *, model: str, attempt: int, timeout: float) -> Answer:  # noqa: ARG002
        body = self._body((request,), model)
        data, reply = self._ask(self._path, body, (request,), timeout)
        answer = read_chat(data, reply) if self._api == "chat" else read_response(data, reply)
        dropped = self._parameters.dropped(request, body)
        return evolve(answer, dropped=dropped) if dropped else answer

    def stream(self, request: Request, *, model: str, attempt: int, timeout: float) -> AnswerStream:  # noqa: ARG002
        body = {**self._body((request,), model), "stream": True}
        if self._api == "chat" and self._parameters.sends("stream_options", model):
            body["stream_options"] = {"include_usage": True}
        transport = self.network.realtime
        reader = (ChatReader if self._api == "chat" else ResponseReader)(self._errors)
        reader.dropped = self._parameters.dropped(request, body)
        return EventStream(
            partial(transport.begin, transport.head(self._path), encode_json(body)),
            reader,
            request,
            timeout,
            meaning=partial(self._parameters.learn, body=body, requests=(request,)),
        )

    def _body(self, requests: Sequence[Request], model: str) -> dict[str, Any]:
        if requests[0].embedding is not None:
            return embeddings_body(requests, model, self._parameters.encoding_format(model))
        if self._api == "chat":
            return chat_body(requests[0], model, self._parameters, reasoning=self._reasoning)
        return response_body(requests[0], model, self._parameters)

    def embed(
        self,
        requests: Sequence[Request],
        *,
        model: str,
        attempt: int,  # noqa: ARG002
        timeout: float,
    ) -> list[Answer]:
        data, reply = self._ask("/embeddings", self._body(requests, model), requests, timeout)
        return read_embeddings(data, reply, requests)

    def _ask(
        self, path: str, body: dict[str, Any], requests: Sequence[Request], timeout: float
    ) -> tuple[dict[str, Any], Reply]:
        reply = self.network.realtime.post(path, encode_json(body), timeout)
        try:
            return self._errors.answer(reply, requests), reply
        except ProviderError as error:
            raise self._parameters.learn(error, body, requests) from None

    def batches(self) -> BatchApi | None:
        if self._batches is not None:
            self.network.open_batches()
        return self._batches

    def files(self) -> FileApi:
        self.network.open_batches()
        return self._files

    def check(self, request: Request, *, model: str) -> None:
        if not _MODEL.fullmatch(model):
            raise InvalidRequest("the model name is empty or contains control characters", field="model")
        if request.params is not self._checked:
            check_params(request.params, self._api)
            self._checked = request.params
        form = CHAT if self._api == "chat" else RESPONSES
        check_parts(request.prompt, form_for(form, model) if self.name == OpenAIProvider.name else form)
        if (effort := request.params.reasoning_effort) is not None:
            check_effort(effort, model, self._parameters.efforts.levels_of(model))

    def check_access(self, timeout: float) -> None:
        reply = self.network.realtime.get("/models", timeout)
        if not reply.ok:
            raise self._errors.refused(reply, ())

    def flex(self, model: str) -> FlexTier | None:  # noqa: ARG002
        return FLEX_TIER if self._flex else None

    def caching(self, model: str) -> CachingRules | None:
        return openai_rules(model) if self._caches else None

    def takes_temperature(self, model: str) -> bool:
        return _REASONS.match(model) is None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.scope!r}, api={self._api!r})"

    __reduce__ = not_pickled


def _check_keyless(host: Host, own: Mapping[str, str], variables: Sequence[str]) -> None:
    """Raise ``ConfigError`` if a host needs a key and the caller's headers contain none."""
    has_key_header = any(name.lower() in ("authorization", host.key_header.lower()) for name in own)
    if host.needs_key and not has_key_header:
        raise ConfigError(
            f"no API key: set {' or '.join(variables)} in the environment, or set the provider option api_key"
        )


def _session(network: HttpNetwork, url: str, sent: Mapping[str, str]) -> RequestsSession:
    with one_at_a_time():  # ``requests`` is imported with the first file or batch
        from smartbatch.providers.http.requests_bridge import RequestsSession

    return RequestsSession(network.batches, url, sent)


def _headers(
    key_header: str, key: str | None, organization: str | None, project: str | None, own: Mapping[str, str]
) -> dict[str, str]:
    headers = HTTPHeaderDict(_OUR_HEADERS)
    if key:
        headers[key_header] = f"Bearer {key}" if key_header == "Authorization" else key
    if organization:
        headers["OpenAI-Organization"] = organization
    if project:
        headers["OpenAI-Project"] = project
    for name, value in own.items():  # they replace the defaults, regardless of case
        headers[name] = value
    return own_headers(dict(headers))
