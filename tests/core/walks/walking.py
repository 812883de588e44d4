"""Random walks through the core, and what they decided when it was recorded.

    PYTHONPATH=tests:. python -m tests.core.walks.walking

records anew, after a change of behaviour that is meant; the difference says where it shows.
"""

from __future__ import annotations

import random
from pathlib import Path

from tests.core.walks import callers, cuts, job_stores, limits, outputs, prepared, routes, shared
from tests.core.walks.record import Record

RECORDED = Path(__file__).with_name("recorded.txt")
WALKS = {
    **limits.WALKS,
    **routes.WALKS,
    **cuts.WALKS,
    **prepared.WALKS,
    **callers.WALKS,
    **shared.WALKS,
    **outputs.WALKS,
    **job_stores.WALKS,
}
"""By name: a walk, and how often it is taken, each time with other random numbers."""
FEW = {"exchanges": 6, "leases": 6, "together": 8, "shared budgets": 8, "outputs": 8, "stores": 5}
FEW |= {"quota at eighths": 12, "together at eighths": 4}
"""How often the default tests take some."""


def walked(name: str, times: int | None = None) -> list[str]:
    """Take a walk some times, or as often as it is recorded; return a line for each."""
    walk, most = WALKS[name]
    lines = []
    for seed in range(times or most):
        record = Record()
        walk(random.Random(f"{name} {seed}"), record)
        lines.append(f"{name} {seed}: {record.line()}".rstrip())
    return lines


if __name__ == "__main__":
    RECORDED.write_text("".join(f"{line}\n" for name in WALKS for line in walked(name)))
