"""Providers by their prefix."""

from __future__ import annotations

import subprocess
import sys

import pytest
from inside import own_registry

from smartbatch import providers
from smartbatch._clock import VirtualClock
from smartbatch.errors import ConfigError
from smartbatch.providers import (
    AnthropicProvider,
    CallableProvider,
    GeminiProvider,
    MockProvider,
    OpenAIProvider,
    Provider,
    SimProvider,
    create,
    parse_model,
)
from smartbatch.providers.hosts import HOSTS
from smartbatch.types import Request


def test_a_model_splits_at_its_first_colon():
    assert parse_model("openai:gpt-5-mini") == ("openai", "gpt-5-mini")
    assert parse_model("OpenAI: qwen:0.5b ") == ("openai", "qwen:0.5b")


@pytest.mark.parametrize(
    ("model", "part"),
    [
        (
            "gpt-5-mini",
            "does not name its provider; write provider:model with anthropic:, azure:, .*, vllm:, xai:",
        ),
        ("", "does not name its provider"),
        ("openai", "does not name its provider"),
        ("openai:", "has no name"),
        ("mistrl:x", "unknown provider; use one of anthropic:, .*did you mean mistral"),
    ],
)
def test_models_that_are_refused(model, part):
    with pytest.raises(ConfigError, match=part):
        parse_model(model)


def latency(provider: Provider, clock: VirtualClock) -> float:
    began = clock.now()
    provider.generate(Request(prompt="x"), model="m", attempt=0, timeout=5.0)
    return round(clock.now() - began, 6)


def test_each_prefix_makes_its_provider():
    clock = VirtualClock()
    provider, name = create("openai:gpt-5", clock=clock, options={"api_key": "sk-canary-12345678"})
    assert (type(provider), name) == (OpenAIProvider, "gpt-5")
    provider, name = create(
        "anthropic:claude-haiku-5-5", clock=clock, options={"api_key": "sk-canary-12345678"}
    )
    assert (type(provider), name) == (AnthropicProvider, "claude-haiku-5-5")
    provider, name = create(
        "gemini:gemini-3.8-flash", clock=clock, options={"api_key": "AIzaCanary-12345678"}
    )
    assert (type(provider), name) == (GeminiProvider, "gemini-3.8-flash")
    provider, name = create("sim:demo?latency=0.2&seed=3", clock=clock)
    assert (type(provider), name, latency(provider, clock)) == (SimProvider, "demo", 0.2)
    provider, name = create("sim:?latency=0.2", clock=clock, options={"latency": 0.1})
    assert (name, latency(provider, clock)) == ("demo", 0.1)
    provider, name = create("call:os.path:join", clock=clock)
    assert (type(provider), name) == (CallableProvider, "os.path:join")


def test_an_unknown_option_is_refused():
    with pytest.raises(ConfigError, match=r"openai: .*'base_ulr'"):
        create("openai:m", clock=VirtualClock(), options={"base_ulr": "x"})


def test_own_providers_can_be_registered(monkeypatch):
    own_registry(monkeypatch)
    mock = MockProvider()
    providers.register("Mine", lambda name, clock, options: (mock, name.upper()))
    assert create("mine:a", clock=VirtualClock()) == (mock, "A")
    assert "mine" in providers.prefixes()
    for bad in ("", "a:b", "a b"):
        with pytest.raises(ConfigError):
            providers.register(bad, lambda *a: (mock, "x"))


def test_the_registry_imports_no_adapter():
    code = "import sys, smartbatch.providers; print([m for m in ('urllib3', 'ssl') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    with pytest.raises(AttributeError):
        providers.Nothing  # noqa: B018


@pytest.mark.parametrize("host", [each for each in HOSTS.values() if each.needs_key and each.address])
def test_an_error_for_a_missing_key_names_the_variable_and_the_option(host, monkeypatch):
    for name in (*host.key_variables, *host.address_variables):
        monkeypatch.delenv(name, raising=False)
    key = rf"set .*{host.name.upper()}\w*_API_KEY .* the provider option api_key$"
    with pytest.raises(ConfigError, match=key):
        create(f"{host.name}:m", clock=VirtualClock())
    assert create(f"{host.name}:m", clock=VirtualClock(), options={"api_key": "k"})[1] == "m"


def test_a_host_without_an_address_of_its_own_asks_for_one(monkeypatch):
    monkeypatch.delenv("AZURE_OPENAI_ENDPOINT", raising=False)
    with pytest.raises(ConfigError, match="no base URL: set AZURE_OPENAI_ENDPOINT or AZURE_BASE_URL"):
        create("azure:m", clock=VirtualClock(), options={"api_key": "k"})


@pytest.mark.parametrize("options", ["canary", ["canary"]])
def test_options_that_are_no_dictionary_are_refused_and_not_shown(options):
    with pytest.raises(ConfigError, match="provider_options must be a dictionary, not ") as caught:
        create("openai:m", clock=VirtualClock(), options=options)
    assert "canary" not in str(caught.value)
