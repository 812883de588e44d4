"""Transfers of OpenAI's Batch API: deadlines, pieces, proxies and threads."""

from __future__ import annotations

import json
import socket
import threading

import pytest
from asking import KEY
from batch_sides import OPENAI
from batching import creation, described, fails
from raw_server import http, resets, says, vanishes

from smartbatch.errors import ErrorKind
from smartbatch.providers import OpenAIProvider
from smartbatch.providers.batch_api import RemoteBatch, RemoteState
from smartbatch.providers.openai.batches import OpenAIBatches
from tests.threads_together import run_together

BATCH = RemoteBatch(id="batch_1", state=RemoteState.COMPLETED, outputs=("file-2",))
MB = 1 << 20


@pytest.fixture
def side():
    return OPENAI


def download(batches: OpenAIBatches, timeout: float = 20.0) -> bytes:
    return b"".join(batches.download(BATCH, "file-2", timeout))


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


def test_pieces_are_small_and_come_as_they_arrive(api):
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


@pytest.mark.parametrize("script", [resets, vanishes, says({"error": {"message": "x"}}, "503 Busy")])
def test_nothing_is_asked_twice(api, script):
    batches, server = api(script)
    fails(lambda: batches.get("batch_1", 5))
    fails(lambda: batches.page(None, 5))
    fails(lambda: batches.delete_file("file-1", 5))
    assert (len(server.requests), server.connections) == (3, 3)


def test_many_threads_share_one_api(api):
    batches, server = api(says(described()))
    run_together(lambda _: batches.get("batch_1", 10), range(16))
    assert len(server.requests) == 16
