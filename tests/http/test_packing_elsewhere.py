"""Packing and structured answers with the other two APIs, through their real SDKs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from attrs import frozen

from smartbatch import BatchingClient
from smartbatch.emulator.composed_answers import answer_for
from smartbatch.providers.anthropic.provider import AnthropicProvider
from smartbatch.providers.base import Provider
from smartbatch.providers.gemini.provider import GeminiProvider
from smartbatch.testing import Emulator, emulator

MODELS = {"anthropic": "claude-haiku-5-5", "gemini": "gemini-3.8-flash"}


@frozen
class Note:
    text: str
    stars: int


@pytest.fixture
def emu() -> Iterator[Emulator]:
    with emulator(latency=0.01) as emu:
        yield emu


def provider_of(name: str, emu: Emulator) -> Provider:
    if name == "anthropic":
        return AnthropicProvider("sk-ant-of-the-test", emu.url)
    return GeminiProvider("AIza-of-the-test", emu.url)


@pytest.mark.parametrize("name", MODELS)
def test_packed_prompts_are_answered_as_alone(emu, name):
    prompts = [f"Question {i}?" for i in range(100)]
    with BatchingClient(MODELS[name], provider=provider_of(name, emu), packing=True) as client:
        results = client.generate(prompts)
    assert [result.text for result in results] == [answer_for(prompt, MODELS[name]) for prompt in prompts]
    assert emu.ledger.received < 40


@pytest.mark.parametrize("name", MODELS)
def test_a_class_is_asked_for_and_answered(emu, name):
    with BatchingClient(MODELS[name], provider=provider_of(name, emu)) as client:
        result = client.submit("Write a note.", schema=Note).result(30)
    assert isinstance(result.parsed, Note)
    assert result.parsed.text == answer_for("Write a note.", MODELS[name])
