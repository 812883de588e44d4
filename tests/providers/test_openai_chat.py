"""Chat completions: requests, answers and settings."""

from __future__ import annotations

import json

import pytest
from asking import KEY, ask, fails
from raw_server import chat, says

from smartbatch.core.preparation.class_schemas import schema_of
from smartbatch.errors import ConfigError, ErrorKind, InvalidRequest
from smartbatch.providers import OpenAIProvider
from smartbatch.types import Generation, Message, Request, Usage


def test_a_text_becomes_one_user_message(serve, connect):
    server = serve(says(chat()))
    answer = ask(connect(server))
    sent = server.requests[0]
    assert sent.head.startswith("POST /v1/chat/completions HTTP/1.1")
    assert sent.headers["authorization"] == f"Bearer {KEY}"
    assert sent.json() == {
        "model": "gpt-5-mini",
        "messages": [{"role": "user", "content": "Capital of Peru?"}],
    }
    assert answer.text == "Lima"
    assert answer.usage == Usage(31, 78, 5, 64, cache_write_tokens=20)
    assert answer.finish_reason == "stop"
    assert answer.model == "gpt-5-mini-2026-01-01"


def test_every_parameter_reaches_the_body(serve, connect):
    server = serve(says(chat()))
    ask(
        connect(server),
        system="Answer briefly.",
        max_tokens=20,
        temperature=0.5,
        top_p=0.9,
        stop=("END",),
        seed=7,
        schema={"type": "object"},
        extra={"reasoning_effort": "low"},
    )
    assert server.requests[0].json() == {
        "model": "gpt-5-mini",
        "messages": [
            {"role": "system", "content": "Answer briefly."},
            {"role": "user", "content": "Capital of Peru?"},
        ],
        "max_tokens": 20,
        "temperature": 0.5,
        "top_p": 0.9,
        "stop": ["END"],
        "seed": 7,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "strict": False, "schema": {"type": "object"}},
        },
        "reasoning_effort": "low",
    }


def _closed(**properties):
    names = list(properties)
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        ({"type": "object", "properties": {}, "required": [], "additionalProperties": False}, True),
        (schema_of(Usage)[0], True),
        ({"type": "object", "properties": {"a": {}}, "additionalProperties": False}, False),
        ({"type": "object", "additionalProperties": {"type": "string"}}, False),
        ({"type": "array", "items": {"type": "object"}}, False),
        ({"type": ["object", "null"]}, False),
        (_closed(default={"type": "object"}), False),
        (_closed(properties={"type": "object"}), False),
        (_closed(default={"type": "string"}, properties={"type": "string"}, type={"const": 1}), True),
        ({**_closed(a={"$ref": "#/$defs/enum"}), "$defs": {"enum": {"type": "object"}}}, False),
        ({**_closed(a={"type": "string"}), "examples": [{"properties": {"a": 1}}]}, True),
    ],
)
def test_strict_mode_is_asked_for_where_the_schema_allows_it(serve, connect, schema, strict):
    server = serve(says(chat()))
    ask(connect(server), schema=schema)
    assert server.requests[0].json()["response_format"]["json_schema"]["strict"] is strict


def test_messages_and_content_parts_go_out_as_they_are(serve, connect):
    part = {"type": "image_url", "image_url": {"url": "data:,"}}
    server = serve(says(chat()))
    ask(connect(server), (Message("user", "a"), Message("assistant", "b"), Message("user", (part,))))
    assert server.requests[0].json()["messages"] == [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": [part]},
    ]


@pytest.mark.parametrize(
    ("changes", "text", "finish"),
    [
        ({"finish_reason": "length"}, "Lima", "length"),
        ({"finish_reason": "model_length"}, "Lima", "length"),
        ({"finish_reason": "content_filter"}, "Lima", "content_filter"),
        ({"finish_reason": "function_call"}, "Lima", "tool_calls"),
        ({"finish_reason": None}, "Lima", "stop"),
        ({"error": {"message": "", "code": None}}, "Lima", "stop"),
        ({"finish_reason": "eos_token"}, "Lima", "eos_token"),
        ({"finish_reason": "<b>\x1b[31m"}, "Lima", "unknown"),
        ({"message": {"content": None, "refusal": "I cannot."}}, "I cannot.", "refusal"),
        ({"message": {"content": None}}, "", "stop"),
        ({"message": {"content": ""}}, "", "stop"),
        ({"message": {"content": [{"type": "text", "text": "Li"}, {"text": "ma"}, "!"]}}, "Lima!", "stop"),
        ({"message": {"content": "a\ud800b"}}, "a\ufffdb", "stop"),
    ],
)
def test_the_shapes_of_an_answer(serve, connect, changes, text, finish):
    choice = {"index": 0, "finish_reason": "stop", "message": {"content": "Lima"}} | changes
    answer = ask(connect(serve(says(chat(choices=[choice])))))
    assert (answer.text, answer.finish_reason) == (text, finish)


@pytest.mark.parametrize(
    ("changes", "code", "kind"),
    [
        ({"finish_reason": "error"}, "error", ErrorKind.SERVER_ERROR),
        (
            {"finish_reason": "error", "error": {"code": 502, "message": "gone"}},
            "502",
            ErrorKind.SERVER_ERROR,
        ),
        ({"error": {"code": 429, "message": "slow"}}, "429", ErrorKind.RATE_LIMIT),
        ({"error": {"message": "gone"}}, None, ErrorKind.SERVER_ERROR),
        ({"error": "insufficient credits"}, None, ErrorKind.NO_MONEY),
        (
            {"finish_reason": "insufficient_system_resource"},
            "insufficient_system_resource",
            ErrorKind.SERVER_ERROR,
        ),
        ({"finish_reason": "abort"}, "abort", ErrorKind.SERVER_ERROR),
    ],
)
def test_half_an_answer_is_the_failure_that_ended_it(serve, connect, changes, code, kind):
    choice = {"index": 0, "finish_reason": "stop", "message": {"content": "Li"}} | changes
    error = fails(connect(serve(says(chat(choices=[choice])))))
    assert (error.kind, error.code, error.maybe_billed) == (kind, code, True)
    assert error.usage == Usage(31, 78, 5, 64, cache_write_tokens=20)


@pytest.mark.parametrize(
    "usage",
    [
        None,
        {},
        [],
        {"prompt_tokens": -1, "completion_tokens": 1},
        {"prompt_tokens": 1e30, "completion_tokens": 1},
        {"prompt_tokens": True, "completion_tokens": 1},
        {"prompt_tokens": 10**12, "completion_tokens": 1},
        {"prompt_tokens": "12", "completion_tokens": 1},
    ],
)
def test_missing_or_absurd_usage_is_no_usage(serve, connect, usage):
    assert ask(connect(serve(says(chat(usage=usage))))).usage is None


@pytest.mark.parametrize(
    ("details", "total", "output", "reasoning"),
    [
        ({"reasoning_tokens": 90}, 105, 95, 90),
        ({"reasoning_tokens": 2}, 15, 5, 2),
        ({"reasoning_tokens": 2}, 40, 5, 2),
        (None, 105, 95, 90),
        (None, 15, 5, 0),
        (None, 3, 5, 0),
    ],
)
def test_reasoning_that_only_the_total_counts_is_output(serve, connect, details, total, output, reasoning):
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": total}
    usage |= {"completion_tokens_details": details}
    found = ask(connect(serve(says(chat(usage=usage))))).usage
    assert found == Usage(10, output, reasoning_tokens=reasoning)


@pytest.mark.parametrize(
    "named",
    [
        {"prompt_tokens_details": {"cached_tokens": 8}},
        {"prompt_cache_hit_tokens": 8, "prompt_cache_miss_tokens": 2},
        {"cached_tokens": 8},
        {"cached_tokens": 8, "prompt_tokens_details": {"cached_tokens": 0}},
    ],
)
def test_cached_tokens_are_read_by_each_of_their_names(serve, connect, named):
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15, **named}
    assert ask(connect(serve(says(chat(usage=usage))))).usage == Usage(10, 5, cached_tokens=8)


def test_audio_tokens_are_read_from_the_details(serve, connect):
    usage = {"prompt_tokens": 70, "completion_tokens": 45, "total_tokens": 115}
    usage |= {"prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 60}}
    usage |= {"completion_tokens_details": {"audio_tokens": 40, "text_tokens": 5}}
    found = ask(connect(serve(says(chat(usage=usage))))).usage
    assert found == Usage(70, 45, audio_tokens=60, output_audio_tokens=40)


@pytest.mark.parametrize(
    ("others", "cached"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 9}}, 9),
        ({"cache_read_input_tokens": 9, "cache_creation_input_tokens": 0}, 0),
        ({"citation_tokens": 9}, 0),
    ],
)
def test_a_total_that_another_count_explains_is_no_output(serve, connect, others, cached):
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 24, **others}
    assert ask(connect(serve(says(chat(usage=usage))))).usage == Usage(10, 5, cached)


@pytest.mark.parametrize(
    "body",
    [
        chat(choices=None),
        chat(choices=[]),
        chat(choices=[None]),
        chat(choices=[{"message": None}]),
        chat(choices=[{"message": {"content": 3}}]),
        chat(choices={"0": 1}),
        {},
        "[1]",
        "null",
        "[" * 5000 + "]" * 5000,
    ],
)
def test_json_of_another_shape_is_an_invalid_response(serve, connect, body):
    error = fails(connect(serve(says(body))))
    assert error.kind is ErrorKind.INVALID_RESPONSE
    assert error.maybe_billed


def test_tokens_of_an_unusable_answer_are_still_told(serve, connect):
    error = fails(connect(serve(says(chat(choices=[])))))
    assert error.usage == Usage(31, 78, 5, 64, cache_write_tokens=20)


def test_limits_and_the_request_id_are_read(serve, connect):
    answer = ask(
        connect(
            serve(
                says(
                    chat(),
                    x_request_id="req_9",
                    x_ratelimit_limit_requests="5000",
                    x_ratelimit_reset_tokens="6m0s",
                )
            )
        )
    )
    assert answer.provider_request_id == "req_9"
    assert answer.limits.requests_limit == 5000
    assert answer.limits.tokens_reset == 360


@pytest.mark.parametrize("hostile", ["x" * 200, "a b", "a\tb", "<script>", "é"])
def test_hostile_request_ids_are_dropped(serve, connect, hostile):
    server = serve(lambda e: e.send(says_with_id(hostile)))
    assert ask(connect(server)).provider_request_id is None


def says_with_id(value: str) -> bytes:
    body = json.dumps(chat()).encode()
    head = f"HTTP/1.1 200 OK\r\nx-request-id: {value}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"stop": ("a", "b", "c", "d", "e")}, "stop"),
        ({"extra": {"model": "other"}}, "extra"),
        ({"extra": {"messages": []}}, "extra"),
        ({"extra": {"stream": True}}, "extra"),
        ({"extra": {"n": 2}}, "extra"),
        ({"schema": {}, "extra": {"response_format": {"type": "text"}}}, "extra"),
        ({"response_format": {"type": "json_object"}, "extra": {"response_format": None}}, "extra"),
    ],
)
def test_what_cannot_be_sent_is_refused_before(serve, connect, params, field):
    server = serve(says(chat()))
    with pytest.raises(InvalidRequest) as caught:
        connect(server).check(Request(prompt="p", params=Generation(**params)), model="m")
    assert caught.value.field == field
    assert server.requests == []


def test_a_model_needs_a_name(serve, connect):
    provider = connect(serve(says(chat())))
    provider.check(Request(prompt="p"), model="org/model:free")
    for model in ("", "a\nb"):
        with pytest.raises(InvalidRequest):
            provider.check(Request(prompt="p"), model=model)


def test_the_environment_of_the_real_sdk_is_honoured(serve, monkeypatch):
    server = serve(says(chat()))
    monkeypatch.setenv("OPENAI_API_KEY", f" {KEY}\n")
    monkeypatch.setenv("OPENAI_BASE_URL", server.base_url + "/")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-1")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-1")
    ask(provider := OpenAIProvider())
    provider.close()
    sent = server.requests[0]
    assert sent.target == "/v1/chat/completions"
    assert sent.headers["authorization"] == f"Bearer {KEY}"
    assert sent.headers["openai-organization"] == "org-1"
    assert sent.headers["openai-project"] == "proj-1"


def test_other_servers_need_no_key(serve, connect):
    server = serve(says(chat()))
    ask(connect(server, api_key=None))
    assert "authorization" not in server.requests[0].headers


def test_own_headers_replace_the_usual_ones(serve, connect):
    server = serve(says(chat()))
    ask(connect(server, headers={"api-key": "azure-key", "authorization": "Basic x"}))
    assert server.requests[0].headers["api-key"] == "azure-key"
    assert server.requests[0].headers["authorization"] == "Basic x"


def test_plain_http_is_for_servers_without_a_key():
    OpenAIProvider(None, "http://vllm:8000/v1")


def test_the_scope_tells_quotas_apart_and_shows_no_key():
    make = lambda key=KEY, url="https://api.openai.com/v1", **more: OpenAIProvider(key, url, **more).scope  # noqa: E731
    scopes = [
        make(),
        make("sk-other-1234567890"),
        make(url="https://eu.api.openai.com/v1"),
        make(project="proj-2"),
        make(organization="org-2"),
    ]
    assert make() == make(api="responses") == scopes[0]
    assert len(set(scopes)) == len(scopes)
    assert scopes[0].startswith("openai:api.openai.com:")
    assert KEY not in scopes[0]


def test_the_output_cap_is_named_as_the_place_knows_it():
    assert OpenAIProvider(KEY)._parameters.max_tokens_field("m") == "max_completion_tokens"
    azure = OpenAIProvider(KEY, "https://res.openai.azure.com/openai/v1")
    assert azure._parameters.max_tokens_field("m") == "max_completion_tokens"
    assert OpenAIProvider(KEY, "https://llm.example/v1")._parameters.max_tokens_field("m") == "max_tokens"


def test_a_proxy_over_tls_is_refused(monkeypatch):
    monkeypatch.setenv("https_proxy", "https://me:secret-pass@proxy.example:443")
    with pytest.raises(ConfigError, match="proxy") as caught:
        OpenAIProvider(KEY)
    assert "secret-pass" not in str(caught.value)
