"""Random walks through the core, and the figures of what they decided when it was recorded.

    PYTHONPATH=tests:. python -m tests.core.walks.walking

records anew, after a change of behaviour that is meant; the difference says which figures it changes.
"""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

from tests import figures
from tests.core.walks import callers, cuts, limits, prepared, routes, shared
from tests.core.walks.record import Record

RECORDED = Path(__file__).with_name("recorded.txt")
# walks by name, each with the number of times it is taken with different random numbers
WALKS = {
    **limits.WALKS,
    **routes.WALKS,
    **cuts.WALKS,
    **prepared.WALKS,
    **callers.WALKS,
    **shared.WALKS,
}
SCENARIOS = ("filling", "unknown")  # walks with separate figures named ``run``
# number of walks in the first block, which show most mistakes
FEW = {"exchanges": 6, "leases": 6, "together": 8, "shared budgets": 8}
FEW |= {"quota at eighths": 12, "together at eighths": 4}
AT_MOST = 80  # walks per group of figures


def blocks(name: str) -> list[range]:
    _, times = WALKS[name]
    first = FEW.get(name, AT_MOST)
    bounds = [0, *range(first, times, AT_MOST), times]
    return [range(*each) for each in pairwise(bounds)]


def group_of(name: str, seeds: range) -> str:
    return f"{name} {seeds[0]}-{seeds[-1]}"


def walked(name: str, seeds: range) -> dict[str, dict[str, dict[str, str]]]:
    walk, _ = WALKS[name]
    each, together = {}, Record()
    for seed in seeds:
        record = Record() if name in SCENARIOS else together
        walk(random.Random(f"{name} {seed}"), record)
        each[f"{seed} {record.name}"] = record.figures().get("run", {})
    return {group_of(name, seeds): each if name in SCENARIOS else together.figures()}


if __name__ == "__main__":
    groups = [walked(name, seeds) for name in WALKS for seeds in blocks(name)]
    figures.write(RECORDED, {group: found for each in groups for group, found in each.items()})
