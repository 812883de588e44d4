"""The viewer of rows: pages, filters, marks and access, without a browser."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from smartbatch._clock import VirtualClock
from smartbatch.dashboard.row_viewer import ROWS_PER_PAGE, RowViewer
from smartbatch.dashboard.rows_page import Shown
from smartbatch.quality.labels import LabelScores
from smartbatch.runs.marks_file import MarksFile
from smartbatch.tables.row_prompts import RowPrompts
from tests.dashboard.visits import LOCAL, Answer, Visitor
from tests.hostile import HOSTILE, Elements
from tests.levels import sampled


def line(index: int, **changes: Any) -> dict[str, Any]:
    whole = {"index": index, "id": f"r{index}", "input": {"text": f"word {index}"}, "model": "sim:demo"}
    usage = {"input_tokens": 30, "output_tokens": 50}
    figures = {"finish_reason": "stop", "usage": usage, "cost": 0.5, "latency": 0.25, "attempts": 2}
    return {**whole, "text": f"answer {index}", **figures, "error": None, **changes}


def failed(index: int) -> dict[str, Any]:
    return line(index, text=None, error={"kind": "timeout", "message": "it took too long"})


@pytest.fixture
def output(tmp_path):
    return tmp_path / "out.jsonl"


@pytest.fixture
def viewer_of(output):
    def make(*lines: dict[str, Any], **more: Any) -> Visitor:
        output.write_text("".join(json.dumps(each) + "\n" for each in lines))
        return Visitor(RowViewer(str(output), LOCAL, **more))

    return make


def rows_in(answer: Answer) -> list[str]:
    return re.findall(r"<h2[^>]*>(Row [^<]*)</h2>", answer.text)


def marks_of(output: Path) -> list[tuple[int, str | None, str | None, str]]:
    found = MarksFile(str(output.with_suffix(".marks.jsonl"))).read()
    return [(mark.index, mark.field, mark.verdict, mark.note) for mark in found]


def form_of(answer: Answer, position: int) -> dict[str, str]:
    """Return the hidden fields of a row's form."""
    section = answer.text.partition(f'<section id="row-{position}"')[2].partition("</section>")[0]
    pairs = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', section)
    return {name: unescape(value) for name, value in pairs}


def test_a_row_shows_its_input_answer_fields_and_figures(viewer_of):
    seen = viewer_of(line(0, parsed={"label": "good"}), failed(1)).get("/")
    assert rows_in(seen) == ["Row 0 · r0", "Row 1 · r1"]
    assert "text word 0" in seen.words
    assert "Answer answer 0" in seen.words
    assert "label good" in seen.words
    assert "sim:demo · 30 + 50 tokens · $0.50 · 250 ms · 2 attempts · stop" in seen.words
    assert "timeout: it took too long" in seen.words


def test_with_a_template_a_row_shows_its_prompt(viewer_of):
    shown = Shown(RowPrompts.of("Judge {text}!", None))
    seen = viewer_of(line(0), line(1, input={"other": 1}), shown=shown).get("/").words
    assert "Prompt Judge word 0!" in seen
    assert "The template does not fit this row: no field 'text'" in seen


def test_answers_are_compared_with_their_labels(viewer_of):
    texts = [("good", "Good"), ("bad", "good"), ("", "bad")]
    rows = [line(at, text=text, input={"mood": mood}) for at, (mood, text) in enumerate(texts)]
    visitor = viewer_of(*rows, shown=Shown(scores=LabelScores("mood")))
    seen = visitor.get("/").words
    assert "right according to the label 'good'" in seen
    assert "wrong according to the label 'bad'" in seen
    assert seen.count("according to the label") == 2
    assert rows_in(visitor.get("/?scored=wrong")) == ["Row 1 · r1"]


def test_long_texts_are_folded(viewer_of):
    seen = viewer_of(line(0, text="long " * 1000)).get("/")
    assert re.search(r"<details><summary>Answer, 5,000 characters: long long .*…</summary>", seen.text)


def test_the_end_of_a_huge_text_is_left_out_and_counted(viewer_of):
    seen = viewer_of(line(0, text="x" * 103_000)).get("/")
    assert "x\n… 3,000 more characters in the output</pre>" in seen.text
    assert len(seen.text) < 150_000


def test_pages_follow_each_other_to_the_last_row(viewer_of):
    visitor = viewer_of(*(line(number) for number in range(ROWS_PER_PAGE + 3)))
    first = visitor.get("/")
    assert len(rows_in(first)) == ROWS_PER_PAGE
    (link,) = re.findall(r'href="(/\?after=\d+)">Next rows', first.text)
    assert rows_in(visitor.get(link)) == [f"Row {number} · r{number}" for number in (25, 26, 27)]
    assert "Next rows" not in visitor.get(link).text
    assert visitor.get("/?after=999999").status == 200


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("outcome=failed", [1]),
        ("outcome=answered", [0, 2]),
        ("outcome=timeout", [1]),
        ("outcome=network_error", []),
        ("outcome=truncated", [2]),
        ("search=WORD+2", [2]),
        ("where=label%3Dgood", [0]),
        ("min=9", [2]),
        ("max=8", [0, 1]),
        ("mark=none", [0, 1, 2]),
        ("mark=wrong", []),
        ("outcome=own_error", []),
        ("min=x&mark=y&scored=z&where=w", [0, 1, 2]),
    ],
)
def test_filters_select_rows(viewer_of, query, rows):
    cut = line(2, text="an answer", finish_reason="length")
    visitor = viewer_of(line(0, parsed={"label": "good"}), failed(1), cut)
    assert rows_in(visitor.get(f"/?{query}")) == [f"Row {number} · r{number}" for number in rows]


def test_a_long_search_goes_on_from_page_to_page(viewer_of, monkeypatch):
    class SlowClock(VirtualClock):
        def now(self) -> float:
            self.reads = getattr(self, "reads", 0.0) + 0.125
            return self.reads

    visitor = viewer_of(*(line(number) for number in range(20)), clock=SlowClock())
    seen = visitor.get("/?search=word+19")
    assert "Searched 8 of 20 rows." in seen.words
    (link,) = re.findall(r'href="([^"]*)">Continue searching', seen.text)
    assert unescape(link) == "/?search=word+19&after=7"
    assert "Searched 16 of 20 rows." in visitor.get(unescape(link)).words
    assert rows_in(visitor.get("/?search=word+19&after=15")) == ["Row 19 · r19"]


# -- marks


def test_a_mark_is_kept_next_to_the_output_and_shown(viewer_of, output):
    visitor = viewer_of(line(0), line(1))
    form = form_of(visitor.get("/?max=99"), 1)
    done = visitor.post("/action/mark", {**form, "choice": "wrong", "note": "too short"})
    assert (done.status, done.headers["Location"]) == (303, "/?max=99#row-1")
    assert marks_of(output) == [(1, None, "wrong", "too short")]
    seen = visitor.get("/?mark=wrong")
    assert rows_in(seen) == ["Row 1 · r1"]
    assert '<span class="state bad">wrong</span>' in seen.text
    assert "Right answers 0.0 % 0 of 1; 95 %: 0.0 to 79.3 %" in seen.words


def test_a_field_is_marked_by_itself_and_a_mark_can_be_removed(viewer_of, output):
    visitor = viewer_of(line(0, parsed={"label": "good"}))
    form = form_of(visitor.get("/"), 0)
    visitor.post("/action/mark", {**form, "choice": "right", "field": "label"})
    visitor.post("/action/mark", {**form, "choice": "unsure"})
    assert marks_of(output) == [(0, "label", "right", ""), (0, None, "unsure", "")]
    assert "Right: label 100.0 % 1 of 1" in visitor.get("/").words
    visitor.post("/action/mark", {**form, "choice": "none", "field": "label"})
    assert marks_of(output) == [(0, None, "unsure", "")]


def test_a_note_alone_keeps_the_verdict(viewer_of, output):
    visitor = viewer_of(line(0), line(1))
    page = visitor.get("/")
    visitor.post("/action/mark", {**form_of(page, 0), "choice": "wrong"})
    for position in (0, 1):
        visitor.post("/action/mark", {**form_of(page, position), "note": "why?"})
    assert marks_of(output) == [(0, None, "wrong", "why?"), (1, None, "unsure", "why?")]


def test_a_mark_of_an_older_answer_is_shown_as_such_and_not_counted(viewer_of, output):
    visitor = viewer_of(line(0))
    visitor.post("/action/mark", {**form_of(visitor.get("/"), 0), "choice": "right"})
    form = form_of(visitor.get("/"), 0)
    output.write_text(json.dumps(line(0, text="a better answer")) + "\n")
    assert "The output has changed since it was opened." in visitor.get("/").words
    assert visitor.post("/action/reopen", {}).status == 303
    seen = visitor.get("/").words
    assert "a better answer" in seen
    assert "right (an older answer was marked)" in seen
    assert "no rows are marked right or wrong" in seen
    refused = visitor.post("/action/mark", {**form, "choice": "wrong"})
    assert refused.status == 409
    assert "row 0 has another answer now" in refused.text


def test_marks_of_rows_that_are_gone_are_counted_on_the_page(viewer_of, output):
    visitor = viewer_of(line(0), line(1))
    for position in (0, 1):
        visitor.post("/action/mark", {**form_of(visitor.get("/"), position), "choice": "right"})
    seen = viewer_of(line(0, id="another row")).get("/")
    assert "2 marks of rows that are no longer in the output: not counted." in seen.words
    assert "older answer" not in seen.words


@pytest.mark.parametrize(
    ("changes", "status"),
    [({"position": "9"}, 400), ({"choice": "x"}, 400), ({"field": "x"}, 409), ({"answer": ""}, 409)],
)
def test_what_is_no_mark_is_refused(viewer_of, output, changes, status):
    visitor = viewer_of(line(0))
    form = {**form_of(visitor.get("/"), 0), "choice": "right", **changes}
    assert visitor.post("/action/mark", form).status == status
    assert not output.with_suffix(".marks.jsonl").exists()


def test_marks_that_cannot_be_read_are_reported(viewer_of, output):
    visitor = viewer_of(line(0))
    output.with_suffix(".marks.jsonl").write_text("[]\n")
    assert visitor.get("/").status == 503
    assert "has a line that is not a mark" in visitor.get("/").text


# -- access


def test_nothing_is_shown_without_the_token(viewer_of):
    visitor = viewer_of(line(0))
    for refused in (visitor.get("/", Authorization="x"), visitor.get("/?token=x", Authorization="x")):
        assert refused.status == 403
        assert "smartbatch view" in refused.text
        assert "answer 0" not in refused.text
    assert visitor.get("/", Host="evil.example").status == 421


@pytest.mark.parametrize("sent", [{"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}])
def test_marks_from_other_pages_are_refused(viewer_of, output, sent):
    visitor = viewer_of(line(0))
    form = {**form_of(visitor.get("/"), 0), "choice": "right"}
    assert visitor.post("/action/mark", form, **sent).status == 403
    assert not output.with_suffix(".marks.jsonl").exists()


def test_every_page_forbids_scripts_of_others(viewer_of):
    seen = viewer_of(line(0)).get("/")
    policy = seen.headers["Content-Security-Policy"]
    assert "default-src 'none'; script-src 'self'; style-src 'sha256-" in policy
    assert seen.headers["Cache-Control"] == "no-store"
    assert re.findall(r"<script[^>]*>", seen.text) == [
        re.search(r'<script src="/static/rows.js\?v=\w+" defer="defer">', seen.text)[0]
    ]  # type: ignore[index]


# -- hostile content

MORE_HOSTILE = ['=HYPERLINK("http://evil")', "a\u2028b", "<svg onload=alert(1)>", "</pre></section><script>"]


@pytest.mark.parametrize("text", sampled([*HOSTILE.values(), *MORE_HOSTILE], keep=5))
def test_hostile_rows_add_no_element(viewer_of, text):
    plain = Elements(viewer_of(line(0, parsed={"x": "y"}), failed(1)).get("/").text)
    error = {"kind": text, "message": text}
    rows = [line(0, id=text, input={text: text}, text=text, model=text, parsed={text: text})]
    seen = viewer_of(*rows, line(1, id="r1", text=None, error=error)).get("/")
    assert seen.status == 200
    found = Elements(seen.text)
    assert set(found.tags) <= {*plain.tags, "details", "summary", "pre", "div", "h3"}
    assert found.tags.count("script") == 1
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    assert not re.search("[\x00-\x08\x1b\x7f\u202e]", seen.text)
