"""Limits that are not configured are discovered over HTTP and kept."""

from __future__ import annotations

import pytest

from smartbatch import BatchingClient
from smartbatch.providers.anthropic.provider import AnthropicProvider
from smartbatch.providers.gemini.provider import GeminiProvider
from smartbatch.providers.openai.provider import OpenAIProvider
from smartbatch.testing import emulator
from tests.levels import sampled

CALLS = 600
WORKERS = 64


def provider_of(name, emu):
    if name == "openai":
        return "gpt-5-mini", OpenAIProvider("sk-of-nobody", emu.base_url)
    if name == "anthropic":
        return "claude-haiku-5-5", AnthropicProvider("sk-of-nobody", emu.url)
    return "gemini-3.8-flash", GeminiProvider("AIza-of-nobody", emu.url)


def run(name, emu, max_tokens):
    model, provider = provider_of(name, emu)
    with BatchingClient(model, provider=provider, parallelism=WORKERS) as client:
        results = client.generate((f"question {n}" for n in range(CALLS)), max_tokens=max_tokens)
        [lane] = client.status.lanes
    calls = emu.ledger.calls
    assert results.failed == 0
    assert sum(call.admitted for call in calls) == CALLS
    return lane, len(calls) - CALLS


MOST = WORKERS + 6
"""Maximum number of refusals: one per worker, and a few in case threads are delayed."""


@pytest.mark.full
@pytest.mark.parametrize("name", sampled(["openai", "anthropic", "gemini"]))
def test_a_limit_of_requests_is_found_and_kept(name):
    with emulator(latency=0.02, latency_sigma=0.3, seed=3, rpm=6000, burst=150) as emu:
        lane, refused = run(name, emu, max_tokens=30)
    assert lane.requests_per_minute == pytest.approx(6000, rel=0.02)
    assert refused <= MOST


@pytest.mark.full
@pytest.mark.parametrize("name", ["openai"])
def test_a_limit_of_tokens_is_found_and_kept(name):
    with emulator(latency=0.02, latency_sigma=0.3, seed=3, tpm=60_000) as emu:
        lane, refused = run(name, emu, max_tokens=105)
    assert lane.tokens_per_minute == pytest.approx(60_000, rel=0.02)
    assert refused <= MOST
