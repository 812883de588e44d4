"""Budgets: cost is reserved before a call and charged after it, and finished work is kept (F1, E4)."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inside import inside, own_registry
from scenes import PATIENCE, Scripted, failure, submit_all, unavailable

from smartbatch._clock import VirtualClock
from smartbatch.client import BatchingClient
from smartbatch.errors import BudgetExceeded, ConfigError, ErrorKind
from smartbatch.events import CallFinished, CallStarted
from smartbatch.providers import registry
from smartbatch.types import Answer, Usage

PRICES = {"scripted:default": {"input": 0, "output": 1_000_000}}
"""One USD per output token."""


def make(clock, script, observer, **settings):
    provider = Scripted(clock, script, latency=lambda prompt: 0.1 + len(prompt) % 7, priced=True)
    given = {"prices": PRICES, "max_tokens": 10, "observers": [observer], "deduplicate": False, **settings}
    return BatchingClient(provider, clock=clock, rng=random.Random(1), **given)


@pytest.mark.full
@given(seed=st.integers(0, 2**32), budget=st.floats(0.0, 300.0), faults=st.sampled_from([0.0, 0.2]))
def test_no_budget_is_ever_exceeded(seed, budget, faults):
    clock, rng = VirtualClock(), random.Random(seed)
    costs = [rng.randrange(11) for _ in range(60)]
    broken = [rng.random() < faults for _ in range(60)]

    def script(prompt, attempt):
        number = int(prompt.split()[1])
        usage = Usage(0, costs[number])
        if broken[number] and attempt == 0:
            return failure(ErrorKind.SERVER_ERROR, status=500, usage=usage)
        return Answer("fine", usage=usage)

    def observe(event):
        if isinstance(event, CallStarted | CallFinished):
            assert (
                inside(client).realtime.budget.spent + inside(client).realtime.budget.reserved
                <= budget + 1e-6
            )

    client = make(clock, script, observe, parallelism=64, budget=budget, breaker_threshold=1000)
    with client, clock.held():
        futures = submit_all(client, [f"p {i}" for i in range(60)])
    assert client.spent <= budget + 1e-6
    errors = [future.exception(PATIENCE) for future in futures]
    assert all(error is None or isinstance(error, BudgetExceeded) for error in errors)
    if all(error is None for error in errors):
        assert sum(costs) <= budget + 1e-6
    else:
        assert budget - client.spent < 10.0  # less than the most expensive call


def test_the_rest_fails_and_what_was_finished_is_kept(clock, client_of):
    provider = Scripted(clock, lambda *_: Answer("fine", usage=Usage(0, 10)), priced=True)
    client = client_of(provider, budget=35.0, prices=PRICES, max_tokens=10, parallelism=2)
    results = client.generate([f"p{i}" for i in range(8)])
    assert [result.ok for result in results] == [True] * 3 + [False] * 5
    assert all(isinstance(result.error, BudgetExceeded) for result in results[3:])
    assert len(provider.starts) == 3
    assert client.spent == 30.0
    assert "$5.00 is left" in str(results[3].error)


def test_a_shared_call_reserves_no_more_than_there_is(clock, client_of):
    provider = Scripted(clock, lambda *_: Answer("fine", usage=Usage(0, 1)), priced=True, max_shared=10)
    client = client_of(provider, budget=35.0, prices=PRICES, max_tokens=10, parallelism=1)
    with clock.held():
        futures = submit_all(client, [f"p{i}" for i in range(20)])
    assert all(future.result(PATIENCE).ok for future in futures)
    assert max(provider.sizes) == 3
    assert client.spent == 20.0


def test_the_budget_outlives_a_restart(clock, client_of):
    provider = Scripted(clock, lambda *_: Answer("fine", usage=Usage(0, 10)), priced=True)
    client = client_of(provider, budget=15.0, prices=PRICES, max_tokens=10)
    assert client.submit("a").result(PATIENCE).ok
    client.stop()
    client.start()
    assert isinstance(client.submit("b").exception(PATIENCE), BudgetExceeded)


def test_a_budget_needs_a_price(clock, client_of):
    with pytest.raises(ConfigError, match=r"the price of scripted:default is unknown"):
        client_of(Scripted(clock, priced=True), budget=1.0)
    assert client_of(Scripted(clock, priced=True), budget=1.0, allow_unknown_price=True)


@pytest.mark.parametrize("costs", [(0.5, 0.25), (1e-9, 1e-9)])
def test_an_own_callable_may_say_what_it_cost(costs, clock, client_of):
    provider = Scripted(clock, lambda prompt, _: Answer("fine", cost=costs[int(prompt)]))
    client = client_of(provider)
    results = client.generate(["0", "1"])
    assert [result.cost for result in results] == list(costs)
    assert client.spent == pytest.approx(sum(costs))


def test_the_reservation_of_an_answer_without_usage_is_kept(clock, client_of):
    provider = Scripted(clock, lambda *_: Answer("fine"), priced=True)
    client = client_of(provider, budget=35.0, prices=PRICES, max_tokens=10, parallelism=2)
    results = client.generate([f"p{i}" for i in range(8)])
    answered = [result for result in results if result.ok]
    assert [(result.cost, result.unconfirmed_cost) for result in answered] == [(None, 10.0)] * 3
    assert all(result.usage.estimated and result.usage.output_tokens for result in answered)
    assert (client.spent, client.unconfirmed_cost) == (0.0, 30.0)
    assert (results.cost, results.unconfirmed_cost, results.cost_known) == (0.0, 30.0, False)
    assert results.unpriced == ()


def test_a_fallback_that_costs_more_reserves_more(clock, client_of, monkeypatch):
    down = Scripted(clock, lambda *_: unavailable(), priced=True, latency=0.1)
    dear = Scripted(clock, lambda *_: Answer("fine", usage=Usage(0, 10)), priced=True, name="dear")
    own_registry(monkeypatch)
    registry.register("dear", lambda name, _clock, _options: (dear, name))
    client = client_of(
        down,
        budget=100.0,
        prices={**PRICES, "dear:default": {"input": 0, "output": 3_000_000}},
        max_tokens=10,
        on_breaker_open="fallback",
        fallback_model="dear:default",
        breaker_threshold=2,
        breaker_pause=1_000.0,
        breaker_max_pause=1_000.0,
    )
    results = client.generate([f"p{i}" for i in range(10)])
    assert sum(result.ok for result in results) == 3
    assert client.spent == 90.0


def test_a_pack_that_says_its_cost_and_answers_nothing_is_paid(clock, client_of):
    provider = Scripted(clock, lambda *_: Answer("nonsense", cost=0.5))
    client = client_of(provider, packing=True, parallelism=1)
    with clock.held():
        client.submit("first")
        provider.wait_for(1)
        futures = submit_all(client, ["one", "two"])
    assert all(future.result(PATIENCE).ok for future in futures)
    client.stop()
    assert client.spent == 0.5 * len(provider.starts) == 2.0
