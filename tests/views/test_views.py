"""Views: one model, rendered as HTML, as text and for notebooks, whatever the texts in it hold."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from smartbatch._words import duration, moment, money, number, share
from smartbatch.views.drawings import WIDTH, binned, drawing, quantile
from smartbatch.views.html import live_parts, notebook, report
from smartbatch.views.model import (
    BarsOverTime,
    Bullets,
    Chart,
    DataTable,
    Facts,
    Field,
    Folded,
    Form,
    Link,
    Links,
    Moment,
    Note,
    ProgressBar,
    ProgressOverTime,
    Section,
    State,
    Tile,
    ValueDistribution,
    View,
)
from smartbatch.views.terminal import cells_of, lines_of, text_of
from tests.hostile import HOSTILE, Elements

HOUR = 3600.0
CHARTS: dict[str, Chart] = {
    "bars": BarsOverTime("Spent per hour", HOUR, ((0.0, 1.5), (HOUR, 3.0)), "money", low=-HOUR),
    "hours": BarsOverTime("Hours", HOUR, tuple((n * HOUR, n) for n in range(24)), "duration", ticks="hours"),
    "progress": ProgressOverTime(
        "Done", ((0.0, 0), (60.0, 40)), 100, expected=(150.0, 300.0), deadline=400.0
    ),
    "distribution": ValueDistribution("Latency", tuple(0.1 * n for n in range(1, 200)), "duration"),
}


def everything(name: str = "a name") -> View:
    table = DataTable.of(
        name,
        "job, done, cost:money, took:duration, at:time, requests:number, act",
        [
            (
                (Link(name, "/jobs/1"), Moment(5.0)),
                ProgressBar(name, 1, 2),
                0.031,
                9000.0,
                0.0,
                1234,
                Form("/act/x", name, (Field("model", value=name, kind="hidden"),)),
            ),
            (State(name, "bad"), None, None, None, None, None, None),
        ],
        chosen=1,
    )
    forms = Form("/act/y", name, (Field("a", name, hint=name),), warning=name)
    parts = (Note(name), Note(name, "bad"), Bullets(((name, Link(name, "/x")),), "bad"), forms)
    more = (Facts(((name, name), ("state", State(name)))), table, Links(name, (Link(name, "/y"),)))
    sections = [
        Section("first", name, (*parts, *more, Folded(name, (Note(name),)))),
        Section("charts", name, tuple(CHARTS.values())),
        Section("empty", name, (), empty=name),
    ]
    tiles = (Tile(name, name, name, "bad", ProgressBar(name, 3, 4), "/jobs"), Tile("failed", "0"))
    return View(name, tuple(sections), State(name, "warn"), name, tiles)


@pytest.mark.parametrize("name", HOSTILE)
def test_no_text_becomes_markup_or_a_control(name):
    text = HOSTILE[name][:500]
    for render in (report, notebook, lambda view: "".join(live_parts(view).values())):
        plain, hostile = Elements(render(everything())), Elements(render(everything(text)))
        assert hostile.tags == plain.tags
        assert dict(hostile.attributes).keys() == dict(plain.attributes).keys()
        assert not set(render(everything(text))) & {"\x00", "\x1b", "\u202e", "\u202d", "\ud800"}
    assert all(line.text.isprintable() for line in lines_of(everything(text), 100))


def test_a_notebook_cell_has_neither_styles_nor_scripts():
    root = ElementTree.fromstring(notebook(everything()))
    assert {element.tag.rpartition("}")[2] for element in root.iter()}.isdisjoint({"style", "script", "a"})


@pytest.mark.parametrize("address", ["https://x.example", "//x.example", "/\\x.example", "javascript:a", "x"])
def test_a_link_stays_in_the_application(address):
    for make in (lambda: Link("x", address), lambda: Form(address, "Go")):
        with pytest.raises(ValueError, match="leaves the application"):
            make()


def test_an_empty_section_says_what_to_do():
    view = View("Jobs", (Section("jobs", "Jobs", (), empty="No jobs yet: submit one with submit_batch."),))
    assert "No jobs yet: submit one" in live_parts(view)["jobs"]
    assert text_of(view).endswith("Jobs: No jobs yet: submit one with submit_batch.")


def test_only_live_sections_are_renewed():
    view = View("t", (Section("a", "a", (Note("1"),)), Section("form", "f", (), is_live=False)))
    assert live_parts(view).keys() == {"head", "a"}


@pytest.mark.parametrize("name", CHARTS)
def test_a_chart_is_drawn_inside_its_picture_with_a_summary_and_its_data(name):
    drawn = drawing(CHARTS[name])
    assert drawn is not None
    xs = [box.x + box.width for box in drawn.boxes] + [box.x for box in drawn.boxes]
    xs += [float(pair.partition(",")[0]) for line in drawn.lines for pair in line.points.split()]
    assert xs
    assert min(xs) >= 0
    assert max(xs) <= WIDTH
    assert len(drawn.x.ticks()) >= 2
    assert drawn.table.rows
    html = live_parts(View("t", (Section("a", "a", (CHARTS[name],)),)))["a"]
    assert f'aria-label="{drawn.title}. {drawn.summary}"' in html
    assert drawn.title in text_of(View("t", (Section("a", "a", (CHARTS[name],)),)))


@pytest.mark.parametrize(
    "empty",
    [
        BarsOverTime("Calls", 60.0, ()),
        BarsOverTime("Calls", 60.0, ((0.0, 0.0), (60.0, 0.0))),
        ProgressOverTime("Done", ((0.0, 0.0),), 10),
        ValueDistribution("Cost", (0.0, float("nan"))),
    ],
)
def test_a_chart_without_data_is_left_out_and_its_section_is_empty(empty):
    assert drawing(empty) is None
    body = live_parts(View("t", (Section("a", "a", (empty,), empty="No calls yet."),)))["a"]
    assert "<svg" not in body
    assert "No calls yet." in body


def test_a_chart_of_many_values_stays_small():
    many = BarsOverTime("Calls", 60.0, tuple((60.0 * n, n) for n in range(100_000)))
    assert len(live_parts(View("t", (Section("a", "a", (many,)),)))["a"]) < 80_000


def test_bins_hold_every_value_once():
    values = sorted(1.0 + n % 97 for n in range(1000))
    assert sum(count for _, _, count in binned(values)) == 1000
    assert (quantile(values, 0.5), quantile([1.0, 2.0], 0.95), quantile([7.0], 0.5)) == (47.0, 2.0, 7.0)


def test_figures_read_the_same_everywhere():
    assert [money(usd) for usd in (None, 0.0, 0.0312, 0.000123, 12.3, -4.5, 1234.5, 0.00996)] == [
        *("unknown", "$0", "$0.03", "$0.00012", "$12.30", "-$4.50", "$1,234.50", "$0.01")
    ]
    spans = (0.0, 0.0123, 0.35, 1.0, 42.4, 119.0, 240.0, 9000.0, 21_600.0, 259_200.0, float("inf"))
    assert [duration(seconds) for seconds in spans] == [
        *("0 s", "12 ms", "350 ms", "1 s", "42 s", "119 s", "4 min", "2.5 h", "6 h", "3 d", "forever")
    ]
    assert [number(value) for value in (0, 1234, 0.25, 12345.6)] == ["0", "1,234", "0.25", "12,346"]
    assert (share(1.0), share(0.05), moment(0.0)) == ("100 %", "5 %", "1970-01-01 00:00:00")


def test_a_report_is_one_file_that_allows_its_own_style_sheet_alone():
    page = report(everything())
    assert "default-src 'none'; style-src &#39;sha256-" in page or "style-src 'sha256-" in page
    assert re.findall(r"(?:src|href)=\"(?!/)", page) == []
    assert "<script" not in page


@pytest.mark.parametrize("width", [1, 20, 80])
def test_no_line_is_wider_than_the_terminal(width):
    assert max(cells_of(line.text) for line in lines_of(everything("見出し " * 9), width)) <= width


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0121, "13 ms"),
        (0.9991, "1 s"),
        (9.92, "10 s"),
        (61.2, "62 s"),
        (600.0, "10 min"),
        (601.0, "11 min"),
        (44_930, "13 h"),
    ],
)
def test_a_suggested_deadline_is_rounded_up(seconds, shown):
    assert duration(seconds, rounded_up=True) == shown


@pytest.mark.parametrize(
    ("usd", "shown"), [(0.0144, "$0.02"), (0.01, "$0.01"), (3.301, "$3.31"), (0.00011, "$0.00011")]
)
def test_a_suggested_budget_is_rounded_up(usd, shown):
    assert money(usd, rounded_up=True) == shown
