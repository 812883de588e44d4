"""Requests, answers and settings of the Gemini API over HTTP, through the real SDK."""

from __future__ import annotations

import json
import ssl

import httpx2
import pytest
from asking import ask, fails
from gemini_asking import GEMINI_KEY, MODEL, gemini_error, says_gemini
from raw_server import hangs, says

from smartbatch.errors import ErrorKind, InvalidRequest
from smartbatch.providers import GeminiProvider
from smartbatch.types import Embedding, Generation, Message, Request, Tool, Usage
from tests.levels import sampled

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


def sent(serve, connect_gemini, prompt="hi", **params):
    server = serve(says(says_gemini("x")))
    ask(connect_gemini(server), prompt, **params)
    return server.requests[0].json()


def refused(model: str = MODEL, prompt="hi", **params) -> InvalidRequest:
    request = Request(prompt=prompt, params=Generation(**params))
    with pytest.raises(InvalidRequest) as caught:
        GeminiProvider(GEMINI_KEY).check(request, model=model)
    return caught.value


def test_an_answer_is_text_usage_and_ids(serve, connect_gemini):
    answer = ask(connect_gemini(serve(says(says_gemini("Li", "ma")))))
    assert (answer.text, answer.finish_reason) == ("Lima", "stop")
    assert answer.usage == Usage(31, 78, cached_tokens=5, reasoning_tokens=64)
    assert (answer.model, answer.provider_request_id) == ("gemini-3.8-flash-001", "r-1")
    assert answer.limits is None


def test_the_key_travels_in_a_header_and_the_service_learns_the_time_out(serve, connect_gemini):
    server = serve(says(says_gemini("x")))
    ask(connect_gemini(server), timeout=7.2)
    request = server.requests[0]
    assert request.target == "/v1/models/gemini-3.8-flash:generateContent"
    assert request.headers["x-goog-api-key"] == GEMINI_KEY
    assert GEMINI_KEY not in request.target
    assert request.headers["x-server-timeout"] == "8"
    assert request.headers["x-goog-api-client"].startswith("google-genai-sdk/")
    assert request.json() == {"contents": [{"role": "user", "parts": [{"text": "Capital of Peru?"}]}]}
    assert len(server.requests) == 1


def test_parameters_have_the_apis_names(serve, connect_gemini):
    body = sent(
        serve,
        connect_gemini,
        temperature=0.0,
        top_p=0.9,
        max_tokens=50,
        seed=7,
        stop=("END",),
        system="Briefly.",
    )
    assert body["generationConfig"] == {
        "temperature": 0.0,
        "topP": 0.9,
        "maxOutputTokens": 50,
        "seed": 7,
        "stopSequences": ["END"],
    }
    assert body["systemInstruction"] == {"parts": [{"text": "Briefly."}]}


def test_a_schema_is_sent_natively(serve, connect_gemini):
    config = sent(serve, connect_gemini, schema=SCHEMA)["generationConfig"]
    assert config == {"responseMimeType": "application/json", "responseJsonSchema": SCHEMA}


def test_a_json_object_is_a_type_of_answer(serve, connect_gemini):
    config = sent(serve, connect_gemini, response_format={"type": "json_object"})["generationConfig"]
    assert config == {"responseMimeType": "application/json"}
    assert "generationConfig" not in sent(serve, connect_gemini, response_format={"type": "text"})


def test_conversations_have_two_roles_and_an_instruction(serve, connect_gemini):
    body = sent(
        serve,
        connect_gemini,
        (
            Message("system", "One."),
            Message(
                "user", ({"type": "text", "text": "Hi"}, {"inlineData": {"mimeType": "a/b", "data": "eA=="}})
            ),
            Message("assistant", "Yes?"),
            Message("developer", "Two."),
            Message("user", "Go"),
        ),
        system="Zero.",
    )
    assert body["systemInstruction"] == {"parts": [{"text": "Zero."}, {"text": "One."}, {"text": "Two."}]}
    assert body["contents"] == [
        {"role": "user", "parts": [{"text": "Hi"}, {"inlineData": {"mimeType": "a/b", "data": "eA=="}}]},
        {"role": "model", "parts": [{"text": "Yes?"}]},
        {"role": "user", "parts": [{"text": "Go"}]},
    ]


def test_further_fields_are_merged(serve, connect_gemini):
    body = sent(
        serve,
        connect_gemini,
        temperature=0.5,
        extra={"generation_config": {"thinkingConfig": {"thinkingBudget": 0}}, "serviceTier": "flex"},
    )
    assert body["generationConfig"] == {"temperature": 0.5, "thinkingConfig": {"thinkingBudget": 0}}
    assert body["serviceTier"] == "flex"


@pytest.mark.parametrize(
    ("request_", "field", "part"),
    [
        (
            {"response_format": {"type": "json_schema"}},
            "response_format",
            "json_object or text as response_format; pass a JSON schema as schema=",
        ),
        ({"tools": (Tool("3d", parameters={"type": "object"}),)}, "tools", "begin with a letter"),
        ({"prompt": (Message("system", "x"),)}, "prompt", "needs a user message"),
        ({"extra": {"contents": []}}, "extra", "contents"),
        ({"extra": {"model": "other"}}, "extra", "pass model= instead"),
        ({"extra": {"generationConfig": {"candidateCount": 2}}}, "extra", "several candidates"),
        ({"extra": {"generationConfig": 3}}, "extra", "mapping"),
        ({"schema": {}, "extra": {"generationConfig": {"responseMimeType": "text/plain"}}}, "extra", "twice"),
        ({"schema": {}, "extra": {"generation_config": {"response_schema": {}}}}, "extra", "twice"),
        (
            {
                "response_format": {"type": "json_object"},
                "extra": {"generationConfig": {"responseJsonSchema": {}}},
            },
            "extra",
            "twice",
        ),
    ],
)
def test_what_cannot_be_sent_is_refused_before(request_, field, part):
    found = refused(**request_)
    assert found.field == field
    assert part in str(found)


@pytest.mark.parametrize("model", ["", "a b", "m?key=x", "../m", "m:generateContent", "x/m"])
def test_a_models_name_cannot_change_the_address(model):
    assert refused(model).field == "model"


def test_generation_parameters_do_not_stand_in_the_way_of_vectors():
    request = Request(prompt="x", embedding=Embedding())
    GeminiProvider(GEMINI_KEY).check(request, model="gemini-embedding-001")


@pytest.mark.parametrize(
    ("reason", "finish"),
    sampled(
        [
            ("STOP", "stop"),
            ("MAX_TOKENS", "length"),
            ("SAFETY", "content_filter"),
            ("RECITATION", "content_filter"),
            ("BLOCKLIST", "content_filter"),
            ("PROHIBITED_CONTENT", "content_filter"),
            ("SPII", "content_filter"),
            ("CONTINUATION", "length"),
            ("LANGUAGE", "language"),
            ("MALFORMED_FUNCTION_CALL", "malformed_function_call"),
            ("OTHER", "other"),
            ("SOMETHING_NEW", "something_new"),
            ("FINISH_REASON_UNSPECIFIED", "unknown"),
            (None, "unknown"),
            (17, "unknown"),
        ],
        keep=7,
    ),
)
def test_finish_reasons(serve, connect_gemini, reason, finish):
    server = serve(says(says_gemini("Li", finish=reason, continuationToken="t")))
    answer = ask(connect_gemini(server))
    assert (answer.text, answer.finish_reason) == ("Li", finish)
    assert len(server.requests) == 1


def test_a_blocked_prompt_is_an_empty_answer_with_its_reason(serve, connect_gemini):
    blocked = {
        "promptFeedback": {"blockReason": "PROHIBITED_CONTENT"},
        "usageMetadata": {"promptTokenCount": 9, "totalTokenCount": 9},
        "modelVersion": "m",
    }
    answer = ask(connect_gemini(serve(says(blocked))))
    assert (answer.text, answer.finish_reason, answer.usage) == ("", "content_filter", Usage(9, 0))


def test_an_answer_cut_while_thinking_is_empty_and_long(serve, connect_gemini):
    body = says_gemini(finish="MAX_TOKENS")
    del body["candidates"][0]["content"]
    answer = ask(connect_gemini(serve(says(body))))
    assert (answer.text, answer.finish_reason) == ("", "length")


@pytest.mark.parametrize(
    ("given", "usage"),
    sampled(
        [
            ({"promptTokenCount": 7}, Usage(7, 0)),
            ({"promptTokenCount": 7, "candidatesTokenCount": 2}, Usage(7, 2)),
            ({"promptTokenCount": 7, "thoughtsTokenCount": 3}, Usage(7, 3, reasoning_tokens=3)),
            ({"promptTokenCount": 7, "toolUsePromptTokenCount": 4, "candidatesTokenCount": 1}, Usage(11, 1)),
            ({"promptTokenCount": 7, "cachedContentTokenCount": 9}, Usage(7, 0, cached_tokens=7)),
            ({}, None),
            (None, None),
            ({"promptTokenCount": -1}, None),
            ({"promptTokenCount": 10**12}, None),
            ({"promptTokenCount": 7, "candidatesTokenCount": "2"}, None),
            ("many", None),
        ],
        keep=5,
    ),
)
def test_counters_that_are_zero_are_left_out_on_the_wire(serve, connect_gemini, given, usage):
    assert ask(connect_gemini(serve(says(says_gemini("x", usageMetadata=given))))).usage == usage


def test_tokens_of_audio_and_images_are_read_from_the_details(serve, connect_gemini):
    def details(**tokens):
        return [{"modality": name, "tokenCount": count} for name, count in tokens.items()]

    given = {
        "promptTokenCount": 90,
        "promptTokensDetails": details(TEXT=26, AUDIO=64),
        "cachedContentTokenCount": 40,
        "cacheTokensDetails": details(AUDIO=30, TEXT=10),
        "candidatesTokenCount": 1300,
        "candidatesTokensDetails": [*details(IMAGE=1290, AUDIO=2), None],
    }
    usage = ask(connect_gemini(serve(says(says_gemini("x", usageMetadata=given))))).usage
    assert usage == Usage(
        90,
        1300,
        40,
        audio_tokens=64,
        cached_audio_tokens=30,
        output_audio_tokens=2,
        output_image_tokens=1290,
    )


def test_a_lone_surrogate_is_replaced(serve, connect_gemini):
    body = json.dumps(says_gemini("a\\ud800b")).replace("\\\\ud800", "\\ud800")
    assert ask(connect_gemini(serve(says(body)))).text == "a\ufffdb"


NO_ANSWERS = (
    *("{}", '{"candidates": []}', '{"candidates": 7}', '{"candidates": [7]}'),
    '{"candidates": [{"content": {"parts": [7]}}]}',
    '{"promptFeedback": {"blockReason": "BLOCK_REASON_UNSPECIFIED"}}',
)


@pytest.mark.parametrize("body", NO_ANSWERS)
def test_successes_that_are_no_answers(serve, connect_gemini, body):
    error = fails(connect_gemini(serve(says(body))))
    found = error
    assert (found.kind, found.code, found.maybe_billed) == (ErrorKind.INVALID_RESPONSE, "shape", True)


def test_a_candidate_without_parts_is_an_empty_answer(serve, connect_gemini):
    body = '{"candidates": [{"content": []}], "promptFeedback": 1}'
    assert ask(connect_gemini(serve(says(body)))).text == ""


def test_an_error_object_in_a_success_is_an_error(serve, connect_gemini):
    error = fails(connect_gemini(serve(says(gemini_error(503, "UNAVAILABLE")))))
    assert (error.kind, error.status) == (ErrorKind.SERVER_ERROR, 503)
    assert error.maybe_billed


@pytest.mark.parametrize("status", ["201 Created", "204 No Content"])
def test_only_200_is_success(serve, connect_gemini, status):
    body = b"" if status.startswith("204") else json.dumps(says_gemini("x")).encode()
    error = fails(connect_gemini(serve(says(body, status))))
    assert error.kind is ErrorKind.INVALID_RESPONSE


@pytest.mark.parametrize("status", ["429 X", "500 X", "503 X", "504 X"])
def test_refusals_are_not_retried_by_the_sdk(serve, connect_gemini, status):
    server = serve(says("{}", status))
    fails(connect_gemini(server))
    assert len(server.requests) == 1


def test_cookies_are_not_kept(serve, connect_gemini):
    server = serve(says(says_gemini("x"), set_cookie="who=me"))
    provider = connect_gemini(server)
    ask(provider)
    ask(provider)
    assert "cookie" not in server.requests[1].headers


@pytest.mark.parametrize(
    ("error", "kind", "code", "maybe_billed"),
    [
        (httpx2.ReadTimeout(""), ErrorKind.TIMEOUT, "deadline", True),
        (httpx2.ReadError(""), ErrorKind.NETWORK_ERROR, "cut", True),
        (httpx2.UnsupportedProtocol(""), ErrorKind.CLIENT_ERROR, "sdk", False),
        (httpx2.InvalidURL(""), ErrorKind.CLIENT_ERROR, "sdk", False),
        (ConnectionResetError(), ErrorKind.NETWORK_ERROR, "cut", True),
        (TimeoutError(), ErrorKind.TIMEOUT, "deadline", True),
        (KeyError("x"), ErrorKind.UNKNOWN, None, False),
    ],
)
def test_raw_errors_have_a_meaning(connect_gemini, serve, error, kind, code, maybe_billed):
    found = connect_gemini(serve(hangs)).classify(error)
    assert (found.kind, found.code, found.maybe_billed) == (kind, code, maybe_billed)


def test_the_sdk_loads_no_certificates_of_its_own(serve, connect_gemini, monkeypatch):
    loaded = []
    monkeypatch.setattr(ssl, "create_default_context", lambda **_: loaded.append(1))
    ask(connect_gemini(serve(says(says_gemini("x")))))
    assert loaded == []


def test_the_environment_of_the_real_sdk_is_honoured(serve, monkeypatch):
    server = serve(says(says_gemini("x")))
    monkeypatch.setenv("GEMINI_API_KEY", "AIzaOther-1234567890")
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", f"http://127.0.0.1:{server.port}/gateway/")
    monkeypatch.setenv("GOOGLE_GENAI_API_VERSION", "beta")
    monkeypatch.setenv("GOOGLE_GENAI_USE_VERTEXAI", "true")
    ask(first := GeminiProvider())
    monkeypatch.setenv("GOOGLE_API_KEY", f" {GEMINI_KEY}\n")
    ask(second := GeminiProvider())
    first.close()
    second.close()
    assert [request.headers["x-goog-api-key"] for request in server.requests] == [
        "AIzaOther-1234567890",
        GEMINI_KEY,
    ]
    assert server.requests[0].target == "/gateway/v1beta/models/gemini-3.8-flash:generateContent"


def test_own_headers_are_sent(serve, connect_gemini):
    server = serve(says(says_gemini("x")))
    ask(connect_gemini(server, headers={"x-gateway": "g"}, api_version="v1beta"))
    assert server.requests[0].headers["x-gateway"] == "g"
    assert server.requests[0].target.startswith("/v1beta/")


def test_the_scope_tells_accounts_apart_and_shows_no_key():
    scopes = [
        GeminiProvider(GEMINI_KEY).scope,
        GeminiProvider("AIzaOther-1234567890").scope,
        GeminiProvider(GEMINI_KEY, "https://gateway.example").scope,
    ]
    assert len(set(scopes)) == 3
    assert scopes[0].startswith("gemini:generativelanguage.googleapis.com:")
    assert scopes[0] == GeminiProvider(GEMINI_KEY, api_version="v1beta").scope
    assert GEMINI_KEY not in scopes[0]
