"""Gemini and Anthropic's models at Vertex AI: the vendors' clients over real HTTP, with their credentials."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from threading import Barrier
from typing import Any

import pytest
from asking import SECRET_PROMPT, request_of, url_of
from claude import BLOCK, END, START, STOP, delta, error, message
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from gemini_asking import gemini_error, says_gemini, sse
from google.oauth2.credentials import Credentials
from raw_server import RawServer, says, streams

from smartbatch import BatchingClient, Message, Request
from smartbatch._clock import VirtualClock
from smartbatch.errors import ConfigError, ErrorKind, InvalidRequest, ProviderError
from smartbatch.providers import Provider, create
from smartbatch.providers.price_book import PriceBook
from smartbatch.types import ToolCall, Usage

GEMINI, CLAUDE = "gemini-3.8-flash", "claude-haiku-5-5"
BOTH = pytest.mark.parametrize("model", [GEMINI, CLAUDE])
PARENT = "projects/project-1/locations/europe-west1"
TOKEN = "ya29.canary-1234567890abcdef"


@pytest.fixture(autouse=True)
def account(monkeypatch, tmp_path):
    """No credentials of this machine; the project and the region are in the environment."""
    for name in (
        "GOOGLE_VERTEX_BASE_URL",
        "VERTEX_BASE_URL",
        "CLOUD_ML_REGION",
        "ANTHROPIC_VERTEX_PROJECT_ID",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "project-1")
    monkeypatch.setenv("GOOGLE_CLOUD_LOCATION", "europe-west1")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "missing.json"))
    for name in ("GOOGLE_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, "canary-of-another-host")


@pytest.fixture
def reach_vertex():
    """``reach_vertex(server, model, **options)`` opens a provider for a server, closed after the test."""
    providers: list[Provider] = []

    def start(server: RawServer, model: str, **options: object) -> Provider:
        options = {"base_url": url_of(server), "credentials": Credentials(TOKEN), **options}
        providers.append(create(f"vertex:{model}", clock=VirtualClock(), options=options)[0])
        providers[-1].open(4)
        return providers[-1]

    yield start
    for provider in providers:
        provider.close()


def answer_of(model: str) -> dict[str, Any]:
    return message() if model == CLAUDE else says_gemini("Lima")


def ask(provider: Provider, model: str, prompt: Any = "Capital of Peru?", **params: Any) -> Any:
    provider.check(request_of(prompt, **params), model=model)
    return provider.generate(request_of(prompt, **params), model=model, attempt=0, timeout=20.0)


def fails(provider: Provider, model: str) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        ask(provider, model, SECRET_PROMPT)
    return caught.value


# -- calls ---------------------------------------------------------------------------------------------------


def test_gemini_at_vertex_has_the_path_of_its_project_and_a_token(serve, reach_vertex):
    server = serve(says(says_gemini("Lima")))
    answer = ask(reach_vertex(server, GEMINI), GEMINI, "Größe \ud83d von Lima?", temperature=0.5)
    (call,) = server.requests
    assert call.target == f"/v1beta1/{PARENT}/publishers/google/models/{GEMINI}:generateContent"
    assert call.headers["authorization"] == f"Bearer {TOKEN}"
    assert "another-host" not in call.head
    assert call.json()["generationConfig"] == {"temperature": 0.5}
    assert (answer.text, answer.usage.input_tokens) == ("Lima", 31)


def test_claude_at_vertex_has_the_path_of_its_project_and_a_token(serve, reach_vertex):
    model = "claude-sonnet-4-5@20250929"
    server = serve(says(message()))
    answer = ask(reach_vertex(server, model), model, "Größe \ud83d von Lima?", temperature=0.5)
    (call,) = server.requests
    path = f"/v1/{PARENT}/publishers/anthropic/models/{model}:rawPredict"
    assert call.target.replace("%40", "@") == path
    assert call.headers["authorization"] == f"Bearer {TOKEN}"
    assert "another-host" not in call.head
    assert call.json().keys() == {"anthropic_version", "max_tokens", "messages", "temperature"}
    assert call.json()["anthropic_version"] == "vertex-2023-10-16"
    assert (answer.text, answer.usage) == ("Lima", Usage(138, 14, 100, 5, cache_write_tokens=7))


def test_calls_of_functions_have_no_ids_at_vertex(serve, reach_vertex):
    call = ToolCall("call-1", "weather", {"city": "Lima"})
    chat = [
        Message("user", "Weather?"),
        Message("assistant", "", tool_calls=(call,)),
        Message("tool", "sunny", tool_call_id="call-1"),
    ]
    server = serve(says(says_gemini("Sunny")))
    ask(reach_vertex(server, GEMINI), GEMINI, tuple(chat))
    _, called, result = server.requests[0].json()["contents"]
    assert called["parts"] == [{"functionCall": {"name": "weather", "args": {"city": "Lima"}}}]
    assert result["parts"] == [{"functionResponse": {"name": "weather", "response": {"output": "sunny"}}}]


def test_streams_of_gemini_and_claude_arrive_from_vertex(serve, reach_vertex):
    chunks = sse(says_gemini("Li", finish=None), says_gemini("ma"))
    server = serve(lambda call: call.send(chunks), streams(START, BLOCK, delta("Li"), delta("ma"), END, STOP))
    for model in (GEMINI, CLAUDE):
        stream = reach_vertex(server, model).stream(request_of(), model=model, attempt=0, timeout=20.0)
        assert list(stream) == ["Li", "ma"]
        assert (stream.answer.text, stream.answer.usage.output_tokens > 0) == ("Lima", True)
    first, second = server.requests
    assert first.target.endswith(f"/publishers/google/models/{GEMINI}:streamGenerateContent?alt=sse")
    assert second.target.endswith(f"/publishers/anthropic/models/{CLAUDE}:streamRawPredict")
    assert second.json()["stream"] is True
    assert {call.headers["authorization"] for call in server.requests} == {f"Bearer {TOKEN}"}


@BOTH
def test_a_list_at_vertex_is_retried_and_has_its_cost(model, serve):
    busy = says(gemini_error(429, "RESOURCE_EXHAUSTED", "Resource exhausted"), "429 x", retry_after="0")
    server = serve(busy, says(answer_of(model)))
    options = {"base_url": url_of(server), "credentials": Credentials(TOKEN)}
    with BatchingClient(f"vertex:{model}", provider_options=options) as client:
        results = client.generate(["Capital of Peru?"], budget=1.0)
        with pytest.raises(ConfigError, match="vertex has batches, which smartbatch does not support yet"):
            client.generate(["a"], strategy="batch")
    assert [result.text for result in results] == ["Lima"]
    assert len(server.requests) == 2
    assert results.cost > 0


@BOTH
def test_prices_at_vertex_are_in_the_table(model):
    card = PriceBook().rates("vertex", model, time.time())
    assert card is not None
    assert card.bands[0].input > 0


def test_a_model_with_another_api_needs_a_client_of_its_own():
    with (
        BatchingClient(f"vertex:{GEMINI}", provider_options={"credentials": Credentials(TOKEN)}) as client,
        pytest.raises(InvalidRequest, match="'claude-haiku-5-5' uses a different API than vertex:gemini-"),
    ):
        client.submit(Request("hi", model=CLAUDE))


# -- errors --------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    ("status", "word", "kind", "advice"),
    [
        (401, "UNAUTHENTICATED", ErrorKind.AUTH_ERROR, "run gcloud auth application-default login"),
        (403, "PERMISSION_DENIED", ErrorKind.AUTH_ERROR, "the role Vertex AI User"),
        (404, "NOT_FOUND", ErrorKind.CLIENT_ERROR, "whether the region has it"),
        (429, "RESOURCE_EXHAUSTED", ErrorKind.RATE_LIMIT, ""),
        (400, "INVALID_ARGUMENT", ErrorKind.CLIENT_ERROR, ""),
        (503, "UNAVAILABLE", ErrorKind.SERVER_ERROR, ""),
    ],
)
def test_an_error_of_vertex_names_what_to_do(model, status, word, kind, advice, serve, reach_vertex):
    body = gemini_error(status, word, f"Publisher Model: {TOKEN} {SECRET_PROMPT}"[: 80 if advice else None])
    found = fails(reach_vertex(serve(says(body, f"{status} x")), model), model)
    assert (found.kind, found.status, found.code) == (kind, status, word)
    assert advice in found.message
    assert "diary" not in str(found)


def test_an_error_of_anthropic_arrives_through_vertex(serve, reach_vertex):
    body = error("invalid_request_error", "prompt is too long: 201000 tokens > 200000 maximum")
    found = fails(reach_vertex(serve(says(body, "400 x")), CLAUDE), CLAUDE)
    assert found.kind is ErrorKind.CONTEXT_TOO_LONG


# -- credentials and regions ---------------------------------------------------------------------------------


def renewable(accounts: str) -> Credentials:
    return Credentials(None, refresh_token="r", token_uri=accounts, client_id="c", client_secret="s")


@BOTH
def test_a_token_is_renewed_by_the_credentials(model, serve, reach_vertex):
    tokens = [says({"access_token": f"ya29.{name}", "expires_in": 3600}) for name in ("first", "second")]
    accounts, server = serve(*tokens), serve(says(answer_of(model)))
    credentials = renewable(accounts.base_url)
    provider = reach_vertex(server, model, credentials=credentials)
    together = Barrier(8, action=provider.ready)

    def ask_together(number: int) -> None:
        together.wait(20)
        ask(provider, model, f"prompt {number}")

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(ask_together, range(8)))
    assert {call.headers["authorization"] for call in server.requests} == {"Bearer ya29.first"}
    assert len(accounts.requests) == 1
    credentials.expiry = datetime(2020, 1, 1)  # google-auth has no time zones
    ask(provider, model)
    assert server.requests[-1].headers["authorization"] == "Bearer ya29.second"


@BOTH
def test_a_token_that_cannot_be_renewed_fails_the_call(model, serve, reach_vertex):
    accounts = serve(says({"error": "invalid_grant", "error_description": "canary"}, "400 x"))
    server = serve(says(answer_of(model)))
    found = fails(reach_vertex(server, model, credentials=renewable(accounts.base_url)), model)
    assert (found.kind, found.code) == (ErrorKind.AUTH_ERROR, "credentials")
    assert "canary" not in str(found)
    found = fails(reach_vertex(server, model, credentials=renewable("http://127.0.0.1:1/token")), model)
    assert (found.kind, found.code) == (ErrorKind.NETWORK_ERROR, "credentials")
    assert server.requests == []


@BOTH
def test_missing_credentials_or_projects_are_reported_before_a_call(model, serve, reach_vertex, monkeypatch):
    server = serve(says(answer_of(model)))
    with pytest.raises(ConfigError, match="no Application Default Credentials: run gcloud auth"):
        reach_vertex(server, model, credentials=None).ready()
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT")
    with pytest.raises(ConfigError, match="no project: set GOOGLE_CLOUD_PROJECT or ANTHROPIC_VERTEX_PROJECT"):
        reach_vertex(server, model).ready()


def test_default_credentials_are_read_from_their_file_with_the_project(
    serve, reach_vertex, monkeypatch, tmp_path
):
    accounts, server = serve(says({"access_token": "ya29.file", "expires_in": 3600})), serve(says(message()))
    key = rsa.generate_private_key(public_exponent=65537, key_size=1024)  # short keys are quickly made
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    account = {"type": "service_account", "project_id": "project-2", "client_email": "a@b.example"}
    account |= {"private_key": pem, "token_uri": f"{accounts.base_url}/token"}
    path = tmp_path / "account.json"
    path.write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT")
    ask(reach_vertex(server, CLAUDE, credentials=None), CLAUDE)
    assert server.requests[0].headers["authorization"] == "Bearer ya29.file"
    assert server.requests[0].target.startswith("/v1/projects/project-2/locations/europe-west1/")


@BOTH
@pytest.mark.parametrize(
    ("region", "server"),
    [
        (None, "europe-west1-aiplatform.googleapis.com"),
        ("global", "aiplatform.googleapis.com"),
        ("eu", "aiplatform.eu.rep.googleapis.com"),
    ],
)
def test_the_region_decides_the_address_of_vertex(model, region, server):
    provider = create(f"vertex:{model}", clock=VirtualClock(), options={"region": region})[0]
    assert provider.scope.startswith(f"vertex:{server}:")
