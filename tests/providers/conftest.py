"""Fixtures of the provider tests: scripted servers, and an environment without the machine's own settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from asking import KEY
from gemini_asking import GEMINI_KEY
from raw_server import RawServer, Script

from smartbatch.providers.gemini import GeminiProvider
from smartbatch.providers.openai import OpenAIProvider


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("API_KEY", "BASE_URL", "ORG_ID", "PROJECT_ID"):
        monkeypatch.delenv(f"OPENAI_{name}", raising=False)
    for name in ("API_KEY", "AUTH_TOKEN", "BASE_URL", "CUSTOM_HEADERS", "LOG"):
        monkeypatch.delenv(f"ANTHROPIC_{name}", raising=False)
    for name in ("API_KEY", "GEMINI_BASE_URL", "GENAI_API_VERSION", "GENAI_HTTP_CLIENT"):
        monkeypatch.delenv(f"GOOGLE_{name}", raising=False)
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def serve() -> Iterator[Callable[..., RawServer]]:
    """``serve(script, …)`` starts a server that answers the nth request with the nth script."""
    servers: list[RawServer] = []

    def start(*scripts: Script, tls: bool = False) -> RawServer:
        servers.append(RawServer(scripts, tls=tls))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def connect() -> Iterator[Callable[..., OpenAIProvider]]:
    """``connect(server, **options)`` opens a provider for a server, closed after the test."""
    providers: list[OpenAIProvider] = []

    def start(server: RawServer, **options: object) -> OpenAIProvider:
        options.setdefault("api_key", KEY)
        provider = OpenAIProvider(base_url=server.base_url, **options)
        provider.open(4)
        providers.append(provider)
        return provider

    yield start
    for provider in providers:
        provider.close()


@pytest.fixture
def connect_gemini() -> Iterator[Callable[..., GeminiProvider]]:
    """``connect_gemini(server, **options)`` opens a Gemini provider for a server, closed after the test."""
    providers: list[GeminiProvider] = []

    def start(server: RawServer, **options: object) -> GeminiProvider:
        options.setdefault("api_key", GEMINI_KEY)
        provider = GeminiProvider(base_url=server.base_url.removesuffix("/v1"), **options)
        provider.open(4)
        providers.append(provider)
        return provider

    yield start
    for provider in providers:
        provider.close()
