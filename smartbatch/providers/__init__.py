"""Adapters for the providers' APIs, one folder per provider. Public names are imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smartbatch._fork import names_on_demand

if TYPE_CHECKING:
    from smartbatch.providers.anthropic.provider import AnthropicProvider as AnthropicProvider
    from smartbatch.providers.base import Capabilities as Capabilities
    from smartbatch.providers.base import Provider as Provider
    from smartbatch.providers.callable import CallableProvider as CallableProvider
    from smartbatch.providers.gemini.provider import GeminiProvider as GeminiProvider
    from smartbatch.providers.hosts import Host as Host
    from smartbatch.providers.hosts import add_host as add_host
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
    "Host": "hosts",
    "MockProvider": "mock",
    "OpenAIProvider": "openai.provider",
    "Provider": "base",
    "SimProvider": "sim.provider",
    "add_host": "hosts",
    "create": "registry",
    "parse_model": "registry",
    "prefixes": "registry",
    "register": "registry",
}

__all__ = list(_MODULE_OF)

__getattr__ = names_on_demand(__name__, _MODULE_OF)
