"""Tests of the tests: each of 16 classic mistakes, made in the real code, is seen by a check."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests.faults.simulation.mutants import MUTANTS, Mutant, first_caught, mutated, start
from tests.faults.simulation.simulate import simulate

pytestmark = pytest.mark.full

WITHIN = 400
"""Runs in which the simulation must have seen a mutant: it ends with the first that sees it, and the rarest
is seen by one in thirty, so that other random numbers make no test red."""
SEEN_BY_SIMULATION = [mutant for mutant in MUTANTS if mutant.test is None]
SEEN_BY_TESTS = [mutant for mutant in MUTANTS if mutant.test is not None]


@pytest.fixture(scope="module", autouse=True)
def running() -> Iterator[dict[Mutant, subprocess.Popen[str]]]:
    """Start the tests that see the other mutants; they wait more than they work."""
    started = {mutant: start(mutant) for mutant in SEEN_BY_TESTS}
    yield started
    for process in started.values():
        process.kill()
        process.communicate()


@pytest.mark.parametrize("mutant", SEEN_BY_SIMULATION, ids=str)
def test_the_simulation_sees_that(mutant: Mutant) -> None:
    """An invariant breaks; without the mutant the same run is clean."""
    with mutated(mutant):
        outcome = first_caught(mutant, within=WITHIN)
    assert outcome is not None
    assert simulate(outcome.plan).problem is None


@pytest.mark.parametrize("mutant", SEEN_BY_TESTS, ids=str)
def test_a_test_of_the_suite_sees_that(mutant: Mutant, running: dict[Mutant, subprocess.Popen[str]]) -> None:
    """The test of that rule fails with the mutant in place."""
    said, _ = running[mutant].communicate(timeout=100)
    assert running[mutant].returncode == pytest.ExitCode.TESTS_FAILED, said
    assert f"FAILED {mutant.test}" in said


def test_the_list_is_whole() -> None:
    """16 mistakes, each by a number of its own."""
    assert [mutant.number for mutant in MUTANTS] == list(range(1, 17))
