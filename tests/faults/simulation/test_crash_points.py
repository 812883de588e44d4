"""A crash at every commit and every remote call, alone and with a second one, while other things go wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest
from attrs import evolve

from tests.faults.simulation.crash_points import step_of
from tests.faults.simulation.plans import Totals, base_plans, crashed_once, crashed_twice, plan_of
from tests.faults.simulation.scenario import FLAVOURS, Plan
from tests.faults.simulation.simulated_world import Outcome, simulate
from tests.levels import sampled

Run = Callable[[Iterable[Plan]], Iterator[Outcome]]
STEPS = {f"K{number}" for number in range(1, 25)}
OF_UPLOADS = {"K25", "K26", "K27"}
OF_FILES = {"K4", "K5", "K6", "K16", "K17"}
"""Steps of the protocol that a provider without input files does not have."""

OF_LABELS = {"K15"}  # A second batch of a shard that may be foreign is not cancelled


@pytest.mark.full
@pytest.mark.parametrize("flavour", sampled(FLAVOURS))
def test_a_crash_at_any_point_alone_does_no_harm(run, flavour):
    bases = list(run(base_plans([0], [flavour])))
    known: set[str] = set()
    total = Totals.of(
        [*bases, *run(plan for base in bases for plan in crashed_once(base, sparse=True, known=known))]
    )
    assert total.problems == []
    assert total.names == {name for base in bases for name in base.points}
    expected = STEPS if FLAVOURS[flavour].files else STEPS - OF_FILES - OF_LABELS
    assert {step for name in total.names if (step := step_of(name))} == expected


@pytest.mark.full
@pytest.mark.parametrize("flavour", sampled(FLAVOURS))
def test_a_crash_at_any_point_of_an_upload_does_no_harm(run, flavour):
    plans = [evolve(plan_of(case, flavour, 0), uploads=True) for case in ("calm", "lost")]
    bases = [simulate(plan) for plan in plans]
    total = Totals.of([*bases, *run(plan for base in bases for plan in crashed_once(base, sparse=True))])
    assert total.problems == []
    assert {step_of(name) for name in total.names} >= OF_UPLOADS


@pytest.mark.parametrize("flavour", sampled(FLAVOURS))
def test_no_crash_makes_a_job_exceed_its_budget(flavour):
    base = simulate(Plan(seed=0, flavour=flavour, quiet=True, items=3, policy=(("budget", 1e-6),)))
    outcomes = [base, *map(simulate, crashed_once(base))]
    total = Totals.of(outcomes)
    assert total.problems == []
    assert total.crashes == len(base.points)
    assert sum(total.creates.values()) == 0


@pytest.mark.full
def test_two_crashes_do_no_more_harm_than_one(run):
    bases = list(run(base_plans([1])))
    pairs = [plan for base in bases for plan in crashed_twice(base)]
    total = Totals.of(run(pairs[:: len(pairs) // 100]))
    assert total.problems == []
    assert total.crashes > 1.9 * total.runs


@pytest.mark.soak
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_every_point_and_every_pair(run, flavour):
    bases = list(run(base_plans(range(20), [flavour])))
    alone = Totals.of(run(plan for base in bases for plan in crashed_once(base)))
    pairs = Totals.of(run(plan for base in bases if base.plan.seed < 2 for plan in crashed_twice(base)))
    assert alone.problems + pairs.problems == []
