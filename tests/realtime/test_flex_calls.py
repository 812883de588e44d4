"""Requests in the flex tier, and their return to the standard tier."""

from __future__ import annotations

import threading

import pytest
from inside import inside
from scenes import PATIENCE, Scripted, failure

from smartbatch.core.limits.budget import Budget
from smartbatch.core.preparation import validation
from smartbatch.errors import BudgetExceeded, ErrorKind, ProviderError
from smartbatch.events import CallFinished, CooldownStarted, FlexChanged, RetryScheduled
from smartbatch.prices import Price
from smartbatch.providers.base import FLEX_TIER_NAME as FLEX
from smartbatch.providers.openai.errors import FLEX_TIER as OPENAI
from smartbatch.realtime.shared_quota import shared_quota
from smartbatch.realtime.ticket import CallOptions
from smartbatch.types import Answer, Generation, Request, Route, Usage

USAGE = Usage(1000, 100)
PRICE = Price(input=2.0, output=10.0, flex_input=1.0, flex_output=5.0)
FULL_PRICE, HALF_PRICE = 0.003, 0.0015
"""Cost of :data:`USAGE` in USD."""


def no_room():
    return ProviderError(
        "the provider answered 429: Resource Unavailable",
        kind=ErrorKind.RATE_LIMIT,
        status=429,
        retry_after=30,
    )


def refused(message):
    return ProviderError(message, kind=ErrorKind.CLIENT_ERROR, status=400)


class Tiered(Scripted):
    def __init__(self, clock, flex=None, **more):
        super().__init__(clock, **{"priced": True, **more})
        self._flex = flex or (lambda prompt, attempt: Answer(f"slow: {prompt}", usage=USAGE, tier=FLEX))
        self._writing = threading.Lock()
        self.tiers = []

    def flex(self, model):
        return OPENAI

    def generate(self, request, *, model, attempt, timeout):
        tier = (request.params.extra or {}).get("service_tier", "default")
        with self._writing:
            self.tiers.append(tier)
        self._call((request,), attempt, timeout)
        prompt = str(request.prompt)
        said = self._flex(prompt, attempt) if tier == FLEX else self._script(prompt, attempt)
        if isinstance(said, BaseException):
            raise said
        return said if isinstance(said, Answer) else Answer(said, usage=USAGE)


def client_for(client_of, provider, **settings):
    events = []
    client = client_of(provider, **{"prices": {"default": PRICE}, "observers": [events.append], **settings})
    return client, events


def slow(client, prompt, own_budget=None, **params):
    request = validation.normalise(prompt, Generation(), **params)
    realtime = inside(client).realtime
    return realtime.enqueue(request, CallOptions(realtime.model, own_budget=own_budget, flex=True))


def ask(clock, client, prompts):
    with clock.held():
        futures = [slow(client, prompt) for prompt in prompts]
    return [future.result(PATIENCE) for future in futures]


def named(n, word="question"):
    return [f"{word} {i}" for i in range(n)]


class TestInTheTier:
    def test_a_request_costs_its_price_there_and_says_its_route(self, clock, client_of):
        provider = Tiered(clock)
        client, events = client_for(client_of, provider)
        (result,) = ask(clock, client, ["one"])
        assert (result.text, result.route) == ("slow: one", Route.FLEX)
        assert result.cost == pytest.approx(HALF_PRICE)
        assert client.spent == pytest.approx(HALF_PRICE)
        assert provider.tiers == [FLEX]
        (call,) = (event for event in events if isinstance(event, CallFinished))
        assert call.route is Route.FLEX, "its latency is learned apart"
        assert call.cost == pytest.approx(HALF_PRICE)

    def test_an_answer_that_another_tier_gave_is_billed_as_that_one(self, clock, client_of):
        provider = Tiered(clock, lambda *_: Answer("upgraded", usage=USAGE, tier="default"))
        client, events = client_for(client_of, provider)
        (result,) = ask(clock, client, ["one"])
        assert result.cost == pytest.approx(FULL_PRICE)
        assert result.route is Route.INDIVIDUAL
        assert [e.route for e in events if isinstance(e, CallFinished)] == [Route.INDIVIDUAL]

    @pytest.mark.parametrize(
        ("prices", "extra"),
        [
            ({"default": Price(2.0, 10.0)}, None),
            ({"default": PRICE}, {"service_tier": "priority"}),
        ],
    )
    def test_without_a_flex_price_or_with_an_own_tier_nothing_changes(self, clock, client_of, prices, extra):
        provider = Tiered(clock)
        client, _ = client_for(client_of, provider, prices=prices)
        assert slow(client, "one", extra=extra).result(PATIENCE).route is Route.INDIVIDUAL
        assert provider.tiers == ["default" if extra is None else "priority"]

    def test_identical_requests_share_an_answer_of_one_tier_and_never_of_both(self, clock, client_of):
        provider = Tiered(clock)
        client, _ = client_for(client_of, provider)
        with clock.held():
            futures = [slow(client, "same"), slow(client, "same"), client.submit("same")]
        texts = [future.result(PATIENCE).text for future in futures]
        assert texts == ["slow: same", "slow: same", "re: same"]
        assert sorted(provider.tiers) == ["default", FLEX]


class TestSentAway:
    def test_without_capacity_a_request_goes_on_at_once_at_the_standard_price(self, clock, client_of):
        provider = Tiered(clock, lambda *_: no_room())
        client, events = client_for(client_of, provider, retries=0)
        (result,) = ask(clock, client, ["one"])
        assert (result.text, result.route, result.attempts) == ("re: one", Route.INDIVIDUAL, 2)
        assert result.cost == pytest.approx(FULL_PRICE)
        assert clock.now() == pytest.approx(2.0, abs=0.1), "two calls of a second, and no pause between"
        assert not [event for event in events if isinstance(event, CooldownStarted)]
        (retry,) = (event for event in events if isinstance(event, RetryScheduled))
        assert (retry.kind, retry.counted, retry.delay) == ("flex", False, 0.0)

    def test_after_three_in_a_row_the_tier_is_left_alone_and_later_tried_again(self, clock, client_of):
        full_until = 100.0
        provider = Tiered(
            clock,
            lambda prompt, _: (
                no_room() if clock.now() < full_until else Answer(prompt, usage=USAGE, tier=FLEX)
            ),
        )
        client, events = client_for(client_of, provider, parallelism=1)
        assert {r.route for r in ask(clock, client, named(20))} == {Route.INDIVIDUAL}
        assert provider.tiers.count(FLEX) == 3
        assert len(provider.tiers) == 23

        clock.sleep(70.0)  # the pause of a minute is over, but the tier is still full
        assert {r.route for r in ask(clock, client, named(20, "trial"))} == {Route.INDIVIDUAL}
        assert provider.tiers.count(FLEX) == 4

        clock.sleep(200.0)
        assert {r.route for r in ask(clock, client, named(20, "later"))} == {Route.FLEX}
        told = [(event.enabled, event.reason) for event in events if isinstance(event, FlexChanged)]
        assert [enabled for enabled, _ in told] == [False, True, False, True]
        assert told[0][1] == "the flex tier has no capacity; the tier is not used for 60 s"

    def test_a_model_that_lacks_the_tier_is_asked_once(self, clock, client_of):
        provider = Tiered(clock, lambda *_: refused("Flex is not available for this model."))
        client, events = client_for(client_of, provider, parallelism=1)
        assert all(result.ok for result in ask(clock, client, named(10)))
        assert provider.tiers.count(FLEX) == 1
        assert [event.enabled for event in events if isinstance(event, FlexChanged)] == [False]

    def test_a_bad_request_fails_with_what_the_standard_tier_says(self, clock, client_of):
        provider = Tiered(
            clock, lambda *_: refused("bad field"), script=lambda *_: refused("bad field, said plainly")
        )
        client, _ = client_for(client_of, provider)
        error = slow(client, "one").exception(PATIENCE)
        assert "said plainly" in str(error)
        assert provider.tiers == [FLEX, "default"]

    def test_a_late_flex_call_is_retried_at_the_standard_price(self, clock, client_of):
        late = failure(ErrorKind.TIMEOUT, maybe_billed=True)
        provider = Tiered(clock, lambda *_: late)
        client, events = client_for(client_of, provider, breaker_threshold=1)
        (result,) = ask(clock, client, ["one"])
        assert result.route is Route.INDIVIDUAL
        (retry,) = (event for event in events if isinstance(event, RetryScheduled))
        assert (retry.kind, retry.counted, retry.maybe_billed) == ("timeout", True, True)
        assert client.submit("two").result(PATIENCE).ok, "slowness of the tier is no outage of the model"

    @pytest.mark.parametrize(
        ("error", "earliest"),
        [
            (failure(ErrorKind.SERVER_ERROR), 0.0),
            (failure(ErrorKind.RATE_LIMIT, retry_after=20.0, code="rate_limit_exceeded", status=429), 20.0),
        ],
        ids=["an error", "a limit of the model"],
    )
    def test_other_failures_are_tried_again_in_the_tier(self, clock, client_of, error, earliest):
        provider = Tiered(
            clock, lambda prompt, attempt: error if attempt == 0 else Answer(prompt, usage=USAGE, tier=FLEX)
        )
        client, _ = client_for(client_of, provider)
        (result,) = ask(clock, client, ["one"])
        assert result.route is Route.FLEX
        assert provider.tiers == [FLEX, FLEX]
        assert clock.now() >= earliest

    def test_clients_of_one_account_know_of_each_others_refusals(self, clock, client_of):
        first, second = (Tiered(clock, lambda *_: no_room(), scope="one account") for _ in range(2))
        ask(clock, client_for(client_of, first)[0], named(5))
        assert not shared_quota("one account", "default").flex.is_open(clock.now())
        ask(clock, client_for(client_of, second)[0], named(5))
        assert second.tiers == ["default"] * 5


class TestMoney:
    def test_it_is_reserved_at_the_standard_price_as_it_may_end_there(self, clock, client_of):
        provider = Tiered(clock)
        client, _ = client_for(client_of, provider, parallelism=1)
        words = "word " * 1000
        most = (
            inside(client.start())
            .realtime.engine.lanes.of(provider, "default")
            .demand(Request(words, Generation(max_tokens=100)), 1000, priced=True)[1]
        )
        client_budget = Budget(None)
        own_budget = Budget(0.8 * most, client_budget)
        error = slow(client, words, own_budget, max_tokens=100).exception(PATIENCE)
        assert isinstance(error, BudgetExceeded)
        assert provider.tiers == []

    def test_a_budget_is_kept_when_all_are_sent_home(self, clock, client_of):
        provider = Tiered(clock, lambda *_: no_room())
        client, _ = client_for(client_of, provider, parallelism=8, budget=20 * FULL_PRICE)
        with clock.held():
            futures = [slow(client, "word " * 1000 + prompt, max_tokens=100) for prompt in named(60)]
        errors = [future.exception(PATIENCE) for future in futures]
        assert any(isinstance(error, BudgetExceeded) for error in errors)
        assert 10 * FULL_PRICE < client.spent <= 20 * FULL_PRICE
