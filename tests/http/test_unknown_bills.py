"""Cost that may have been billed stays reserved, with every provider."""

from __future__ import annotations

import contextlib

import pytest

from smartbatch import BatchingClient, Price, ResultList, SmartbatchError
from smartbatch.testing import emulator
from tests.levels import sampled

MODELS = {"openai": "gpt-5-mini", "anthropic": "claude-haiku-5-5", "gemini": "gemini-3.8-flash"}
PRICE = 10.0
BUDGET = 0.005
each_provider = pytest.mark.parametrize("provider", sampled(sorted(MODELS), first=2))
FAULTS = ("reset", "truncated", "bad_json", "empty", "html_200")
LOST = sampled([(provider, fault) for provider in sorted(MODELS) for fault in FAULTS], keep=4)
BROKEN = sampled(
    [(provider, closed) for provider in sorted(MODELS) for closed in (True, False)], keep=2, first=1
)


def client_at(emu, provider, **more):
    url = emu.base_url if provider == "openai" else emu.url
    model = f"{provider}:{MODELS[provider]}"
    settings = {
        "budget": BUDGET,
        "max_tokens": 100,
        "retries": 0,
        "breaker_threshold": 1000,
        "call_timeout": 5.0,
        "shared": "off",
        **more,
    }
    prices = {model: Price(PRICE, PRICE, cached_input=PRICE, cache_write=PRICE)}
    return BatchingClient(
        model, prices=prices, provider_options={"api_key": "sk-of-the-test", "base_url": url}, **settings
    )


def billed(emu):
    return sum(call.billed for call in emu.ledger.calls) * PRICE / 1e6


@pytest.mark.parametrize(("provider", "closed"), BROKEN)
def test_streams_that_are_closed_or_cut_never_exceed_the_budget(provider, closed):
    settings = {"per_token": 0.03} if closed else {"faults": {"stream_end": 1.0}}
    with emulator(**settings) as emu, client_at(emu, provider) as client:
        results = []
        for n in range(40):
            with contextlib.suppress(SmartbatchError), client.stream(f"question {n}") as stream:
                for _ in stream:
                    if closed:
                        break
            results.append(stream.result)
        sent = [result for result in results if result.attempts]
        assert 0 < len(sent) < 40
        assert billed(emu) <= client.spent + client.unconfirmed_cost <= BUDGET
        lost = [result for result in sent if not result.ok]
        assert lost
        for result in lost:
            assert result.cost is None
            assert result.usage.estimated
            assert result.unconfirmed_cost >= 100 * PRICE / 1e6


@pytest.mark.parametrize(("provider", "fault"), LOST)
def test_lost_and_unreadable_answers_keep_their_reservations(provider, fault):
    with emulator(faults={fault: 1.0}) as emu, client_at(emu, provider) as client:
        results = ResultList(client.map([f"question {n}" for n in range(20)], on_error="result"))
        sent = [result for result in results if result.attempts]
        assert 0 < len(sent) < 20
        assert client.spent == 0.0
        assert billed(emu) <= client.unconfirmed_cost <= BUDGET
        assert {(result.cost, result.usage.unknown) for result in sent} == {(None, True)}
        assert results.unconfirmed_cost == pytest.approx(client.unconfirmed_cost)
        assert not results.cost_known
        assert results.unpriced == ()


def test_a_request_that_timed_out_during_its_call_has_unknown_cost():
    with emulator(latency=3.0) as emu, client_at(emu, "openai") as client:
        [result] = client.map(["question"], timeout=0.3)
        assert (result.cost, result.usage.unknown, result.ok) == (None, True, False)
        assert result.unconfirmed_cost >= 100 * PRICE / 1e6


def test_a_lost_answer_without_max_tokens_reserves_the_output_limit():
    with (
        emulator(faults={"reset": 1.0}) as emu,
        client_at(emu, "anthropic", max_tokens=None, budget=1.0) as one,
    ):
        assert one.submit("question").exception() is not None
        assert one.unconfirmed_cost == pytest.approx(4096 * PRICE / 1e6, rel=0.05)
    with (
        emulator(faults={"reset": 1.0}) as emu,
        client_at(emu, "openai", max_tokens=None, budget=5.0) as other,
    ):
        assert other.submit("question").exception() is not None
        assert other.unconfirmed_cost == pytest.approx(128_000 * PRICE / 1e6, rel=0.05)


@each_provider
def test_a_keyed_list_separates_earlier_cost_from_cost_paid_now(provider, tmp_path):
    prompts, store = [f"question {n}" for n in range(6)], str(tmp_path / "jobs.db")
    with emulator() as emu:
        with client_at(emu, provider, store=store, strategy="individual") as client:
            first = client.generate(prompts, key="labels")
        with client_at(emu, provider, store=store, strategy="individual") as client:
            again = client.generate(prompts, key="labels")
            assert client.spent == 0.0
        assert first.paid_now == pytest.approx(first.cost) == pytest.approx(billed(emu))
        assert (again.cost, again.usage) == (pytest.approx(first.cost), first.usage)
        assert again.paid_now == 0.0
        assert all(result.paid_before for result in again)
