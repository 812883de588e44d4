"""Streams use the queue, gates and retries of other requests until their first chunk (C5)."""

from __future__ import annotations

import pytest
from scenes import Aside, Scripted, broken, failure, limited, unavailable
from scripted_streams import USED, Speaker, Speech, balanced, read, read_error

from smartbatch.core.preparation.tokens import estimate_request, most_of_request
from smartbatch.errors import ErrorKind, InvalidRequest, SmartbatchError
from smartbatch.prices import Price
from smartbatch.providers.mock import MockProvider
from smartbatch.types import Answer, Embedding, Request, Route, Usage

# -- what one gets -----------------------------------------------------------------------------------------


def test_the_chunks_are_the_answer(clock, client_of):
    client = client_of(Speaker(clock))
    stream = client.stream("why?", context={"row": 7}, id="mine")
    assert read(stream) == ["re: ", "why?"]
    result = stream.result
    assert (result.text, result.usage, result.context) == ("re: why?", USED, {"row": 7})
    assert (result.latency, result.time_to_first_chunk, result.queued) == (2.0, 1.0, 0.0)
    assert (result.attempts, result.route, result.ok) == (1, Route.INDIVIDUAL, True)
    assert result.request_id == stream.request_id == "mine"


def test_an_iterator_that_has_ended_stays_ended(clock, client_of):
    stream = client_of(Speaker(clock)).stream("why?")
    assert [Aside(lambda: next(stream)).result() for _ in range(2)] == ["re: ", "why?"]
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(stream)
    stream.close()
    assert stream.result.ok
    assert list(stream) == []


def test_empty_pieces_are_no_chunks(clock, client_of):
    def script(prompt, attempt):
        return ["", 1.0, unavailable()] if attempt == 0 else ["", 2.0, "yes"]

    stream = client_of(Speaker(clock, script)).stream("why?")
    assert read(stream) == ["yes"]
    assert (stream.result.attempts, stream.result.time_to_first_chunk) == (2, 2.0)


def test_the_result_is_there_after_the_end_only(clock, client_of):
    client = client_of(Speaker(clock))
    with clock.held():
        stream = client.stream("why?")
        with pytest.raises(SmartbatchError, match="read the stream to its end, or close it"):
            _ = stream.result
    read(stream)
    assert stream.result.ok


def test_usage_that_nobody_told_is_estimated(clock, client_of):
    stream = client_of(Speaker(clock, usage=None)).stream("why?")
    read(stream)
    expected = Usage(estimate_request(Request(prompt="why?")), 2, estimated=True)
    assert stream.result.usage == expected


# -- what does not stream ----------------------------------------------------------------------------------


def test_a_provider_that_cannot_stream_answers_in_one_chunk(clock, client_of):
    stream = client_of(Scripted(clock)).stream("why?")
    assert read(stream) == ["re: why?"]
    assert (stream.result.latency, stream.result.time_to_first_chunk) == (1.0, 1.0)


def test_own_callables_answer_in_one_chunk(clock, client_of):
    client = client_of(lambda request, attempt: f"own: {request.prompt}")
    assert read(client.stream("why?")) == ["own: why?"]
    assert read(client.stream("why?", call=lambda request, attempt: "mine")) == ["mine"]


def test_a_hook_that_answers_is_one_chunk(clock, client_of):
    speaker = Speaker(clock)
    stream = client_of(speaker, preprocess=[lambda request: "from a cache"]).stream("why?")
    assert read(stream) == ["from a cache"]
    assert (stream.result.route, stream.result.time_to_first_chunk) == (Route.LOCAL, 0.0)
    assert not speaker.speeches


def test_middleware_may_answer_instead(clock, client_of):
    seen = []

    def layer(spec, proceed):
        if spec.requests[0].prompt == "cached":
            return [Answer("from a cache")]
        seen.extend(proceed(spec))
        return seen

    client = client_of(Speaker(clock), middleware=[layer])
    assert read(client.stream("cached")) == ["from a cache"]
    assert read(client.stream("why?")) == ["re: ", "why?"]
    assert seen == [Answer("re: why?", USED)]


def test_a_vector_cannot_be_streamed(clock, client_of):
    with pytest.raises(InvalidRequest) as caught:
        client_of(Speaker(clock)).stream(Request("why?", embedding=Embedding()))
    assert caught.value.field == "embedding"


# -- retries -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("problem", [unavailable, limited, broken])
def test_a_stream_is_tried_again_before_its_first_chunk(clock, client_of, problem):
    speaker = Speaker(clock, lambda prompt, attempt: [problem()] if attempt < 2 else [1.0, "yes"])
    stream = client_of(speaker).stream("why?")
    assert read(stream) == ["yes"]
    assert (stream.result.attempts, stream.result.time_to_first_chunk) == (3, 1.0)


@pytest.mark.parametrize("kind", list(ErrorKind))
def test_a_stream_is_never_tried_again_after_its_first_chunk(clock, client_of, kind):
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


def test_a_stream_that_breaks_keeps_its_reservation(clock, client_of):
    speaker = Speaker(clock, lambda prompt, _: ["four"] * 5 + [failure(ErrorKind.NETWORK_ERROR)], priced=True)
    prices = {"speaker:default": Price(input=1.0, output=10.0)}
    client = client_of(speaker, prices=prices, budget=1.0, max_tokens=100)
    stream = client.stream("why?")
    read_error(stream)
    asked = estimate_request(Request(prompt="why?"))
    assert stream.result.usage == Usage(asked, 5, estimated=True)
    assert (stream.result.cost, client.spent) == (None, 0.0)
    most = (most_of_request(Request(prompt="why?")) + 1000) / 1e6
    assert stream.result.unconfirmed_cost == client.unconfirmed_cost == pytest.approx(most)


def test_a_count_from_before_the_end_is_completed(clock, client_of):
    broke = failure(ErrorKind.NETWORK_ERROR, usage=Usage(100, 1, 80))
    stream = client_of(Speaker(clock, lambda *_: ["four"] * 5 + [broke])).stream("why?")
    read_error(stream)
    assert stream.result.usage == Usage(100, 5, 80, estimated=True)


def test_a_first_stream_that_breaks_does_not_stop_the_others(clock, client_of):
    speaker = Speaker(
        clock, lambda prompt, _: ["be", failure(ErrorKind.NETWORK_ERROR)] if prompt == "bad" else ["fine"]
    )
    client = client_of(speaker)
    read_error(client.stream("bad"))
    assert read(client.stream("good")) == ["fine"]


def test_middleware_cannot_begin_a_stream_again(clock, client_of):
    speaker = Speaker(clock, lambda prompt, _: ["be", failure(ErrorKind.SERVER_ERROR)])

    def layer(spec, proceed):
        proceed(spec)
        return proceed(spec)

    chunks, error = read_error(client_of(speaker, middleware=[layer]).stream("why?"))
    assert chunks == ["be"]
    assert "already delivered" in str(error)
    assert len(speaker.speeches) == 1


def test_a_piece_that_is_no_text_is_an_invalid_answer(clock, client_of):
    class Odd(Speaker):
        def stream(self, request, *, model, attempt, timeout):
            speech = super().stream(request, model=model, attempt=attempt, timeout=timeout)
            speech.__class__ = type("Odd", (Speech,), {"__iter__": lambda _: iter([b"bytes"])})
            return speech

    _, error = read_error(client_of(Odd(clock), retries=0).stream("why?"))
    assert error.kind is ErrorKind.INVALID_RESPONSE


def test_the_mock_streams_word_by_word(clock, client_of):
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
