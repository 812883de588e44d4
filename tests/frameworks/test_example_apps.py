"""The example applications under real servers, seen by a real browser (G3, G4)."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from browser import browser
from run_script import GUARD, PACKAGE
from web_servers import WORKERS, Provider, Running, WebServer, provider, run_server, runs_on

from smartbatch.testing import answer_for

pytestmark = pytest.mark.full

EXAMPLES = PACKAGE.parent / "examples"
MODEL = "openai:m"


def gunicorn(application: str, folder: str, kind: str, *more: str) -> WebServer:
    options = ("--bind", "127.0.0.1:0", "--workers", str(WORKERS), "--graceful-timeout", str(int(GUARD)))
    forks = ("--preload", "--no-control-socket", "--worker-class", kind, *more)
    command = ("gunicorn", application, "--chdir", str(EXAMPLES / folder), *options, *forks)
    return WebServer(f"{folder} under gunicorn -k {kind}", command, at_once=8, forks_after_import=True)


FLASK = gunicorn("app:app", "flask_app", "gthread", "--threads", "8")
DJANGO = gunicorn("summaries.wsgi", "django_app", "gthread", "--threads", "8")
GEVENT = gunicorn("app:app", "flask_app", "gevent")
APPS = [FLASK, DJANGO, GEVENT]
ANY_APP = pytest.mark.parametrize("app", APPS, ids=[app.name for app in APPS])


@contextlib.contextmanager
def run_app(app: WebServer, folder: Path, service: Provider) -> Iterator[Running]:
    settings = {
        "FLASK_SMARTBATCH_MODEL": MODEL,
        "FLASK_SMARTBATCH_STORE": str(folder / "flask.smartbatch.db"),
        "MODEL": MODEL,
        "PYTHONUNBUFFERED": "1",  # the server says where it listens
        "DATABASE": str(folder / "django.sqlite3"),
        "SMARTBATCH_BATCH_POLL_INTERVAL": "0.1s",
        "SMARTBATCH_EXIT_GRACE": "5s",
        "DASHBOARD_PASSWORD": "secret",
    }
    with run_server(app, service.environ | settings, folder) as running:
        yield running


@pytest.fixture(scope="module")
def quick():
    with provider(0.05) as running:
        yield running


def posted(running: Running, path: str, body: str) -> str:
    with urlopen(f"http://127.0.0.1:{running.port}{path}", body.encode(), timeout=GUARD) as answer:
        return str(answer.read().decode())


def health(running: Running) -> dict[str, Any]:
    with urlopen(f"http://127.0.0.1:{running.port}/smartbatch/health", timeout=GUARD) as answer:
        return dict(json.load(answer))


@ANY_APP
def test_a_form_starts_jobs_and_their_pages_show_the_results(app, quick, tmp_path):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    with run_app(app, tmp_path, quick) as running, browser(tmp_path) as page:
        wait = WebDriverWait(page, GUARD)

        def start(texts: list[str]) -> None:
            page.get(f"http://127.0.0.1:{running.port}/")
            page.find_element(By.NAME, "texts").send_keys("\n".join(texts))
            page.find_element(By.TAG_NAME, "button").click()

        start([""])
        (alert,) = wait.until(lambda _: page.find_elements(By.CSS_SELECTOR, "[role=alert]"))
        assert alert.text == "Write at least one line."
        assert not list(tmp_path.glob("*.smartbatch.db"))
        for texts in (["one", "<b>two</b>", "three"], [f"line {n}" for n in range(12)]):
            start(texts)
            wait.until(lambda _: page.find_elements(By.ID, "results"))
            cells = [cell.text for cell in page.find_elements(By.CSS_SELECTOR, "#results td:last-child")]
            assert cells == [answer_for(f"Summarise: {text}", "m") for text in texts]
            assert f"{len(texts)} of {len(texts)} done" in page.find_element(By.TAG_NAME, "body").text
        assert len(list(tmp_path.glob("*.smartbatch.db"))) == 1


def test_the_admin_lists_jobs_and_shows_one(quick, tmp_path):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    with run_app(DJANGO, tmp_path, quick) as running, browser(tmp_path) as page:
        wait = WebDriverWait(page, GUARD)
        superuser(tmp_path)
        job = start_job(page, f"http://127.0.0.1:{running.port}")
        log_in(page, f"http://127.0.0.1:{running.port}")
        (jobs,) = wait.until(lambda _: page.find_elements(By.LINK_TEXT, "Jobs"))
        assert not page.find_elements(By.CSS_SELECTOR, ".model-storedjob .addlink")
        jobs.click()
        (link,) = wait.until(lambda _: page.find_elements(By.LINK_TEXT, job))
        assert "2 of 2" in page.find_element(By.ID, "result_list").text
        link.click()
        (shown,) = wait.until(lambda _: page.find_elements(By.TAG_NAME, "pre"))
        assert "2 completed" in shown.text
        assert not page.find_elements(By.CSS_SELECTOR, "#content [type=submit]")


BOARD = "/smartbatch/dashboard/"


def start_job(page: Any, address: str) -> str:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    page.get(f"{address}/")
    page.find_element(By.NAME, "texts").send_keys("one\ntwo")
    page.find_element(By.TAG_NAME, "button").click()
    WebDriverWait(page, GUARD).until(lambda _: page.find_elements(By.ID, "results"))
    return str(page.current_url.rpartition("/")[2])


@pytest.mark.parametrize("app", [FLASK, GEVENT], ids=["gthread", "gevent"])
def test_the_flask_application_has_a_dashboard(app, quick, tmp_path):
    from selenium.webdriver.common.by import By

    with run_app(app, tmp_path, quick) as running, browser(tmp_path) as page:
        address = f"127.0.0.1:{running.port}"
        with pytest.raises(HTTPError, match="401"):
            urlopen(f"http://{address}{BOARD}", timeout=GUARD)
        job = start_job(page, f"http://{address}")
        page.get(f"http://me:secret@{address}{BOARD}jobs")
        assert page.find_element(By.TAG_NAME, "h1").text == "Jobs"
        page.find_element(By.PARTIAL_LINK_TEXT, job).click()
        assert page.current_url.endswith(f"{address}{BOARD}jobs/{job}")
        known = {"Authorization": f"Basic {base64.b64encode(b'me:secret').decode()}"}
        asked = Request(f"http://{address}{BOARD}live?page=/jobs", headers=known)
        with urlopen(asked, timeout=GUARD) as news:
            assert news.headers["Content-Type"] == "text/event-stream"
            assert news.readline()


def test_the_django_project_has_a_dashboard(quick, tmp_path):
    from selenium.webdriver.common.by import By

    with run_app(DJANGO, tmp_path, quick) as running, browser(tmp_path) as page:
        address = f"http://127.0.0.1:{running.port}"
        superuser(tmp_path)
        job = start_job(page, address)
        with pytest.raises(HTTPError, match="403"):
            urlopen(f"{address}{BOARD}", timeout=GUARD)
        log_in(page, address)
        page.get(f"{address}{BOARD}jobs")
        assert page.find_element(By.TAG_NAME, "h1").text == "Jobs"
        page.find_element(By.PARTIAL_LINK_TEXT, job).click()
        assert page.current_url == f"{address}{BOARD}jobs/{job}"


def superuser(folder: Path) -> None:
    manage(folder, "migrate")
    manage(folder, "createsuperuser", "--noinput", "--username=me", "--email=me@example.com")


def log_in(page: Any, address: str) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    page.get(f"{address}/admin/")
    page.find_element(By.NAME, "username").send_keys("me")
    page.find_element(By.NAME, "password").send_keys("secret")
    page.find_element(By.CSS_SELECTOR, "[type=submit]").click()
    WebDriverWait(page, GUARD).until(lambda page: page.find_elements(By.ID, "logout-form"))


def manage(folder: Path, *arguments: str) -> None:
    environ = {
        **os.environ,
        "DATABASE": str(folder / "django.sqlite3"),
        "DJANGO_SUPERUSER_PASSWORD": "secret",
    }
    environ["PYTHONPATH"] = os.pathsep.join((str(PACKAGE.parent), *sys.path))
    command = [sys.executable, str(EXAMPLES / "django_app" / "manage.py"), *arguments]
    subprocess.run(command, env=environ, cwd=folder, check=True, capture_output=True, timeout=2 * GUARD)


def test_the_reloader_of_runserver_starts_one_client(quick, tmp_path):
    shutil.copytree(EXAMPLES / "django_app", tmp_path / "project")
    command = ("python", str(tmp_path / "project/manage.py"), "runserver", "127.0.0.1:PORT")
    with run_app(WebServer("runserver", command), tmp_path, quick) as running:
        processes = set()
        for text in ("before", "after"):
            told = until_it_answers(running, processes)
            assert posted(running, "/ask", text) == answer_for(text, "m")
            assert who_has_the_store(running) == [told["process"]]
            processes.add(told["process"])
            (tmp_path / "project/summaries/views.py").touch()
        assert running.process.pid not in processes
        assert len(list(Path(f"/proc/{running.process.pid}/task").iterdir())) == 1


def who_has_the_store(running: Running) -> list[int]:
    parent = running.process.pid
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [process for process in (parent, *map(int, children)) if has_the_store(process)]


def has_the_store(process: int) -> bool:
    for file in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if os.readlink(file).endswith(".smartbatch.db"):
                return True
    return False


def until_it_answers(running: Running, but: set[int]) -> dict[str, Any]:
    until = time.monotonic() + GUARD
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):  # it ends in the middle
            told = health(running)
            if told["process"] not in but:
                return told
        assert runs_on(running.process), running.log.read_text()
        assert time.monotonic() < until, running.log.read_text()
