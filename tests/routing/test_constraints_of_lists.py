"""Constraints of lists: invalid ones are refused whatever form the list has, valid ones are kept."""

from __future__ import annotations

from typing import Any

import pytest

from smartbatch import BatchingClient, ConfigError, Price, Request, Route, StoreError
from smartbatch.testing import MockProvider
from smartbatch.types import Prompt
from tests.levels import sampled

PROMPTS = [f"Prompt {n}" for n in range(12)]


@pytest.fixture
def client():
    with BatchingClient("sim:model?batch_seconds=0&latency=0", batch_poll_interval=0.1) as client:
        yield client


@pytest.mark.parametrize("budget", ["5 EUR", -1, float("nan"), "nothing"])
def test_a_plan_is_not_run_within_a_budget_that_is_none(client, budget):
    plan = client.plan(PROMPTS, strategy="batch")
    with pytest.raises(ConfigError, match="budget"):
        plan.run(budget=budget)
    assert client.jobs() == []


@pytest.mark.parametrize("strategy", sampled(["batch", "individual"], first=1))
def test_a_plan_can_be_run_within_a_budget_written_as_text(client, strategy):
    results = client.plan(PROMPTS, strategy=strategy).run(budget="0.10 USD")
    assert results.succeeded == len(PROMPTS)
    assert [job.status().done for job in client.jobs()] == [True] * (strategy == "batch")


@pytest.mark.parametrize(
    "constraint", [{"strategy": "fast"}, {"strategy": ["batch"]}, {"time_value": "much"}, {"budget": "5 EUR"}]
)
def test_a_constraint_that_is_none_is_refused_for_an_iterator_too(client, constraint):
    with pytest.raises(ConfigError, match=r"out of range|not a number|not an amount in USD"):
        client.map(iter(PROMPTS), **constraint)


def test_an_iterator_that_is_to_go_individually_shares_no_calls():
    provider = MockProvider(max_shared=4)
    with BatchingClient(provider, max_wait=0.5) as client:
        results = client.generate(iter(PROMPTS), strategy="individual")
    assert {result.route for result in results} == {Route.INDIVIDUAL}


@pytest.mark.parametrize("ask", [BatchingClient.plan, BatchingClient.forecast])
def test_equal_prompts_are_forecast_as_they_are_sent(ask):
    rows = [f"prompt {n}" for n in range(40)]
    prices = {"sim:model": Price(input=1, output=2)}
    with BatchingClient("sim:model", prices=prices) as client:
        alone, alike = ask(client, rows, strategy="batch"), ask(client, rows * 3, strategy="batch")
        each = ask(client, rows * 3, strategy="batch", deduplicate=False)
    assert (alike.requests, alike.duplicates, alike.cost) == (40, 80, alone.cost)
    assert [option.cost for option in alike.options] == [option.cost for option in alone.options]
    assert "; 80 more are duplicates and share an answer." in alike.explain()
    assert (each.requests, each.duplicates) == (120, 0)


@pytest.mark.parametrize("ask", sampled([BatchingClient.plan, BatchingClient.forecast], first=1))
@pytest.mark.parametrize("kept", sampled([False, True]))
def test_equal_prompts_far_apart_are_paid_once_by_a_job_or_a_cache(ask, kept, tmp_path):
    rows = [f"prompt {n}" for n in range(1500)]
    cache = str(tmp_path / "answers.db") if kept else None
    options = {"api_key": "k" * 20, "base_url": "http://127.0.0.1:9/v1"}
    prices = {"openai:model": Price(input=1, output=2)}
    with BatchingClient("openai:model", provider_options=options, prices=prices, cache=cache) as client:
        plans = {
            (strategy, times): ask(client, rows * times, strategy=strategy)
            for strategy in ("batch", "individual")
            for times in (1, 3)
        }
    paid = {
        strategy: (plans[strategy, 3].cost or 0) / (plans[strategy, 1].cost or 0)
        for strategy in ("batch", "individual")
    }
    assert paid["batch"] == pytest.approx(1.0)
    assert paid["individual"] == pytest.approx(1.0 if kept else 3.0)
    by_batch, alone = plans["batch", 3], plans["individual", 3]
    assert (by_batch.requests, by_batch.duplicates) == (1500, 3000)
    assert (by_batch.p50, by_batch.batches) == (plans["batch", 1].p50, plans["batch", 1].batches)
    assert (alone.requests, alone.duplicates) == ((1500, 3000) if kept else (4500, 0))
    repeated = "; 3,000 of them are repeated, and a job pays for those once."
    assert (repeated in by_batch.explain()) is not kept


def test_an_urgent_request_does_not_wait_for_an_identical_one_in_a_batch(client_of, remote, store):
    client = client_of(remote, store=store, prefer_individual_for={"chat"})
    requests: list[Prompt] = [Request("same"), *PROMPTS, Request("same", purpose="chat")]
    results = client.generate(requests, strategy="batch")
    assert [result.route for result in results if result.route is not Route.BATCH] == [Route.INDIVIDUAL] * 2
    assert results[0].text == results[-1].text
    assert results[-1].deduplicated


@pytest.mark.parametrize("strategy", sampled(["auto", "individual", "batch", "hybrid", "threshold"], keep=2))
@pytest.mark.parametrize("budget", sampled([None, "1 USD"], first=1))
def test_a_list_that_the_cache_knows_needs_no_route(strategy, budget, tmp_path):
    settings: dict[str, Any] = {"cache": str(tmp_path / "cache.db"), "batch_poll_interval": 0.1}
    with BatchingClient("sim:model?batch_seconds=0&latency=0", **settings) as client:
        first = client.generate(PROMPTS)
        again = client.generate(PROMPTS, strategy=strategy, budget=budget, deadline="2h")
        assert client.plan(PROMPTS, strategy=strategy, budget=budget).cached == len(PROMPTS)
        assert client.jobs() == []
    assert again.texts == first.texts
    assert {result.route for result in again} == {Route.CACHED}


@pytest.mark.parametrize("count", sampled([0, 1, 2, 3, 4], first=3))
@pytest.mark.parametrize("strategy", sampled(["batch", "hybrid", "threshold"], first=2))
def test_the_shortest_lists_are_sent_with_every_strategy(client, strategy, count):
    results = client.plan(PROMPTS[:count], strategy=strategy).run() if count else client.generate([])
    assert results.succeeded == count


def test_a_constraint_of_none_is_ignored(client_of, remote, store):
    client = client_of(remote, store=store)
    job = client.submit_batch(PROMPTS, strategy=None, prefer="speed", deadline=None)
    assert {result.route for result in job.results()} == {Route.BATCH}


@pytest.mark.catches("StoreError")
def test_where_no_store_can_be_opened_a_list_goes_in_real_time(tmp_path):
    (tmp_path / "file").write_text("no folder")
    with BatchingClient("sim:demo", store=str(tmp_path / "file" / "jobs.db")) as client:
        results = client.generate([f"text {n}" for n in range(20)], deadline="20h")
        assert {result.route for result in results} == {Route.INDIVIDUAL}
        with pytest.raises(StoreError):
            client.generate([f"text {n}" for n in range(20)], strategy="batch")


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.plan(PROMPTS, budget="5 USD"),
        lambda client: client.generate(PROMPTS, budget="5 USD", strategy="batch"),
        lambda client: client.generate(iter(PROMPTS), budget="5 USD"),
        lambda client: client.submit_batch(PROMPTS, budget="5 USD"),
    ],
    ids=["plan", "list", "iterator", "job"],
)
def test_a_budget_without_a_price_is_refused_before_anything_is_sent(ask, tmp_path):
    options = {"api_key": "k" * 20, "base_url": "http://127.0.0.1:9/v1"}
    with BatchingClient(
        "openai:unheard-of", provider_options=options, store=str(tmp_path / "jobs.db")
    ) as client:
        with pytest.raises(ConfigError, match="the price of openai:unheard-of is unknown"):
            ask(client)
        assert client.jobs() == []
        assert client.counts.waiting == 0


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({"parallelism": 12}, 12),
        ({"parallelism": 12, "max_parallel_individual": 3}, 3),
        ({"parallelism": 2, "max_parallel_individual": 3}, 2),
    ],
)
@pytest.mark.parametrize("way", sampled(["list", "iterator", "key"], first=2))
def test_a_list_sent_individually_keeps_to_its_calls(client_of, clock, tmp_path, settings, most, way):
    provider = MockProvider(latency=1.0, sleep=clock.sleep)
    client = client_of(provider, store=str(tmp_path / "jobs.db"), **settings)
    prompts = [f"p{i}" for i in range(24)]
    given = {"key": "k"} if way == "key" else {}
    results = list(client.map(iter(prompts) if way == "iterator" else prompts, **given))
    assert (len(results), provider.max_in_flight) == (24, most)
