"""HTTP connections: partial requests, pipelines, chunks, and invalid bytes."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_client import RawClient, chat, request_bytes

from smartbatch.emulator.http.head import BadRequest, ChunkedBody, parse_head
from smartbatch.errors import ConfigError
from smartbatch.testing import Emulator, answer_for


def text_of(body: bytes) -> str:
    return json.loads(body)["choices"][0]["message"]["content"]


def test_pipelined_requests_are_answered_in_order(emu, raw):
    emu.configure(latency=0.001)
    raw.send(b"".join(request_bytes(chat(str(n))) for n in range(20)))
    assert [text_of(raw.answer()[2]) for _ in range(20)] == [answer_for(str(n), "m") for n in range(20)]


@pytest.mark.full
@settings(max_examples=25)
@given(cuts=st.lists(st.integers(1, 400), max_size=5))
def test_a_request_may_arrive_in_any_pieces(raw, cuts):
    data = b"\r\n" + request_bytes(chat("cut"))
    edges = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    for begin, end in itertools.pairwise(edges):
        raw.send(data[begin:end])
    assert text_of(raw.answer()[2]) == answer_for("cut", "m")


def test_a_chunked_body_is_read_and_the_connection_goes_on(raw):
    body = json.dumps(chat("chunked")).encode()
    chunks = b"".join(
        b"%x\r\n%b\r\n" % (len(body[i : i + 7]), body[i : i + 7]) for i in range(0, len(body), 7)
    )
    raw.send(request_bytes(None, headers="Transfer-Encoding: chunked\r\n") + chunks + b"0\r\n\r\n")
    assert text_of(raw.answer()[2]) == answer_for("chunked", "m")
    assert raw.ask(chat())[0] == 200


def test_a_client_that_expects_continue_gets_it(raw):
    data = request_bytes(chat(), headers="Expect: 100-continue\r\n")
    end = data.index(b"\r\n\r\n") + 4
    raw.send(data[:end])
    assert raw.line() == b"HTTP/1.1 100 Continue\r\n"
    raw.line()
    raw.send(data[end:])
    assert raw.answer()[0] == 200


def test_connection_close_is_honoured(raw):
    raw.send(request_bytes(chat(), headers="Connection: close\r\n"))
    assert raw.answer()[1]["connection"] == "close"
    assert raw.rest() == b""


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00 hello over TLS", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: many\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 70_000, 431),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n" + b"x" * 500_000, 413),
    ],
)
def test_what_is_no_request_is_refused_and_closed(emu, raw, data, status):
    raw.send(data)
    got, headers, body = raw.answer()
    assert (got, headers["connection"]) == (status, "close")
    assert json.loads(body)["error"]["type"] == "invalid_request_error"
    assert raw.rest() == b""
    with RawClient(emu.port) as another:
        assert another.ask(chat())[0] == 200


@given(st.binary(max_size=200))
def test_any_bytes_are_a_head_or_a_bad_request(data):
    with contextlib.suppress(BadRequest):
        assert parse_head(data + b"\r\n\r\n").method


def test_a_chunked_body_has_a_limit_too():
    head = parse_head(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    chunks = ChunkedBody(head, limit=10)
    assert chunks.feed(b"8\r\n12345678\r\n") is None
    with pytest.raises(BadRequest, match="too large"):
        chunks.feed(b"8\r\n12345678\r\n")


def test_connections_beyond_the_cap_are_turned_away():
    with Emulator(max_connections=2) as emu, RawClient(emu.port) as one, RawClient(emu.port) as two:
        assert one.ask(chat())[0] == two.ask(chat())[0] == 200
        with RawClient(emu.port) as three:
            assert three.answer()[0] == 503
        assert one.ask(chat())[0] == 200


def test_stop_ends_what_is_under_way():
    emu = Emulator(latency=60).start()
    with RawClient(emu.port) as client:
        client.send(request_bytes(chat()))
        with RawClient(emu.port) as other:
            other.ask(method="GET", path="/_ledger")
        emu.stop()
        assert client.rest() == b""
    emu.stop()
    assert "smartbatch-emulator" not in [thread.name for thread in threading.enumerate()]
    with pytest.raises(ConnectionRefusedError):
        RawClient(emu.port)
    with pytest.raises(ConfigError, match="stopped"):
        emu.start()


def test_a_port_in_use_is_named(emu):
    with pytest.raises(ConfigError, match=f"port {emu.port} .* name another port"):
        Emulator(port=emu.port)


@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1", "[::1]:1", "127.8.8.8", "api.localhost"])
def test_the_names_of_this_machine_are_served(raw, host):
    assert raw.ask(chat("hi"), host=host, headers="Origin: http://localhost:3000\r\n")[0] == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/_ledger/reset"])
@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("evil.example", None),
        ("127.0.0.1.evil.example", None),
        ("localhost", "https://evil.example"),
        ("localhost", "null"),
        ("", None),
    ],
)
def test_a_page_of_another_machine_is_refused(emu, raw, path, host, origin):
    raw.ask(chat("before"))
    headers = "" if origin is None else f"Origin: {origin}\r\n"
    status, _, body = raw.ask(chat("hi"), path=path, host=host, headers=headers)
    assert status == 403
    assert "this machine only" in body["error"]["message"]
    assert len(emu.ledger.calls) == 1
