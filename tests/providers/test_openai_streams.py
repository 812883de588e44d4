"""Streamed answers of OpenAI's two APIs."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from asking import KEY
from raw_server import Exchange, RawServer, chat, error, hangs, says, streams

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers import OpenAIProvider
from smartbatch.providers.base import AnswerStream
from smartbatch.providers.http.event_stream import events
from smartbatch.providers.http.pool import Connection
from smartbatch.types import Generation, Request, Usage

Serve = Callable[..., RawServer]
Connect = Callable[..., OpenAIProvider]

DONE = b"data: [DONE]\n\n"
BROKEN_OFF = {"index": 0, "delta": {"content": ""}, "finish_reason": "error"}
COUNTED = {"prompt_tokens": 31, "completion_tokens": 2, "total_tokens": 33}


def data(value: Any, name: str = "") -> bytes:
    line = b"data: " + json.dumps(value).encode() + b"\n\n"
    return f"event: {name}\n".encode() + line if name else line


def said(text: Any = None, finish: str | None = None, **delta: Any) -> bytes:
    content = {} if text is None else {"content": text}
    choice = {"index": 0, "delta": {**content, **delta}, "finish_reason": finish}
    return data({"id": "chatcmpl-1", "model": "gpt-5-mini-2026", "choices": [choice], "usage": None})


USED = data({"id": "chatcmpl-1", "model": "gpt-5-mini-2026", "choices": [], "usage": COUNTED})
LIMA = (said("", role="assistant"), said("Li"), said("ma"), said(None, "stop"), USED, DONE)


def stream(
    provider: OpenAIProvider, prompt: str = "Capital of Peru?", timeout: float = 20.0, **params: Any
) -> AnswerStream:
    request = Request(prompt=prompt, params=Generation(**params))
    return provider.stream(request, model="gpt-5-mini", attempt=0, timeout=timeout)


def error_of(reading: AnswerStream) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        list(reading)
    return caught.value


def test_a_chat_comes_in_pieces_and_the_answer_has_its_usage(serve, connect):
    reading = stream(connect(serve(streams(*LIMA, x_request_id="req_7"))))
    assert list(reading) == ["Li", "ma"]
    answer = reading.answer
    assert (answer.text, answer.usage, answer.finish_reason) == ("Lima", Usage(31, 2), "stop")
    assert (answer.model, answer.provider_request_id) == ("gpt-5-mini-2026", "req_7")


def test_a_stream_and_its_usage_are_asked_for(serve, connect):
    server = serve(streams(*LIMA))
    list(stream(connect(server), max_tokens=9))
    list(stream(connect(server, stream_usage=False)))
    asked, spared = (exchange.json() for exchange in server.requests)
    assert (asked["stream"], asked["stream_options"], asked["max_tokens"]) == (
        True,
        {"include_usage": True},
        9,
    )
    assert spared["stream"]
    assert "stream_options" not in spared


def test_a_pair_of_surrogates_in_two_pieces_is_one_character(serve, connect):
    script = streams(said("a\ud83d"), said("\ude00b"), said("\ud83d"), DONE)
    reading = stream(connect(serve(script)))
    assert "".join(reading) == "a😀b\ufffd"
    assert reading.answer.text == "a😀b\ufffd"


def test_keep_alives_and_comments_are_passed_over(serve, connect):
    script = streams(b": ping\n\n", b"\n\n", said("Li"), b":\n\n", data({"choices": []}), said("ma"), DONE)
    assert "".join(stream(connect(serve(script)))) == "Lima"


def test_a_text_that_comes_in_parts_is_handed_on_without_the_thoughts(serve, connect):
    thought = said([{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}])
    script = streams(thought, said([{"type": "text", "text": "Li"}]), said("ma"), DONE)
    assert list(stream(connect(serve(script)))) == ["Li", "ma"]


def test_a_refusal_is_handed_on_and_named(serve, connect):
    script = streams(said(refusal="I can"), said(refusal="not."), said(None, "stop"), DONE)
    reading = stream(connect(serve(script)))
    assert "".join(reading) == "I cannot."
    assert (reading.answer.text, reading.answer.finish_reason) == ("I cannot.", "refusal")


def test_missing_usage_is_none_and_not_zero(serve, connect):
    reading = stream(connect(serve(streams(said("Lima"), DONE))))
    list(reading)
    assert reading.answer.usage is None


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        (error("The server had an error", "server_error"), ErrorKind.SERVER_ERROR),
        (error("something nobody knows", "odd"), ErrorKind.SERVER_ERROR),
        (error("slow", "requests", "rate_limit_exceeded"), ErrorKind.RATE_LIMIT),
        (error("too long", None, "context_length_exceeded"), ErrorKind.CONTEXT_TOO_LONG),
        (error("bad", "BadRequestError", 400), ErrorKind.CLIENT_ERROR),
        ({"error": "out of memory"}, ErrorKind.SERVER_ERROR),
        ({"error": {"code": 502, "message": "gone"}, "choices": [BROKEN_OFF]}, ErrorKind.SERVER_ERROR),
        ({"choices": [{**BROKEN_OFF, "error": {"code": 429, "message": "slow"}}]}, ErrorKind.RATE_LIMIT),
        ({"choices": [BROKEN_OFF]}, ErrorKind.SERVER_ERROR),
    ],
)
def test_an_error_inside_a_stream_is_classified(serve, connect, sent, kind):
    found = error_of(stream(connect(serve(streams(said("Li"), data(sent), DONE)))))
    assert (found.kind, found.maybe_billed) == (kind, True)


@pytest.mark.parametrize("empty", [None, {}, "", {"message": "", "type": "", "param": "", "code": None}])
def test_an_error_that_says_nothing_is_none(serve, connect, empty):
    choice = {"index": 0, "delta": {"content": "Lima"}, "finish_reason": "stop", "error": empty}
    script = streams(data({"choices": [choice], "error": empty}), DONE)
    assert list(stream(connect(serve(script)))) == ["Lima"]


def test_an_error_inside_a_stream_carries_no_prompt_and_no_key(serve, connect):
    prompt = "a very secret prompt that nobody may see"
    sent = error(f"key {KEY}: bad prompt {prompt!r}", "server_error")
    text = str(error_of(stream(connect(serve(streams(said("Li"), data(sent)))), prompt)))
    assert KEY not in text
    assert "secret" not in text


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        (
            says(error("slow down", "requests"), "429 Too Many Requests", retry_after="7"),
            ErrorKind.RATE_LIMIT,
        ),
        (says(error("no key", None, "invalid_api_key"), "401 Unauthorized"), ErrorKind.AUTH_ERROR),
        (says("<html>", "502 Bad Gateway", content_type="text/html"), ErrorKind.SERVER_ERROR),
        (
            says(error("no such model", None, "model_not_found")),
            ErrorKind.CLIENT_ERROR,
        ),
        (says("<html>portal</html>", content_type="text/html"), ErrorKind.INVALID_RESPONSE),
        (streams(data({"no": "choices"}), DONE), ErrorKind.INVALID_RESPONSE),
        (streams(data({"choices": ["x"]}), DONE), ErrorKind.INVALID_RESPONSE),
        (streams(b'data: {"choices":[{"del\n\n', DONE), ErrorKind.NETWORK_ERROR),
        (streams(b"data: " + b"[" * 100_000 + b"\n\n", DONE), ErrorKind.NETWORK_ERROR),
    ],
)
def test_refusals_and_rubbish_are_classified(serve, connect, script, kind):
    found = error_of(stream(connect(serve(script))))
    assert found.kind is kind
    assert found.retry_after == (7 if kind is ErrorKind.RATE_LIMIT else None)


def test_a_server_that_does_not_stream_is_understood(serve, connect):
    reading = stream(connect(serve(says(chat("Lima"), content_type="Application/JSON"))))
    assert list(reading) == ["Lima"]
    assert reading.answer.usage == Usage(31, 78, 5, 64, cache_write_tokens=20)


def test_limits_are_read_from_the_head(serve, connect):
    reading = stream(connect(serve(streams(*LIMA, x_ratelimit_limit_requests="500"))))
    list(reading)
    assert reading.answer.limits is not None
    assert reading.answer.limits.requests_limit == 500


def test_a_finish_reason_is_the_end_where_a_server_sends_no_mark(serve, connect):
    reading = stream(connect(serve(streams(said("Li"), said("ma", "length"), USED))))
    assert list(reading) == ["Li", "ma"]
    assert (reading.answer.finish_reason, reading.answer.usage) == ("length", Usage(31, 2))


@pytest.mark.parametrize("body", [(said("Li"),), (said("Li"), said("ma", "stop"))])
def test_a_body_that_is_cut_is_no_end(serve, connect, body):
    script = streams(*body) if len(body) == 1 else streams(*body, then=Exchange.close)
    found = error_of(stream(connect(serve(script))))
    assert (found.kind, found.maybe_billed) == (ErrorKind.NETWORK_ERROR, True)


def test_closing_ends_the_wait_for_the_first_byte(serve, connect):
    server = serve(hangs, streams(*LIMA))
    provider = connect(server)
    reading = stream(provider)
    closer = threading.Thread(target=lambda: (server.arrived.acquire(), reading.close()))
    closer.start()
    found = error_of(reading)
    assert (found.kind, found.code, found.maybe_billed) == (ErrorKind.NETWORK_ERROR, "closed", True)
    closer.join()
    assert "".join(stream(provider)) == "Lima"


def test_what_is_closed_before_it_is_read_is_never_sent(serve, connect):
    server = serve(streams(*LIMA))
    reading = stream(connect(server))
    reading.close()
    found = error_of(reading)
    assert (found.code, found.maybe_billed) == ("closed", False)
    assert not server.requests


def test_what_is_closed_while_it_is_dialled_is_never_sent(serve, connect, monkeypatch):
    server = serve(streams(*LIMA))
    reading = stream(connect(server))
    dial = Connection._new_conn

    def dials(connection: Connection) -> Any:
        reading.close()
        return dial(connection)

    monkeypatch.setattr(Connection, "_new_conn", dials)
    found = error_of(reading)
    assert (found.code, found.maybe_billed) == ("closed", False)
    assert not server.requests


def test_closing_after_the_end_disturbs_nobody(serve, connect):
    server = serve(streams(*LIMA))
    provider = connect(server)
    old = stream(provider)
    assert "".join(old) == "Lima"
    pieces = iter(stream(provider))
    assert next(pieces) == "Li"
    old.close()
    assert "".join(pieces) == "ma"
    assert server.connections == 1


def response(status: str = "completed", text: str = "Lima", **changes: Any) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text}]
    return {
        "id": "resp_1",
        "status": status,
        "model": "gpt-5-mini-2026",
        "output": [{"type": "message", "role": "assistant", "content": content}],
        "usage": {"input_tokens": 31, "output_tokens": 2},
        **changes,
    }


def event(name: str, **fields: Any) -> bytes:
    return data({"type": name, "sequence_number": 1, **fields}, name)


def delta(text: str, kind: str = "output_text") -> bytes:
    return event(f"response.{kind}.delta", delta=text)


def ended(status: str = "completed", **changes: Any) -> bytes:
    return event(f"response.{status}", response=response(status, **changes))


CREATED = event("response.created", response=response("in_progress", output=[], usage=None))


def test_a_response_comes_in_pieces_and_ends_with_the_whole(serve, connect):
    server = serve(streams(CREATED, delta("Li"), event("response.odd"), delta("ma"), ended()))
    provider = connect(server, api="responses")
    for _ in range(2):
        reading = stream(provider)
        assert list(reading) == ["Li", "ma"]
        assert (reading.answer.text, reading.answer.usage) == ("Lima", Usage(31, 2))
    assert server.requests[0].target.endswith("/responses")
    assert server.requests[0].json()["stream"] is True
    assert server.connections == 1


def test_an_incomplete_response_says_why(serve, connect):
    last = ended("incomplete", text="Li", incomplete_details={"reason": "max_output_tokens"})
    reading = stream(connect(serve(streams(CREATED, delta("Li"), last)), api="responses"))
    assert list(reading) == ["Li"]
    assert reading.answer.finish_reason == "length"


def test_a_refused_response_is_named(serve, connect):
    message = {"type": "message", "content": [{"type": "refusal", "refusal": "No."}]}
    script = streams(CREATED, delta("No.", "refusal"), ended(output=[message]))
    reading = stream(connect(serve(script), api="responses"))
    assert list(reading) == ["No."]
    assert (reading.answer.text, reading.answer.finish_reason) == ("No.", "refusal")


def test_a_failed_response_is_an_error_with_what_it_used(serve, connect):
    failed = ended("failed", error={"code": "rate_limit_exceeded", "message": "slow"}, output=[])
    found = error_of(stream(connect(serve(streams(CREATED, delta("Li"), failed)), api="responses")))
    assert (found.kind, found.usage) == (ErrorKind.RATE_LIMIT, Usage(31, 2))


def test_an_error_event_is_classified(serve, connect):
    script = streams(CREATED, event("error", code="server_error", message="oops", param=None))
    found = error_of(stream(connect(serve(script), api="responses")))
    assert (found.kind, found.code) == (ErrorKind.SERVER_ERROR, "server_error")


@pytest.mark.parametrize("last", [[], [event("response.completed")], [DONE]])
def test_a_response_without_its_last_event_is_an_error(serve, connect, last):
    found = error_of(stream(connect(serve(streams(CREATED, delta("Li"), *last)), api="responses")))
    assert found.kind in (ErrorKind.NETWORK_ERROR, ErrorKind.INVALID_RESPONSE)
    assert found.maybe_billed


def test_a_response_without_deltas_is_one_piece(serve, connect):
    assert list(stream(connect(serve(streams(CREATED, ended())), api="responses"))) == ["Lima"]


def test_events_end_where_the_stream_says(serve):
    assert [data for _, data in events([b"data: a\n\nda", b"ta: b\n", b"\ndata: c\n"])] == [b"a", b"b"]
