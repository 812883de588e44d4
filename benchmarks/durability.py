"""Workers killed with SIGKILL at random moments, over and over: what is lost, doubled, or paid twice.

    python -m benchmarks.durability --cycles 500

The emulator serves from its own process and loses a third of the answers to creates: some were made, some
were not, some land up to 1.5 s later. A worker lives for 80 to 530 ms. What it left behind is judged by the
emulator's ledger, by the store's file, and by the notes the worker's user took of every answer.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from tests.durability.judge import Verdict
from tests.durability.killing import Loop, Plan, settle_of
from tests.durability.mutants import MUTANTS
from tests.durability.orders import MODELS
from tests.durability.servers import LIST_LAG, unlucky
from tests.durability.zygote import Zygote

FREEZE = 1.2
"""Seconds a worker is stopped at most where workers are stopped."""
LEASE = 0.6
"""Seconds of a job's lease where two workers share a store: shorter than most freezes."""
_HEAD = (
    "| provider | run | killed | frozen | jobs | items | creates lost, dropped, late, fenced | lost | wrong |"
    " delivered twice | paid twice | corrupt | lives without progress | s a cycle |"
)


def run(label: str, provider: str, cycles: int, seed: int, **plan: Any) -> Verdict:
    """Run one loop, and print its row."""
    freeze = plan.get("freeze", 0.0)
    plan = {"settle": settle_of(provider, freeze=freeze), "visibility": LIST_LAG + 0.2, **plan}
    with (
        tempfile.TemporaryDirectory(prefix="smartbatch-") as name,
        unlucky(seed) as url,
        Zygote(Path(name) / "workers.log") as zygote,
    ):
        loop = Loop(
            Plan(provider=provider, cycles=cycles, seed=seed, **plan),
            url=url,
            folder=Path(name),
            zygote=zygote,
        )
        verdict = loop.run()
    fates = verdict.fates
    unlucky_ones = ", ".join(str(fates[fate]) for fate in ("lost", "dropped", "late", "fenced"))
    paid = str(len(verdict.paid_twice))
    if verdict.excused:
        paid += f" and {len(verdict.excused)} with an incident"
    cells = (
        *(provider, label, loop.kills, loop.freezes, verdict.jobs, verdict.items, unlucky_ones),
        *(len(found) for found in (verdict.lost, verdict.wrong, verdict.twice)),
        *(paid, len(verdict.corrupt), loop.worst_stuck, f"{loop.seconds / max(1, loop.kills):.2f}"),
    )
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)
    return verdict


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cycles", type=int, default=500, help="workers killed per provider")
    parser.add_argument("--shorter", type=int, default=60, help="the same for frozen, paired and mutant rows")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--provider", choices=sorted(MODELS), help="one only")
    options = parser.parse_args()
    providers = [options.provider] if options.provider else list(MODELS)
    print(_HEAD)
    print("|" + "---|" * (_HEAD.count("|") - 1))
    faults = []
    for name in providers:
        runs = [
            run("killed", name, options.cycles, options.seed),
            run("frozen, then killed", name, options.shorter, options.seed + 1, freeze=FREEZE),
            run(
                "two workers, frozen and killed",
                name,
                options.shorter,
                options.seed + 2,
                freeze=FREEZE,
                workers=2,
                lease=LEASE,
            ),
        ]
        faults += [fault for verdict in runs for fault in verdict.faults]
    for name in providers:
        for number, mutant in enumerate(MUTANTS):
            run(f"mutant: {mutant}", name, options.shorter, options.seed + 3 + number, mutant=mutant)
    for fault in faults:
        print(fault)
    raise SystemExit(1 if faults else 0)


if __name__ == "__main__":
    main()
