"""Providers by the prefix in ``provider:model``, imported on first use, and the models of clients."""

from __future__ import annotations

import importlib
import inspect
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from attrs import evolve, frozen

from smartbatch._clock import Clock, RealClock
from smartbatch.errors import ConfigError, InvalidRequest, did_you_mean, scrub
from smartbatch.providers.base import Provider
from smartbatch.providers.hosts import HOSTS, Api
from smartbatch.types import Request

# ``factory(name, clock, options)`` returns the provider and the model's name without its options
Factory: TypeAlias = Callable[[str, Clock, Mapping[str, Any]], tuple[Provider, str]]


def create(model: str, *, clock: Clock, options: Mapping[str, Any] | None = None) -> tuple[Provider, str]:
    """Return the provider for ``provider:model`` and the provider's own name for the model.

    Args:
        model: such as ``openai:gpt-5-mini``, ``sim:demo?latency=0.2&faults=0.02`` or
            ``call:my_package.calls:ask``.
        clock: the time source of the embedded provider.
        options: keyword arguments of the provider's class, such as ``base_url``.

    Raises:
        ConfigError: the prefix (the message lists the known ones) or an option is unknown.
    """
    prefix, name = parse_model(model)
    options = {} if options is None else options
    if not isinstance(options, Mapping):
        raise ConfigError(f"provider_options must be a dictionary, not {type(options).__name__}")
    try:
        return _factory_of(prefix, name)(name, clock, options)
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        raise ConfigError(f"{prefix}: {str(error).partition(') ')[2] or error}") from None


def parse_model(model: str) -> tuple[str, str]:
    """Split ``provider:model`` into the prefix and the rest.

    Raises:
        ConfigError: the prefix is missing or unknown, or there is no name.
    """
    prefix, colon, name = model.partition(":")
    prefix, name = prefix.strip().lower(), name.strip()
    if prefix in prefixes() and colon:
        if not name:
            raise ConfigError(f"the model {prefix}: has no name; write {prefix}:NAME")
        return prefix, name
    known = ", ".join(f"{known}:" for known in prefixes())
    shown = scrub(model, limit=80)
    if not colon:
        raise ConfigError(
            f"the model {shown!r} does not name its provider; write provider:model with {known}"
        )
    near = did_you_mean(prefix, prefixes())
    raise ConfigError(f"the model {shown!r} has an unknown provider; use one of {known}{near}")


def prefixes() -> tuple[str, ...]:
    """The known prefixes in alphabetical order."""
    return tuple(sorted({*_factories, *HOSTS}))


def register(prefix: str, factory: Factory) -> None:
    """Register ``prefix:model``; an earlier factory of that prefix is replaced.

    Args:
        prefix: letters, digits, ``-`` and ``_``.
        factory: ``factory(name, clock, options)`` returns the provider and the model's name.

    Raises:
        ConfigError: the prefix has other characters.
    """
    prefix = prefix.lower()
    if not prefix.replace("-", "").replace("_", "").isalnum():
        raise ConfigError(f"the prefix {prefix!r} may contain only letters, digits, - and _")
    _factories[prefix] = factory


def option_types(prefix: str, model: str = "") -> Mapping[str, Any]:
    """Return the option types of a prefix's models, by name; empty for a registered factory."""
    factory = _factory_of(prefix, model)
    if not isinstance(factory, _Adapter):
        return {}
    parameters = inspect.signature(factory.kind(), eval_str=True).parameters
    return {name: parameter.annotation for name, parameter in parameters.items()}


# the model's name, and the positional and keyword arguments of its provider
_Arguments: TypeAlias = tuple[str, tuple[Any, ...], dict[str, Any]]


def _named(model: str, _clock: Clock) -> _Arguments:
    return model, (), {}


def _simulated(model: str, clock: Clock) -> _Arguments:
    from smartbatch.providers.sim.provider import parse_options

    name, _, query = model.partition("?")
    times = {"sleep": clock.sleep, "now": clock.now, "wall": clock.wall}
    return name or "demo", (), {**times, **parse_options(query)}


def _called(model: str, _clock: Clock) -> _Arguments:
    from smartbatch.providers.callable import load_callable

    return model, (load_callable(model),), {}


@frozen
class _Adapter:
    """The factory of one of the library's provider classes, which is imported on first use."""

    module: str
    name: str
    arguments: Callable[[str, Clock], _Arguments] = _named

    def __call__(self, model: str, clock: Clock, options: Mapping[str, Any]) -> tuple[Provider, str]:
        """The error for an unknown option suggests the nearest one."""
        kind = self.kind()
        name, first, own = self.arguments(model, clock)
        try:
            return kind(*first, **{**own, **options}), name
        except TypeError as error:
            found = re.search(r"unexpected keyword argument '(\w+)'", str(error))
            if found is None:
                raise
            near = did_you_mean(found[1], inspect.signature(kind).parameters)
            raise TypeError(f"{error}{near}") from error

    def kind(self) -> Callable[..., Provider]:
        module = importlib.import_module(f"smartbatch.providers.{self.module}")
        kind: Callable[..., Provider] = getattr(module, self.name)
        return kind


_factories: dict[str, Factory] = {
    "anthropic": _Adapter("anthropic.provider", "AnthropicProvider"),
    "call": _Adapter("callable", "CallableProvider", _called),
    "gemini": _Adapter("gemini.provider", "GeminiProvider"),
    "openai": _Adapter("openai.provider", "OpenAIProvider"),
    "sim": _Adapter("sim.provider", "SimProvider", _simulated),
}

_ADAPTERS: Mapping[Api, tuple[str, str]] = {
    "openai": ("openai.provider", "OpenAIProvider"),
    "bedrock": ("anthropic.bedrock", "BedrockProvider"),
    "vertex": ("gemini.vertex", "VertexGeminiProvider"),
    "vertex-claude": ("anthropic.vertex", "VertexClaudeProvider"),
}
"""Modules and classes for the APIs of hosts."""


def example(prefix: str, *, allow_http: bool = True) -> Provider:
    """Create a provider without a key, to read its abilities.

    If ``allow_http`` is False, a plain ``http`` address is an error, as it is with a key. An unusable
    address in the environment raises ``ConfigError``.
    """
    name = "json:dumps" if prefix == "call" else "any"
    options: dict[str, Any] = {}
    if prefix in HOSTS:
        options = {"allow_http": allow_http}
        host = HOSTS[prefix]
        if host.credentials is None:
            options["api_key"] = "none-as-nothing-is-sent"
        if host.region_variables:
            options["region"] = "example"
        if host.address is None and not any(map(os.environ.get, host.address_variables)):
            options["base_url"] = "https://example.invalid"
    return create(f"{prefix}:{name}", clock=RealClock(), options=options)[0]


def _factory_of(prefix: str, model: str) -> Factory:
    """A registered factory takes precedence over a host."""
    if prefix in _factories:
        return _factories[prefix]
    host = HOSTS[prefix]
    api = host.api_of(model)
    if api not in _ADAPTERS:
        raise ConfigError(f"{prefix}: has the API of {api}; use the prefix {api}: with its base URL")
    return _Adapter(*_ADAPTERS[api], lambda model, _clock: (model, (), {"host": host}))


# a model in the public API: ``provider:model``, a user's own provider, or a callable
ModelChoice = str | Provider | Callable[[Request, int], Any]


@frozen(eq=False, repr=False)
class OpenedModel:
    """A provider and one of its models, named without the provider's prefix."""

    provider: Provider
    name: str

    @property
    def label(self) -> str:
        """``provider:model``, as in events and errors."""
        return f"{self.provider.name}:{self.name}"

    def of(self, request: Request) -> OpenedModel:
        """Return the model that a request names, or this one."""
        return self if request.model is None else evolve(self, name=request.model)

    def named(self, model: str) -> str | None:
        """Return the name to use in requests for another model of the same provider; ``None`` for this model.

        ``model`` may have the provider's prefix; a name may itself contain a colon, as in ``llama3:8b``.

        Raises:
            InvalidRequest: the model belongs to another provider, or has options, which belong to the
                client.
        """
        prefix, colon, name = model.partition(":")
        given, own = prefix.strip().lower(), self.provider.name
        if not colon or (given != own and given not in prefixes()):
            given, name = own, model
        name = name.strip()
        shown = scrub(model, limit=80)
        if given != own or (self.provider.own_code and colon and name != self.name):
            raise InvalidRequest(
                f"model {shown!r} belongs to a provider other than this client's, {own}: create a second "
                f"client for it, as in BatchingClient({shown!r})",
                field="model",
            )
        if not name or (own == "sim" and "?" in name):
            raise InvalidRequest(
                f"model {shown!r} is not a model name of {own}; options belong to the client", field="model"
            )
        return None if name == self.name else name

    def is_same(self, provider: Provider, name: str) -> bool:
        """Compares providers by identity."""
        return provider is self.provider and name == self.name

    def check(self, request: Request) -> None:
        host = None if request.model is None else HOSTS.get(self.provider.name)
        if request.model is not None and host and host.api_of(request.model) != host.api_of(self.name):
            shown = scrub(request.model, limit=80)
            raise InvalidRequest(
                f"model {shown!r} uses a different API than {self.label}: create a second client for it",
                field="model",
            )
        if request.embedding is not None and not self.provider.capabilities.max_texts:
            raise InvalidRequest(f"{self.provider.name} does not support embeddings", field="embedding")
        mode, modes = request.params.schema_mode, self.provider.capabilities.schema_modes
        if mode is not None and mode not in modes:
            raise InvalidRequest(
                f"{self.provider.name} does not support schema_mode={mode!r}, "
                f"only {', '.join(sorted(modes))}",
                field="schema_mode",
            )
        self.provider.check(request, model=request.model or self.name)


def open_model(
    model: ModelChoice, provider: Provider | None, options: Mapping[str, Any] | None, clock: Clock
) -> OpenedModel:
    """Return the provider of ``model``, and the provider's own name for the model.

    Args:
        model: see :data:`ModelChoice`.
        provider: an adapter created by the user, for a ``model`` without a prefix.
        options: keyword arguments of the adapter with the prefix.
        clock: the time source of the embedded provider.

    Raises:
        ConfigError: the prefix is unknown, a key is missing, or options cannot be used.
    """
    if options and (provider is not None or not isinstance(model, str)):
        raise ConfigError("provider_options require a provider named by its prefix; this one already exists")
    if isinstance(model, str):
        if provider is not None:
            return OpenedModel(provider, model)
        return OpenedModel(*create(model, clock=clock, options=options))
    if isinstance(model, Provider):
        return OpenedModel(model, "default")
    if callable(model):
        from smartbatch.providers.callable import CallableProvider

        return OpenedModel(CallableProvider(model), getattr(model, "__name__", "callable"))
    raise ConfigError(f"model must be a string, a provider or a callable, not {type(model).__name__}")
