"""Errors of the OpenAI adapter."""

from __future__ import annotations

import pytest
from asking import KEY, SECRET_PROMPT, ask, forms_of
from hypothesis import given
from hypothesis import strategies as st
from raw_server import error, says

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.foreign_text import echoes


def fails(serve, connect, script, prompt=SECRET_PROMPT, **params) -> ProviderError:
    provider = connect(serve(script))
    with pytest.raises(ProviderError) as caught:
        ask(provider, prompt, **params)
    return caught.value


def test_a_rate_limit_says_when_to_come_back(serve, connect):
    found = fails(
        serve,
        connect,
        says(
            error("Rate limit reached", "requests", "rate_limit_exceeded"),
            "429 Too Many Requests",
            retry_after="3",
            x_request_id="req_1",
            x_ratelimit_limit_requests="10",
        ),
    )
    assert (found.kind, found.status, found.code) == (ErrorKind.RATE_LIMIT, 429, "rate_limit_exceeded")
    assert (found.retry_after, found.provider_request_id) == (3.0, "req_1")
    assert found.limits.requests_limit == 10
    assert not found.maybe_billed
    assert found.message == "the provider answered 429 rate_limit_exceeded: Rate limit reached"


def test_a_key_that_comes_back_as_a_code_or_an_id_is_left_out(serve, connect):
    found = fails(serve, connect, says(error("no", KEY, KEY), "400 Bad Request", x_request_id=f"req_{KEY}"))
    assert (found.code, found.provider_request_id) == (None, None)
    assert not [form for form in forms_of(found) if KEY in form]


def test_the_waiting_time_may_stand_in_the_text(serve, connect):
    text = "Limit 3, Used 3. Please try again in 1m2.5s. Visit us."
    assert fails(serve, connect, says(error(text), "429 X")).retry_after == 62.5
    assert fails(serve, connect, says(error("try again in a while"), "429 X")).retry_after is None
    assert fails(serve, connect, says(error("Please retry after 2 minutes."), "429 X")).retry_after == 120.0


@pytest.mark.parametrize(
    ("reset", "seconds"),
    [
        ("1795003230000", 20.0),
        ("1795000000000", 0.0),
        ("1795089600000", 600.0),
        (1795003230000, None),
        ("soon", None),
    ],
)
def test_the_waiting_time_may_stand_in_headers_within_the_body(serve, connect, reset, seconds):
    body = {"error": {"message": "Rate limit exceeded: free-models-per-min.", "code": 429}}
    body["error"]["metadata"] = {"headers": {"X-RateLimit-Limit": "20", "X-RateLimit-Reset": reset}}
    answer = says(body, "429 Too Many Requests", date="Wed, 18 Nov 2026 12:00:10 GMT")
    found = fails(serve, connect, answer)
    assert (found.kind, found.retry_after) == (ErrorKind.RATE_LIMIT, seconds)


def test_an_error_object_in_a_success_is_an_error(serve, connect):
    found = fails(serve, connect, says(error("overloaded", "server_error", 503)))
    assert found.kind is ErrorKind.SERVER_ERROR
    assert found.maybe_billed


@given(st.text(alphabet="abcd ", min_size=20, max_size=60), st.data())
def test_any_run_of_twenty_characters_is_an_echo(prompt, data):
    prompt = " ".join(prompt.split())
    if len(prompt) < 20:
        return
    start = data.draw(st.integers(0, len(prompt) - 20))
    piece = prompt[start : start + 20].strip()
    before, after = data.draw(st.text("xyz", max_size=15)), data.draw(st.text("xyz", max_size=15))
    found = echoes(before + piece + after, iter([prompt]))
    assert found or len(piece) < 20


@given(st.text("abc", min_size=20, max_size=40), st.text("xyz ", max_size=80))
def test_foreign_texts_are_no_echo(prompt, text):
    assert not echoes(text, iter([prompt]))
