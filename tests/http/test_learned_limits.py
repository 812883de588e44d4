"""Limits that are not configured, over real HTTP: found in the answers, filled and kept.

Scaled so that a run takes some five seconds: 6,000 requests a minute with 150 at once, or as many tokens.
"""

from __future__ import annotations

import pytest

from smartbatch import BatchingClient
from smartbatch.providers.anthropic.provider import AnthropicProvider
from smartbatch.providers.base import Provider
from smartbatch.providers.gemini.provider import GeminiProvider
from smartbatch.providers.openai.provider import OpenAIProvider
from smartbatch.testing import Emulator, emulator
from tests.levels import sampled

CALLS = 600
WORKERS = 64


def provider_of(name: str, emu: Emulator) -> tuple[str, Provider]:
    if name == "openai":
        return "gpt-5-mini", OpenAIProvider("sk-of-nobody", emu.base_url)
    if name == "anthropic":
        return "claude-haiku-5-5", AnthropicProvider("sk-of-nobody", emu.url)
    return "gemini-3.8-flash", GeminiProvider("AIza-of-nobody", emu.url)


def run(name: str, emu: Emulator, max_tokens: int) -> tuple[float, int]:
    """Have all calls answered; returns the seconds between the first and the last one, and the refused."""
    model, provider = provider_of(name, emu)
    with BatchingClient(model, provider=provider, parallelism=WORKERS) as client:
        results = client.generate((f"question {n}" for n in range(CALLS)), max_tokens=max_tokens)
    calls = emu.ledger.calls
    admitted = [call.at for call in calls if call.admitted]
    assert results.failed == 0
    assert len(admitted) == CALLS
    return max(admitted) - min(admitted), len(calls) - CALLS


MOST = WORKERS + 6
"""Refusals: once of all workers at most. A thread that is held up for a moment can cause one in real
time; that headers keep refusals below 1 % is held in virtual time, by the tests of learned limits."""


@pytest.mark.full
@pytest.mark.parametrize("name", sampled(["openai", "anthropic", "gemini"]))
def test_a_limit_of_requests_is_filled_and_kept(name: str) -> None:
    """Used to 95 %, none lost, and all workers are refused once at most."""
    with emulator(latency=0.02, latency_sigma=0.3, seed=3, rpm=6000, burst=150) as emu:
        seconds, refused = run(name, emu, max_tokens=30)
    assert CALLS / (150 + 100 * seconds) >= 0.95
    assert refused <= MOST


@pytest.mark.full
@pytest.mark.parametrize("name", ["openai"])
def test_a_limit_of_tokens_is_filled_and_kept(name: str) -> None:
    """60,000 a minute, of which each call is charged its output cap of 105."""
    with emulator(latency=0.02, latency_sigma=0.3, seed=3, tpm=60_000) as emu:
        seconds, refused = run(name, emu, max_tokens=105)
    assert 105 * CALLS / (60_000 + 1000 * seconds) >= 0.95
    assert refused <= MOST
