"""Runs whole jobs in virtual time on the real engine and store, and checks their invariants.

    python -m benchmarks.simulation --seeds 10000
    python -m benchmarks.simulation --seeds 0 --points 0 --pairs 0 --housekeeping 10000

Each run is one job with one kind of provider, random faults, and processes that crash. No request may be
lost, duplicated, stuck or paid for twice, according to the ledger of the emulated provider. A failed run
prints the command that repeats it. In the second part, webhook events arrive, what a job left is deleted at
once or after an hour, and some jobs have files in their prompts or meet a full storage; nothing that is still
needed may be deleted.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator

from tests.faults.simulation.crash_points import step_of
from tests.faults.simulation.plans import (
    CASES,
    RATES,
    Totals,
    base_plans,
    crashed_once,
    crashed_twice,
    runner,
    seeded,
    with_housekeeping,
)
from tests.faults.simulation.scenario import FLAVOURS, Plan
from tests.faults.simulation.simulated_world import Outcome

Run = Callable[[Iterable[Plan]], Iterator[Outcome]]
FIRST_SEED = 1_000_000
"""Far from the seeds of the tests."""
REPLAYED = 100
REPORTED = 500


def everything(run: Run, seeds: range) -> list[str]:
    """Print the table of runs with all faults; return the lines of failed runs."""
    sums: dict[tuple[str, float], Totals] = {}
    traces: dict[Plan, str] = {}
    total = Totals()
    for outcome in run(seeded(seeds)):
        plan = outcome.plan
        sums.setdefault((plan.flavour, plan.crash_rate), Totals()).add(outcome)
        total.add(outcome)
        if len(traces) < REPLAYED:
            traces[plan] = outcome.trace
    print(f"\nSeeds {seeds.start:,} to {seeds.stop - 1:,}\n")
    print(
        "| provider | crashes at a point | runs | crashes | frozen | creates lost, dropped, late, fenced"
        " | violations | foreign batches adopted | paid twice: named, not named |"
    )
    print("|" + "---|" * 9)
    for flavour in FLAVOURS:
        for rate in RATES:
            print(_row(flavour, f"{rate:.0%}", sums.get((flavour, rate), Totals())), flush=True)
    print(_row("all", "", total))
    print(f"\nincidents: {_listed(total)}")
    same = sum(outcome.trace == traces[outcome.plan] for outcome in run(traces))
    print(f"replayed in every event: {same} of {len(traces)}", flush=True)
    return total.problems + ([] if same == len(traces) else ["a replay differs"])


def _row(provider: str, rate: str, total: Totals) -> str:
    creates = ", ".join(f"{total.creates[outcome]:,}" for outcome in ("lost", "dropped", "late", "fenced"))
    paid = f"{total.double - total.unnamed:,}, {total.unnamed:,}"
    bad = len(total.problems)
    cells = (provider, rate, total.runs, total.crashes, total.freezes, creates, bad, total.foreign, paid)
    return "| " + " | ".join(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in cells) + " |"


def _listed(total: Totals) -> str:
    return ", ".join(f"{kind} {count:,}" for kind, count in total.incidents.most_common()) or "none"


def housekeeping(run: Run, seeds: range) -> list[str]:
    """Print the totals of runs with events and deletions; return the lines of failed runs."""
    total = Totals()
    for number, outcome in enumerate(run(with_housekeeping(seeds)), 1):
        total.add(outcome)
        if number % REPORTED == 0 or number == len(seeds):
            creates = ", ".join(f"{total.creates[one]:,}" for one in ("lost", "dropped", "late", "fenced"))
            print(
                f"{number:,} runs with events and deletions: {total.crashes:,} crashes, {total.freezes:,} "
                f"frozen, creates {creates}, incidents {_listed(total)}; violations {len(total.problems)}",
                flush=True,
            )
    return total.problems


def points(run: Run, seeds: range, *, pairs: range) -> list[str]:
    """Print the results of crashes at every point, alone and in pairs; return the lines of failed runs."""
    print("\n| crashes | provider | cases | points of a job | runs | steps of the protocol | violations |")
    print("|" + "---|" * 7)
    problems = []
    for flavour in FLAVOURS:
        for name, chosen, crashed in (("one", seeds, crashed_once), ("two", pairs, crashed_twice)):
            bases = list(run(base_plans(chosen, [flavour])))
            if not bases:
                continue
            total = Totals.of(run(plan for base in bases for plan in crashed(base)))
            met = [len(base.points) for base in bases]
            steps = len({step for point in total.names if (step := step_of(point))})
            cells = (name, flavour, len(CASES), f"{min(met)}–{max(met)}", f"{total.runs:,}", steps)
            print("| " + " | ".join(map(str, (*cells, len(total.problems)))) + " |", flush=True)
            problems += total.problems
    return problems


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10_000, help="runs with all faults")
    parser.add_argument("--housekeeping", type=int, default=2_000, help="runs with events and deletions")
    parser.add_argument("--first", type=int, default=FIRST_SEED, help="the first seed")
    parser.add_argument("--points", type=int, default=3, help="jobs a case whose every point crashes alone")
    parser.add_argument("--pairs", type=int, default=1, help="jobs a case whose points crash in pairs")
    parser.add_argument("--cores", type=int, default=2)
    options = parser.parse_args()
    began = time.monotonic()
    with runner(options.cores) as run:
        first = options.first
        problems = everything(run, range(first, first + options.seeds))
        problems += housekeeping(run, range(first, first + options.housekeeping))
        problems += points(
            run, range(first, first + options.points), pairs=range(first, first + options.pairs)
        )
    print(f"\n{time.monotonic() - began:,.0f} s")
    for problem in problems:
        print(problem)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
