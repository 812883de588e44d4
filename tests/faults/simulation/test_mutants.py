"""Tests of the tests: each of 19 classic mistakes, made in the real code, is seen by a check."""

from __future__ import annotations

import pytest

from tests.faults.simulation.mutants import MUTANTS, first_caught, mutated, start
from tests.faults.simulation.simulated_world import simulate

pytestmark = pytest.mark.full

WITHIN = 200
"""Runs in which the simulation must have seen a mutant: it ends with the first that sees it, by now the 30th
or an earlier one. The rarest is seen by one in 25. Of 60 runs, where the random numbers change, none would
see it once in eleven times; of 200 once in 3,500."""
SEEN_BY_SIMULATION = [mutant for mutant in MUTANTS if mutant.test is None]
SEEN_BY_TESTS = [mutant for mutant in MUTANTS if mutant.test is not None]


@pytest.fixture(scope="module", autouse=True)
def running():
    started = {mutant: start(mutant) for mutant in SEEN_BY_TESTS}
    yield started
    for process in started.values():
        process.kill()
        process.communicate()


@pytest.mark.parametrize("mutant", SEEN_BY_SIMULATION, ids=str)
def test_the_simulation_sees_that(mutant):
    with mutated(mutant):
        outcome = first_caught(mutant, within=WITHIN)
    assert outcome is not None
    assert simulate(outcome.plan).problem is None


@pytest.mark.parametrize("mutant", SEEN_BY_TESTS, ids=str)
def test_a_test_of_the_suite_sees_that(mutant, running):
    said, _ = running[mutant].communicate(timeout=100)
    assert running[mutant].returncode == pytest.ExitCode.TESTS_FAILED, said
    assert any(f"{outcome} {mutant.test}" in said for outcome in ("FAILED", "ERROR"))  # at its end


def test_the_list_is_whole():
    assert [mutant.number for mutant in MUTANTS] == list(range(1, 20))
