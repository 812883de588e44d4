"""A Django project's client: by its settings, checks, databases, commands and the admin."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import django
import psycopg
import pytest
from django.conf import settings
from django.core import checks
from django.core.exceptions import PermissionDenied
from django.core.management import call_command
from django.db import connection, connections, transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.test import AsyncClient, Client, RequestFactory, override_settings
from django.urls import include, path, resolve
from docs.pages import ROOT, Page
from jobs.stores import postgres_address

from smartbatch import Answer, ConfigError, Request, RequestTimeout, Result
from smartbatch.dashboard import acts as acts_of_dashboard
from smartbatch.integrations.django import closing_connections, get_client
from smartbatch.integrations.django.dashboard import dashboard_urls
from smartbatch.integrations.django.system_checks import TAG, check_server

settings.configure(
    ALLOWED_HOSTS=["testserver"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    INSTALLED_APPS=[
        "django.contrib.admin",
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django.contrib.messages",
        "smartbatch.integrations.django",
    ],
    MIDDLEWARE=[],
    ROOT_URLCONF=__name__,
    SECRET_KEY="for tests",
    SMARTBATCH={"model": "sim:demo"},
    STATIC_URL="static/",
    TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}],
    USE_TZ=True,
)
django.setup()

from django.contrib import admin  # noqa: E402 - applications have to be there
from django.contrib.admin.sites import site  # noqa: E402

from smartbatch.integrations.django.admin import StoredJob  # noqa: E402

__all__ = ["postgres_address"]  # a fixture

acts: list[Callable[[], object]] = []


def view(request: HttpRequest) -> HttpResponse:
    """Do what the test says, within a web request."""
    acts[0]()
    return HttpResponse("done")


async def asynchronous(request: HttpRequest) -> HttpResponse:
    """Ask a question."""
    return HttpResponse((await asyncio.wrap_future(get_client().submit("a"))).text)


def may_see_jobs(request: HttpRequest) -> Any:
    """Say who may see the dashboard: a user of a parameter, as nobody logs in here."""
    return {"ada": "all", "bob": "read"}.get(request.GET.get("user", ""))


urlpatterns = [
    path("", view),
    path("closed/", include(dashboard_urls())),
    path("board/", include(dashboard_urls(may_see_jobs))),
    path("asynchronous", asynchronous),
    path("smartbatch/", include("smartbatch.integrations.django.urls")),
    path("admin/", admin.site.urls),
]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Change ``settings.SMARTBATCH``; the client is stopped after the test."""
    changes: list[override_settings] = []

    def change(**given: Any) -> None:
        table = {"model": "sim:demo", "store": str(tmp_path / "jobs.db"), **given}
        changes.append(override_settings(SMARTBATCH=table))
        changes[-1].enable()

    change()
    yield change
    with contextlib.suppress(ConfigError):
        get_client().stop(timeout=0)
    for one in reversed(changes):
        one.disable()


Project = Callable[..., None]


@contextlib.contextmanager
def database(alias: str, **given: Any) -> Iterator[None]:
    """Change one of ``DATABASES``, or add one."""
    before = connections.databases.get(alias)
    connections.databases[alias] = {**connections.databases["default"], **given}
    renew(alias)
    try:
        yield
    finally:
        renew(alias)
        del connections.databases[alias]
        if before is not None:
            connections.databases[alias] = before


def renew(alias: str) -> None:
    """Have the next use of an alias make its connection by the settings of then."""
    if connections[alias].connection is not None:
        connections[alias].close()
    del connections[alias]


def found() -> list[tuple[str | None, str]]:
    """Return the ids and texts of what the checks find."""
    return [(one.id, one.msg) for one in checks.run_checks(tags=[TAG])]


# -- settings ------------------------------------------------------------------------------------------------


def test_the_setting_is_that_of_the_client(project: Project) -> None:
    project(parallelism=7, system="Be brief.")
    assert get_client().config.parallelism == 7
    assert get_client() is get_client()


def test_hooks_may_be_dotted_paths(project: Project) -> None:
    project(preprocess=[f"{__name__}.answered_here"])
    assert get_client().submit("a").result().text == "here"


def answered_here(request: Request) -> Answer:
    return Answer("here")


def test_health_says_how_the_client_of_the_process_is(project: Project) -> None:
    reply = Client().get("/smartbatch/health")
    assert (reply.status_code, json.loads(reply.content)["ok"]) == (200, True)
    project(model=None)
    reply = Client().get("/smartbatch/health")
    assert (reply.status_code, json.loads(reply.content)["problem"]) == (503, "settings")


# -- time limits ---------------------------------------------------------------------------------------------


def in_a_view(project: Project, act: Callable[[], object], **given: Any) -> list[float | None]:
    """Return the time-outs of the requests that a view makes, none of which is sent."""
    seen: list[float | None] = []

    def answered(request: Request) -> Answer:
        seen.append(request.timeout)
        return Answer("fine")

    project(preprocess=[answered], **given)
    acts[:] = [act]
    assert Client().get("/").content == b"done"
    return seen


def test_what_is_left_of_a_web_request_is_the_time_of_what_it_waits_for(project: Project) -> None:
    """A second less, and only within the web request."""
    (timeout,) = in_a_view(project, lambda: get_client().submit("a").result(), web_timeout="200s")
    assert timeout is not None
    assert 0 < timeout < 199
    outside: list[float | None] = []
    project(preprocess=[lambda request: outside.append(request.timeout) or Answer("fine")], web_timeout=200)
    get_client().submit("a").result()
    assert outside == [None]


def test_under_asgi_a_middleware_tells_of_the_time(project: Project) -> None:
    """In asynchronous views and in others."""
    seen: list[float | None] = []
    project(preprocess=[lambda request: seen.append(request.timeout) or Answer("fine")], web_timeout=200)
    acts[:] = [lambda: get_client().submit("a").result()]
    middleware = ["smartbatch.integrations.django.time_limits.time_limits"]

    async def ask() -> list[bytes]:
        client = AsyncClient()
        return [(await client.get(url)).content for url in ("/", "/asynchronous")]

    with override_settings(MIDDLEWARE=middleware):
        assert asyncio.run(ask()) == [b"done", b"fine"]
        assert Client().get("/").content == b"done"
    assert len(seen) == 3
    assert all(timeout is not None and 0 < timeout < 199 for timeout in seen)


def test_a_web_request_whose_time_is_over_asks_nothing(project: Project) -> None:
    def act() -> None:
        with pytest.raises(RequestTimeout, match="the web request's time limit of 1 s is too near"):
            get_client().submit("a")

    assert in_a_view(project, act, web_timeout="1s") == []


# -- checks --------------------------------------------------------------------------------------------------


def test_a_project_that_is_right_passes_the_checks(project: Project, tmp_path: Path) -> None:
    """And they make no store."""
    assert found() == []
    assert list(tmp_path.iterdir()) == []


def test_a_setting_that_is_wrong_is_e001(project: Project) -> None:
    project(paralelism=3)
    text = "settings.SMARTBATCH: unknown setting or parameter paralelism; did you mean parallelism?"
    assert found() == [("smartbatch.E001", text)]
    with override_settings(SMARTBATCH=None):
        assert [which for which, _ in found()] == ["smartbatch.E001"]


def test_a_missing_key_is_e002(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    project(model="openai:gpt-5-mini")
    ((which, text),) = found()
    assert (which, "OPENAI_API_KEY" in text) == ("smartbatch.E002", True)


def test_a_store_that_cannot_be_used_is_e003(project: Project, tmp_path: Path) -> None:
    """It is a folder; what is above it is a file; it is no store."""
    (tmp_path / "file").write_text("not a store")
    for store in (tmp_path, tmp_path / "file" / "jobs.db", tmp_path / "file"):
        project(store=str(store))
        assert [which for which, _ in found()] == ["smartbatch.E003"], store


def test_a_file_for_several_machines_is_w001(project: Project) -> None:
    """So it is told where a database is on another machine."""
    with database("other", ENGINE="django.db.backends.postgresql", NAME="shop", HOST="db.example"):
        ((which, text),) = found()
    assert (which, "db.example" in text) == ("smartbatch.W001", True)


def test_a_limit_that_is_told_twice_is_w002(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMARTBATCH_MAX_RPM", "60")
    project(max_rpm=600)
    text = "max_rpm is told twice: in settings.SMARTBATCH, and by the variable SMARTBATCH_MAX_RPM, which wins"
    assert found() == [("smartbatch.W002", text)]
    project(max_rpm=60)
    assert found() == []


# -- stores --------------------------------------------------------------------------------------------------


def store_with(**given: Any) -> str | None:
    """Return the store of a project with such a database."""
    with database("default", **given), override_settings(SMARTBATCH={"model": "sim:demo"}):
        return get_client().config.store


def test_jobs_are_kept_next_to_the_projects_sqlite(tmp_path: Path) -> None:
    assert store_with(NAME=tmp_path / "db.sqlite3") == str(tmp_path / "db.smartbatch.db")


def test_jobs_of_a_project_in_memory_are_in_the_users_own_store() -> None:
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


def test_jobs_are_kept_on_the_projects_postgresql() -> None:
    """With what libpq knows of its options; the password is hidden."""
    from smartbatch._postgres import Address

    store = store_with(**POSTGRES)
    assert store is not None
    address = Address.of(store)
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
def test_jobs_on_the_projects_postgresql_have_connections_of_their_own(postgres_address: str) -> None:
    """A transaction of the project that is rolled back leaves them alone."""
    there = psycopg.conninfo.conninfo_to_dict(postgres_address)
    given = {"NAME": there["dbname"], "USER": there["user"], "HOST": there["host"], "OPTIONS": {}}
    given |= {"PORT": there.get("port", ""), "PASSWORD": there.get("password", "")}
    with database("pg", ENGINE="django.db.backends.postgresql", **given):
        settings_here = {"model": "sim:demo", "database": "pg"}
        with override_settings(SMARTBATCH=settings_here), get_client() as client:
            with transaction.atomic(using="pg"):
                job = client.submit_batch(["a"], strategy="individual")
                transaction.set_rollback(True, using="pg")
            assert job.wait().completed == 1
            assert checks.run_checks(tags=[TAG, checks.Tags.database], databases=["pg"]) == []
            with connections["pg"].cursor() as cursor:
                cursor.execute("SELECT count(*) FROM pg_namespace WHERE nspname = 'smartbatch'")
                assert cursor.fetchone() == (1,)


def test_a_database_that_is_not_there_is_refused(project: Project) -> None:
    with override_settings(SMARTBATCH={"model": "sim:demo", "database": "other"}):
        assert found() == [("smartbatch.E001", "settings.SMARTBATCH: DATABASES has no 'other'")]


def test_a_server_is_looked_at_where_checks_may_use_databases(project: Project) -> None:
    project(store="postgresql://127.0.0.1:1/none?connect_timeout=1")
    assert found() == []
    assert [one.id for one in check_server(databases=["default"])] == ["smartbatch.E003"]


# -- connections ---------------------------------------------------------------------------------------------


def test_callbacks_leave_no_connection_open(project: Project, tmp_path: Path) -> None:
    """Each thread has connections of its own, which Django closes at the end of web requests only."""
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


def test_other_threads_keep_their_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing them in the middle of a view would cost it its transaction, or its time."""
    closed: list[int] = []
    monkeypatch.setattr("smartbatch.integrations.django.host.close_old_connections", lambda: closed.append(1))
    assert closing_connections(len)("abc") == 3
    assert closed == []
    thread = threading.Thread(target=closing_connections(closed.append), args=(2,), name="smartbatch-worker")
    thread.start()
    thread.join()
    assert closed == [1, 2, 1]


# -- the documentation ---------------------------------------------------------------------------------------


def test_the_parts_of_the_page_run(project: Project) -> None:
    """Its setting is one, and its views answer, here with the embedded provider."""
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
    """A middleware that says by its class that answers may be shared."""

    shareable = True

    def __call__(self, request: Any, call: Callable[..., Any]) -> Any:
        return call(request)


def test_a_middleware_that_is_shareable_stays_so(project: Project) -> None:
    assert getattr(closing_connections(Counting()), "shareable", False) is True
    assert not hasattr(closing_connections(len), "shareable")


# -- commands ------------------------------------------------------------------------------------------------


def test_commands_have_the_projects_settings(
    project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.txt").write_text("one\ntwo\n")
    call_command("smartbatch", "plan", str(tmp_path / "rows.txt"), "--json")
    assert json.loads(capsys.readouterr().out)["requests"] == 2
    call_command("smartbatch", "jobs")
    assert f"there is no store at {tmp_path / 'jobs.db'} yet" in capsys.readouterr().err


def test_the_exit_code_of_a_command_is_that_of_the_command_line(project: Project) -> None:
    with pytest.raises(SystemExit) as ended:
        call_command("smartbatch", "jobs", "show")
    assert ended.value.code == 2


# -- the admin -----------------------------------------------------------------------------------------------


class Person(SimpleNamespace):
    """Somebody who is logged in."""

    is_active = is_staff = is_authenticated = True
    pk = 1

    def has_perm(self, name: str, obj: object = None) -> bool:
        return name in self.may

    def has_module_perms(self, label: str) -> bool:
        return True

    def has_usable_password(self) -> bool:
        return False

    def get_username(self) -> str:
        return "me"

    get_short_name = get_username


def page(url: str, name: str, *may: str, **arguments: str) -> str:
    """Return a page of the admin as somebody sees it."""
    request = RequestFactory().get(url)
    request.user = Person(may=may)
    page = getattr(site._registry[StoredJob], name)(request, **arguments)
    page.render()
    return str(page.content.decode())


LIST = "/admin/smartbatch/storedjob/"


def test_the_admin_shows_that_there_are_no_jobs_yet(project: Project, tmp_path: Path) -> None:
    """And makes no store to look into."""
    assert "No jobs yet" in page(LIST, "changelist_view", "smartbatch.view_storedjob")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
def test_the_admin_shows_jobs_and_a_page_for_each(project: Project) -> None:
    """No prompt and no answer."""
    job = get_client().submit_batch(["a secret question"], key="<nightly>", strategy="individual")
    job.wait()
    listed = page(LIST, "changelist_view", "smartbatch.view_storedjob")
    assert f'<a href="{LIST}{job.id}/change/">{job.id}</a>' in listed
    assert "&lt;nightly&gt;" in listed
    shown = page(f"{LIST}{job.id}/change/", "change_view", "smartbatch.view_storedjob", object_id=job.id)
    assert "1 completed" in shown
    assert "secret" not in listed + shown


def test_the_admin_has_no_page_of_a_job_that_is_not_there(project: Project) -> None:
    with pytest.raises(Http404):
        page(LIST, "change_view", "smartbatch.view_storedjob", object_id="job-none")


def test_the_admin_shows_jobs_to_whom_it_may_concern(project: Project) -> None:
    with pytest.raises(PermissionDenied):
        page(LIST, "changelist_view")


def test_there_is_nothing_to_migrate(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("makemigrations", "--check", "--dry-run")
    assert "No changes detected" in capsys.readouterr().out


# -- the dashboard -------------------------------------------------------------------------------------------

SAME_PAGE = {"HTTP_SEC_FETCH_SITE": "same-origin"}


def test_the_dashboard_is_refused_without_a_rule_of_access(project: Project) -> None:
    for reply in (Client().get("/closed/jobs"), Client().post("/closed/jobs", **SAME_PAGE)):
        assert (reply.status_code, b"access=" in reply.content) == (403, True)


def test_the_dashboard_has_the_jobs_of_the_project_at_its_place(project: Project) -> None:
    job = get_client().submit_batch(["x"] * 3, key="of the project", strategy="individual")
    reply = Client().get("/board/jobs?user=bob")
    page = reply.content.decode()
    assert "of the project" in page
    assert "default-src 'none'" in reply["Content-Security-Policy"]
    links = set(re.findall(r'(?:href|src)="([^"#]+)"', page))
    assert links
    assert all(link.startswith("/board/") for link in links)
    assert job.id in Client().get(f"/board/jobs/{job.id}?user=bob").content.decode()
    assert Client().get("/board/static/live.js?user=bob")["Content-Type"].startswith("text/javascript")


def test_who_may_look_and_who_may_act_is_for_the_project_to_say(project: Project) -> None:
    """Acts need no token of Django's: they have to come from a page of the same host."""
    browser = Client(enforce_csrf_checks=True)
    statuses = [
        (
            browser.get(f"/board/jobs?user={user}").status_code,
            browser.post(f"/board/act/no-such?user={user}", **SAME_PAGE).status_code,
        )
        for user in ("ada", "bob", "eve")
    ]
    assert statuses == [(200, 404), (200, 403), (403, 403)]
    assert browser.post("/board/act/no-such?user=ada").status_code == 403
    assert browser.get("/board/jobs?user=ada", HTTP_HOST="evil.example").status_code == 400


def test_an_act_has_its_form_and_the_name_of_the_user(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"say": lambda _, asked: f"{asked.by}: {asked.form['word']}"}
    monkeypatch.setattr(acts_of_dashboard, "ACTS", said)
    form = urlencode({"word": "héllo & <b>"})
    request = RequestFactory().post("/board/act/say?user=ada", form, **FORM, **SAME_PAGE)
    request.user = Person(may=())
    reply = resolve("/board/act/say").func(request, page="act/say")
    assert reply.status_code == 200
    assert "me: héllo &amp; &lt;b&gt;" in reply.content.decode()


FORM = {"content_type": "application/x-www-form-urlencoded"}
