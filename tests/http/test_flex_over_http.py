"""Lists in the flex tier over HTTP, at half the price."""

from __future__ import annotations

from typing import Any

import pytest
from inside import inside
from levels import sampled

from smartbatch import BatchingClient
from smartbatch.emulator.composed_answers import answer_for
from smartbatch.events import CallFinished, FlexChanged
from smartbatch.prices import Price
from smartbatch.providers.gemini.provider import GeminiProvider
from smartbatch.providers.openai.provider import OpenAIProvider
from smartbatch.providers.price_book import PriceBook
from smartbatch.testing import emulator
from smartbatch.types import Route

KEY = "sk-of-the-test-1234567890"
PROBLEMS = [
    f"Ann bakes {i % 9 + 2} trays of {i} rolls and sells {i % 7} rolls. How many rolls are left?"
    for i in range(200)
]
GEMINI = Price(input=0.75, output=3.75, flex_input=0.375, flex_output=1.875)
SOON: dict[str, Any] = {"deadline": "10m", "max_tokens": 300}
"""Enough time for the flex tier, but not for a batch."""


@pytest.fixture(autouse=True)
def fresh_store(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.fixture
def emu():
    with emulator(latency=0.005) as emu:
        yield emu


def openai(emu, api="chat"):
    return OpenAIProvider(KEY, emu.base_url, flex=True, api=api)


def gemini(emu):
    return GeminiProvider(KEY, emu.base_url.removesuffix("/v1"), flex=True)


def client_of(provider, model="gpt-5-mini", **settings):
    return BatchingClient(model, provider=provider, parallelism=32, **settings)


def right(results, model="gpt-5-mini"):
    return results.texts == [answer_for(problem, model) for problem in PROBLEMS]


def at_the_prices(results):
    book, now = PriceBook(), 1_795_000_000.0
    cards = {
        None: book.rates("openai", "gpt-5-mini", now),
        Route.FLEX: book.rates("openai", "gpt-5-mini", now, "flex"),
    }
    total = 0.0
    for result in results:
        card = cards[Route.FLEX if result.route is Route.FLEX else None]
        assert card is not None
        total += card.cost(result.usage)
    return total


@pytest.mark.full
@pytest.mark.parametrize("api", sampled(["chat", "responses"], keep=1))
def test_a_list_with_some_time_goes_by_flex_at_half_the_price(emu, api):
    with client_of(openai(emu, api)) as client:
        plan = client.plan(PROBLEMS, **SOON)
        assert plan.route is Route.FLEX
        results = client.generate(PROBLEMS, **SOON)
        plainly = client.generate(PROBLEMS, strategy="individual", deduplicate=False, **SOON)
    assert right(results)
    assert {result.route for result in results} == {Route.FLEX}
    assert {result.route for result in plainly} == {Route.INDIVIDUAL}
    assert plainly.cost is not None
    assert results.cost == pytest.approx(plainly.cost / 2)
    assert results.cost == pytest.approx(at_the_prices(results))
    assert emu.ledger.received == 400
    assert emu.ledger.summary()["billed_flex_tokens"] == results.usage.total_tokens


@pytest.mark.full
def test_a_job_in_the_slower_tier_says_what_it_saved(emu):
    with client_of(openai(emu)) as client:
        job = client.submit_batch(PROBLEMS, strategy="auto", **SOON)
        status = job.wait()
        assert {result.route for result in job.results()} == {Route.FLEX}
        assert client.metrics.snapshot().jobs_saved == pytest.approx(status.saved)
    assert status.cost > 0
    assert status.saved == pytest.approx(status.cost)


@pytest.mark.full
def test_its_times_are_learned_apart_from_those_of_other_calls(emu):
    calls = []

    def note(event):
        if isinstance(event, CallFinished):
            calls.append(event.route)

    with client_of(openai(emu), observers=[note]) as client:

        def median(route):
            return inside(client).history.latency(route, "openai:gpt-5-mini").quantile(0.5, 1)

        slow, plain = median(Route.FLEX), median(Route.INDIVIDUAL)
        client.generate(PROBLEMS, **SOON)
        assert median(Route.FLEX) < slow / 2
        assert median(Route.INDIVIDUAL) == plain
    assert calls == [Route.FLEX] * 200


@pytest.mark.full
def test_requests_without_flex_capacity_move_on_and_are_paid_once(emu):
    emu.configure(faults={"no_room": 0.1})
    with client_of(openai(emu)) as client:
        results = client.generate(PROBLEMS, **SOON)
        assert client.spent == pytest.approx(at_the_prices(results))
    assert right(results)
    routes = [result.route for result in results]
    away = sum(call.fault == "no_room" for call in emu.ledger.calls)
    assert 8 <= away <= 40
    assert routes.count(Route.INDIVIDUAL) >= away
    assert routes.count(Route.FLEX) >= 150, "a tenth is not enough to leave the tier alone"
    assert emu.ledger.received == 200 + away
    assert emu.ledger.paid_twice() == []


@pytest.mark.full
@pytest.mark.parametrize("why", sampled(["full", "missing"], keep=1))
def test_a_full_flex_tier_costs_a_few_calls_and_is_then_avoided(emu, why):
    if why == "full":
        emu.configure(faults={"no_room": 1.0})
    else:
        emu.configure(flex=False)
    told = []
    with client_of(openai(emu), observers=[told.append]) as client:
        results = client.generate(PROBLEMS, **SOON)
        assert client.plan(PROBLEMS, deduplicate=False, **SOON).route is not Route.FLEX
    assert right(results)
    assert {result.route for result in results} == {Route.INDIVIDUAL}
    assert emu.ledger.received <= 200 + 2 * 32, "it is known before the second wave has ended"
    assert [event.enabled for event in told if isinstance(event, FlexChanged)] == [False]
    assert emu.ledger.summary()["billed_flex_tokens"] == 0


@pytest.mark.full
def test_gemini_has_it_where_the_user_gives_its_price(emu):
    emu.configure(faults={"no_room": 0.05})
    model = "gemini-3.8-flash"
    prices = {f"gemini:{model}": GEMINI}
    with client_of(gemini(emu), model, prices=prices, breaker_threshold=1) as client:
        results = client.generate(PROBLEMS, **SOON)
    assert right(results, model)
    routes = [result.route for result in results]
    assert routes.count(Route.FLEX) > 100
    assert emu.ledger.paid_twice() == []
    flexed = sum(call.billed for call in emu.ledger.calls if call.tier == "flex")
    assert flexed == sum(result.usage.total_tokens for result in results if result.route is Route.FLEX)


@pytest.mark.parametrize(
    ("settings", "constraints"),
    [
        ({"flex": False}, {}),
        ({}, {"extra": {"service_tier": "default"}}),
        ({}, {"priority": "high"}),
        ({}, {"timeout": 60}),
    ],
)
def test_nobody_who_did_not_ask_for_patience_is_sent_there(emu, settings, constraints):
    with client_of(openai(emu), **settings) as client:
        routes = [option.route for option in client.plan(PROBLEMS, **SOON, **constraints).options]
    assert Route.INDIVIDUAL in routes
    assert Route.FLEX not in routes


@pytest.mark.full
def test_a_server_that_is_not_known_to_have_it_is_never_asked_for_it(emu):
    with client_of(OpenAIProvider(KEY, emu.base_url)) as client:
        client.generate(PROBLEMS, strategy="individual", **SOON)
        routes = [option.route for option in client.plan(PROBLEMS, **SOON).options]
    assert Route.FLEX not in routes
    assert {call.tier for call in emu.ledger.calls} == {"default"}
