"""Streamed answers of Anthropic."""

from __future__ import annotations

import pytest
from asking import KEY, SECRET_PROMPT, begin, stream_error
from claude import BLOCK, END, PING, START, STOP, delta, error, event, opened
from raw_server import streams

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.types import Usage

WHOLE = (START, BLOCK, PING, delta("Li"), PING, delta("ma"), event("content_block_stop", index=0), END, STOP)


def broken(serve, script, timeout=20.0, pieces=None) -> ProviderError:
    with opened(serve(script)) as provider:
        return stream_error(begin(provider, SECRET_PROMPT, timeout), pieces)


def test_pieces_come_one_by_one_and_the_answer_at_the_end(serve):
    server = serve(streams(*WHOLE, request_id="req_s"))
    with opened(server) as provider:
        stream = begin(provider, temperature=0.1)
        assert list(stream) == ["Li", "ma"]
        answer = stream.answer
    assert server.requests[0].json()["stream"] is True
    assert (answer.text, answer.finish_reason) == ("Lima", "stop")
    assert answer.usage == Usage(31, 14)
    assert answer.provider_request_id == "req_s"
    assert [name for name, _ in answer.dropped] == ["temperature"]


@pytest.mark.parametrize(
    ("type_", "code", "kind"),
    [
        ("overloaded_error", None, ErrorKind.SERVER_ERROR),
        ("api_error", None, ErrorKind.SERVER_ERROR),
        ("rate_limit_error", None, ErrorKind.RATE_LIMIT),
        ("rate_limit_error", "enforced_spend_limit_reached", ErrorKind.NO_MONEY),
        ("invalid_request_error", None, ErrorKind.CLIENT_ERROR),
        ("brand_new_error", None, ErrorKind.SERVER_ERROR),
    ],
)
def test_an_error_among_the_events_is_judged_by_its_type(serve, type_, code, kind):
    wrong = error(type_, f"{KEY} {SECRET_PROMPT}", code)
    found = broken(serve, streams(START, delta("Li"), event("error", **wrong), STOP))
    assert (found.kind, found.status, found.code) == (kind, 200, code or type_)
    assert found.maybe_billed
    assert found.usage == Usage(31, 1)
    assert KEY not in str(found)
    assert "diary" not in str(found)


def test_refusals_and_lengths_are_told(serve):
    refusal = event("message_delta", delta={"stop_reason": "refusal"}, usage={"output_tokens": 3})
    thought = event("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": "hm"})
    server = serve(streams(START, event("brand_new", a=1), thought, refusal, STOP))
    with opened(server) as provider:
        stream = begin(provider)
        assert list(stream) == []
        assert (stream.answer.text, stream.answer.finish_reason) == ("", "refusal")
