"""Seeded worlds of times: how well forecasts cover them, and how soon a change is noticed."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

from attrs import frozen

from smartbatch.core.forecast import Forecaster, Observation, Prior

World = Callable[[Random, int], float]
"""Draws the seconds of the n-th thing of size 1."""

PRIOR = Prior.of(2.0, 10.0)
QUANTILES = (0.5, 0.9, 0.95, 0.99)
LEARNED = 200
GROWTH = 0.5


def lognormal(sigma: float, drift: float = 0.0) -> World:
    """Times around 3 seconds; the median grows by a factor of ``exp(drift)`` a thousand."""
    return lambda rng, n: 3 * math.exp(rng.gauss(0, sigma) + drift * n / 1000)


def pareto(alpha: float) -> World:
    """Heavy tails; with an ``alpha`` of 1.2 there is a mean, but no variance."""
    return lambda rng, _: rng.paretovariate(alpha)


def bimodal(share: float, factor: float) -> World:
    """Most times are around a second, some ``factor`` times as long."""
    return lambda rng, _: (factor if rng.random() < share else 1.0) * math.exp(rng.gauss(0, 0.2))


DOUBLES = math.log(2.0)
WORLDS: dict[str, World] = {
    "lognormal 0.3": lognormal(0.3),
    "lognormal 0.5": lognormal(0.5),
    "lognormal 0.7": lognormal(0.7),
    "lognormal 1.0": lognormal(1.0),
    "lognormal 1.5": lognormal(1.5),
    "Pareto 1.2": pareto(1.2),
    "Pareto 3": pareto(3.0),
    "one in 5 takes 10 x": bimodal(0.2, 10.0),
    "one in 20 takes 10 x": bimodal(0.05, 10.0),
}
DRIFTING: dict[str, World] = {
    "0.5, doubles in 1,000": lognormal(0.5, DOUBLES),
    "0.5, halves in 1,000": lognormal(0.5, -DOUBLES),
}


@frozen
class HeldOut:
    """How forecasts held in one run.

    Attributes:
        covered: the share within each quantile.
        alarms: sudden changes that were told.
    """

    covered: dict[float, float]
    alarms: int


class Run:
    """One forecaster that sees things one after the other, a second apart."""

    def __init__(self, world: World, seed: int, *, sized: bool = False) -> None:
        self._world = world
        self._rng = Random(seed)
        self._sized = sized
        self._at = 1.8e9
        self._n = 0
        self.forecaster = Forecaster(PRIOR)

    def draw(self, factor: float = 1.0) -> Observation:
        size = int(math.exp(self._rng.uniform(0, math.log(1000)))) if self._sized else 1
        seconds = factor * self._world(self._rng, self._n) * size**GROWTH
        self._n += 1
        self._at += 1
        return Observation(size, seconds, self._at)

    def learn(self, count: int) -> None:
        for _ in range(count):
            self.forecaster.observe(self.draw())

    def hold(self, count: int) -> HeldOut:
        """See ``count`` more, and compare each with what was forecast of it."""
        within = dict.fromkeys(QUANTILES, 0)
        alarms = 0
        for _ in range(count):
            seen = self.draw()
            for q in QUANTILES:
                within[q] += seen.seconds <= self.forecaster.at(seen.at).quantile(q, seen.size)
            moved = self.forecaster.observe(seen)
            alarms += moved is not None and moved.sudden
        return HeldOut({q: number / count for q, number in within.items()}, alarms)

    def notice(self, factor: float, most: int = 80) -> int:
        """See times that are longer by ``factor`` from now on; return after how many that is told."""
        for count in range(1, most):
            moved = self.forecaster.observe(self.draw(factor))
            if moved is not None and moved.sudden and (moved.after > moved.before) == (factor > 1):
                return count
        return most


def held(world: World, runs: int, count: int, *, sized: bool = False) -> list[HeldOut]:
    """Return how forecasts held in each run, after :data:`LEARNED` observations."""
    results = []
    for seed in range(runs):
        run = Run(world, seed, sized=sized)
        run.learn(LEARNED)
        results.append(run.hold(count))
    return results


def noticed(world: World, factor: float, runs: int, *, sized: bool = False) -> list[int]:
    """Return after how many times each run noticed a change, in order."""
    counts = []
    for seed in range(runs):
        run = Run(world, seed, sized=sized)
        run.learn(LEARNED)
        counts.append(run.notice(factor))
    return sorted(counts)
