"""Axes of charts: how values are told, where they lie on a picture, and which of them are ticks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime

from attrs import frozen

_SECONDS = (
    *(
        0.001,
        0.002,
        0.005,
        0.01,
        0.02,
        0.05,
        0.1,
        0.2,
        0.5,
        1,
        2,
        5,
        10,
        15,
        30,
        60,
        120,
        300,
        600,
        900,
        1800,
    ),
    *(3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 432_000, 864_000, 2_592_000),
)
"""Steps between the ticks of an axis of time."""
_AROUND = 60.0
"""Seconds around a single moment that are shown."""
_FEW_SECONDS = (0.001, 0.01, 0.1, 1, 10, 60, 600, 3600, 36_000, 86_400, 864_000)


def seconds(value: float) -> str:
    """Return a duration in its largest unit."""
    for unit, name in ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s")):
        if value >= unit:
            return f"{value / unit:.3g} {name}"
    return "0 s" if value <= 0 else f"{value * 1000:.3g} ms"


def usd(value: float) -> str:
    """Return an amount of money, never as a power of ten."""
    if abs(value) >= 100:
        return f"{value:.2f} USD"
    digits = 2 - math.floor(math.log10(abs(value))) if value else 1
    return f"{value:.{max(1, digits)}f}".rstrip("0").rstrip(".") + " USD"


def number(value: float) -> str:
    """Return a number, whole where it is."""
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.3g}"


def share(value: float) -> str:
    """Return a share of one in percent."""
    return f"{value:.3g}" if not math.isfinite(value) else f"{value * 100:.3g} %"


def moment(value: float) -> str:
    """Return a time in UTC."""
    return f"{datetime.fromtimestamp(value, UTC):%Y-%m-%d %H:%M:%S}"


@frozen
class Axis:
    """What an axis shows.

    Attributes:
        label: under it, or in front of it, with its unit.
        words: how a value is told, in ticks and in tables.
        log: whether its scale is logarithmic.
        low, high: ends that are shown whatever the values are.
    """

    label: str
    words: Callable[[float], str] = number
    log: bool = False
    low: float | None = None
    high: float | None = None


TIME = Axis("time (UTC)", moment)


@frozen
class Scale:
    """From values to places on the picture."""

    axis: Axis
    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        value = min(max(value, low), high)
        log = self.axis.log
        part = math.log(value / low) / math.log(high / low) if log else (value - low) / (high - low)
        return self.start + part * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return some three to eight round values."""
        if self.axis.log and (found := _log_ticks(self.low, self.high, self.axis.words is seconds)):
            return found
        span = self.high - self.low
        if self.axis.words in (seconds, moment):
            least = 1.0 if self.axis.words is moment else 0.0  # a moment is told in whole seconds
            fits = (step for step in _SECONDS if span / step <= 6 and step >= least)
            step = next(fits, _SECONDS[-1])
            step *= max(1.0, math.ceil(span / step / 8))
        else:
            rough = span / 5
            power = 10.0 ** math.floor(math.log10(rough))
            step = next(power * part for part in (1, 2, 5, 10) if power * part >= rough * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        return [at * step for at in range(first, math.floor(self.high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float, of_time: bool) -> list[float]:
    """Return powers of ten, or more of the round values where these are few; none where even those are."""
    powers = [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    fine: Sequence[float] = sorted(part * power for power in powers for part in (1, 2, 5))
    for steps in (_FEW_SECONDS, _SECONDS) if of_time else (powers, fine):
        found = [step for step in steps if low <= step <= high]
        if len(found) >= 3:
            return found if len(found) <= 8 else found[:: math.ceil(len(found) / 8)]
    return []


def scale(axis: Axis, values: Iterable[float], start: float, end: float) -> Scale:
    """Return a scale that has all values on it, and is no point."""
    known = [value for value in values if math.isfinite(value) and (value > 0 or not axis.log)]
    known += [value for value in (axis.low, axis.high) if value is not None]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    if axis.log:
        low = low or 1.0
        return Scale(axis, low / 1.3, max(high, low * 2) * 1.3, start, end)
    if high <= low and axis.words is moment:
        low, high = low - _AROUND, high + _AROUND
    elif high <= low:
        high = low + (abs(low) * 0.1 or 1.0)
    return Scale(axis, low, high, start, end)
