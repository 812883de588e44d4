"""Answers that do not fit their schema are repaired, paid for each time, and finally fail (D7, E3, E4)."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable

import pytest
from attrs import frozen
from scenes import PATIENCE

from smartbatch.client import BatchingClient
from smartbatch.core.preparation import structured
from smartbatch.errors import AnswerUnread, ErrorKind, InvalidRequest, ValidationFailed
from smartbatch.events import RetryScheduled
from smartbatch.providers import MockProvider
from smartbatch.types import Answer, Generation, Request, Usage


@frozen
class City:
    name: str
    people: int


GOOD = json.dumps({"name": "Oslo", "people": 700_000})
BAD = json.dumps({"name": "Oslo", "people": "canary-many"})


def paid(text, **more):
    return Answer(text, usage=Usage(10, 5), **more)


def failed(client, **params):
    error = client.submit("Which city?", schema=City, **params).exception(PATIENCE)
    assert isinstance(error, ValidationFailed)
    return error


def test_an_answer_becomes_an_object_of_the_class(client_of):
    provider = MockProvider([f"Sure:\n```json\n{GOOD}\n```"])
    result = client_of(provider).submit("Which city?", schema=City).result(PATIENCE)
    assert result.parsed == City("Oslo", 700_000)
    schema = provider.calls[0].request.params.schema
    assert schema is not None
    assert schema["required"] == ["name", "people"]


def test_the_class_may_be_the_clients_or_the_requests(client_of):
    expected = City("Oslo", 700_000)
    assert client_of(MockProvider([GOOD]), schema=City).submit("q").result(PATIENCE).parsed == expected
    request = Request("q", Generation(schema=City))
    assert client_of(MockProvider([GOOD])).submit(request).result(PATIENCE).parsed == expected
    found = client_of(MockProvider(lambda _: GOOD)).generate(["a", "b"], schema=City)
    assert [result.parsed for result in found] == [expected, expected]
    hooked = client_of(MockProvider([GOOD]), preprocess=[lambda r: Request(r.prompt, r.params)], schema=City)
    assert hooked.submit("q").result(PATIENCE).parsed == expected


@pytest.mark.parametrize("failures", [2, 3])
def test_an_error_of_ours_is_no_verdict_on_a_paid_answer(client_of, monkeypatch, failures):
    left = [ImportError("half made")] * failures

    def recovered(text):
        if left:
            raise left.pop()
        return json.loads(text)

    monkeypatch.setattr(structured, "recover_json", recovered)
    provider = MockProvider([paid(GOOD)])
    future = client_of(provider).submit("q", schema=City)
    future.exception(PATIENCE)
    result = future.outcome
    assert result is not None
    assert (result.text, len(provider.calls)) == (GOOD, 1)
    if failures == 2:
        assert result.parsed == City("Oslo", 700_000)
        return
    assert type(result.error) is AnswerUnread
    assert result.error.text == GOOD
    assert "smartbatch itself failed" in str(result.error)
    assert pickle.loads(pickle.dumps(result.error)).text == GOOD


def test_an_invalid_answer_is_repaired_and_every_answer_is_billed(client_of):
    provider = MockProvider([paid(BAD), paid(GOOD)])
    events = []
    client = client_of(provider, observers=[events.append])
    result = client.submit("Which city?", schema=City).result(PATIENCE)
    assert result.parsed == City("Oslo", 700_000)
    assert (result.attempts, result.usage) == (2, Usage(20, 10))
    again = provider.calls[1].request
    assert isinstance(again.prompt, tuple)
    assert [message.role for message in again.prompt] == ["user", "assistant", "user"]
    assert "canary-many" in str(again.prompt[2].content)
    assert again.params.temperature == 0.0
    retries = [event for event in events if isinstance(event, RetryScheduled)]
    assert [(event.kind, event.counted) for event in retries] == [("validation", False)]
    assert not any("canary" in str(event) for event in events)


def test_after_its_tries_the_request_fails_without_repeating_the_answer(client_of):
    provider = MockProvider(lambda _: paid(BAD))
    error = failed(client_of(provider))
    assert (error.kind, error.tries, len(provider.calls)) == (ErrorKind.INVALID_RESPONSE, 4, 4)
    assert error.usage == Usage(40, 20)
    assert "at people (int_parsing)" in str(error)
    assert "canary" not in str(error)
    # each repair starts from the question and contains only the last failure
    assert [len(call.request.prompt) for call in provider.calls[1:]] == [3, 3, 3]
    assert [call.request.params.temperature for call in provider.calls] == [None, 0.0, 0.25, 0.5]


@pytest.mark.parametrize("given", [0.0, 0.7, 1.5])
def test_repairs_run_at_their_own_temperatures(client_of, given):
    provider = MockProvider(lambda _: paid(BAD))
    failed(client_of(provider, validation_retries=4), temperature=given)
    assert [call.request.params.temperature for call in provider.calls] == [given, 0.0, 0.25, 0.5, 0.5]


def test_a_repair_replaces_a_temperature_in_extra(client_of):
    provider = MockProvider([paid(BAD), paid(GOOD)])
    client_of(provider).submit("q", schema=City, extra={"temperature": 1.2, "top_k": 3}).result(PATIENCE)
    params = provider.calls[1].request.params
    assert (params.temperature, params.extra) == (0.0, {"top_k": 3})


class Reasoning(MockProvider):
    def takes_temperature(self, model):
        return False


@pytest.mark.parametrize("given", [None, 1.0])
def test_a_model_that_takes_no_temperature_is_reported(client_of, given):
    provider = Reasoning([paid(BAD), paid(GOOD)])
    result = client_of(provider).submit("q", schema=City, temperature=given).result(PATIENCE)
    assert [call.request.params.temperature for call in provider.calls] == [given, given]
    assert [name for name, _ in result.dropped] == ["temperature"]
    always_bad = Reasoning(lambda request: paid(GOOD if request.prompt == "other" else BAD))
    failing, _ = client_of(always_bad).generate(["q", "other"], schema=City)
    assert (failing.ok, [name for name, _ in failing.dropped]) == (False, ["temperature"])


def test_a_callable_is_told_the_attempt_and_its_temperature():
    told = []

    def ask(request, attempt):
        told.append((int(attempt), attempt.temperature, request.params.temperature))
        return BAD if attempt < 3 else GOOD

    for call in (None, ask):
        told.clear()
        with BatchingClient(ask, shared="off") as client:
            result = client.submit("q", schema=City, call=call).result(PATIENCE)
        assert result.parsed == City("Oslo", 700_000)
        assert told == [(0, None, None), (1, 0.0, 0.0), (2, 0.25, 0.25), (3, 0.5, 0.5)]


def test_tries_for_validation_and_for_the_network_are_counted_apart(client_of):
    provider = MockProvider([BAD, BAD, GOOD], fail_on={2: ErrorKind.SERVER_ERROR})
    client = client_of(provider, retries=1, validation_retries=2)
    assert client.submit("q", schema=City).result(PATIENCE).attempts == 4
    assert failed(client_of(MockProvider(lambda _: BAD), validation_retries=0)).tries == 1


@pytest.mark.parametrize("reason", ["length", "refusal", "content_filter"])
def test_a_cut_or_refused_answer_fails_at_once(client_of, reason):
    provider = MockProvider(lambda _: paid(BAD, finish_reason=reason))
    error = failed(client_of(provider))
    assert (error.finish_reason, len(provider.calls)) == (reason, 1)


def test_a_dropped_temperature_is_not_set_again(client_of):
    dropped = (("temperature", "not taken"),)
    provider = MockProvider([paid(BAD, dropped=dropped), GOOD])
    client_of(provider).submit("q", schema=City, temperature=0.7).result(PATIENCE)
    assert provider.calls[1].request.params.temperature == 0.7


def test_a_tool_call_is_no_answer_to_check(client_of):
    provider = MockProvider([Answer(None, finish_reason="tool_calls")])
    result = client_of(provider).submit("q", schema=City).result(PATIENCE)
    assert (result.parsed, result.finish_reason) == (None, "tool_calls")


def test_equal_prompts_for_different_classes_are_different_requests(clock, client_of):
    one = frozen(type("City", (), {"__annotations__": {"name": str, "people": int}}))
    provider = MockProvider(lambda _: GOOD, latency=1.0, sleep=clock.sleep)
    client = client_of(provider)
    with clock.held():
        futures = [client.submit("q", schema=kind) for kind in (City, one, City)]
    results = [future.result(PATIENCE) for future in futures]
    assert [type(result.parsed) for result in results] == [City, one, City]
    assert len(provider.calls) == 2
    assert [result.deduplicated for result in results] == [False, False, True]


@pytest.mark.parametrize("schema", [{"type": "objekt"}, {"$ref": "http://example.org"}, 7, Callable[[], int]])
def test_an_invalid_schema_is_rejected_before_anything_is_sent(client_of, schema):
    client = client_of(MockProvider())
    with pytest.raises(InvalidRequest, match=r"row 0.*schema") as caught:
        client.generate([Request("q", Generation(schema=schema))])
    assert caught.value.field == "schema"


def test_a_response_format_is_decoded_where_it_can_be(client_of):
    provider = MockProvider([f"```json\n{GOOD}\n```", "no"])
    client = client_of(provider, response_format={"type": "json_object"})
    assert client.submit("a").result(PATIENCE).parsed == json.loads(GOOD)
    assert client.submit("b").result(PATIENCE).parsed is None
