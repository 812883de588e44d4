"""Errors of the OpenAI provider: what they mean, when to come back, and what they never say."""

from __future__ import annotations

import json
import traceback

import pytest
from asking import KEY, ask, forms_of
from hypothesis import given
from hypothesis import strategies as st
from raw_server import chat, error, http, says, vanishes

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.foreign_text import echoes
from smartbatch.types import Message

PROMPT = "my secret diary of the ninth of May says that nobody came to the party"


def fails(serve, connect, script, prompt=PROMPT, **params) -> ProviderError:
    provider = connect(serve(script))
    with pytest.raises(ProviderError) as caught:
        ask(provider, prompt, **params)
    return caught.value


def test_a_rate_limit_says_when_to_come_back(serve, connect):
    """Status, code, waiting time, limits and request id are attributes of the error."""
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


def test_the_waiting_time_may_stand_in_the_text(serve, connect):
    """Without a header, "try again in …" counts."""
    text = "Limit 3, Used 3. Please try again in 1m2.5s. Visit us."
    assert fails(serve, connect, says(error(text), "429 X")).retry_after == 62.5
    assert fails(serve, connect, says(error("try again in a while"), "429 X")).retry_after is None


@pytest.mark.parametrize(
    ("body", "kind", "part"),
    [
        ({"error": "server busy"}, ErrorKind.SERVER_ERROR, "server busy"),
        ({"object": "error", "message": "flat", "code": 503}, ErrorKind.SERVER_ERROR, "503: flat"),
        ([{"error": {"message": "listed"}}], ErrorKind.SERVER_ERROR, "listed"),
        ({"error": {"message": None, "code": None}}, ErrorKind.SERVER_ERROR, "answered 503"),
        ({"error": None}, ErrorKind.SERVER_ERROR, "answered 503"),
        ("<html>Bad gateway</html>", ErrorKind.SERVER_ERROR, "answered 503"),
        ("", ErrorKind.SERVER_ERROR, "answered 503"),
        ("[" * 100_000, ErrorKind.SERVER_ERROR, "answered 503"),
    ],
)
def test_error_bodies_come_in_many_shapes(serve, connect, body, kind, part):
    """Objects, texts, lists, pages, nothing: the status decides, the text is shown if there is one."""
    text = body if isinstance(body, str) else json.dumps(body)
    found = fails(serve, connect, says(text, "503 Service Unavailable"))
    assert found.kind is kind
    assert part in found.message


def test_an_error_object_in_a_success_is_an_error(serve, connect):
    """A 200 with an error inside is judged by its code."""
    found = fails(serve, connect, says(error("overloaded", "server_error", 503)))
    assert found.kind is ErrorKind.SERVER_ERROR
    assert found.maybe_billed


def test_a_web_page_is_not_the_provider(serve, connect):
    """A captive portal answers 200 with a page: no answer, and nobody pays for it twice."""
    for script in (says("<!doctype html><p>Sign in"), says("hi", content_type="text/html; charset=utf-8")):
        found = fails(serve, connect, script)
        assert (found.kind, found.code) == (ErrorKind.INVALID_RESPONSE, "html")
        assert "not the provider" in found.message


@pytest.mark.parametrize("body", ["", "{", '{"choices": [{"mess', "\xff\xfe", "nonsense"])
def test_a_success_that_is_not_json_was_cut_on_its_way(serve, connect, body):
    """A body that is not whole JSON may go again, but may have been billed."""
    found = fails(serve, connect, says(body.encode("latin-1")))
    assert found.kind is ErrorKind.NETWORK_ERROR
    assert found.maybe_billed


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(serve, connect, status):
    """The key never goes to where a redirect points."""
    other = serve(says(chat()))
    found = fails(serve, connect, says("", f"{status} Moved", location=f"{other.base_url}/chat/completions"))
    assert (found.kind, found.code) == (ErrorKind.INVALID_RESPONSE, "redirect")
    assert "redirects are not followed" in found.message
    assert other.connections == 0


def test_a_gateways_time_out_may_have_been_billed(serve, connect):
    """A gateway that gave up waiting says nothing about the work behind it."""
    assert fails(serve, connect, says("", "504 Gateway Timeout")).maybe_billed
    assert not fails(serve, connect, says("", "503 Unavailable")).maybe_billed


@pytest.mark.parametrize(
    "echo",
    [
        f"Incorrect API key provided: {KEY}. You can find",
        f"Authorization: Bearer {KEY}",
        f"Invalid prompt: {PROMPT}",
        f"Invalid prompt near '{PROMPT[10:35]}' in input",
        "nobody  came\nto   the party is refused",
        "You said: be a pirate, matey, at all times",
    ],
)
def test_errors_never_repeat_key_or_prompt(serve, connect, echo):
    """Whatever the provider echoes, neither key nor prompt is in any form of the error."""
    found = fails(
        serve,
        connect,
        says(error(echo, code=f"x {PROMPT}"), "400 Bad"),
        system="be a pirate, matey, at all times",
    )
    for form in forms_of(found):
        assert KEY not in form
        assert PROMPT[10:35] not in form
        assert "nobody came" not in form
        assert "pirate" not in form


def test_prompts_in_messages_are_looked_for_too(serve, connect):
    """Every text of a conversation counts, parts included."""
    part = {"type": "text", "text": PROMPT}
    for content in (PROMPT, (part,)):
        found = fails(serve, connect, says(error(f"no: {PROMPT}"), "400 Bad"), (Message("user", content),))
        assert "repeats the prompt" in found.message


def test_network_errors_never_carry_the_key(serve, connect):
    """The traceback of a broken connection holds no key and no prompt."""
    found = fails(serve, connect, vanishes)
    text = "".join(traceback.format_exception(found))
    assert KEY not in text
    assert PROMPT not in text


def test_a_long_text_is_cut(serve, connect):
    """At most 200 characters of the provider's text are kept."""
    assert len(fails(serve, connect, says(error("word " * 1000), "400 Bad")).message) < 260


def test_a_refusals_cut_body_does_not_hide_its_status(serve, connect):
    """The status of a refusal says enough, even if the text behind it was cut."""
    whole = http(b'{"error": {"message": "no"}}', "503 Unavailable")

    def cut(exchange) -> None:
        exchange.send(whole[:-5])
        exchange.close()

    found = fails(serve, connect, cut)
    assert (found.kind, found.status) == (ErrorKind.SERVER_ERROR, 503)


@given(st.text(alphabet="abcd ", min_size=20, max_size=60), st.data())
def test_any_run_of_twenty_characters_is_an_echo(prompt, data):
    """However a piece of the prompt is wrapped, 20 characters of it are found."""
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
    """A text that shares nothing with the prompt is kept."""
    assert not echoes(text, iter([prompt]))
