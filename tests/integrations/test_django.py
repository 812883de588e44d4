"""A Django project's client: by its settings, checks and databases."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from django.core import checks
from django.db import connection, connections, transaction
from django.test import AsyncClient, Client, RequestFactory, override_settings
from docs.pages import ROOT, Page
from integrations.django_project import Project, acts, database, project
from signed_events import SECRET

from smartbatch import Answer, Request, Result
from smartbatch.integrations.django import closing_connections, get_client
from smartbatch.integrations.django.system_checks import TAG, check_server

__all__ = ["project"]  # a fixture


def found() -> list[tuple[str | None, str]]:
    return [(one.id, one.msg) for one in checks.run_checks(tags=[TAG])]


def test_the_setting_is_that_of_the_client(project):
    project(parallelism=7, system="Be brief.")
    assert get_client().config.parallelism == 7
    assert get_client() is get_client()


def test_hooks_may_be_dotted_paths(project):
    project(preprocess=[f"{__name__}.answered_here"])
    assert get_client().submit("a").result().text == "here"


def answered_here(request: Request) -> Answer:
    return Answer("here")


def test_health_says_how_the_client_of_the_process_is(project):
    reply = Client().get("/smartbatch/health")
    assert (reply.status_code, json.loads(reply.content)["ok"]) == (200, True)
    project(model=None)
    reply = Client().get("/smartbatch/health")
    assert (reply.status_code, json.loads(reply.content)["problem"]) == (503, "settings")


def in_a_view(project: Project, act: Callable[[], object], **given: Any) -> list[float | None]:
    seen: list[float | None] = []

    def answered(request: Request) -> Answer:
        seen.append(request.timeout)
        return Answer("fine")

    project(preprocess=[answered], **given)
    acts[:] = [act]
    assert Client().get("/").content == b"done"
    return seen


def test_what_is_left_of_a_web_request_is_the_time_of_what_it_waits_for(project):
    (timeout,) = in_a_view(project, lambda: get_client().submit("a").result(), web_timeout="200s")
    assert timeout is not None
    assert 0 < timeout < 199
    outside: list[float | None] = []
    project(preprocess=[lambda request: outside.append(request.timeout) or Answer("fine")], web_timeout=200)
    get_client().submit("a").result()
    assert outside == [None]


def test_under_asgi_a_middleware_tells_of_the_time(project):
    seen: list[float | None] = []
    project(preprocess=[lambda request: seen.append(request.timeout) or Answer("fine")], web_timeout=200)
    acts[:] = [lambda: get_client().submit("a").result()]
    middleware = ["smartbatch.integrations.django.time_limits"]

    async def ask() -> list[bytes]:
        client = AsyncClient()
        return [(await client.get(url)).content for url in ("/", "/asynchronous")]

    with override_settings(MIDDLEWARE=middleware):
        assert asyncio.run(ask()) == [b"done", b"fine"]
        assert Client().get("/").content == b"done"
    assert len(seen) == 3
    assert all(timeout is not None and 0 < timeout < 199 for timeout in seen)


def test_a_project_that_is_right_passes_the_checks(project, tmp_path):
    assert found() == []
    assert list(tmp_path.iterdir()) == []


def test_a_setting_that_is_wrong_is_e001(project):
    project(paralelism=3)
    text = "settings.SMARTBATCH: unknown setting or parameter paralelism; did you mean parallelism?"
    assert found() == [("smartbatch.E001", text)]
    with override_settings(SMARTBATCH=None):
        assert [which for which, _ in found()] == ["smartbatch.E001"]


def test_a_missing_key_is_e002(project, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    project(model="openai:gpt-5-mini")
    ((which, text),) = found()
    assert (which, "OPENAI_API_KEY" in text) == ("smartbatch.E002", True)


def test_a_store_that_cannot_be_used_is_e003(project, tmp_path):
    (tmp_path / "file").write_text("not a store")
    for store in (tmp_path, tmp_path / "file" / "jobs.db", tmp_path / "file"):
        project(store=str(store))
        assert [which for which, _ in found()] == ["smartbatch.E003"], store


def test_a_view_for_webhooks_without_a_secret_is_e004(project):
    for secret, problem in ((None, "no webhook secret"), ("whsec_short", "not valid")):
        project(webhook_secret=secret)
        ((which, text),) = found()
        assert (which, problem in text) == ("smartbatch.E004", True)
    with override_settings(ROOT_URLCONF="smartbatch.integrations.django.urls"):  # without that view
        assert found() == []


def test_a_file_for_several_machines_is_w001(project):
    with database("other", ENGINE="django.db.backends.postgresql", NAME="shop", HOST="db.example"):
        ((which, text),) = found()
    assert (which, "db.example" in text) == ("smartbatch.W001", True)


def test_a_limit_that_is_told_twice_is_w002(project, monkeypatch):
    monkeypatch.setenv("SMARTBATCH_MAX_RPM", "60")
    project(max_rpm=600)
    text = (
        "max_rpm is set twice: in settings.SMARTBATCH, and by the variable SMARTBATCH_MAX_RPM, "
        "which takes precedence"
    )
    assert found() == [("smartbatch.W002", text)]
    project(max_rpm=60)
    assert found() == []


def test_settings_are_checked_together_with_the_environment(project, monkeypatch):
    monkeypatch.setenv("SMARTBATCH_RETRY_MAX_DELAY", "100")
    monkeypatch.setenv("SMARTBATCH_PARALLELISM", "2")
    project(retry_initial=90)
    assert found() == []
    project(retry_initial=90, parallelism=3)
    ((which, text),) = found()
    assert (which, text.partition(" ")[0]) == ("smartbatch.W002", "parallelism")


def store_with(**given: Any) -> str | None:
    with database("default", **given), override_settings(SMARTBATCH={"model": "sim:demo"}):
        return get_client().config.store


def test_jobs_are_kept_next_to_the_projects_sqlite(tmp_path):
    assert store_with(NAME=tmp_path / "db.sqlite3") == str(tmp_path / "db.smartbatch.db")


def test_jobs_of_a_project_in_memory_are_in_the_users_own_store():
    assert store_with(NAME=":memory:") is None


POSTGRES = {
    "ENGINE": "django.db.backends.postgresql",
    "NAME": "shop",
    "USER": "me",
    "PASSWORD": "a/b&c d",
    "HOST": "db.example",
    "PORT": 5433,
    "OPTIONS": {"sslmode": "require", "pool": True, "isolation_level": None},
}


def test_jobs_are_kept_on_the_projects_postgresql():
    from smartbatch._database import Address
    from smartbatch.setting import revealed

    store = store_with(**POSTGRES)
    assert store is not None
    address = Address.of(revealed(store))
    assert (
        address.parameters.items()
        >= {
            "dbname": "shop",
            "user": "me",
            "password": "a/b&c d",
            "host": "db.example",
            "port": "5433",
            "sslmode": "require",
        }.items()
    )
    assert "pool" not in address.parameters
    assert "b&c" not in address.place


@pytest.mark.full
def test_jobs_on_the_projects_postgresql_have_connections_of_their_own(postgres_address):
    there = psycopg.conninfo.conninfo_to_dict(postgres_address)
    given = {"NAME": there["dbname"], "USER": there["user"], "HOST": there["host"], "OPTIONS": {}}
    given |= {"PORT": there.get("port", ""), "PASSWORD": there.get("password", "")}
    with database("pg", ENGINE="django.db.backends.postgresql", **given):
        settings_here = {"model": "sim:demo", "database": "pg", "webhook_secret": SECRET}
        with override_settings(SMARTBATCH=settings_here), get_client() as client:
            with transaction.atomic(using="pg"):
                job = client.submit_batch(["a"], strategy="individual")
                transaction.set_rollback(True, using="pg")
            assert job.wait().completed == 1
            assert checks.run_checks(tags=[TAG, checks.Tags.database], databases=["pg"]) == []
            with connections["pg"].cursor() as cursor:
                cursor.execute("SELECT count(*) FROM pg_namespace WHERE nspname = 'smartbatch'")
                assert cursor.fetchone() == (1,)


def test_a_database_that_is_not_there_is_refused(project):
    with override_settings(SMARTBATCH={"model": "sim:demo", "database": "other"}):
        assert found() == [("smartbatch.E001", "settings.SMARTBATCH: DATABASES has no 'other'")]


def test_a_server_is_looked_at_where_checks_may_use_databases(project):
    project(store="postgresql://127.0.0.1:1/none?connect_timeout=1")
    assert found() == []
    assert [one.id for one in check_server(databases=["default"])] == ["smartbatch.E003"]


def test_callbacks_leave_no_connection_open(project, tmp_path):
    opened: list[Any] = []

    def uses_orm(*_: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        opened.append((threading.current_thread().name, connection.connection))

    def saved(result: Result) -> None:
        uses_orm()

    with database("default", NAME=str(tmp_path / "db.sqlite3")):
        project(post_process=saved, observers=[uses_orm])
        future = get_client().submit("a")
        future.add_done_callback(uses_orm)
        future.result()
        get_client().stop()
    ours = [(name, one) for name, one in opened if name.startswith("smartbatch-")]
    assert {name.rstrip("_0123456789") for name, _ in ours} >= {"smartbatch-worker", "smartbatch-callbacks"}
    for _, one in ours:
        with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
            one.execute("SELECT 1")


def test_other_threads_keep_their_connections(monkeypatch):
    closed: list[int] = []
    monkeypatch.setattr("smartbatch.integrations.django.host.close_old_connections", lambda: closed.append(1))
    assert closing_connections(len)("abc") == 3
    assert closed == []
    thread = threading.Thread(target=closing_connections(closed.append), args=(2,), name="smartbatch-worker")
    thread.start()
    thread.join()
    assert closed == [1, 2, 1]


def test_the_parts_of_the_page_run(project):
    page = Page("docs/how-to/django.md", (ROOT / "docs/how-to/django.md").read_text())
    namespace: dict[str, Any] = {}
    for block in page.blocks():
        exec(block.text, namespace)
    assert "smartbatch.integrations.django" in namespace["INSTALLED_APPS"]
    project(**namespace["SMARTBATCH"] | {"model": "sim:demo"})
    requests = RequestFactory()
    answered = namespace["summary"](requests.post("/", "a text", content_type="text/plain"))
    assert (answered.status_code, answered.content != b"") == (200, True)
    started = namespace["start"](requests.post("/", {"texts": "one\ntwo"}))
    assert get_client().job(json.loads(started.content)["id"]).total == 2
    assert namespace["classify"].__name__ == "classify"
    looks = SimpleNamespace(is_superuser=False, has_perm=lambda name: name == "smartbatch.view_storedjob")
    assert namespace["may_see_jobs"](SimpleNamespace(user=looks)) == "read"
    assert len(namespace["urlpatterns"]) == 1


class Counting:
    shareable = True

    def __call__(self, request: Any, call: Callable[..., Any]) -> Any:
        return call(request)


def test_a_middleware_that_is_shareable_stays_so(project):
    assert getattr(closing_connections(Counting()), "shareable", False) is True
    assert not hasattr(closing_connections(len), "shareable")
