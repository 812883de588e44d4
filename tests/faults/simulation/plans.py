"""Which runs make a programme: seeds of everything at once, and every crash point alone or with another."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from attrs import define, evolve, field

from tests.faults.simulation.scenario import FLAVOURS, HOUR, Plan
from tests.faults.simulation.simulated_world import Outcome, simulate

RATES = (0.0, 0.02, 0.12)  # chances of a crash at each point
CORES = 2
CASES: dict[str, dict[str, Any]] = {
    "calm": {},
    "lost": {"faults": (("lost_create",),)},
    "dropped": {"faults": (("dropped_create",),)},
    "late": {"faults": (("late_create",),)},
    "hidden": {"faults": (("lost_create", "list_lag", "get_lag"),)},
    "repeated": {"faults": (("lost_create",),), "repeats": 1, "turnaround": 1800.0},
    "expired": {"faults": (("expire_part",),), "policy": (("fallback", "individual"),)},
    "missing": {"faults": (("missing_lines", "shuffled"),)},
    "refused": {"faults": (("fail_validation",),)},
    "console": {"faults": (("cancelled_elsewhere",),)},
    "bad line": {"faults": (("refused_lines",),)},
}
"""What happens to a small job while it crashes; its remote files are tidied at once in each."""


def seeded(seeds: Iterable[int], flavour: str | None = None, rate: float | None = None) -> Iterator[Plan]:
    names = list(FLAVOURS)
    for seed in seeds:
        yield Plan(
            seed=seed,
            flavour=flavour or names[seed % len(names)],
            crash_rate=Random(f"rate {seed}").choice(RATES) if rate is None else rate,
        )


def with_housekeeping(seeds: Iterable[int]) -> Iterator[Plan]:
    """Yield jobs with webhook events whose batches and files are deleted.

    Some meet a full storage, and some have files in their prompts.
    """
    for plan in seeded(seeds):
        retention = 0.0 if plan.seed % 2 else HOUR
        odd = ("full",) if plan.seed % 7 == 0 else ()
        files = plan.seed % 3 == 0
        yield evolve(plan, webhooks=True, uploads=files, policy=(("retention", retention),), odd=odd)


def plan_of(case: str, flavour: str, seed: int) -> Plan:
    given = CASES[case]
    policy = (*given.get("policy", ()), ("retention", 0.0))
    return Plan(seed=seed, flavour=flavour, quiet=True, **{**given, "policy": policy})


def base_plans(seeds: Iterable[int], flavours: Iterable[str] = FLAVOURS) -> Iterator[Plan]:
    for seed in seeds:
        for flavour in flavours:
            for case in CASES:
                yield plan_of(case, flavour, seed)


def crashed_once(base: Outcome, *, sparse: bool = False, known: set[str] | None = None) -> Iterator[Plan]:
    """Return the run with a crash at each of its points."""
    last = {name: number for number, name in enumerate(base.points)}
    first = {name: number for number, name in reversed([*enumerate(base.points)])}
    for number, name in enumerate(base.points):
        if (known is not None and name in known) or (sparse and number not in (first[name], last[name])):
            continue
        yield evolve(base.plan, crashes=(number,))
    if known is not None:
        known.update(base.points)


def crashed_twice(base: Outcome, *, most: int = 26) -> Iterator[Plan]:
    for first in range(min(most, len(base.points))):
        for second in range(first + 1, most):
            yield evolve(base.plan, crashes=(first, second))


@contextmanager
def runner(cores: int = CORES) -> Iterator[Callable[[Iterable[Plan]], Iterator[Outcome]]]:
    with multiprocessing.get_context("spawn").Pool(cores) as pool:
        yield lambda plans: pool.imap(simulate, plans, chunksize=8)


@define
class Totals:
    runs: int = 0
    points: int = 0
    crashes: int = 0
    freezes: int = 0
    double: int = 0  # items that were paid for more than once; unnamed those that no incident names
    unnamed: int = 0
    repeated: int = 0
    foreign: int = 0
    hours: float = 0.0
    incidents: Counter[str] = field(factory=Counter)
    creates: Counter[str] = field(factory=Counter)
    names: set[str] = field(factory=set)
    problems: list[str] = field(factory=list)  # the lines that find a failed run again

    def add(self, outcome: Outcome) -> None:
        self.runs += 1
        self.points += len(outcome.points)
        self.crashes += len(outcome.crashed)
        self.freezes += outcome.frozen
        self.double += outcome.double
        self.unnamed += outcome.unnamed
        self.repeated += outcome.incidents["double_submission"] > 0
        self.foreign += outcome.adopted_foreign
        self.hours += outcome.seconds / 3600
        self.incidents += outcome.incidents
        self.creates += outcome.creates
        self.names.update(outcome.crashed)
        if outcome.problem is not None:
            self.problems.append(f"{outcome.plan.line()}: {outcome.problem}")

    @classmethod
    def of(cls, outcomes: Iterable[Outcome]) -> Totals:
        total = cls()
        for outcome in outcomes:
            total.add(outcome)
        return total
