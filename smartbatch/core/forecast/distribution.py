"""A distribution of times made of weighted points: quantiles, chances and the mean, by logarithms of seconds.

Between two points it is linear in log seconds against probability; each point lies in the middle of its own
weight. Beyond the outermost points it continues as a power law of the remaining probability, with the
exponent measured over the last factor of ten of it (less if there are few points).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import accumulate

TOP = 0.99
"""Times beyond this quantile count in the mean as the quantile itself."""
TIE = 1e-12
"""Times whose logarithms differ by less than this count as equal."""


class Distribution:
    """A distribution through weighted points: log seconds and weight (above 0) of each; at least one."""

    def __init__(self, points: Iterable[tuple[float, float]]) -> None:
        ordered = sorted(points)
        self._logs = [log for log, _ in ordered]
        weights = [weight for _, weight in ordered]
        ends = list(accumulate(weights))
        whole = ends[-1]
        self._levels = [(end - weight / 2) / whole for end, weight in zip(ends, weights, strict=True)]
        self._mean: float | None = None
        self._high = self._tail(1 - self._levels[-1], upper=True)
        self._low = self._tail(self._levels[0], upper=False)
        self.median = self.log(0.5)

    def log(self, q: float) -> float:
        """Return the log seconds that a share ``q`` (above 0, below 1) stays within."""
        levels, logs = self._levels, self._logs
        if q <= levels[0]:
            return logs[0] - self._low * math.log(levels[0] / q)
        if q >= levels[-1]:
            return logs[-1] + self._high * math.log((1 - levels[-1]) / (1 - q))
        return self._inner(q)

    def level(self, log: float) -> float:
        """Return the share of times up to ``log``: the inverse of :meth:`log`."""
        levels, logs = self._levels, self._logs
        log += TIE
        right = bisect_right(logs, log)
        if right == 0:
            return levels[0] * math.exp((log - logs[0]) / self._low) if self._low else 0.0
        if right == len(logs):
            left_over = math.exp((logs[-1] - log) / self._high) if self._high else 0.0
            return 1 - (1 - levels[-1]) * left_over
        left = right - 1
        part = (log - logs[left]) / (logs[right] - logs[left])
        return levels[left] + part * (levels[right] - levels[left])

    def mean(self) -> float:
        """Return the mean seconds; times beyond the 99 % quantile count as that quantile, so it is finite.

        Each linear piece contributes the mean of an exponential.
        """
        if self._mean is None:
            top = self.log(TOP)
            levels = [level for level in self._levels if level < TOP]
            logs = self._logs[: len(levels)]
            total = (1 - TOP) * math.exp(top) + levels[0] * math.exp(logs[0])
            pieces = zip(levels, logs, [*levels[1:], TOP], [*logs[1:], top], strict=True)
            for level, log, next_level, next_log in pieces:
                total += (next_level - level) * _mean_between(log, next_log)
            self._mean = total
        return self._mean

    def _tail(self, beyond: float, *, upper: bool) -> float:
        """Return by how much log seconds grow beyond the last point when the remaining share falls by factor
        e.
        """
        inside = min(0.5, 10 * beyond)
        if inside <= beyond:
            return 0.0
        log = self._inner(1 - inside if upper else inside)
        apart = self._logs[-1] - log if upper else log - self._logs[0]
        return apart / math.log(inside / beyond)

    def _inner(self, q: float) -> float:
        """As :meth:`log`, between the outermost points only."""
        levels, logs = self._levels, self._logs
        right = bisect_left(levels, q)
        left = right - 1
        part = (q - levels[left]) / (levels[right] - levels[left])
        return logs[left] + part * (logs[right] - logs[left])


def _mean_between(low: float, high: float) -> float:
    """Return the mean of ``exp`` between two logs."""
    apart = high - low
    return math.exp(low) * (math.expm1(apart) / apart if apart > 1e-9 else 1.0)


def redistributed(times: Iterable[tuple[float, bool, float]]) -> list[tuple[float, float]]:
    """Return times and weights, where the weight of those given up is spread over all that took longer.

    Of a time that was given up, such as that of a batch that was taken back, it is only known that it would
    have been longer. This is the estimate of Kaplan and Meier ("Nonparametric estimation from incomplete
    observations", 1958). A time that was given up after all others keeps its own weight.

    Args:
        times: each with whether it was given up, and its weight, above 0.
    """
    points = sorted(times)
    longer = list(accumulate([weight for *_, weight in reversed(points)], initial=0.0))[-2::-1]
    factor = 1.0
    found = []
    for (time, given_up, weight), left in zip(points, longer, strict=True):
        if not given_up or not left:
            found.append((time, factor * weight))
        else:
            factor *= (left + weight) / left
    return found
