"""Streams that are closed before, during or between calls, by Ctrl-C, or by the garbage collector."""

from __future__ import annotations

import gc
import signal
import threading

import pytest
from inside import is_read
from scenes import Aside, eventually, limited
from scripted_streams import Speaker, balanced, begun, read, read_error

from smartbatch import Interrupted
from smartbatch._clock import RealClock
from smartbatch.core.preparation.tokens import estimate_request
from smartbatch.errors import RequestCancelled
from smartbatch.events import RequestFinished
from smartbatch.types import Request, Usage


def test_closing_before_the_start_sends_nothing(clock, client_of):
    speaker = Speaker(clock)
    events = []
    client = client_of(speaker, parallelism=1, observers=[events.append])
    with clock.held():
        first = client.stream("first")
        eventually(lambda: bool(speaker.speeches))
        waiting = client.stream("waiting")
        waiting.close()
        assert client.counts.cancelled == 1
    assert read(first) == ["re: ", "first"]
    _, error = read_error(waiting)
    assert isinstance(error, RequestCancelled)
    assert isinstance(waiting.result.error, RequestCancelled)
    assert speaker.prompts == ["first"]
    client.stop()  # a stream ends before observers are notified
    ended = [event for event in events if isinstance(event, RequestFinished)]
    assert [event.cancelled for event in ended] == [True, False]
    assert balanced(client)


def test_closing_after_the_start_closes_the_connection(clock, client_of):
    speaker = Speaker(clock)
    client = client_of(speaker, parallelism=1)
    with clock.held():
        stream = begun(client, speaker)
        stream.close()
        assert isinstance(stream.result.error, RequestCancelled)
        assert read(client.stream("next")) == ["next"]
    assert speaker.speeches[0].closed
    assert speaker.speeches[0].ended == 0.0
    assert stream.result.usage == Usage(estimate_request(Request(prompt="long")), 1, estimated=True)
    assert (client.counts.failed, balanced(client)) == (1, True)


def test_a_reader_hears_that_another_thread_closed_its_stream(clock, client_of):
    speaker = Speaker(clock)
    with clock.held():
        stream = begun(client_of(speaker), speaker)
        reader = Aside(lambda: list(stream))
        stream.cancel()
        with pytest.raises(RequestCancelled):
            reader.result()


def test_closing_between_two_tries_ends_the_request(clock, client_of):
    speaker = Speaker(clock, lambda prompt, attempt: [limited(50.0)])
    client = client_of(speaker)
    with clock.held():
        stream = client.stream("why?")
        eventually(lambda: client.counts.waiting == 1 and bool(speaker.speeches))
        stream.close()
        assert isinstance(stream.result.error, RequestCancelled)
        assert balanced(client)
    client.stop()
    assert len(speaker.speeches) == 1


def test_closed_streams_are_no_sign_against_the_provider(clock, client_of):
    speaker = Speaker(clock)
    client = client_of(speaker, breaker_threshold=1)
    with clock.held():
        for _ in range(20):
            begun(client, speaker).close()
        assert read(client.stream("next")) == ["next"]


def leaves_by_break(stream):
    for _ in stream:
        break


def leaves_by_an_error(stream):
    with pytest.raises(LookupError):  # noqa: PT012
        for _ in stream:
            raise LookupError


def leaves_the_with_block(stream):
    with stream:
        next(stream)


@pytest.mark.parametrize("leave", [leaves_by_break, leaves_by_an_error, leaves_the_with_block])
def test_leaving_early_closes_the_stream(clock, client_of, leave):
    speaker = Speaker(clock, lambda *_: ["be", 1000.0])
    with clock.held():
        stream = client_of(speaker).stream("long")
        Aside(lambda: leave(stream)).result()
        eventually(lambda: speaker.speeches[0].ended == 0.0)
        assert isinstance(stream.result.error, RequestCancelled)


def test_a_stream_that_was_left_stays_closed(clock, client_of):
    client = client_of(Speaker(clock, lambda *_: ["a", "b", "c"]))
    stream = client.stream("why?")
    eventually(lambda: client.counts.succeeded == 1)
    leaves_by_break(stream)
    assert stream.result.ok
    with pytest.raises(RequestCancelled):
        next(stream)


@pytest.mark.full
def test_a_forgotten_stream_is_closed(clock, client_of):
    speaker = Speaker(clock)
    client = client_of(speaker)
    with clock.held():
        cycle = [begun(client, speaker)]
        cycle.append(cycle)
        del cycle
        gc.collect()
        eventually(lambda: speaker.speeches[0].ended == 0.0)
        eventually(lambda: balanced(client))


def test_ctrl_c_while_waiting_closes_the_stream(client_of):
    clock = RealClock()
    speaker = Speaker(clock)
    client = client_of(speaker, clock=clock)
    stream = begun(client, speaker)

    def interrupt():
        eventually(lambda: is_read(stream))
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        interrupting = Aside(interrupt)
        with pytest.raises(Interrupted) as raised:
            list(stream)
        interrupting.result()
    finally:
        signal.signal(signal.SIGINT, before)
    assert isinstance(stream.result.error, RequestCancelled)
    assert list(raised.value.results) == [stream.result]
    assert raised.value.__context__ is None
    assert read(client.stream("next")) == ["next"]


def test_cancelling_all_that_waits_includes_streams(clock, client_of):
    speaker = Speaker(clock)
    client = client_of(speaker, parallelism=1)
    with clock.held():
        first = client.stream("first")
        eventually(lambda: bool(speaker.speeches))
        waiting = client.stream("waiting")
        listed = Aside(lambda: list(client.map(["a", "b"])))
        eventually(lambda: client.counts.waiting == 3)
        client.cancel_pending()
        _, error = read_error(waiting)
        assert isinstance(error, RequestCancelled)
        assert [type(result.error) for result in listed.result()] == [RequestCancelled] * 2
    assert read(first) == ["re: ", "first"]
