"""Real processes on a real store, killed again and again: nothing is lost, wrong, doubled or paid twice."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.faults.durability.faulty_servers import LIST_LAG, faulty_emulator
from tests.faults.durability.fork_server import ForkServer
from tests.faults.durability.kill_loop import KillLoop, Plan, settle_of
from tests.faults.durability.run_checks import RunReport
from tests.faults.durability.worker_task import MODELS

CYCLES = 51  # workers killed, in all
JOBS = 4  # least jobs for each provider: about eight batches


@pytest.mark.full
def test_workers_killed_fifty_times_lose_nothing_and_pay_nothing_twice(tmp_path: Path) -> None:
    with faulty_emulator(seed=1) as url, ForkServer(tmp_path / "workers.log") as fork_server:
        loops = [
            KillLoop(
                Plan(
                    provider=name,
                    cycles=CYCLES // len(MODELS),
                    jobs=JOBS,
                    settle=settle_of(name),
                    visibility=LIST_LAG + 0.2,
                ),
                url=url,
                folder=tmp_path,
                fork_server=fork_server,
            )
            for name in MODELS
        ]
        with ThreadPoolExecutor(len(loops)) as threads:
            reports: list[RunReport] = list(threads.map(KillLoop.run, loops))
    assert [fault for report in reports for fault in report.faults] == []
    assert sum(loop.kills for loop in loops) >= 50
    outcomes = sum((report.outcomes for report in reports), start=reports[0].outcomes.__class__())
    assert outcomes["lost"] + outcomes["dropped"] + outcomes["late"] + outcomes["fenced"] > 0, (
        "no create failed"
    )
    assert all(report.excused == [] for report in reports)
    assert sum(report.items for report in reports) >= 4 * JOBS * len(MODELS)
