"""What goes to the Gemini API and what its answers mean, over real HTTP and through the real SDK."""

from __future__ import annotations

import json

import pytest
from asking import ask
from gemini_asking import GEMINI_KEY, MODEL, gemini_error, says_gemini
from raw_server import says

from smartbatch.errors import ErrorKind, InvalidRequest, ProviderError
from smartbatch.providers.gemini.provider import GeminiProvider
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
    """The answer's model and id come from the body; thoughts are billed as output."""
    answer = ask(connect_gemini(serve(says(says_gemini("Li", "ma")))))
    assert (answer.text, answer.finish_reason) == ("Lima", "stop")
    assert answer.usage == Usage(31, 78, cached_tokens=5, reasoning_tokens=64)
    assert (answer.model, answer.provider_request_id) == ("gemini-3.8-flash-001", "r-1")
    assert answer.limits is None


def test_the_key_travels_in_a_header_and_the_service_learns_the_time_out(serve, connect_gemini):
    """The address holds model and method only; the version is the SDK's; nothing is sent twice."""
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
    """A JSON schema needs the type of the answer next to it."""
    config = sent(serve, connect_gemini, schema=SCHEMA)["generationConfig"]
    assert config == {"responseMimeType": "application/json", "responseJsonSchema": SCHEMA}


def test_a_json_object_is_a_type_of_answer(serve, connect_gemini):
    config = sent(serve, connect_gemini, response_format={"type": "json_object"})["generationConfig"]
    assert config == {"responseMimeType": "application/json"}
    assert "generationConfig" not in sent(serve, connect_gemini, response_format={"type": "text"})


def test_conversations_have_two_roles_and_an_instruction(serve, connect_gemini):
    """The assistant is the model; system and developer messages join the instruction."""
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
    """A generation config in ``extra`` joins the client's own, in either spelling."""
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
        ({"extra": {"model": "other"}}, "extra", "model= itself"),
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
    """Known reasons have the library's words, others their own; a continuation is not followed."""
    server = serve(says(says_gemini("Li", finish=reason, continuationToken="t")))
    answer = ask(connect_gemini(server))
    assert (answer.text, answer.finish_reason) == ("Li", finish)
    assert len(server.requests) == 1


def test_a_blocked_prompt_is_an_empty_answer_with_its_reason(serve, connect_gemini):
    """The service answers 200 without a candidate; the caller sees a filter, not a broken answer."""
    blocked = {
        "promptFeedback": {"blockReason": "PROHIBITED_CONTENT"},
        "usageMetadata": {"promptTokenCount": 9, "totalTokenCount": 9},
        "modelVersion": "m",
    }
    answer = ask(connect_gemini(serve(says(blocked))))
    assert (answer.text, answer.finish_reason, answer.usage) == ("", "content_filter", Usage(9, 0))


def test_thoughts_are_not_part_of_the_text(serve, connect_gemini):
    body = says_gemini("Lima")
    body["candidates"][0]["content"]["parts"].insert(0, {"text": "Hmm, Peru …", "thought": True})
    assert ask(connect_gemini(serve(says(body)))).text == "Lima"


def test_an_answer_cut_while_thinking_is_empty_and_long(serve, connect_gemini):
    """All tokens went into thoughts: no content at all, and the reason says so."""
    body = says_gemini(finish="MAX_TOKENS")
    del body["candidates"][0]["content"]
    answer = ask(connect_gemini(serve(says(body))))
    assert (answer.text, answer.finish_reason) == ("", "length")


def test_a_function_call_is_said(serve, connect_gemini):
    """Nothing is called; the finish reason tells that the model wanted to."""
    body = says_gemini("")
    body["candidates"][0]["content"]["parts"] = [{"functionCall": {"name": "f", "args": {}}}]
    server = serve(says(body))
    assert ask(connect_gemini(server), extra={"tools": [{}]}).finish_reason == "tool_calls"
    assert len(server.requests) == 1


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
    """What is missing is zero; no usage, or an absurd one, is none: an estimate takes its place."""
    assert ask(connect_gemini(serve(says(says_gemini("x", usageMetadata=given))))).usage == usage


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
    """A 200 is looked at: empty, cut and foreign bodies are errors that may have been billed."""
    with pytest.raises(ProviderError) as caught:
        ask(connect_gemini(serve(says(body))))
    found = caught.value
    assert (found.kind, found.code, found.maybe_billed) == (ErrorKind.INVALID_RESPONSE, "shape", True)


def test_a_candidate_without_parts_is_an_empty_answer(serve, connect_gemini):
    body = '{"candidates": [{"content": []}], "promptFeedback": 1}'
    assert ask(connect_gemini(serve(says(body)))).text == ""


def test_an_error_object_in_a_success_is_an_error(serve, connect_gemini):
    with pytest.raises(ProviderError) as caught:
        ask(connect_gemini(serve(says(gemini_error(503, "UNAVAILABLE")))))
    assert (caught.value.kind, caught.value.status) == (ErrorKind.SERVER_ERROR, 503)
    assert caught.value.maybe_billed


@pytest.mark.parametrize("status", ["201 Created", "204 No Content"])
def test_only_200_is_success(serve, connect_gemini, status):
    body = b"" if status.startswith("204") else json.dumps(says_gemini("x")).encode()
    with pytest.raises(ProviderError) as caught:
        ask(connect_gemini(serve(says(body, status))))
    assert caught.value.kind is ErrorKind.INVALID_RESPONSE
