"""Compares the routes that the library chooses with those of an oracle, on a virtual clock.

    python -m benchmarks.routing [DRAW]

:mod:`benchmarks.routing_world` makes the jobs, and :mod:`benchmarks.routing_policies` has the policies. In
each comparison, the library starts without observations and learns over time. DRAW is a word that seeds all
random values; the default is the one used to judge the library.

- *Regret*: for each trace and each regime of the provider, how much more the library pays than an oracle
  that knows the duration of each batch and call. It covers the jobs of six days whose deadlines the oracle
  meets; the first day, which starts without observations, is also reported separately. *Refused* is the
  share of these jobs that the library refuses before it sends anything, because no route is likely to meet
  the deadline.
- *Deadlines*: 1,000 jobs with heavy-tailed turnarounds.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks import routing_policies as policies
from benchmarks.routing_policies import Library, Outcome
from benchmarks.routing_world import (
    JUDGED,
    REGIMES,
    TRACES,
    Fate,
    Maker,
    Regime,
    days,
    heavy,
    lognormal,
    pareto,
    traffic,
)

RULES = {"individual": policies.alone, "batch": policies.by_batch, "threshold": policies.threshold}


def compared(fates: Sequence[Fate], best: Sequence[Outcome], mine: Sequence[Outcome]) -> tuple[float, float]:
    """Return the additional cost of a policy compared with the oracle, and the share of deadlines it misses.

    Both are for jobs that the oracle finishes in time and the policy did not reject.
    """
    done = [at for at, fate in enumerate(fates) if best[at].met(fate.job) and mine[at].route is not None]
    missed = sum(not mine[at].met(fates[at].job) for at in done)
    cost = sum(mine[at].cost for at in done) / sum(best[at].cost for at in done)
    return cost - 1, missed / len(done)


def report_regret(traces: dict[str, Maker], draw: str) -> None:
    names = ("library", "its first day", *RULES)
    print(f"{'trace':<20}{'regime':<23}{'feasible':>9}{'refused':>9}" + "".join(f"{n:>22}" for n in names))
    for trace, make in traces.items():
        for regime in REGIMES:
            library, fates, mine, first = Library(), [], [], 0
            for day in days(trace, make, draw):
                drawn = [Fate.of(job, regime) for job in day]
                fates += drawn
                mine += library.run(drawn)
                first = first or len(fates)
            best = [policies.oracle(fate) for fate in fates]
            cells = [compared(fates, best, mine), compared(fates[:first], best[:first], mine[:first])]
            cells += [compared(fates, best, [rule(fate) for fate in fates]) for rule in RULES.values()]
            feasible = [at for at, fate in enumerate(fates) if best[at].met(fate.job)]
            refused = sum(mine[at].route is None for at in feasible)
            print(f"{trace:<20}{regime.name:<23}{len(feasible):>9}{refused:>9}", end="")
            print("".join(f"{f'{c:+.1%}, {m:.2%} missed':>22}" for c, m in cells), flush=True)


def report_deadlines(draw: str) -> None:
    """Print how many deadlines are met if batch times have heavy tails."""
    print(f"\n{'turnarounds':<28}{'feasible':>9}{'met':>8}{'refused':>9}{'rescued':>9}{'room':>7}{'cost':>8}")
    for name, turnaround, usual in (
        ("lognormal, 30 min, 1.2", lognormal(1800.0, 1.2), 1800.0),
        ("Pareto 1.2, from 10 min", pareto(600.0, 1.2), 600 * 2 ** (1 / 1.2)),
    ):
        fates = [Fate.of(job, Regime(name, turnaround)) for job in heavy(name, draw)]
        best = [policies.oracle(fate) for fate in fates]
        plain = [policies.alone(fate) for fate in fates]
        mine = Library().run(fates)
        feasible = [at for at, fate in enumerate(fates) if best[at].met(fate.job)]
        met = sum(mine[at].met(fates[at].job) for at in feasible)
        refused = sum(mine[at].route is None for at in feasible)
        room = [at for at in feasible if fates[at].job.deadline >= 4 * usual and mine[at].route is not None]
        cost = sum(mine[at].cost for at in room) / sum(plain[at].cost for at in room)
        print(
            f"{name:<28}{len(feasible):>9}{met / len(feasible):>8.1%}{refused:>9}"
            f"{sum(one.rescued for one in mine):>9}{len(room):>7}{cost:>8.1%}",
            flush=True,
        )


def main(draw: str = JUDGED) -> None:
    traces = traffic()
    if not TRACES.exists():
        print("The Azure traces are not here; the made-up ones are compared alone.\n")
    report_regret(traces, draw)
    report_deadlines(draw)


if __name__ == "__main__":
    main(*sys.argv[1:])
