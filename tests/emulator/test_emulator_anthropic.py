"""Anthropic's API with the real SDK and with raw bytes."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime

import anthropic
import httpx2
import pytest
from levels import sampled
from raw_client import RawClient

from smartbatch.providers.limit_headers import read_anthropic_limits
from smartbatch.testing import answer_for

PROMPT = "How many ducks?"
MODEL = "claude-haiku-5-5"
NEW = "anthropic-version: 2026-10-21\r\n"
OLD = "anthropic-version: 2023-06-01\r\n"


@pytest.fixture
def sdk(emu):
    with anthropic.Anthropic(base_url=emu.url, api_key="k", max_retries=0, timeout=10) as client:
        yield client


def messages(prompt: str = PROMPT) -> list[dict]:
    return [{"role": "user", "content": prompt}]


def body(**fields: object) -> dict:
    return {"model": MODEL, "max_tokens": 100, "messages": messages(), **fields}


def create(sdk: anthropic.Anthropic, prompt: str = PROMPT, **fields: object):
    return sdk.messages.create(**{"model": MODEL, "max_tokens": 100, "messages": messages(prompt), **fields})


def refusal(raw: RawClient, body: object, headers: str = NEW, **options: object) -> str:
    status, _, answer = raw.ask(body, path="/v1/messages", headers=headers, **options)
    assert status >= 400
    assert answer["type"] == "error"
    return f"{status} {answer['error']['type']}: {answer['error']['message']}"


def test_the_sdk_gets_an_answer_that_belongs_to_its_prompt(sdk, emu):
    made = create(sdk, system="Be brief.")
    assert made.content[0].text == answer_for(PROMPT, MODEL)
    assert (made.type, made.stop_reason, made.model) == ("message", "end_turn", MODEL)
    assert made.usage.input_tokens == len("Be brief.") // 4 + len(PROMPT) // 4
    assert made._request_id.startswith("req_")
    [call] = emu.ledger.calls
    assert call.prompt == hashlib.sha256(PROMPT.encode()).hexdigest()
    assert call.billed == made.usage.input_tokens + made.usage.output_tokens
    assert (call.endpoint, call.delivered, call.status) == ("POST /v1/messages", True, 200)


def test_the_sdk_reads_the_stream_of_the_same_answer(sdk, emu):
    emu.configure(answers={"odd": "one\u2028two three"})
    with sdk.messages.stream(model=MODEL, max_tokens=100, messages=messages("odd")) as stream:
        pieces = list(stream.text_stream)
        made = stream.get_final_message()
    assert "".join(pieces) == "one\u2028two three"
    assert len(pieces) > 1
    assert made.stop_reason == "end_turn"
    assert emu.ledger.calls[0].billed == made.usage.input_tokens + made.usage.output_tokens


def test_the_output_ends_at_its_cap_or_at_a_stop_sequence(sdk, emu):
    emu.configure(answers={PROMPT: "one two STOP three"})
    cut = create(sdk, max_tokens=1)
    assert (cut.content[0].text, cut.stop_reason, cut.usage.output_tokens) == ("one ", "max_tokens", 1)
    stopped = create(sdk, stop_sequences=["NEVER", "STOP"])
    assert (stopped.content[0].text, stopped.stop_reason) == ("one two ", "stop_sequence")
    assert stopped.stop_sequence == "STOP"


def test_tokens_are_counted_for_nothing(sdk, emu):
    emu.configure(rpm=1)
    for _ in range(3):
        count = sdk.messages.count_tokens(model=MODEL, messages=messages(), system="Be brief.")
    assert count.input_tokens == len("Be brief.") // 4 + len(PROMPT) // 4
    assert create(sdk).usage.input_tokens == len(PROMPT) // 4
    assert [bool(call.billed) for call in emu.ledger.calls] == [False, False, False, True]


@pytest.mark.parametrize("name", ["temperature", "top_p", "top_k"])
def test_the_current_version_knows_no_sampling_parameters(raw, name):
    asked = body(**{name: 1})
    found = refusal(raw, asked)
    assert found == f"400 invalid_request_error: {name}: Extra inputs are not permitted"
    assert raw.ask(asked, path="/v1/messages", headers=OLD)[0] == 200


@pytest.mark.parametrize(
    ("asked", "part"),
    [
        (b"{", "400 invalid_request_error: The request body is not valid JSON"),
        ({"messages": messages(), "max_tokens": 1}, "model: Field required"),
        ({"model": "m", "messages": messages()}, "max_tokens: Field required"),
        (body(max_tokens=-1), "max_tokens"),
        (body(max_tokens=True), "max_tokens"),
        (body(messages=[]), "at least one message"),
        (body(messages="hi"), "valid list"),
        ({"model": "m", "max_tokens": 1}, "messages: Field required"),
        (body(messages=["hi"]), "messages.0"),
        (body(messages=[{"role": "system", "content": "x"}]), "top-level `system` parameter"),
        (body(messages=[{"role": "tool", "content": "x"}]), 'Unexpected role "tool"'),
        (body(messages=[{"role": "user"}]), "messages.0.content"),
        (body(messages=[{"role": "user", "content": [{"text": "x"}]}]), "content.0.type"),
        (body(response_format={"type": "json_object"}), "response_format: Extra inputs"),
        (body(seed=1), "seed: Extra inputs"),
        (body(stop_sequences="END"), "stop_sequences"),
        (body(stop_sequences=[" "]), "non-whitespace"),
        (body(output_config=1), "output_config"),
        (body(output_config={"format": {"type": "text"}}), "json_schema"),
        (body(output_config={"format": {"type": "json_schema"}}), "schema: Field required"),
        (body(system=5), "system"),
    ],
)
def test_unsupported_requests_are_refused(raw, asked, part):
    assert part in refusal(raw, asked)


def test_versions_keys_paths_and_models_are_checked(emu, raw):
    assert "header is required" in refusal(raw, body(), headers="")
    assert "not a valid version" in refusal(raw, body(), headers="anthropic-version: 2020-01-01\r\n")
    assert refusal(raw, body(), key=None).startswith("401 authentication_error")
    for headers in (NEW + "x-api-key: right\r\n", NEW):
        emu.configure(keys=["right"])
        key = None if "x-api-key" in headers else "right"
        assert raw.ask(body(), path="/v1/messages", headers=headers, key=key)[0] == 200
    assert refusal(raw, body(), key="wrong").startswith("401 authentication_error")
    emu.configure(keys=None, models=["other"])
    assert refusal(raw, body()).startswith("404 not_found_error: model: claude")
    assert raw.ask(body(), path="/v1/messages/nothing", headers=NEW)[0] == 404
    assert raw.ask(method="GET", path="/v1/messages", headers=NEW)[0] == 405


@pytest.mark.parametrize(
    ("fault", "kind", "status", "type_"),
    sampled(
        [
            ("500", anthropic.InternalServerError, 500, "api_error"),
            ("503", anthropic.InternalServerError, 529, "overloaded_error"),
            ("429", anthropic.RateLimitError, 429, "rate_limit_error"),
            ("429_no_header", anthropic.RateLimitError, 429, "rate_limit_error"),
            ("no_money", anthropic.RateLimitError, 429, "rate_limit_error"),
        ],
        keep=2,
    ),
)
def test_faults_come_in_the_services_own_shapes(sdk, emu, fault, kind, status, type_):
    emu.configure(faults={fault: 1.0})
    with pytest.raises(kind) as caught:
        create(sdk)
    found = caught.value
    assert (found.status_code, found.type) == (status, type_)
    assert ("retry-after" in found.response.headers) == (fault == "429")
    assert found.error_code == ("enforced_spend_limit_reached" if fault == "no_money" else None)
    assert emu.ledger.calls[0].billed == 0


def test_a_refusal_is_a_success_without_content(sdk, emu):
    emu.configure(faults={"refusal": 1.0})
    made = create(sdk)
    assert (made.content, made.stop_reason) == ([], "refusal")
    with sdk.messages.stream(model=MODEL, max_tokens=9, messages=messages()) as stream:
        assert stream.get_final_message().stop_reason == "refusal"
    assert [call.billed for call in emu.ledger.calls] == [len(PROMPT) // 4] * 2


def test_a_stream_may_end_early_or_with_an_error(sdk, emu):
    emu.configure(faults={"stream_end": 1.0})
    events = list(create(sdk, stream=True))
    assert events[-1].type != "message_stop"
    emu.configure(faults={"stream_error": 1.0})
    with pytest.raises(anthropic.APIStatusError) as caught:
        list(create(sdk, stream=True))
    assert (caught.value.status_code, caught.value.type) == (200, "overloaded_error")
    emu.configure(faults={"truncated": 1.0})
    with pytest.raises(httpx2.HTTPError):
        list(create(sdk, stream=True))


def test_without_a_stream_its_faults_cut_the_body(sdk, emu):
    emu.configure(faults={"stream_error": 1.0})
    with pytest.raises(anthropic.APIConnectionError):
        create(sdk)


def test_every_answer_has_the_limit_headers(raw, emu):
    emu.configure(rpm=60, tpm=30_000, otpm=12_000)
    status, headers, _ = raw.ask(body(), path="/v1/messages", headers=NEW)
    assert status == 200
    named = {name: value for name, value in headers.items() if name.startswith("anthropic-ratelimit")}
    assert named["anthropic-ratelimit-requests-limit"] == "60"
    assert named["anthropic-ratelimit-requests-remaining"] == "59"
    assert named["anthropic-ratelimit-input-tokens-remaining"] == "30000", "rounded to thousands"
    assert named["anthropic-ratelimit-output-tokens-limit"] == "12000"
    assert named["anthropic-ratelimit-tokens-limit"] == "42000"
    moment = datetime.fromisoformat(named["anthropic-ratelimit-requests-reset"])
    assert moment.tzinfo == UTC
    report = read_anthropic_limits(headers, datetime.now(UTC).timestamp())
    assert (report.requests_limit, report.input_limit, report.output_limit) == (60, 30_000, 12_000)
    assert report.requests_reset <= 3.0


def test_requests_above_a_limit_get_the_time_to_wait(raw, emu):
    emu.configure(rpm=60, burst=1)
    assert raw.ask(body(), path="/v1/messages", headers=NEW)[0] == 200
    status, headers, answer = raw.ask(body(), path="/v1/messages", headers=NEW)
    assert (status, headers["retry-after"]) == (429, "1")
    assert "60 requests per minute" in answer["error"]["message"]
    emu.configure(rpm=None, burst=None, otpm=4)
    statuses = [raw.ask(body(max_tokens=50_000), path="/v1/messages", headers=NEW)[0] for _ in range(2)]
    assert statuses == [200, 429], "the first took its four tokens, not the 50,000 of its cap"


def test_both_apis_share_one_ledger_and_one_limit(emu, sdk, raw):
    emu.configure(rpm=60, burst=2)
    create(sdk)
    chat = {"model": "m", "messages": messages()}
    assert raw.ask(chat)[0] == 200
    assert raw.ask(chat)[0] == 429
    assert [call.endpoint for call in emu.ledger.calls] == [
        "POST /v1/messages",
        *["POST /v1/chat/completions"] * 2,
    ]


def test_half_a_surrogate_pair_is_refused(raw):
    asked = b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"\\ud800"}]}'
    assert "surrogate" in refusal(raw, asked)
