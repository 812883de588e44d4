"""Turns charts into drawings, which templates render as SVG.

A drawing has scales, geometry, a summary in words and a data table. Its number of points is bounded, so
pages stay small. A chart without data is not drawn.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import singledispatch
from typing import Literal, TypeAlias, TypeVar

from attrs import frozen

from smartbatch._words import Unit, moment, number, worded
from smartbatch.views.model import BarsOverTime, Chart, Column, DataTable, ProgressOverTime, ValueDistribution

AxisUnit: TypeAlias = Unit | Literal["moment", "hour"]

_TICK_SECONDS = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900),
    *(1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 432_000, 864_000, 2_592_000),
)
"""Seconds between the ticks of a time axis."""
_LOG_TICK_SECONDS = (0.001, 0.01, 0.1, 1, 10, 60, 600, 3600, 36_000, 86_400, 864_000)
_SINGLE_MOMENT_SECONDS = 60.0  # shown before and after a single moment


@frozen
class ChartScale:
    """Maps values to positions, linearly or logarithmically; values out of range lie at the ends."""

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
        """Return about three to eight round values, with their positions and labels."""
        return [(self(value), self.words(value)) for value in self._values()]

    def words(self, value: float) -> str:
        if self.unit == "hour":
            return f"{value / 3600:.0f}:00"
        if self.unit == "moment":
            span, text = self.high - self.low, moment(value)
            return text[11:19] if span <= 600 else text[11:16] if span <= 2 * 86_400 else text[5:10]
        return worded(value, self.unit)

    def _values(self) -> list[float]:
        of_time = self.unit in ("duration", "moment", "hour")
        if self.is_log and (found := _log_ticks(self.low, self.high, of_time)):
            return found
        span = self.high - self.low
        if of_time:
            least = 0.0 if self.unit == "duration" else 1.0
            step = next((one for one in _TICK_SECONDS if span / one <= 6 and one >= least), _TICK_SECONDS[-1])
            step *= max(1.0, math.ceil(span / step / 8))
        else:
            rough = span / 4
            power = 10.0 ** math.floor(math.log10(rough))
            step = next(power * part for part in (1, 2, 5, 10) if power * part >= rough * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        return [at * step for at in range(first, math.floor(self.high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float, of_time: bool) -> list[float]:
    """Return powers of ten, or finer round values if there are too few; empty if there are still too few."""
    powers = [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    fine: Sequence[float] = sorted(part * power for power in powers for part in (1, 2, 5))
    for steps in (_LOG_TICK_SECONDS, _TICK_SECONDS) if of_time else (powers, fine):
        found = [step for step in steps if low <= step <= high]
        if len(found) >= 3:
            return found if len(found) <= 8 else found[:: math.ceil(len(found) / 8)]
    return []


def scale(
    unit: AxisUnit, values: Iterable[float], start: float, end: float, *, is_log: bool = False
) -> ChartScale:
    """Return a scale that covers all values and is never empty."""
    known = [value for value in values if math.isfinite(value) and (value > 0 or not is_log)]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    if is_log:
        low = low or 1.0
        return ChartScale(unit, low / 1.3, max(high, low * 2) * 1.3, start, end, is_log=True)
    if high <= low and unit == "moment":
        low, high = low - _SINGLE_MOMENT_SECONDS, high + _SINGLE_MOMENT_SECONDS
    elif high <= low:
        high = low + (abs(low) * 0.1 or 1.0)
    return ChartScale(unit, low, high, start, end)


T = TypeVar("T")

WIDTH, HEIGHT = 720, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 12, 26
_MAX_POINTS, _MAX_ROWS, _MAX_BINS = 300, 60, 30
_QUANTILES = ((0.5, "p50"), (0.95, "p95"))


@frozen
class ChartBox:
    """A bar; browsers show its title on hover."""

    x: float
    y: float
    width: float
    height: float
    title: str


@frozen
class ChartLine:
    points: str  # ``x,y x,y …``
    look: str  # CSS class
    name: str = ""  # shown in the legend
    dash: str | None = None


@frozen
class Drawing:
    title: str
    summary: str
    x: ChartScale
    y: ChartScale
    table: DataTable
    boxes: tuple[ChartBox, ...] = ()
    lines: tuple[ChartLine, ...] = ()
    area: str = ""


def thinned(values: Sequence[T], limit: int) -> list[T]:
    """Return at most ``limit`` evenly spaced values, including the first and the last."""
    if len(values) <= limit:
        return list(values)
    step = (len(values) - 1) / (limit - 1)
    return [values[round(at * step)] for at in range(limit)]


def quantile(values: Sequence[float], q: float) -> float:
    """Return the smallest value that is at least as large as a share ``q`` of the sorted ``values``."""
    return values[max(0, math.ceil(q * len(values)) - 1)]


@singledispatch
def drawing(chart: Chart) -> Drawing | None:
    """Return the drawing of a chart; ``None`` if the chart has no data."""
    raise TypeError(type(chart))


@drawing.register
def _(chart: BarsOverTime) -> Drawing | None:
    bars = [(at, value) for at, value in chart.bars if math.isfinite(value)][-_MAX_POINTS:]
    if not any(value for _, value in bars):
        return None
    ends = [
        bars[0][0],
        bars[-1][0] + chart.width,
        *(one for one in (chart.low, chart.high) if one is not None),
    ]
    across = scale("hour" if chart.ticks == "hours" else "moment", ends, _LEFT, WIDTH - _RIGHT)
    up = scale(chart.unit, [0.0, *(value for _, value in bars)], HEIGHT - _BOTTOM, _TOP)
    words = across.words if chart.ticks == "hours" else moment
    boxes = []
    for at, value in bars:
        left, top = across(at), up(value)
        width = max(1.0, round(across(at + chart.width) - left - 1.5, 1))
        title = f"{words(at)}: {worded(value, chart.unit)}"
        boxes.append(ChartBox(left, top, width, round(up.start - top, 1), title))
    highest = max(value for _, value in bars)
    summary = f"last {worded(bars[-1][1], chart.unit)}, at most {worded(highest, chart.unit)}"
    first = "hour (UTC)" if chart.ticks == "hours" else "from (UTC)"
    data = [(words(at), worded(value, chart.unit)) for at, value in bars]
    return Drawing(chart.title, summary, across, up, _data(chart.title, (first, "value"), data), tuple(boxes))


@drawing.register
def _(chart: ProgressOverTime) -> Drawing | None:
    points = thinned(chart.points, _MAX_POINTS)
    if len(points) < 2 or chart.total <= 0:
        return None
    last_at, done = points[-1]
    moments = [at for at, _ in points] + list(chart.expected or ())
    if chart.deadline is not None and chart.deadline - points[0][0] < 4 * (max(moments) - points[0][0]):
        moments.append(chart.deadline)
    across = scale("moment", moments, _LEFT, WIDTH - _RIGHT)
    up = scale("number", [0.0, chart.total], HEIGHT - _BOTTOM, _TOP)
    lines = [ChartLine(_path(across, up, points), "c1", "done")]
    summary = f"{number(done)} of {number(chart.total)} done"
    area = ""
    if chart.expected is not None and done < chart.total:
        half, late = chart.expected
        ahead = _path(across, up, [(last_at, done), (half, chart.total)])
        lines.append(ChartLine(ahead, "c1", "expected", "5 4"))
        area = _path(across, up, [(last_at, done), (half, chart.total), (late, chart.total)])
        summary += f"; the rest is expected by {moment(half)}, at the latest by {moment(late)}"
    if chart.deadline is not None and chart.deadline <= across.high:
        wall = [(chart.deadline, 0.0), (chart.deadline, chart.total)]
        lines.append(ChartLine(_path(across, up, wall), "c2", "deadline", "2 3"))
        summary += f"; deadline {moment(chart.deadline)}"
    rows = [(moment(at), number(value)) for at, value in points]
    table = _data(chart.title, ("at (UTC)", "done"), rows)
    return Drawing(chart.title, summary, across, up, table, lines=tuple(lines), area=area)


@drawing.register
def _(chart: ValueDistribution) -> Drawing | None:
    values = sorted(value for value in chart.values if math.isfinite(value) and value > 0)
    if not values:
        return None
    bins = binned(values)
    marks = [*((name, quantile(values, q)) for q, name in _QUANTILES), *chart.marks]
    ends = [end for low, high, _ in bins for end in (low, high)] + [value for _, value in marks]
    across = scale(chart.unit, ends, _LEFT, WIDTH - _RIGHT, is_log=True)
    up = scale("number", [0.0, *(count for _, _, count in bins)], HEIGHT - _BOTTOM, _TOP)
    boxes, rows = [], []
    for low, high, count in bins:
        if count:
            left, top = across(low), up(count)
            bounds = f"{worded(low, chart.unit)} to {worded(high, chart.unit)}"
            width = max(1.0, round(across(high) - left - 1, 1))
            boxes.append(ChartBox(left, top, width, round(up.start - top, 1), f"{bounds}: {count:,}"))
            rows.append((bounds, f"{count:,}"))
    dashes = ("6 3", "2 3", "8 3 2 3")
    lines = [
        ChartLine(
            _path(across, up, [(value, 0.0), (value, up.high)]), f"c{at % 3 + 2}", named, dashes[at % 3]
        )
        for at, (name, value) in enumerate(marks)
        if (named := f"{name} {worded(value, chart.unit)}")
    ]
    summary = "; ".join([f"{len(values):,} values", *(line.name for line in lines)])
    table = _data(chart.title, ("range", "count"), rows)
    return Drawing(chart.title, summary, across, up, table, tuple(boxes), tuple(lines))


def binned(values: Sequence[float]) -> list[tuple[float, float, int]]:
    """Return sorted positive values in at most 30 logarithmic bins: low end, high end and count."""
    low, high = values[0], values[-1]
    if high <= low:
        return [(low / 1.05, low * 1.05, len(values))]
    size = min(_MAX_BINS, math.isqrt(len(values)) + 4)
    spread = math.log(high / low)
    counts = [0] * size
    for value in values:
        counts[min(int(math.log(value / low) / spread * size), size - 1)] += 1
    ends = [low * math.exp(spread * at / size) for at in range(size + 1)]
    return [(ends[at], ends[at + 1], count) for at, count in enumerate(counts)]


def _path(across: ChartScale, up: ChartScale, points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{across(x):g},{up(y):g}" for x, y in points)


def _data(title: str, head: tuple[str, str], rows: Sequence[tuple[str, str]]) -> DataTable:
    shown = thinned(rows, _MAX_ROWS)
    part = "" if len(shown) == len(rows) else f", {len(shown)} of {len(rows):,} rows"
    return DataTable(f"Data of {title}{part}", tuple(map(Column, head)), tuple(shown))
