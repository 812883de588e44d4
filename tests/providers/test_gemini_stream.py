"""Streamed answers of the Gemini API, which have no end mark."""

from __future__ import annotations

import json

import pytest
from asking import begin
from gemini_asking import GEMINI_KEY, gemini_error, retry_in, says_gemini, sse
from raw_server import http, says

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.base import AnswerStream
from smartbatch.types import Usage


def chunk(text: str, finish: str | None = None, **changes: object) -> dict:
    return says_gemini(text, finish=finish, **changes)


def sends(data: bytes, *, cut: bool = False):
    def script(exchange) -> None:
        exchange.send(data)
        if cut:
            exchange.close()

    return script


def unframed(*chunks: object) -> bytes:
    return (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + sse(*chunks).partition(b"\r\n\r\n")[2]
    )


def pieces_until_error(stream: AnswerStream) -> tuple[list[str], ProviderError]:
    got: list[str] = []
    with pytest.raises(ProviderError) as caught:
        got.extend(stream)
    return got, caught.value


def test_text_comes_in_pieces_and_the_answer_is_whole(serve, connect_gemini):
    usage = {"promptTokenCount": 4, "candidatesTokenCount": 2, "thoughtsTokenCount": 3}
    data = sse(chunk("Li"), chunk("m"), chunk("a", "STOP", usageMetadata=usage))
    server = serve(sends(data))
    provider = connect_gemini(server)
    stream = begin(provider, timeout=9.5)
    assert list(stream) == ["Li", "m", "a"]
    assert (stream.answer.text, stream.answer.finish_reason) == ("Lima", "stop")
    assert stream.answer.usage == Usage(4, 5, reasoning_tokens=3)
    assert (stream.answer.model, stream.answer.provider_request_id) == ("gemini-3.8-flash-001", "r-1")
    stream.close()
    assert list(begin(provider)) == ["Li", "m", "a"]
    request = server.requests[0]
    assert request.target == "/v1/models/gemini-3.8-flash:streamGenerateContent?alt=sse"
    assert request.headers["x-goog-api-key"] == GEMINI_KEY
    assert request.headers["x-server-timeout"] == "10"
    assert server.connections == 1


def test_a_blocked_prompt_ends_the_stream(serve, connect_gemini):
    stream = begin(connect_gemini(serve(sends(sse({"promptFeedback": {"blockReason": "SAFETY"}})))))
    assert list(stream) == []
    assert (stream.answer.text, stream.answer.finish_reason) == ("", "content_filter")


def test_usage_may_come_after_the_reason(serve, connect_gemini):
    late = {"usageMetadata": {"promptTokenCount": 8}}
    stream = begin(connect_gemini(serve(sends(sse(chunk("x", "STOP"), late)))))
    assert list(stream) == ["x"]
    assert stream.answer.usage == Usage(8, 0)


@pytest.mark.parametrize(
    "data",
    [
        sse(),
        sse(chunk("Li")),
        sse(chunk("Li"), chunk("ma", "STOP"))[:-80],
        unframed(chunk("Li")),
        unframed(chunk("Li"), chunk("ma", "STOP"))[:-2],
        sse(chunk("Li"), b'{"candidates": ['),
    ],
    ids=["empty", "no reason", "cut", "unframed", "no blank line", "broken chunk"],
)
def test_a_stream_that_ends_early_is_an_error(serve, connect_gemini, data):
    _, error = pieces_until_error(begin(connect_gemini(serve(sends(data, cut=True)))))
    assert (error.kind, error.maybe_billed) == (ErrorKind.NETWORK_ERROR, True)


@pytest.mark.parametrize("wrap", [lambda error: error, lambda error: [error]], ids=["object", "list"])
def test_an_error_inside_the_stream_is_classified(serve, connect_gemini, wrap):
    body = gemini_error(429, "RESOURCE_EXHAUSTED", "slow down", retry_in("1.5s"))
    got, error = pieces_until_error(begin(connect_gemini(serve(sends(sse(chunk("Li"), wrap(body)))))))
    assert got == ["Li"]
    assert (error.kind, error.status, error.retry_after) == (ErrorKind.RATE_LIMIT, 429, 1.5)
    assert error.maybe_billed


@pytest.mark.parametrize(
    ("script", "kind", "status"),
    [
        (says(gemini_error(429, "RESOURCE_EXHAUSTED"), "429 X"), ErrorKind.RATE_LIMIT, 429),
        (says(json.dumps([gemini_error(400, "INVALID_ARGUMENT")]), "400 X"), ErrorKind.CLIENT_ERROR, 400),
        (says("<html>", "502 Bad"), ErrorKind.SERVER_ERROR, 502),
        (sends(http(b'{"error": {}}', "503 X")[:-4], cut=True), ErrorKind.SERVER_ERROR, 503),
    ],
)
def test_a_refusal_comes_before_the_stream(serve, connect_gemini, script, kind, status):
    with pytest.raises(ProviderError) as caught:
        list(begin(connect_gemini(serve(script))))
    assert (caught.value.kind, caught.value.status) == (kind, status)
    assert not caught.value.maybe_billed
