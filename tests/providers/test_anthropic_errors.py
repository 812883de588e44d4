"""Errors of the Anthropic adapter over HTTP."""

from __future__ import annotations

import pytest
from asking import SECRET_PROMPT, ask
from claude import error, opened
from raw_server import says

from smartbatch.errors import ErrorKind, ProviderError
from tests.levels import sampled

K = ErrorKind


def fails(serve, script, prompt=SECRET_PROMPT, options=None, **params) -> ProviderError:
    server = serve(script)
    with opened(server, **(options or {})) as provider, pytest.raises(ProviderError) as caught:
        ask(provider, prompt, **params)
    assert len(server.requests) == 1, "the SDK must not retry by itself"
    return caught.value


TOO_LONG = "prompt is too long: 213462 tokens > 200000 maximum"
TABLE = [
    (400, "invalid_request_error", "max_tokens: Field required", None, K.CLIENT_ERROR),
    (400, "invalid_request_error", TOO_LONG, None, K.CONTEXT_TOO_LONG),
    (
        400,
        "invalid_request_error",
        "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
        None,
        K.CONTEXT_TOO_LONG,
    ),
    (400, "invalid_request_error", "Your credit balance is too low to access the API.", None, K.NO_MONEY),
    (400, "invalid_request_error", "You have reached your specified API usage limits.", None, K.NO_MONEY),
    (401, "authentication_error", "invalid x-api-key", None, K.AUTH_ERROR),
    (402, "billing_error", "There's an issue with your billing", None, K.NO_MONEY),
    (403, "permission_error", "not allowed", None, K.AUTH_ERROR),
    (404, "not_found_error", "model: nope", None, K.CLIENT_ERROR),
    (408, "timeout_error", "slow", None, K.SERVER_ERROR),
    (409, "conflict_error", "again", None, K.SERVER_ERROR),
    (412, "invalid_request_error", "no", None, K.CLIENT_ERROR),
    (413, "request_too_large", "Request exceeds the maximum size", None, K.CLIENT_ERROR),
    (422, "invalid_request_error", "no", None, K.CLIENT_ERROR),
    (429, "rate_limit_error", "slow down", None, K.RATE_LIMIT),
    (429, "rate_limit_error", "spent", "enforced_spend_limit_reached", K.NO_MONEY),
    (429, "rate_limit_error", "spent", "contract_spend_limit_reached", K.NO_MONEY),
    (429, "rate_limit_error", "spent", "linked_organization_spend_limit_reached", K.NO_MONEY),
    (429, "rate_limit_error", "too fast a rise in usage", "ramp_limit_exceeded", K.RATE_LIMIT),
    (431, "invalid_request_error", "headers", None, K.CLIENT_ERROR),
    (499, None, "", None, K.SERVER_ERROR),
    (500, "api_error", "Internal server error", None, K.SERVER_ERROR),
    (501, "api_error", "no", None, K.CLIENT_ERROR),
    (503, "api_error", "unavailable", None, K.SERVER_ERROR),
    (504, "timeout_error", "too slow", None, K.SERVER_ERROR),
    (529, "overloaded_error", "Overloaded", None, K.SERVER_ERROR),
]


@pytest.mark.parametrize(("status", "type_", "text", "code", "kind"), sampled(TABLE, keep=10))
def test_each_error_of_the_reference_has_its_kind(serve, status, type_, text, code, kind):
    found = fails(serve, says(error(type_, text, code), f"{status} X", request_id="req_h"))
    assert found.kind is kind
    assert (found.status, found.code) == (status, code or type_)
    assert found.provider_request_id == "req_h"
    assert found.maybe_billed == (status == 504)


def test_the_id_may_stand_in_the_body_only(serve):
    assert fails(serve, says(error("api_error"), "500 X")).provider_request_id == "req_body"


def test_a_rate_limit_says_when_to_come_back_and_what_is_left(serve):
    headers = {
        "retry_after": "7",
        "anthropic-ratelimit-requests-limit": "50",
        "anthropic-ratelimit-requests-remaining": "0",
        "anthropic-ratelimit-requests-reset": "2026-11-20T10:00:12Z",
        "anthropic-ratelimit-input-tokens-limit": "50000",
        "anthropic-ratelimit-output-tokens-limit": "10000",
        "date": "Fri, 20 Nov 2026 10:00:00 GMT",
    }
    found = fails(serve, says(error("rate_limit_error"), "429 X", **headers))
    limits = found.limits
    assert (found.kind, found.retry_after) == (K.RATE_LIMIT, 7.0)
    assert (limits.requests_limit, limits.requests_remaining) == (50, 0)
    assert limits.requests_reset == 12.0, "the server's own clock counts"
    assert (limits.input_limit, limits.output_limit, limits.tokens_limit) == (50_000, 10_000, None)


NO_MESSAGES = (
    *('{"a":1}', "[]", '"hi"', '{"type":"message"}', '{"type":"message","content":"hi"}'),
    '{"type":"completion","content":[]}',
)


@pytest.mark.parametrize("body", NO_MESSAGES)
def test_a_success_that_is_no_message_is_an_error(serve, body):
    found = fails(serve, says(body, request_id="req_1"))
    assert (found.kind, found.code, found.maybe_billed) == (K.INVALID_RESPONSE, "shape", True)
    assert found.provider_request_id == "req_1"


def test_an_error_in_a_success_is_judged_by_its_type(serve):
    found = fails(serve, says(error("overloaded_error", "Overloaded")))
    assert (found.kind, found.code, found.maybe_billed) == (K.SERVER_ERROR, "overloaded_error", True)
