"""What a request costs."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import genai_prices
import pytest
from attrs import evolve
from genai_prices import data_snapshot
from genai_prices.types import ClauseEquals, ModelInfo, ModelPrice, Provider

from smartbatch import BatchingClient
from smartbatch.errors import ConfigError
from smartbatch.prices import Price, RateCard
from smartbatch.providers.price_book import PriceBook
from smartbatch.types import Usage

WALL = datetime(2026, 11, 20, 9, 30, tzinfo=UTC).timestamp()


def listed_price(provider: str, model: str, usage: Usage, wall: float = WALL, **context: str) -> float:
    tokens: dict[str, Any] = {
        "input_tokens": usage.input_tokens,
        "cache_read_tokens": usage.cached_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "output_tokens": usage.output_tokens,
        "output_reasoning_tokens": usage.reasoning_tokens,
    }
    if usage.cache_write_1h_tokens:
        tokens["cache_write_1h_tokens"] = usage.cache_write_1h_tokens
    if usage.audio_tokens:
        tokens["input_audio_tokens"] = usage.audio_tokens
        tokens["cache_audio_read_tokens"] = usage.cached_audio_tokens
    tokens["output_audio_tokens"] = usage.output_audio_tokens
    tokens["output_image_tokens"] = usage.output_image_tokens
    price = genai_prices.calc_price(
        genai_prices.Usage(**tokens),
        model,
        provider_id=provider,
        genai_request_timestamp=datetime.fromtimestamp(wall, UTC),
        price_context=context or None,
    )
    return float(price.total_price)


def card(provider: str, model: str, wall: float = WALL) -> RateCard:
    found = PriceBook().rates(provider, model, wall)
    assert found is not None
    return found


@pytest.mark.full
@pytest.mark.parametrize(
    ("processing", "context", "least"),
    [("standard", {}, 1000), ("batch", {"processing": "batch"}, 400), ("flex", {"service_tier": "flex"}, 20)],
)
def test_the_cost_of_any_listed_model_is_what_the_library_computes(processing, context, least):
    book, compared = PriceBook(), 0
    for provider in data_snapshot.get_snapshot().providers:
        if provider.id not in ("openai", "anthropic", "google", "deepseek", "perplexity", "mistral", "x-ai"):
            continue
        for model in provider.models:
            rates = book.rates(provider.id, model.id, WALL, processing)
            if rates is None or "documented" in rates.source:
                continue
            assert rates.exact is None, f"{model.id} leaves the fast way"
            sizes = {0, 1, 999, *(b.above + d for b in rates.bands[1:] for d in (-1, 0, 1))}
            for size in sizes:
                for cached, reasoning, written in ((0, 0, 0), (size // 2, 0, size // 3), (size, 40, 0)):
                    if processing != "standard" and written:
                        continue  # the library has no rates for them
                    usage = Usage(size, 77, cached, reasoning, False, written, written // 2)
                    if not written:
                        heard, heard_again = (size - cached) // 2 + cached // 4, cached // 4
                        usage = evolve(usage, audio_tokens=heard, cached_audio_tokens=heard_again)
                        usage = evolve(usage, output_audio_tokens=15, output_image_tokens=16)
                    expected = listed_price(provider.id, model.id, usage, **context)
                    assert math.isclose(rates.cost(usage), expected, rel_tol=1e-9, abs_tol=1e-15), model.id
                    compared += 1
    assert compared > least


@pytest.mark.parametrize("processing", ["standard", "batch"])
@pytest.mark.parametrize(
    ("provider", "model", "for_minutes", "for_an_hour"),
    [
        ("anthropic", "claude-sonnet-4-5", 1.25, 2.0),
        ("openai", "gpt-5.6", 1.25, 1.25),
        ("openai", "gpt-5-mini", 1.0, 1.0),
        ("gemini", "gemini-2.5-flash", 1.0, 1.0),
    ],
)
def test_tokens_written_to_a_cache_cost_what_the_provider_asks(
    processing, provider, model, for_minutes, for_an_hour
):
    rates = PriceBook().rates(provider, model, WALL, processing)
    assert rates is not None
    fresh = rates.cost(Usage(1000))
    written = Usage(1000, cache_write_tokens=1000)
    assert rates.cost(written) == pytest.approx(for_minutes * fresh)
    longer = Usage(1000, cache_write_tokens=1000, cache_write_1h_tokens=1000)
    assert rates.cost(longer) == pytest.approx(for_an_hour * fresh)
    assert rates.cost(Usage(1000, 0, 400, cache_write_tokens=600)) == pytest.approx(
        rates.cost(Usage(400, 0, 400)) + 0.6 * for_minutes * fresh
    )


def test_cache_writes_beyond_the_prompt_cost_no_more_than_the_prompt():
    rates = card("anthropic", "claude-sonnet-4-5")
    most = rates.cost(Usage(1000, cache_write_tokens=1000, cache_write_1h_tokens=1000))
    assert rates.cost(Usage(1000, cache_write_tokens=5000, cache_write_1h_tokens=9000)) == most


def test_what_a_user_asks_for_writes_holds_in_every_way_of_processing():
    book = PriceBook({"m": Price(2, 8, cache_write=2.5, cache_write_1h=4)})
    minutes, hour = (Usage(1_000_000, 0, 0, 0, False, 1_000_000, longer) for longer in (0, 1_000_000))
    for processing, share in (("standard", 1.0), ("batch", 0.5)):
        rates = book.rates("openai", "m", WALL, processing)  # type: ignore[arg-type]
        assert rates is not None
        assert rates.cost(minutes) == pytest.approx(2.5 * share)
        assert rates.cost(hour) == pytest.approx(4 * share)
    plain = PriceBook({"m": Price(2, 8)}).rates("openai", "m", WALL)
    assert plain is not None
    assert plain.cost(hour) == pytest.approx(2), "without a price of its own a write costs what input costs"


def test_automatic_cache_writes_are_expected_for_long_prompts():
    by_itself, asked = card("openai", "gpt-5.6"), card("anthropic", "claude-sonnet-4-5")
    written = Usage(1024, 9, cache_write_tokens=1024)
    assert by_itself.expected_cost(Usage(1024, 9)) == by_itself.cost(written) > by_itself.cost(Usage(1024, 9))
    assert by_itself.expected_cost(Usage(1023, 9)) == by_itself.cost(Usage(1023, 9))
    for other in (asked, card("openai", "gpt-5-mini")):
        assert other.expected_cost(Usage(5000, 9)) == other.cost(Usage(5000, 9))


def test_audio_and_images_cost_what_the_table_lists():
    flash = card("gemini", "gemini-2.5-flash")  # USD 0.3 per million tokens, 1 for audio
    assert flash.cost(Usage(1_000_000, audio_tokens=400_000)) == pytest.approx(0.6 * 0.3 + 0.4)
    cached = Usage(1_000_000, cached_tokens=500_000, audio_tokens=400_000, cached_audio_tokens=300_000)
    assert flash.cost(cached) == pytest.approx(0.4 * 0.3 + 0.1 + 0.2 * 0.03 + 0.3 * 0.1)
    speech = card("openai", "gpt-audio")
    assert speech.cost(Usage(0, 1_000_000, output_audio_tokens=250_000)) == pytest.approx(
        0.75 * 10 + 0.25 * 64
    )
    painter = card("gemini", "gemini-2.5-flash-image")
    assert painter.cost(Usage(0, 1_000_000, output_image_tokens=900_000)) == pytest.approx(
        0.1 * 2.5 + 0.9 * 30
    )
    for rates in (flash, speech, painter):
        most = Usage(1000, 1000, 0, 0, False, 0, 0, False, 1000, 0, 1000)
        beyond = Usage(1000, 1000, 0, 0, False, 0, 0, False, 5000, 900, 5000, 5000)
        assert rates.cost(beyond) == rates.cost(most), "parts never cost more than their total"


def test_the_prices_on_the_page_about_files_are_those_of_the_table():
    page = (Path(__file__).parents[1] / "docs" / "how-to" / "files.md").read_text("utf-8")
    rows = [
        [cell.strip(" `") for cell in line.strip("|").split("|")]
        for line in page.partition("## Prices")[2].splitlines()
        if line.startswith("| `")
    ]
    assert len(rows) > 5
    for name, text, audio, answer, speech, images in rows:
        band = card(*name.split(":")).bands[0]
        shown = (text, audio or text, answer, speech or answer, images or answer)
        listed = (band.input, band.audio, band.output, band.output_audio, band.output_image)
        assert [float(usd) for usd in shown] == pytest.approx([1e6 * usd for usd in listed]), name


def test_the_users_price_of_audio_and_images_holds_in_every_way_of_processing():
    book = PriceBook(
        {"m": Price(2, 8, audio_input=10, audio_output=20, image_output=40), "plain": Price(2, 8)}
    )
    usage = Usage(1_000_000, 1_000_000, 0, 0, False, 0, 0, False, 500_000, 0, 200_000, 100_000)
    for processing, share in (("standard", 1.0), ("batch", 0.5)):
        rates = book.rates("openai", "m", WALL, processing)  # type: ignore[arg-type]
        assert rates is not None
        assert rates.cost(usage) == pytest.approx(share * (1 + 5 + 0.7 * 8 + 4 + 4))
    plain = book.rates("openai", "plain", WALL)
    assert plain is not None
    assert plain.cost(usage) == pytest.approx(10), "without a price of their own they cost what texts cost"


def test_a_request_above_a_tier_pays_its_rate_for_all_tokens():
    rates = card("anthropic", "claude-haiku-5-5")
    start = rates.bands[1].above
    assert rates.cost(Usage(start + 1)) > 4 * rates.cost(Usage(start))


def test_many_small_requests_never_reach_the_tier_that_their_sum_would():
    rates = card("anthropic", "claude-haiku-5-5")
    each = rates.cost(Usage(1000, 100))
    assert 300 * each < rates.cost(Usage(300_000, 30_000)) / 2


def test_a_fee_for_each_request_is_added():
    assert card("perplexity", "sonar").cost(Usage()) > 0


def test_reasoning_that_has_a_price_of_its_own_is_charged_at_it():
    rates = card("perplexity", "sonar-deep-research")
    assert rates.cost(Usage(0, 100, 0, 100)) != rates.cost(Usage(0, 100, 0, 0))


def test_a_price_that_depends_on_the_hour_is_looked_up_again():
    book = PriceBook()
    night = datetime(2026, 11, 20, 3, 59, 30, tzinfo=UTC).timestamp()
    costs = {book.rates("deepseek", "deepseek-flash", wall).cost(Usage(1000)) for wall in (night, night + 60)}  # type: ignore[union-attr]
    assert len(costs) == 2


def test_a_price_without_conditions_is_read_once(monkeypatch):
    book = PriceBook()
    first = book.rates("openai", "gpt-4o-mini", WALL)
    monkeypatch.setattr(genai_prices, "calc_price", None)
    assert book.rates("openai", "gpt-4o-mini", WALL + 30) is first


def test_a_model_no_table_knows_has_no_price():
    book = PriceBook()
    assert book.rates("openai", "no-such-model", WALL) is None
    assert book.rates("no-such-provider", "gpt-5", WALL) is None


def test_the_gemini_prefix_finds_the_prices_google_is_listed_under():
    assert card("gemini", "gemini-2.5-flash").cost(Usage(1_000_000)) == pytest.approx(0.3)


def test_the_users_table_wins_and_may_name_models_nobody_knows():
    book = PriceBook({"openai:gpt-5-mini": Price(1, 2, 0.5), "my-model": Price(3, 4)})
    known, own = book.rates("openai", "gpt-5-mini", WALL), book.rates("openai", "my-model", WALL)
    assert known is not None
    assert own is not None
    assert known.source == own.source == "user"
    assert known.cost(Usage(3_000_000, 1_000_000, 1_000_000)) == pytest.approx(2 * 1 + 0.5 + 2)
    assert own.cost(Usage(2_000_000, 1_000_000, 1_000_000)) == pytest.approx(2 * 3 + 4)


def test_the_full_name_wins_over_the_bare_one():
    book = PriceBook({"m": Price(1, 1), "openai:m": Price(2, 2)})
    assert book.rates("openai", "m", WALL).cost(Usage(1_000_000)) == pytest.approx(2)  # type: ignore[union-attr]
    assert book.rates("sim", "m", WALL).cost(Usage(1_000_000)) == pytest.approx(1)  # type: ignore[union-attr]


@pytest.mark.parametrize("processing", ["standard", "batch"])
def test_a_name_in_place_of_a_price_is_the_price_of_that_model(processing):
    book = PriceBook({"azure:my-deployment": "azure:gpt-5-mini"})
    found = book.rates("azure", "my-deployment", WALL, processing)
    assert found is not None
    assert found == PriceBook().rates("azure", "gpt-5-mini", WALL, processing)
    book.check_references(WALL)


def test_a_name_may_be_that_of_a_price_of_the_user():
    book = PriceBook({"azure:a": "azure:b", "azure:b": Price(1, 2)})
    found = book.rates("azure", "a", WALL)
    assert found is not None
    assert found.source == "user"


def test_a_name_without_a_known_price_is_refused_when_a_client_is_created():
    settings: dict[str, Any] = {"prices": {"azure:my-deployment": "openai:gpt-5-minni"}}
    with pytest.raises(ConfigError, match=r"my-deployment.*price of that model is unknown.*gpt-5-mini\?$"):
        BatchingClient("sim:demo", **settings)


def test_cached_tokens_beyond_the_prompt_give_no_further_discount():
    rates = card("openai", "gpt-5-mini")
    assert rates.cost(Usage(100, 0, 500)) == rates.cost(Usage(100, 0, 100))


def test_reasoning_tokens_beyond_the_answer_are_not_paid_back_to_the_user():
    """Where they are cheaper than others, as here, so many would make a negative cost."""
    rates = card("perplexity", "sonar-deep-research")
    assert rates.cost(Usage(100, 10, 0, 500)) == rates.cost(Usage(100, 10, 0, 10)) > 0


class MinimumFee(ModelPrice):
    """A price that bands cannot express."""

    def calc_price(self, usage: Any) -> Any:
        price = super().calc_price(usage)
        return {**price, "total_price": max(price["total_price"], Decimal("0.01"))}


def test_a_price_of_an_unknown_shape_is_left_to_the_library(monkeypatch):
    model = ModelInfo("odd", ClauseEquals("odd"), prices=MinimumFee(input_mtok=Decimal(1)))
    snapshot = data_snapshot.DataSnapshot([Provider("openai", "x", "x", models=[model])], False)
    monkeypatch.setattr(data_snapshot, "_custom_snapshot", snapshot)
    rates = card("openai", "odd")
    assert rates.cost(Usage(10)) == 0.01
    assert rates.cost(Usage(1_000_000)) == pytest.approx(1)


def batch_card(provider: str, model: str, wall: float = WALL) -> RateCard:
    found = PriceBook().rates(provider, model, wall, "batch")
    assert found is not None
    return found


class TestBatches:
    @pytest.mark.parametrize(
        ("provider", "model", "price"),
        [
            ("openai", "gpt-5", 1.25),
            ("openai", "gpt-4o-mini", 0.15),
            ("anthropic", "claude-haiku-4-5", 1.0),
            ("anthropic", "claude-haiku-5-5", 0.1),
            ("gemini", "gemini-2.5-flash", 0.3),
            ("gemini", "gemini-embedding-2", 0.2),
            ("openai", "text-embedding-3-small", 0.02),
            ("openai", "text-embedding-3-large", 0.13),
            ("gemini", "gemini-embedding-001", 0.15),
        ],
    )
    def test_a_batch_is_half_price_even_without_a_bundled_rate(self, provider, model, price):
        usage = Usage(100_000)  # below all tiers
        assert card(provider, model).cost(usage) == pytest.approx(price / 10)
        assert batch_card(provider, model).cost(usage) == pytest.approx(price / 20)

    def test_a_discount_that_is_documented_only_says_so(self):
        assert batch_card("gemini", "gemini-embedding-001").source.endswith("batch at 50% as documented")
        assert batch_card("openai", "gpt-5").source == f"genai-prices {genai_prices.__version__}"

    def test_half_price_held_before_the_table_began_to_list_it(self):
        spring = datetime(2026, 4, 1, tzinfo=UTC).timestamp()
        usage = Usage(1000, 500)
        assert listed_price("openai", "gpt-4o-mini", usage, spring, processing="batch") == listed_price(
            "openai", "gpt-4o-mini", usage, spring
        )
        assert batch_card("openai", "gpt-4o-mini", spring).cost(usage) == pytest.approx(
            card("openai", "gpt-4o-mini", spring).cost(usage) / 2
        )

    def test_rates_that_begin_at_a_date_are_found_when_it_has_come(self):
        book = PriceBook()
        before = datetime(2026, 10, 13, 23, 59, 30, tzinfo=UTC).timestamp()
        sources = []
        for wall in (before, before + 60):
            found = book.rates("openai", "gpt-5", wall, "batch")
            assert found is not None
            sources.append("documented" in found.source)
        assert sources == [True, False]

    @pytest.mark.parametrize(
        ("provider", "model", "ratio"),
        [
            ("openai", "gpt-5", 0.5),
            ("openai", "gpt-4o-mini", 1.0),
            ("openai", "gpt-5.3-codex", 1.0),  # as documented
            ("anthropic", "claude-haiku-4-5", 0.5),
            ("anthropic", "claude-opus-4-1", 0.5),  # as documented
            ("gemini", "gemini-2.5-flash", 1.0),
            ("gemini", "gemini-3.5-flash", 1.0),  # as documented
        ],
    )
    def test_cached_tokens_are_discounted_where_the_provider_does_it(self, provider, model, ratio):
        usage = Usage(100_000, 0, 100_000)
        paid = card(provider, model).cost(usage)
        assert paid > 0
        assert batch_card(provider, model).cost(usage) == pytest.approx(paid * ratio)

    def test_without_a_batch_rate_or_discount_the_price_is_unknown(self):
        book = PriceBook()
        assert book.rates("deepseek", "deepseek-chat", WALL) is not None
        assert book.rates("deepseek", "deepseek-chat", WALL, "batch") is None
        assert book.rates("openai", "no-such-model", WALL, "batch") is None
        assert book.rates("no-such-provider", "gpt-5", WALL, "batch") is None

    def test_the_users_price_is_halved_unless_it_says_otherwise(self):
        usage = Usage(1_000_000, 1_000_000)
        for price, expected in (
            (Price(2, 8), 5),
            (Price(2, 8, batch_discount=0.2), 8),
            (Price(2, 8, batch_discount=1), 0),
            (Price(2, 8, batch_input=0.7), 4.7),
            (Price(2, 8, batch_output=3, batch_discount=0), 5),
        ):
            book = PriceBook({"openai:gpt-5": price})
            standard, batch = (book.rates("openai", "gpt-5", WALL, way) for way in ("standard", "batch"))  # type: ignore[arg-type]
            assert standard is not None
            assert batch is not None
            assert standard.cost(usage) == pytest.approx(10)
            assert batch.cost(usage) == pytest.approx(expected)
            assert batch.source == "user"

    @pytest.mark.parametrize(("cached", "expected"), [(None, 1), (0.4, 0.4), (1.9, 1)])
    def test_cached_tokens_cost_no_more_in_a_batch_than_other_tokens(self, cached, expected):
        rates = PriceBook({"m": Price(2, 8, cached)}).rates("openai", "m", WALL, "batch")
        assert rates is not None
        assert rates.cost(Usage(1_000_000, 0, 1_000_000)) == pytest.approx(expected)

    @pytest.mark.parametrize("bad", [-0.1, 1.1, math.nan, "0.5", True, None])
    def test_a_discount_that_is_no_share_is_refused_by_name(self, bad):
        with pytest.raises(ConfigError, match=r"price batch_discount.*from 0 to 1"):
            Price(1, 1, batch_discount=bad)

    @pytest.mark.parametrize("field", ["batch_input", "batch_output"])
    def test_a_bad_batch_price_is_refused_by_model_and_name(self, field):
        with pytest.raises(ConfigError, match=rf"prices\['m'\].*price {field}"):
            Price.parse("m", {"input": 1, "output": 1, field: -1})


@pytest.mark.parametrize("bad", [-1, math.nan, math.inf, "1", True, None])
def test_a_bad_price_is_refused_by_name(bad):
    with pytest.raises(ConfigError, match="price output"):
        Price(1, bad)


@pytest.mark.parametrize("table", [{"input": 1}, {"input": 1, "output": 2, "inptu": 3}, 7, {}])
def test_a_price_table_with_missing_or_unknown_fields_names_its_model(table):
    with pytest.raises(ConfigError, match="openai:m"):
        Price.parse("openai:m", table)


def test_a_bad_price_in_a_table_names_model_and_field():
    with pytest.raises(ConfigError, match=r"openai:m.*output"):
        Price.parse("openai:m", {"input": 1, "output": -1})


def flex_card(provider: str, model: str, wall: float = WALL) -> RateCard | None:
    return PriceBook().rates(provider, model, wall, "flex")


class TestTheSlowerTier:
    @pytest.mark.parametrize(
        ("provider", "model"),
        [
            ("openai", "gpt-4o-mini"),
            ("openai", "text-embedding-3-small"),
            ("gemini", "gemini-3.8-flash"),
            ("anthropic", "claude-haiku-5-5"),
            ("openai", "no-such-model"),
        ],
    )
    def test_a_model_without_rates_of_its_own_there_has_no_price_there(self, provider, model):
        assert flex_card(provider, model) is None

    def test_the_users_price_says_whether_there_is_one(self):
        prices = {"plain": Price(2.0, 8.0), "slow": Price(2.0, 8.0, 0.9, flex_input=0.5, flex_output=4.0)}
        book = PriceBook(prices)
        assert book.rates("gemini", "plain", WALL, "flex") is None
        rates = book.rates("gemini", "slow", WALL, "flex")
        assert rates is not None
        assert rates.cost(Usage(1_000_000, 1_000_000)) == pytest.approx(4.5)
        assert rates.cost(Usage(1_000_000, 0, 1_000_000)) == pytest.approx(0.5), "cached is never dearer"

    def test_half_a_price_is_refused(self):
        with pytest.raises(ConfigError, match="together"):
            Price(2.0, 8.0, flex_input=1.0)
        with pytest.raises(ConfigError, match=r"prices\['m'\]"):
            Price.parse("m", {"input": 1, "output": 2, "flex_output": 1})
