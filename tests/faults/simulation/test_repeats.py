"""The negative control: something below the library repeats creates, as an SDK would with its retries on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest
from attrs import evolve

from tests.faults.simulation.plans import Totals, plan_of, seeded
from tests.faults.simulation.scenario import FLAVOURS, Plan
from tests.faults.simulation.simulated_world import Outcome
from tests.levels import sampled

Run = Callable[[Iterable[Plan]], Iterator[Outcome]]


@pytest.mark.full
@pytest.mark.parametrize("flavour", sampled(FLAVOURS))
def test_a_repeated_create_is_told_with_what_it_cost(run: Run, flavour: str) -> None:
    outcomes = list(run(plan_of("repeated", flavour, seed) for seed in range(12)))
    assert [outcome.problem for outcome in outcomes if outcome.problem] == []
    assert min(outcome.incidents["double_submission"] for outcome in outcomes) >= 1
    assert sum(outcome.unnamed for outcome in outcomes) == 0
    if FLAVOURS[flavour].labels:  # then it is cancelled after two minutes
        assert sum(outcome.cancelled for outcome in outcomes) > 8


@pytest.mark.full
def test_whatever_else_goes_wrong_second_payments_are_named(run: Run) -> None:
    total = Totals.of(run(evolve(plan, repeats=2) for plan in seeded(range(10_000, 10_120))))
    assert total.problems == []
    assert total.double > 30
    assert total.unnamed < total.double / 10
    assert total.repeated > 12
