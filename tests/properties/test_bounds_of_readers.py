"""What others send is read within bounds: ten times the input takes some ten times as long."""

from __future__ import annotations

import gzip
import hashlib
import json
import sqlite3
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from http.client import HTTPException
from typing import Any

import pytest

from smartbatch.core.preparation.json_recovery import JsonNotFound, recover_json, snapshot
from smartbatch.dashboard.access import TokenAccess
from smartbatch.emulator.http.head import BadRequest, ChunkedBody, parse_head
from smartbatch.errors import ErrorKind, ProviderError, StoreError, scrub
from smartbatch.jobs.payload import decode_params
from smartbatch.jobs.steps.result_lines import raw_lines
from smartbatch.providers.anthropic.errors import ERRORS as ANTHROPIC
from smartbatch.providers.error_reader import ErrorReader
from smartbatch.providers.error_table import explained
from smartbatch.providers.gemini.errors import ERRORS as GEMINI
from smartbatch.providers.http import content
from smartbatch.providers.http.content import MAX_DEPTH, decode_answer
from smartbatch.providers.http.event_stream import MAX_EVENT, EventStream, events
from smartbatch.providers.http.replies import Reply, decoded, joined
from smartbatch.providers.http.response import IncomingResponse
from smartbatch.providers.openai.errors import ERRORS as OPENAI
from smartbatch.providers.openai.streams import ChatReader
from smartbatch.realtime.cache import ResponseCache
from smartbatch.tables.templates import parse_template
from smartbatch.types import Answer, Request
from tests.levels import sampled

PROMPT = "the words of the prompt, which no error repeats " * 200
REQUEST = Request(PROMPT)


class Wire:
    def __init__(self, sent: bytes, size: int = 1 << 16) -> None:
        self._sent, self._at, self._size = sent, 0, size

    def recv(self, most: int) -> bytes:
        piece = self._sent[self._at : self._at + min(self._size, most)]
        self._at += len(piece)
        return piece


def body_of(chunks: bytes, size: int = 1 << 16) -> bytes:
    response = IncomingResponse(Wire(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks, size))
    return joined(decoded(iter(response.piece, b""), response.headers, 1 << 26))


class Live:
    def __init__(self, pieces: Iterable[bytes]) -> None:
        self.status, self.headers, self._pieces = 200, {"content-type": "text/event-stream"}, pieces

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._pieces)

    def drain(self) -> None: ...

    def close(self) -> None: ...


def streamed(*contents: str) -> str:
    pieces = (f'data: {{"choices": [{{"index": 0, {content}}}]}}\n\n'.encode() for content in contents)
    stream: Any = EventStream(lambda *_: Live(pieces), ChatReader(OPENAI), REQUEST, 60.0)  # type: ignore[arg-type, return-value]
    try:
        return "".join(stream)
    except ProviderError as error:
        return error.message


def refused(errors: ErrorReader, error: Any, status: int = 400) -> ProviderError:
    body = json.dumps({"error": error}).encode()
    return errors.read(Reply(status, {"content-type": "application/json"}, body), [REQUEST])


def searched(text: str) -> None:
    with pytest.raises(JsonNotFound):
        recover_json(text)


def cut(pieces: Iterable[bytes]) -> int:
    return sum(line is not None for line in raw_lines(pieces, max_line=1 << 20))


def chunked(data: bytes) -> tuple[bytes, bytes] | None:
    head = parse_head(b"POST /v1/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
    reader = ChunkedBody(head, 1 << 26)
    return next(filter(None, (reader.feed(data[at : at + 65536]) for at in range(0, len(data), 65536))), None)


GZIP = {"content-encoding": "gzip"}
DELTA = '"delta": {"content": "a", "reasoning_content": "b", "odd": ["c"]}'
END = '"delta": {}, "finish_reason": "stop"'

READERS: Mapping[str, Callable[[int], object]] = {
    "tiny chunks": lambda n: body_of(b"2\r\nab\r\n" * n + b"0\r\n\r\n"),
    "tiny members of gzip": lambda n: joined(decoded([gzip.compress(b"a", 1) * n], GZIP, 1 << 26)),
    "a line of events in tiny pieces": lambda n: list(events([b"data: ", *[b"ab"] * n, b"\n\n"])),
    "empty lines of an event": lambda n: list(events([b"data:\n" * n, b"\n"])),
    "small events": lambda n: list(events([b"data: {}\n\n" * n])),
    "a chat in small deltas": lambda n: streamed(*[DELTA] * (n // 20), END),
    "names that a stream adds": lambda n: streamed(
        *(f'"delta": {{"odd{number}": 1}}' for number in range(n // 20)), END
    ),
    "calls of tools": lambda n: streamed(
        *(
            f'"delta": {{"tool_calls": [{{"index": {number}, "function": {{"name": "f"}}}}]}}'
            for number in range(n // 20)
        ),
        END,
    ),
    "tiny lists": lambda n: decode_answer(b"[" + b"[]," * n + b"1]"),
    "brackets in a text": lambda n: decode_answer(b'["' + b"[{" * n + b'"]'),
    "a long reason": lambda n: refused(OPENAI, {"message": "word " * n}),
    "a long reason of Anthropic": lambda n: refused(ANTHROPIC, {"type": "x", "message": "tokens > " * n}),
    "a long reason of Gemini": lambda n: refused(GEMINI, {"code": 400, "message": "a.b[0]: " * n}),
    "many reasons": lambda n: refused(
        OPENAI, {"errors": [{"message": f"m{each}"} for each in range(n // 10)]}
    ),
    "many wrong fields": lambda n: refused(
        OPENAI, {"errors": {f"f{each}": ["bad"] for each in range(n // 10)}}
    ),
    "refused lines of a batch": lambda n: explained(
        ProviderError("refused", kind=ErrorKind.CLIENT_ERROR, status=400),
        {"errors": {"data": [{"line": each, "message": "bad"} for each in range(n // 50)]}},
    ),
    "a text about lines of a batch": lambda n: explained(
        ProviderError("refused", kind=ErrorKind.CLIENT_ERROR, status=400), {"message": "line 1, 2 and " * n}
    ),
    "a text to scrub": lambda n: scrub("sk-a " * n, limit=200),
    "result lines": lambda n: cut([b"{}\n" * n]),
    "a result line in tiny pieces": lambda n: cut([b"ab"] * n),
    "opening brackets around an answer": lambda n: searched("a [ {" * n),
    "ends of thoughts around an answer": lambda n: searched("</think> [" * n),
    "fences around an answer": lambda n: searched("```json\n" * n),
    "requests in tiny chunks": lambda n: chunked(b"1\r\na\r\n" * (n // 10) + b"0\r\n\r\n"),
    "a wide row of values": lambda n: snapshot([{"a": 1}] * (n // 10)),
    "parameters of an address of the emulator": lambda n: queried("&a" * n),
    "fields of an address of the dashboard": lambda n: TokenAccess()({"QUERY_STRING": "&a" * n}),
    "fields of an address of the dashboard with a token": lambda n: TokenAccess()(
        {"QUERY_STRING": "token=x" + "&a=1" * n}
    ),
    "braces of a template": lambda n: parse_template("{{" * n + "{a}"),
}


def seconds(work: Callable[[int], object], size: int) -> float:
    times = []
    for _ in range(3):
        began = time.process_time()
        work(size)
        times.append(time.process_time() - began)
    return min(times)


@pytest.mark.parametrize("name", sampled(READERS, keep=8))
def test_ten_times_the_input_takes_some_ten_times_as_long(name):
    work = READERS[name]
    work(100)
    small, large = seconds(work, 2_000), seconds(work, 20_000)
    assert large < 30 * max(small, 2e-3), (small, large)


def peak(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("work", "a_byte"),
    sampled(
        [
            (READERS["a line of events in tiny pieces"], 2 * 8),
            (READERS["tiny chunks"], 2 * 8),
            (lambda n: joined(decoded([gzip.compress(b"", 1) * n], GZIP, 1 << 26)), 25),
            (READERS["requests in tiny chunks"], 8),
        ]
    ),
)
def test_tiny_pieces_take_no_more_memory_than_large_ones(work, a_byte):
    work(10)
    assert peak(lambda: work(50_000)) - peak(lambda: work(5_000)) < 45_000 * 3 * a_byte


def nested(levels: int) -> bytes:
    return b'{"a":' * levels + b"1" + b"}" * levels


@pytest.mark.parametrize("levels", [MAX_DEPTH, MAX_DEPTH + 1, 10 * MAX_DEPTH, 100 * MAX_DEPTH])
def test_an_answer_has_a_depth_that_all_that_follows_can_bear(levels):
    answer = b'{"id": "x", "choices": [], "odd": %b}' % nested(levels - 1)
    reply = Reply(200, {}, answer)
    if levels <= MAX_DEPTH:
        assert OPENAI.answer(reply)["id"] == "x"
        assert streamed(f'"delta": {{"content": "a", "odd": {nested(levels - 6).decode()}}}', END) == "a"
        return
    assert reply.json() is None
    with pytest.raises(ProviderError, match="the answer is nested too deeply") as caught:
        OPENAI.answer(reply)
    assert caught.value.kind is ErrorKind.INVALID_RESPONSE
    said = streamed(f'"delta": {{"content": "a", "odd": {nested(levels).decode()}}}', END)
    assert said == "an event of the stream is nested too deeply"


@pytest.mark.parametrize("value", [b"[]", b"{}", b'"ab"', b'{"a":1}'])
def test_values_that_take_far_more_memory_than_their_text_are_refused(value, monkeypatch):
    monkeypatch.setattr(content, "_MAX_VALUES", 40_000)
    values = b",".join([value] * 50_000)
    assert peak(lambda: refused_as_too_many(b"[" + values + b"]")) < 4 * len(values)
    decode_answer(b"[" + b",".join([b"-0.0123456789012345"] * 100_000) + b"]")


def refused_as_too_many(text: bytes) -> None:
    with pytest.raises(RecursionError, match="has too many values"):
        decode_answer(text)


def test_compressed_bytes_count_as_well():
    empty = gzip.compress(b"", 1)
    with pytest.raises(ProviderError, match="larger than max_body=10000"):
        joined(decoded([empty] * 1_000, GZIP, 10_000))
    assert joined(decoded([empty] * 10, GZIP, 10_000)) == b""


def test_remarks_in_chunks_are_bounded():
    assert body_of(b"1;remark=1\r\na\r\n" * 10 + b"0\r\n\r\n") == b"a" * 10
    with pytest.raises(HTTPException):
        body_of((b"1;" + b"x" * 1_000 + b"\r\na\r\n") * 100 + b"0\r\n\r\n")


@pytest.mark.parametrize("errors", [OPENAI, ANTHROPIC, GEMINI])
def test_a_reason_is_compared_with_a_long_prompt_in_no_time(errors):
    long = Request("abcdefghi " * 100_000)
    body = json.dumps(
        {"error": {"message": "unsupported parameter: 'seed' " + "zyxwvutsrq " * 50_000}}
    ).encode()
    began = time.process_time()
    error = errors.read(Reply(400, {}, body), [long])
    assert time.process_time() - began < 2.0
    assert len(error.message) < 1_000


def test_requests_to_the_emulator_are_bounded():
    head = parse_head(b"POST /v1/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
    with pytest.raises(BadRequest) as caught:
        ChunkedBody(head, 1_000).feed(b"3e9\r\n" + b"a" * 1_001 + b"\r\n0\r\n\r\n")
    assert caught.value.status == 413


def queried(query: str) -> Mapping[str, list[str]]:
    try:
        return parse_head(f"GET /v1/batches?{query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()).parameters
    except BadRequest as error:
        assert error.status == 400
        return {}


def test_an_address_has_a_bounded_number_of_fields():
    assert queried("limit=3&a=1" + "&b=2" * 50)["limit"] == ["3"]
    assert queried("limit=3" + "&b=2" * 100) == {}
    access = TokenAccess()
    local = {"REMOTE_ADDR": "127.0.0.1"}
    assert access({**local, "QUERY_STRING": f"token={access.token}&a=1"}) == "all"
    assert access({**local, "QUERY_STRING": f"token={access.token}" + "&a=1" * 50}) is None


def test_an_event_without_an_end_is_refused():
    for line in (b"data: ", b"data: " + b"x" * 1_000_000 + b"\n"):
        pieces = (line if line.endswith(b"\n") or not at else b"x" * 1_000_000 for at in range(100))
        with pytest.raises(ProviderError, match=f"larger than {MAX_EVENT} bytes"):
            list(events(pieces))


@pytest.mark.parametrize("levels", [1_000, 10_000, 100_000])
def test_a_row_of_the_store_that_is_nested_too_deeply_is_damaged(levels):
    with pytest.raises(StoreError, match="damaged"):
        decode_params(nested(levels))


@pytest.mark.parametrize("body", [b"[" * 1_000, b"[" * 100_000, b"[]", b'{"text": [1]}', b"1" * 10_000])
def test_an_entry_of_the_cache_that_cannot_be_read_is_a_miss(tmp_path, body):
    path = str(tmp_path / "answers.db")
    cache = ResponseCache(path, ttl=60.0, max_bytes=10**6, wall=lambda: 1.0)
    assert cache.put(b"key", Answer("kept"))
    assert cache.get(b"key") is not None
    with closing(sqlite3.connect(path)) as file, file:
        digest = hashlib.sha256(b"key" + body).digest()
        file.execute("UPDATE answers SET body = ?, digest = ?", (body, digest))
    assert cache.get(b"key") is None
