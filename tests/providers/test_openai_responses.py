"""The responses API."""

from __future__ import annotations

import pytest
from asking import SCHEMA, ask, fails, request_of
from raw_server import says

from smartbatch.errors import ErrorKind, InvalidRequest, ProviderError
from smartbatch.types import Generation, Message, Request, Usage
from tests.properties.real_bodies import response as real_response


def response(*parts: dict, status: str = "completed", **changes: object) -> dict:
    output = [{"type": "reasoning", "id": "rs_1", "summary": []}]
    output += [{"type": "message", "role": "assistant", "content": list(parts)}]
    found = real_response(status, output=output)
    found["usage"]["input_tokens_details"] = {"cached_tokens": 2, "cache_write_tokens": 40}
    return found | changes


def text(words: str) -> dict:
    return {"type": "output_text", "text": words, "annotations": []}


def test_the_body_of_a_response(serve, connect):
    server = serve(says(response(text("Li"), text("ma"))))
    answer = ask(
        connect(server, api="responses"),
        system="Be brief.",
        max_tokens=9,
        temperature=0.1,
        top_p=0.5,
        schema={"type": "object"},
    )
    assert server.requests[0].target == "/v1/responses"
    assert server.requests[0].json() == {
        "model": "gpt-5-mini",
        "input": "Capital of Peru?",
        "instructions": "Be brief.",
        "max_output_tokens": 9,
        "temperature": 0.1,
        "top_p": 0.5,
        "store": False,
        "text": {
            "format": {"type": "json_schema", "name": "answer", "strict": False, "schema": {"type": "object"}}
        },
    }
    assert (answer.text, answer.usage) == ("Lima", Usage(31, 78, 2, 64, cache_write_tokens=29))


def test_messages_and_formats_change_their_shape(serve, connect):
    server = serve(says(response(text("x"))))
    part = {"type": "text", "text": "a"}
    image = {"type": "input_image", "image_url": "data:,"}
    ask(
        connect(server, api="responses"),
        (Message("user", (part, image)), Message("assistant", (part,)), Message("user", "b")),
        response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {}}},
        extra={"store": True},
    )
    sent = server.requests[0].json()
    assert sent["input"] == [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, image]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
        {"role": "user", "content": "b"},
    ]
    assert sent["text"] == {"format": {"type": "json_schema", "name": "n", "schema": {}}}
    assert sent["store"] is True


@pytest.mark.parametrize("named", [{"schema": SCHEMA}, {"response_format": {"type": "json_object"}}])
def test_the_format_goes_next_to_what_extra_says_of_the_text(serve, connect, named):
    server = serve(says(response(text("x"))))
    ask(connect(server, api="responses"), **named, extra={"text": {"verbosity": "low"}})
    sent = server.requests[0].json()["text"]
    assert (sent.pop("verbosity"), sent["format"]["type"]) in [("low", "json_schema"), ("low", "json_object")]
    assert sent["format"].get("schema") == named.get("schema")


@pytest.mark.parametrize(
    ("params", "part"),
    [
        ({"schema": SCHEMA, "extra": {"text": {"format": {"type": "text"}}}}, "by schema and in extra"),
        (
            {"response_format": {"type": "text"}, "extra": {"text": {"format": {"type": "text"}}}},
            "by response_format and in extra",
        ),
        ({"schema": SCHEMA, "extra": {"text": "low"}}, "mapping"),
        ({"system": "a", "extra": {"instructions": "b"}}, "system is set twice"),
    ],
)
def test_what_would_be_said_twice_is_refused_before(serve, connect, params, part):
    server = serve(says(response(text("x"))))
    provider = connect(server, api="responses")
    with pytest.raises(InvalidRequest, match=part) as caught:
        provider.check(request_of(**params), model="m")
    assert caught.value.field == "extra"
    assert server.requests == []


@pytest.mark.parametrize(
    ("body", "words", "finish"),
    [
        (response({"type": "refusal", "refusal": "No."}), "No.", "refusal"),
        (
            response(text("Li"), status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
            "Li",
            "length",
        ),
        (
            response(text("Li"), status="incomplete", incomplete_details={"reason": "content_filter"}),
            "Li",
            "content_filter",
        ),
        (response(text("Li"), status="incomplete"), "Li", "length"),
        (response(text("Li"), status="incomplete", incomplete_details={"reason": None}), "Li", "length"),
        (response(output=[{"type": "function_call", "name": "f"}]), "", "tool_calls"),
        (response(output=[None, 3, {"type": "message", "content": [None, text("a")]}]), "a", "stop"),
        (response(text("a"), status=None), "a", "stop"),
    ],
)
def test_the_ends_of_a_response(serve, connect, body, words, finish):
    answer = ask(connect(serve(says(body)), api="responses"))
    assert (answer.text, answer.finish_reason) == (words, finish)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("server_error", ErrorKind.SERVER_ERROR),
        ("rate_limit_exceeded", ErrorKind.RATE_LIMIT),
        ("invalid_prompt", ErrorKind.CLIENT_ERROR),
        (None, ErrorKind.SERVER_ERROR),
    ],
)
def test_a_failed_response_is_an_error_although_the_status_is_200(serve, connect, code, kind):
    body = response(status="failed", error={"code": code, "message": "it broke"})
    with pytest.raises(ProviderError) as caught:
        ask(connect(serve(says(body)), api="responses"))
    assert (caught.value.kind, caught.value.code) == (kind, code)
    assert caught.value.usage == Usage(31, 78, 2, 64, cache_write_tokens=29)


@pytest.mark.parametrize("body", [{}, response(output=None), response(status="in_progress"), {"output": "x"}])
def test_a_response_without_output_is_invalid(serve, connect, body):
    error = fails(connect(serve(says(body)), api="responses"))
    assert error.kind is ErrorKind.INVALID_RESPONSE


@pytest.mark.parametrize("params", [{"stop": ("a",)}, {"seed": 3}])
def test_parameters_this_api_lacks_are_refused(serve, connect, params):
    provider = connect(serve(says(response())), api="responses")
    with pytest.raises(InvalidRequest, match="api='chat'") as caught:
        provider.check(Request(prompt="p", params=Generation(**params)), model="m")
    assert caught.value.field in params
