"""What the tests of the simulation share: processes that run plans."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest

from tests.faults.simulation.plans import runner
from tests.faults.simulation.scenario import Plan
from tests.faults.simulation.simulated_world import Outcome


@pytest.fixture(scope="module")
def run() -> Iterator[Callable[[Iterable[Plan]], Iterator[Outcome]]]:
    with runner() as running:
        yield running
