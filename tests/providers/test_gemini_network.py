"""The network under the Gemini provider: deadlines, broken connections, closing, forks, imports, settings."""

from __future__ import annotations

import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
from asking import ask, fails
from gemini_asking import GEMINI_KEY, says_gemini
from raw_server import hangs, says

from smartbatch.errors import ErrorKind
from smartbatch.providers.gemini.provider import GeminiProvider

CA = str(Path(__file__).parent / "localhost-ca.pem")


@pytest.mark.parametrize("status", ["429 X", "500 X", "503 X", "504 X"])
def test_refusals_are_not_retried_by_the_sdk(serve, connect_gemini, status):
    """Retrying is done in one place, and it is not the SDK."""
    server = serve(says("{}", status))
    fails(connect_gemini(server))
    assert len(server.requests) == 1


def test_cookies_are_not_kept(serve, connect_gemini):
    """What one answer sets is not sent with the next request: threads share the client."""
    server = serve(says(says_gemini("x"), set_cookie="who=me"))
    provider = connect_gemini(server)
    ask(provider)
    ask(provider)
    assert "cookie" not in server.requests[1].headers


@pytest.mark.parametrize(
    ("error", "kind", "code", "maybe_billed"),
    [
        (httpx2.ReadTimeout(""), ErrorKind.TIMEOUT, "deadline", True),
        (httpx2.ReadError(""), ErrorKind.NETWORK_ERROR, "cut", True),
        (httpx2.UnsupportedProtocol(""), ErrorKind.CLIENT_ERROR, "sdk", False),
        (httpx2.InvalidURL(""), ErrorKind.CLIENT_ERROR, "sdk", False),
        (ConnectionResetError(), ErrorKind.NETWORK_ERROR, "cut", True),
        (TimeoutError(), ErrorKind.TIMEOUT, "deadline", True),
        (KeyError("x"), ErrorKind.UNKNOWN, None, False),
    ],
)
def test_raw_errors_have_a_meaning(connect_gemini, serve, error, kind, code, maybe_billed):
    """What the SDK's own network raises, and the system's, is classified as well."""
    found = connect_gemini(serve(hangs)).classify(error)
    assert (found.kind, found.code, found.maybe_billed) == (kind, code, maybe_billed)


def test_the_sdk_loads_no_certificates_of_its_own(serve, connect_gemini, monkeypatch):
    """Its asynchronous half, which is not used, would load them all for every client."""
    loaded = []
    monkeypatch.setattr(ssl, "create_default_context", lambda **_: loaded.append(1))
    ask(connect_gemini(serve(says(says_gemini("x")))))
    assert loaded == []


def test_many_first_calls_make_one_client(serve, connect_gemini, monkeypatch):
    """Threads that meet at an unopened provider share what the first one builds."""
    from smartbatch.providers.gemini import sdk

    made = []
    build = sdk.GeminiSdk.__init__

    def count(self, *args) -> None:
        made.append(1)
        build(self, *args)

    monkeypatch.setattr(sdk.GeminiSdk, "__init__", count)
    provider = GeminiProvider(GEMINI_KEY, f"http://127.0.0.1:{serve(says(says_gemini('x'))).port}")
    together = threading.Barrier(8)
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(lambda: (together.wait(), ask(provider))[1].text) for _ in range(8)]
        assert [call.result(timeout=20) for call in calls] == ["x"] * 8
    provider.close()
    assert len(made) == 1


def test_the_environment_of_the_real_sdk_is_honoured(serve, monkeypatch):
    server = serve(says(says_gemini("x")))
    monkeypatch.setenv("GEMINI_API_KEY", "AIzaOther-1234567890")
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", f"http://127.0.0.1:{server.port}/gateway/")
    monkeypatch.setenv("GOOGLE_GENAI_API_VERSION", "beta")
    monkeypatch.setenv("GOOGLE_GENAI_USE_VERTEXAI", "true")
    ask(first := GeminiProvider())
    monkeypatch.setenv("GOOGLE_API_KEY", f" {GEMINI_KEY}\n")
    ask(second := GeminiProvider())
    first.close()
    second.close()
    assert [request.headers["x-goog-api-key"] for request in server.requests] == [
        "AIzaOther-1234567890",
        GEMINI_KEY,
    ]
    assert server.requests[0].target == "/gateway/v1beta/models/gemini-3.8-flash:generateContent"


def test_own_headers_are_sent(serve, connect_gemini):
    server = serve(says(says_gemini("x")))
    ask(connect_gemini(server, headers={"x-gateway": "g"}, api_version="v1beta"))
    assert server.requests[0].headers["x-gateway"] == "g"
    assert server.requests[0].target.startswith("/v1beta/")


def test_the_scope_tells_accounts_apart_and_shows_no_key():
    scopes = [
        GeminiProvider(GEMINI_KEY).scope,
        GeminiProvider("AIzaOther-1234567890").scope,
        GeminiProvider(GEMINI_KEY, "https://gateway.example").scope,
    ]
    assert len(set(scopes)) == 3
    assert scopes[0].startswith("gemini:generativelanguage.googleapis.com:")
    assert scopes[0] == GeminiProvider(GEMINI_KEY, api_version="v1beta").scope
    assert GEMINI_KEY not in scopes[0]
