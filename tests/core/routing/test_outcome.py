"""Decisions can be stored as text and read back unchanged."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest

from smartbatch.core.forecast import Forecaster
from smartbatch.core.routing.choice import Decision, choose
from smartbatch.core.routing.explanation import explain
from smartbatch.core.routing.offers import BatchOffer, Offer, Throughput
from smartbatch.core.routing.options import Constraints
from smartbatch.core.routing.outcome import ActualCost, decision_of, decision_text
from smartbatch.core.routing.workload import AnswerLengths, Cost, Load
from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.routing.history import BATCH_PRIOR, CALL_PRIOR
from smartbatch.types import Result, Route, Strategy, Usage

PRICES = [SimpleNamespace(cost=lambda usage, usd=usd: usd * usage.total_tokens) for usd in (2.0, 1.0)]
USED = Usage(6, 4)
FAILED = ProviderError("no", kind=ErrorKind.SERVER_ERROR)


@pytest.mark.parametrize(
    ("result", "counts", "amounts"),
    [
        ({"route": Route.INDIVIDUAL}, (1, 0, 1), (3.0, 3.0, 10.0)),
        ({"route": Route.SHARED}, (1, 0, 1), (3.0, 3.0, 10.0)),
        ({"route": Route.FLEX}, (1, 0, 1), (3.0, 20.0, 10.0)),
        ({"route": Route.BATCH}, (1, 1, 0), (3.0, 20.0, 3.0)),
        ({"route": Route.BATCH, "error": FAILED}, (0, 1, 0), (3.0, 20.0, 3.0)),
        ({"route": Route.BATCH, "deduplicated": True}, (1, 0, 0), (3.0, 20.0, 3.0)),
        ({"route": Route.BATCH, "paid_before": True}, (1, 0, 0), (0.0, 0.0, 0.0)),
        ({"route": Route.LOCAL, "usage": Usage(), "cost": 0.0}, (1, 0, 0), (0.0, 0.0, 0.0)),
        ({"route": Route.BATCH, "cost": None}, (1, 1, 0), (None, 20.0, None)),
    ],
)
def test_a_result_adds_its_cost_and_that_of_the_other_ways(result, counts, amounts):
    actual = ActualCost()
    actual.add_result(Result("1", **{"text": "a", "usage": USED, "cost": 3.0, **result}), *PRICES)
    assert (actual.answered, actual.batched, actual.realtime) == counts
    assert (actual.paid, actual.individual, actual.by_batch) == amounts


def test_costs_add_up_until_one_is_unknown():
    actual = ActualCost()
    for route in (Route.BATCH, Route.FLEX):
        actual.add_result(Result("1", usage=USED, cost=3.0, route=route), *PRICES)
    assert (actual.paid, actual.individual, actual.by_batch) == (6.0, 40.0, 13.0)
    actual.add_result(Result("1", usage=USED, cost=3.0, route=Route.FLEX))
    actual.add_result(Result("1", usage=USED, cost=3.0, route=Route.FLEX), *PRICES)
    assert (actual.paid, actual.individual, actual.by_batch) == (12.0, None, None)


def decision(requests: int = 400, **constraints: object) -> Decision:
    call, times = Forecaster(CALL_PRIOR).at(0.0), Forecaster(BATCH_PRIOR).at(0.0)
    cost = Cost(0.9, 1.0, 1.2)
    offers = [Offer(Route.INDIVIDUAL, Throughput(call, parallelism=8), cost)]
    batch = BatchOffer(times, cost.of(0.5), alone=cost, cancelling=times)
    unmarked = {"its writes are not read": 3}
    load = Load(requests, 1e5, 2e4, cached=3, answers=AnswerLengths(7, 120.0), unmarked=unmarked)
    return choose(load, offers, batch, Constraints(**constraints))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"requests": 2},
        {"requests": 6, "prefer": "cost"},
        {"deadline": 90_000.0, "budget": 3.0},
        {"strategy": Strategy.BATCH},
        {"strategy": Strategy.INDIVIDUAL},
    ],
    ids=repr,
)
def test_a_decision_comes_back_with_its_table_and_its_reason(asked):
    made = decision(**asked)  # type: ignore[arg-type]
    text = decision_text(made)
    again = decision_of(text)
    assert again == made
    assert again is not None
    assert any(option is again.chosen for option in again.options)
    assert explain(again, details=True) == explain(made, details=True)
    assert text.isascii()
    assert len(text) < 4_000


def test_what_takes_for_ever_comes_back_too():
    made = decision()
    endless = type(made.alone)(Route.INDIVIDUAL, math.inf, math.inf, math.inf, None, 3, 1.0)
    changed = Decision(made.load, made.constraints, made.options, made.chosen, "é ☃ <b>", endless, None)
    assert decision_of(decision_text(changed)) == changed


@pytest.mark.parametrize(
    "damage",
    ["", "[]", "null", "{", '{"version": 1}', '{"version": 2, "load": {}}', '{"version": 1, "load": 3}'],
)
def test_a_newer_or_damaged_text_is_no_decision(damage):
    assert decision_of(damage) is None


def test_a_field_that_is_not_known_here_is_not_guessed():
    form = json.loads(decision_text(decision()))
    form["load"]["colour"] = "red"
    assert decision_of(json.dumps(form)) is None
