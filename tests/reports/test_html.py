"""Elements and documents: every text is a text, and nothing leads out of a page."""

from __future__ import annotations

import base64
import hashlib
import re
from xml.etree import ElementTree

import pytest

from smartbatch._html import Html, el, escaped, fragment
from smartbatch.reports.components import facts, progress, section, standalone, state, style_sheet, table
from tests.hostile import HOSTILE


def parsed(html: str) -> ElementTree.Element:
    """What a browser would make of it; HTML that is not well-formed raises."""
    return ElementTree.fromstring(html.removeprefix("<!doctype html>"))


@pytest.mark.parametrize("name", HOSTILE)
def test_a_text_stays_a_text_wherever_it_stands(name: str) -> None:
    """Between tags and in an attribute a page has the text again, without what no page can have."""
    text = HOSTILE[name]
    shown = re.sub("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff\u202d\u202e]", "\ufffd", text)
    drawn = parsed(el("p", text, el("b", text), title=text))
    assert drawn.text == shown
    assert drawn.get("title") == shown
    assert [each.tag for each in drawn.iter()] == ["p", "b"]
    el("p", text).encode("utf-8")


def test_only_html_is_not_escaped_again() -> None:
    assert el("p", el("b", "&"), "<", 7, None, ["a", [2.5]]) == "<p><b>&amp;</b>&lt;7a2.5</p>"
    assert fragment(Html("<br/>"), "<br/>") == "<br/>&lt;br/&gt;"
    assert el("p", f"{el('b', 'x')}") == "<p>&lt;b&gt;x&lt;/b&gt;</p>", "a formatted text is a text"
    assert escaped("'") == "&#x27;"


def test_attributes_have_the_names_of_html() -> None:
    shown = el(
        "a", "x", class_="c", aria_label="l", data_section="s", href="/jobs?id=a:b", hidden=True, title=None
    )
    assert shown == ('<a class="c" aria-label="l" data-section="s" href="/jobs?id=a:b" hidden="">x</a>')
    assert el("rect", x=1.0, fill_opacity=0.5) == '<rect x="1" fill-opacity="0.5"/>'


@pytest.mark.parametrize("name", ["onclick", "onerror", "formaction", "xlink_href", "x y", "data-A", 'a"b'])
def test_an_attribute_that_is_not_in_the_list_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no attribute"):
        el("p", **{name: "x"})


@pytest.mark.parametrize(
    "address",
    [
        "javascript:alert(1)",
        " \tjavascript:alert(1)",
        "https://elsewhere/",
        "//elsewhere",
        "/\\elsewhere",
        "data:,",
    ],
)
def test_a_link_to_elsewhere_is_refused(address: str) -> None:
    for name in ("href", "src", "action"):
        with pytest.raises(ValueError, match="another host"):
            el("a", **{name: address})


def test_a_script_is_never_inline() -> None:
    assert el("script", src="live.js", defer=True) == '<script src="live.js" defer=""></script>'
    with pytest.raises(ValueError, match="file of its own"):
        el("script", "alert(1)")


def test_a_file_that_stands_alone_allows_its_own_style_sheet_and_nothing_else() -> None:
    page = parsed(standalone("a < b", el("p", "text")))
    styles = page.findtext("head/style") or ""
    digest = base64.b64encode(hashlib.sha256(styles.encode()).digest()).decode()
    policy = next(meta.get("content") for meta in page.iter("meta") if meta.get("http-equiv"))
    assert policy == (f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'")
    assert page.findtext("head/title") == "a < b"
    assert "url(" not in styles
    assert "@import" not in styles


def test_the_style_sheet_is_xml_safe() -> None:
    """It stands in a document as it is, so it has no sign that would end or hide it."""
    assert not set("<&") & set(style_sheet())


def test_a_document_has_a_language_and_fits_a_small_screen() -> None:
    page = parsed(standalone("t", section("now", "Now", facts([("a", "b")]))))
    assert page.get("lang") == "en"
    assert {"viewport", "color-scheme"} <= {meta.get("name") for meta in page.iter("meta")}
    part = next(page.iter("section"))
    assert part.get("aria-labelledby") == part.findall("h2")[0].get("id")


def test_a_table_says_what_it_is_and_what_its_columns_are() -> None:
    drawn = parsed(table("jobs", ("name", "rows"), [("a", "1"), ("b", "2")], numbers=[1], chosen=1))
    assert drawn.findtext("table/caption") == drawn.get("aria-label") == "jobs"
    assert {head.get("scope") for head in drawn.iter("th")} == {"col"}
    assert [row.get("class") for row in drawn.findall("table/tbody/tr")] == [None, "chosen"]
    assert [cell.get("class") for cell in drawn.iter("td")] == [None, "n", None, "n"]


@pytest.mark.parametrize(
    ("done", "total", "words"), [(1, 4, "25%"), (0, 0, "0%"), (9, 4, "100%"), (-1, 4, "0%")]
)
def test_progress_is_told_in_words_too(done: float, total: float, words: str) -> None:
    drawn = parsed(progress("rows", done, total))
    assert drawn.findtext("progress") == words
    assert (drawn[0].tail or "").strip() == words


def test_a_state_is_a_word_before_it_is_a_colour() -> None:
    assert state("failed", "bad") == '<span class="state bad">failed</span>'
    assert state("active") == '<span class="state">active</span>'
