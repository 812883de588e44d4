"""The range of a quote contains what is paid to a provider that counts tokens like a tokenizer."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence

import pytest
from attrs import frozen
from levels import sampled

from smartbatch.core.preparation.answer_length import SHAPES
from smartbatch.core.preparation.calibration import Calibration
from smartbatch.core.preparation.tokens import estimate_request
from smartbatch.core.routing.workload import Cost, Workload
from smartbatch.types import Generation, Request, Usage

_TOKEN = re.compile(r" ?[A-Za-z]{1,9}|\d{1,3}| ?[^\w\s]+|\s+|\w")
_LABELS = {"type": "string", "enum": ["positive", "negative", "neutral"]}
_LABEL = {"type": "object", "properties": {"label": _LABELS}, "required": ["label"]}
_PROSE = (
    "Which river is the longest that was on the border of a century and its population",
    "the government of an international company said that development is different from information",
    "water for several people at a small university in the house was a question of number and answer",
)
_WORDS = [word for sentence in _PROSE for word in sentence.split()]


def tokens_of(text: str) -> int:
    return len(_TOKEN.findall(text))


@frozen
class Prices:
    input: float
    output: float

    def cost(self, usage: Usage) -> float:
        return (self.input * usage.input_tokens + self.output * usage.output_tokens) / 1e6

    expected_cost = cost


def _prose(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(_WORDS) for _ in range(words)) + "."


PROMPTS: list[Callable[[random.Random], str]] = [
    lambda rng: f"Is {rng.randrange(1000)} a prime number? Answer yes or no.",
    lambda rng: _prose(rng, 1),
    lambda rng: _prose(rng, rng.randrange(8, 20)),
    lambda rng: f"Summarise this text: {_prose(rng, rng.randrange(100, 300))}",
    lambda rng: json.dumps({"id": rng.randrange(9999), "name": _prose(rng, 3), "price": 1.25, "tags": ["a"]}),
    lambda rng: "".join(rng.choice("河流人口世纪政府大学水的是在和有") for _ in range(rng.randrange(12, 30))),
]


@frozen
class Provider:
    prices: Prices
    frame: int
    bills_schema: bool

    def usage(self, request: Request, tokens: int) -> Usage:
        assert isinstance(request.prompt, str)
        schema = request.params.schema
        billed = tokens_of(json.dumps(schema)) if schema and self.bills_schema else 0
        limit = request.params.max_tokens
        made = tokens if limit is None else min(tokens, limit)
        return Usage(self.frame + billed + tokens_of(request.prompt), max(1, made))


PROVIDERS = [
    Provider(Prices(0.25, 2.0), frame=7, bills_schema=True),
    Provider(Prices(0.3, 2.5), frame=0, bills_schema=False),
    Provider(Prices(1.0, 5.0), frame=8, bills_schema=True),
]


def quote(learned: Calibration, provider: Provider, requests: Sequence[Request]) -> Cost:
    workload = Workload(learned, {"standard": provider.prices})
    for request in requests:
        workload.add_request(request)
    cost = workload.cost("standard")
    assert cost is not None
    return cost


def pay(
    rng: random.Random, learned: Calibration, provider: Provider, requests: Sequence[Request], mean: float
) -> float:
    paid = 0.0
    for request in requests:
        tokens = 5 if request.params.schema else round(rng.gammavariate(1.7, mean / 1.7))
        usage = provider.usage(request, tokens)
        learned.observe(estimate_request(request), usage, SHAPES.of(request.params).key)
        paid += provider.prices.cost(usage)
    return paid


def requests_of(rng: random.Random, params: Generation) -> list[Request]:
    prompt = rng.choice(PROMPTS)
    return [Request(prompt(rng), params) for _ in range(rng.choice([5, 20, 200]))]


@pytest.mark.parametrize("seed", sampled(range(10)))
def test_what_is_paid_is_in_90_of_100_first_quotes(seed):
    rng = random.Random(seed)
    missed = []
    for _ in range(100):
        params = rng.choice(
            [Generation(), Generation(max_tokens=rng.choice([1, 20, 300])), Generation(schema=_LABEL)]
        )
        requests, provider = requests_of(rng, params), rng.choice(PROVIDERS)
        mean = 300 ** rng.random()
        cost = quote(Calibration(), provider, requests)
        paid = pay(rng, Calibration(), provider, requests, mean)
        if not cost.low <= paid <= cost.high:
            missed.append((requests[0], paid, cost))
    assert len(missed) <= 10, missed


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_first_quote_has_the_price_of_one_word_answers(provider, prompt):
    rng = random.Random(7)
    requests = [Request(prompt(rng)) for _ in range(200)]
    cost = quote(Calibration(), provider, requests)
    assert cost.low <= pay(rng, Calibration(), provider, requests, 0.1) <= cost.high


@pytest.mark.full
@pytest.mark.parametrize(("kinds_differ", "most_missed"), [(True, 8), (False, 16)])
def test_what_is_paid_is_in_the_quotes_of_lists_whose_answers_differ(kinds_differ, most_missed):
    missed = []
    for seed in range(2):
        rng, learned, provider = random.Random(seed), Calibration(), PROVIDERS[0]
        for no in range(40):
            kind = no % 2 if seed % 2 else rng.randrange(3)
            system = f"kind {kind}." if kinds_differ else None
            requests = [
                Request(_prose(rng, 12), Generation(system=system)) for _ in range(rng.choice([20, 40]))
            ]
            cost = quote(learned, provider, requests)
            paid = pay(rng, learned, provider, requests, (2.0, 30.0, 300.0)[kind])
            if not cost.low <= paid <= cost.high:
                missed.append((seed, no, kind, paid, cost))
    assert len(missed) <= most_missed, missed


@pytest.mark.full
def test_the_range_narrows_again_once_all_lists_are_alike():
    rng, learned, provider = random.Random(7), Calibration(), PROVIDERS[0]
    requests = [Request(_prose(rng, 12)) for _ in range(600)]
    widths = []
    for mean in (300.0, 20.0, 20.0, 20.0, 20.0):
        pay(rng, learned, provider, requests, mean)
        cost = quote(learned, provider, requests)
        widths.append(cost.high / cost.low)
    assert widths[0] < 4
    assert widths[1] > 8
    assert widths[-1] < 4
