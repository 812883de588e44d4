"""Lists at the Gemini API create explicit caches of shared beginnings, read them, and delete them."""

from __future__ import annotations

import json
import urllib.request
from collections import Counter

import pytest

from smartbatch import BatchingClient
from smartbatch.providers.gemini.provider import GeminiProvider
from smartbatch.testing import PromptCaching, emulator

SYSTEM = "One of our many rules, which are long. " * 410  # about 4,000 tokens
QUESTIONS = [f"Question {n}?" for n in range(40)]


@pytest.fixture
def emu(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with emulator(prompt_caching=PromptCaching(), latency=0.01) as emu:
        yield emu


def gemini(emu, store, **settings):
    provider = GeminiProvider("any-key", emu.url)
    settings = {"max_tokens": 20, "prefer": "cost", "parallelism": 8, "batch_poll_interval": 0.02, **settings}
    return BatchingClient("gemini-3.8-flash", provider=provider, store=store and str(store), **settings)


def cache_calls(emu):
    """Count the calls about caches."""
    calls = Counter(call.endpoint.partition("/cachedContents")[0] for call in emu.ledger.calls)
    return {name.split()[0]: count for name, count in calls.items() if name.endswith("/v1")}


def live_caches(emu):
    asked = urllib.request.Request(f"{emu.url}/v1/cachedContents", headers={"x-goog-api-key": "any-key"})
    with urllib.request.urlopen(asked) as reply:
        return json.load(reply).get("cachedContents", [])


def paid_tokens(results):
    """Return the cost of the input, as a number of uncached input tokens."""
    usages = [result.usage for result in results]
    plain = sum(usage.input_tokens - 0.9 * usage.cached_tokens for usage in usages)
    return plain + sum(usage.explicit_cache_tokens for usage in usages)


def billed_tokens(emu):
    calls = [call for call in emu.ledger.calls if call.billed and call.prompt is not None]
    return sum(call.billed for call in calls) - 4 * len(calls) - emu.ledger.prompt_cache()["saved"]


def test_a_list_creates_one_cache_which_all_requests_read_and_deletes_it(emu, tmp_path):
    with gemini(emu, tmp_path / "jobs.db") as client:
        results = client.generate(QUESTIONS, system=SYSTEM, strategy="individual")
        assert all(result.usage.cached_tokens > 3_900 for result in results)
    assert cache_calls(emu) == {"POST": 1, "DELETE": 1}
    assert live_caches(emu) == []
    assert paid_tokens(results) == pytest.approx(billed_tokens(emu), abs=5)
    with gemini(emu, tmp_path / "jobs.db", prompt_caching="off") as client:
        plain = client.generate(QUESTIONS, system=SYSTEM, strategy="individual")
    assert results.texts == plain.texts
    assert results.cost < 0.5 * plain.cost  # implicit hits
