"""Packed prompts and structured answers over HTTP (A13, D7)."""

from __future__ import annotations

import json

import pytest
from attrs import frozen
from core.batching.hostile_prompts import HOSTILE

from smartbatch import BatchingClient, ValidationFailed
from smartbatch.emulator.composed_answers import answer_for
from smartbatch.testing import emulator
from tests.levels import sampled

MODELS = {"openai": "gpt-4.1-mini", "anthropic": "claude-haiku-5-5", "gemini": "gemini-3.8-flash"}
SERVICES, MODEL = list(MODELS), MODELS["openai"]


@frozen
class Note:
    text: str
    stars: int
    tags: list[str]


@pytest.fixture
def emu():
    with emulator(latency=0.01) as emu:
        yield emu


def client_of(emu, service="openai", **settings):
    url = emu.base_url if service == "openai" else emu.url
    options = {"api_key": "AIza-of-the-test", "base_url": url}
    return BatchingClient(f"{service}:{MODELS[service]}", provider_options=options, parallelism=8, **settings)


@pytest.mark.full
def test_packed_prompts_get_the_answers_they_would_get_alone(emu):
    prompts = [prompt for prompt in HOSTILE if prompt.strip()][:100] + [f"Question {i}?" for i in range(900)]
    with client_of(emu, packing=True) as client:
        results = client.generate(prompts)
    assert [result.text for result in results] == [answer_for(prompt, MODEL) for prompt in prompts]
    assert emu.ledger.received < 350
    assert results.usage.total_tokens == sum(call.billed for call in emu.ledger.calls)


def test_packed_answers_teach_the_forecast_of_the_next_list(emu):
    prompts = [f"Classify ticket {i}: the invoice is wrong" for i in range(20)]
    with client_of(emu, packing=True) as client:
        first = client.plan(prompts).cost
        paid = client.generate(prompts).cost
        then = client.plan(prompts).cost
    assert first is not None
    assert then is not None
    assert first > 10 * paid
    assert paid / 2 < then < 2 * paid


@pytest.mark.full
def test_packing_goes_on_through_faults(emu):
    emu.configure(faults=0.1)
    prompts = [f"Question {i}?" for i in range(400)]
    with client_of(
        emu, packing=True, retry_initial=0.01, breaker_pause=0.01, retries=10, call_timeout=1.0
    ) as client:
        results = client.generate(prompts)
    assert [result.text for result in results] == [answer_for(prompt, MODEL) for prompt in prompts]


@pytest.mark.parametrize("service", SERVICES)
def test_a_class_is_asked_for_and_answered(emu, service):
    with client_of(emu, service) as client:
        result = client.submit("Write a note.", schema=Note).result(30)
    assert isinstance(result.parsed, Note)
    assert result.parsed.text == answer_for("Write a note.", client.model)


@pytest.mark.parametrize("service", sampled(SERVICES[1:]))
def test_other_services_answer_packed_prompts_as_well(emu, service):
    prompts = [f"Question {i}?" for i in range(100)]
    with client_of(emu, service, packing=True) as client:
        results = client.generate(prompts)
    assert [result.text for result in results] == [answer_for(prompt, client.model) for prompt in prompts]
    assert emu.ledger.received < 40


def test_a_service_that_answers_prose_is_told_and_then_given_up(emu):
    emu.configure(answers={"Write a note.": "canary prose"})
    with client_of(emu, deduplicate=False) as client:
        future = client.submit("Write a note.", schema={"type": "object", "required": ["never"]})
        error = future.exception(30)
    assert isinstance(error, ValidationFailed)
    assert error.tries == 4
    assert error.usage.total_tokens == sum(call.billed for call in emu.ledger.calls)
    assert "canary" not in str(error)


def test_a_fenced_answer_needs_no_second_call(emu):
    note = json.dumps({"text": "t", "stars": 5, "tags": []})
    emu.configure(answers={"Write a note.": f"Here it is:\n```json\n{note}\n```"})
    with client_of(emu) as client:
        assert client.submit("Write a note.", schema=Note).result(30).parsed == Note("t", 5, [])
    assert emu.ledger.received == 1
