"""Processes that share a store: one is killed, one is frozen, and every job has one owner at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.durability.faulty_servers import faulty_emulator
from tests.faults.durability.fork_server import ForkServer
from tests.faults.durability.kill_loop import settle_of
from tests.faults.durability.sharing_runs import SharingPlan, SharingRun

FREEZE = 2.0  # seconds: more than two leases
LEASE = 0.9
SEED = 3


@pytest.mark.full
def test_four_processes_share_jobs_though_one_dies_and_one_freezes(
    postgres_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    plan = SharingPlan(
        freeze=FREEZE, lease=LEASE, settle=settle_of("anthropic", freeze=2 * FREEZE), seed=SEED
    )
    with (
        faulty_emulator(SEED, turnaround=3.0, sigma=0.1, share=0.4) as url,
        ForkServer(tmp_path / "workers.log") as fork_server,
    ):
        run = SharingRun(plan, postgres_address, url, fork_server, tmp_path).run()
    assert run.faults == []
    assert run.owned_by_killed > 0, "the killed process owned nothing"
    assert run.taken_over > 0, "the frozen process lost nothing"
    assert run.outcomes["lost"] + run.outcomes["dropped"] + run.outcomes["late"] > 0, "no create failed"
    assert run.samples > 50
    assert run.writes > 20 * 12
    assert list(home.iterdir()) == []
