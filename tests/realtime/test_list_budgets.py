"""Budgets of single lists, within the client's budget."""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from scenes import PATIENCE, InTime, Scripted, eventually, submit_all

from smartbatch import BatchingClient, Price
from smartbatch._clock import VirtualClock
from smartbatch.errors import BudgetExceeded, ErrorKind, ProviderError
from smartbatch.providers.mock import MockProvider
from smartbatch.types import Answer, Usage
from tests.levels import sampled

PRICES = dict.fromkeys(("m", "scripted:default"), Price(input=0.0, output=1_000_000.0))
"""One USD per output token."""
MOST = 9


def spending_client(tokens, *, latency=0.0, sleep=None, **settings):
    def answer(request):
        return Answer("ok", usage=Usage(1, tokens(request.prompt)))

    provider = MockProvider(answer, latency=latency, sleep=sleep)
    provider.capabilities = type(provider.capabilities)(priced=True)
    return BatchingClient("m", provider=provider, prices=PRICES, **settings)


def questions(count, mark="question"):
    return (f"{mark} {number}" for number in range(count))


def spent(results):
    return sum(result.cost or 0.0 for result in results)


def test_a_list_stops_before_its_budget_does_and_keeps_what_was_answered():
    with spending_client(lambda _: 3) as client:
        results = client.generate(questions(10), max_tokens=3, budget="10 USD")
    assert results.succeeded == 3
    assert spent(results) == pytest.approx(9.0)
    assert all(isinstance(result.error, BudgetExceeded) for result in results if not result.ok)
    assert "this list's budget" in str(results[-1].error)


@pytest.mark.parametrize("taught", sampled([0, 30], first=1))
@pytest.mark.parametrize("planned", sampled([1, 3, 40], first=2))
def test_a_plan_is_run_as_forecast_where_its_requests_may_cost_far_more(taught, planned):
    clock = VirtualClock()
    with spending_client(lambda _: 3, clock=clock, latency=1.0, sleep=clock.sleep) as client:
        client.generate(questions(taught), max_tokens=1000)
        plan = client.plan(list(questions(planned, "planned")), max_tokens=1000)
        began = clock.now()
        results = plan.run()
        assert clock.now() - began == pytest.approx(-(-planned // client.config.parallelism), rel=0.1)
    assert results.succeeded == planned


def test_a_plan_without_a_budget_stops_if_it_costs_far_more():
    with spending_client(lambda prompt: 900 if prompt.startswith("planned") else 3) as client:
        client.generate(questions(30), max_tokens=1000)
        plan = client.plan(list(questions(200, "planned")), max_tokens=1000)
        assert plan.cost_high is not None
        results = plan.run()
        assert plan.cost_high < spent(results) <= plan.cost_high + client.config.parallelism * 1000
    assert all(isinstance(result.error, BudgetExceeded) for result in results if not result.ok)


def test_a_call_whose_answer_is_lost_counts_at_its_most():
    calls = []

    def lose(request):
        calls.append(request.prompt)
        raise ProviderError("reset", kind=ErrorKind.NETWORK_ERROR, maybe_billed=True)

    provider = MockProvider(lose)
    provider.capabilities = type(provider.capabilities)(priced=True)
    with BatchingClient("m", provider=provider, prices=PRICES, clock=VirtualClock(), budget=20.0) as client:
        results = list(client.map(questions(5), max_tokens=3, budget=10.0))
        assert (client.spent, client.unconfirmed_cost) == (0.0, 9.0)
    assert len(calls) == 3
    assert not any(result.ok for result in results)
    assert [result.cost for result in results].count(None) == sum(result.attempts > 0 for result in results)
    assert sum(result.unconfirmed_cost for result in results) == 9.0


def test_lists_side_by_side_keep_their_own_budgets_and_the_client_s():
    with spending_client(lambda _: 2, budget=30.0, parallelism=8) as client:
        with ThreadPoolExecutor(3) as pool:
            lists = pool.map(
                lambda who: client.generate(questions(12, who), max_tokens=2, budget=14.0),
                range(3),
            )
            costs = [spent(results) for results in lists]
        assert all(cost <= 14.0 for cost in costs)
        assert sum(costs) == pytest.approx(30.0)
        assert client.spent == pytest.approx(30.0)


def test_only_a_list_spends_from_its_budget_where_others_ask_the_same(clock, client_of):
    provider = Scripted(clock, lambda *_: Answer("ok", usage=Usage(1, 3)), priced=True)
    client = client_of(provider, parallelism=1, prices=PRICES)
    with clock.held():
        listed = InTime(clock, lambda: list(client.map(questions(2), max_tokens=3, budget="4 USD")))
        eventually(lambda: client.queue_size == 1)
        first, second = submit_all(client, ["question 1"] * 2, max_tokens=3)
    assert [result.ok for result in listed.result()] == [True, False]
    assert [first.result(PATIENCE).cost, second.result(PATIENCE).cost] == [3.0, 0.0]
    assert client.spent == 6.0


def test_a_list_that_waits_for_its_own_money_holds_up_nobody_else(clock, client_of):
    provider = Scripted(
        clock,
        lambda *_: Answer("ok", usage=Usage(1, 1)),
        priced=True,
        latency=lambda prompt: 1.0 if prompt.startswith("other") else 100.0,
    )
    client = client_of(provider, parallelism=8, prices=PRICES)
    with clock.held():
        listed = InTime(clock, lambda: client.generate(questions(400), max_tokens=3, budget="5 USD"))
        eventually(lambda: client.queue_size == 399)
        others = submit_all(client, [f"other {number}" for number in range(5)], max_tokens=3)
    assert all(other.result(PATIENCE).queued < 1.0 for other in others)
    assert [result.ok for result in listed.result()] == [True] * 3 + [False] * 397
    began = [(start.at, start.prompt) for start in provider.starts if start.prompt.startswith("question")]
    assert began == [(0.0, "question 0"), (100.0, "question 1"), (200.0, "question 2")]


def test_a_list_with_little_money_is_sent_in_order(clock, client_of):
    provider = Scripted(clock, lambda *_: Answer("ok", usage=Usage(1, 0)), priced=True)
    client = client_of(provider, parallelism=8, prices=PRICES)
    with clock.held():
        listed = InTime(clock, lambda: client.generate(questions(20, ""), max_tokens=2, budget="8 USD"))
        eventually(lambda: client.queue_size == 16)
        others = submit_all(client, [f"other {number}" for number in range(8)])
    assert listed.result().succeeded == 20
    assert all(other.result(PATIENCE).ok for other in others)
    began = [(start.at, int(start.prompt)) for start in provider.starts if "other" not in start.prompt]
    assert [number for _, number in sorted(began)] == list(range(20))
    assert began[-1][0] == 4.0


class Billing:
    """Answers at a random cost, or fails: not billed, billed and reported, or billed with the answer lost."""

    def __init__(self, rng, faults):
        self.bill = Counter[str]()
        self._rng, self._faults, self._lock = rng, faults, threading.Lock()

    def __call__(self, request):
        with self._lock:
            fate = self._rng.random() / self._faults if self._faults else 1.0
            tokens = 0 if fate < 0.3 else self._rng.randint(0, MOST)
            self.bill[str(request.prompt).split()[0]] += tokens
        if fate < 0.6:
            usage = Usage(1, tokens) if tokens else None
            raise ProviderError("overloaded", kind=ErrorKind.SERVER_ERROR, status=500, usage=usage)
        if fate < 1.0:
            raise ProviderError("connection reset", kind=ErrorKind.NETWORK_ERROR, maybe_billed=True)
        return Answer("ok", usage=Usage(1, tokens))


@pytest.mark.parametrize("seed", sampled(range(15), keep=1, first=1))
def test_lists_and_a_job_side_by_side_never_exceed_a_budget(seed, store):
    rng = random.Random(seed)
    billing = Billing(random.Random(seed + 1), rng.choice([0.0, 0.1, 0.3]))
    budget = rng.uniform(30, 400) if rng.random() < 0.7 else None
    bounds = {f"list{n}": rng.choice([None, rng.uniform(5, 200)]) for n in range(rng.randint(1, 3))}
    provider = MockProvider(billing)
    provider.capabilities = type(provider.capabilities)(priced=True)
    settings = {"budget": budget, "parallelism": 64, "max_tokens": MOST, "store": store, "prices": PRICES}

    def ask(name, own):
        return list(client.map(questions(60, name), budget=own))

    def submit(own):
        prompts = [f"job {number}" for number in range(int(own / MOST))]
        job = client.submit_batch(prompts, budget=own, strategy="individual", batch_fallback="individual")
        return list(job.results())

    with (
        BatchingClient(
            "m", provider=provider, clock=VirtualClock(), rng=random.Random(seed), **settings
        ) as client,
        ThreadPoolExecutor(len(bounds) + 1) as pool,
    ):
        asked = [pool.submit(ask, name, own) for name, own in bounds.items()]
        if seed % 2:
            bounds["job"] = float(MOST * rng.randint(5, 30))  # billed retries may exceed it
            asked.append(pool.submit(submit, bounds["job"]))
        results = [result for each in asked for result in each.result()]
    assert any(result.ok for result in results)
    assert all(bound is None or billing.bill[name] <= bound + 1e-6 for name, bound in bounds.items())
    assert budget is None or billing.bill.total() <= budget + 1e-6
