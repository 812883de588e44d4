"""Gemini's streams: server-sent events without an end mark, over real HTTP and through the real SDK."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from asking import begin
from gemini_asking import GEMINI_KEY, gemini_error, retry_in, says_gemini, sse
from hypothesis import given
from hypothesis import strategies as st
from raw_server import hangs, http, says

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.base import AnswerStream
from smartbatch.providers.http.sse import events
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
    """The same events in a body that ends with its connection: nobody can tell an end from a cut."""
    return (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + sse(*chunks).partition(b"\r\n\r\n")[2]
    )


def pieces_until_error(stream: AnswerStream) -> tuple[list[str], ProviderError]:
    got: list[str] = []
    with pytest.raises(ProviderError) as caught:
        got.extend(stream)
    return got, caught.value


def test_text_comes_in_pieces_and_the_answer_is_whole(serve, connect_gemini):
    """The last chunk has reason and usage; the connection is free for the next call."""
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


def test_other_line_ends_and_chunked_bodies_are_read(serve, connect_gemini):
    """LF as well as CRLF, in HTTP chunks of any size."""
    body = sse(chunk("Li"), chunk("ma", "STOP"), end=b"\n\n").partition(b"\r\n\r\n")[2]
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    parts = [body[at : at + 7] for at in range(0, len(body), 7)]
    data = head + b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    assert list(begin(connect_gemini(serve(sends(data))))) == ["Li", "ma"]


def test_line_separators_inside_texts_are_text(serve, connect_gemini):
    """JSON may hold U+2028, U+2029 and U+0085 unescaped: they end no line."""
    text = "a\u2028b\u2029c\u0085d"
    raw = json.dumps(chunk(text, "STOP"), ensure_ascii=False).encode()
    assert text.encode() in raw
    assert list(begin(connect_gemini(serve(sends(sse(raw)))))) == [text]


def test_thoughts_are_not_streamed(serve, connect_gemini):
    """A chunk of thoughts yields nothing."""
    thought = chunk("Hmm")
    thought["candidates"][0]["content"]["parts"][0]["thought"] = True
    assert list(begin(connect_gemini(serve(sends(sse(thought, chunk("Lima", "STOP"))))))) == ["Lima"]


def test_a_blocked_prompt_ends_the_stream(serve, connect_gemini):
    """No candidate will come: an empty answer with its reason."""
    stream = begin(connect_gemini(serve(sends(sse({"promptFeedback": {"blockReason": "SAFETY"}})))))
    assert list(stream) == []
    assert (stream.answer.text, stream.answer.finish_reason) == ("", "content_filter")


def test_usage_may_come_after_the_reason(serve, connect_gemini):
    """The stream is read to its end."""
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
    """Without a finish reason nothing says that the answer is whole: lost, and perhaps billed."""
    _, error = pieces_until_error(begin(connect_gemini(serve(sends(data, cut=True)))))
    assert (error.kind, error.maybe_billed) == (ErrorKind.NETWORK_ERROR, True)


def test_what_an_error_cost_is_kept(serve, connect_gemini):
    """The usage that came before the cut is on the error."""
    got, error = pieces_until_error(begin(connect_gemini(serve(sends(sse(chunk("Li")), cut=True)))))
    assert got == ["Li"]
    assert error.usage == Usage(31, 78, cached_tokens=5, reasoning_tokens=64)


@pytest.mark.parametrize("wrap", [lambda error: error, lambda error: [error]], ids=["object", "list"])
def test_an_error_inside_the_stream_is_classified(serve, connect_gemini, wrap):
    """It names its own status; the work so far may have been billed."""
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
    """stream() returns once the service has accepted; until then errors are those of a call."""
    with pytest.raises(ProviderError) as caught:
        begin(connect_gemini(serve(script)))
    assert (caught.value.kind, caught.value.status) == (kind, status)
    assert not caught.value.maybe_billed


def test_a_page_instead_of_a_stream_is_no_answer(serve, connect_gemini):
    """A sign-in page of the network is told from an answer."""
    _, error = pieces_until_error(
        begin(connect_gemini(serve(says("<html>Sign in", content_type="text/html"))))
    )
    assert (error.kind, error.code) == (ErrorKind.INVALID_RESPONSE, "html")


def test_a_chunk_that_is_no_object_is_no_answer(serve, connect_gemini):
    """JSON, but nothing the API sends."""
    _, error = pieces_until_error(begin(connect_gemini(serve(sends(sse(chunk("Li"), b"7"))))))
    assert (error.kind, error.code, error.maybe_billed) == (ErrorKind.INVALID_RESPONSE, "shape", True)


def test_a_stall_ends_with_the_deadline(serve, connect_gemini):
    """The time-out counts for the whole stream, however many pieces have come."""

    def stalls(exchange) -> None:
        exchange.send(sse(chunk("Li"), chunk("ma", "STOP"))[:-100])
        hangs(exchange)

    got, error = pieces_until_error(begin(connect_gemini(serve(stalls)), timeout=0.5))
    assert got == ["Li"]
    assert (error.kind, error.code, error.maybe_billed) == (ErrorKind.TIMEOUT, "deadline", True)


def test_a_server_that_hangs_before_the_head_is_a_time_out(serve, connect_gemini):
    """The same deadline holds for the beginning."""
    with pytest.raises(ProviderError) as caught:
        begin(connect_gemini(serve(hangs)), timeout=0.3)
    assert caught.value.kind is ErrorKind.TIMEOUT


def test_closing_from_another_thread_ends_the_iteration(serve, connect_gemini):
    """The reader gets an error at once instead of waiting for the next piece; other calls go on."""
    first = threading.Event()

    def stalls(exchange) -> None:
        exchange.send(sse(chunk("Li"), chunk("ma", "STOP"))[:-100])
        hangs(exchange)

    def read(stream: AnswerStream) -> ProviderError:
        try:
            for _ in stream:
                first.set()
        except ProviderError as error:
            return error
        raise AssertionError("no error")

    server = serve(stalls, sends(sse(chunk("next", "STOP"))))
    provider = connect_gemini(server)
    stream = begin(provider)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read, stream)
        assert first.wait(10)
        stream.close()
        stream.close()
        error = reading.result(timeout=10)
    assert (error.kind, error.code, error.maybe_billed) == (ErrorKind.NETWORK_ERROR, "closed", True)
    assert list(begin(provider)) == ["next"]
    assert server.connections == 2


def test_a_stream_left_half_way_gives_its_connection_back(serve, connect_gemini):
    """Whoever stops iterating holds no connection: four are enough for ten streams."""
    server = serve(sends(sse(chunk("Li"), chunk("ma", "STOP"))))
    provider = connect_gemini(server)
    for _ in range(10):
        for piece in begin(provider):
            assert piece == "Li"
            break


def test_closing_the_provider_ends_its_streams(serve, connect_gemini):
    """close() of the provider reaches streams under way."""

    def stalls(exchange) -> None:
        exchange.send(sse(chunk("Li"), chunk("ma", "STOP"))[:-100])
        hangs(exchange)

    provider = connect_gemini(serve(stalls))
    stream = begin(provider)
    pieces = iter(stream)
    assert next(pieces) == "Li"
    provider.close()
    with pytest.raises(ProviderError) as caught:
        next(pieces)
    assert caught.value.code == "closed"


@given(st.lists(st.integers(1, 40), max_size=40))
def test_events_do_not_depend_on_how_their_bytes_arrive(sizes):
    """Cut anywhere, even inside a character or between CR and LF, the events are the same."""
    body = sse(chunk("Zürich \u2028 …"), chunk("ma", "STOP")).partition(b"\r\n\r\n")[2]
    parts, at = [], 0
    for size in sizes:
        parts.append(body[at : at + size])
        at += size
    assert [e.data for e in events([*parts, body[at:]])] == [e.data for e in events([body])]
