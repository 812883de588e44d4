"""The forecast of times before anything is observed."""

from __future__ import annotations

import math
from statistics import NormalDist

from attrs import Attribute, field, frozen

__all__ = ["Prior"]

_POINTS = 50


def _positive(_: object, attribute: Attribute[float], value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{attribute.name} must be above 0 and finite, not {value!r}")


@frozen
class Prior:
    """The distribution of times before anything is observed.

    Args:
        times: seconds and weight of each point of the distribution, for things of size 1; only the relative
            weights count.
        growth: seconds grow as ``size ** growth``, 0..1.
        weight: observations that the prior counts as.
        fade: seconds after which an observation counts half; providers' load changes within a day.
        together: share of its own seconds within which an observation must have begun before or after another
            to be of the same moment. Observations of one moment, such as the batches of one list, take about
            the same time, so that together they count as one.
    """

    times: tuple[tuple[float, float], ...]
    growth: float = 0.0
    weight: float = field(default=0.5, validator=_positive)
    fade: float = field(default=43_200.0, validator=_positive)
    together: float = 0.0

    @classmethod
    def of(
        cls, median: float, p95: float, *, growth: float = 0.0, weight: float = 0.5, fade: float = 43_200.0
    ) -> Prior:
        """Return a lognormal prior from two quantiles in seconds, which it reproduces exactly."""
        normal = NormalDist()
        sigma = math.log(p95 / median) / normal.inv_cdf(0.95)
        levels = [(place + 0.5) / _POINTS for place in range(_POINTS)]  # 0.95 is one of them
        times = tuple((median * math.exp(sigma * normal.inv_cdf(level)), 1.0) for level in levels)
        return cls(times, growth, weight, fade)

    def points(self, weight: float) -> list[tuple[float, float]]:
        """Return log seconds and weights that add up to ``weight``."""
        whole = sum(part for _, part in self.times)
        return [(math.log(seconds), part * weight / whole) for seconds, part in self.times]
