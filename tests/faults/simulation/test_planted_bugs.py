"""Tests of the tests: each of 16 classic mistakes, planted into the real code, is seen by a check."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests.faults.simulation.planting import BUGS, Bug, caught, planted, start
from tests.faults.simulation.simulate import simulate

pytestmark = pytest.mark.full

WITHIN = 60
"""Runs in which the simulation must have seen a bug."""
SEEN_BY_SIMULATION = [bug for bug in BUGS if bug.test is None]
SEEN_BY_TESTS = [bug for bug in BUGS if bug.test is not None]


@pytest.fixture(scope="module", autouse=True)
def running() -> Iterator[dict[Bug, subprocess.Popen[str]]]:
    """Start the tests that see the other bugs; they wait more than they work."""
    started = {bug: start(bug) for bug in SEEN_BY_TESTS}
    yield started
    for process in started.values():
        process.kill()
        process.communicate()


@pytest.mark.parametrize("bug", SEEN_BY_SIMULATION, ids=str)
def test_the_simulation_sees_that(bug: Bug) -> None:
    """One of the judge's invariants breaks; without the bug the same run is clean."""
    with planted(bug):
        outcome = caught(bug, within=WITHIN)
    assert outcome is not None
    assert simulate(outcome.plan).problem is None


@pytest.mark.parametrize("bug", SEEN_BY_TESTS, ids=str)
def test_a_test_of_the_suite_sees_that(bug: Bug, running: dict[Bug, subprocess.Popen[str]]) -> None:
    """The test of that promise fails when the bug is there."""
    said, _ = running[bug].communicate(timeout=100)
    assert running[bug].returncode == pytest.ExitCode.TESTS_FAILED, said
    assert f"FAILED {bug.test}" in said


def test_the_list_is_whole() -> None:
    """16 mistakes, each by a number of its own."""
    assert [bug.number for bug in BUGS] == list(range(1, 17))
