"""The table of hosts: addresses, keys, abilities and prices."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest

from smartbatch._clock import VirtualClock
from smartbatch.errors import ConfigError
from smartbatch.prices import Processing
from smartbatch.providers import Host, OpenAIProvider, add_host, create
from smartbatch.providers.hosts import COMPATIBLE, HOSTS, host_at
from smartbatch.providers.price_book import PriceBook
from smartbatch.types import Generation, Request, Usage

MONDAY = datetime(2026, 11, 23, 8, 0, tzinfo=UTC).timestamp()
DAY = 86_400.0


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for host in HOSTS.values():
        for name in (*host.key_variables, *host.address_variables):
            monkeypatch.delenv(name, raising=False)


def provider_of(name: str, **options: object) -> OpenAIProvider:
    provider = create(f"{name}:m", clock=VirtualClock(), options={"api_key": "a-key-of-a-test", **options})[0]
    assert isinstance(provider, OpenAIProvider)
    return provider


def rate(model: str, wall: float = MONDAY, processing: Processing = "standard") -> float | None:
    provider, _, name = model.partition(":")
    card = PriceBook().rates(provider, name, wall, processing)
    return None if card is None else round(card.bands[0].input * 1e6, 6)


# -- addresses and keys --------------------------------------------------------------------------------------


def test_a_host_is_reached_at_its_address_with_its_key(monkeypatch):
    monkeypatch.setenv("GROQ_API_KEY", "gsk-of-a-test")
    provider = create("groq:llama-3.3-70b-versatile", clock=VirtualClock())[0]
    assert provider.name == "groq"
    assert provider.scope.startswith("groq:api.groq.com:")


@pytest.mark.parametrize(
    ("given", "server"),
    [
        ("https://gateway.example", "https://gateway.example/openai/v1"),
        ("https://gateway.example/v1", "https://gateway.example/v1"),
    ],
)
def test_a_base_url_without_a_path_gets_that_of_the_host(given, server, monkeypatch):
    monkeypatch.setenv("GROQ_BASE_URL", given)
    assert provider_of("groq")._errors.address.base == server


def test_a_region_has_its_own_address():
    assert "dashscope.aliyuncs.com" in provider_of("dashscope", region="cn").scope
    with pytest.raises(ConfigError, match="dashscope has no region 'eu'; known regions: 'intl', 'us', 'cn'"):
        provider_of("dashscope", region="eu")


def test_a_key_of_openai_goes_to_no_other_host(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-a-test")
    with pytest.raises(ConfigError, match="set MISTRAL_API_KEY in the environment"):
        create("mistral:mistral-small-latest", clock=VirtualClock())


@pytest.mark.parametrize(
    ("server", "name"),
    [
        ("api.groq.com", "groq"),
        ("resource.openai.azure.com", "azure"),
        ("api.together.ai", "together"),
    ],
)
def test_the_server_in_a_base_url_identifies_its_host(server, name):
    assert host_at(server).name == name


@pytest.mark.parametrize("server", ["127.0.0.1", "llm.example", "evilopenai.azure.com.example"])
def test_an_unknown_server_is_only_compatible(server):
    assert host_at(server) is COMPATIBLE


# -- abilities -----------------------------------------------------------------------------------------------


def test_a_chat_has_the_field_names_of_its_host():
    provider = provider_of("mistral")
    request = Request(prompt="hi", params=Generation(seed=7, max_tokens=5))
    body = provider._body((request,), "m")
    assert (body["random_seed"], body["max_tokens"]) == (7, 5)
    assert "max_completion_tokens" in provider_of("groq")._body((request,), "m")


def test_a_host_without_json_schema_gets_json_mode_at_once():
    request = Request(prompt="hi", params=Generation(schema={"type": "object"}))
    assert provider_of("deepseek")._body((request,), "m")["response_format"] == {"type": "json_object"}


@pytest.mark.parametrize("name", ["deepseek", "ollama", "vllm"])
def test_hosts_without_a_batch_api_have_none(name):
    assert provider_of(name).batches() is None


def test_a_batch_keeps_to_the_limits_of_its_host():
    batches = provider_of("groq").batches()
    assert batches is not None
    assert batches.abilities.max_bytes == 100_000_000


def test_a_model_has_the_concurrent_calls_that_its_host_allows():
    abilities = provider_of("deepseek").capabilities
    assert (abilities.calls_of("deepseek-v4-pro"), abilities.calls_of("deepseek-v4-flash")) == (500, math.inf)


# -- prices --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model",
    [
        "groq:llama-3.3-70b-versatile",
        "deepseek:deepseek-v4-pro",
        "mistral:mistral-small-latest",
        "xai:grok-4.3",
    ],
)
def test_the_prices_of_hosts_are_known(model):
    assert rate(model)


def test_batches_have_their_own_rate_or_the_documented_share():
    assert rate("mistral:mistral-small-latest", processing="batch") == 0.075
    assert rate("xai:grok-4.3", processing="batch") == 1.0  # a fifth less, not half
    model = "groq:llama-3.3-70b-versatile"
    assert rate(model, processing="batch") == pytest.approx((rate(model) or 0) / 2)
    assert rate("together:meta-llama/Llama-3.3-70B-Instruct-Turbo", processing="batch") is None


def test_deepseek_has_peak_hours_on_weekdays_only():
    night, peak = MONDAY + 8 * 3600, MONDAY
    assert rate("deepseek:deepseek-v4-pro", peak) == 2 * (rate("deepseek:deepseek-v4-pro", night) or 0)
    for weekend in (5, 6):
        assert rate("deepseek:deepseek-v4-pro", peak + weekend * DAY) == rate(
            "deepseek:deepseek-v4-pro", night
        )


@pytest.mark.parametrize("processing", ["standard", "batch"])
def test_long_prompts_cost_twice_the_input_and_half_as_much_again_for_output(processing):
    card = PriceBook().rates("openai", "gpt-5.6-luna", MONDAY, processing)
    assert card is not None
    short, long = card.cost(Usage(272_000, 0)), card.cost(Usage(272_001, 0))
    assert long == pytest.approx(2 * short, rel=1e-4)
    assert card.cost(Usage(272_001, 1000)) - long == pytest.approx(
        1.5 * (card.cost(Usage(272_000, 1000)) - short)
    )


def test_servers_that_users_run_have_no_price():
    assert rate("ollama:gpt-oss:20b") is None
    assert not provider_of("ollama").capabilities.priced


# -- further hosts -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("known_hosts")
def test_a_host_that_is_not_listed_takes_one_record(monkeypatch):
    monkeypatch.setenv("NOVITA_API_KEY", "key-of-a-test")
    add_host(Host(name="novita", address="https://api.novita.ai/v3/openai", price_id="novita"))
    assert create("novita:deepseek/deepseek-v3", clock=VirtualClock())[0].name == "novita"
    assert rate("novita:cognitivecomputations/dolphin-mixtral-8x22b")
