"""The kind, reason and origin of an error in the formats of servers, gateways and proxies."""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import ExitStack

import pytest
from asking import KEY, SECRET_PROMPT, ask, begin, fails, forms_of, stream_error, url_of
from raw_server import says

from smartbatch.errors import ErrorKind, ParameterRejected
from smartbatch.providers import AnthropicProvider, GeminiProvider, OpenAIProvider, Provider
from smartbatch.providers.error_bodies import page_title, reason_of
from smartbatch.providers.error_table import kind_of_status
from smartbatch.providers.http.replies import Reply
from tests.levels import sampled

K = ErrorKind
FORBIDDEN = {"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs are not permitted"}


@pytest.fixture
def at():
    with ExitStack() as stack:

        def start(kind, url: str, **options) -> Provider:
            provider = kind("k" * 40, url, **options)
            stack.callback(provider.close)
            return provider

        yield start


FORMATS = [
    ({"error": {"message": "no such tier"}}, "no such tier"),
    ({"error": "no such tier"}, "no such tier"),
    ({"error": ["no such tier", "nor this one"]}, "no such tier; nor this one"),
    ([{"error": {"message": "no such tier"}}], "no such tier"),
    ({"error": {"code": 7, "details": "x", "msg": "no such tier"}}, "no such tier"),
    (
        {"error": "Bad Request", "message": "seed is unknown", "statusCode": 400},
        "Bad Request; seed is unknown",
    ),
    ({"error": "invalid_request", "error_description": "no scope"}, "invalid_request; no scope"),
    ({"errors": [{"code": 10000, "message": "no account"}], "success": False}, "no account"),
    ({"errors": ["no account", "no region"]}, "no account; no region"),
    ({"errors": {"Seed": ["is invalid"], "N": ["is too large"]}}, "Seed: is invalid; N: is too large"),
    ({"errors": {"data": [{"message": "line 3 is bad"}]}}, "line 3 is bad"),
    ({"detail": "Not authenticated here"}, "Not authenticated here"),
    ({"detail": [{**FORBIDDEN, "input": SECRET_PROMPT}]}, "body.seed: Extra inputs are not permitted"),
    ({"detail": {"error": "quota is off"}}, "quota is off"),
    ({"object": "error", "message": {"detail": [FORBIDDEN]}}, "body.seed: Extra inputs are not permitted"),
    (
        {"type": "about:blank", "title": "Bad input", "status": 400, "detail": "seed must go"},
        "Bad input; seed must go",
    ),
    (
        {"title": "Invalid", "invalid-params": [{"name": "seed", "reason": "unknown"}]},
        "Invalid; seed: unknown",
    ),
    (
        {"title": "Invalid", "errors": [{"detail": "unknown", "pointer": "#/seed"}]},
        "Invalid; #/seed: unknown",
    ),
    ({"message": "flat", "code": "bad"}, "flat"),
    ({"code": 17, "msg": "flat"}, "flat"),
    ({"error_code": 336, "error_msg": "flat"}, "flat"),
    ({"base_resp": {"status_code": 1004, "status_msg": "login fail"}}, "login fail"),
    ({"fault": {"faultstring": "Spike arrest", "detail": {"errorcode": "x"}}}, "Spike arrest"),
    ("upstream connect error", "upstream connect error"),
]

NESTED = [
    {"error": {"code": "X", "innererror": {"code": "Y", "message": "seed must go"}}},
    {"error": {"message": {"text": "seed must go"}}},
    {"error": {"message": ["seed must go"]}},
    {"error": {"message": None, "cause": {"cause": {"message": "seed must go"}}}},
    {"error": {"errors": [{"reason": {"text": "seed must go"}}]}},
    {"status": "error", "data": "seed must go"},
    {"Error": {"Message": "seed must go"}},
    {"bad_request": {"explanation": "seed must go"}},
    {"ok": False, "problem": "seed must go", "request": {"messages": [{"role": "user", "content": "a b"}]}},
    {"response": {"status": {"code": 400, "info": {"description": "seed must go"}}}},
    {"message": json.dumps({"detail": "seed must go"})},
    {"error": {"message": json.dumps({"error": {"message": "seed must go"}})}},
    {"result": [{"failures": [{"text": "seed must go"}]}]},
]
HEADLINES = [
    {"message": "Bad Request", "innererror": {"message": "seed must go"}},
    {"message": "Bad Request", "metadata": {"raw": json.dumps({"error": {"message": "seed must go"}})}},
    {"message": "Bad Request", "details": {"explanation": "seed must go"}, "doc_url": "see the docs there"},
]


@pytest.mark.parametrize(("body", "reason"), FORMATS, ids=[json.dumps(body)[:40] for body, _ in FORMATS])
def test_the_error_contains_the_servers_reason(serve, connect, body, reason):
    found = fails(connect(serve(says(json.dumps(body), "400 Bad Request"))))
    assert (found.kind, found.status) == (ErrorKind.CLIENT_ERROR, 400)
    assert found.message.endswith(f": {reason}")
    assert not [form for form in forms_of(found) if "diary" in form]


@pytest.mark.parametrize("body", sampled(NESTED, keep=5))
def test_the_reason_is_found_in_formats_that_nobody_described(serve, reach, body):
    found = fails(reach(serve(says(json.dumps(body), "400 Bad Request"))))
    assert found.message.endswith(": seed must go")
    assert not [form for form in forms_of(found) if "diary" in form]


@pytest.mark.parametrize("error", sampled(HEADLINES, keep=1))
def test_a_headline_is_completed_by_the_reason_inside(serve, connect, error):
    found = fails(connect(serve(says(json.dumps({"error": error}), "400 Bad Request"))))
    assert found.message.endswith(": Bad Request; seed must go")


def test_a_message_that_says_enough_stays_as_it_is(serve, connect):
    error = {"message": "seed must be a number", "innererror": {"message": "trace of the parser"}}
    found = fails(connect(serve(says(json.dumps({"error": error}), "400 Bad Request"))))
    assert found.message.endswith(": seed must be a number")


@pytest.mark.parametrize(
    "body",
    [
        {"cause": {"explanation": f"cannot read {SECRET_PROMPT}"}},
        {"status": "error", "data": f"wrong key {KEY} here"},
        {"received": {"prompt": SECRET_PROMPT, "headers": {"x": f"Bearer {KEY}"}}},
        {"context": [{"role": "user", "content": "a short one"}]},
    ],
)
def test_a_search_shows_no_prompt_and_no_key(serve, connect, body):
    found = fails(connect(serve(says(json.dumps(body), "400 Bad Request"))))
    shown = forms_of(found)
    assert not [form for form in shown if "diary" in form or KEY in form or "a short one" in form]


def test_a_refusal_by_name_is_learned_from_any_nesting(serve, connect):
    body = {"error": {"code": "X", "innererror": {"message": "Unknown parameter: 'seed'"}}}
    provider = connect(serve(says(json.dumps(body), "400 Bad Request")))
    with pytest.raises(ParameterRejected) as caught:
        ask(provider, seed=3)
    assert [name for name, _ in caught.value.omitted] == ["seed"]


def test_a_plain_text_and_a_pages_title_are_reasons(serve, reach):
    plain = says("no healthy upstream", "503 Service Unavailable", content_type="text/plain")
    page = says(
        "<html><head>\n<TITLE class='x'>\n502 Bad&nbsp;Gateway &amp; more </TITLE><body>…",
        "502 Bad Gateway",
        content_type="text/html",
    )
    xml = says("<?xml version='1.0'?><Error><Code>X</Code><Message>No bucket</Message></Error>", "503 No")
    provider = reach(serve(plain, page, xml))
    assert fails(provider).message.endswith(": no healthy upstream")
    assert fails(provider).message.endswith(": 502 Bad Gateway & more")
    assert fails(provider).message.endswith(": No bucket")


def test_a_stream_reports_the_reason_as_well(serve, connect):
    provider = connect(serve(says(json.dumps({"detail": [FORBIDDEN]}), "422 Unprocessable Entity")))
    assert "body.seed: Extra inputs are not permitted" in stream_error(begin(provider)).message


def test_a_reason_shows_neither_the_key_nor_the_prompt_and_is_short(serve, connect):
    said = [
        {"detail": f"the key {KEY} is bad"},
        {"detail": [{"loc": ["body", "messages"], "msg": f"value was {SECRET_PROMPT}"}]},
        {"errors": ["x" * 5000] * 50},
        {"title": f"<b>{SECRET_PROMPT}</b>"},
    ]
    provider = connect(serve(*(says(json.dumps(body), "400 Bad Request") for body in said)))
    for _ in said:
        found = fails(provider)
        assert len(found.message) < 300
        assert not [form for form in forms_of(found) if KEY in form or "diary" in form]


def test_reading_a_large_page_or_body_takes_no_longer_than_a_small_one():
    begun = time.process_time()
    for body in (b"<title " * 900_000, b"<title>" + b"<" * 6_000_000):
        assert len(page_title(Reply(502, {}, body))) <= 2000
    deep = {"errors": [{"message": "m" * 100_000}] * 10_000}
    for _ in range(2000):
        deep = {"error": deep}
    assert len(reason_of({"errors": ["y"] * 100_000, "detail": deep})) <= 2000
    assert time.process_time() - begun < 2.0


def test_a_base_url_without_its_version_is_named_with_the_one_to_try(serve, at):
    answers = [
        ("404 Not Found", json.dumps({"detail": "Not Found"}), "application/json"),
        ("404 Not Found", "404 page not found", "text/plain"),
        ("405 Method Not Allowed", json.dumps({"detail": "Method Not Allowed"}), "application/json"),
        ("200 OK", json.dumps({"error": "Unexpected endpoint or method. (POST /chat/completions)"}), ""),
        ("404 Not Found", json.dumps({"error": {"message": "Invalid URL (POST /chat/completions)"}}), ""),
        ("404 Not Found", "", ""),
        ("404 Not Found", "<html><title>404 Not Found</title>", "text/html"),
        ("200 OK", "Ollama is running", "text/plain"),
        ("200 OK", json.dumps({"status": "ok"}), ""),
        ("200 OK", "[1]", ""),
    ]
    server = serve(*(says(body, status, content_type=kind) for status, body, kind in answers))
    provider = at(OpenAIProvider, url_of(server))
    for _ in answers:
        assert f"try base_url={server.base_url}" in fails(provider).message


@pytest.mark.parametrize("path", ["/chat/completions", "/v1/chat/completions", "/v1/embeddings/"])
def test_the_address_of_a_call_in_place_of_the_base_url_is_named_too(serve, at, path):
    server = serve(says(json.dumps({"detail": "Not Found"}), "404 Not Found"))
    wrong = url_of(server) + path
    message = fails(at(OpenAIProvider, wrong)).message
    assert message.endswith(f"{wrong.rstrip('/')} is the address of a call; try base_url={server.base_url}")


@pytest.mark.parametrize("kind", [AnthropicProvider, GeminiProvider])
def test_a_version_too_many_is_named_too(serve, kind):
    server = serve(says(json.dumps({"detail": "Not Found"}), "404 Not Found"))
    provider = kind("k" * 40, server.base_url)
    try:
        assert (
            f"{server.base_url} ends with a version; try base_url={url_of(server)}" in fails(provider).message
        )
    finally:
        provider.close()


def test_a_missing_model_is_not_taken_for_a_wrong_address(serve, at):
    server = serve(says(json.dumps({"error": {"message": "The model `m` does not exist"}}), "404 Not Found"))
    found = fails(at(OpenAIProvider, url_of(server)))
    assert found.message == "the provider answered 404: The model `m` does not exist"


@pytest.mark.parametrize(
    ("message", "hint"),
    [("No such File object: file-1", False), ("batch_1 was deleted", False), ("Resource not found", True)],
)
def test_a_missing_file_or_batch_is_not_taken_for_a_wrong_address(serve, connect, message, hint):
    server = serve(says(json.dumps({"error": {"message": message}}), "404 Not Found"))
    found = fails(connect(server))
    assert found.message.endswith(f"check the base URL {server.base_url}" if hint else message)


def test_a_page_is_named_by_its_title_and_the_address(serve, reach, service):
    server = serve(says("<html><title>Sign in to Café</title>", content_type="text/html"))
    found = fails(reach(server))
    assert (found.kind, found.code) == (ErrorKind.INVALID_RESPONSE, "html")
    assert 'titled "Sign in to Café"' in found.message
    assert f"check the base URL {service.url(server)}, or sign in to the network" in found.message


def test_a_redirect_names_both_addresses_without_what_may_be_secret(serve, reach, service):
    target = "https://me:hunter22@login.example.com/sso/start?token=s3cret&u=1#frag"
    server = serve(says("", "302 Found", location=target))
    found = fails(reach(server))
    assert f"a redirect from {service.url(server)} to https://login.example.com/sso/start:" in found.message
    assert not [form for form in forms_of(found) if "hunter22" in form or "s3cret" in form]


def test_an_address_where_nobody_listens_is_named(at):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    for place in (f"127.0.0.1:{port}", "nobody.invalid"):
        found = fails(at(OpenAIProvider, f"http://{place}/v1", allow_http=True))
        assert (found.kind, found.maybe_billed) == (ErrorKind.NETWORK_ERROR, False)
        assert place in found.message
        assert "check" in found.message


def test_tls_to_a_server_without_it_suggests_http(at):
    def answers(listener: socket.socket) -> None:
        sock, _ = listener.accept()
        sock.recv(100)
        sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        sock.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answers, args=(listener,), daemon=True)
        thread.start()
        found = fails(at(OpenAIProvider, f"https://127.0.0.1:{listener.getsockname()[1]}/v1"))
        thread.join(5)
    assert (found.kind, found.code) == (ErrorKind.CLIENT_ERROR, "tls")
    assert "try http:// in it" in found.message


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
    assert kind_of_status(status, code, type_, message) is kind
