"""A model as a client uses it: the provider that answers, and the model's name there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

from smartbatch.errors import ConfigError, InvalidRequest
from smartbatch.providers.base import Provider
from smartbatch.providers.registry import Ticker, create
from smartbatch.types import Request

__all__ = ["ModelChoice", "OpenedModel", "open_model"]

ModelChoice = str | Provider | Callable[[Request, int], Any]
"""What users may pass as a model: ``provider:model``, a provider of their own, or a callable."""


@frozen(eq=False)
class OpenedModel:
    """A provider and the name of one of its models, without the provider's prefix."""

    provider: Provider
    name: str

    @property
    def label(self) -> str:
        """``provider:model``, as events and errors name it."""
        return f"{self.provider.name}:{self.name}"

    def is_same(self, provider: Provider, name: str) -> bool:
        """Whether this is the model ``name`` of exactly this provider object."""
        return provider is self.provider and name == self.name

    def check(self, request: Request) -> None:
        """Refuse what the provider cannot do, before the request is queued.

        Raises:
            InvalidRequest: names the field.
        """
        if request.embedding is not None and not self.provider.capabilities.max_texts:
            raise InvalidRequest(f"{self.provider.name} has no embeddings", field="embedding")
        self.provider.check(request, model=self.name)


def open_model(
    model: ModelChoice, provider: Provider | None, options: Mapping[str, Any] | None, clock: Ticker
) -> OpenedModel:
    """Return the provider that ``model`` stands for, and the model's name as the provider knows it.

    Args:
        model: see :data:`ModelChoice`.
        provider: an adapter made by hand, for a ``model`` without a prefix.
        options: keyword arguments of the adapter that the prefix names.
        clock: gives the embedded provider its time.

    Raises:
        ConfigError: for an unknown prefix, a missing key, or options that go nowhere.
    """
    if options and (provider is not None or not isinstance(model, str)):
        raise ConfigError("provider_options are for a provider named by prefix; this one is made already")
    if isinstance(model, str):
        if provider is not None:
            return OpenedModel(provider, model)
        return OpenedModel(*create(model, clock=clock, options=options))
    if isinstance(model, Provider):
        return OpenedModel(model, "default")
    if callable(model):
        from smartbatch.providers.callable import CallableProvider

        return OpenedModel(CallableProvider(model), getattr(model, "__name__", "callable"))
    raise ConfigError(f"model must be a text, a provider or a callable, not {type(model).__name__}")
