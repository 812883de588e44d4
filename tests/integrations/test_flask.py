"""A Flask application's client: by its settings, at first use, within the time of a web request; its commands
and its health page."""

from __future__ import annotations

import gc
import html
import json
import os
import re
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask, abort, request
from signed_events import OTHER_SECRET, SECRET, body_of, headers_of

from smartbatch import Answer, ConfigError, Request, RequestTimeout
from smartbatch.integrations.flask import (
    Smartbatch,
    blueprint,
    current_smartbatch,
    dashboard_blueprint,
    webhook_blueprint,
)
from smartbatch.jobs.store import open_store

AppOf = Callable[..., Flask]


@pytest.fixture
def app_of(tmp_path):
    made: list[Flask] = []

    def make(hooks: Any = (), **settings: Any) -> Flask:
        app = Flask("shop")
        given = {"model": "sim:demo", "store": str(tmp_path / "jobs.db"), **settings}
        app.config.update({f"SMARTBATCH_{name.upper()}": value for name, value in given.items()})
        Smartbatch(app, preprocess=hooks)
        app.register_blueprint(blueprint)
        made.append(app)
        return app

    yield make
    for app in made:
        if app.config["SMARTBATCH_MODEL"] is not None:
            with app.app_context():
                current_smartbatch.stop(timeout=0)


def test_settings_of_the_application_are_those_of_the_client(app_of):
    app = app_of(parallelism=7, exit_grace="3s")
    with app.app_context():
        assert current_smartbatch.config.parallelism == 7
        assert current_smartbatch.config.exit_grace == 3


def test_the_environment_wins_over_the_application(app_of, monkeypatch):
    monkeypatch.setenv("SMARTBATCH_PARALLELISM", "3")
    monkeypatch.setenv("SMARTBATCH_MODEL", "sim:other")
    with app_of(parallelism=7).app_context():
        assert current_smartbatch.config.parallelism == 3
        assert current_smartbatch.model == "other"


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"paralelism": 2}, "app.config: unknown setting or parameter paralelism; did you mean parallelism?"),
        ({"parallelism": 0}, "app.config: parallelism (given as a mapping) = 0 is out of range: 1 to 1024"),
        ({"web_timeout": "soon"}, "app.config: web_timeout = 'soon' is not a duration"),
    ],
)
def test_what_cannot_be_is_refused_when_the_application_is_made(settings, error, app_of):
    with pytest.raises(ConfigError) as raised:
        app_of(**settings)
    assert str(raised.value).startswith(error)


def test_a_model_is_needed_at_the_first_use_only(app_of):
    app = app_of(model=None)
    with app.app_context(), pytest.raises(ConfigError, match=r"app\.config has no model"):
        current_smartbatch.submit("a")
    reply = app.test_client().get("/smartbatch/health")
    assert (reply.status_code, reply.json["problem"]) == (503, "settings")


def test_an_application_without_one_says_so():
    with Flask("bare").app_context(), pytest.raises(RuntimeError, match="init_app"):
        current_smartbatch.submit("a")


def test_making_an_application_makes_no_file(app_of, tmp_path):
    app_of()
    assert list(tmp_path.iterdir()) == []


def test_health_says_how_the_client_of_the_process_is(app_of, tmp_path):
    reply = app_of().test_client().get("/smartbatch/health")
    assert reply.status_code == 200
    assert reply.json == {
        "ok": True,
        "problem": None,
        "process": os.getpid(),
        "model": "sim:demo",
        "waiting": 0,
        "in_flight": 0,
    }


def test_health_tells_of_a_store_that_cannot_be_used(app_of, tmp_path):
    reply = app_of(store=str(tmp_path)).test_client().get("/smartbatch/health")  # a folder
    assert (reply.status_code, reply.json["problem"]) == (503, "store")


def timeouts_in_a_view(app_of: AppOf, act: Callable[[], object], **settings: Any) -> list[float | None]:
    seen: list[float | None] = []

    def answered(request: Request) -> Answer:
        seen.append(request.timeout)
        return Answer("fine")

    app = app_of([answered], **settings)

    @app.get("/")
    def view() -> str:
        act()
        return "done"

    assert app.test_client().get("/").text == "done"
    return seen


LIMITED: dict[str, Callable[[], object]] = {
    "one": lambda: current_smartbatch.submit("a").result(),
    "urgent": lambda: current_smartbatch.submit_urgent("a", timeout="2h").result(),
    "a request that has a longer one": lambda: current_smartbatch.submit(Request("a", timeout=900)).result(),
    "a list": lambda: current_smartbatch.generate(["a"]),
}


@pytest.mark.parametrize("act", LIMITED.values(), ids=list(LIMITED))
def test_what_is_left_of_a_web_request_is_the_time_of_what_it_waits_for(act, app_of):
    (timeout,) = timeouts_in_a_view(app_of, act, web_timeout="200s")
    assert timeout is not None
    assert 0 < timeout < 199


FREE: dict[str, tuple[Callable[[], object], float | None]] = {
    "a time-out of its own that is shorter": (lambda: current_smartbatch.submit("a", timeout=5).result(), 5),
    "a request that has a shorter one": (
        lambda: current_smartbatch.submit(prompt=Request("a", timeout=5)).result(),
        5,
    ),
    "work for later": (lambda: current_smartbatch.submit_background("a").result(), None),
    "a list with a deadline": (lambda: current_smartbatch.generate(["a"], deadline="1h"), None),
}


@pytest.mark.parametrize(("act", "expected"), FREE.values(), ids=list(FREE))
def test_what_says_its_own_time_keeps_it(act, expected, app_of):
    assert timeouts_in_a_view(app_of, act, web_timeout="200s") == [expected]


@pytest.mark.parametrize("timeout", [5, 900])
@pytest.mark.parametrize("act", [LIMITED["one"], LIMITED["a list"]], ids=["one", "a list"])
def test_a_shorter_request_timeout_is_kept(act, timeout, app_of):
    (found,) = timeouts_in_a_view(app_of, act, web_timeout="200s", request_timeout=timeout)
    assert found is not None
    assert found == timeout if timeout < 199 else 0 < found < 199


def test_whoever_waits_for_a_job_does_so_within_the_limit(app_of):
    app = app_of(model="sim:demo?batch_seconds=600", web_timeout="1.05s")

    @app.get("/")
    def view() -> str:
        with pytest.raises(TimeoutError):
            current_smartbatch.submit_and_wait(["a"], strategy="batch")
        return "done"

    assert app.test_client().get("/").text == "done"


def test_a_request_timeout_does_not_limit_the_wait_for_a_job(app_of):
    batches = {"model": "sim:demo?batch_seconds=0.2", "batch_poll_interval": 0.05}
    app = app_of(**batches, web_timeout="30s", request_timeout=0.1)

    @app.get("/")
    def view() -> str:
        return current_smartbatch.submit_and_wait(["a"], strategy="batch")[0].text or ""

    assert "answer" in app.test_client().get("/").text


def test_a_web_request_whose_time_is_over_asks_nothing(app_of):
    def act() -> None:
        with pytest.raises(
            RequestTimeout, match="no time is left for a request: the web request's time limit is 1 s"
        ):
            current_smartbatch.submit("a")

    assert timeouts_in_a_view(app_of, act, web_timeout="1s") == []


@pytest.mark.full
def test_commands_have_the_settings_of_the_application(app_of, tmp_path):
    (tmp_path / "rows.txt").write_text("one\ntwo\n")
    runner = app_of().test_cli_runner()
    plan = runner.invoke(args=["smartbatch", "plan", str(tmp_path / "rows.txt"), "--json"])
    assert plan.exit_code == 0, plan.output
    assert json.loads(plan.output)["requests"] == 2
    jobs = runner.invoke(args=["smartbatch", "jobs"])
    assert f"there is no store at {tmp_path / 'jobs.db'} yet" in jobs.output


def test_a_command_says_what_it_takes(app_of):
    said = app_of().test_cli_runner().invoke(args=["smartbatch", "run", "--help"])
    assert "usage: flask smartbatch run" in said.output


@pytest.mark.full
def test_options_of_the_provider_go_with_its_model(app_of, tmp_path):
    (tmp_path / "rows.txt").write_text("one\n")
    app = app_of(provider_options={"unheard_of": 1})
    rows = str(tmp_path / "rows.txt")
    refused = app.test_cli_runner().invoke(args=["smartbatch", "plan", rows])
    assert (refused.exit_code, "unheard_of" in refused.output) == (2, True)
    assert app.test_cli_runner().invoke(args=["smartbatch", "plan", rows, "--model", "sim:x"]).exit_code == 0
    app.config["SMARTBATCH_MODEL"] = None


SAME_PAGE = {"Sec-Fetch-Site": "same-origin"}


def test_the_dashboard_has_the_jobs_of_the_application_at_its_place(app_of):
    app = app_of()
    app.register_blueprint(dashboard_blueprint(lambda _: "read", url_prefix="/inside/jobs"))
    with app.app_context():
        job = current_smartbatch.submit_batch(["x"] * 3, key="of the application", strategy="individual")
    browser = app.test_client()
    page = browser.get("/inside/jobs/jobs").text
    assert "of the application" in page
    links = set(re.findall(r'(?:href|src)="([^"#]+)"', page))
    assert links
    assert all(link.startswith("/inside/jobs/") for link in links)
    assert [browser.get(html.unescape(link)).status_code for link in sorted(links)] == [200] * len(links)
    assert job.id in browser.get(f"/inside/jobs/jobs/{job.id}").text
    assert browser.get("/inside/jobs").location == "http://localhost/inside/jobs/"


def test_the_dashboard_is_that_of_the_client_an_application_has_now(tmp_path):
    app = Flask("shop")
    app.register_blueprint(dashboard_blueprint(lambda _: "read"))
    for number in range(2):
        app.config.update(SMARTBATCH_MODEL="sim:demo", SMARTBATCH_STORE=str(tmp_path / f"{number}.db"))
        Smartbatch().init_app(app)
        with app.app_context():
            current_smartbatch.submit_batch(["x"], key=f"shop-{number}", strategy="individual").wait()
            current_smartbatch.stop()
        page = app.test_client().get("/smartbatch/dashboard/jobs").text
        assert set(re.findall(r"\bshop-\d", page)) == {f"shop-{number}"}


@pytest.mark.full
def test_applications_may_share_a_blueprint(tmp_path):
    pages = dashboard_blueprint(lambda _: "read")

    def key_seen_in(number: int) -> tuple[str, weakref.ref[Any]]:
        app = Flask("shop")
        app.config.update(SMARTBATCH_MODEL="sim:demo", SMARTBATCH_STORE=str(tmp_path / f"{number}.db"))
        Smartbatch(app)
        app.register_blueprint(pages)
        with app.app_context():
            current_smartbatch.submit_batch(["x"], key=f"shop-{number}", strategy="individual").wait()
            current_smartbatch.stop()
            client = weakref.ref(current_smartbatch._get_current_object())
        keys = set(re.findall(r"\bshop-\d", app.test_client().get("/smartbatch/dashboard/jobs").text))
        return ",".join(keys), client

    seen = [key_seen_in(number) for number in range(2)]
    gc.collect()
    assert [(keys, client()) for keys, client in seen] == [("shop-0", None), ("shop-1", None)]


def test_the_rule_of_access_is_asked_within_the_web_request(app_of):
    def access(environ: dict[str, Any]) -> Any:
        user = request.args.get("user")
        if user is None:
            abort(401)
        environ["REMOTE_USER"] = user
        return {"ada": "all", "bob": "read"}.get(user)

    app = app_of()
    app.register_blueprint(dashboard_blueprint(access))
    browser, statuses = app.test_client(), []
    for asked in ("", "?user=ada", "?user=bob", "?user=eve"):
        looked = browser.get(f"/smartbatch/dashboard/jobs{asked}").status_code
        acted = browser.post(f"/smartbatch/dashboard/action/no-such{asked}", headers=SAME_PAGE).status_code
        statuses.append((looked, acted))
    assert statuses == [(401, 401), (200, 404), (200, 403), (403, 403)]
    assert browser.post("/smartbatch/dashboard/action/no-such?user=ada").status_code == 403  # of another page


def test_the_dashboard_needs_no_model(app_of):
    app = app_of(model=None)
    app.register_blueprint(dashboard_blueprint(lambda _: "read"))
    assert app.test_client().get("/smartbatch/dashboard/").status_code == 200


def test_the_dashboard_has_the_queue_of_the_client_of_the_process(app_of):
    app = app_of()
    app.register_blueprint(dashboard_blueprint(lambda _: "read"))
    browser = app.test_client()
    before = browser.get("/smartbatch/dashboard/").text
    with app.app_context():
        current_smartbatch.submit("x").result()
    assert "sim:demo" not in before
    assert "sim:demo" in browser.get("/smartbatch/dashboard/").text


@pytest.mark.parametrize("given", [{}, {"webhook_secret": "whsec_short"}])
def test_webhooks_without_a_valid_secret_are_reported_at_once(given, app_of):
    with pytest.raises(ConfigError, match="webhook secret"):
        app_of(**given).register_blueprint(webhook_blueprint())
    app = Flask("app")
    app.config.update({f"SMARTBATCH_{name.upper()}": value for name, value in given.items()})
    app.register_blueprint(webhook_blueprint())
    with pytest.raises(ConfigError, match="webhook secret"):
        Smartbatch(app)


def test_webhooks_are_received_with_the_secret_of_the_application(app_of, tmp_path):
    app = app_of(webhook_secret=SECRET)
    app.register_blueprint(webhook_blueprint("/hooks"))
    provider, body = app.test_client(), body_of("batch_1")
    signed, forged = (headers_of(body, time.time(), secret) for secret in (SECRET, OTHER_SECRET))
    assert provider.post("/hooks", data=body, headers=signed).text == "stored\n"
    assert provider.post("/hooks", data=body, headers=signed).text == "ignored: received before\n"
    assert provider.post("/hooks", data=body, headers=forged).status_code == 401
    assert provider.get("/hooks").status_code == 405
    store = open_store(str(tmp_path / "jobs.db"))
    assert store.webhook_events.unused(["batch_1"]) == {"batch_1": 1}
    store.close()
