"""Charts: a figure with a title, a label, its data as a table, and no more than a page can carry."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from smartbatch._html import Html
from smartbatch.reports import charts
from smartbatch.reports.axes import Axis, seconds, share, usd
from smartbatch.reports.charts import Bin, Curve, Forecast, Mark, Span, TimelineRow
from tests.hostile import HOSTILE
from tests.levels import sampled

START = 1_790_000_000.0
DURATION = Axis("seconds", seconds, log=True)


def drawings(name: str, count: int) -> dict[str, Html]:
    """Every chart, of ``count`` values and with one name everywhere."""
    points = [(START + n * 60, float(n % 17)) for n in range(count)]
    spans = (Span("running", START, START + 60), Span(name, START + 60, START + 90))
    return {
        "series": charts.series(
            name, [Curve(name, points), Curve("b", points)], Axis(name), limit=20.0, of=name
        ),
        "band": charts.band(name, [(t, v, v + 9) for t, v in points], Axis(name, usd), came=12.0),
        "histogram": charts.histogram(
            name, charts.binned([v for _, v in points]), DURATION, marks=[(name, 4.0)]
        ),
        "calibration": charts.calibration(
            name, [Forecast(name, 10 + v, 30.0, 12 + 2 * v) for _, v in points], DURATION
        ),
        "timeline": charts.timeline(name, [TimelineRow(name, spans, name)] * count),
        "trade off": charts.trade_off(
            [Mark(name, 1.0, 9.0, 0.1, 0.2, 0.3, n == 0) for n in range(min(count, 9))]
        ),
    }


CHARTS = sorted(drawings("x", 2))


def parsed(html: str) -> ElementTree.Element:
    return ElementTree.fromstring(re.sub(r' xmlns="[^"]*"', "", html))


@pytest.mark.parametrize("kind", CHARTS)
def test_a_chart_has_a_title_a_label_and_its_data(kind: str) -> None:
    drawn = parsed(drawings("speed", 40)[kind])
    svg = drawn.find("div[@tabindex='0'][@role='region'][@aria-label]/svg")
    assert drawn.tag == "figure"
    assert svg is not None
    assert svg.get("role") == "img"
    assert drawn.findtext("figcaption")
    assert (svg.get("aria-label") or "").startswith(f"{drawn.findtext('figcaption')}. ")
    assert len(drawn.findall("details//tbody/tr")) >= 8
    assert {head.get("scope") for head in drawn.iter("th")} == {"col"}


@pytest.mark.parametrize("amount", [0.0000123, 0.00123, 1.23, 12_345.6])
def test_amounts_at_an_axis_are_on_the_picture(amount: float) -> None:
    """At 11 pixels a character takes some six."""
    curve = Curve("spent", [(START, 0.0), (START + 60, amount)])
    drawn = parsed(charts.series("Spending", [curve], Axis("USD", usd)))
    told = [each for each in drawn.iter("text") if (each.text or "").endswith(" USD")]
    assert len(told) >= 3
    assert min(float(each.get("x") or 0) - 6.5 * len(each.text or "") for each in told) >= 0


@pytest.mark.parametrize("kind", sampled(CHARTS, keep=2))
def test_a_chart_has_neither_styles_nor_scripts_whatever_it_is_called(kind: str) -> None:
    for text in HOSTILE.values():
        drawn = parsed(drawings(text[:200], 3)[kind])
        assert not [each for each in drawn.iter() if each.tag in ("script", "img", "style", "a", "b")]
        assert not {name for each in drawn.iter() for name in each.attrib if name.startswith(("on", "style"))}


@pytest.mark.parametrize("kind", sampled(CHARTS, keep=2))
def test_a_chart_of_many_values_stays_small(kind: str) -> None:
    html = drawings("x", 5_000)[kind]
    assert len(html) < 60_000
    assert not re.search(r"\b(nan|inf)\b", html)


@pytest.mark.parametrize("kind", sampled(CHARTS, keep=3))
def test_everything_drawn_lies_in_the_picture(kind: str) -> None:
    for count in (1, 2, 300):
        drawn = parsed(drawings("x", count)[kind])
        for svg in drawn.iter("svg"):
            width, height = map(float, (svg.get("viewBox") or "").split()[2:])
            across = [float(each.get(name, 0)) for each in svg.iter() for name in ("x", "x1", "x2", "cx")]
            down = [float(each.get(name, 0)) for each in svg.iter() for name in ("y", "y1", "y2", "cy")]
            for each in svg.iter("polyline"):
                pairs = [pair.split(",") for pair in (each.get("points") or "").split()]
                across += [float(x) for x, _ in pairs]
                down += [float(y) for _, y in pairs]
            assert min(across) >= 0
            assert max(across) <= width
            assert min(down) >= 0
            assert max(down) <= height


@pytest.mark.parametrize(
    "empty",
    [
        lambda: charts.series("t", [Curve("a", [])], Axis("y")),
        lambda: charts.band("t", [], Axis("y")),
        lambda: charts.histogram("t", [Bin(0, 1, 0)], Axis("x")),
        lambda: charts.calibration("t", [Forecast("a", 0.0, 0.0, 1.0)], DURATION),
        lambda: charts.timeline("t", [TimelineRow("a", ())]),
    ],
)
def test_a_chart_of_nothing_says_so(empty: Callable[[], Html]) -> None:
    drawn = parsed(empty())
    assert drawn.findtext("p") == "nothing to show yet"
    assert drawn.find("svg") is None


def test_a_forecast_that_failed_is_told_apart_without_colour() -> None:
    """What came within its bound is a dot, what took more is a cross."""
    made = [Forecast("good", 10, 20, 15), Forecast("late", 10, 20, 40)]
    drawn = parsed(charts.calibration("forecasts", made, DURATION))
    assert len(list(drawn.iter("circle"))) == 1
    assert len([line for line in drawn.iter("line") if line.get("class") == "line c2"]) == 2
    assert "1 took more" in (drawn.findtext("p") or "")


def test_a_line_is_drawn_against_its_limit() -> None:
    drawn = parsed(
        charts.series("rate", [Curve("a", [(START, 5.0), (START + 60, 10.0)])], Axis("n"), limit=20.0)
    )
    limit = next(line for line in drawn.iter("line") if "limit" in (line.get("class") or ""))
    ends = [
        tuple(map(float, pair.split(","))) for pair in (drawn.find(".//polyline").get("points") or "").split()
    ]  # type: ignore[union-attr]
    assert float(limit.get("y1", "")) == pytest.approx(10.0)
    bottom = 220 - 42
    assert bottom - ends[1][1] == pytest.approx((bottom - 10) / 2, abs=0.2)


def test_bins_hold_every_value_once() -> None:
    values = [0.1 * n for n in range(1, 500)]
    bins = charts.binned(values)
    assert sum(each.count for each in bins) == len(values)
    assert all(a.high == pytest.approx(b.low) for a, b in pairwise(bins))
    assert charts.binned([3.0, 3.0]) == [Bin(3.0, 3.3000000000000003, 2)]
    assert charts.binned([float("nan")]) == []


def test_values_are_told_with_their_units() -> None:
    assert [seconds(value) for value in (0, 0.0125, 1, 90, 5400, 90_000)] == [
        "0 s",
        "12.5 ms",
        "1 s",
        "1.5 min",
        "1.5 h",
        "1.04 d",
    ]
    assert [usd(value) for value in (0, 0.00000775, 0.00123, 2.5, -42, 1234.5)] == [
        "0 USD",
        "0.00000775 USD",
        "0.00123 USD",
        "2.5 USD",
        "-42 USD",
        "1234.50 USD",
    ]
    assert share(0.125) == "12.5 %"


def test_of_many_values_the_first_and_the_last_stay() -> None:
    assert charts.thinned(range(1000), 4) == [0, 333, 666, 999]
    assert charts.thinned([1, 2], 4) == [1, 2]
