"""Axes of charts: where values lie on a picture, and which of them are ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

from attrs import frozen

from smartbatch._words import Unit, moment, worded

AxisUnit: TypeAlias = Unit | Literal["moment", "hour"]

_STEPS = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900),
    *(1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 432_000, 864_000, 2_592_000),
)
"""Seconds between the ticks of an axis of time."""
_FEW_STEPS = (0.001, 0.01, 0.1, 1, 10, 60, 600, 3600, 36_000, 86_400, 864_000)
_AROUND = 60.0
"""Seconds shown on either side of a single moment."""


@frozen
class ChartScale:
    """From values to places on the picture, linear or logarithmic; values beyond the ends lie at the ends."""

    unit: AxisUnit
    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        value = min(max(value, low), high)
        part = math.log(value / low) / math.log(high / low) if self.is_log else (value - low) / (high - low)
        return round(self.start + part * (self.end - self.start), 1)

    def ticks(self) -> list[tuple[float, str]]:
        """Return some three to eight round values: where they lie, and what is written there."""
        return [(self(value), self.words(value)) for value in self._values()]

    def words(self, value: float) -> str:
        """Return a value as a tick says it."""
        if self.unit == "hour":
            return f"{value / 3600:.0f}:00"
        if self.unit == "moment":
            span, told = self.high - self.low, moment(value)
            return told[11:19] if span <= 600 else told[11:16] if span <= 2 * 86_400 else told[5:10]
        return worded(value, self.unit)

    def _values(self) -> list[float]:
        of_time = self.unit in ("duration", "moment", "hour")
        if self.is_log and (found := _log_ticks(self.low, self.high, of_time)):
            return found
        span = self.high - self.low
        if of_time:
            least = 0.0 if self.unit == "duration" else 1.0
            step = next((one for one in _STEPS if span / one <= 6 and one >= least), _STEPS[-1])
            step *= max(1.0, math.ceil(span / step / 8))
        else:
            rough = span / 4
            power = 10.0 ** math.floor(math.log10(rough))
            step = next(power * part for part in (1, 2, 5, 10) if power * part >= rough * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        return [at * step for at in range(first, math.floor(self.high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float, of_time: bool) -> list[float]:
    """Return powers of ten, or more of the round values where these are few; none where even those are."""
    powers = [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    fine: Sequence[float] = sorted(part * power for power in powers for part in (1, 2, 5))
    for steps in (_FEW_STEPS, _STEPS) if of_time else (powers, fine):
        found = [step for step in steps if low <= step <= high]
        if len(found) >= 3:
            return found if len(found) <= 8 else found[:: math.ceil(len(found) / 8)]
    return []


def scale(
    unit: AxisUnit, values: Iterable[float], start: float, end: float, *, is_log: bool = False
) -> ChartScale:
    """Return a scale that has all values on it, and is no point."""
    known = [value for value in values if math.isfinite(value) and (value > 0 or not is_log)]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    if is_log:
        low = low or 1.0
        return ChartScale(unit, low / 1.3, max(high, low * 2) * 1.3, start, end, is_log=True)
    if high <= low and unit == "moment":
        low, high = low - _AROUND, high + _AROUND
    elif high <= low:
        high = low + (abs(low) * 0.1 or 1.0)
    return ChartScale(unit, low, high, start, end)
