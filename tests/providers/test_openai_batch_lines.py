"""Result lines of OpenAI's batches."""

from __future__ import annotations

import pytest
from attrs import evolve
from batching import result_line
from raw_server import chat, error

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.batch_api import Line, LineOutcome
from smartbatch.providers.foreign_text import without_echo
from smartbatch.providers.openai.answers import read_line
from smartbatch.providers.openai.errors import ERRORS
from smartbatch.types import Kind, Request

CHAT, OK, FAILED, RETRY, UNRUN = Kind.GENERATE, *LineOutcome


def read(line: bytes, kind: Kind = CHAT, api: str = "chat") -> Line:
    return read_line(line, kind, api, evolve(ERRORS, secrets=("canary-1234",)))


def test_an_answer_is_read_as_in_real_time():
    line = read(result_line(body=chat("Lima")))
    assert (line.wire_id, line.outcome, line.error) == ("n-0", OK, None)
    answer = line.answer
    assert (answer.text, answer.provider_request_id, answer.model) == ("Lima", "r1", "gpt-5-mini-2026-01-01")
    usage = answer.usage
    assert (usage.input_tokens, usage.cached_tokens, usage.output_tokens, usage.reasoning_tokens) == (
        31,
        5,
        78,
        64,
    )


def test_a_response_that_failed_in_a_200_is_an_error():
    body = {"status": "failed", "error": {"code": "server_error", "message": "x"}, "output": []}
    assert read(result_line(body=body), api="responses").outcome is RETRY
    body["error"]["code"] = "invalid_prompt"
    assert read(result_line(body=body), api="responses").outcome is FAILED


@pytest.mark.parametrize(
    ("status", "body", "outcome", "kind"),
    [
        (400, error("bad", "invalid_request_error"), FAILED, ErrorKind.CLIENT_ERROR),
        (400, error("long", code="context_length_exceeded"), FAILED, ErrorKind.CONTEXT_TOO_LONG),
        (401, error("no", code="invalid_api_key"), FAILED, ErrorKind.AUTH_ERROR),
        (429, error("slow", code="rate_limit_exceeded"), RETRY, ErrorKind.RATE_LIMIT),
        (429, error("quota", "insufficient_quota"), UNRUN, ErrorKind.NO_MONEY),
        (500, error("oh", "server_error"), RETRY, ErrorKind.SERVER_ERROR),
        (502, "<html>", RETRY, ErrorKind.SERVER_ERROR),
        (504, None, RETRY, ErrorKind.SERVER_ERROR),
        (0, "", RETRY, ErrorKind.SERVER_ERROR),
        (200, error("oh", "server_error"), RETRY, ErrorKind.SERVER_ERROR),
        (200, {"choices": []}, RETRY, ErrorKind.INVALID_RESPONSE),
        (200, None, RETRY, ErrorKind.INVALID_RESPONSE),
        (200, "text", RETRY, ErrorKind.INVALID_RESPONSE),
    ],
)
def test_what_became_of_a_request_that_was_run(status, body, outcome, kind):
    line = read(result_line(status, body))
    assert (line.outcome, line.error.kind, line.answer) == (outcome, kind, None)


@pytest.mark.parametrize(
    ("said", "outcome", "kind"),
    [
        ({"code": "batch_expired", "message": "could not be executed"}, UNRUN, None),
        ({"code": "batch_cancelled"}, UNRUN, None),
        ({"code": "a_code_of_tomorrow"}, UNRUN, None),
        ({}, UNRUN, None),
        (None, UNRUN, None),
        ("a bare text", UNRUN, None),
        ({"code": "request_timeout"}, RETRY, ErrorKind.TIMEOUT),
        ({"code": "server_error"}, RETRY, ErrorKind.SERVER_ERROR),
        ({"code": "rate_limit_exceeded"}, RETRY, ErrorKind.RATE_LIMIT),
        ({"code": "invalid_prompt"}, FAILED, ErrorKind.CLIENT_ERROR),
        ({"code": "context_length_exceeded"}, FAILED, ErrorKind.CONTEXT_TOO_LONG),
        ({"code": "insufficient_quota"}, UNRUN, ErrorKind.NO_MONEY),
    ],
)
def test_what_became_of_a_request_without_an_answer(said, outcome, kind):
    line = read(result_line(response=None, error=said))
    assert line.outcome is outcome
    assert kind in (None, line.error.kind)
    assert line.error.maybe_billed == (kind is ErrorKind.TIMEOUT)


@pytest.mark.parametrize("wrapped", [True, False])
def test_an_error_next_to_the_response_says_what_its_status_means(wrapped):
    told = {"message": "This model's maximum context length is 8 tokens.", "code": 400}
    line = read(result_line(400, None, error={"error": told} if wrapped else {"object": "error", **told}))
    assert (line.outcome, line.error.kind, line.error.status) == (FAILED, ErrorKind.CONTEXT_TOO_LONG, 400)
    assert "8 tokens" in line.error.message


def test_an_answer_that_may_have_been_billed_says_so():
    assert read(result_line(0, "")).error.maybe_billed
    assert read(result_line(504, "")).error.maybe_billed
    assert not read(result_line(500, error("oh"))).error.maybe_billed


@pytest.mark.parametrize(
    "response",
    [{"body": chat("Lima")}, chat("Lima"), {"status_code": 200, "body": chat("Lima"), "more": 1}],
)
def test_servers_that_leave_the_status_or_the_wrapping_out_are_understood(response):
    assert read(result_line(response=response, extra=[1])).answer.text == "Lima"


def test_a_vector_is_placed_and_checked():
    body = {"data": [{"index": 0, "embedding": [0.5, -1.0]}], "usage": {"prompt_tokens": 3}, "model": "e"}
    line = read(result_line(body=body), Kind.EMBED)
    assert list(line.answer.embedding) == [0.5, -1.0]
    assert line.answer.usage.input_tokens == 3
    for wrong in ([], [{"index": 1, "embedding": [0.5]}], [{"index": 0, "embedding": ["x"]}]):
        line = read(result_line(body={**body, "data": wrong}), Kind.EMBED)
        assert (line.outcome, line.error.kind) == (RETRY, ErrorKind.INVALID_RESPONSE)


@pytest.mark.parametrize(
    "line",
    [
        b'{"response": null}',
        result_line(body=chat(), custom_id=None),
        result_line(body=chat(), custom_id=7),
        result_line(body=chat(), custom_id="../etc"),
        result_line(body=chat(), custom_id="x" * 65),
        result_line(response="text"),
        result_line(status=10**9, body={}),
        result_line(status="200", body={}),
        result_line(body=chat())[:-20],
    ],
)
def test_what_is_no_line_of_results_is_refused_by_name(line):
    with pytest.raises(ValueError) as caught:
        read(line)
    assert caught.value.__cause__ is None
    assert len(str(caught.value)) < 80


def test_keys_in_lines_are_scrubbed():
    line = read(result_line(400, error("key canary-1234 and sk-abcdefghijkl")))
    assert "canary" not in str(line.error)
    assert "abcdefghijkl" not in str(line.error)


def test_an_error_that_repeats_the_prompt_is_told_without_it():
    secret = Request(prompt="My diagnosis is a rare disease of the left knee")
    line = read(result_line(400, error(f"Invalid: '{secret.prompt}'", "invalid_request_error")))
    quiet = without_echo(line.error, secret)
    assert "diagnosis" not in f"{quiet!r} {quiet} {quiet.args} {quiet.message} {quiet.__dict__}"
    assert (quiet.kind, quiet.status, quiet.code) == (line.error.kind, 400, "invalid_request_error")
    assert quiet.message.startswith("the provider answered 400 invalid_request_error: (")
    assert without_echo(line.error, Request(prompt="something else entirely")) is line.error
    odd = ProviderError(f"{secret.prompt}: refused")
    assert "diagnosis" not in str(without_echo(odd, secret))
