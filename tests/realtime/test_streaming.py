"""Streaming one answer: the same queue, gates and retries, until the first chunk; never after it (C5)."""

from __future__ import annotations

import gc
import itertools
import random
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest
from inside import inside, is_read
from levels import sampled
from scenes import Aside, InTime, Scripted, broken, eventually, failure, limited, unavailable

from smartbatch import Interrupted, TextStream
from smartbatch._clock import Clock, RealClock, VirtualClock
from smartbatch.client import BatchingClient
from smartbatch.core.preparation.tokens import estimate_request
from smartbatch.errors import (
    BudgetExceeded,
    ClientClosed,
    ErrorKind,
    InvalidRequest,
    ProviderError,
    RequestCancelled,
    RequestTimeout,
    SmartbatchError,
)
from smartbatch.events import CallFinished, CallStarted, Event, RequestFinished, RequestSubmitted
from smartbatch.prices import Price
from smartbatch.providers.base import AnswerStream, Capabilities, Provider
from smartbatch.providers.mock import MockProvider
from smartbatch.realtime import text_stream
from smartbatch.types import Answer, Embedding, Request, Route, Usage

ClientOf = Callable[..., BatchingClient]
Part = str | float | Exception

USED = Usage(7, 3)
_scopes = itertools.count(1)


class Speaker(Provider):
    """Streams what a script says: texts are pieces, numbers are seconds of silence, errors end it.

    Args:
        script: ``script(prompt, attempt)`` returns the parts.
        usage: what the provider says it billed, at the end.
    """

    name = "speaker"
    capabilities = Capabilities(streams=True, priced=False)

    def __init__(
        self,
        clock: Clock,
        script: Callable[[str, int], Iterable[Part]] = lambda prompt, _: (1.0, "re: ", 1.0, prompt),
        *,
        usage: Usage | None = USED,
        max_shared: int = 1,
        priced: bool = False,
    ) -> None:
        self.scope = f"speaker:{next(_scopes)}"
        self.capabilities = Capabilities(max_shared=max_shared, streams=True, priced=priced)
        self.clock = clock
        self.script = script
        self.usage = usage
        self.speeches: list[Speech] = []
        self.shared_calls = 0

    def generate(self, request: Request, *, model: str, attempt: int, timeout: float) -> Answer:
        speech = self.stream(request, model=model, attempt=attempt, timeout=timeout)
        list(speech)
        return speech.answer

    def generate_many(self, requests: Sequence[Request], **_: Any) -> Any:
        self.shared_calls += 1
        raise NotImplementedError

    def stream(self, request: Request, *, model: str, attempt: int, timeout: float) -> Speech:
        speech = Speech(self, str(request.prompt), attempt, timeout)
        self.speeches.append(speech)
        return speech

    @property
    def prompts(self) -> list[str]:
        return [speech.prompt for speech in self.speeches]


class Speech(AnswerStream):
    """One stream; closing it ends a silence at once, as a closed connection does."""

    def __init__(self, speaker: Speaker, prompt: str, attempt: int, timeout: float) -> None:
        self.prompt = prompt
        self.began = speaker.clock.now()
        self.ended: float | None = None
        self.spoken = 0
        self.closed = False
        self._speaker = speaker
        self._attempt = attempt
        self._deadline = self.began + timeout
        self._room = speaker.clock.monitor()
        self._text = ""

    def __iter__(self) -> Iterator[str]:
        try:
            for part in self._speaker.script(self.prompt, self._attempt):
                if isinstance(part, Exception):
                    raise part
                if isinstance(part, str):
                    self._text += part
                    self.spoken += 1
                    yield part
                else:
                    self._pause(part)
        finally:
            self.ended = self._speaker.clock.now()

    def close(self) -> None:
        with self._room:
            self.closed = True
            self._room.notify_all()

    @property
    def answer(self) -> Answer:
        return Answer(self._text, self._speaker.usage)

    def _pause(self, seconds: float) -> None:
        end = self._speaker.clock.now() + seconds
        with self._room:
            while (now := self._speaker.clock.now()) < min(end, self._deadline) and not self.closed:
                self._room.wait(min(end, self._deadline) - now)
        if self.closed:
            raise failure(ErrorKind.NETWORK_ERROR, code="closed")
        if self._speaker.clock.now() >= self._deadline:
            raise failure(ErrorKind.TIMEOUT)


def read(stream: TextStream) -> list[str]:
    """All chunks, read on a thread of its own, so that a hang fails the test."""
    return Aside(lambda: list(stream)).result()  # type: ignore[no-any-return]


def read_error(stream: TextStream) -> tuple[list[str], SmartbatchError]:
    """The chunks before the error, and the error."""
    chunks: list[str] = []

    def work() -> None:
        for chunk in stream:
            chunks.append(chunk)  # noqa: PERF402

    with pytest.raises(SmartbatchError) as caught:
        Aside(work).result()
    return chunks, caught.value


def balanced(client: BatchingClient) -> bool:
    counts = client.counts
    return counts.balanced() and counts.waiting == counts.in_flight == 0


# -- what one gets -----------------------------------------------------------------------------------------


def test_the_chunks_are_the_answer(clock: VirtualClock, client_of: ClientOf) -> None:
    """Joined they are the result's text; the result has what any other has, and the time of the first."""
    client = client_of(Speaker(clock))
    stream = client.stream("why?", context={"row": 7}, id="mine")
    assert read(stream) == ["re: ", "why?"]
    result = stream.result
    assert (result.text, result.usage, result.context) == ("re: why?", USED, {"row": 7})
    assert (result.latency, result.time_to_first_chunk, result.queued) == (2.0, 1.0, 0.0)
    assert (result.attempts, result.route, result.ok) == (1, Route.INDIVIDUAL, True)
    assert result.request_id == stream.request_id == "mine"


def test_chunks_arrive_while_the_answer_is_made(clock: VirtualClock, client_of: ClientOf) -> None:
    """Each at its own time."""
    stream = client_of(Speaker(clock)).stream("why?")
    assert InTime(clock, lambda: [clock.now() for _ in stream]).result() == [1.0, 2.0]


def test_an_iterator_that_has_ended_stays_ended(clock: VirtualClock, client_of: ClientOf) -> None:
    """As the standard library's do; closing it then changes nothing."""
    stream = client_of(Speaker(clock)).stream("why?")
    assert [Aside(lambda: next(stream)).result() for _ in range(2)] == ["re: ", "why?"]
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(stream)
    stream.close()
    assert stream.result.ok
    assert list(stream) == []


def test_empty_pieces_are_no_chunks(clock: VirtualClock, client_of: ClientOf) -> None:
    """The first chunk is the first text, and until it the request may be tried again."""

    def script(prompt: str, attempt: int) -> list[Part]:
        return ["", 1.0, unavailable()] if attempt == 0 else ["", 2.0, "yes"]

    stream = client_of(Speaker(clock, script)).stream("why?")
    assert read(stream) == ["yes"]
    assert (stream.result.attempts, stream.result.time_to_first_chunk) == (2, 2.0)


def test_an_answer_without_text_is_no_chunk(clock: VirtualClock, client_of: ClientOf) -> None:
    """And no error."""
    stream = client_of(Speaker(clock, lambda *_: [1.0])).stream("why?")
    assert read(stream) == []
    assert stream.result.ok


def test_the_result_is_there_after_the_end_only(clock: VirtualClock, client_of: ClientOf) -> None:
    """Asked for sooner it says what to do."""
    client = client_of(Speaker(clock))
    with clock.held():
        stream = client.stream("why?")
        with pytest.raises(SmartbatchError, match="read the stream to its end, or close it"):
            _ = stream.result
    read(stream)
    assert stream.result.ok


def test_usage_that_nobody_told_is_estimated(clock: VirtualClock, client_of: ClientOf) -> None:
    """Servers without a usage chunk would stream for free otherwise."""
    stream = client_of(Speaker(clock, usage=None)).stream("why?")
    read(stream)
    expected = Usage(estimate_request(Request(prompt="why?")), 2, estimated=True)
    assert stream.result.usage == expected


# -- what does not stream ----------------------------------------------------------------------------------


def test_a_provider_that_cannot_stream_answers_in_one_chunk(clock: VirtualClock, client_of: ClientOf) -> None:
    """Its first chunk comes at the end."""
    stream = client_of(Scripted(clock)).stream("why?")
    assert read(stream) == ["re: why?"]
    assert (stream.result.latency, stream.result.time_to_first_chunk) == (1.0, 1.0)


def test_own_callables_answer_in_one_chunk(clock: VirtualClock, client_of: ClientOf) -> None:
    """As the model, and as a request's own call."""
    client = client_of(lambda request, attempt: f"own: {request.prompt}")
    assert read(client.stream("why?")) == ["own: why?"]
    assert read(client.stream("why?", call=lambda request, attempt: "mine")) == ["mine"]


def test_a_hook_that_answers_is_one_chunk(clock: VirtualClock, client_of: ClientOf) -> None:
    """Nothing is called."""
    speaker = Speaker(clock)
    stream = client_of(speaker, preprocess=[lambda request: "from a cache"]).stream("why?")
    assert read(stream) == ["from a cache"]
    assert (stream.result.route, stream.result.time_to_first_chunk) == (Route.LOCAL, 0.0)
    assert not speaker.speeches


def test_middleware_may_answer_instead(clock: VirtualClock, client_of: ClientOf) -> None:
    """Its answer is one chunk; one that lets the call go sees the whole answer."""
    seen: list[Any] = []

    def layer(spec: Any, proceed: Any) -> Any:
        if spec.requests[0].prompt == "cached":
            return [Answer("from a cache")]
        seen.extend(proceed(spec))
        return seen

    client = client_of(Speaker(clock), middleware=[layer])
    assert read(client.stream("cached")) == ["from a cache"]
    assert read(client.stream("why?")) == ["re: ", "why?"]
    assert seen == [Answer("re: why?", USED)]


def test_a_vector_cannot_be_streamed(clock: VirtualClock, client_of: ClientOf) -> None:
    """It is refused at once."""
    with pytest.raises(InvalidRequest) as caught:
        client_of(Speaker(clock)).stream(Request("why?", embedding=Embedding()))
    assert caught.value.field == "embedding"


# -- retries -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("problem", [unavailable, limited, broken])
def test_a_stream_is_tried_again_before_its_first_chunk(
    clock: VirtualClock, client_of: ClientOf, problem: Callable[[], ProviderError]
) -> None:
    """The reader only sees the stream that worked."""
    speaker = Speaker(clock, lambda prompt, attempt: [problem()] if attempt < 2 else [1.0, "yes"])
    stream = client_of(speaker).stream("why?")
    assert read(stream) == ["yes"]
    assert (stream.result.attempts, stream.result.time_to_first_chunk) == (3, 1.0)


@pytest.mark.parametrize("kind", list(ErrorKind))
def test_a_stream_is_never_tried_again_after_its_first_chunk(
    clock: VirtualClock, client_of: ClientOf, kind: ErrorKind
) -> None:
    """The iteration ends with the error, its kind kept; what was read stays read."""
    error = failure(kind, status=503 if kind is ErrorKind.SERVER_ERROR else None)
    speaker = Speaker(clock, lambda prompt, attempt: ["be", "gun", error])
    client = client_of(speaker)
    stream = client.stream("why?")
    chunks, caught = read_error(stream)
    assert chunks == ["be", "gun"]
    assert (caught.kind, caught.request_id) == (kind, stream.request_id)
    assert stream.result.error is caught
    assert stream.result.time_to_first_chunk == 0.0
    assert len(speaker.speeches) == 1
    assert (client.counts.failed, balanced(client)) == (1, True)


def test_a_stream_that_breaks_is_billed_for_what_came(clock: VirtualClock, client_of: ClientOf) -> None:
    """An estimate, where the provider said nothing; it counts against the budget."""
    speaker = Speaker(clock, lambda prompt, _: ["four"] * 5 + [failure(ErrorKind.NETWORK_ERROR)], priced=True)
    prices = {"speaker:default": Price(input=1.0, output=10.0)}
    client = client_of(speaker, prices=prices, budget=1.0)
    stream = client.stream("why?")
    read_error(stream)
    asked = estimate_request(Request(prompt="why?"))
    assert stream.result.usage == Usage(asked, 5, estimated=True)
    assert stream.result.cost == pytest.approx((asked + 50) / 1e6)
    assert client.spent == pytest.approx(stream.result.cost)


def test_a_count_from_before_the_end_is_completed(clock: VirtualClock, client_of: ClientOf) -> None:
    """Some services say at the beginning what they read, and count what they write later."""
    broke = failure(ErrorKind.NETWORK_ERROR, usage=Usage(100, 1, 80))
    stream = client_of(Speaker(clock, lambda *_: ["four"] * 5 + [broke])).stream("why?")
    read_error(stream)
    assert stream.result.usage == Usage(100, 5, 80, estimated=True)


def test_a_first_stream_that_breaks_does_not_stop_the_others(
    clock: VirtualClock, client_of: ClientOf
) -> None:
    """The provider did answer: this is no wrong address."""
    speaker = Speaker(
        clock, lambda prompt, _: ["be", failure(ErrorKind.NETWORK_ERROR)] if prompt == "bad" else ["fine"]
    )
    client = client_of(speaker)
    read_error(client.stream("bad"))
    assert read(client.stream("good")) == ["fine"]


def test_middleware_cannot_begin_a_stream_again(clock: VirtualClock, client_of: ClientOf) -> None:
    """Its second call fails, so the reader never gets pieces of two answers."""
    speaker = Speaker(clock, lambda prompt, _: ["be", failure(ErrorKind.SERVER_ERROR)])

    def layer(spec: Any, proceed: Any) -> Any:
        proceed(spec)
        return proceed(spec)

    chunks, error = read_error(client_of(speaker, middleware=[layer]).stream("why?"))
    assert chunks == ["be"]
    assert "handed on already" in str(error)
    assert len(speaker.speeches) == 1


def test_a_piece_that_is_no_text_is_an_invalid_answer(clock: VirtualClock, client_of: ClientOf) -> None:
    """And not a broken worker."""

    class Odd(Speaker):
        def stream(self, request: Request, *, model: str, attempt: int, timeout: float) -> Any:
            speech = super().stream(request, model=model, attempt=attempt, timeout=timeout)
            speech.__class__ = type("Odd", (Speech,), {"__iter__": lambda _: iter([b"bytes"])})
            return speech

    _, error = read_error(client_of(Odd(clock), retries=0).stream("why?"))
    assert error.kind is ErrorKind.INVALID_RESPONSE


# -- closing -----------------------------------------------------------------------------------------------


def begun(client: BatchingClient, speaker: Speaker) -> TextStream:
    """A stream whose first chunk was read, and which then stays silent for a thousand seconds."""
    speaker.script = lambda prompt, _: ["be", 1000.0, "late"] if prompt == "long" else [prompt]
    stream = client.stream("long")
    assert Aside(lambda: next(stream)).result() == "be"
    return stream


def test_closing_before_the_start_sends_nothing(clock: VirtualClock, client_of: ClientOf) -> None:
    """The request is cancelled, in the counts and for the reader."""
    speaker = Speaker(clock)
    events: list[Event] = []
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
    ended = [event for event in events if isinstance(event, RequestFinished)]
    assert [event.cancelled for event in ended] == [True, False]
    assert balanced(client)


def test_closing_after_the_start_closes_the_connection(clock: VirtualClock, client_of: ClientOf) -> None:
    """At once: the only worker is free for the next request in the same second."""
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


def test_a_reader_hears_that_another_thread_closed_its_stream(
    clock: VirtualClock, client_of: ClientOf
) -> None:
    """It must not take the piece for the whole."""
    speaker = Speaker(clock)
    with clock.held():
        stream = begun(client_of(speaker), speaker)
        reader = Aside(lambda: list(stream))
        stream.cancel()
        with pytest.raises(RequestCancelled):
            reader.result()


def test_closing_between_two_tries_ends_the_request(clock: VirtualClock, client_of: ClientOf) -> None:
    """It is not tried again, and no thread waits for the end of its backoff."""
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


def test_closed_streams_are_no_sign_against_the_provider(clock: VirtualClock, client_of: ClientOf) -> None:
    """The breaker stays closed however many were closed."""
    speaker = Speaker(clock)
    client = client_of(speaker, breaker_threshold=1)
    with clock.held():
        for _ in range(20):
            begun(client, speaker).close()
        assert read(client.stream("next")) == ["next"]


def leaves_by_break(stream: TextStream) -> None:
    for _ in stream:
        break


def leaves_by_an_error(stream: TextStream) -> None:
    with pytest.raises(LookupError):  # noqa: PT012
        for _ in stream:
            raise LookupError


def leaves_the_with_block(stream: TextStream) -> None:
    with stream:
        next(stream)


@pytest.mark.parametrize("leave", [leaves_by_break, leaves_by_an_error, leaves_the_with_block])
def test_leaving_early_closes_the_stream(
    clock: VirtualClock, client_of: ClientOf, leave: Callable[[TextStream], None]
) -> None:
    """However the loop is left, although the stream itself is still there."""
    speaker = Speaker(clock, lambda *_: ["be", 1000.0])
    with clock.held():
        stream = client_of(speaker).stream("long")
        Aside(lambda: leave(stream)).result()
        eventually(lambda: speaker.speeches[0].ended == 0.0)
        assert isinstance(stream.result.error, RequestCancelled)


def test_a_stream_that_was_left_stays_closed(clock: VirtualClock, client_of: ClientOf) -> None:
    """Although its answer was complete by then: what one gets must not depend on who was faster."""
    client = client_of(Speaker(clock, lambda *_: ["a", "b", "c"]))
    stream = client.stream("why?")
    eventually(lambda: client.counts.succeeded == 1)
    leaves_by_break(stream)
    assert stream.result.ok
    with pytest.raises(RequestCancelled):
        next(stream)


def test_a_forgotten_stream_is_closed(clock: VirtualClock, client_of: ClientOf) -> None:
    """By the garbage collector, also where it is part of a cycle."""
    speaker = Speaker(clock)
    client = client_of(speaker)
    with clock.held():
        cycle: list[Any] = [begun(client, speaker)]
        cycle.append(cycle)
        del cycle
        gc.collect()
        eventually(lambda: speaker.speeches[0].ended == 0.0)
        eventually(lambda: balanced(client))


def test_ctrl_c_while_waiting_closes_the_stream(client_of: ClientOf) -> None:
    """The client can be used afterwards."""
    clock = RealClock()
    speaker = Speaker(clock)
    client = client_of(speaker, clock=clock)
    stream = begun(client, speaker)

    def interrupt() -> None:
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


def test_cancelling_all_that_waits_includes_streams(clock: VirtualClock, client_of: ClientOf) -> None:
    """The reader of one gets the error, and so does the reader of a list."""
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


# -- a slow reader -----------------------------------------------------------------------------------------


def test_a_slow_reader_slows_the_call_down(clock: VirtualClock, client_of: ClientOf) -> None:
    """Never more than a bounded number of chunks waits for it, and it gets them all."""
    total = 3 * text_stream.MOST_CHUNKS
    speaker = Speaker(clock, lambda *_: [f"{number} " for number in range(total)])
    stream = client_of(speaker).stream("long")
    behind = 0

    def reads() -> list[str]:
        nonlocal behind
        chunks = []
        for chunk in stream:
            behind = max(behind, speaker.speeches[0].spoken - len(chunks))
            chunks.append(chunk)
            clock.sleep(0.01)
        return chunks

    assert InTime(clock, reads).result() == [f"{number} " for number in range(total)]
    assert text_stream.MOST_CHUNKS <= behind <= text_stream.MOST_CHUNKS + 2
    assert stream.result.latency > 0.01 * (total - text_stream.MOST_CHUNKS - 2)


def test_large_chunks_are_bounded_by_their_size(clock: VirtualClock, client_of: ClientOf) -> None:
    """A chunk larger than the bound still passes, alone."""
    large = "x" * (text_stream.MOST_CHARS // 2)
    pieces: list[Part] = [large, large, large, large * 3, "end"]
    speaker = Speaker(clock, lambda *_: pieces)
    with clock.held():
        stream = client_of(speaker).stream("long")
        eventually(lambda: bool(speaker.speeches) and speaker.speeches[0].spoken == 3)
        assert read(stream) == pieces


def test_a_stream_nobody_reads_is_cut_when_its_call_is_over(clock: VirtualClock, client_of: ClientOf) -> None:
    """It blocks a worker for so long and no longer, and is no sign against the provider."""
    speaker = Speaker(clock, lambda prompt, _: ["x"] * 5000 if prompt == "long" else [prompt])
    client = client_of(speaker, parallelism=1, call_timeout=60, breaker_threshold=1)
    unread = client.stream("long")
    assert read(client.stream("next")) == ["next"]
    assert clock.now() == 60.0
    chunks, error = read_error(unread)
    assert len(chunks) == text_stream.MOST_CHUNKS
    assert isinstance(error, RequestCancelled)
    assert "read it, or close it" in str(error)


def test_a_slow_readers_time_out_is_no_sign_against_the_provider(
    clock: VirtualClock, client_of: ClientOf
) -> None:
    """The provider could not send what was not read."""
    speaker = Speaker(clock, lambda prompt, _: ["x"] * 1500 + [100.0, "y"] if prompt == "long" else [prompt])
    client = client_of(speaker, call_timeout=60, breaker_threshold=1)
    stream = client.stream("long")

    def reads() -> None:
        for _ in stream:
            clock.sleep(0.02)

    with pytest.raises(RequestCancelled, match="too slowly"):
        InTime(clock, reads).result()
    assert read(client.stream("next")) == ["next"]
    assert clock.now() < 61


# -- time-outs and the end ---------------------------------------------------------------------------------


def test_a_request_time_out_ends_a_stream(clock: VirtualClock, client_of: ClientOf) -> None:
    """What came until then can still be read."""
    speaker = Speaker(clock, lambda *_: ["be", 100.0, "late"])
    client = client_of(speaker)
    stream = client.stream("long", timeout=5.0)
    chunks, error = read_error(stream)
    assert chunks == ["be"]
    assert error.kind is ErrorKind.TIMEOUT
    eventually(lambda: speaker.speeches[0].ended == 5.0)
    eventually(lambda: balanced(client))


def test_a_request_time_out_closes_a_stream_that_does_not_keep_it(
    clock: VirtualClock, client_of: ClientOf
) -> None:
    """The reader gets the error in time, and the worker is free."""

    class Deaf(Speaker):
        def stream(self, request: Request, *, model: str, attempt: int, timeout: float) -> Speech:
            return super().stream(request, model=model, attempt=attempt, timeout=10 * timeout)

    speaker = Deaf(clock, lambda *_: ["be", 1000.0, "late"])
    client = client_of(speaker)
    chunks, error = read_error(client.stream("long", timeout=5.0))
    assert chunks == ["be"]
    assert isinstance(error, RequestTimeout)
    eventually(lambda: speaker.speeches[0].ended == 5.0)
    eventually(lambda: balanced(client))


def test_a_call_time_out_ends_a_stream(clock: VirtualClock, client_of: ClientOf) -> None:
    """The time counts for the whole stream, not from piece to piece."""
    speaker = Speaker(clock, lambda *_: [part for _ in range(100) for part in ("x", 1.0)])
    chunks, error = read_error(client_of(speaker, call_timeout=10).stream("long"))
    assert len(chunks) == 10
    assert error.kind is ErrorKind.TIMEOUT


def test_a_stop_completes_streams(clock: VirtualClock, client_of: ClientOf) -> None:
    """They can be read afterwards."""
    client = client_of(Speaker(clock), parallelism=1)
    streams = [client.stream(f"p{number}") for number in range(3)]
    client.stop()
    assert [read(stream) for stream in streams] == [["re: ", f"p{number}"] for number in range(3)]


def test_a_stop_does_not_wait_for_a_reader(clock: VirtualClock, client_of: ClientOf) -> None:
    """The thread that stops the client may be the one that should have read; it can do so afterwards."""
    total = 3 * text_stream.MOST_CHUNKS
    with clock.held(), client_of(Speaker(clock, lambda *_: ["x"] * total)) as client:
        begun_one = client.stream("long")
        next(begun_one)
    assert len(read(begun_one)) == total - 1
    assert begun_one.result.ok


def test_a_signal_handler_may_close_a_stream(
    clock: VirtualClock, client_of: ClientOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that interrupts the reading where a lock is held."""

    class Closing(deque[str]):
        def popleft(self) -> str:
            stream.close()  # as a handler that runs between two steps of the reader
            return super().popleft()

    speaker = Speaker(clock, lambda *_: ["be", 1000.0])
    monkeypatch.setattr(text_stream, "deque", Closing)
    with clock.held():
        stream = client_of(speaker).stream("long")
        assert next(stream) == "be"
        eventually(lambda: speaker.speeches[0].ended == 0.0)
        with pytest.raises(RequestCancelled):
            next(stream)


def test_a_stop_with_a_time_ends_streams(clock: VirtualClock, client_of: ClientOf) -> None:
    """Begun and waiting ones alike end with the reason; the connection is closed."""
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


def test_a_stream_the_budget_forbids_raises_in_its_loop(clock: VirtualClock, client_of: ClientOf) -> None:
    """Nothing is sent."""
    speaker = Speaker(clock, priced=True)
    prices = {"speaker:default": Price(input=1.0, output=10.0)}
    chunks, error = read_error(client_of(speaker, prices=prices, budget=1e-9).stream("why?"))
    assert (chunks, speaker.speeches) == ([], [])
    assert isinstance(error, BudgetExceeded)


# -- other requests ----------------------------------------------------------------------------------------


def test_streams_are_never_shared(clock: VirtualClock, client_of: ClientOf) -> None:
    """Neither with their equals nor with a call, and no window holds them up."""
    speaker = Speaker(clock, lambda prompt, _: [prompt], max_shared=10)
    client = client_of(speaker, parallelism=10)
    streams = [client.stream("same") for _ in range(5)]
    assert [read(stream) for stream in streams] == [["same"]] * 5
    assert clock.now() == 0.0
    assert speaker.prompts == ["same"] * 5
    assert not any(stream.result.deduplicated for stream in streams)


def test_a_shared_streams_retries_stay_alone(clock: VirtualClock, client_of: ClientOf) -> None:
    """A provider whose calls are shared gets a stream alone at every try, however many wait by then."""

    def script(prompt: str, attempt: int) -> list[Part]:
        if prompt == "long":
            return [100.0, "x"]
        return [broken()] if attempt < 1 else ["x"]

    speaker = Speaker(clock, script, max_shared=10)
    client = client_of(speaker, parallelism=1)
    with clock.held():
        streams = [client.stream(f"p{number}") for number in range(4)]
        last = client.stream("long")  # while it goes on, the retries of the others all become due
    assert [read(stream) for stream in [*streams, last]] == [["x"]] * 5
    assert speaker.shared_calls == 0


def test_an_urgent_stream_goes_first(clock: VirtualClock, client_of: ClientOf) -> None:
    """Priorities hold for streams."""
    speaker = Speaker(clock)
    client = client_of(speaker, parallelism=1)
    with clock.held():
        client.submit("first")
        eventually(lambda: bool(speaker.speeches))
        for number in range(20):
            client.submit_background(f"later {number}")
        urgent = client.stream("urgent", priority="urgent")
    read(urgent)
    assert speaker.prompts[1] == "urgent"


def test_events_of_a_stream_are_those_of_any_call(clock: VirtualClock, client_of: ClientOf) -> None:
    """Metrics and logs need not know."""
    events: list[Event] = []
    client = client_of(Speaker(clock), observers=[events.append])
    read(client.stream("why?"))
    client.stop()
    kinds = [type(event) for event in events]
    assert [kind for kind in kinds if kind.__name__.startswith(("Request", "Call"))] == [
        RequestSubmitted,
        CallStarted,
        CallFinished,
        RequestFinished,
    ]
    assert client.metrics.snapshot().succeeded == 1


def test_a_hundred_streams_from_twenty_threads(clock: VirtualClock, client_of: ClientOf) -> None:
    """Each reader gets its own answer, and all of it."""
    speaker = Speaker(
        clock, lambda prompt, _: [part for word in range(20) for part in (0.1, f"{prompt}/{word} ")]
    )
    client = client_of(speaker, parallelism=16, queue_capacity=100)

    def reads(thread: int) -> dict[str, str]:
        return {
            prompt: "".join(client.stream(prompt)) for prompt in (f"{thread}-{number}" for number in range(5))
        }

    readers = [InTime(clock, lambda thread=thread: reads(thread)) for thread in range(20)]
    texts: dict[str, str] = {}
    for reader in readers:
        texts |= reader.result()
    assert len(texts) == 100
    assert all(text == "".join(f"{prompt}/{word} " for word in range(20)) for prompt, text in texts.items())
    assert (client.counts.succeeded, balanced(client)) == (100, True)


@pytest.mark.parametrize("seed", sampled(range(5), keep=2))
def test_streams_closed_at_random_lose_nothing(clock: VirtualClock, client_of: ClientOf, seed: int) -> None:
    """Read, left, closed by others, with and without errors: the counts balance and no worker is lost."""
    rng = random.Random(seed)
    fates = {f"p{number}": rng.choice(["read", "leave", "closed", "never"]) for number in range(60)}

    def script(prompt: str, attempt: int) -> Iterator[Part]:
        local = random.Random(f"{seed} {prompt} {attempt}")
        if prompt in fates and local.random() < 0.2:
            yield unavailable()
        for word in range(10):
            yield local.random()
            if prompt in fates and local.random() < 0.02:
                yield failure(ErrorKind.NETWORK_ERROR)
            yield f"{prompt}/{word} "

    client = client_of(Speaker(clock, script), parallelism=8, seed_of_rng=seed)

    def live(prompt: str) -> None:
        chooser = random.Random(prompt)
        clock.sleep(chooser.random() * 5)
        stream = client.stream(prompt)
        try:
            match fates[prompt]:
                case "read":
                    assert "".join(stream) == "".join(f"{prompt}/{word} " for word in range(10))
                case "leave":
                    for position, _ in enumerate(stream):
                        if position == chooser.randrange(8):
                            break
                case "closed":
                    clock.sleep(chooser.random() * 10)
                    stream.close()
                    list(stream)
        except ProviderError:
            pass

    for reader in [InTime(clock, lambda prompt=prompt: live(prompt)) for prompt in fates]:
        reader.result()
    eventually(lambda: balanced(client))
    assert client.counts.submitted == 60
    assert len(read(client.stream("last"))) == 10
    client.stop()
    assert inside(client).realtime.engine is None


def test_the_mock_streams_word_by_word(clock: VirtualClock, client_of: ClientOf) -> None:
    """With its latency before the first, its time per token between them, and the failures asked for."""
    mock = MockProvider(
        {"q": "one two three"},
        latency=1.0,
        throughput=0.5,
        sleep=clock.sleep,
        fail_on={1: unavailable(), 3: ErrorKind.NETWORK_ERROR},
    )
    client = client_of(mock)
    stream = client.stream("q")
    assert read(stream) == ["one", " two", " three"]
    assert (stream.result.attempts, stream.result.time_to_first_chunk, stream.result.latency) == (2, 1.0, 2.0)
    mock = MockProvider({"q": "one two three"}, fail_on={1: ErrorKind.NETWORK_ERROR}, fail_after=2)
    chunks, error = read_error(client_of(mock).stream("q"))
    assert (chunks, error.kind) == (["one", " two"], ErrorKind.NETWORK_ERROR)
    assert len(mock.calls) == 1
