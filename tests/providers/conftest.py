"""Fixtures for provider tests: scripted servers, and an environment without the machine's settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
from asking import KEY, url_of
from batch_sides import ANTHROPIC, GEMINI, OPENAI
from gemini_asking import GEMINI_KEY
from raw_server import RawServer, Script
from services import SERVICES

from smartbatch.providers import GeminiProvider, OpenAIProvider, Provider
from smartbatch.providers.batch_api import BatchApi

P = TypeVar("P", bound=Provider)


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch):
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
def serve():
    """``serve(script, …)`` starts a server that answers the nth request with the nth script."""
    servers: list[RawServer] = []

    def start(*scripts: Script, tls: bool = False) -> RawServer:
        servers.append(RawServer(scripts, tls=tls))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def connect():
    """``connect(server, **options)`` opens a provider for a server, closed after the test."""
    yield from _opening(OpenAIProvider, KEY, lambda server: server.base_url)


@pytest.fixture
def connect_gemini():
    """``connect_gemini(server, **options)`` opens a Gemini provider for a server, closed after the test."""
    yield from _opening(GeminiProvider, GEMINI_KEY, url_of)


def _opening(kind: Callable[..., P], key: str, url: Callable[[RawServer], str]) -> Iterator[Callable[..., P]]:
    providers: list[P] = []

    def start(server: RawServer, **options: object) -> P:
        provider = kind(base_url=url(server), **{"api_key": key, **options})
        provider.open(4)
        providers.append(provider)
        return provider

    yield start
    for provider in providers:
        provider.close()


@pytest.fixture(params=SERVICES, ids=lambda service: service.name)
def service(request):
    return request.param


@pytest.fixture
def reach(service):
    """``reach(server, **options)`` opens a provider of the service for a server, closed after the test."""
    yield from _opening(service.kind, service.key, service.url)


@pytest.fixture(params=[ANTHROPIC, GEMINI, OPENAI], ids=lambda side: side.prefix)
def side(request):
    """Tests of a single provider override this fixture."""
    return request.param


@pytest.fixture
def batches_of():
    """``batches_of(provider)`` returns the Batch API of a provider, which is closed after the test."""
    providers: list[Provider] = []

    def opened(provider: Provider) -> BatchApi:
        providers.append(provider)
        batches = provider.batches()
        assert batches is not None
        return batches

    yield opened
    for provider in providers:
        provider.close()


@pytest.fixture
def api(serve, side, batches_of):
    """``api(script, …)`` returns the Batch API of a provider with a scripted server, and the server."""

    def start(*scripts: Script, tls: bool = False, **options: object) -> tuple[BatchApi, RawServer]:
        server = serve(*scripts, tls=tls)
        return batches_of(side.provider(url_of(server), **options)), server

    return start
