"""Result lines of Gemini's batches."""

from __future__ import annotations

import json
from array import array

import pytest
from gemini_asking import GEMINI_KEY, retry_in, says_gemini, violation

from smartbatch.errors import ErrorKind
from smartbatch.providers import GeminiProvider
from smartbatch.providers.batch_api import Line, LineOutcome
from smartbatch.types import Embedding, Kind, Request, Usage


def line_of(kind=Kind.GENERATE, **fields) -> Line:
    api = GeminiProvider(GEMINI_KEY).batches()
    return api.read_line(json.dumps({"key": "n-0", **fields}).encode(), kind)


def test_an_answer_is_read_as_in_real_time():
    line = line_of(response=says_gemini("Li", "ma", finish="MAX_TOKENS"))
    answer = line.answer
    assert (line.wire_id, line.outcome, answer.text, answer.finish_reason) == (
        "n-0",
        LineOutcome.OK,
        "Lima",
        "length",
    )
    assert answer.usage == Usage(31, 78, 5, 64)
    assert (answer.model, answer.provider_request_id) == ("gemini-3.8-flash-001", "r-1")


@pytest.mark.parametrize("response", [{}, {"candidates": []}, {"candidates": [7]}, None, [], "x"])
def test_an_answer_that_is_none_may_be_asked_for_again(response):
    line = line_of(response=response)
    assert (line.outcome, line.error.kind) == (LineOutcome.RETRY, ErrorKind.INVALID_RESPONSE)
    assert line.error.maybe_billed


@pytest.mark.parametrize(
    ("code", "kind", "outcome"),
    [
        (0, ErrorKind.SERVER_ERROR, LineOutcome.RETRY),
        (2, ErrorKind.SERVER_ERROR, LineOutcome.RETRY),
        (3, ErrorKind.CLIENT_ERROR, LineOutcome.FAILED),
        (4, ErrorKind.TIMEOUT, LineOutcome.RETRY),
        (5, ErrorKind.CLIENT_ERROR, LineOutcome.FAILED),
        (6, ErrorKind.SERVER_ERROR, LineOutcome.RETRY),
        (7, ErrorKind.AUTH_ERROR, LineOutcome.FAILED),
        (8, ErrorKind.RATE_LIMIT, LineOutcome.RETRY),
        (9, ErrorKind.CLIENT_ERROR, LineOutcome.FAILED),
        (10, ErrorKind.SERVER_ERROR, LineOutcome.RETRY),
        (11, ErrorKind.CLIENT_ERROR, LineOutcome.FAILED),
        (12, ErrorKind.CLIENT_ERROR, LineOutcome.FAILED),
        (13, ErrorKind.SERVER_ERROR, LineOutcome.RETRY),
        (14, ErrorKind.SERVER_ERROR, LineOutcome.RETRY),
        (15, ErrorKind.SERVER_ERROR, LineOutcome.RETRY),
        (16, ErrorKind.AUTH_ERROR, LineOutcome.FAILED),
        (99, ErrorKind.SERVER_ERROR, LineOutcome.RETRY),
        (400, ErrorKind.CLIENT_ERROR, LineOutcome.FAILED),
        (503, ErrorKind.SERVER_ERROR, LineOutcome.RETRY),
        ("3", ErrorKind.SERVER_ERROR, LineOutcome.RETRY),
        (None, ErrorKind.SERVER_ERROR, LineOutcome.RETRY),
        (True, ErrorKind.SERVER_ERROR, LineOutcome.RETRY),
    ],
)
def test_an_error_line_means_what_its_code_means(code, kind, outcome):
    for details in (
        {},
        {"details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "1s"}]},
    ):
        line = line_of(error={"code": code, "message": "some text", **details})
        assert (line.outcome, line.error.kind, line.answer) == (outcome, kind, None)
        assert not line.error.maybe_billed
        assert "some text" in line.error.message


@pytest.mark.parametrize(
    ("error", "kind", "outcome"),
    [
        (
            {
                "code": 3,
                "message": "The input token count (1200000) exceeds the maximum number of tokens allowed",
            },
            ErrorKind.CONTEXT_TOO_LONG,
            LineOutcome.FAILED,
        ),
        (
            {"code": 8, "message": "Your prepayment credits are depleted."},
            ErrorKind.NO_MONEY,
            LineOutcome.UNRUN,
        ),
        (
            {
                "code": 8,
                "message": "no",
                "details": [violation("GenerateRequestsPerDayPerProject", "250"), retry_in("2s")],
            },
            ErrorKind.NO_MONEY,
            LineOutcome.UNRUN,
        ),
        ({"code": 9, "message": "Please enable billing"}, ErrorKind.NO_MONEY, LineOutcome.UNRUN),
        ("broken", ErrorKind.SERVER_ERROR, LineOutcome.RETRY),
    ],
)
def test_an_error_line_says_more_in_its_text_and_details(error, kind, outcome):
    line = line_of(error=error)
    assert (line.outcome, line.error.kind) == (outcome, kind)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ({"code": 1, "message": "The operation was cancelled."}, "batch_cancelled"),
        ({"code": 1}, "batch_cancelled"),
        ({"code": 4, "message": "The batch expired before the request ran."}, "batch_expired"),
    ],
)
def test_what_was_not_run_says_so(error, code):
    line = line_of(error=error)
    assert (line.outcome, line.error.code, line.error.maybe_billed) == (LineOutcome.UNRUN, code, False)


def test_the_key_does_not_come_back_in_a_line():
    line = line_of(error={"code": 13, "message": f"bad key {GEMINI_KEY}, sorry"})
    assert GEMINI_KEY not in repr(line.error.__dict__)
    assert "sorry" in line.error.message


def test_a_line_for_a_vector_has_the_options_of_real_time_and_no_model():
    api = GeminiProvider(GEMINI_KEY).batches()
    request = Request(prompt="a", embedding=Embedding(dimensions=64, task_type="CLUSTERING"))
    assert json.loads(api.encode(request, model="gemini-embedding-001", wire_id="n-0")) == {
        "key": "n-0",
        "request": {
            "content": {"role": "user", "parts": [{"text": "a"}]},
            "taskType": "CLUSTERING",
            "outputDimensionality": 64,
        },
    }


def test_a_vector_is_exact_and_its_tokens_are_texts():
    line = line_of(Kind.EMBED, response={"embedding": {"values": [0.1, -2, 3e-5]}, "tokenCount": "5"})
    assert line.answer.embedding == array("f", [0.1, -2, 3e-5])
    assert line.answer.usage == Usage(input_tokens=5)


@pytest.mark.parametrize(
    "values",
    [[], None, "AACA", [1, None], [1, "2"], [float("nan")], [float("inf")], [1e300], {"0": 1}, [True]],
)
def test_a_vector_that_is_none_is_not_delivered(values):
    line = line_of(Kind.EMBED, response={"embedding": {"values": values}, "tokenCount": "5"})
    assert (line.outcome, line.error.kind) == (LineOutcome.RETRY, ErrorKind.INVALID_RESPONSE)
    assert line.error.usage == Usage(input_tokens=5)
    assert line_of(Kind.EMBED, response={}).outcome is LineOutcome.RETRY


@pytest.mark.parametrize("tokens", ["x", "-1", -1, 2.5, "9" * 30, None, [], True])
def test_odd_token_counts_are_unknown(tokens):
    line = line_of(Kind.EMBED, response={"embedding": {"values": [1.0]}, "tokenCount": tokens})
    assert (line.outcome, line.answer.usage) == (LineOutcome.OK, None)
