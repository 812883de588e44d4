"""The example applications under real servers, seen by a real browser (G3, G4)."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from browser import browser
from run_script import GUARD, PACKAGE
from web_servers import GRACE, WORKERS, Provider, Running, WebServer, provider, run_server

from smartbatch.testing import answer_for

pytestmark = pytest.mark.full

EXAMPLES = PACKAGE.parent / "examples"
MODEL = "openai:m"


def gunicorn(application: str, folder: str) -> WebServer:
    """Return two workers that are forked after the import, where a process answers several at once."""
    options = ("--bind", "127.0.0.1:0", "--workers", str(WORKERS), "--graceful-timeout", str(GRACE))
    threads = ("--worker-class", "gthread", "--threads", "8", "--preload", "--no-control-socket")
    command = ("gunicorn", application, "--chdir", str(EXAMPLES / folder), *options, *threads)
    return WebServer(f"{folder} under gunicorn", command, at_once=8, forks_after_import=True)


FLASK = gunicorn("app:app", "flask_app")
APPS = [FLASK]
ANY_APP = pytest.mark.parametrize("app", APPS, ids=[app.name for app in APPS])


@contextlib.contextmanager
def run_app(app: WebServer, folder: Path, service: Provider) -> Iterator[Running]:
    """Run an example with the emulator behind it,."""
    settings = {
        "FLASK_SMARTBATCH_MODEL": MODEL,
        "SMARTBATCH_STORE": str(folder / "jobs.db"),
        "SMARTBATCH_BATCH_POLL_INTERVAL": "0.1s",
        "SMARTBATCH_EXIT_GRACE": "5s",
    }
    with run_server(app, service.environ | settings, folder) as running:
        yield running


@pytest.fixture(scope="module")
def quick() -> Iterator[Provider]:
    with provider(0.05) as running:
        yield running


def posted(running: Running, path: str, body: str) -> str:
    with urlopen(f"http://127.0.0.1:{running.port}{path}", body.encode(), timeout=GUARD) as answer:
        return str(answer.read().decode())


def health(running: Running) -> dict[str, Any]:
    with urlopen(f"http://127.0.0.1:{running.port}/smartbatch/health", timeout=GUARD) as answer:
        return dict(json.load(answer))


@ANY_APP
def test_a_form_starts_a_job_and_its_page_shows_the_results(
    app: WebServer, quick: Provider, tmp_path: Path
) -> None:
    """Whichever worker is asked for the progress, the page follows the job to its end."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    with run_app(app, tmp_path, quick) as running, browser(tmp_path) as page:
        page.get(f"http://127.0.0.1:{running.port}/")
        page.find_element(By.NAME, "texts").send_keys("one\n<b>two</b>\n\nthree")
        page.find_element(By.TAG_NAME, "button").click()
        WebDriverWait(page, GUARD).until(lambda _: page.find_elements(By.ID, "results"))
        assert "/jobs/job-" in page.current_url
        cells = [cell.text for cell in page.find_elements(By.CSS_SELECTOR, "#results td:last-child")]
        assert cells == [answer_for(f"Summarise: {text}", "m") for text in ("one", "<b>two</b>", "three")]
        assert "3 of 3 done" in page.find_element(By.CSS_SELECTOR, "[role=status]").text


@ANY_APP
def test_an_empty_form_starts_nothing(app: WebServer, quick: Provider, tmp_path: Path) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    with run_app(app, tmp_path, quick) as running, browser(tmp_path) as page:
        wait = WebDriverWait(page, GUARD)
        page.get(f"http://127.0.0.1:{running.port}/")
        page.find_element(By.TAG_NAME, "button").click()
        (alert,) = wait.until(lambda _: page.find_elements(By.CSS_SELECTOR, "[role=alert]"))
        assert alert.text == "Write at least one line."
        assert not (tmp_path / "jobs.db").exists()


@ANY_APP
def test_each_worker_has_a_client_of_its_own(app: WebServer, quick: Provider, tmp_path: Path) -> None:
    """None is the parent's, which imported the application."""
    with run_app(app, tmp_path, quick) as running, ThreadPoolExecutor(16) as pool:
        asked = [f"question {n}" for n in range(48)]
        assert list(pool.map(lambda text: posted(running, "/ask", text), asked)) == [
            answer_for(text, "m") for text in asked
        ]
        told = list(pool.map(lambda _: health(running), range(48)))
        assert all(one["ok"] and one["model"] == MODEL for one in told)
        assert running.process.pid not in {one["process"] for one in told}


@ANY_APP
def test_a_stop_answers_what_is_in_flight(app: WebServer, tmp_path: Path) -> None:
    with (
        provider(1.0) as slow,
        run_app(app, tmp_path, slow) as running,
        ThreadPoolExecutor(4) as pool,
    ):
        asked = [f"question {n}" for n in range(4)]
        answers = [pool.submit(posted, running, "/ask", text) for text in asked]
        slow.wait_for(len(asked))
        running.signal(signal.SIGTERM)
        assert running.ends_within(GUARD), running.log.read_text()
        assert [answer.result() for answer in answers] == [answer_for(text, "m") for text in asked]
        assert slow.received() == len(asked)
