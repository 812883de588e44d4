"""Files and batches on the wire: deadlines, caps, cut bodies, large files, proxies, TLS, closing, forks."""

from __future__ import annotations

import gzip
import json
import os
import socket
import threading
import tracemalloc
import zlib
from pathlib import Path

import pytest
from asking import KEY
from batch_sides import OPENAI
from batching import creation, described, fails
from raw_server import http, resets, says, vanishes

from smartbatch.errors import ErrorKind
from smartbatch.providers.batch_api import RemoteBatch, RemoteState
from smartbatch.providers.http import batch_calls
from smartbatch.providers.http.content import upload_form
from smartbatch.providers.openai.batches import OpenAIBatches
from smartbatch.providers.openai.provider import OpenAIProvider
from tests.together import run_together

CA = str(Path(__file__).parent / "localhost-ca.pem")
BATCH = RemoteBatch(id="batch_1", state=RemoteState.COMPLETED, outputs=("file-2",))
MB = 1 << 20


@pytest.fixture
def side():
    return OPENAI


def download(batches: OpenAIBatches, timeout: float = 20.0) -> bytes:
    return b"".join(batches.download(BATCH, "file-2", timeout))


# deadlines


def silent(exchange):
    exchange.server.done.wait(30)
    exchange.close()


def trickling_head(exchange):
    for byte in b"HTTP/1.1 200 OK\r\n" + b"x-header: 1\r\n" * 1000:
        if exchange.server.done.wait(0.002):
            return
        exchange.send(bytes([byte]))


def trickling_body(exchange):
    exchange.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
    while not exchange.server.done.wait(0.002):
        exchange.send(b"x")


@pytest.mark.full
@pytest.mark.parametrize("script", [silent, trickling_head, trickling_body])
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_every_call_ends_at_its_deadline(api, script, tls, monkeypatch):
    """A create, a look and a download; a byte now and then does not help the server."""
    monkeypatch.setenv("SSL_CERT_FILE", CA)
    batches, _ = api(script, tls=tls)
    for call in (
        lambda: batches.create(creation(), 0.2),
        lambda: batches.get("batch_1", 0.2),
        lambda: download(batches, 0.2),
    ):
        found = fails(call)
        assert (found.kind, found.code, found.maybe_billed) == (ErrorKind.TIMEOUT, "deadline", True)


@pytest.mark.full
def test_a_server_that_does_not_read_ends_an_upload_at_its_deadline(tmp_path):
    source = tmp_path / "lines"
    with open(source, "wb") as file:
        file.truncate(64 * MB)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        batches = OpenAIProvider(
            api_key=KEY, base_url=f"http://127.0.0.1:{deaf.getsockname()[1]}/v1"
        ).batches()
        found = fails(lambda: batches.upload("sb-x", source, 0.3))
    assert (found.kind, found.maybe_billed) == (ErrorKind.TIMEOUT, True)


@pytest.mark.full
def test_a_list_of_many_pages_has_one_deadline(api):
    numbers = iter(range(10**6))

    def page(exchange):
        if not exchange.server.done.wait(0.02):
            body = {"data": [{"id": f"file-{next(numbers)}", "filename": "other"}], "has_more": True}
            exchange.send(http(json.dumps(body).encode()))

    batches, server = api(page)
    assert fails(lambda: batches.find_file("sb-x", 0.3)).kind is ErrorKind.TIMEOUT
    assert 2 < len(server.requests) <= 16


# bodies


def test_whole_bodies_come_whole(api):
    text = b"".join(b'{"line": %d}\n' % number for number in range(20_000))

    def chunked(exchange):
        exchange.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for at in range(0, len(text), 9999):
            piece = text[at : at + 9999]
            exchange.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        exchange.send(b"0\r\n\r\n")

    def to_the_end(exchange):
        exchange.send(b"HTTP/1.1 200 OK\r\n\r\n" + text)
        exchange.close()

    scripts = [
        says(text),
        chunked,
        to_the_end,
        says(gzip.compress(text), content_encoding="gzip"),
        says(zlib.compress(text), content_encoding="deflate"),
        says(b""),
    ]
    batches, server = api(*scripts)
    for number in range(len(scripts)):
        assert download(batches) == (b"" if number == len(scripts) - 1 else text)
    assert all(request.headers["accept-encoding"] == "identity" for request in server.requests)
    assert server.connections == len(scripts)


@pytest.mark.full
def test_answers_and_downloads_have_caps(api, monkeypatch):
    """Also for what grows when it is unpacked; nothing near its size is held."""
    bomb = gzip.compress(b"\0" * (80 * MB))
    batches, _ = api(says(bomb, content_encoding="gzip"))
    tracemalloc.start()
    found = fails(lambda: batches.get("batch_1", 30))
    assert (found.kind, found.code) == (ErrorKind.INVALID_RESPONSE, "too_large")
    monkeypatch.setattr(batch_calls, "MAX_DOWNLOAD", 10 * MB)
    tracemalloc.reset_peak()
    assert fails(lambda: [len(piece) for piece in batches.download(BATCH, "file-2", 30)]).code == "too_large"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 70 * MB  # the pieces of the first call, up to its cap of 64 MB, may still be there


def test_pieces_are_small_and_come_as_they_arrive(api):
    """The first is there while the server still holds back the rest."""
    first_read = threading.Event()

    def halting(exchange):
        exchange.send(b"HTTP/1.1 200 OK\r\ncontent-length: 200003\r\n\r\nab\n")
        first_read.wait(20)
        exchange.send(b"x" * 200_000)

    batches, _ = api(halting)
    pieces = batches.download(BATCH, "file-2", 20)
    assert next(pieces) == b"ab\n"
    first_read.set()
    rest = list(pieces)
    assert sum(map(len, rest)) == 200_000
    assert max(map(len, rest)) <= 65536


# large files


def test_a_download_of_100_mb_needs_no_memory(api):
    piece = b"x" * (MB - 1) + b"\n"

    def large(exchange):
        exchange.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (100 * MB))
        for _ in range(100):
            exchange.send(piece)

    batches, _ = api(large)
    tracemalloc.start()
    size = sum(map(len, batches.download(BATCH, "file-2", 60)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size == 100 * MB
    assert peak < 6 * MB


class Sink:
    """Takes one request, however large, and tells how much there was of it."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()
        self.size = 0

    def run(self) -> None:
        sock, _ = self.listener.accept()
        buffer = bytearray(MB)
        head = b""
        while b"\r\n\r\n" not in head:
            head += sock.recv(100)
        head, _, rest = head.partition(b"\r\n\r\n")
        [length] = [
            int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length")
        ]
        got = len(rest)
        while got < length:
            got += sock.recv_into(buffer)
        self.size = length
        sock.sendall(http(json.dumps({"id": "file-1", "filename": "sb-x.jsonl"}).encode()))
        sock.close()


def test_an_upload_of_100_mb_needs_no_memory(tmp_path):
    source = tmp_path / "lines"
    with open(source, "wb") as file:
        file.truncate(100 * MB)
    sink = Sink()
    batches = OpenAIProvider(
        api_key=KEY, base_url=f"http://127.0.0.1:{sink.listener.getsockname()[1]}/v1"
    ).batches()
    tracemalloc.start()
    assert batches.upload("sb-x", source, 60).id == "file-1"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    sink.thread.join(10)
    sink.listener.close()
    assert 100 * MB < sink.size < 100 * MB + 1000
    assert peak < 6 * MB


def test_an_upload_refused_half_way_says_why(tmp_path):
    """The server answers 413 and hangs up before it has read all."""
    source = tmp_path / "lines"
    with open(source, "wb") as file:
        file.truncate(64 * MB)
    listener = socket.create_server(("127.0.0.1", 0))

    def refuse() -> None:
        sock, _ = listener.accept()
        sock.recv(1000)
        sock.sendall(http(b'{"error": {"message": "too large"}}', "413 Too Large", connection="close"))
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(MB):
            pass
        sock.close()

    thread = threading.Thread(target=refuse, daemon=True)
    thread.start()
    batches = OpenAIProvider(
        api_key=KEY, base_url=f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    ).batches()
    found = fails(lambda: batches.upload("sb-x", source, 20))
    assert (found.status, found.kind) == (413, ErrorKind.CLIENT_ERROR)
    thread.join(10)
    listener.close()


def test_a_file_that_shrinks_while_it_is_sent_is_an_error(tmp_path):
    source = tmp_path / "lines"
    source.write_bytes(b"x" * 1000)
    body, _ = upload_form({}, source, "f")
    os.truncate(source, 10)
    assert fails(lambda: b"".join(body)).code == "source"


# who else is on the way


def test_no_netrc_no_cookies_no_redirects(api, tmp_path, monkeypatch):
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login a password stolen\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    redirect = says("", "307 Moved", location="/v1/batches/batch_2", set_cookie="a=b; Path=/")
    batches, server = api(redirect, says(described()))
    fails(lambda: batches.get("batch_1", 5))
    assert batches.get("batch_1", 5) is not None
    assert [request.target for request in server.requests] == ["/v1/batches/batch_1"] * 2
    for request in server.requests:
        assert "cookie" not in request.headers
        assert request.headers["authorization"] == f"Bearer {KEY}"
        assert request.headers["user-agent"].startswith("smartbatch/")


def test_calls_go_through_the_proxy_of_the_environment(serve, monkeypatch):
    proxy = serve(says(described()), says("", "407 No"))
    monkeypatch.setenv("HTTP_PROXY", f"http://user:canary@127.0.0.1:{proxy.port}")
    provider = OpenAIProvider(api_key=KEY, base_url="http://api.invalid/v1", allow_http=True)
    assert provider.batches().get("batch_1", 5).id == "batch_1"
    [seen] = proxy.requests
    assert seen.target == "http://api.invalid/v1/batches/batch_1"
    assert seen.headers["proxy-authorization"].startswith("Basic ")
    monkeypatch.setenv("HTTPS_PROXY", f"http://user:canary@127.0.0.1:{proxy.port}")
    tunnelled = OpenAIProvider(api_key=KEY, base_url="https://api.invalid/v1").batches()
    found = fails(lambda: tunnelled.create(creation(), 5))
    assert (found.code, found.maybe_billed) == ("proxy", False)
    assert proxy.requests[1].head.startswith("CONNECT api.invalid:443 ")


def test_tls_is_checked_against_the_systems_certificates(api, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", CA)
    batches, _ = api(says(described()), tls=True)
    assert batches.get("batch_1", 5).id == "batch_1"


@pytest.mark.parametrize("script", [resets, vanishes, says({"error": {"message": "x"}}, "503 Busy")])
def test_nothing_is_asked_twice(api, script):
    """Neither ``requests`` nor ``urllib3`` repeats a call, be it one that is safe to repeat."""
    batches, server = api(script)
    fails(lambda: batches.get("batch_1", 5))
    fails(lambda: batches.page(None, 5))
    fails(lambda: batches.delete_file("file-1", 5))
    assert (len(server.requests), server.connections) == (3, 3)


# threads


def test_many_threads_share_one_api(api):
    batches, server = api(says(described()))
    run_together(lambda _: batches.get("batch_1", 10), range(16))
    assert len(server.requests) == 16
