"""Requests and answers of the Anthropic adapter."""

from __future__ import annotations

import logging
import subprocess
import sys

import httpx2
import pytest
from asking import KEY, SCHEMA, ask, request_of, url_of
from claude import MODEL, message, opened
from raw_server import says

from smartbatch.errors import ErrorKind, InvalidRequest
from smartbatch.providers import AnthropicProvider
from smartbatch.providers.anthropic.answers import usage_of
from smartbatch.providers.anthropic.bodies import API_VERSION, message_body
from smartbatch.shared_prefixes import CacheMark, SharedPrefix
from smartbatch.types import Generation, Message, Request, Usage


def sent(serve, prompt="Hi", answer=None, options=None, **params):
    server = serve(says(answer or message()))
    with opened(server, **(options or {})) as provider:
        found = ask(provider, prompt, **params)
    [exchange] = server.requests
    assert exchange.target == "/v1/messages"
    return exchange.json(), exchange.headers, found


def test_a_prompt_becomes_a_message_with_a_cap_on_the_output(serve):
    body, headers, answer = sent(serve)
    assert body == {"model": MODEL, "max_tokens": 4096, "messages": [{"role": "user", "content": "Hi"}]}
    assert headers["authorization"] == f"Bearer {KEY}"
    assert headers["anthropic-version"] == "2026-10-21"
    assert headers["x-stainless-retry-count"] == "0"
    assert (answer.text, answer.finish_reason, answer.model) == ("Lima", "stop", MODEL)
    body, _, _ = sent(serve, options={"default_max_tokens": 99})
    assert body["max_tokens"] == 99
    body, _, _ = sent(serve, options={"default_max_tokens": 99}, max_tokens=50_000)
    assert body["max_tokens"] == 50_000  # more than the SDK allows without streaming


def test_instructions_stand_next_to_the_messages(serve):
    prompt = (
        Message("system", "Be brief."),
        Message("user", "Hi"),
        Message("assistant", "Hello"),
        Message("developer", "Be kind."),
        Message("user", ({"type": "text", "text": "Bye"},)),
    )
    body, _, _ = sent(serve, prompt, system="Speak English.")
    assert body["system"] == "Speak English.\n\nBe brief.\n\nBe kind."
    assert body["messages"] == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": [{"type": "text", "text": "Bye"}]},
    ]
    marked = {"type": "text", "text": "Long.", "cache_control": {"type": "ephemeral"}}
    body, _, _ = sent(serve, (Message("system", (marked,)), Message("user", "Hi")), system="First.")
    assert body["system"] == [{"type": "text", "text": "First."}, marked]


def test_sampling_parameters_are_dropped_and_the_answer_says_so(serve):
    body, _, answer = sent(serve, temperature=0.2, top_p=0.9, seed=3)
    assert not {"temperature", "top_p", "seed"} & body.keys()
    assert [name for name, _ in answer.dropped] == ["temperature", "top_p", "seed"]
    assert "2023-06-01" in dict(answer.dropped)["temperature"]


def test_the_old_version_sends_sampling_parameters(serve):
    body, headers, answer = sent(
        serve, options={"api_version": "2023-06-01"}, temperature=0.2, top_p=0.9, seed=3
    )
    assert (body["temperature"], body["top_p"]) == (0.2, 0.9)
    assert headers["anthropic-version"] == "2023-06-01"
    assert [name for name, _ in answer.dropped] == ["seed"]


def test_stop_schema_and_further_fields_are_sent(serve):
    body, _, _ = sent(
        serve,
        stop=("END",),
        schema=SCHEMA,
        extra={"output_config": {"effort": "low"}, "metadata": {"user_id": "u"}, "max_tokens": 7},
    )
    assert body["stop_sequences"] == ["END"]
    assert body["output_config"] == {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}}
    assert (body["metadata"], body["max_tokens"]) == ({"user_id": "u"}, 7)


@pytest.mark.parametrize(
    ("prompt", "params", "field", "part"),
    [
        ("Hi", {"response_format": {"type": "json_object"}}, "response_format", "use schema"),
        ("Hi", {"extra": {"model": "x"}}, "extra", "'model'"),
        ("Hi", {"extra": {"stream": True}}, "extra", "'stream'"),
        ("Hi", {"system": "a", "extra": {"system": "b"}}, "extra", "twice"),
        ((Message("system", "a"), Message("user", "b")), {"extra": {"system": "c"}}, "extra", "twice"),
        ("Hi", {"schema": SCHEMA, "extra": {"output_config": {"format": {}}}}, "extra", "twice"),
        ("Hi", {"schema": SCHEMA, "extra": {"output_config": "low"}}, "extra", "mapping"),
        ("Hi", {"logprobs": True}, "logprobs", "no log-probabilities"),
        ("Hi", {"tool_choice": "auto", "extra": {"tool_choice": {}}}, "extra", "twice"),
        ((Message("system", "Be brief."),), {}, "prompt", "needs a user message"),
    ],
)
def test_what_the_api_cannot_take_is_refused_before_it_is_queued(prompt, params, field, part):
    with pytest.raises(InvalidRequest, match=part) as caught:
        AnthropicProvider(KEY).check(request_of(prompt, **params), model=MODEL)
    assert caught.value.field == field


def test_a_wrong_model_name_and_a_hot_temperature_are_refused():
    provider = AnthropicProvider(KEY, api_version="2023-06-01")
    for model in ("", "a b", "x" * 300):
        with pytest.raises(InvalidRequest, match="model"):
            provider.check(request_of(), model=model)
    with pytest.raises(InvalidRequest, match="from 0 to 1"):
        provider.check(request_of(temperature=1.5), model=MODEL)
    AnthropicProvider(KEY).check(request_of(temperature=1.5), model=MODEL)  # the parameter is dropped


def test_three_counters_of_input_add_up(serve):
    assert sent(serve)[2].usage == Usage(138, 14, cached_tokens=100, reasoning_tokens=5, cache_write_tokens=7)


@pytest.mark.parametrize(
    ("told", "written", "for_an_hour"),
    [
        ({"cache_creation": {"ephemeral_5m_input_tokens": 3, "ephemeral_1h_input_tokens": 4}}, 7, 4),
        ({"cache_creation": None}, 7, 0),
        ({"cache_creation": {"ephemeral_1h_input_tokens": 99}}, 7, 7),
        ({"cache_creation": {"ephemeral_1h_input_tokens": -1}}, 7, 0),
        ({"cache_creation_input_tokens": None}, 0, 0),
    ],
)
def test_tokens_written_for_an_hour_are_counted_apart(told, written, for_an_hour):
    usage = usage_of({**message()["usage"], **told})
    assert (usage.cache_write_tokens, usage.cache_write_1h_tokens) == (written, for_an_hour)
    assert usage.input_tokens == 131 + written


@pytest.mark.parametrize(
    "usage",
    [None, 7, {}, {"input_tokens": 3}, {"input_tokens": -1, "output_tokens": 2}, {"input_tokens": "3"}],
)
def test_usage_that_makes_no_sense_is_none(serve, usage):
    assert sent(serve, answer=message(usage=usage))[2].usage is None


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("tool_use", "tool_calls"),
        ("pause_turn", "pause_turn"),
        ("refusal", "refusal"),
        ("brand_new", "brand_new"),
        (None, "stop"),
        ({"a": 1}, "unknown"),
    ],
)
def test_the_reason_of_the_end_is_told(serve, reason, finish):
    assert sent(serve, answer=message(stop_reason=reason))[2].finish_reason == finish


def test_a_refusal_may_have_no_content_at_all(serve):
    details = {"type": "refusal", "category": "cyber", "explanation": None}
    answer = sent(serve, answer=message(None, stop_reason="refusal", stop_details=details))[2]
    assert (answer.text, answer.finish_reason, answer.usage.output_tokens) == ("", "refusal", 14)


def test_only_text_blocks_are_text(serve):
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": "x"},
        {"type": "text", "text": "Li"},
        {"type": "tool_use", "id": "t", "name": "n", "input": {}},
        "odd",
        {"type": "text", "text": 5},
        {"type": "text", "text": "ma\ud800"},
    ]
    assert sent(serve, answer=message(content=blocks))[2].text == "Lima\ufffd"


def test_limits_and_id_come_from_the_headers_of_a_success(serve):
    headers = {"request-id": "req_7", "anthropic-ratelimit-requests-limit": "50"}
    server = serve(says(message(), **headers))
    with opened(server) as provider:
        answer = ask(provider)
    assert answer.provider_request_id == "req_7"
    assert answer.limits.requests_limit == 50


def test_the_environment_of_the_sdk_is_honoured(serve, monkeypatch):
    server = serve(says(message()))
    monkeypatch.setenv("ANTHROPIC_BASE_URL", url_of(server))
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "token-of-the-environment")
    monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", "x-team: blue")
    for key, bearer in ((None, "token-of-the-environment"), ("key-of-the-environment",) * 2):
        if key:
            monkeypatch.setenv("ANTHROPIC_API_KEY", key)
        provider = AnthropicProvider()
        ask(provider)
        provider.close()
        assert server.requests[-1].headers["authorization"] == f"Bearer {bearer}"
        assert server.requests[-1].headers["x-team"] == "blue"


def test_a_gateway_that_knows_only_its_own_header_gets_only_that(serve):
    _, headers, _ = sent(serve, options={"headers": {"x-api-key": "gateway-key"}})
    assert headers["x-api-key"] == "gateway-key"
    assert "authorization" not in headers
    server = serve(says(message()))
    provider = AnthropicProvider(base_url=url_of(server))  # local servers need no key
    ask(provider)
    provider.close()
    assert not {"authorization", "x-api-key"} & server.requests[0].headers.keys()


@pytest.mark.full
def test_the_sdk_is_imported_in_the_background_and_a_fork_waits_for_it():
    code = (
        "import os, signal, sys, threading; from smartbatch.providers import create\n"
        "from smartbatch._clock import VirtualClock\n"
        "p, _ = create('anthropic:m', clock=VirtualClock(), options={'api_key': 'sk-12345678'})\n"
        "p.open(1); print('smartbatch-import' in str(threading.enumerate()), flush=True)\n"
        "if os.fork():\n"
        "    print(os.waitstatus_to_exitcode(os.wait()[1]))\n"
        "else:\n"
        "    signal.alarm(20); p.open(1); p.ready(); os._exit('anthropic' not in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "0"]


def test_two_accounts_have_two_scopes_and_no_text_has_the_key():
    mine, other = AnthropicProvider(KEY), AnthropicProvider(KEY + "2")
    assert mine.scope != other.scope
    assert mine.scope == AnthropicProvider(KEY).scope
    assert mine.scope.startswith("anthropic:api.anthropic.com:")
    assert KEY not in repr(mine) + repr(vars(mine).keys())


def test_the_sdks_log_has_neither_key_nor_prompt(serve, caplog):
    with caplog.at_level(logging.DEBUG):
        sent(serve, "a prompt nobody should read", system="nor this instruction")
    text = caplog.text + repr([record.args for record in caplog.records])
    assert "HTTP Request" in text, "the SDK's log was not seen at all"
    for secret in ("nobody should read", "nor this", KEY, "Lima"):
        assert secret not in text


def test_the_sdk_cannot_send_the_key_elsewhere(serve):
    server, other = serve(says(message())), serve(says(message()))
    with opened(server) as provider:
        client = provider._sdk.get().client
        with pytest.raises(Exception) as caught:
            client.post(f"{url_of(other)}/v1/messages", cast_to=httpx2.Response, options={"timeout": 5})
        assert "than the base URL" in str(caught.value.__cause__)
        options = {"timeout": 5, "headers": {"x-odd": "a\r\nx-more: b"}}
        with pytest.raises(Exception) as caught:
            client.post("/v1/messages", cast_to=httpx2.Response, options=options)
        assert "line break" in str(caught.value.__cause__)
    assert server.connections == other.connections == 0


def test_other_exceptions_get_a_meaning_without_the_key():
    provider = AnthropicProvider(KEY)
    assert provider.classify(TimeoutError()).kind is ErrorKind.TIMEOUT
    assert provider.classify(ConnectionResetError()).kind is ErrorKind.NETWORK_ERROR
    with pytest.raises(TypeError):
        provider.generate(request_of(extra={"x": object()}), model=MODEL, attempt=0, timeout=1)
    assert KEY not in provider.classify(ValueError(f"Bearer {KEY}")).message


def test_marks_for_an_hour_come_first():
    ends = (SharedPrefix(-1, 0, None, 4_000, 0, "a"), SharedPrefix(0, 0, 5, 5_000, 50, "b"))
    params = Generation(system="Rules.")
    request = Request("Text. Question?", params=params, cache=CacheMark(ends, long=1))
    body, _ = message_body(request, "claude-haiku-5-5", API_VERSION, 100)
    assert body["system"][0]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    assert body["messages"][0]["content"][0]["cache_control"] == {"type": "ephemeral"}
