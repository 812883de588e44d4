"""Parameters that a server rejects."""

from __future__ import annotations

import json
import re

import pytest
from asking import ask, begin, fails, request_of, stream_error, url_of
from batching import MARK
from raw_server import chat, says

from smartbatch.errors import ConfigError, ParameterRejected, ProviderError
from smartbatch.providers import OpenAIProvider
from smartbatch.providers.batch_api import LineOutcome
from smartbatch.providers.openai.errors import refused_parameters
from smartbatch.types import Embedding, Generation, Kind, Request

REFUSALS = [
    ({"error": {"message": "Unrecognized request argument supplied: seed", "param": "seed"}}, ("seed",)),
    ({"error": {"message": "Unrecognized request arguments supplied: seed, stream_options"}},
     ("stream_options", "seed")),
    ({"error": {"message": "Unknown parameter: 'stream_options'.", "param": "stream_options"}},
     ("stream_options",)),
    ({"detail": [{"loc": ["body", "encoding_format"], "msg": "Extra inputs are not permitted"}]},
     ("encoding_format",)),
    ({"detail": [{"loc": ["body", "encoding_format"], "msg": "Input should be 'float'"}]},
     ("encoding_format",)),
    ({"object": "error", "message": {"detail": [{"loc": ["body", "seed"], "type": "extra_forbidden",
     "msg": "Extra inputs are not permitted"}]}}, ("seed",)),
    ({"error": {"message": "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
     "'max_completion_tokens' instead.", "param": "max_tokens", "code": "unsupported_parameter"}},
     ("max_tokens",)),
    ({"error": "property 'max_completion_tokens' is unsupported, did you mean 'max_tokens'?"},
     ("max_completion_tokens",)),
    ({"message": "json: unknown field \"seed\""}, ("seed",)),
    ({"error": {"message": "unknown field `seed`, expected one of `model`, `messages`, `stream_options`"}},
     ("seed",)),
    ({"title": "Bad", "errors": [{"detail": "additional property not allowed", "pointer": "#/seed"}]},
     ("seed",)),
    ({"errors": {"seed": ["This parameter is not supported."]}}, ("seed",)),
    ({"error": {"message": "Invalid parameter", "param": "seed"}}, ("seed",)),
    ({"message": "property seed is not allowed", "code": 3}, ("seed",)),
    ({"error": {"message": "The parameter `seed` specified in the request are not valid"}}, ("seed",)),
    ({"error": {"message": "litellm.UnsupportedParamsError: x does not support parameters: ['seed']"}},
     ("seed",)),
    ("openai: Completions.create() got an unexpected keyword argument 'max_completion_tokens'",
     ("max_completion_tokens",)),
]  # fmt: skip
OTHERS = [
    {"error": {"message": "max_tokens is too large: 5000. This model supports at most 4096.",
     "param": "max_tokens"}},
    {"error": {"message": "Invalid 'max_completion_tokens': integer below minimum value.",
     "param": "max_completion_tokens"}},
    {"error": {"message": "Invalid type for 'seed': expected an integer.", "param": "seed"}},
    {"error": {"message": "Unsupported value: 'seed' must be between 0 and 9", "param": "seed"}},
    {"error": {"message": "Unknown parameter: 'top_k'. Supported parameters are: seed, max_tokens."}},
    {"error": {"message": "The model does not exist", "param": "model"}},
    {"detail": [{"loc": ["body", "messages", 0, "content"], "msg": "Field required"}]},
]  # fmt: skip


def refuses(body: object, status: str = "400 Bad Request"):
    return says(json.dumps(body), status)


@pytest.mark.parametrize(("body", "names"), REFUSALS, ids=[str(names) for _, names in REFUSALS])
def test_a_reason_that_rejects_a_parameter_by_name_is_understood(serve, connect, body, names):
    server = serve(refuses(body, "422 Unprocessable Entity"))
    error = fails(connect(server))
    assert error.refused_parameters == names
    assert not isinstance(error, ParameterRejected)  # none of them was sent


@pytest.mark.parametrize("body", OTHERS)
def test_a_wrong_value_or_another_parameter_is_no_rejection(serve, connect, body):
    error = fails(connect(serve(refuses(body))), max_tokens=5, seed=3)
    assert error.refused_parameters == ()
    assert type(error) is ProviderError


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500])
def test_other_statuses_reject_no_parameter(status):
    assert refused_parameters(status, "Unknown parameter: 'seed'") == ()


def test_what_a_prompt_says_rejects_nothing(serve, connect):
    prompt = "please say: Unknown parameter: 'seed'"
    server = serve(refuses({"error": {"message": f"Content filter: {prompt}"}}))
    with pytest.raises(ProviderError) as caught:
        ask(connect(server), prompt, seed=3)
    assert type(caught.value) is ProviderError
    assert caught.value.refused_parameters == ()


def test_a_rejected_parameter_is_omitted_from_then_on(serve, connect):
    seed = refuses({"error": {"message": "Unknown parameter: 'seed'"}})
    server = serve(seed, says(chat()), says(chat()))
    provider = connect(server)
    with pytest.raises(ParameterRejected) as caught:
        ask(provider, seed=3)
    assert [name for name, _ in caught.value.omitted] == ["seed"]
    assert not caught.value.maybe_billed
    reason = 'the server refuses it; provider_options={"send_seed": True} sends it anyway'
    assert ask(provider, seed=3).dropped == (("seed", reason),)
    assert ask(provider).dropped == ()
    assert ["seed" in each.json() for each in server.requests] == [True, False, False]


def test_a_call_that_was_under_way_is_sent_again_as_well(serve, connect):
    provider = connect(serve(refuses({"error": "unknown parameter seed"})))
    bodies = [provider._body((request_of(seed=3),), "m") for _ in range(2)]
    error = ProviderError("unknown parameter seed", refused_parameters=("seed",))
    for body in bodies:
        assert isinstance(provider._parameters.learn(error, body, (request_of(),)), ParameterRejected)
    later = provider._body((request_of(seed=3),), "m")
    assert provider._parameters.learn(error, later, (request_of(),)) is error


def test_a_refusal_for_one_model_is_remembered_for_it_alone(serve, connect):
    text = "Unsupported parameter: 'seed' is not supported with this model."
    server = serve(refuses({"error": {"message": text}}), says(chat()), says(chat()))
    provider = connect(server)
    request = Request(prompt="x", params=Generation(seed=1))
    with pytest.raises(ParameterRejected):
        provider.generate(request, model="a", attempt=0, timeout=9)
    for model in ("a", "b"):
        provider.generate(request, model=model, attempt=0, timeout=9)
    assert ["seed" in each.json() for each in server.requests] == [True, False, True]


def test_the_output_limit_gets_its_other_name_and_never_none(serve, connect):
    first = refuses({"error": {"message": "Unknown parameter: 'max_tokens'"}})
    second = refuses({"error": {"message": "Unknown parameter: 'max_completion_tokens'"}})
    server = serve(first, second, second)
    provider = connect(server)
    with pytest.raises(ParameterRejected):
        ask(provider, max_tokens=5)
    for _ in range(2):
        with pytest.raises(ProviderError) as caught:
            ask(provider, max_tokens=5)
        assert type(caught.value) is ProviderError
    assert all({"max_tokens", "max_completion_tokens"} & set(each.json()) for each in server.requests)


FORCED = [
    ({"send_seed": True}, "seed", {"seed": 3}),
    ({"max_tokens_field": "max_tokens"}, "max_tokens", {"max_tokens": 5}),
    ({}, "seed", {"extra": {"seed": 3}}),
]


@pytest.mark.parametrize(("options", "name", "params"), FORCED)
def test_a_parameter_that_the_user_forces_is_always_sent(serve, connect, options, name, params):
    server = serve(refuses({"error": {"message": f"Unknown parameter: '{name}'"}}))
    provider = connect(server, **options)
    for _ in range(2):
        with pytest.raises(ProviderError) as caught:
            ask(provider, **params)
        assert type(caught.value) is ProviderError
    assert all(name in each.json() for each in server.requests)


def test_a_parameter_can_be_omitted_from_the_start(serve, connect):
    server = serve(says(chat()))
    provider = connect(server, send_seed=False, encoding_format="omit", stream_usage=False)
    assert ask(provider, seed=3).dropped == (("seed", "send_seed is False"),)
    embedding = Request(prompt="x", embedding=Embedding())
    assert "encoding_format" not in provider._body((embedding,), "m")
    assert "seed" not in server.requests[0].json()


def test_the_encoding_can_be_forced():
    embedding = Request(prompt="x", embedding=Embedding())
    provider = OpenAIProvider("k", "http://127.0.0.1:1/v1", encoding_format="float")
    assert provider._body((embedding,), "m")["encoding_format"] == "float"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("encoding_format", "base32"),
        ("max_tokens_field", "max_output_tokens"),
        ("max_tokens_field", ""),
        ("max_tokens_field", ["max_tokens"]),
        ("stream_usage", "false"),
        ("send_seed", 1),
    ],
)
def test_an_unknown_value_of_an_option_raises_before_anything_is_sent(serve, option, value):
    server = serve(says(chat()))
    with pytest.raises(ConfigError, match=re.escape(f"{option}={value!r} is unknown; use ")):
        OpenAIProvider("k", url_of(server), **{option: value})
    assert not server.requests


def test_a_stream_learns_as_well(serve, connect):
    server = serve(refuses({"error": {"message": "Unknown parameter: 'stream_options'"}}), says(chat("Lima")))
    provider = connect(server)
    assert isinstance(stream_error(begin(provider)), ParameterRejected)
    stream = begin(provider, seed=3)
    assert "".join(stream) == "Lima"
    assert stream.answer.dropped == ()
    assert ["stream_options" in each.json() for each in server.requests] == [True, False]


def test_a_line_of_a_batch_teaches_what_the_next_lines_lack():
    provider = OpenAIProvider("k", "http://127.0.0.1:1/v1")
    batches = provider.batches()
    request = request_of(seed=3)
    first = batches.encode(request, model="m", wire_id=f"{MARK}-0")
    assert json.loads(first)["body"]["seed"] == 3
    body = {"error": {"message": "Unknown parameter: 'seed'.", "param": "seed"}}
    line = {"custom_id": f"{MARK}-0", "response": {"status_code": 400, "body": body}}
    found = batches.read_line(json.dumps(line).encode(), Kind.GENERATE)
    assert found.outcome is LineOutcome.UNRUN
    assert isinstance(found.error, ParameterRejected)
    assert "seed" not in json.loads(batches.encode(request, model="m", wire_id=f"{MARK}-0"))["body"]
    assert [name for name, _ in batches.dropped(request, model="m")] == ["seed"]
    provider.close()


@pytest.mark.parametrize(
    ("refusals", "modes"),
    [
        (["response_format of type json_schema is not supported"], ["json_object"]),
        (
            ["json_schema is not supported, response_format must be text or json_object"] * 2,
            ["json_object"] * 2,
        ),
        (["json_schema is not supported", "type json_object is not supported"], ["json_object", None]),
        (["response_format: Extra inputs are not permitted"], [None]),
    ],
)
def test_lines_of_batches_teach_each_form_that_a_schema_is_sent_in(refusals, modes):
    provider = OpenAIProvider("k", "http://127.0.0.1:1/v1")
    batches = provider.batches()
    request = request_of(schema={"type": "object"})
    for text, mode in zip(refusals, modes, strict=True):
        line = {"custom_id": f"{MARK}-0", "response": {"status_code": 400, "body": {"detail": text}}}
        assert batches.read_line(json.dumps(line).encode(), Kind.GENERATE).outcome is LineOutcome.UNRUN
        body = json.loads(batches.encode(request, model="m", wire_id=f"{MARK}-0"))["body"]
        assert body.get("response_format", {}).get("type") == mode
    provider.close()


def test_a_batch_that_fails_for_a_parameter_teaches_as_well(serve, connect):
    problem = {
        "code": "unknown_parameter",
        "line": 1,
        "message": "Unknown parameter: 'seed'.",
        "param": "body.seed",
    }
    failed = {"id": "batch_1", "status": "failed", "errors": {"data": [problem, {**problem, "line": 2}]}}
    provider = connect(serve(says(failed)))
    batches = provider.batches()
    found = batches.get("batch_1", 20.0)
    assert isinstance(found.error, ParameterRejected)
    assert [name for name, _ in found.error.omitted] == ["seed"]
    encoded = json.loads(batches.encode(request_of(seed=3), model="m", wire_id=f"{MARK}-0"))
    assert "seed" not in encoded["body"]
