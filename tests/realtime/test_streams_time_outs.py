"""Streams that time out, are read too slowly, or are open when their client stops."""

from __future__ import annotations

from collections import deque

import pytest
from scenes import InTime, eventually
from scripted_streams import Speaker, balanced, begun, read, read_error

from smartbatch.errors import BudgetExceeded, ClientClosed, ErrorKind, RequestCancelled, RequestTimeout
from smartbatch.prices import Price
from smartbatch.realtime import text_stream

# -- a slow reader -----------------------------------------------------------------------------------------


def test_a_slow_reader_slows_the_call_down(clock, client_of):
    total = 3 * text_stream.MAX_CHUNKS
    speaker = Speaker(clock, lambda *_: [f"{number} " for number in range(total)])
    stream = client_of(speaker).stream("long")
    behind = 0

    def reads():
        nonlocal behind
        chunks = []
        for chunk in stream:
            behind = max(behind, speaker.speeches[0].spoken - len(chunks))
            chunks.append(chunk)
            clock.sleep(0.01)
        return chunks

    assert InTime(clock, reads).result() == [f"{number} " for number in range(total)]
    assert text_stream.MAX_CHUNKS <= behind <= text_stream.MAX_CHUNKS + 2
    assert stream.result.latency > 0.01 * (total - text_stream.MAX_CHUNKS - 2)


def test_large_chunks_are_bounded_by_their_size(clock, client_of):
    large = "x" * (text_stream.MAX_CHARACTERS // 2)
    pieces = [large, large, large, large * 3, "end"]
    speaker = Speaker(clock, lambda *_: pieces)
    with clock.held():
        stream = client_of(speaker).stream("long")
        eventually(lambda: bool(speaker.speeches) and speaker.speeches[0].spoken == 3)
        assert read(stream) == pieces


def test_a_stream_nobody_reads_is_cut_when_its_call_is_over(clock, client_of):
    speaker = Speaker(clock, lambda prompt, _: ["x"] * 5000 if prompt == "long" else [prompt])
    client = client_of(speaker, parallelism=1, call_timeout=60, breaker_threshold=1)
    unread = client.stream("long")
    assert read(client.stream("next")) == ["next"]
    assert clock.now() == 60.0
    chunks, error = read_error(unread)
    assert len(chunks) == text_stream.MAX_CHUNKS
    assert isinstance(error, RequestCancelled)
    assert "read it, or close it" in str(error)


def test_a_slow_readers_time_out_is_no_sign_against_the_provider(clock, client_of):
    speaker = Speaker(clock, lambda prompt, _: ["x"] * 1500 + [100.0, "y"] if prompt == "long" else [prompt])
    client = client_of(speaker, call_timeout=60, breaker_threshold=1)
    stream = client.stream("long")

    def reads():
        for _ in stream:
            clock.sleep(0.02)

    with pytest.raises(RequestCancelled, match="too slowly"):
        InTime(clock, reads).result()
    assert read(client.stream("next")) == ["next"]
    assert clock.now() < 61


# -- time-outs and the end ---------------------------------------------------------------------------------


def test_a_request_time_out_ends_a_stream(clock, client_of):
    speaker = Speaker(clock, lambda *_: ["be", 100.0, "late"])
    client = client_of(speaker)
    stream = client.stream("long", timeout=5.0)
    chunks, error = read_error(stream)
    assert chunks == ["be"]
    assert error.kind is ErrorKind.TIMEOUT
    eventually(lambda: speaker.speeches[0].ended == 5.0)
    eventually(lambda: balanced(client))


def test_a_request_time_out_closes_a_stream_that_does_not_keep_it(clock, client_of):
    class Deaf(Speaker):
        def stream(self, request, *, model, attempt, timeout):
            return super().stream(request, model=model, attempt=attempt, timeout=10 * timeout)

    speaker = Deaf(clock, lambda *_: ["be", 1000.0, "late"])
    client = client_of(speaker)
    chunks, error = read_error(client.stream("long", timeout=5.0))
    assert chunks == ["be"]
    assert isinstance(error, RequestTimeout)
    eventually(lambda: speaker.speeches[0].ended == 5.0)
    eventually(lambda: balanced(client))


def test_a_call_time_out_ends_a_stream(clock, client_of):
    speaker = Speaker(clock, lambda *_: [part for _ in range(100) for part in ("x", 1.0)])
    chunks, error = read_error(client_of(speaker, call_timeout=10).stream("long"))
    assert len(chunks) == 10
    assert error.kind is ErrorKind.TIMEOUT


def test_a_stop_completes_streams(clock, client_of):
    client = client_of(Speaker(clock), parallelism=1)
    streams = [client.stream(f"p{number}") for number in range(3)]
    client.stop()
    assert [read(stream) for stream in streams] == [["re: ", f"p{number}"] for number in range(3)]


def test_a_stop_does_not_wait_for_a_reader(clock, client_of):
    total = 3 * text_stream.MAX_CHUNKS
    with clock.held(), client_of(Speaker(clock, lambda *_: ["x"] * total)) as client:
        begun_one = client.stream("long")
        next(begun_one)
    assert len(read(begun_one)) == total - 1
    assert begun_one.result.ok


def test_a_signal_handler_may_close_a_stream(clock, client_of, monkeypatch):
    class Closing(deque[str]):
        def popleft(self):
            stream.close()  # like a signal handler between two steps of the reader
            return super().popleft()

    speaker = Speaker(clock, lambda *_: ["be", 1000.0])
    monkeypatch.setattr(text_stream, "deque", Closing)
    with clock.held():
        stream = client_of(speaker).stream("long")
        assert next(stream) == "be"
        eventually(lambda: speaker.speeches[0].ended == 0.0)
        with pytest.raises(RequestCancelled):
            next(stream)


def test_a_stop_with_a_time_ends_streams(clock, client_of):
    speaker = Speaker(clock)
    client = client_of(speaker, parallelism=1)
    with clock.held():
        stream = begun(client, speaker)
        waiting = client.stream("waiting")
        stopping = InTime(clock, lambda: client.stop(timeout=10))
    stopping.result()
    assert isinstance(read_error(stream)[1], ClientClosed)
    assert isinstance(read_error(waiting)[1], ClientClosed)
    eventually(lambda: speaker.speeches[0].ended == 10.0)


def test_a_stream_the_budget_forbids_raises_in_its_loop(clock, client_of):
    speaker = Speaker(clock, priced=True)
    prices = {"speaker:default": Price(input=1.0, output=10.0)}
    chunks, error = read_error(client_of(speaker, prices=prices, budget=1e-9).stream("why?"))
    assert (chunks, speaker.speeches) == ([], [])
    assert isinstance(error, BudgetExceeded)
