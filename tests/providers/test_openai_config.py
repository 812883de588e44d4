"""How the OpenAI provider is set up: environment, addresses, keys, headers."""

from __future__ import annotations

import pytest
from asking import KEY, ask
from raw_server import chat, says

from smartbatch.errors import ConfigError
from smartbatch.providers.openai.provider import OpenAIProvider


def test_the_environment_of_the_real_sdk_is_honoured(serve, monkeypatch):
    """Key, base URL, organisation and project come from the variables the SDK reads."""
    server = serve(says(chat()))
    monkeypatch.setenv("OPENAI_API_KEY", f" {KEY}\n")
    monkeypatch.setenv("OPENAI_BASE_URL", server.base_url + "/")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-1")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-1")
    ask(provider := OpenAIProvider())
    provider.close()
    sent = server.requests[0]
    assert sent.target == "/v1/chat/completions"
    assert sent.headers["authorization"] == f"Bearer {KEY}"
    assert sent.headers["openai-organization"] == "org-1"
    assert sent.headers["openai-project"] == "proj-1"


def test_other_servers_need_no_key(serve, connect):
    server = serve(says(chat()))
    ask(connect(server, api_key=None))
    assert "authorization" not in server.requests[0].headers


def test_own_headers_replace_the_usual_ones(serve, connect):
    """A gateway's header is sent as given, and an own Authorization wins."""
    server = serve(says(chat()))
    ask(connect(server, headers={"api-key": "azure-key", "authorization": "Basic x"}))
    assert server.requests[0].headers["api-key"] == "azure-key"
    assert server.requests[0].headers["authorization"] == "Basic x"


def test_plain_http_is_for_servers_without_a_key():
    OpenAIProvider(None, "http://vllm:8000/v1")


def test_the_scope_tells_quotas_apart_and_shows_no_key():
    """The same key and place share a quota; another key, project or place does not."""
    make = lambda key=KEY, url="https://api.openai.com/v1", **more: OpenAIProvider(key, url, **more).scope  # noqa: E731
    scopes = [
        make(),
        make("sk-other-1234567890"),
        make(url="https://eu.api.openai.com/v1"),
        make(project="proj-2"),
        make(organization="org-2"),
    ]
    assert make() == make(api="responses") == scopes[0]
    assert len(set(scopes)) == len(scopes)
    assert scopes[0].startswith("openai:api.openai.com:")
    assert KEY not in scopes[0]


def test_the_output_cap_is_named_as_the_place_knows_it():
    assert OpenAIProvider(KEY)._parameters.max_tokens_field("m") == "max_completion_tokens"
    azure = OpenAIProvider(KEY, "https://res.openai.azure.com/openai/v1")
    assert azure._parameters.max_tokens_field("m") == "max_completion_tokens"
    assert OpenAIProvider(KEY, "https://llm.example/v1")._parameters.max_tokens_field("m") == "max_tokens"


def test_a_proxy_over_tls_is_refused(monkeypatch):
    """An option that is not tested is refused with a clear error."""
    monkeypatch.setenv("https_proxy", "https://me:secret-pass@proxy.example:443")
    with pytest.raises(ConfigError, match="proxy") as caught:
        OpenAIProvider(KEY)
    assert "secret-pass" not in str(caught.value)
