"""Whether forecasts fit the times that are observed, and whether those times have suddenly changed.

Each observed time is looked up in the forecast made before it: its level is the share of times that should
have been shorter. If forecasts fit, levels are spread evenly over 0..1, whatever the distribution.

- :class:`LevelCorrection` corrects a lasting misfit: when more than one time in twenty exceeds the 95 %
  quantile, a higher quantile is used in its place (adaptive conformal inference: Gibbs and Candès, "Adaptive
  Conformal Inference Under Distribution Shift", NeurIPS 2021); likewise in the middle and at the lower end.
- :class:`ChangeDetector` detects a sudden change: two cumulative sums of scores (Page, "Continuous inspection
  schemes", Biometrika 1954), one for slower and one for faster, exceed a threshold that chance seldom
  reaches.
"""

from __future__ import annotations

import math
from functools import lru_cache

from attrs import define, field

_EDGE = math.log(19.0)
"""Log odds of 95 %."""
_CORRECTED = ((-_EDGE, 0.05), (0.0, 0.5), (_EDGE, 0.95))
"""Log odds and shares of the quantiles that are corrected."""
_STEPS = (0.05, 0.02, 0.05)
"""How far one time moves the correction (in log odds) of the 5 %, 50 % and 95 % quantile. A correction
converges after some 400 times and fluctuates by 0.16 (0.1 in the middle), which is less than 1 % of
coverage at the ends."""
_MOST = 1.2
"""The largest correction; larger ones could reverse the order of quantiles."""

DOUBLE = math.log(2.0)
"""The change of log seconds to detect: all times double or halve."""
QUIET = 1500.0
"""Times between two false alarms of one sum, in theory; the second sum halves that, and forecasts that
rest on few observations lower it further. Measured by ``benchmarks/forecast.py``."""


LARGEST, MOST = 0.7, 2.5
"""The largest slack and the largest score: with these a change is detected after four times in a row at the
earliest, since two or three outliers are common where many calls are made at once."""


def score(level: float) -> float:
    """Return how many standard deviations off a normal value of that level lies.

    Tukey's lambda with 0.135, which is within 0.01 of the normal's quantile up to three deviations (Joiner
    and Rosenblatt, "Some properties of the range in samples from Tukey's symmetric lambda distributions",
    1971), and grows more slowly beyond.
    """
    return (math.pow(level, 0.135) - math.pow(1 - level, 0.135)) / 0.1975


@define(eq=False)
class MomentCounts:
    """Counts of the times that belong to one moment, and are therefore not independent; ``above`` is how many
    of them exceeded each of the quantiles that are corrected."""

    count: int = 0
    above: list[int] = field(factory=lambda: [0, 0, 0])


class LevelCorrection:
    """The correction of levels: piecewise linear in log odds, through 5 %, 50 % and 95 %."""

    def __init__(self) -> None:
        self._shifts = (0.0, 0.0, 0.0)  # replaced as a whole: forecasts are read on other threads

    def observe(self, level: float, moment: MomentCounts | None = None) -> None:
        """Learn from a time of which a share ``level`` should have been shorter. It and the others of its
        ``moment`` count as one, by their mean.
        """
        odds = _odds(level)
        moment = moment or MomentCounts()
        count, shifts = moment.count, list(self._shifts)
        for at, (edge, share) in enumerate(_CORRECTED):
            above = moment.above[at] + (odds > edge + shifts[at])
            before = moment.above[at] / count if count else 1 - share
            moved = shifts[at] + _STEPS[at] * (above / (count + 1) - before)
            shifts[at] = min(_MOST, max(-_MOST, moved))
            moment.above[at] = above
        low, middle, high = shifts
        self._shifts = low, middle, high
        moment.count = count + 1

    def corrected(self, q: float) -> float:
        """Return the level to look up for a quantile ``q``."""
        low, middle, high = self._shifts
        if not (low or middle or high):
            return q
        odds = _odds(q)
        part = min(1.0, abs(odds) / _EDGE)
        return _share(odds + middle + part * ((high if odds > 0 else low) - middle))

    def original(self, level: float) -> float:
        """Return the quantile for which ``level`` is looked up: the inverse of :meth:`corrected`."""
        low, middle, high = self._shifts
        if not (low or middle or high) or not 0 < level < 1:
            return level
        odds = _odds(level)
        end, side = (high, 1.0) if odds > middle else (low, -1.0)
        if (odds - end) * side >= _EDGE:
            return _share(odds - end)
        return _share((odds - middle) / (1 + side * (end - middle) / _EDGE))


class ChangeDetector:
    """Two cumulative sums of scores, each less the slack that a lasting change would exceed."""

    def __init__(self) -> None:
        self.reset()

    def observe(self, level: float, deviation: float, learned: float) -> int:
        """Add a time; return how many of the latest are of a new regime, or 0 while no change is detected.

        Until :meth:`reset` is called, the change is reported again with each further time that supports it.

        Args:
            level: the share of times that should have been shorter.
            deviation: standard deviation of log seconds, as far as known.
            learned: the sum of the weights of the times that the forecast rests on.
        """
        step = min(LARGEST, max(0.3, DOUBLE / max(deviation, 0.1) / 2))
        slack = step + 0.5 / math.sqrt(max(1.0, learned))
        limit = _limit(step)
        value = min(MOST, max(-MOST, score(min(1 - 1e-4, max(1e-4, level)))))
        found = 0
        for at, sign in enumerate((1, -1)):
            total = self._sums[at] + sign * value - slack
            if total <= 0:
                self._sums[at], self._since[at] = 0.0, 0
                continue
            self._since[at] += 1
            self._sums[at] = min(total, limit)
            if total >= limit:
                found = self._since[at]
        return found

    def reset(self) -> None:
        self._sums: list[float] = [0.0, 0.0]
        self._since: list[int] = [0, 0]


@lru_cache(maxsize=16)  # the same for all times between two fits
def _limit(step: float) -> float:
    """Return the threshold at which one sum raises a false alarm each :data:`QUIET` times.

    Siegmund's approximation for normal scores: the mean is (exp(2 k b) - 2 k b - 1) / (2 k^2) times for a
    step k and a threshold b - 1.166 ("Sequential Analysis", 1985); solved for b by iteration.
    """
    twice = 2 * step
    exponent = 1.0
    for _ in range(8):
        exponent = math.log(2 * step * step * QUIET + exponent + 1)
    return exponent / twice - 1.166


def _odds(share: float) -> float:
    share = min(1 - 1e-12, max(1e-12, share))
    return math.log(share / (1 - share))


def _share(odds: float) -> float:
    return 1 / (1 + math.exp(-odds))
