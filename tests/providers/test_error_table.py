"""What status, code, type and text of an error answer mean."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartbatch.errors import ErrorKind
from smartbatch.providers.error_table import kind_of_status

K = ErrorKind


@pytest.mark.parametrize(
    ("status", "code", "type_", "message", "kind"),
    [
        (400, None, "invalid_request_error", "bad field", K.CLIENT_ERROR),
        (400, "context_length_exceeded", "invalid_request_error", "too long", K.CONTEXT_TOO_LONG),
        (
            400,
            400,
            "BadRequestError",
            "This model's maximum context length is 4096 tokens…",
            K.CONTEXT_TOO_LONG,
        ),
        (400, 400, "exceed_context_size_error", "", K.CONTEXT_TOO_LONG),
        *(
            (status, None, None, text, K.CONTEXT_TOO_LONG)
            for status, text in (
                (400, "The decoder prompt (length 9) is longer than the maximum model length of 8."),
                (400, "The input (61709 tokens) is longer than the model's context length (40960 tokens)."),
                (400, "This model's maximum prompt length is 8 but the request contains 9 tokens."),
                (422, "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8. Given: 9"),
                (413, "Input validation error: `inputs` must have less than 512 tokens. Given: 600"),
            )
        ),
        (400, "content_filter", None, "filtered", K.CLIENT_ERROR),
        (400, "invalid_prompt", None, "", K.CLIENT_ERROR),
        (400, "billing_hard_limit_reached", None, "", K.NO_MONEY),
        (400, 400, None, "API key not valid. Please pass a valid API key.", K.AUTH_ERROR),
        (401, "invalid_api_key", None, "", K.AUTH_ERROR),
        (402, None, None, "Insufficient credits", K.NO_MONEY),
        (403, "unsupported_country_region_territory", None, "", K.AUTH_ERROR),
        (403, 403, None, 'x/y requires moderation. Your input was flagged for "self-harm".', K.CLIENT_ERROR),
        (403, "content_policy_violation", None, "", K.CLIENT_ERROR),
        (403, None, "content_filter", "", K.CLIENT_ERROR),
        (403, {"a": 1}, ["b"], "no", K.AUTH_ERROR),
        (404, "model_not_found", None, "", K.CLIENT_ERROR),
        (408, None, None, "", K.SERVER_ERROR),
        (409, None, None, "", K.SERVER_ERROR),
        (413, None, None, "", K.CLIENT_ERROR),
        (418, None, None, "", K.CLIENT_ERROR),
        (422, None, None, "", K.CLIENT_ERROR),
        (424, None, "generation", "Request failed during generation: Server error: CUDA", K.SERVER_ERROR),
        (429, "rate_limit_exceeded", "requests", "Please try again in 6ms.", K.RATE_LIMIT),
        (429, None, None, "", K.RATE_LIMIT),
        (429, 429, None, "You exceeded your current quota (per minute)", K.RATE_LIMIT),
        (429, None, "insufficient_quota", "", K.NO_MONEY),
        (429, "insufficient_quota", None, "", K.NO_MONEY),
        (429, "project_spend_limit_exceeded", "insufficient_quota", "", K.NO_MONEY),
        (429, "429", "budget_exceeded", "Budget has been exceeded! Current cost: 2", K.NO_MONEY),
        (400, "400", "budget_exceeded", "Budget has been exceeded! Current cost: 2", K.NO_MONEY),
        (429, None, "exceeded_current_quota_error", "check your plan and billing details", K.NO_MONEY),
        (429, "rate_limit_exceeded", "tokens", "Request too large for gpt-5: Limit 30000", K.CLIENT_ERROR),
        (498, None, None, "", K.SERVER_ERROR),
        (500, None, "server_error", "", K.SERVER_ERROR),
        (501, None, None, "", K.CLIENT_ERROR),
        (502, None, None, "", K.SERVER_ERROR),
        (503, None, None, "The engine is currently overloaded", K.SERVER_ERROR),
        (503, None, None, "Slow Down", K.RATE_LIMIT),
        (503, None, None, "server busy, please try again. maximum pending requests exceeded", K.RATE_LIMIT),
        (504, None, None, "", K.SERVER_ERROR),
        (529, None, None, "", K.SERVER_ERROR),
        (302, None, None, "", K.INVALID_RESPONSE),
        (200, "server_error", None, "", K.SERVER_ERROR),
        (200, "rate_limit_exceeded", None, "", K.RATE_LIMIT),
        (200, 502, None, "", K.SERVER_ERROR),
        (200, "429", None, "", K.RATE_LIMIT),
        (200, True, None, "", K.INVALID_RESPONSE),
        (200, None, None, "?", K.INVALID_RESPONSE),
    ],
)
def test_each_error_has_its_kind(status, code, type_, message, kind):
    """The table of the API's documentation, and what compatible servers make of it."""
    assert kind_of_status(status, code, type_, message) is kind


_anything = (
    st.none() | st.booleans() | st.integers() | st.text(max_size=40) | st.lists(st.integers(), max_size=2)
)


@given(st.integers(200, 599), _anything, _anything, st.none() | st.text(max_size=100))
def test_any_error_has_some_kind(status, code, type_, message):
    assert isinstance(kind_of_status(status, code, type_, message), ErrorKind)
