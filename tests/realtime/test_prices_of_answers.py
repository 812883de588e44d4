"""The price of an answer: that of its hour, and of the tier that answered."""

from __future__ import annotations

import pytest
from scenes import PATIENCE, Scripted

from smartbatch.errors import BudgetExceeded, InvalidRequest
from smartbatch.prices import Price
from smartbatch.providers.openai.errors import FLEX_TIER
from smartbatch.types import Answer, Usage

USAGE = Usage(1_000_000, 0)
MONDAY_PEAK, OFF_PEAK = 1_795_420_800.0, 1_795_456_800.0  # 08:00 and 18:00 UTC on 2026-11-23


def answered(tier: str | None = None):
    return lambda prompt, attempt: Answer("yes", usage=USAGE, tier=tier)


class Tiered(Scripted):
    def flex(self, model):
        return FLEX_TIER


def test_a_client_that_runs_into_another_hour_pays_its_price(clock, client_of):
    provider = Scripted(clock, answered(), priced=True, name="deepseek")
    client = client_of(provider, max_tokens=10)
    clock.set_wall(MONDAY_PEAK - clock.wall())
    peak = client.submit("one", model="deepseek-v4-pro").result(PATIENCE).cost
    clock.set_wall(OFF_PEAK - clock.wall())
    later = client.submit("two", model="deepseek-v4-pro").result(PATIENCE).cost
    assert (peak, later) == (pytest.approx(1.32), pytest.approx(0.66))


@pytest.mark.parametrize(
    ("tier", "factor"), [(None, 1.0), ("default", 1.0), ("priority", 2.0), ("fast", 2.0), ("flex", 0.5)]
)
def test_an_answer_costs_the_price_of_the_tier_that_gave_it(tier, factor, clock, client_of):
    provider = Scripted(clock, answered(tier), priced=True, name="openai")
    result = client_of(provider).submit("one", model="gpt-5.6-luna").result(PATIENCE)
    assert result.cost == pytest.approx(0.4 * factor)  # a long prompt


def test_a_tier_whose_price_is_unknown_makes_the_cost_unknown(clock, client_of):
    provider = Scripted(clock, answered("priority"), priced=True, name="openai")
    assert client_of(provider).submit("one", model="gpt-4-turbo").result(PATIENCE).cost is None


@pytest.mark.parametrize("tier", ["flex", "default"])
def test_a_budget_reserves_the_standard_price_for_other_tiers(tier, clock, client_of):
    provider = Tiered(clock, answered("default"), priced=True, name="openai")
    client = client_of(provider, budget=0.0001, max_tokens=1000, prices={"default": Price(0.2, 1.2)})
    future = client.submit("one", model="default", extra={"service_tier": tier})  # up to 0.0012 USD
    assert isinstance(future.exception(PATIENCE), BudgetExceeded)


def test_a_budget_refuses_a_tier_whose_price_is_unknown(clock, client_of):
    provider = Tiered(clock, answered("priority"), priced=True, name="openai")
    settings = {"budget": 1.0, "max_tokens": 10, "prices": {"default": "openai:gpt-4-turbo"}}
    dear = {"model": "gpt-4-turbo", "extra": {"service_tier": "priority"}}
    with pytest.raises(InvalidRequest, match="gpt-4-turbo in the priority tier is unknown"):
        client_of(provider, **settings).submit("one", **dear)
    accepted = client_of(provider, allow_unknown_price=True, **settings).submit("one", **dear)
    assert accepted.result(PATIENCE).cost is None


def test_a_budget_reserves_the_price_of_the_tier_that_a_request_names(clock, client_of):
    provider = Tiered(clock, answered("priority"), priced=True, name="openai")
    settings = {"max_tokens": 1000, "budget": 0.002, "prices": {"default": "openai:gpt-5.6-luna"}}
    usual = client_of(provider, **settings).submit("one", model="gpt-5.6-luna")  # up to 0.0012 USD
    assert usual.exception(PATIENCE) is None
    dear = client_of(provider, **settings).submit(  # up to 0.0024 USD
        "one", model="gpt-5.6-luna", extra={"service_tier": "priority"}
    )
    assert isinstance(dear.exception(PATIENCE), BudgetExceeded)
