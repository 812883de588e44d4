"""Wishes given from outside: what is none is refused at once, whatever form the list has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from smartbatch import BatchingClient, ConfigError, InvalidRequest, Request, Route
from smartbatch.models import Prompt
from smartbatch.testing import MockProvider

PROMPTS = [f"Prompt {n}" for n in range(12)]


@pytest.fixture
def client() -> Iterator[BatchingClient]:
    with BatchingClient("sim:model?batch_seconds=0&latency=0", batch_poll_interval=0.1) as client:
        yield client


@pytest.mark.parametrize("budget", ["5 EUR", -1, float("nan"), "nothing"])
def test_a_plan_is_not_run_within_a_budget_that_is_none(client: BatchingClient, budget: Any) -> None:
    plan = client.plan(PROMPTS, strategy="batch")
    with pytest.raises(ConfigError, match="budget"):
        plan.run(budget=budget)
    assert client.jobs() == []


@pytest.mark.parametrize("strategy", ["batch", "individual"])
def test_a_plan_can_be_run_within_a_budget_written_as_text(client: BatchingClient, strategy: str) -> None:
    results = client.plan(PROMPTS, strategy=strategy).run(budget="0.10 USD")
    assert results.succeeded == len(PROMPTS)
    assert [job.status().done for job in client.jobs()] == [True] * (strategy == "batch")


@pytest.mark.parametrize("single", ["Hello", {"messages": []}])
@pytest.mark.parametrize(
    "ask",
    [
        lambda client, prompts: client.plan(prompts),
        lambda client, prompts: client.generate(prompts, deadline="2h"),
        lambda client, prompts: client.submit_batch(prompts, deadline="2h"),
    ],
    ids=["plan", "list", "job"],
)
def test_a_single_prompt_is_no_list_of_its_letters(
    client: BatchingClient, ask: Callable[[BatchingClient, Any], object], single: Any
) -> None:
    with pytest.raises(InvalidRequest, match="not a single one"):
        ask(client, single)
    assert client.jobs() == []


@pytest.mark.parametrize("wish", [{"strategy": "fast"}, {"time_value": "much"}, {"budget": "5 EUR"}])
def test_a_wish_that_is_none_is_refused_for_an_iterator_too(
    client: BatchingClient, wish: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match="out of range"):
        client.map(iter(PROMPTS), **wish)


def test_an_iterator_that_is_to_go_individually_shares_no_calls() -> None:
    provider = MockProvider(max_shared=4)
    with BatchingClient(provider, max_wait=0.5) as client:
        results = client.generate(iter(PROMPTS), strategy="individual")
    assert {result.route for result in results} == {Route.INDIVIDUAL}


def test_a_hurried_request_does_not_wait_for_an_identical_one_in_a_batch() -> None:
    requests: list[Prompt] = [Request("same"), *PROMPTS, Request("same", purpose="chat")]
    with BatchingClient(
        "sim:model?batch_seconds=0&latency=0", batch_poll_interval=0.1, prefer_individual_for={"chat"}
    ) as client:
        results = client.generate(requests, strategy="batch")
    assert [result.route for result in results if result.route is not Route.BATCH] == [Route.INDIVIDUAL] * 2
    assert results[0].text == results[-1].text
    assert results[-1].deduplicated
