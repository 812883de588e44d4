"""Every request ends, whatever mistakes providers, users and this library make (A5, A7, E1)."""

from __future__ import annotations

import io
import json
import math

import pytest
from inside import engine_of
from scenes import PATIENCE, Aside, Scripted, failure, submit_all

from smartbatch.client import BatchingClient
from smartbatch.errors import ClientClosed, ErrorKind
from smartbatch.observe import logs
from smartbatch.realtime.router import ResponseRouter
from smartbatch.realtime.text_stream import ChunkBox
from smartbatch.types import Answer, LimitReport, Result


def test_limits_that_are_none_are_passed_over(clock, client_of):
    limits = {"requests": 5}
    client = client_of(Scripted(clock, lambda *_: Answer("fine", limits=limits)))
    assert client.submit("x").result(PATIENCE).text == "fine"


def test_a_mistake_among_the_verdicts_fails_the_call_and_nothing_else(clock, client_of):
    wrong = LimitReport(requests_limit="many", requests_remaining="some")
    provider = Scripted(
        clock, lambda prompt, _: Answer("fine", limits=wrong if prompt == "wrong" else None), latency=0.1
    )
    client = client_of(provider, parallelism=1)
    bad, good = submit_all(client, ["wrong", "right"])
    assert "inside smartbatch" in str(bad.exception(PATIENCE))
    assert good.result(PATIENCE).ok
    engine = engine_of(client)
    client.stop()
    assert engine.counts().balanced()
    assert engine.gates.permits_out == 0


def test_a_wait_longer_than_the_system_can_count_is_no_end():
    def asks(request, attempt):
        if request.prompt == "slow":
            raise failure(ErrorKind.SERVER_ERROR, status=500, retry_after=3e10)
        return "fine"

    client = BatchingClient(asks, retries=1)
    slow = client.submit("slow")
    for i in range(3):
        assert client.submit(f"p{i}").result(PATIENCE).ok
    slow.cancel()
    client.stop(timeout=0)
    assert slow.done()


def test_a_stop_may_have_all_the_time_in_the_world():
    client = BatchingClient("sim:demo")
    future = client.submit("x")
    client.stop(timeout=math.inf)
    assert future.result(PATIENCE).ok


def test_a_future_that_somebody_else_ended_hurts_nobody(clock, client_of):
    provider = Scripted(clock)
    client = client_of(provider, parallelism=1)
    with clock.held():
        started, waiting, moved, sound = submit_all(client, ["started", "waiting", "moved", "sound"])
        provider.wait_for(1)
        started.set_result(Result("mine"))
        waiting.set_result(Result("mine"))
        moved.set_running_or_notify_cancel()
    assert sound.result(PATIENCE).ok
    assert moved.result(PATIENCE).ok
    assert started.result().request_id == waiting.result().request_id == "mine"
    stopping = Aside(client.stop)
    stopping.result()
    assert provider.prompts == ["started", "moved", "sound"]
    assert client.counts.balanced()


def test_an_interrupt_while_futures_are_ended_ends_the_others_too(clock, client_of, monkeypatch):
    provider = Scripted(clock, latency=100.0)
    client = client_of(provider, parallelism=3)
    with clock.held():
        futures = submit_all(client, "abc")
        provider.wait_for(3)
        end = futures[0].complete

        def interrupted(result):
            monkeypatch.undo()
            end(result)
            raise KeyboardInterrupt

        monkeypatch.setattr(futures[0], "complete", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.stop(timeout=0)
        assert all(isinstance(future.exception(PATIENCE), ClientClosed) for future in futures)


@pytest.fixture
def log():
    stream = io.StringIO()
    logs.enable("warning", stream)
    yield stream
    logs.disable()


def entries(log):
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    return [(line["event"], line["error"]) for line in lines]


def test_a_connection_that_cannot_be_closed_ends_its_stream_all_the_same(clock, log):
    def close():
        raise OSError("already gone")

    box = ChunkBox(clock)
    box.attach(close)
    assert box.cancel()
    box.end(Result("id", text="late"))
    assert box.over
    assert entries(log) == [("stream_close_failed", "OSError")]


def test_an_error_of_the_library_itself_fails_the_request_and_is_logged(clock, client_of, log, monkeypatch):
    prepare = ResponseRouter.prepare

    def broken(*_):
        raise ZeroDivisionError

    client = client_of(Scripted(clock), retries=0)
    monkeypatch.setattr(ResponseRouter, "prepare", broken)
    assert "inside smartbatch (ZeroDivisionError)" in str(client.submit("first").exception(PATIENCE))
    monkeypatch.setattr(ResponseRouter, "prepare", prepare)
    assert client.submit("second").result(PATIENCE).ok
    assert ("internal_error", "ZeroDivisionError") in entries(log)
