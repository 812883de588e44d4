"""Durations in constant memory: counts in buckets that grow by the same factor.

A bucket spans a ninth of its value (an eighth of an octave), so a quantile read from it is off by
4.5 % at most, from 61 µs up to 36 hours. Two lists of numbers are all there is, whatever was recorded.
"""

from __future__ import annotations

import math

from attrs import define, field, frozen

STEPS = 8
"""Buckets an octave: 2 ** (1/8) = 1.09 between neighbours."""
LOWEST = -14
"""The first bucket ends at 2 ** -14 s = 61 µs; what is shorter counts as that."""
HIGHEST = 17
"""The last bucket ends at 2 ** 17 s = 36 hours, above the slowest batch job (24 h)."""

_BUCKETS = (HIGHEST - LOWEST) * STEPS + 1
_FLOOR = 2.0**LOWEST
_CEILING = 2.0**HIGHEST
_OFFSET = -LOWEST * STEPS


@frozen
class TimeStats:
    """What a histogram of durations says; all in seconds.

    Attributes:
        count: durations recorded.
        total: their sum.
        mean: ``total / count``; 0 when there is none.
        p50, p95: quantiles, within 4.5 %.
        longest: the largest, exact.
        octaves: pairs (upper end, how many were at most that long), from the smallest to the largest seen,
            one a doubling.
    """

    count: int = 0
    total: float = 0.0
    mean: float = 0.0
    p50: float = 0.0
    p95: float = 0.0
    longest: float = 0.0
    octaves: tuple[tuple[float, int], ...] = ()


@define
class Histogram:
    """Counts of durations; not thread-safe, its owner holds a lock."""

    counts: list[int] = field(factory=lambda: [0] * _BUCKETS)
    count: int = 0
    total: float = 0.0
    shortest: float = math.inf
    longest: float = 0.0

    def record(self, *seconds: float) -> None:
        """Count durations. What is not a number above 61 µs counts in the first bucket."""
        counts = self.counts
        for each in seconds:
            index = 0
            if each > _FLOOR:
                index = math.ceil(math.log2(each if each < _CEILING else _CEILING) * STEPS) + _OFFSET
            counts[index] += 1
        self.count += len(seconds)
        self.total += sum(seconds)
        self.longest = max(self.longest, *seconds)
        self.shortest = min(self.shortest, *seconds)

    def quantile(self, share: float) -> float:
        """Return the duration that ``share`` (0 to 1) of those recorded do not exceed, within 4.5 %."""
        rank = max(1, math.ceil(share * self.count))
        seen = 0
        for index, count in enumerate(self.counts):
            seen += count
            if seen >= rank:
                # the geometric middle of the bucket, never outside of what was seen
                middle: float = 2.0 ** ((index - _OFFSET - 0.5) / STEPS)
                return min(max(middle, self.shortest), self.longest)
        return 0.0

    def stats(self) -> TimeStats:
        """Return the figures of what was recorded so far."""
        if not self.count:
            return TimeStats()
        return TimeStats(
            self.count,
            self.total,
            self.total / self.count,
            self.quantile(0.50),
            self.quantile(0.95),
            self.longest,
            self._octaves(),
        )

    def _octaves(self) -> tuple[tuple[float, int], ...]:
        pairs = []
        seen = start = 0
        for power in range(LOWEST, HIGHEST + 1):
            end = (power - LOWEST) * STEPS + 1
            seen += sum(self.counts[start:end])
            start = end
            if seen:
                pairs.append((2.0**power, seen))
            if seen == self.count:
                break
        return tuple(pairs)
