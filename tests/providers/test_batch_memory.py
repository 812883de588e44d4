"""Memory needed to transfer a hundred megabytes through a Batch API."""

from __future__ import annotations

import socket
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from batch_sides import ANTHROPIC, GEMINI, OPENAI, claude_batch, text_of
from batching import MARK, PATIENCE
from raw_server import accepted, http

from smartbatch.errors import ProviderError
from smartbatch.providers.batch_api import BatchApi, Creation, RemoteBatch, RemoteState
from smartbatch.providers.gemini.files import file_id_of
from smartbatch.providers.http.content import SpooledBody
from smartbatch.types import Kind

SIZE = 100_000_000
LINE = b'{"custom_id":"n-0","params":{"x":"' + b"y" * 962 + b'"}}\n'


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    path = tmp_path_factory.mktemp("spool") / "in"
    with open(path, "wb") as file:
        for _ in range(SIZE // 1000 // 1000):
            file.write(LINE * 1000)
    assert path.stat().st_size == SIZE
    return path


class Sink:
    def __init__(self, answer: Callable[[str, int], Iterator[bytes]]) -> None:
        self.sizes: list[int] = []
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        for sock in accepted(self._listener):
            with sock:
                self._serve(sock)

    def _serve(self, sock: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += sock.recv(1000)
        head, _, rest = head.partition(b"\r\n\r\n")
        fields = dict(line.lower().split(": ", 1) for line in head.decode().split("\r\n")[1:])
        left = int(fields["content-length"]) - len(rest)
        buffer = bytearray(1 << 16)
        while left > 0:
            left -= sock.recv_into(buffer, min(left, len(buffer)))
        self.sizes.append(int(fields["content-length"]))
        for piece in self._answer(head.decode(), self.sizes[-1]):
            sock.sendall(piece)


@contextmanager
def sinking(side, answer) -> Iterator[tuple[BatchApi, Sink]]:
    sink = Sink(answer)
    provider = side.provider(sink.url)
    api = provider.batches()
    api.get("abc1", PATIENCE)  # imports the SDK
    sink.sizes.clear()
    try:
        yield api, sink
    finally:
        provider.close()
        sink.close()


@contextmanager
def at_most(megabytes: float) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < megabytes * 1e6
    finally:
        tracemalloc.stop()


@pytest.mark.full
def test_a_large_inline_create_is_streamed_from_disk(large):
    def answer(_head, _size):
        yield http(text_of(claude_batch()).encode())

    with sinking(ANTHROPIC, answer) as (api, sink), at_most(5):
        api.create(Creation(MARK, "m", Kind.GENERATE, SIZE // 1000, lines=large), PATIENCE)
    assert sink.sizes == [SIZE + api.overhead(1) - 1]


@pytest.mark.full
def test_an_upload_of_a_hundred_megabytes_is_read_as_it_is_sent(large):
    def answer(head, _size):
        if "command: start" in head.lower():
            place = f"{sink.url}/upload/v1/files?upload_id=u"
            yield http(b"{}", x_goog_upload_url=place)
        elif "finalize" in head:
            done = text_of({"file": {"name": file_id_of("sb-x"), "sizeBytes": str(SIZE)}})
            yield http(done.encode(), x_goog_upload_status="final")
        elif "upload_id" in head:
            yield http(b"", x_goog_upload_status="active")
        else:
            yield http(text_of(GEMINI.batch()).encode())

    with sinking(GEMINI, answer) as (api, sink), at_most(30):
        assert api.upload("sb-x", large, PATIENCE).size == SIZE
    assert sum(sink.sizes[1:]) == SIZE
    assert sink.sizes[1:] == [SIZE]


def test_an_upload_of_a_form_is_read_as_it_is_sent(large):
    def answer(head, _size):
        body = {"id": "file-1", "filename": "x"} if "/files " in head else OPENAI.batch()
        yield http(text_of(body).encode())

    with sinking(OPENAI, answer) as (api, sink), at_most(5):
        assert api.upload("sb-x", large, PATIENCE).id == "file-1"
    assert SIZE < sink.sizes[-1] < SIZE + 1000


@pytest.mark.parametrize("side", [ANTHROPIC, GEMINI, OPENAI], ids=lambda side: side.prefix)
def test_results_of_a_hundred_megabytes_come_in_pieces(side):
    def answer(head, _size):
        if "/batches/abc1 " in head:
            yield http(text_of(side.batch()).encode())
            return
        yield b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % SIZE
        for _ in range(SIZE // 1000 // 100):
            yield LINE * 100

    batch = RemoteBatch(id="abc1", state=RemoteState.COMPLETED)
    with sinking(side, answer) as (api, _), at_most(5):
        assert sum(map(len, api.download(batch, side.output, PATIENCE))) == SIZE


def test_a_spooled_body_is_exactly_as_long_as_it_says(tmp_path):
    path = tmp_path / "in"
    for data, framed in (
        (b"", b"[]"),
        (b"\n", b"[]"),
        (b"a\n", b"[a]"),
        (b"a\nb\n", b"[a,b]"),
        (b"a\nb", b"[a,b]"),
        (b"x" * 65535 + b"\ny\n", b"[" + b"x" * 65535 + b",y]"),
        (b"x" * 65536 + b"\ny\n", b"[" + b"x" * 65536 + b",y]"),
    ):
        path.write_bytes(data)
        plain, body = SpooledBody(path), SpooledBody(path, before=b"[", after=b"]", between=b",")
        assert (b"".join(plain), len(plain)) == (data, len(data))
        assert (b"".join(body), len(body)) == (framed, len(framed))
        assert b"".join(body) == framed


def test_a_spooled_body_that_shrinks_meanwhile_is_an_error(tmp_path):
    path = tmp_path / "in"
    path.write_bytes(b"x" * 100_000)
    body = SpooledBody(path)
    pieces = iter(body)
    next(pieces)
    path.write_bytes(b"x")
    with pytest.raises(ProviderError, match="shorter"):
        list(pieces)
