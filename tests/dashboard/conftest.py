"""What tests of the dashboard share: a store with jobs, and somebody who looks at it."""

from __future__ import annotations

import os

import pytest

from smartbatch.dashboard import app
from tests.dashboard.visits import LOCAL, Visitor
from tests.jobs.stores import Bench


@pytest.fixture
def shelf(tmp_path):
    made = Bench("sqlite", str(tmp_path / "jobs.db"), tmp_path)
    yield made
    made.close()


@pytest.fixture
def opened(shelf):
    return shelf.open()


@pytest.fixture
def visitor(shelf):
    return Visitor(app(store=shelf.place, shared="off", access=LOCAL))


@pytest.fixture
def reader_of(shelf):
    def make(*, show_content: bool = False) -> Visitor:
        board = app(store=shelf.place, shared="off", access=lambda environ: "read", show_content=show_content)
        return Visitor(board)

    return make


CHROMIUM = ("/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome")


@pytest.fixture(scope="module")
def chromium():
    from playwright.sync_api import sync_playwright

    program = next((path for path in CHROMIUM if os.path.exists(path)), None)
    assert program is not None, "Chromium is not installed: apt-get install chromium"
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()
