"""The HTTP transport: deadlines, size limits, TLS, proxies, closing and forks."""

from __future__ import annotations

import gzip
import json
import os
import socket
import threading
import time
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from asking import KEY, ask, fails
from raw_server import chat, hangs, http, says, vanishes
from urllib3.util import parse_url

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers import OpenAIProvider
from smartbatch.providers.http.replies import decoded
from smartbatch.providers.http.transport import Transport, find_proxy

CA = str(Path(__file__).parent / "localhost-ca.pem")


def test_connections_idle_for_a_minute_are_closed_by_us(serve):
    both = threading.Barrier(2)

    def answers(exchange) -> None:
        if exchange.target.endswith("/together"):
            both.wait(10)
        exchange.send(http(b"{}"))

    server = serve(answers)
    now = [1000.0]
    transport = Transport(parse_url(server.base_url), now=lambda: now[0])
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: transport.post("/together", b"{}", 10.0), range(2)))
    now[0] += 59.9
    assert transport.post("/alone", b"{}", 10.0).status == 200
    assert server.connections == 2
    now[0] += 60.0
    assert transport.post("/alone", b"{}", 10.0).status == 200
    assert server.connections == 3
    for serving in server._threads[1:3]:  # the ends of the two closed connections
        serving.join(10)
        assert not serving.is_alive()
    transport.close()


def test_a_call_whose_time_is_over_before_it_begins_is_a_timeout(serve):
    server = serve(says(chat()))
    transport = Transport(parse_url(server.base_url))
    for _ in range(2):
        with pytest.raises(ProviderError) as caught:
            transport.post("/late", b"{}", -0.001)
        assert (caught.value.kind, caught.value.maybe_billed) == (ErrorKind.TIMEOUT, False)
        transport.post("/in-time", b"{}", 10.0)
    assert [request.target.rsplit("/", 1)[1] for request in server.requests] == ["in-time"] * 2
    transport.close()


def test_a_connection_the_server_closed_is_replaced(serve, connect):
    closed = threading.Event()

    def answers_and_closes(exchange) -> None:
        exchange.send(http(json.dumps(chat()).encode()))
        exchange.sock.shutdown(socket.SHUT_RDWR)
        closed.set()
        exchange.close()

    server = serve(answers_and_closes)
    provider = connect(server)
    for _ in range(3):
        closed.clear()
        assert ask(provider).text == "Lima"
        assert closed.wait(10)
    assert server.connections == 3


@pytest.mark.full
def test_a_resolver_that_hangs_ends_with_the_call(monkeypatch):
    answered, asked = threading.Event(), []

    def hangs(host, *_, **__):
        asked.append(host)
        answered.wait(20.0)
        raise socket.gaierror(-2, "Name or service not known")

    provider = OpenAIProvider(KEY, "https://nowhere.example/v1")
    monkeypatch.setattr(socket, "getaddrinfo", hangs)
    begun = time.monotonic()
    try:
        found = [fails(provider, timeout=0.2) for _ in range(3)]
    finally:
        answered.set()
    assert time.monotonic() - begun < 10.0
    assert {(each.kind, each.code, each.maybe_billed) for each in found} == {
        (ErrorKind.TIMEOUT, "deadline", False)
    }
    assert asked == ["nowhere.example"]


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH_9\r\n", b"HTTP/1.1 20000 OK\r\n\r\n"])
def test_what_is_not_http_is_an_invalid_response(serve, connect, answer):
    def script(exchange) -> None:
        exchange.send(answer)
        exchange.close()

    assert fails(connect(serve(script))).kind is ErrorKind.INVALID_RESPONSE


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("padding", [b"", b"\0" * 9, b"more"])
def test_a_body_of_several_gzip_members_is_unpacked_whole(size, padding):
    packed = b"".join(map(gzip.compress, [b"line 1\n", b"", b"line 2\n" * 20_000])) + padding
    pieces = [packed[at : at + size] for at in range(0, len(packed), size)]
    unpacked = b"".join(decoded(pieces, {"content-encoding": "gzip"}, 1_000_000))
    assert unpacked == b"line 1\n" + b"line 2\n" * 20_000


def test_a_cut_gzip_member_is_an_error_also_after_a_whole_one():
    packed = gzip.compress(b"line 1\n") + gzip.compress(b"line 2\n")[:-4]
    with pytest.raises(ProviderError) as caught:
        list(decoded([packed], {"content-encoding": "gzip"}, 1000))
    assert caught.value.code == "truncated"


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_what_stands_behind_a_long_answer_does_not_hold_its_reader_up(encoding):
    packed = (zlib if encoding == "deflate" else gzip).compress(b"0" * 600_000) + bytes(9)
    assert b"".join(decoded([packed], {"content-encoding": encoding}, 10**6)) == b"0" * 600_000


@pytest.mark.parametrize(
    ("body", "encoding", "code"),
    [
        (gzip.compress(b"0" * 5_000_000, mtime=0), "gzip", "too_large"),
        (gzip.compress(b"0" * 600_000, mtime=0) * 2, "gzip", "too_large"),
        (gzip.compress(b"{}", mtime=0)[:-9], "gzip", "truncated"),
        ((gzip.compress(b"{}", mtime=0) * 2)[:-9], "gzip", "truncated"),
        (b"not gzip", "gzip", "truncated"),
        (b"anything", "br", "encoding"),
        (b"0" * 1_000_001, "", "too_large"),
    ],
)
def test_bodies_are_capped_after_decoding(serve, connect, body, encoding, code):
    found = fails(connect(serve(says(body, content_encoding=encoding)), max_body=1_000_000))
    assert found.code == code
    assert found.maybe_billed


@pytest.mark.full
def test_a_gzip_bomb_takes_no_more_memory_than_the_cap():
    bomb = gzip.compress(bytes(30_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(ProviderError, match="max_body"):
            list(decoded([bomb], {"content-encoding": "gzip"}, 100_000))
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_body_larger_than_the_system_takes_at_once_arrives_whole(serve):
    server = serve(lambda exchange: exchange.send(http(str(zlib.crc32(exchange.body)).encode())))
    transport = Transport(parse_url(server.base_url))
    body = os.urandom(1 << 20) * 24
    assert int(transport.post("/large", body, 60.0).body) == zlib.crc32(body)
    transport.close()


def test_a_server_that_does_not_read_ends_the_call_at_its_deadline():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        transport = Transport(parse_url(f"http://127.0.0.1:{listener.getsockname()[1]}"))
        with pytest.raises(ProviderError) as caught:
            transport.post("/large", bytes(24 << 20), 0.2)
        assert caught.value.kind is ErrorKind.TIMEOUT
        transport.close()


def test_a_certificate_for_another_name_is_refused(serve, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", CA)
    server = serve(says(chat()), tls=True)
    provider = OpenAIProvider(KEY, f"https://api.example:{server.port}/v1")
    resolve = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda _, port, **more: resolve("127.0.0.1", port, **more))
    found = fails(provider)
    assert (found.kind, found.code) == (ErrorKind.CLIENT_ERROR, "tls")
    assert server.requests == []


def test_a_trusted_certificate_is_accepted(serve, connect, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", CA)
    server = serve(says(chat()), tls=True)
    provider = connect(server)
    assert [ask(provider).text, ask(provider).text] == ["Lima", "Lima"]
    assert server.connections == 1


def test_a_tunnelling_proxy_never_sees_the_key(serve, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", CA)
    server = serve(says(chat()), tls=True)
    seen: list[bytes] = []

    def tunnel(exchange) -> None:
        exchange.send(b"HTTP/1.1 200 OK\r\n\r\n")
        with socket.create_connection(("127.0.0.1", server.port)) as onward:
            pump = threading.Thread(target=_pump, args=(onward, exchange.sock, []), daemon=True)
            pump.start()
            _pump(exchange.sock, onward, seen)
            pump.join(5)
        exchange.close()

    proxy = serve(tunnel)
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.port}")
    # Loopback never uses a proxy, but the certificate is for localhost, so the check is disabled.
    monkeypatch.setattr("smartbatch.providers.http.transport.is_loopback", lambda host: False)
    provider = OpenAIProvider(KEY, server.base_url)
    assert ask(provider).text == "Lima"
    provider.close()
    assert proxy.requests[0].head.startswith(f"CONNECT localhost:{server.port}")
    assert KEY not in proxy.requests[0].head
    assert KEY.encode() not in b"".join(seen)


def _pump(source: socket.socket, target: socket.socket, seen: list[bytes]) -> None:
    try:
        while data := source.recv(65536):
            seen.append(data)
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def test_a_proxy_that_refuses_says_so(serve, monkeypatch):
    for status, kind in (("407 Auth", ErrorKind.CLIENT_ERROR), ("502 Bad", ErrorKind.NETWORK_ERROR)):

        def refuse(exchange, status=status) -> None:
            exchange.send(f"HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n".encode())
            exchange.close()

        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{serve(refuse).port}")
        found = fails(OpenAIProvider(KEY, "https://api.example/v1"))
        assert (found.kind, found.code, found.maybe_billed) == (kind, "proxy", False)


def test_no_proxy_and_loopback_go_direct(serve, connect, monkeypatch):
    proxy = serve(vanishes)
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
    assert ask(connect(serve(says(chat())))).text == "Lima"
    assert proxy.connections == 0


@pytest.mark.parametrize(
    ("named", "address", "is_direct"),
    [
        ("llm.local", "http://llm.local:8000/v1", True),
        ("llm.local:8000", "http://llm.local:8000/v1", True),
        ("other.local, .local:8000", "http://llm.local:8000/v1", True),
        ("llm.local:8001", "http://llm.local:8000/v1", False),
        ("llm.local:8000", "http://llm.local/v1", False),
        ("10.0.0.5:8000", "http://10.0.0.5:8000/v1", True),
        ("fd00::1", "http://[fd00::1]:8000/v1", True),
        ("[fd00::1]:8000", "http://[fd00::1]:8000/v1", True),
        ("[fd00::1]:8001", "http://[fd00::1]:8000/v1", False),
    ],
)
def test_no_proxy_names_a_host_with_or_without_its_port(named, address, is_direct, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", named)
    proxy, _ = find_proxy(parse_url(address))
    assert proxy == (None if is_direct else "http://proxy.example:3128")


def test_more_calls_than_connections_wait_for_one(serve, connect):
    server = serve(hangs)
    provider = OpenAIProvider(KEY, server.base_url)
    provider.open(1)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(fails, provider, timeout=60.0)
        assert server.arrived.acquire(timeout=10)
        found = fails(provider, timeout=0.1)
        provider.close()
        first.result(timeout=10)
    assert (found.kind, found.code, found.maybe_billed) == (ErrorKind.NETWORK_ERROR, "pool", False)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_exits_although_the_pools_lock_was_held(serve, connect):
    provider = connect(serve(says(chat())))
    ask(provider)
    queue = provider.network.realtime._pool.get().pool
    with queue.mutex:
        child = os.fork()
    if child == 0:
        queue.put(None)  # would block forever on the parent's lock
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
