"""What the tests of the simulation share: processes that run plans."""

from __future__ import annotations

import pytest

from tests.faults.simulation.plans import runner


@pytest.fixture(scope="module")
def run():
    with runner() as running:
        yield running
