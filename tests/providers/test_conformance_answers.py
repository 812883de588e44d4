"""Answers and errors of all providers."""

from __future__ import annotations

import json
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor

import pytest
from asking import SECRET_PROMPT, ask, fails, forms_of
from raw_server import Exchange, http, says, vanishes

from smartbatch.errors import ErrorKind
from smartbatch.types import Message
from tests.levels import sampled


@pytest.mark.parametrize("status", sampled([301, 302, 303, 307, 308], keep=2))
def test_redirects_are_not_followed(serve, reach, service, status):
    other = serve(says(service.answer("x")))
    found = fails(reach(serve(says("", f"{status} Moved", location=f"{other.base_url}/x"))))
    assert (found.kind, found.code) == (ErrorKind.INVALID_RESPONSE, "redirect")
    assert "redirects are not followed" in found.message
    assert other.connections == 0


def test_a_web_page_is_not_the_provider(serve, reach):
    for script in (says("<!doctype html><p>Sign in"), says("hi", content_type="text/html; charset=utf-8")):
        found = fails(reach(serve(script)))
        assert (found.kind, found.code, found.maybe_billed) == (ErrorKind.INVALID_RESPONSE, "html", True)
        assert "instead of the provider" in found.message


@pytest.mark.parametrize("status", sampled([403, 404, 405]))
def test_an_error_page_is_attributed_to_a_gateway(serve, reach, service, status):
    found = fails(reach(serve(says("<p>No", f"{status} No", content_type="Text/HTML;Charset=UTF-8"))))
    assert (found.code, found.status, found.maybe_billed) == ("html", status, False)
    assert f"a web page arrived ({status}) instead of the provider" in found.message
    assert fails(reach(serve(says(service.error(status, "no"), f"{status} No")))).code != "html"


@pytest.mark.parametrize(
    "body", sampled(["", "{", '{"choices": [{"mess', '{"candidates": [', "\xff\xfe", "nonsense"], keep=3)
)
def test_a_success_that_is_not_json_was_cut_on_its_way(serve, reach, body):
    found = fails(reach(serve(says(body.encode("latin-1")))))
    assert (found.kind, found.code, found.maybe_billed) == (ErrorKind.NETWORK_ERROR, "truncated", True)


def test_a_success_that_says_it_is_an_error_is_one_with_its_reason(serve, reach):
    for status in ("error", "fail"):
        body = {"status": status, "data": "quota of the team exceeded"}
        found = fails(reach(serve(says(json.dumps(body)))))
        assert "quota of the team exceeded" in found.message
        assert found.maybe_billed
    for body in (
        {"status": "error", "data": f"the answer of a model to: {SECRET_PROMPT}"},
        {"status": "error", "data": {"text": "the answer of a model"}},
        {"status": "done", "data": "the answer of a model"},
    ):
        found = fails(reach(serve(says(json.dumps(body)))))
        assert "the answer of a model" not in found.message


@pytest.mark.parametrize("body", sampled(["[1]", "[]", "7", '"x"', "{}", "[" * 100_000], keep=3))
def test_a_success_that_is_no_answer_is_an_error(serve, reach, body):
    found = fails(reach(serve(says(body))))
    assert (found.kind, found.code, found.maybe_billed) == (ErrorKind.INVALID_RESPONSE, "shape", True)


def test_a_gateways_time_out_may_have_been_billed(serve, reach):
    assert fails(reach(serve(says("", "504 Gateway Timeout")))).maybe_billed
    assert not fails(reach(serve(says("", "503 Unavailable")))).maybe_billed


def cut(exchange, body: bytes) -> None:
    exchange.send(body[:-5])
    exchange.close()


def broken_off(exchange, body: bytes) -> None:
    exchange.send(body[:-5])
    exchange.reset()


def held_back(exchange, body: bytes) -> None:
    exchange.send(body[:-5])
    exchange.server.done.wait(30)


UNREADABLE = [
    (cut, {}),
    (broken_off, {}),
    (held_back, {}),
    (Exchange.send, {"content_encoding": "br"}),
    (Exchange.send, {"content_encoding": "gzip"}),
]


@pytest.mark.parametrize(("send", "headers"), sampled(UNREADABLE, keep=3))
def test_a_body_that_cannot_be_read_does_not_hide_a_refusals_status(serve, reach, service, send, headers):
    body = json.dumps(service.error(service.busy, "no")).encode()
    refusal = http(body, f"{service.busy} Busy", retry_after="7", **headers)
    server = serve(lambda exchange: send(exchange, refusal), says(service.answer("Lima")))
    provider = reach(server)
    found = fails(provider, timeout=0.3 if send is held_back else 20.0)
    assert (found.kind, found.status, found.retry_after) == (ErrorKind.SERVER_ERROR, service.busy, 7.0)
    assert ask(provider).text == "Lima"
    assert server.connections == 2


def test_a_refusal_without_a_body_may_be_called_compressed(serve, reach, service):
    refusal = says("", "429 Slow", content_encoding="gzip", retry_after="7")
    server = serve(refusal, says(service.answer("Lima")))
    provider = reach(server)
    found = fails(provider)
    assert (found.kind, found.status, found.retry_after) == (ErrorKind.RATE_LIMIT, 429, 7.0)
    assert ask(provider).text == "Lima"
    assert server.connections == 1


def test_a_call_that_is_closed_while_a_refusals_body_is_read_says_so(serve, reach):
    sent = threading.Event()

    def held_back(exchange) -> None:
        # more than the socket buffers hold, so the head has been read
        exchange.send(http(b" " * 2**24, "401 No")[:-5])
        sent.set()
        exchange.server.done.wait(30)

    provider = reach(serve(held_back))
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(fails, provider, timeout=60.0)
        assert sent.wait(10)
        provider.close()
        assert call.result(timeout=10).code == "closed"


@pytest.mark.parametrize(
    "echo",
    sampled(
        [
            "Incorrect API key provided: {key}. You can find",
            "Authorization: Bearer {key}",
            "https://example.org/v1/models?key={key}",
            f"Invalid prompt: {SECRET_PROMPT}",
            f"Invalid prompt near '{SECRET_PROMPT[10:35]}' in input",
            "nobody  came\nto   the party is refused",
            "You said: be a pirate, matey, at all times",
            "seen the header canary-of-a-header",
        ],
        keep=4,
    ),
)
def test_errors_never_repeat_key_or_prompt(serve, reach, service, echo):
    script = says(service.error(400, echo.format(key=service.key)), "400 Bad")
    provider = reach(serve(script), headers={"x-secret": "canary-of-a-header"})
    found = fails(provider, system="be a pirate, matey, at all times")
    assert found.__context__ is None, "the SDK's error holds the whole request"
    for form in forms_of(found):
        for secret in (service.key, SECRET_PROMPT[10:35], "nobody came", "pirate", "canary-of-a-header"):
            assert secret not in form


def test_prompts_in_messages_are_looked_for_too(serve, reach, service):
    part = {"type": "text", "text": SECRET_PROMPT}
    for content in (SECRET_PROMPT, (part,)):
        provider = reach(serve(says(service.error(400, f"no: {SECRET_PROMPT}"), "400 Bad")))
        assert "repeats the prompt" in fails(provider, (Message("user", content),)).message


def test_a_code_of_the_server_never_repeats_the_prompt(serve, reach, service):
    body = json.dumps(service.error(400, "no")).replace('"any_type"', json.dumps(f"x {SECRET_PROMPT}"))
    body = body.replace('"invalid_request_error"', json.dumps(SECRET_PROMPT)).replace(
        '"ANY"', json.dumps(SECRET_PROMPT)
    )
    for form in forms_of(fails(reach(serve(says(body, "400 Bad"))))):
        assert SECRET_PROMPT[10:35] not in form


def test_network_errors_never_carry_the_key(serve, reach, service):
    text = "".join(traceback.format_exception(fails(reach(serve(vanishes)))))
    assert service.key not in text
    assert SECRET_PROMPT not in text
