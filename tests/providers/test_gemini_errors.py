"""Errors of the Gemini API over HTTP, through the real SDK."""

from __future__ import annotations

import pytest
from asking import SECRET_PROMPT, ask
from gemini_asking import RPC, gemini_error, retry_in, violation
from raw_server import says

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.types import LimitReport
from tests.levels import sampled

INVALID, EXHAUSTED = "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"
BAD_KEY = {"@type": f"{RPC}ErrorInfo", "reason": "API_KEY_INVALID", "domain": "googleapis.com"}
REQUESTS = "GenerateRequestsPerMinutePerProjectPerModel-FreeTier"
TOKENS = "GenerateContentInputTokensPerModelPerMinute-FreeTier"
DAY = "GenerateRequestsPerDayPerProjectPerModel-FreeTier"


def fails(serve, connect_gemini, body, prompt=SECRET_PROMPT, **params) -> ProviderError:
    script = body if callable(body) else says(body, f"{body['error']['code']} X")
    with pytest.raises(ProviderError) as caught:
        ask(connect_gemini(serve(script)), prompt, **params)
    return caught.value


@pytest.mark.parametrize(
    ("code", "status", "message", "kind"),
    sampled(
        [
            (400, INVALID, "Request contains an invalid argument.", ErrorKind.CLIENT_ERROR),
            (
                400,
                INVALID,
                "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
                ErrorKind.CONTEXT_TOO_LONG,
            ),
            (400, INVALID, "API key not valid. Please pass a valid API key.", ErrorKind.AUTH_ERROR),
            (400, INVALID, "API key expired. Please renew the API key.", ErrorKind.AUTH_ERROR),
            (
                400,
                "FAILED_PRECONDITION",
                "User location is not supported for the API use.",
                ErrorKind.AUTH_ERROR,
            ),
            (400, "FAILED_PRECONDITION", "Please enable billing on the project.", ErrorKind.NO_MONEY),
            (400, "FAILED_PRECONDITION", "The file is not in an ACTIVE state.", ErrorKind.CLIENT_ERROR),
            (401, "UNAUTHENTICATED", "Expected OAuth 2 access token", ErrorKind.AUTH_ERROR),
            (402, "UNKNOWN", "pay", ErrorKind.NO_MONEY),
            (403, "PERMISSION_DENIED", "Your API key was reported as leaked.", ErrorKind.AUTH_ERROR),
            (404, "NOT_FOUND", "models/x is not found", ErrorKind.CLIENT_ERROR),
            (408, "UNKNOWN", "slow", ErrorKind.SERVER_ERROR),
            (413, "UNKNOWN", "Request payload size exceeds the limit", ErrorKind.CLIENT_ERROR),
            (429, EXHAUSTED, "Resource has been exhausted (e.g. check quota).", ErrorKind.RATE_LIMIT),
            (429, EXHAUSTED, "Your prepayment credits are depleted.", ErrorKind.NO_MONEY),
            (429, EXHAUSTED, "Your project has exceeded its monthly spending cap.", ErrorKind.NO_MONEY),
            (429, EXHAUSTED, "check your plan and billing details", ErrorKind.RATE_LIMIT),
            (499, "CANCELLED", "The operation was cancelled.", ErrorKind.SERVER_ERROR),
            (500, "INTERNAL", "An internal error has occurred.", ErrorKind.SERVER_ERROR),
            (501, "UNIMPLEMENTED", "no", ErrorKind.CLIENT_ERROR),
            (503, "UNAVAILABLE", "The model is overloaded.", ErrorKind.SERVER_ERROR),
            (504, "DEADLINE_EXCEEDED", "Deadline expired.", ErrorKind.TIMEOUT),
            (529, "UNKNOWN", "new", ErrorKind.SERVER_ERROR),
        ],
        keep=10,
    ),
)
def test_what_errors_mean(serve, connect_gemini, code, status, message, kind):
    found = fails(serve, connect_gemini, gemini_error(code, status, message))
    assert (found.kind, found.status) == (kind, code)
    assert found.maybe_billed == (code == 504)


def test_a_bad_key_is_known_by_its_reason(serve, connect_gemini):
    found = fails(serve, connect_gemini, gemini_error(400, INVALID, "Bad", BAD_KEY))
    assert (found.kind, found.code) == (ErrorKind.AUTH_ERROR, "API_KEY_INVALID")


@pytest.mark.parametrize(
    ("delay", "seconds"),
    [
        ("41s", 41.0),
        ("0.847655010s", 0.84765501),
        ({"seconds": 3, "nanos": 500_000_000}, 3.5),
        ({"seconds": "2"}, 2.0),
        ("99999s", 600.0),
        ("soon", None),
        ({"seconds": "x"}, None),
        (7, None),
    ],
)
def test_the_wait_stands_in_the_body(serve, connect_gemini, delay, seconds):
    body = gemini_error(429, EXHAUSTED, "slow down", violation(REQUESTS, "10"), retry_in(delay))
    found = fails(serve, connect_gemini, body)
    assert found.kind is ErrorKind.RATE_LIMIT
    assert found.retry_after == (None if seconds is None else pytest.approx(seconds))


def test_a_wait_in_a_header_counts_where_the_body_has_none(serve, connect_gemini):
    script = says(gemini_error(429, EXHAUSTED), "429 X", retry_after="7")
    assert fails(serve, connect_gemini, script).retry_after == 7.0


@pytest.mark.parametrize(
    ("details", "limits"),
    [
        ([violation(REQUESTS, "10")], LimitReport(requests_limit=10)),
        ([violation(TOKENS, "250000")], LimitReport(input_limit=250_000)),
        (
            [violation(REQUESTS, "10"), violation(TOKENS, "250000"), violation(REQUESTS, "5")],
            LimitReport(requests_limit=5, input_limit=250_000),
        ),
        ([violation(REQUESTS)], None),
        ([violation(REQUESTS, "many")], None),
        ([{"violations": "none"}, "x", {"violations": [7]}], None),
        ([], None),
    ],
)
def test_a_refusal_tells_the_limit(serve, connect_gemini, details, limits):
    found = fails(serve, connect_gemini, gemini_error(429, EXHAUSTED, "no", *details))
    assert (found.kind, found.limits) == (ErrorKind.RATE_LIMIT, limits)


def test_the_days_quota_is_not_asked_again_today(serve, connect_gemini):
    body = gemini_error(
        429, EXHAUSTED, "quota", violation(REQUESTS, "10"), violation(DAY, "250"), retry_in("12s")
    )
    found = fails(serve, connect_gemini, body)
    assert (found.kind, found.code, found.retry_after) == (ErrorKind.NO_MONEY, "daily_quota", None)
    assert "250" in found.message
    assert "midnight Pacific" in found.message


def test_a_quota_of_nothing_is_not_waited_for(serve, connect_gemini):
    body = gemini_error(429, EXHAUSTED, "limit: 0", violation(REQUESTS, "0"), retry_in("30s"))
    found = fails(serve, connect_gemini, body)
    assert (found.kind, found.code, found.retry_after) == (ErrorKind.NO_MONEY, "no_quota", None)
