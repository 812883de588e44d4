"""The viewer of rows in Chromium: keys, marks, accessibility, and hostile prompts and answers."""

from __future__ import annotations

import json
import threading
from importlib.resources import files

import pytest
from matplotlib.figure import Figure

from smartbatch.cli.server_commands import LocalServer
from smartbatch.dashboard import TokenAccess
from smartbatch.dashboard.row_viewer import RowViewer
from smartbatch.dashboard.rows_page import Shown
from smartbatch.runs.marks_file import MarksFile
from smartbatch.tables.file_cells import FileColumns
from tests.hostile import HOSTILE

pytestmark = [
    pytest.mark.full,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # pipes of the driver
]
HOSTILE_TEXTS = [
    *HOSTILE.values(),
    "<svg onload=\"document.title='ran'\">",
    "</pre></section><script>document.title='ran'</script>",
    "<img src=x onerror=\"document.title='ran'\">",
    '<a href="javascript:document.title=1">link</a><base href="http://evil.example/">',
    '<form action="http://evil.example"><button>send</button></form><style>*{display:none}</style>',
    '=HYPERLINK("http://evil.example")',
    "\x1b]0;title\x07\x1b[2J",
    "one\u2028two\u2029three",
]


def line(index, word, **changes):
    fields = {"input": {"text": word}, "model": "sim:demo", "text": f"answer {index}: {word}", "cost": 0.001}
    usage = {"usage": {"input_tokens": 30, "output_tokens": 50}, "latency": 0.5, "attempts": 1}
    return {"index": index, "id": f"r{index}", **fields, **usage, "error": None, **changes}


@pytest.fixture
def output(tmp_path):
    path = tmp_path / "out.jsonl"
    rows = [line(number, f"word {number} " * 20, parsed={"label": "good"}) for number in range(60)]
    rows[2] = line(2, "late", text=None, error={"kind": "timeout", "message": "it took too long"})
    rows[3] = line(3, "long", text="a long answer\n" * 1000)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def open_page(chromium):
    """Return a page on an output; what it requests and reports is in ``asked`` and ``wrong``."""
    ends = []

    def opened(output, shown=None, **settings):
        access = TokenAccess()
        server = LocalServer(0, RowViewer(str(output), access, shown))
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        context = chromium.new_context(**settings)
        ends.append((context, server, thread))
        page = context.new_page()
        page.asked, page.wrong = [], []
        page.on("request", lambda request: page.asked.append(request.url))
        page.on(
            "console",
            lambda told: page.wrong.append(told.text) if told.type in ("error", "warning") else None,
        )
        page.on("pageerror", lambda error: page.wrong.append(str(error)))
        page.on("dialog", lambda dialog: page.wrong.append("a dialog"))
        page.base = f"http://127.0.0.1:{server.server_port}"
        page.goto(f"{page.base}/?token={access.token}")
        return page

    yield opened
    for context, server, thread in ends:
        context.close()
        server.shutdown()
        thread.join()
        server.server_close()


def marks_of(output):
    found = MarksFile(str(output.with_suffix(".marks.jsonl"))).read()
    return [(mark.index, mark.verdict, mark.note) for mark in found]


def current(page):
    return page.evaluate("document.activeElement.id")


def test_keys_move_between_rows_and_mark_them(open_page, output):
    page = open_page(output)
    assert "token" not in page.url
    for key in "jjkj":
        page.keyboard.press(key)
    assert current(page) == "row-1"
    with page.expect_navigation():
        page.keyboard.press("2")
    assert current(page) == "row-1"
    assert "wrong" in page.locator("#row-1 .bullets").inner_text()
    page.keyboard.press("j")
    with page.expect_navigation():
        page.keyboard.press("r")
    assert marks_of(output) == [(1, "wrong", ""), (2, "right", "")]
    assert page.wrong == []


def test_keys_typed_into_a_note_mark_nothing(open_page, output):
    page = open_page(output)
    note = page.locator("#row-0").get_by_label("Note")
    note.fill("")
    note.press_sequentially("j 1 2 3 k")
    assert marks_of(output) == []
    with page.expect_navigation():
        page.locator("#row-0").get_by_role("button", name="Wrong").click()
    assert marks_of(output) == [(0, "wrong", "j 1 2 3 k")]
    assert page.locator("#row-0").get_by_label("Note").input_value() == "j 1 2 3 k"


def test_without_javascript_forms_and_pages_do_the_same(open_page, output):
    page = open_page(output, java_script_enabled=False)
    page.get_by_role("link", name="Next rows").click()
    page.locator("#row-30").get_by_role("button", name="Right").click()
    page.locator("#row-30 .bullets").wait_for()
    assert marks_of(output) == [(30, "right", "")]
    page.get_by_label("Outcome").select_option("failed")
    page.get_by_role("button", name="Show").click()
    assert page.locator("main section h2", has_text="Row").all_inner_texts() == ["Row 2 · r2"]


def test_a_long_answer_is_unfolded_by_a_click(open_page, output):
    page = open_page(output)
    answer = page.locator("#row-3 details pre")
    assert not answer.is_visible()
    page.locator("#row-3 summary").click()
    assert answer.inner_text().count("\n") >= 999


def test_images_load_when_they_are_scrolled_into_view(open_page, tmp_path):
    plot, rows = Figure(figsize=(8, 30), dpi=50), []
    for number in range(25):
        plot.suptitle(f"plot {number}")
        plot.savefig(tmp_path / f"{number}.png")
        (tmp_path / f"{number}.txt").write_text("a scan")
        rows.append(line(number, "word " * 300, input={"photo": f"{number}.png", "scan": f"{number}.txt"}))
    output = tmp_path / "out.jsonl"
    output.write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = FileColumns.given({"photo": "image", "scan": "document"}, tmp_path)
    page = open_page(output, Shown(columns=columns))
    page.wait_for_load_state("networkidle")
    loaded = "[...document.images].filter(image => image.complete && image.naturalHeight == 1500).length"
    assert 0 < page.evaluate(loaded) < 25
    with page.expect_response("**/file?row=24&column=photo*"):
        page.locator("#row-24").scroll_into_view_if_needed()
    with page.expect_download() as found:
        page.locator("#row-24 a[download]").click()
    assert (found.value.suggested_filename, found.value.path().read_text()) == ("row-24-scan-0.txt", "a scan")
    assert page.wrong == []
    assert all(url.startswith(page.base) for url in page.asked)


def test_hostile_rows_have_no_effect_on_the_page(open_page, tmp_path):
    output, rows = tmp_path / "out.jsonl", []
    for number, text in enumerate(HOSTILE_TEXTS):
        error = {"kind": text, "message": text} if number % 3 == 2 else None
        rows.append(
            line(
                number,
                text,
                id=text[:2000] or "x",
                input={text[:2000]: text},
                error=error,
                parsed={text[:2000]: text},
            )
        )
    output.write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = open_page(output)
    assert page.locator("main section[id^=row-]").count() == len(rows)
    assert page.locator("main section[id^=row-] form").count() == len(rows)
    assert page.title() == "out.jsonl – smartbatch"
    assert page.locator("main h1").is_visible()
    page.keyboard.press("j")
    with page.expect_navigation():
        page.keyboard.press("3")
    assert marks_of(output) == [(0, "unsure", "")]
    assert page.wrong == []
    assert all(url.startswith(page.base) for url in page.asked)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_of_rows_is_accessible(open_page, output, scheme):
    page = open_page(output)
    with page.expect_navigation():
        page.locator("#row-0").get_by_role("button", name="Unsure").click()
    page.emulate_media(color_scheme=scheme)
    page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text())
    found = page.evaluate("axe.run()")["violations"]
    assert [
        (one["id"], one["nodes"][0]["html"][:200])
        for one in found
        if one["impact"] in ("serious", "critical")
    ] == []


def test_the_page_of_rows_fits_a_narrow_screen(open_page, output):
    page = open_page(output)
    page.set_viewport_size({"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
