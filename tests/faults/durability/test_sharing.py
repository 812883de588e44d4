"""Processes that share a store: one is killed, one is frozen, and every job has one owner at a time."""

from __future__ import annotations

from pathlib import Path

from jobs.stores import postgres_address

from tests.faults.durability.killing import settle_of
from tests.faults.durability.servers import unlucky
from tests.faults.durability.sharing import Shared, Sharing
from tests.faults.durability.zygote import Zygote

__all__ = ["postgres_address"]  # a fixture

FREEZE = 2.0
"""Seconds: more than two leases."""
LEASE = 0.9
SEED = 3


def test_four_processes_share_twenty_jobs_though_one_dies_and_one_is_frozen(
    postgres_address: str, tmp_path: Path
) -> None:
    plan = Shared(freeze=FREEZE, lease=LEASE, settle=settle_of("anthropic", freeze=2 * FREEZE), seed=SEED)
    with (
        unlucky(SEED, turnaround=3.0, sigma=0.1, share=0.4) as url,
        Zygote(tmp_path / "workers.log") as zygote,
    ):
        run = Sharing(plan, postgres_address, url, zygote, tmp_path).run()
    assert run.faults == []
    assert run.of_the_dead > 0, "the killed process owned nothing"
    assert run.taken_over > 0, "the frozen process lost nothing"
    assert run.fates["lost"] + run.fates["dropped"] + run.fates["late"] > 0, "no create was unlucky"
    assert run.samples > 50
    assert run.writes > 20 * 12
