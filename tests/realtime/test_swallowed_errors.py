"""An error that is not raised is logged: it is not reported otherwise."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import pytest
from scenes import PATIENCE, Scripted

from smartbatch.observe import logs
from smartbatch.realtime.router import ResponseRouter
from smartbatch.realtime.text_stream import ChunkBox
from smartbatch.types import Result


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    logs.enable("warning", stream)
    yield stream
    logs.disable()


def entries(log: io.StringIO) -> list[tuple[str, str]]:
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    return [(line["event"], line["error"]) for line in lines]


def test_a_connection_that_cannot_be_closed_ends_its_stream_all_the_same(clock, log):
    def close() -> None:
        raise OSError("already gone")

    box = ChunkBox(clock)
    box.attach(close)
    assert box.cancel()
    box.end(Result("id", text="late"))
    assert box.over
    assert entries(log) == [("stream_close_failed", "OSError")]


def test_an_error_of_the_library_itself_fails_the_request_and_is_logged(clock, client_of, log, monkeypatch):
    prepare = ResponseRouter.prepare

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    client = client_of(Scripted(clock), retries=0)
    monkeypatch.setattr(ResponseRouter, "prepare", broken)
    assert "inside smartbatch (ZeroDivisionError)" in str(client.submit("first").exception(PATIENCE))
    monkeypatch.setattr(ResponseRouter, "prepare", prepare)
    assert client.submit("second").result(PATIENCE).ok
    assert ("internal_error", "ZeroDivisionError") in entries(log)
