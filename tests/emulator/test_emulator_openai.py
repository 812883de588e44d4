"""OpenAI's API with the real SDK."""

from __future__ import annotations

import hashlib
import json

import openai
import pytest
from raw_client import RawClient, chat, request_bytes

from smartbatch.testing import Emulator, answer_for

PROMPT = "How many ducks?"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": PROMPT}]


@pytest.fixture
def sdk(emu):
    with openai.OpenAI(base_url=emu.base_url, api_key="k", max_retries=0) as client:
        yield client


def test_the_sdk_gets_an_answer_that_belongs_to_its_prompt(sdk, emu):
    made = sdk.chat.completions.create(model="gpt-5-mini", messages=MESSAGES)
    assert made.choices[0].message.content == answer_for(PROMPT, "gpt-5-mini")
    assert made.choices[0].finish_reason == "stop"
    assert made.usage.prompt_tokens == len("Be brief.") // 4 + len(PROMPT) // 4
    assert made.usage.completion_tokens == len(made.choices[0].message.content) // 4
    [call] = emu.ledger.calls
    assert call.prompt == hashlib.sha256(PROMPT.encode()).hexdigest()
    assert call.text is None, "prompts stay out of the ledger unless asked for"
    assert (call.billed, call.delivered, call.status) == (made.usage.total_tokens, True, 200)


def test_scripted_answers_are_found_by_the_exact_prompt(emu, sdk):
    emu.configure(answers={PROMPT: "nine"})
    assert _text(sdk, PROMPT) == "nine"
    assert _text(sdk, PROMPT + " ") != "nine"


def _text(sdk, prompt, **options):
    made = sdk.chat.completions.create(model="m", messages=[{"role": "user", "content": prompt}], **options)
    return made.choices[0].message.content


def test_a_stream_carries_the_same_text_and_ends_with_the_usage(sdk, emu):
    chunks = list(
        sdk.chat.completions.create(
            model="m", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == answer_for(PROMPT, "m")
    assert chunks[-1].choices == []
    assert chunks[-1].usage.total_tokens == emu.ledger.calls[0].billed
    assert chunks[-2].choices[0].finish_reason == "stop"


def test_a_stream_without_the_option_has_no_usage_and_ends_with_done(raw):
    status, headers, body = _streamed(raw, chat(stream=True))
    assert (status, headers["content-type"]) == (200, "text/event-stream")
    assert b"usage" not in body
    assert body.endswith(b"data: [DONE]\n\n")


def _streamed(raw, body, **options):
    raw.send(request_bytes(body, **options))
    return raw.answer()


def test_a_paced_stream_is_whole_and_booked_as_delivered(emu, sdk):
    emu.configure(per_token=0.001)
    chunks = list(sdk.chat.completions.create(model="m", messages=MESSAGES, stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == answer_for(PROMPT, "m")
    assert emu.ledger.calls[0].delivered


def test_a_stream_for_http_1_0_ends_with_the_connection(raw):
    status, headers, body = _streamed(raw, chat(stream=True), version="1.0")
    assert status == 200
    assert "transfer-encoding" not in headers
    assert body.endswith(b"data: [DONE]\n\n")


@pytest.mark.full
def test_responses_answer_and_stream(sdk):
    made = sdk.responses.create(model="m", input=PROMPT, instructions="Be brief.", store=False)
    assert (made.status, made.output_text) == ("completed", answer_for(PROMPT, "m"))
    events = list(sdk.responses.create(model="m", input=MESSAGES, stream=True))
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == made.output_text
    assert events[-1].type == "response.completed"
    assert events[-1].response.usage.total_tokens == made.usage.total_tokens
    assert [e.sequence_number for e in events] == list(range(len(events)))


@pytest.mark.full
def test_output_is_cut_at_the_cap(emu, sdk):
    emu.configure(answers={PROMPT: "äöü" * 100})
    made = sdk.chat.completions.create(model="m", messages=MESSAGES, max_completion_tokens=3)
    assert made.choices[0].finish_reason == "length"
    assert made.choices[0].message.content == "äöü" * 2
    assert made.usage.completion_tokens == 3
    cut = sdk.responses.create(model="m", input=PROMPT, max_output_tokens=3)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_output_that_just_fits_is_not_cut(emu, sdk):
    emu.configure(answers={PROMPT: "12345678"})
    made = sdk.chat.completions.create(model="m", messages=MESSAGES, max_completion_tokens=2)
    assert (made.choices[0].finish_reason, made.choices[0].message.content) == ("stop", "12345678")


def test_the_last_user_message_is_the_prompt(sdk):
    turns = [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "yes?"},
        {
            "role": "user",
            "content": [{"type": "text", "text": PROMPT[:5]}, {"type": "text", "text": PROMPT[5:]}],
        },
        {"role": "assistant", "content": "Well,"},
    ]
    made = sdk.chat.completions.create(model="m", messages=turns)
    assert made.choices[0].message.content == answer_for(PROMPT, "m")


def test_stop_and_n_are_honoured(emu, sdk):
    emu.configure(answers={PROMPT: "one two three"})
    made = sdk.chat.completions.create(model="m", messages=MESSAGES, stop=["two"], n=2)
    assert [choice.message.content for choice in made.choices] == ["one ", "one "]
    assert made.usage.completion_tokens == 2


def test_a_schema_is_answered_with_an_instance_of_it(sdk):
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "size": {"enum": ["small", "large"]},
            "people": {"type": "integer", "minimum": 7},
            "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "minItems": 2},
        },
        "required": ["city", "size", "people", "tags"],
        "$defs": {"tag": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]}},
    }
    json_schema = {"name": "answer", "schema": schema}
    response_format = {"type": "json_schema", "json_schema": json_schema}
    text = _text(sdk, PROMPT, response_format=response_format)
    value = json.loads(text)
    assert value["city"] == answer_for(PROMPT, "m")
    assert value["size"] in ("small", "large")
    assert (value["people"], value["tags"]) == (7, ["ans", "ans"])
    assert _text(sdk, PROMPT, response_format=response_format) == text
    assert json.loads(_text(sdk, PROMPT, response_format={"type": "json_object"}))
    made = sdk.responses.create(
        model="m", input=PROMPT, text={"format": {"type": "json_schema", "name": "a", "schema": schema}}
    )
    assert json.loads(made.output_text) == value


def test_models_are_listed_and_unknown_ones_refused(emu, sdk):
    emu.configure(models=["a", "b"])
    assert [model.id for model in sdk.models.list()] == ["a", "b"]
    assert sdk.models.retrieve("b").id == "b"
    with pytest.raises(openai.NotFoundError) as caught:
        sdk.chat.completions.create(model="c", messages=MESSAGES)
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize("key", ["wrong", None])
def test_a_wrong_or_missing_key_is_refused(emu, raw, key):
    emu.configure(keys=["right"])
    assert raw.ask(chat(), key="right")[0] == 200
    status, _, body = raw.ask(chat(), key=key)
    assert status == 401
    assert body["error"]["code"] == ("invalid_api_key" if key else None)
    assert "wrong" not in json.dumps(body)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{", None),
        (b"[]", None),
        (b'{"a": NaN}', None),
        (b"[" * 100_000, None),
        (b"\xff", None),
        ({"model": "m"}, "messages"),
        (chat(messages=[]), "messages"),
        (chat(messages="x"), "messages"),
        (chat(messages=[{"role": "clown", "content": "x"}]), "messages[0].role"),
        (chat(messages=[{"role": "user"}]), "messages[0].content"),
        (chat(model=""), "model"),
        (chat(model=None), "model"),
        (chat(temperature=2.5), "temperature"),
        (chat(temperature=True), "temperature"),
        (chat(top_p=-1), "top_p"),
        (chat(max_tokens=0), "max_tokens"),
        (chat(max_completion_tokens="9"), "max_completion_tokens"),
        (chat(n=1000), "n"),
        (chat(stop=["a"] * 5), "stop"),
        (chat(response_format={"type": "xml"}), "response_format.type"),
        (chat(response_format={"type": "json_schema"}), "response_format.json_schema.schema"),
        (chat("\ud800"), None),
    ],
)
def test_a_bad_request_is_refused_naming_the_field(raw, emu, body, param):
    status, headers, answer = raw.ask(body)
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"
    assert answer["error"]["param"] == param
    assert headers["x-request-id"].startswith("req_")
    assert raw.ask(chat())[0] == 200
    assert [call.billed > 0 for call in emu.ledger.calls] == [False, True]


def test_an_invalid_schema_is_a_bad_request(raw):
    schema = {"name": "a", "schema": {"type": "string", "minLength": "many"}}
    status, _, _ = raw.ask(chat(response_format={"type": "json_schema", "json_schema": schema}))
    assert status == 400


def test_a_recursive_schema_ends(raw):
    tree = {"type": "object", "properties": {str(n): {"$ref": "#"} for n in range(10)}}
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": tree}}
    assert raw.ask(chat(response_format=schema))[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/nothing", 404),
        ("GET", "/", 404),
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/v1/models", 405),
        ("GET", "/_ledger/nothing", 404),
    ],
)
def test_unknown_paths_and_methods_are_refused(raw, method, path, status):
    assert raw.ask(chat(), method=method, path=path)[0] == status


def test_the_seed_decides_the_answers(emu, raw):
    def ask() -> tuple[str, str]:
        emu.reset()
        _, headers, body = raw.ask(chat())
        return body["choices"][0]["message"]["content"], headers["x-request-id"]

    first = ask()
    assert ask() == first
    emu.configure(seed=1)
    assert ask()[0] != first[0]
    assert ask()[1] != first[1]


def test_two_emulators_serve_side_by_side(emu):
    with Emulator(answers={"hello": "other"}) as second, RawClient(second.port) as client:
        assert client.ask(chat())[2]["choices"][0]["message"]["content"] == "other"
    assert emu.ledger.received == 0
