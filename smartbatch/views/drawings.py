"""Charts as drawings: geometry, a summary in words and the data as a table; a template makes SVG of them.

Of many points a chart draws a bounded number, so that a page stays small. A chart without data is none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import singledispatch
from typing import TypeVar

from attrs import frozen

from smartbatch._words import moment, number, worded
from smartbatch.views.chart_scale import ChartScale, scale
from smartbatch.views.model import BarsOverTime, Chart, Column, DataTable, ProgressOverTime, ValueDistribution

T = TypeVar("T")

WIDTH, HEIGHT = 720, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 12, 26
_MAX_POINTS, _MAX_ROWS, _MAX_BINS = 300, 60, 30
_QUANTILES = ((0.5, "p50"), (0.95, "p95"))


@frozen
class ChartBox:
    """A bar; browsers show its title under the pointer."""

    x: float
    y: float
    width: float
    height: float
    title: str


@frozen
class ChartLine:
    """A line over points, ``x,y x,y …``; ``look`` is its class in the style sheet."""

    points: str
    look: str
    name: str = ""  # in the key
    dash: str | None = None


@frozen
class Drawing:
    """A chart, ready to be drawn."""

    title: str
    summary: str
    x: ChartScale
    y: ChartScale
    table: DataTable
    boxes: tuple[ChartBox, ...] = ()
    lines: tuple[ChartLine, ...] = ()
    area: str = ""


def thinned(values: Sequence[T], most: int) -> list[T]:
    """Return at most ``most`` values, evenly chosen, the first and the last among them."""
    if len(values) <= most:
        return list(values)
    step = (len(values) - 1) / (most - 1)
    return [values[round(at * step)] for at in range(most)]


def quantile(values: Sequence[float], q: float) -> float:
    """Return the smallest value that a share ``q`` of ``values`` does not exceed; they are sorted."""
    return values[max(0, math.ceil(q * len(values)) - 1)]


@singledispatch
def drawing(chart: Chart) -> Drawing | None:
    """Return a chart as a drawing; ``None`` where it has no data."""
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
        summary += f"; the rest is expected by {moment(half)}, with 95 % by {moment(late)}"
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
            told = f"{worded(low, chart.unit)} to {worded(high, chart.unit)}"
            width = max(1.0, round(across(high) - left - 1, 1))
            boxes.append(ChartBox(left, top, width, round(up.start - top, 1), f"{told}: {count:,}"))
            rows.append((told, f"{count:,}"))
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
    """Return sorted values above zero in at most 30 bins of a logarithmic scale: ends and counts."""
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
