"""The network under the Anthropic SDK: deadlines, caps, closing, forks and many threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
from asking import KEY, ask, begin, fails, request_of, url_of
from claude import MODEL, message, opened, streams
from raw_server import hangs, says

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.anthropic.provider import AnthropicProvider

CA = str(Path(__file__).parent / "localhost-ca.pem")


def broken(stream) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        list(stream)
    return caught.value


def test_closing_ends_calls_and_streams_under_way(serve):
    """close() ends calls that wait for an answer; after open() the provider works again."""
    server = serve(hangs, hangs, streams(end="stall"), says(message()))
    with opened(server) as provider, ThreadPoolExecutor(3) as pool:
        calls = []
        for _ in range(2):
            calls.append(pool.submit(fails, provider, timeout=60.0))
            assert server.arrived.acquire(timeout=10)
        stream = begin(provider, timeout=60.0)
        reading = pool.submit(broken, stream)
        assert server.arrived.acquire(timeout=10)
        provider.close()
        provider.close()
        errors = [call.result(timeout=10) for call in (*calls, reading)]
        assert {(e.kind, e.code) for e in errors} == {(ErrorKind.NETWORK_ERROR, "closed")}
        assert fails(provider).code == "closed"
        provider.open(2)
        assert ask(provider).text == "Lima"


def test_the_sdk_builds_a_head_once_for_threads_that_begin_together(serve, monkeypatch):
    server = serve(*[says(message())] * 8)
    with opened(server) as provider, ThreadPoolExecutor(8) as pool:
        sdk, built = provider._sdk.get(), []
        send = sdk.send

        def counted(*args, **more):
            built.append(args)
            return send(*args, **more)

        monkeypatch.setattr(sdk, "send", counted)
        assert {answer.text for answer in pool.map(lambda _: ask(provider), range(8))} == {"Lima"}
    assert len(built) == 1


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


def test_other_exceptions_get_a_meaning_without_the_key():
    provider = AnthropicProvider(KEY)
    assert provider.classify(TimeoutError()).kind is ErrorKind.TIMEOUT
    assert provider.classify(ConnectionResetError()).kind is ErrorKind.NETWORK_ERROR
    with pytest.raises(TypeError):
        provider.generate(request_of(extra={"x": object()}), model=MODEL, attempt=0, timeout=1)
    assert KEY not in provider.classify(ValueError(f"Bearer {KEY}")).message
