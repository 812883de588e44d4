"""Confidence intervals of shares."""

from __future__ import annotations

import math
from typing import Final

from attrs import frozen

from smartbatch._words import UNKNOWN

_Z_95: Final = 1.959964  # 97.5 % quantile of the normal distribution


@frozen
class Proportion:
    """A share of successes with its 95 % confidence interval, each from 0 to 1."""

    successes: int
    total: int
    low: float
    high: float

    @property
    def value(self) -> float | None:
        """The share itself; ``None`` if there was no trial."""
        return self.successes / self.total if self.total else None

    @property
    def percent(self) -> str:
        """The share as text, such as ``94.0 %``."""
        return UNKNOWN if self.value is None else f"{100 * self.value:.1f} %"

    @property
    def interval(self) -> str:
        """The interval as text; empty if there was no trial."""
        return f"{100 * self.low:.1f} to {100 * self.high:.1f} %" if self.total else ""

    def __str__(self) -> str:
        return f"{self.percent} (95 %: {self.interval})" if self.total else self.percent


def wilson(successes: int, total: int) -> Proportion:
    """Return a share with its Wilson score interval, which stays within 0 to 1 even for small samples.

    The formula is that of E. B. Wilson, "Probable inference, the law of succession, and statistical
    inference", 1927. Without a trial, the interval is 0 to 1.
    """
    if not total:
        return Proportion(successes, total, 0.0, 1.0)
    share, z2 = successes / total, _Z_95**2
    center = share + z2 / (2 * total)
    margin = _Z_95 * math.sqrt(share * (1 - share) / total + z2 / (4 * total**2))
    scale = 1 + z2 / total
    return Proportion(
        successes, total, max(0.0, (center - margin) / scale), min(1.0, (center + margin) / scale)
    )
