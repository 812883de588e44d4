"""Charts as SVG, made with the page: a figure with its title, a description, and its data as a table.

Colours are classes of the style sheet; without one (in a notebook) lines and areas have the colour of the
text. What a colour tells is told by a dash, a sign or a word, too. Of many points a chart draws a bounded
number, so that a page stays small.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeVar

from attrs import field, frozen

from smartbatch._html import Child, Html, el, fragment
from smartbatch.reports.axes import TIME, Axis, Scale, moment, scale, seconds, usd
from smartbatch.reports.components import scrolling

T = TypeVar("T")

_WIDTH, _HEIGHT = 640, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 92, 14, 10, 42
_MOST_POINTS, _MOST_ROWS = 300, 60
"""Points of a line, and rows of its table."""
_DASHES = (None, "6 3", "2 3", "8 3 2 3")
_SPAN_HEIGHT = 18


# -- parts


def thinned(values: Sequence[T], most: int) -> list[T]:
    """Return at most ``most`` values, evenly chosen, the first and the last among them."""
    if len(values) <= most:
        return list(values)
    step = (len(values) - 1) / (most - 1)
    return [values[round(at * step)] for at in range(most)]


def _figure(
    title: str,
    summary: str,
    drawn: Iterable[Html],
    height: float,
    key: Child,
    table: Html | None,
    *,
    from_end: bool = False,
) -> Html:
    """Return a chart with its words: what is drawn, the key of its signs, and its data.

    Args:
        from_end: where it is wider than the screen, its right end is seen first.
    """
    svg = el(
        "svg",
        drawn,
        xmlns="http://www.w3.org/2000/svg",
        role="img",
        aria_label=f"{title}. {summary}",
        viewBox=f"0 0 {_WIDTH} {height:g}",
        width=_WIDTH,
        height=height,
        font_family="sans-serif",
        font_size=11,
        fill="currentColor",
    )
    return el("figure", el("figcaption", title), scrolling(title, svg, from_end=from_end), key, table)


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Html:
    """Return the data of a chart behind a summary; of many rows evenly chosen ones."""
    shown = thinned(rows, _MOST_ROWS)
    note = "Data" if len(shown) == len(rows) else f"Data: {len(shown)} of {len(rows):,} rows"
    titles = el("thead", el("tr", (el("th", name, scope="col") for name in head)))
    body = el("tbody", (el("tr", (el("td", cell) for cell in row)) for row in shown))
    return el("details", el("summary", note), scrolling(f"Data of {title}", el("table", titles, body)))


def _stroke(
    x1: float, y1: float, x2: float, y2: float, class_: str = "axis", dash: str | None = None
) -> Html:
    return el(
        "line",
        x1=round(x1, 1),
        y1=round(y1, 1),
        x2=round(x2, 1),
        y2=round(y2, 1),
        stroke="currentColor",
        stroke_dasharray=dash,
        class_=class_,
    )


def _text(x: float, y: float, words: str, anchor: str = "middle") -> Html:
    return el("text", words, x=round(x, 1), y=round(y, 1), text_anchor=anchor)


def _box(x: float, y: float, width: float, height: float, class_: str, title: str | None) -> Html:
    """Return a filled box; browsers show its title under the pointer."""
    shape = {
        "x": round(x, 1),
        "y": round(y, 1),
        "width": round(max(width, 0.5), 1),
        "height": round(height, 1),
    }
    drawn = el("rect", **shape, class_=class_, fill_opacity=0.8)
    return el("g", el("title", title), drawn) if title else drawn


def _frame(x: Scale, y: Scale) -> list[Html]:
    """Return both axes with their ticks and labels."""
    bottom, left = y.start, x.start
    parts = [_stroke(left, bottom, x.end, bottom), _stroke(left, bottom, left, y.end)]
    day = x.axis.words is moment and x.high - x.low <= 2 * 86_400
    for tick in x.ticks():
        words = x.axis.words(tick)
        if x.axis.words is moment:
            words = words[11:19] if x.high - x.low <= 600 else words[11:16] if day else words[5:10]
        anchor = "end" if x(tick) > x.end - 20 else "middle"
        parts += [_stroke(x(tick), bottom, x(tick), bottom + 4), _text(x(tick), bottom + 16, words, anchor)]
    for tick in y.ticks():
        parts += [
            _stroke(left - 4, y(tick), x.end, y(tick)),
            _text(left - 8, y(tick) + 4, y.axis.words(tick), "end"),
        ]
    label = x.axis.label
    if x.axis.words is moment:
        label += f", from {moment(x.low)[:16]}"
    parts.append(_text((left + x.end) / 2, bottom + 34, label))
    return parts


def _path(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _key(names: Sequence[tuple[str, str, str | None]]) -> Html | None:
    """Return what the lines mean: name, class, dash of each."""
    if len(names) < 2:
        return None
    entries = (
        el(
            "span",
            el(
                "svg",
                _stroke(0, 6, 26, 6, class_, dash),
                width=28,
                height=12,
                viewBox="0 0 28 12",
                aria_hidden="true",
            ),
            f" {name}",
        )
        for name, class_, dash in names
    )
    return el("div", entries, class_="key")


def _empty(title: str) -> Html:
    return el("figure", el("figcaption", title), el("p", "nothing to show yet", class_="soft"))


# -- charts


@frozen
class Curve:
    """One line of a chart over time.

    Attributes:
        name: what it shows.
        points: places on both axes, in the order of the first.
    """

    name: str
    points: Sequence[tuple[float, float]]


def series(
    title: str,
    curves: Sequence[Curve],
    y: Axis,
    *,
    x: Axis = TIME,
    limit: float | None = None,
    of: str = "limit",
) -> Html:
    """Return lines over time, against a limit where there is one.

    Args:
        limit: drawn as a line across; ``of`` is its name.
    """
    curves = [Curve(curve.name, thinned(curve.points, _MOST_POINTS)) for curve in curves if curve.points]
    if not curves:
        return _empty(title)
    across = scale(x, (point[0] for curve in curves for point in curve.points), _LEFT, _WIDTH - _RIGHT)
    values = [point[1] for curve in curves for point in curve.points]
    up = scale(
        y, [*([] if y.log else [0.0]), *values, *([] if limit is None else [limit])], _HEIGHT - _BOTTOM, _TOP
    )
    drawn = _frame(across, up)
    names: list[tuple[str, str, str | None]] = []
    for at, curve in enumerate(curves):
        class_, dash = f"line c{at % 4 + 1}", _DASHES[at % 4]
        names.append((curve.name, class_, dash))
        drawn.append(_polyline([(across(a), up(b)) for a, b in curve.points], class_, dash))
    summary = "; ".join(
        f"{each.name}: last {y.words(each.points[-1][1])}, at most {y.words(max(b for _, b in each.points))}"
        for each in curves
    )
    if limit is not None:
        drawn.append(_stroke(across.start, up(limit), across.end, up(limit), "line limit", "4 4"))
        names.append((f"{of}: {y.words(limit)}", "line limit", "4 4"))
        summary += f"; {of} {y.words(limit)}"
    rows = [(curve.name, x.words(a), y.words(b)) for curve in curves for a, b in curve.points]
    table = _table(title, ("line", x.label, y.label), rows)
    return _figure(title, summary, drawn, _HEIGHT, _key(names), table, from_end=True)


def _polyline(points: Sequence[tuple[float, float]], class_: str, dash: str | None) -> Html:
    if len(points) == 1:
        return el(
            "circle",
            cx=round(points[0][0], 1),
            cy=round(points[0][1], 1),
            r=3,
            class_=class_.replace("line c", "f"),
        )
    return el(
        "polyline",
        points=_path(points),
        fill="none",
        stroke="currentColor",
        stroke_dasharray=dash,
        class_=class_,
    )


def band(
    title: str,
    points: Sequence[tuple[float, float, float]],
    y: Axis,
    *,
    x: Axis = TIME,
    came: float | None = None,
) -> Html:
    """Return how a forecast went: at each time its median and its 95 % bound, the space between them filled.

    Args:
        points: time, median, bound.
        came: what came in the end, as a line across.
    """
    if not points:
        return _empty(title)
    points = thinned(points, _MOST_POINTS)
    across = scale(x, (point[0] for point in points), _LEFT, _WIDTH - _RIGHT)
    values = [value for point in points for value in point[1:]] + ([] if came is None else [came])
    up = scale(y, values, _HEIGHT - _BOTTOM, _TOP)
    middle = [(across(at), up(median)) for at, median, _ in points]
    bound = [(across(at), up(high)) for at, _, high in points]
    area = el("polygon", points=_path([*middle, *reversed(bound)]), fill_opacity=0.22, class_="area")
    drawn = [
        *_frame(across, up),
        area,
        _polyline(middle, "line c1", None),
        _polyline(bound, "line c2", _DASHES[1]),
    ]
    names: list[tuple[str, str, str | None]] = [("p50", "line c1", None), ("p95", "line c2", _DASHES[1])]
    last = points[-1]
    summary = f"last forecast: p50 {y.words(last[1])}, p95 {y.words(last[2])}"
    if came is not None:
        drawn.append(_stroke(across.start, up(came), across.end, up(came), "line c3", "2 3"))
        names.append((f"came: {y.words(came)}", "line c3", "2 3"))
        summary += f"; came {y.words(came)}"
    rows = [(x.words(at), y.words(median), y.words(high)) for at, median, high in points]
    return _figure(title, summary, drawn, _HEIGHT, _key(names), _table(title, (x.label, "p50", "p95"), rows))


@frozen
class Bin:
    """Values between two ends, the first one included.

    Attributes:
        low, high: the ends.
        count: how many values.
    """

    low: float
    high: float
    count: int


def histogram(title: str, bins: Sequence[Bin], x: Axis, *, marks: Sequence[tuple[str, float]] = ()) -> Html:
    """Return how many values lie where.

    Args:
        bins: at most some hundred, in order.
        marks: named values, drawn as lines: quantiles.
    """
    if not any(each.count for each in bins):
        return _empty(title)
    across = scale(x, [end for each in bins for end in (each.low, each.high)], _LEFT, _WIDTH - _RIGHT)
    up = scale(Axis("count"), [0, *(each.count for each in bins)], _HEIGHT - _BOTTOM, _TOP)
    drawn = _frame(across, up)
    for each in bins:
        if each.count:
            left, top = across(each.low), up(each.count)
            words = f"{x.words(each.low)} to {x.words(each.high)}: {each.count:,}"
            drawn.append(_box(left, top, across(each.high) - left - 0.5, up.start - top, "f1", words))
    names: list[tuple[str, str, str | None]] = [("counts", "line c1", None)]
    for at, (name, value) in enumerate(marks):
        class_, dash = f"line c{at % 3 + 2}", _DASHES[at % 3 + 1]
        drawn.append(_stroke(across(value), up.start, across(value), up.end, class_, dash))
        names.append((f"{name}: {x.words(value)}", class_, dash))
    total = sum(each.count for each in bins)
    summary = "; ".join([f"{total:,} values", *(f"{name} {x.words(value)}" for name, value in marks)])
    rows = [(x.words(each.low), x.words(each.high), f"{each.count:,}") for each in bins if each.count]
    return _figure(title, summary, drawn, _HEIGHT, _key(names), _table(title, ("from", "to", "count"), rows))


def binned(values: Sequence[float]) -> list[Bin]:
    """Return the values above zero as the bins of a histogram, at most 30, on a logarithmic scale."""
    known = sorted(value for value in values if math.isfinite(value) and value > 0)
    if not known:
        return []
    low, high = known[0], known[-1]
    if high <= low:
        return [Bin(low, low * 1.1, len(known))]
    size = min(30, math.isqrt(len(known)) + 4)
    spread = math.log(high / low)
    counts = [0] * size
    for value in known:
        counts[min(int(math.log(value / low) / spread * size), size - 1)] += 1
    ends = [low * math.exp(spread * at / size) for at in range(size + 1)]
    return [Bin(ends[at], ends[at + 1], count) for at, count in enumerate(counts)]


@frozen
class Forecast:
    """A forecast and what came.

    Attributes:
        name: of what.
        p50, p95: what was forecast.
        came: what came.
    """

    name: str
    p50: float
    p95: float
    came: float


def calibration(title: str, forecasts: Sequence[Forecast], axis: Axis) -> Html:
    """Return forecasts against what came: on the diagonal they are right.

    What came within its 95 % bound is a dot, what took more is a cross.
    """
    known = [one for one in forecasts if min(one.p50, one.came) > 0 or not axis.log]
    if not known:
        return _empty(title)
    values = [value for one in known for value in (one.p50, one.came)]
    height = 340
    across = scale(axis, values, _LEFT, _WIDTH - _RIGHT)
    up = scale(axis, values, height - _BOTTOM, _TOP)
    drawn = _frame(across, up)
    drawn.append(_stroke(across.start, up.start, across.end, up.end, "line c3", "2 3"))
    late = 0
    for one in thinned(known, _MOST_POINTS):
        x, y = across(one.p50), up(one.came)
        if one.came <= one.p95:
            drawn.append(el("circle", cx=round(x, 1), cy=round(y, 1), r=3, class_="f1", fill_opacity=0.7))
        else:
            drawn += [
                _stroke(x - 4, y - 4, x + 4, y + 4, "line c2"),
                _stroke(x - 4, y + 4, x + 4, y - 4, "line c2"),
            ]
    late = sum(one.came > one.p95 for one in known)
    summary = f"{len(known):,} forecasts; {late:,} took more than their 95 % bound"
    note = el(
        "p", f"Across: forecast (p50); up: what came. Dots came within p95, crosses took more. {summary}."
    )
    rows = [(one.name, *map(axis.words, (one.p50, one.p95, one.came))) for one in known]
    return _figure(title, summary, drawn, height, note, _table(title, ("of", "p50", "p95", "came"), rows))


@frozen
class Span:
    """A part of a time line.

    Attributes:
        what: what went on, in a word; each word has its own pattern.
        start, end: seconds since the epoch.
    """

    what: str
    start: float
    end: float


@frozen
class TimelineRow:
    """A row of a time line.

    Attributes:
        name: in front of it.
        spans: in the order of time.
        note: after it, in a word.
    """

    name: str
    spans: tuple[Span, ...]
    note: str = field(default="")


def timeline(title: str, rows: Sequence[TimelineRow], *, most: int = 40) -> Html:
    """Return what went on when, a row for each thing.

    Args:
        most: rows that are drawn, evenly chosen; the table has more.
    """
    known = [row for row in rows if row.spans]
    if not known:
        return _empty(title)
    kinds = list(dict.fromkeys(span.what for row in known for span in row.spans))
    shown = thinned(known, most)
    height = _TOP + _BOTTOM + _SPAN_HEIGHT * len(shown)
    ends = [end for row in shown for span in row.spans for end in (span.start, span.end)]
    across = scale(TIME, ends, _LEFT + 30, _WIDTH - _RIGHT)
    up = Scale(Axis("", lambda _: ""), 0, 1, height - _BOTTOM, _TOP)
    drawn = _frame(across, up)
    for at, row in enumerate(shown):
        top = _TOP + at * _SPAN_HEIGHT
        drawn.append(_text(across.start - 8, top + 13, row.name[:14], "end"))
        for span in row.spans:
            kind = kinds.index(span.what)
            left = across(span.start)
            words = f"{row.name}: {span.what} {seconds(span.end - span.start)}, from {moment(span.start)}"
            size = _SPAN_HEIGHT - 5 - 3 * (kind % 4)  # a kind is told by its height, too
            drawn.append(
                _box(
                    left,
                    top + (_SPAN_HEIGHT - size) / 2,
                    across(span.end) - left,
                    size,
                    f"f{kind % 4 + 1}",
                    words,
                )
            )
    part = "" if len(shown) == len(known) else f", of which {len(shown)} are drawn"
    summary = f"{len(known):,} rows{part}; from {moment(across.low)} to {moment(across.high)}"
    names: list[tuple[str, str, str | None]] = [
        (f"{name} ({'thick' if at == 0 else 'thinner'})" if at < 2 else name, f"line c{at % 4 + 1}", None)
        for at, name in enumerate(kinds)
    ]
    cells = [
        (row.name, span.what, moment(span.start), seconds(span.end - span.start), row.note)
        for row in known
        for span in row.spans
    ]
    head = ("row", "what", "from", "took", "note")
    return _figure(title, summary, drawn, height, _key(names), _table(title, head, cells))


@frozen
class Mark:
    """A route in the chart of time against cost.

    Attributes:
        name: next to it.
        p50, p95: seconds.
        low, cost, high: USD.
        chosen: whether it is filled.
    """

    name: str
    p50: float
    p95: float
    low: float
    cost: float
    high: float
    chosen: bool


def trade_off(marks: Sequence[Mark]) -> Html:
    """Return time, on a logarithmic scale, against cost; each route as a point with the range of both. Empty
    where there is nothing to compare."""
    if not marks:
        return fragment()
    times, costs = Axis("time to the last answer", seconds, log=True), Axis("USD", usd)
    ends = [max(value, 0.01) for mark in marks for value in (mark.p50, mark.p95)]
    across = scale(times, ends, _LEFT, _WIDTH - 90)
    up = scale(costs, [0.0, *(mark.high for mark in marks)], _HEIGHT - _BOTTOM, _TOP)
    drawn = _frame(across, up)
    named: list[tuple[float, float]] = []
    for mark in marks:
        x, y = across(max(mark.p50, across.low)), up(mark.cost)
        right, under = across(mark.p95) + 6, y + 4
        while any(abs(right - other) < 56 and abs(under - line) < 12 for other, line in named):
            under += 12
        named.append((right, under))
        drawn += [
            _stroke(x, y, across(mark.p95), y, "line c1"),
            _stroke(x, up(mark.low), x, up(mark.high), "line c1"),
            el(
                "circle",
                cx=round(x, 1),
                cy=round(y, 1),
                r=4,
                fill="currentColor" if mark.chosen else "none",
                stroke="currentColor",
                class_="c1 f1" if mark.chosen else "c1",
            ),
            _text(right, under, mark.name, "start"),
        ]
    title = "USD against the time to the last answer: from half of such lists to 95 of 100"
    chosen = next((mark.name for mark in marks if mark.chosen), "none")
    rows = [
        (
            m.name,
            seconds(m.p50),
            seconds(m.p95),
            usd(m.low),
            usd(m.cost),
            usd(m.high),
            "chosen" if m.chosen else "",
        )
        for m in marks
    ]
    head = ("route", "half done in", "95 of 100 in", "low", "expected", "high", "")
    return _figure(title, f"chosen: {chosen}", drawn, _HEIGHT, None, _table(title, head, rows))
