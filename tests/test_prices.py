"""What a request costs."""

from __future__ import annotations

import math
import pickle
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import genai_prices
import pytest
from genai_prices import data_snapshot
from genai_prices.types import ClauseEquals, ModelInfo, ModelPrice, Provider
from hypothesis import given
from hypothesis import strategies as st

from smartbatch.errors import ConfigError
from smartbatch.models import Usage
from smartbatch.prices import Price, PriceBook, RateCard

WALL = datetime(2026, 11, 20, 9, 30, tzinfo=UTC).timestamp()


def listed_price(provider: str, model: str, usage: Usage, wall: float = WALL) -> float:
    tokens: dict[str, Any] = {
        "input_tokens": usage.input_tokens,
        "cache_read_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
        "output_reasoning_tokens": usage.reasoning_tokens,
    }
    price = genai_prices.calc_price(
        genai_prices.Usage(**tokens),
        model,
        provider_id=provider,
        genai_request_timestamp=datetime.fromtimestamp(wall, UTC),
    )
    return float(price.total_price)


def card(provider: str, model: str, wall: float = WALL) -> RateCard:
    found = PriceBook().rates(provider, model, wall)
    assert found is not None
    return found


def test_the_cost_of_any_request_to_any_listed_model_is_what_the_library_works_out() -> None:
    """Every model of five providers, around every tier, with and without cache and reasoning."""
    book, compared = PriceBook(), 0
    for provider in data_snapshot.get_snapshot().providers:
        if provider.id not in ("openai", "anthropic", "google", "deepseek", "perplexity"):
            continue
        for model in provider.models:
            rates = book.rates(provider.id, model.id, WALL)
            if rates is None:
                continue
            assert rates._exact is None, f"{model.id} leaves the fast way"
            sizes = {0, 1, 999, *(b.above + d for b in rates.bands[1:] for d in (-1, 0, 1))}
            for size in sizes:
                for cached, reasoning in ((0, 0), (size // 2, 0), (size, 40)):
                    usage = Usage(size, 77, cached, reasoning)
                    expected = listed_price(provider.id, model.id, usage)
                    assert math.isclose(rates.cost(usage), expected, rel_tol=1e-9, abs_tol=1e-15), model.id
                    compared += 1
    assert compared > 1000


def test_a_request_above_a_tier_pays_the_tier_for_all_its_tokens_and_one_at_the_tier_does_not() -> None:
    rates = card("anthropic", "claude-haiku-5-5")
    start = rates.bands[1].above
    assert rates.cost(Usage(start + 1)) > 4 * rates.cost(Usage(start))


def test_many_small_requests_never_reach_the_tier_that_their_sum_would() -> None:
    rates = card("anthropic", "claude-haiku-5-5")
    each = rates.cost(Usage(1000, 100))
    assert 300 * each < rates.cost(Usage(300_000, 30_000)) / 2


def test_a_fee_for_each_request_is_added() -> None:
    assert card("perplexity", "sonar").cost(Usage()) > 0


def test_reasoning_that_has_a_price_of_its_own_is_charged_at_it() -> None:
    rates = card("perplexity", "sonar-deep-research")
    assert rates.cost(Usage(0, 100, 0, 100)) != rates.cost(Usage(0, 100, 0, 0))


def test_a_price_that_depends_on_the_hour_is_looked_up_again() -> None:
    book = PriceBook()
    night = datetime(2026, 11, 20, 3, 59, 30, tzinfo=UTC).timestamp()
    costs = {book.rates("deepseek", "deepseek-flash", wall).cost(Usage(1000)) for wall in (night, night + 60)}  # type: ignore[union-attr]
    assert len(costs) == 2


def test_a_price_without_conditions_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    book = PriceBook()
    first = book.rates("openai", "gpt-4o-mini", WALL)
    monkeypatch.setattr(genai_prices, "calc_price", None)
    assert book.rates("openai", "gpt-4o-mini", WALL + 30) is first


def test_a_model_no_table_knows_has_no_price() -> None:
    book = PriceBook()
    assert book.rates("openai", "no-such-model", WALL) is None
    assert book.rates("no-such-provider", "gpt-5", WALL) is None


def test_the_gemini_prefix_finds_the_prices_google_is_listed_under() -> None:
    assert card("gemini", "gemini-2.5-flash").cost(Usage(1_000_000)) == pytest.approx(0.3)


def test_the_users_table_wins_and_may_name_models_nobody_knows() -> None:
    book = PriceBook({"openai:gpt-5-mini": Price(1, 2, 0.5), "my-model": Price(3, 4)})
    known, own = book.rates("openai", "gpt-5-mini", WALL), book.rates("openai", "my-model", WALL)
    assert known is not None
    assert own is not None
    assert known.source == own.source == "user"
    assert known.cost(Usage(3_000_000, 1_000_000, 1_000_000)) == pytest.approx(2 * 1 + 0.5 + 2)
    assert own.cost(Usage(2_000_000, 1_000_000, 1_000_000)) == pytest.approx(2 * 3 + 4)


def test_the_full_name_wins_over_the_bare_one() -> None:
    book = PriceBook({"m": Price(1, 1), "openai:m": Price(2, 2)})
    assert book.rates("openai", "m", WALL).cost(Usage(1_000_000)) == pytest.approx(2)  # type: ignore[union-attr]
    assert book.rates("sim", "m", WALL).cost(Usage(1_000_000)) == pytest.approx(1)  # type: ignore[union-attr]


def test_a_card_says_which_table_it_comes_from() -> None:
    assert card("openai", "gpt-5-mini").source == f"genai-prices {genai_prices.__version__}"


def test_cached_tokens_beyond_the_prompt_do_not_make_a_request_cheaper_than_a_cached_one() -> None:
    rates = card("openai", "gpt-5-mini")
    assert rates.cost(Usage(100, 0, 500)) == rates.cost(Usage(100, 0, 100))


@given(st.integers(0, 10**7), st.integers(0, 10**6), st.integers(0, 10**6))
def test_more_tokens_never_cost_less(tokens: int, more: int, output: int) -> None:
    rates = card("anthropic", "claude-haiku-5-5")
    assert rates.cost(Usage(tokens + more, output)) >= rates.cost(Usage(tokens, output)) >= 0


class MinimumFee(ModelPrice):
    """A price of a shape that the bands cannot hold."""

    def calc_price(self, usage: Any) -> Any:
        price = super().calc_price(usage)
        return {**price, "total_price": max(price["total_price"], Decimal("0.01"))}


def test_a_price_of_an_unknown_shape_is_left_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ModelInfo("odd", ClauseEquals("odd"), prices=MinimumFee(input_mtok=Decimal(1)))
    snapshot = data_snapshot.DataSnapshot([Provider("openai", "x", "x", models=[model])], False)
    monkeypatch.setattr(data_snapshot, "_custom_snapshot", snapshot)
    rates = card("openai", "odd")
    assert rates.cost(Usage(10)) == 0.01
    assert rates.cost(Usage(1_000_000)) == pytest.approx(1)


@pytest.mark.parametrize("bad", [-1, math.nan, math.inf, "1", True, None])
def test_a_bad_price_is_refused_by_name(bad: Any) -> None:
    with pytest.raises(ConfigError, match="price output"):
        Price(1, bad)


@pytest.mark.parametrize("table", [{"input": 1}, {"input": 1, "output": 2, "inptu": 3}, 7, {}])
def test_a_price_table_with_missing_or_unknown_fields_names_its_model(table: Any) -> None:
    with pytest.raises(ConfigError, match="openai:m"):
        Price.parse("openai:m", table)


def test_a_bad_price_in_a_table_names_model_and_field() -> None:
    with pytest.raises(ConfigError, match=r"openai:m.*output"):
        Price.parse("openai:m", {"input": 1, "output": -1})


def test_prices_survive_pickling() -> None:
    assert pickle.loads(pickle.dumps(Price(1, 2))) == Price(1, 2)
