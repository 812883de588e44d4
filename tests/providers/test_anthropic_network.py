"""The network under the Anthropic SDK: deadlines, caps, closing, forks and many threads."""

from __future__ import annotations

import gzip
import json
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
from asking import KEY, ask, begin, fails, request_of, url_of
from claude import MODEL, message, opened, streams
from raw_server import hangs, http, resets, says, trickles, vanishes

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.anthropic.provider import AnthropicProvider

CA = str(Path(__file__).parent / "localhost-ca.pem")


def broken(stream) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        list(stream)
    return caught.value


@pytest.mark.parametrize("script", [hangs, trickles], ids=["hang", "trickle"])
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_the_total_deadline_ends_a_call(serve, script, tls, monkeypatch):
    """Neither silence nor a byte now and then outlives the timeout, though the SDK's counts per read."""
    monkeypatch.setenv("SSL_CERT_FILE", CA)
    with opened(serve(script, tls=tls)) as provider:
        found = fails(provider, timeout=0.3)
    assert (found.kind, found.code, found.maybe_billed) == (ErrorKind.TIMEOUT, "deadline", True)


@pytest.mark.parametrize("script", [resets, vanishes])
def test_a_lost_answer_may_have_been_billed(serve, script):
    """Reset or closed after the request was sent: unknown outcome, and sent once."""
    server = serve(script)
    with opened(server) as provider:
        found = fails(provider)
    assert (found.kind, found.maybe_billed) == (ErrorKind.NETWORK_ERROR, True)
    assert len(server.requests) == 1


def test_a_refused_connection_was_not_billed():
    """Nobody listens: a definite failure."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    found = fails(AnthropicProvider(KEY, f"http://127.0.0.1:{port}"))
    assert (found.kind, found.code, found.maybe_billed) == (ErrorKind.NETWORK_ERROR, "refused", False)


def test_a_body_above_the_cap_is_not_read(serve):
    """A gzip bomb ends as one call's error."""
    bomb = gzip.compress(bytes(2_000_000))
    with opened(serve(says(bomb, content_encoding="gzip")), max_body=1_000_000) as provider:
        assert fails(provider).code == "too_large"


def test_a_compressed_answer_is_understood(serve):
    """Some gateways compress although nobody asked for it."""
    body = gzip.compress(json.dumps(message()).encode())
    with opened(serve(says(body, content_encoding="gzip"))) as provider:
        assert ask(provider).text == "Lima"


def test_connections_are_kept_and_as_many_as_the_workers(serve):
    """Under 8 threads every answer belongs to its question, over at most 8 connections."""

    def answers(exchange) -> None:
        prompt = exchange.json()["messages"][0]["content"]
        exchange.send(http(json.dumps(message(f"re: {prompt}")).encode()))

    server = serve(answers)
    with opened(server) as provider:
        provider.open(8)
        prompts = [f"question {n}" for n in range(200)]
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda prompt: ask(provider, prompt).text, prompts))
    assert found == [f"re: {prompt}" for prompt in prompts]
    assert server.connections <= 8


def test_closing_ends_calls_and_streams_under_way(serve):
    """close() cuts whoever waits for an answer; after open() the provider works again."""
    server = serve(hangs, hangs, streams(end="stall"), says(message()))
    with opened(server) as provider, ThreadPoolExecutor(3) as pool:
        calls = []
        for _ in range(2):
            calls.append(pool.submit(fails, provider, timeout=60.0))
            assert server.arrived.acquire(timeout=10)
        stream = begin(provider, timeout=60.0)
        reading = pool.submit(broken, stream)
        provider.close()
        provider.close()
        errors = [call.result(timeout=10) for call in (*calls, reading)]
        assert {(e.kind, e.code) for e in errors} == {(ErrorKind.NETWORK_ERROR, "closed")}
        assert fails(provider).code == "closed"
        provider.open(2)
        assert ask(provider).text == "Lima"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_uses_nothing_of_its_parent(serve):
    """The child has an SDK client and connections of its own; the parent's are undisturbed."""
    release = threading.Event()

    def held(exchange) -> None:
        release.wait(20)
        exchange.send(http(json.dumps(message("held")).encode()))

    server = serve(says(message("kept")), held, says(message("child")), says(message("parent")))
    with opened(server) as provider, ThreadPoolExecutor(1) as pool:
        assert ask(provider).text == "kept"
        parents = provider._sdk.get()
        running = pool.submit(ask, provider)
        for _ in range(2):
            assert server.arrived.acquire(timeout=10)
        # what a thread of the parent may hold at the fork
        with provider._sdk.lock(), provider.network.realtime._pool.lock():
            child = os.fork()
        if child == 0:
            status = 1
            try:
                provider.open(2)
                right = ask(provider).text == "child" and provider._sdk.get() is not parents
                status = 0 if right else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        release.set()
        assert running.result(timeout=10).text == "held"
        assert ask(provider).text == "parent"
    assert server.connections == 2  # the parent's one, used three times, and the child's


def test_the_sdk_cannot_send_the_key_elsewhere(serve):
    """What the SDK sends to another origin, or with a broken header, never leaves."""
    server, other = serve(says(message())), serve(says(message()))
    with opened(server) as provider:
        client = provider._sdk.get().client
        with pytest.raises(Exception) as caught:
            client.post(f"{url_of(other)}/v1/messages", cast_to=httpx2.Response, options={"timeout": 5})
        assert "another server" in str(caught.value.__cause__)
        options = {"timeout": 5, "headers": {"x-odd": "a\r\nx-more: b"}}
        with pytest.raises(Exception) as caught:
            client.post("/v1/messages", cast_to=httpx2.Response, options=options)
        assert "line break" in str(caught.value.__cause__)
    assert server.connections == other.connections == 0


def test_the_path_of_the_base_url_is_kept(serve):
    """Gateways serve the API below a path of their own."""
    server = serve(says(message()))
    provider = AnthropicProvider(KEY, f"{url_of(server)}/team/a/")
    ask(provider)
    provider.close()
    assert server.requests[0].target == "/team/a/v1/messages"


def test_a_forwarding_proxy_gets_the_whole_url(serve, monkeypatch):
    """HTTP_PROXY carries plain http, with the proxy's own credentials."""
    proxy = serve(says(message()))
    monkeypatch.setenv("http_proxy", f"http://me:pass%21@127.0.0.1:{proxy.port}")
    provider = AnthropicProvider(KEY, "http://llm.internal:8000", allow_http=True)
    assert ask(provider).text == "Lima"
    provider.close()
    sent = proxy.requests[0]
    assert sent.target == "http://llm.internal:8000/v1/messages"
    assert sent.headers["proxy-authorization"] == "Basic bWU6cGFzcyE="


def test_other_exceptions_get_a_meaning_without_the_key():
    """classify() knows the system's errors and hides what others carry."""
    provider = AnthropicProvider(KEY)
    assert provider.classify(TimeoutError()).kind is ErrorKind.TIMEOUT
    assert provider.classify(ConnectionResetError()).kind is ErrorKind.NETWORK_ERROR
    with pytest.raises(TypeError):
        provider.generate(request_of(extra={"x": object()}), model=MODEL, attempt=0, timeout=1)
    assert KEY not in provider.classify(ValueError(f"Bearer {KEY}")).message
