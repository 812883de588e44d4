"""Gemini's API with the real SDK, and with raw requests for what the SDK hides."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import httpx2
import pytest
from google import genai
from google.genai import errors, types
from levels import sampled
from raw_client import RawClient, request_bytes

from smartbatch.emulator.composed_answers import vector_for
from smartbatch.testing import answer_for

PROMPT = "How many ducks?"
MODEL = "gemini-3.8-flash"
EMBEDDER = "gemini-embedding-001"


@pytest.fixture(params=["v1"])
def sdk(emu, request):
    options = types.HttpOptions(base_url=emu.url, api_version=request.param, timeout=10_000)
    with genai.Client(api_key="any-key", vertexai=False, http_options=options) as client:
        yield client


def contents(text: str = PROMPT, **fields: Any) -> dict[str, Any]:
    return {"contents": [{"role": "user", "parts": [{"text": text}]}], **fields}


def ask(raw: RawClient, body: Any, call: str = "generateContent", **options: Any) -> tuple[int, dict, Any]:
    options.setdefault("headers", "x-goog-api-key: any-key\r\n")
    options.setdefault("path", f"/v1beta/models/{MODEL}:{call}")
    return raw.ask(body, key=None, **options)


@pytest.mark.parametrize("sdk", sampled(["v1", "v1beta"], keep=1), indirect=True)
def test_the_sdk_gets_an_answer_that_belongs_to_its_prompt(emu, sdk):
    config = types.GenerateContentConfig(system_instruction="Be brief.", temperature=0.1, seed=1)
    made = sdk.models.generate_content(model=MODEL, contents=PROMPT, config=config)
    assert made.text == answer_for(PROMPT, MODEL)
    assert made.candidates[0].finish_reason == "STOP"
    assert made.usage_metadata.prompt_token_count == len("Be brief.") // 4 + len(PROMPT) // 4
    assert (made.model_version, bool(made.response_id)) == (MODEL, True)
    [call] = emu.ledger.calls
    assert call.prompt == hashlib.sha256(PROMPT.encode()).hexdigest()
    assert (call.billed, call.delivered) == (made.usage_metadata.total_token_count, True)


def test_conversations_stops_caps_and_schemas_are_understood(emu, sdk):
    turns = [
        types.Content(role="user", parts=[types.Part(text="a")]),
        types.Content(role="model", parts=[types.Part(text="b")]),
        types.Content(role="user", parts=[types.Part(text="c"), types.Part(text="d")]),
    ]
    assert sdk.models.generate_content(model=MODEL, contents=turns).text == answer_for("cd", MODEL)
    cut = sdk.models.generate_content(
        model=MODEL, contents=PROMPT, config=types.GenerateContentConfig(max_output_tokens=1)
    )
    assert (cut.text, cut.candidates[0].finish_reason) == (answer_for(PROMPT, MODEL)[:4], "MAX_TOKENS")
    stopped = sdk.models.generate_content(
        model=MODEL, contents=PROMPT, config=types.GenerateContentConfig(stop_sequences=[" "])
    )
    assert stopped.text == "answer"
    for schema in (
        {"response_json_schema": {"type": "object", "properties": {"city": {"type": "string"}}}},
        {"response_schema": types.Schema(type="OBJECT", properties={"city": types.Schema(type="STRING")})},
    ):
        config = types.GenerateContentConfig(response_mime_type="application/json", **schema)
        found = sdk.models.generate_content(model=MODEL, contents=PROMPT, config=config).text
        assert set(json.loads(found)) == {"city"}


def test_the_sdk_streams(emu, sdk):
    chunks = list(sdk.models.generate_content_stream(model=MODEL, contents=PROMPT))
    assert "".join(chunk.text for chunk in chunks) == answer_for(PROMPT, MODEL)
    assert [chunk.candidates[0].finish_reason for chunk in chunks][-1] == "STOP"
    assert len(chunks) > 1


def test_streams_have_crlf_and_no_end_mark_or_are_a_list(emu, raw):
    head = {"headers": "x-goog-api-key: k\r\n", "key": None}
    path = f"/v1/models/{MODEL}:streamGenerateContent"
    raw.send(request_bytes(contents(), path=f"{path}?alt=sse", **head))
    status, headers, body = raw.answer()
    assert (status, headers["content-type"]) == (200, "text/event-stream")
    events = body.split(b"\r\n\r\n")
    assert events.pop() == b""
    assert all(event.startswith(b"data: {") and b"\n" not in event for event in events)
    assert json.loads(events[-1][6:])["candidates"][0]["finishReason"] == "STOP"
    _, _, chunks = ask(raw, contents(), path=path)
    assert [chunk["candidates"][0]["content"] for chunk in chunks] == [
        json.loads(event[6:])["candidates"][0]["content"] for event in events
    ]


def test_the_sdk_gets_one_vector_for_each_content(emu, sdk):
    texts = ["a", "b", "a"]
    each = [types.Content(parts=[types.Part(text=text)]) for text in texts]
    config = types.EmbedContentConfig(output_dimensionality=8, task_type="CLUSTERING")
    made = sdk.models.embed_content(model=EMBEDDER, contents=each, config=config)
    assert [e.values for e in made.embeddings] == [list(vector_for(text, EMBEDDER, 8)) for text in texts]
    merged = sdk.models.embed_content(model="gemini-embedding-2", contents=["a", "b"], config=config)
    assert [e.values for e in merged.embeddings] == [list(vector_for("ab", "gemini-embedding-2", 8))]
    assert emu.ledger.calls[0].billed == 3


def test_vectors_have_the_models_length(emu, raw):
    item = {"model": f"models/{EMBEDDER}", "content": {"parts": [{"text": "a"}]}}
    path = f"/v1/models/{EMBEDDER}:batchEmbedContents"
    assert len(ask(raw, {"requests": [item]}, path=path)[2]["embeddings"][0]["values"]) == 3072


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"requests": []}, "must not be empty"),
        ({"count": 101}, "at most 100"),
        ({"content": {"parts": [{"text": ""}]}}, "empty"),
        ({"content": {"parts": []}}, "empty"),
        ({"model": "models/other"}, "path"),
        ({"outputDimensionality": 3073}, "3072"),
        ({"output_dimensionality": "8"}, "3072"),
    ],
)
def test_embeddings_that_are_refused(emu, raw, change, part):
    count = change.pop("count", 1)
    item = {"model": f"models/{EMBEDDER}", "content": {"parts": [{"text": "a"}]}, **change}
    body = {"requests": change.get("requests", [item] * count)}
    status, _, found = ask(raw, body, path=f"/v1/models/{EMBEDDER}:batchEmbedContents")
    assert (status, found["error"]["status"]) == (400, "INVALID_ARGUMENT")
    assert part in found["error"]["message"]


def test_tokens_are_counted_without_being_billed(emu, sdk):
    emu.configure(rpm=1)
    for _ in range(3):
        assert sdk.models.count_tokens(model=MODEL, contents=PROMPT).total_tokens == len(PROMPT) // 4
    assert emu.ledger.summary()["billed"] == 0


def test_models_are_listed(emu, sdk):
    assert f"models/{MODEL}" in [model.name for model in sdk.models.list()]
    emu.configure(models=["one"])
    assert [model.name for model in sdk.models.list()] == ["models/one"]
    assert sdk.models.get(model="one").name == "models/one"
    with pytest.raises(errors.ClientError) as caught:
        sdk.models.generate_content(model="two", contents=PROMPT)
    assert (caught.value.code, caught.value.status) == (404, "NOT_FOUND")


def test_keys_come_in_the_header_or_in_the_query(emu, raw):
    assert ask(raw, contents())[0] == 200
    assert ask(raw, contents(), headers="", path=f"/v1/models/{MODEL}:generateContent?key=k")[0] == 200
    status, _, body = ask(raw, contents(), headers="")
    assert (status, body["error"]["status"]) == (403, "PERMISSION_DENIED")
    emu.configure(keys=["right"])
    status, _, body = ask(raw, contents())
    assert (status, body["error"]["details"][0]["reason"]) == (400, "API_KEY_INVALID")
    assert ask(raw, contents(), headers="x-goog-api-key: right\r\n")[0] == 200


def test_both_spellings_are_understood(emu, raw):
    snake = contents(
        system_instruction={"parts": [{"text": "x"}]},
        generation_config={"max_output_tokens": 1, "responseMimeType": "text/plain"},
    )
    assert ask(raw, snake)[2]["candidates"][0]["finishReason"] == "MAX_TOKENS"


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        {},
        {"contents": []},
        {"contents": [{"role": "user"}]},
        {"contents": ["x"]},
        contents(surprise=1),
        contents() | {"contents": [{"role": "tool", "parts": [{"text": "x"}]}]},
        contents(generationConfig=[1]),
        contents(generationConfig={"temperature": 3}),
        contents(generationConfig={"topP": True}),
        contents(generationConfig={"maxOutputTokens": 0}),
        contents(generationConfig={"candidateCount": 2}),
        contents(generationConfig={"stopSequences": ["x"] * 6}),
        contents(generationConfig={"responseJsonSchema": {"type": "object"}}),
        contents(systemInstruction={"parts": []}),
    ],
)
def test_what_the_service_refuses(emu, raw, body):
    status, _, found = ask(raw, body)
    assert (status, found["error"]["code"], found["error"]["status"]) == (400, 400, "INVALID_ARGUMENT")
    assert emu.ledger.summary()["billed"] == 0


def test_unknown_paths_and_methods_are_not_found(emu, raw):
    for path, method in (
        (f"/v1beta/models/{MODEL}:explode", "POST"),
        (f"/v1beta/models/{MODEL}:generateContent", "GET"),
        ("/v1beta/nothing", "GET"),
    ):
        status, _, found = ask(raw, contents(), path=path, method=method)
        assert (status, found["error"]["status"]) == (404, "NOT_FOUND")


def exhausted(body: dict[str, Any]) -> dict[str, dict[str, Any]]:
    assert body["error"]["status"] == "RESOURCE_EXHAUSTED"
    return {detail["@type"].rpartition(".")[2]: detail for detail in body["error"].get("details", ())}


def test_limits_are_named_in_the_error_only(emu, raw):
    emu.configure(rpm=1)
    _, headers, _ = ask(raw, contents())
    assert not [name for name in headers if "limit" in name]
    status, headers, body = ask(raw, contents())
    assert status == 429
    assert not [name for name in headers if "limit" in name or "retry" in name]
    found = exhausted(body)
    [violation] = found["QuotaFailure"]["violations"]
    assert ("PerMinute" in violation["quotaId"], violation["quotaValue"]) == (True, "1")
    assert 50 < float(found["RetryInfo"]["retryDelay"].removesuffix("s")) <= 60


def test_tokens_have_their_own_quota(emu, raw):
    emu.configure(tpm=10)
    assert ask(raw, contents("x" * 40, generationConfig={"maxOutputTokens": 9999}))[0] == 200
    [violation] = exhausted(ask(raw, contents("x" * 40))[2])["QuotaFailure"]["violations"]
    assert ("Tokens" in violation["quotaId"], violation["quotaValue"]) == (True, "10")


def test_shared_capacity_names_no_quota(emu, raw):
    emu.configure(faults={"429_no_header": 1.0})
    assert exhausted(ask(raw, contents())[2]) == {}


def test_an_injected_limit_names_no_quota_that_is_not_there(emu, raw):
    """A client would take it for a limit, and keep to it."""
    emu.configure(faults={"429": 1.0}, fault_retry_after=0.25)
    found = exhausted(ask(raw, contents())[2])
    assert (set(found), found["RetryInfo"]["retryDelay"]) == ({"RetryInfo"}, "0.250000000s")
    emu.configure(rpm=9)
    assert exhausted(ask(raw, contents())[2])["QuotaFailure"]["violations"][0]["quotaValue"] == "9"


def test_the_days_quota_asks_for_a_wait_that_is_too_short(emu, raw):
    emu.configure(faults={"no_money": 1.0})
    found = exhausted(ask(raw, contents())[2])
    assert "PerDay" in found["QuotaFailure"]["violations"][0]["quotaId"]
    assert float(found["RetryInfo"]["retryDelay"].removesuffix("s")) < 60
    assert emu.ledger.summary()["billed"] == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_blocked_prompt_has_no_candidates(emu, sdk, stream):
    emu.configure(faults={"refusal": 1.0})
    if stream:
        [made] = sdk.models.generate_content_stream(model=MODEL, contents=PROMPT)
    else:
        made = sdk.models.generate_content(model=MODEL, contents=PROMPT)
    assert (made.candidates, made.prompt_feedback.block_reason) == (None, "SAFETY")
    assert emu.ledger.calls[0].billed == len(PROMPT) // 4


@pytest.mark.parametrize(
    ("fault", "error", "code"),
    sampled(
        [
            ("500", errors.ServerError, 500),
            ("503", errors.ServerError, 503),
            ("429", errors.ClientError, 429),
            ("429_no_header", errors.ClientError, 429),
            ("no_money", errors.ClientError, 429),
            ("html", errors.ServerError, 502),
            ("reset", httpx2.ReadError, None),
            ("reset_before", httpx2.ReadError, None),
            ("hang", httpx2.RemoteProtocolError, None),
            ("truncated", httpx2.RemoteProtocolError, None),
            ("bad_json", json.JSONDecodeError, None),
            ("html_200", json.JSONDecodeError, None),
        ],
        keep=3,
    ),
)
def test_the_sdk_meets_every_fault_as_at_the_service(emu, sdk, fault, error, code):
    emu.configure(faults={fault: 1.0})
    with pytest.raises(error) as caught:
        sdk.models.generate_content(model=MODEL, contents=PROMPT)
    if code is not None:
        assert caught.value.code == code
    assert emu.ledger.calls[0].fault == fault
