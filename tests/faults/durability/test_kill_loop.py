"""Real processes on a real store, killed again and again: nothing is lost, wrong, doubled or paid twice."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.faults.durability.judge import Verdict
from tests.faults.durability.killing import Loop, Plan, settle_of
from tests.faults.durability.orders import MODELS
from tests.faults.durability.servers import LIST_LAG, unlucky
from tests.faults.durability.zygote import Zygote

CYCLES = 51
"""Workers killed, in all."""
JOBS = 4
"""Least jobs for each provider: about eight batches."""


def test_a_forked_worker_does_not_spend_its_life_on_the_garbage_of_imports(tmp_path: Path) -> None:
    with Zygote(tmp_path / "workers.log") as zygote:
        assert zygote.heap() < 10_000


def test_workers_killed_fifty_times_lose_nothing_and_pay_nothing_twice(tmp_path: Path) -> None:
    with unlucky(seed=1) as url, Zygote(tmp_path / "workers.log") as zygote:
        loops = [
            Loop(
                Plan(
                    provider=name,
                    cycles=CYCLES // len(MODELS),
                    jobs=JOBS,
                    settle=settle_of(name),
                    visibility=LIST_LAG + 0.2,
                ),
                url=url,
                folder=tmp_path,
                zygote=zygote,
            )
            for name in MODELS
        ]
        with ThreadPoolExecutor(len(loops)) as threads:
            verdicts: list[Verdict] = list(threads.map(Loop.run, loops))
    assert [fault for verdict in verdicts for fault in verdict.faults] == []
    assert sum(loop.kills for loop in loops) >= 50
    fates = sum((verdict.fates for verdict in verdicts), start=verdicts[0].fates.__class__())
    assert fates["lost"] + fates["dropped"] + fates["late"] + fates["fenced"] > 0, "no create was unlucky"
    assert all(verdict.excused == [] for verdict in verdicts)
    assert sum(verdict.items for verdict in verdicts) >= 4 * JOBS * len(MODELS)
