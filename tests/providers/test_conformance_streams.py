"""Streams of all providers: pieces, ends and closing."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from asking import ask, begin, stream_error
from raw_server import Exchange, chunked, hangs, says, streams

from smartbatch.errors import ErrorKind, ProviderError
from tests.levels import sampled


def ends(exchange: Exchange) -> None:
    exchange.send(b"0\r\n\r\n")


def breaks(exchange: Exchange) -> None:
    exchange.send(b"50\r\ndata: ")
    exchange.close()


def test_pieces_come_as_they_are_sent_and_the_answer_at_the_end(serve, reach, service):
    server = serve(streams(*service.events("Li", "ma")))
    provider = reach(server)
    for _ in range(3):
        stream = begin(provider)
        with pytest.raises(RuntimeError, match="not been read"):
            _ = stream.answer
        assert list(stream) == ["Li", "ma"]
        assert (stream.answer.text, stream.answer.finish_reason) == ("Lima", "stop")
        assert stream.answer.usage is not None
        stream.close()
    assert server.connections == 1


def test_a_piece_does_not_wait_for_the_next(serve, reach, service):
    go_on = threading.Event()
    events = service.events("Li", "ma")
    at = next(at for at, event in enumerate(events) if b'"ma"' in event)

    def waits(exchange: Exchange) -> None:
        assert go_on.wait(20)
        exchange.send(b"".join(map(chunked, events[at:])) + b"0\r\n\r\n")

    pieces = iter(begin(reach(serve(streams(*events[:at], then=waits)))))
    assert next(pieces) == "Li"
    go_on.set()
    assert list(pieces) == ["ma"]


def test_a_stream_left_half_way_gives_its_connection_back(serve, reach, service):
    provider = reach(serve(streams(*service.events("Li", "ma"))))
    for _ in range(10):
        assert next(iter(begin(provider))) == "Li"


@pytest.mark.parametrize("size", sampled([1, 7, 60]))
@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["lf", "crlf"])
def test_events_do_not_depend_on_how_their_bytes_arrive(serve, reach, service, size, end):
    text = "one\u2028two\u0085three\x0bfour\x1cfive"
    body = b"".join(service.events(text, "ma")).replace(b"\n", end)
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    assert list(begin(reach(serve(streams(*pieces))))) == [text, "ma"]


@pytest.mark.parametrize("then", [ends, breaks], ids=["in order", "broken"])
def test_a_stream_without_its_end_is_an_error(serve, reach, service, then):
    events = service.events("Li", "ma")
    for count in range(len(events) - 1):
        pieces: list[str] = []
        found = stream_error(begin(reach(serve(streams(*events[:count], then=then)))), pieces)
        assert (found.kind, found.code, found.maybe_billed) == (ErrorKind.NETWORK_ERROR, "truncated", True)
        assert "Lima".startswith("".join(pieces))


def test_what_a_broken_stream_cost_is_kept(serve, reach, service):
    found = stream_error(begin(reach(serve(streams(*service.events("Li", "ma")[:2], then=breaks)))))
    assert found.usage is not None
    assert found.usage.input_tokens == 31


@pytest.mark.parametrize(
    ("data", "kind", "code"),
    [
        (b"{oops", ErrorKind.NETWORK_ERROR, "garbled"),
        (b"\xff", ErrorKind.NETWORK_ERROR, "garbled"),
        (b"[1]", ErrorKind.INVALID_RESPONSE, "shape"),
        (b"7", ErrorKind.INVALID_RESPONSE, "shape"),
    ],
)
def test_an_event_that_is_no_json_object_is_an_error(serve, reach, service, data, kind, code):
    first = service.events("Li", "ma")[0]
    script = streams(first, b"data: " + data + b"\n\n")
    server = serve(script, says(service.answer("Lima")))
    provider = reach(server)
    found = stream_error(begin(provider))
    assert (found.kind, found.code, found.maybe_billed) == (kind, code, True)
    assert ask(provider).text == "Lima"
    assert server.connections == 2


def test_a_page_instead_of_a_stream_is_no_answer(serve, reach):
    found = stream_error(begin(reach(serve(says("<html>Sign in", content_type="text/html")))))
    assert (found.kind, found.code) == (ErrorKind.INVALID_RESPONSE, "html")


@pytest.mark.full
def test_a_stall_ends_at_the_deadline(serve, reach, service):
    pieces: list[str] = []
    script = streams(*service.events("Li", "ma")[:2], then=hangs)
    found = stream_error(begin(reach(serve(script)), timeout=0.5), pieces)
    assert pieces[:1] == ["Li"]
    assert (found.kind, found.code, found.maybe_billed) == (ErrorKind.TIMEOUT, "deadline", True)


def test_an_endless_stream_ends_at_the_cap(serve, reach, service):
    events = service.events("x" * 50_000, "ma")
    large = next(event for event in events if len(event) > 50_000)

    def endless(exchange: Exchange) -> None:
        while not exchange.server.done.is_set():
            exchange.send(chunked(large))

    found = stream_error(begin(reach(serve(streams(*events[:1], then=endless)), max_body=1_000_000)))
    assert found.code == "too_large"


def test_closing_from_another_thread_ends_the_iteration(serve, reach, service):
    first = threading.Event()
    server = serve(streams(*service.events("Li", "ma")[:2], then=hangs), says(service.answer("Lima")))
    provider = reach(server)
    stream = begin(provider, timeout=60.0)

    def read() -> ProviderError:
        try:
            for _ in stream:
                first.set()
        except ProviderError as error:
            return error
        raise AssertionError("no error")

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        assert first.wait(10)
        stream.close()
        stream.close()
        found = reading.result(timeout=10)
    assert (found.kind, found.code, found.maybe_billed) == (ErrorKind.NETWORK_ERROR, "closed", True)
    assert ask(provider).text == "Lima"
    assert server.connections == 2


def test_closing_the_provider_ends_its_streams(serve, reach, service):
    provider = reach(serve(streams(*service.events("Li", "ma")[:2], then=hangs)))
    pieces = iter(begin(provider, timeout=60.0))
    assert next(pieces) == "Li"
    provider.close()
    with pytest.raises(ProviderError) as caught:
        list(pieces)
    assert caught.value.code == "closed"
