"""The dashboard in Chromium: pages over 10,000 jobs, live news of another process, actions, accessibility."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import statistics
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from benchmarks.dashboard import Served, fill
from smartbatch.jobs.store import open_store
from tests.jobs.stores import new_items, new_job

pytestmark = [
    pytest.mark.full,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # pipes of the driver
]
JOBS = 10_000
PAGES = {"now": "/", "jobs": "/jobs", "job": "/jobs/job-0000000000009999", "decisions": "/decisions"}
PAGES |= {"models": "/models", "errors": "/errors"}
PICTURES = Path(__file__).parents[2] / "docs" / "images"
"""The pictures of the documentation; ``DASHBOARD_PICTURES``, the address of a dashboard with its token, has
them made anew, and of its newest job."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = str(tmp_path_factory.mktemp("browser") / "jobs.db")
    fill(place, JOBS, 20 * JOBS)
    return place


@pytest.fixture(scope="module")
def served(place):
    with Served(place) as server:
        yield server


@pytest.fixture
def page(chromium, served):
    context = chromium.new_context()
    tab = context.new_page()
    tab.asked, tab.wrong = [], []
    tab.on("request", lambda request: tab.asked.append(request.url))
    tab.on("console", lambda told: tab.wrong.append(told.text) if told.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: tab.wrong.append(str(error)))
    tab.goto(f"http://{served.address}/?token={served.token}")
    yield tab
    context.close()


def at(served: Served, path: str) -> str:
    return f"http://{served.address}{path}"


@pytest.mark.parametrize("name", PAGES)
def test_each_page_loads_and_asks_no_other_host(page, served, name):
    page.goto(at(served, PAGES[name]))
    assert page.locator("main h1").inner_text() != ""
    assert page.locator("main section").count() >= 1
    page.locator("#news", has_text="Updates live").wait_for()
    assert all(url.startswith(f"http://{served.address}/") for url in page.asked)
    assert [told for told in page.wrong if "favicon" not in told] == []
    assert "token" not in page.url


@pytest.mark.parametrize("name", PAGES)
def test_each_page_is_accessible(page, served, name):
    source = files("axe_playwright_python").joinpath("axe.min.js").read_text()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.goto(at(served, PAGES[name]))
        page.evaluate(source)
        found = page.evaluate("axe.run()")["violations"]
        serious = [one for one in found if one["impact"] in ("serious", "critical")]
        told = [(one["id"], [node["html"][:200] for node in one["nodes"][:3]]) for one in serious]
        assert told == []


@pytest.mark.parametrize("name", PAGES)
def test_each_page_is_complete_without_javascript(chromium, served, name):
    context = chromium.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto(f"http://{served.address}/?token={served.token}")
    tab.goto(at(served, PAGES[name]))
    assert tab.locator("main section").count() >= 1
    assert "without it, reload the page" in tab.locator("#news").inner_text()
    context.close()


@pytest.mark.parametrize("name", PAGES)
def test_no_page_is_wider_than_a_narrow_screen(page, served, name):
    page.set_viewport_size({"width": 360, "height": 740})
    page.goto(at(served, PAGES[name]))
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    wider = page.evaluate(WIDER)
    assert wider or name not in ("now", "job")
    assert [told for told, is_reached in wider if not is_reached] == []


def test_news_of_another_process_are_seen_without_a_reload(page, served, place):
    with page.expect_request(lambda request: "/live?" in request.url):
        page.goto(at(served, "/jobs"))
    page.asked.clear()
    store = open_store(place)
    store.jobs.accept(new_job("job-of-another-pro", key="accepted just now"), new_items(3))
    page.get_by_text("accepted just now").wait_for()
    with sqlite3.connect(place) as other:
        other.execute("UPDATE job SET succeeded = 2 WHERE id = 'job-of-another-pro'")
    other.close()
    page.get_by_text("2 of 3", exact=True).wait_for()
    assert not [url for url in page.asked if "/news?" in url]
    store.close()


WIDER = """[...document.querySelectorAll("main *")]
    .filter(one => one.scrollWidth > one.clientWidth && getComputedStyle(one).overflowX === "auto")
    .map(one => [one.outerHTML.slice(0, 80), one.tabIndex === 0 && one.ariaLabel !== null])"""
OTHER = """
import sys, time
from smartbatch import BatchingClient
with BatchingClient("sim:demo?batch_seconds=600", store=sys.argv[1], shared="off") as client:
    for key in sys.stdin:
        client.submit_batch(["a", "b"], key=key.strip())
        print(time.time(), flush=True)
"""
SEEN = """key => new Promise(seen => {
    const look = () => document.body.innerText.includes(key) && seen(Date.now() / 1000);
    new MutationObserver(look).observe(document.body, {childList: true, subtree: true, characterData: true});
    look();
})"""


@pytest.mark.parametrize("path", ["/", "/jobs"])
def test_changes_of_other_processes_appear_within_two_seconds(page, served, place, path):
    page.goto(at(served, path))
    page.locator("#news", has_text="Updates live").wait_for()
    delays = []
    command = (sys.executable, "-c", OTHER, place)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        for number in range(5):
            key = f"made elsewhere for {path} {number}"
            page.evaluate(f"window.seen = ({SEEN})({json.dumps(key)}); 0")
            print(key, file=other.stdin, flush=True)
            made = float(other.stdout.readline())
            delays.append(page.evaluate("window.seen") - made)
        other.stdin.close()
        other.wait(60)
    assert statistics.median(delays) < 2.0, delays


def test_a_hidden_page_asks_nothing(page, served):
    page.goto(at(served, "/jobs"))
    page.locator("#news", has_text="Updates live").wait_for()
    hide = "Object.defineProperty(document, 'hidden', {value: %s, configurable: true});"
    show = "document.dispatchEvent(new Event('visibilitychange'))"
    page.evaluate((hide % "true") + show)
    page.asked.clear()
    with page.expect_request(lambda request: "/live?" in request.url):
        page.evaluate((hide % "false") + show)
    assert len([url for url in page.asked if "/live?" in url]) == 1


def test_where_no_stream_is_free_the_page_asks_now_and_then(chromium, served):
    context = chromium.new_context()
    tab = context.new_page()
    tab.route("**/live?*", lambda route: route.fulfill(status=503, body="no"))
    tab.goto(f"http://{served.address}/?token={served.token}")
    with tab.expect_response(lambda response: "/news?" in response.url and response.status == 200):
        tab.reload()
    context.close()


def test_what_is_open_stays_open_and_keeps_the_focus(page, served, place):
    page.goto(at(served, "/jobs/job-0000000000009999"))
    page.locator("#progress details summary").first.click()
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    with sqlite3.connect(place) as other:
        other.execute("UPDATE job SET succeeded = succeeded + 5 WHERE no = 9999")
    other.close()
    page.get_by_text("15 of 20").first.wait_for()
    assert page.locator("#progress details").first.get_attribute("open") is not None
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"


def test_a_table_is_sorted_by_any_column_and_stays_sorted(page, served, place):
    page.goto(at(served, "/errors"))
    cells = page.locator("#kinds tbody tr td:last-child")

    def counts() -> list[int]:
        return [int(text.replace(",", "")) for text in cells.all_inner_texts()]

    expected = sorted(counts())
    page.get_by_role("button", name="failed").first.click()
    assert counts() == expected
    with sqlite3.connect(place) as other:
        other.execute("UPDATE error_group SET count = count + 1000000 WHERE kind = 'rate_limit'")
    other.close()
    page.locator("#kinds td", has_text=re.compile(r"\d,\d{3},\d{3}")).first.wait_for()
    assert counts() == sorted(counts())
    assert page.locator("#kinds th", has_text="failed").get_attribute("aria-sort") == "ascending"


def test_the_keyboard_reaches_the_content_first(page, served):
    page.goto(at(served, "/jobs"))
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"


def test_a_filter_and_its_pages_work_by_keyboard(page, served):
    page.goto(at(served, "/jobs"))
    page.get_by_label("State").select_option("held")
    page.get_by_role("button", name="Show").press("Enter")
    page.wait_for_url("**/jobs?state=held*")
    first = page.locator("#jobs tbody tr").first.inner_text()
    page.get_by_role("link", name="Older jobs").press("Enter")
    page.wait_for_url("**before=*")
    assert page.locator("#jobs tbody tr").first.inner_text() != first


def test_an_action_is_done_with_the_token(page, served, place):
    page.goto(at(served, "/jobs/job-0000000000009998"))
    page.get_by_label("Deadline from now").fill("3h")
    page.get_by_role("button", name="Set deadline").click()
    assert "The deadline of job job-0000000000009998 is in 3h" in page.get_by_role("status").inner_text()
    page.get_by_role("link", name="Back").click()
    page.wait_for_url("**/jobs/job-0000000000009998")
    assert "in 3 h" in page.locator("#job").inner_text()
    store = open_store(place)
    assert [
        (action.name, action.by) for action in store.controls.latest(job_id="job-0000000000009998", limit=100)
    ] == [("set_deadline", "token")]
    store.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures(page, served, tmp_path, scheme):
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    other, pages = os.environ.get("DASHBOARD_PICTURES"), PAGES
    base = at(served, "")
    if other is not None:
        page.goto(other)
        base = other.partition("/?")[0]
        page.goto(f"{base}/jobs")
        pages = PAGES | {"job": page.locator("#jobs tbody a").first.get_attribute("href")}
    for width, names in ((1100, pages), (360, ["now"])):
        page.set_viewport_size({"width": width, "height": 900})
        for name in names:
            page.goto(base + pages[name])
            page.locator("#news", has_text="Updates live").wait_for()
            file = f"dashboard-{name}-{scheme}{'-narrow' if width < 500 else ''}.png"
            kept = PICTURES / file
            wanted = other is not None and kept.exists()
            picture = page.screenshot(path=str(kept if wanted else tmp_path / file))
            assert picture.startswith(b"\x89PNG")
