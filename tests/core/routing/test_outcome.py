"""Decisions can be stored as text and read back unchanged."""

from __future__ import annotations

import json
import math

import pytest

from smartbatch.core.forecast import Forecaster
from smartbatch.core.routing.choice import Decision, choose
from smartbatch.core.routing.explanation import explain
from smartbatch.core.routing.offers import BatchOffer, Offer, Throughput
from smartbatch.core.routing.options import Constraints
from smartbatch.core.routing.outcome import decision_of, decision_text
from smartbatch.core.routing.workload import AnswerLengths, Cost, Load
from smartbatch.routing.history import BATCH_PRIOR, CALL_PRIOR
from smartbatch.types import Route, Strategy


def decision(requests: int = 400, **constraints: object) -> Decision:
    call, times = Forecaster(CALL_PRIOR).at(0.0), Forecaster(BATCH_PRIOR).at(0.0)
    cost = Cost(0.9, 1.0, 1.2)
    offers = [Offer(Route.INDIVIDUAL, Throughput(call, parallelism=8), cost)]
    batch = BatchOffer(times, cost.of(0.5), alone=cost, cancelling=times)
    load = Load(requests, 1e5, 2e4, cached=3, answers=AnswerLengths(7, 120.0))
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
