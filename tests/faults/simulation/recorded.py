"""How simulated jobs went when they were recorded: calls, seconds, money, order and more of each.

    PYTHONPATH=tests:. python -m tests.faults.simulation.recorded

records anew, after a change of behaviour that is meant; the difference says which figures it changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests import figures
from tests.faults.simulation.clock import SimClock
from tests.faults.simulation.plans import CASES, plan_of, seeded
from tests.faults.simulation.scenario import FLAVOURS, HOUR, Plan
from tests.faults.simulation.simulated_world import Outcome, simulate
from tests.figures import Figures, Table

RECORDED = Path(__file__).with_name("recorded.txt")
SEEDS = range(8)
POLICIES: dict[str, dict[str, Any]] = {
    "exclusive": {"exclusive_workspace": True},
    "hold": {"on_unknown": "hold"},
    "impatient": {"timeout": 120.0, "fallback": "individual"},
    "urgent": {"deadline": SimClock.START + HOUR},
    "late": {"deadline": SimClock.START + 60.0, "fallback": "individual"},
}
"""What a job asks for besides what its seed draws."""
LINES = ("malformed_lines", "doubled_lines", "swapped_answers", "status_zero", "item_error", "item_invalid")
LINES += ("no_usage", "foreign_lines", "missing_lines")
ENDS = ("no_money_lines", "results_unavailable", "cut_download", "odd_status", "cancel_completes", "stuck")
ODD: dict[str, dict[str, Any]] = {
    **{name: {"faults": ((name,),), "items": 4} for name in (*LINES, *ENDS)},
    "swapped of many": {"faults": (("swapped_answers",),), "items": 30},
    "shuffled, undated": {"faults": (("lost_create", "shuffled"),), "odd": ("undated",), "turnaround": 900.0},
    "late, undated": {"faults": (("late_create",),), "odd": ("undated",)},
    "vanishing": {"odd": ("vanishing",), "turnaround": 900.0},
    "vanished": {"odd": ("vanished",), "turnaround": 900.0, "cancel_at": 2 * HOUR},
    "vanished at last": {"odd": ("vanished", "short"), "turnaround": 900.0},
    "short": {"faults": (("results_unavailable",),), "odd": ("short",), "turnaround": 900.0},
    "withheld": {"odd": ("short", "withheld")},
    "expiring": {"faults": (("expire_all",), ("expire_part",)) * 3, "items": 3},
    "rich, missing": {"faults": (("missing_lines",),) * 2, "items": 4, "policy": (("budget", 0.5),)},
    "rich, withheld": {"odd": ("short", "withheld"), "items": 4, "policy": (("budget", 0.5),)},
    "lost, cut": {"faults": (("lost_create",),), "odd": ("short", "cut")},
    "lost, garbled": {"faults": (("lost_create",),), "odd": ("garbled",)},
    "late, garbled": {"faults": (("late_create",),), "odd": ("garbled",), "policy": (("settle", 30.0),)},
    "empty": {"odd": ("short", "empty")},
    "cut": {"odd": ("short", "cut")},
    **{name: {"odd": (name,), "items": 5} for name in ("locked", "large", "repeating", "narrow")},
    "poor": {"items": 6, "policy": (("budget", 4e-3),)},
    "poor, expired": {"items": 6, "policy": (("budget", 0.02),), "faults": (("expire_part", "shuffled"),)},
    "orphans": {"faults": (("late_create",), ("lost_create",)), "policy": (("settle", 30.0),)},
    "orphans that vanish": {
        "faults": (("late_create", "get_lag"),) * 2,
        "policy": (("settle", 30.0),),
        "odd": ("vanishing",),
        "turnaround": 1800.0,
    },
    "cancelled": {"cancel_at": 90.0, "turnaround": 1800.0},
    "cancelled at once": {"cancel_at": 1.0},
    "cancelled late": {"cancel_at": 130.0, "faults": (("expire_part", "shuffled"),)},
}
"""Further faults, and what a provider does against its word, which breaks some invariants."""


def odd(name: str) -> list[Plan]:
    given = ODD[name]
    policy = given.get("policy", ())
    falls_back = (("fallback", "individual"), ("timeout", 3000.0), ("retention", 0.0))
    return [
        Plan(
            seed=seed,
            flavour=flavour,
            quiet=True,
            **{**given, "policy": policy + (falls_back if seed % 2 else ())},
        )
        for seed, flavour in enumerate(FLAVOURS, 700)
    ]


def with_policy(name: str) -> Iterator[Plan]:
    """Return plans of jobs that ask for more, with faults at random, with an answer that is lost,
    and with batches that take hours."""
    asked = tuple(POLICIES[name].items())
    for seed, flavour in enumerate(FLAVOURS, 500):
        yield Plan(seed=seed, flavour=flavour, crash_rate=0.02, policy=asked)
        faults = (("lost_create",), ("dropped_create",))
        yield Plan(seed=seed, flavour=flavour, quiet=True, faults=faults, policy=asked)
        yield Plan(seed=seed, flavour=flavour, quiet=True, turnaround=6 * HOUR, policy=asked)


def figures_of(group: str, outcomes: Iterable[Outcome]) -> Table:
    found = {_name_of(outcome.plan): outcome.figures for outcome in outcomes}
    return {group: found}


def _name_of(plan: Plan) -> str:
    faults = ("+".join(names) for names in plan.faults)
    slow = "" if plan.turnaround is None else f"{plan.turnaround:g}s"
    crashes = f"crash={plan.crash_rate:g}" if plan.crash_rate else ""
    return " ".join(filter(None, (plan.flavour, str(plan.seed), crashes, *faults, slow)))


def differences(group: str, outcomes: Iterable[Outcome]) -> list[str]:
    found = figures_of(group, outcomes)
    return figures.differences(figures.groups_of(RECORDED, group), found)


def all_plans() -> dict[str, Iterable[Plan]]:
    return {
        **{f"seeds of {flavour}": seeded(SEEDS, flavour) for flavour in FLAVOURS},
        **{f"case {case}": [plan_of(case, flavour, 0) for flavour in FLAVOURS] for case in CASES},
        **{f"policy {name}": with_policy(name) for name in POLICIES},
        **{f"odd {name}": odd(name) for name in ODD},
    }


if __name__ == "__main__":
    table: dict[str, Mapping[str, Figures]] = {}
    for group, plans in all_plans().items():
        table |= figures_of(group, map(simulate, plans))
    figures.write(RECORDED, table)
