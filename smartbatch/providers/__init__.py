"""Adapters of the providers' APIs, one folder each; the public names load on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smartbatch.providers.anthropic.provider import AnthropicProvider as AnthropicProvider
    from smartbatch.providers.base import Capabilities as Capabilities
    from smartbatch.providers.base import Provider as Provider
    from smartbatch.providers.callable import CallableProvider as CallableProvider
    from smartbatch.providers.gemini.provider import GeminiProvider as GeminiProvider
    from smartbatch.providers.mock import MockProvider as MockProvider
    from smartbatch.providers.openai.provider import OpenAIProvider as OpenAIProvider
    from smartbatch.providers.registry import create as create
    from smartbatch.providers.registry import parse_model as parse_model
    from smartbatch.providers.registry import prefixes as prefixes
    from smartbatch.providers.registry import register as register
    from smartbatch.providers.sim.provider import SimProvider as SimProvider

_MODULE_OF = {
    "AnthropicProvider": "anthropic.provider",
    "CallableProvider": "callable",
    "Capabilities": "base",
    "GeminiProvider": "gemini.provider",
    "MockProvider": "mock",
    "OpenAIProvider": "openai.provider",
    "Provider": "base",
    "SimProvider": "sim.provider",
    "create": "registry",
    "parse_model": "registry",
    "prefixes": "registry",
    "register": "registry",
}

__all__ = list(_MODULE_OF)


def __getattr__(name: str) -> Any:
    try:
        module = _MODULE_OF[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    return getattr(importlib.import_module(f"smartbatch.providers.{module}"), name)
