"""What a Django project shows of its jobs: by its commands, the admin and the dashboard."""

from __future__ import annotations

import json
import re
import time
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import pytest
from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.core.management import call_command
from django.db import connection
from django.http import Http404
from django.test import Client, RequestFactory, override_settings
from django.urls import resolve
from docs.pages import ROOT, Page
from integrations.django_project import StoredJob, database, project, site
from signed_events import OTHER_SECRET, SECRET, body_of, headers_of

from smartbatch.dashboard import application
from smartbatch.integrations.django import get_client
from smartbatch.integrations.django.urls import webhooks
from smartbatch.jobs.store import open_store

__all__ = ["project"]  # a fixture


def test_commands_have_the_projects_settings(project, tmp_path, capsys):
    (tmp_path / "rows.txt").write_text("one\ntwo\n")
    call_command("smartbatch", "plan", str(tmp_path / "rows.txt"), "--json")
    assert json.loads(capsys.readouterr().out)["requests"] == 2
    call_command("smartbatch", "jobs")
    assert f"there is no store at {tmp_path / 'jobs.db'} yet" in capsys.readouterr().err


def test_the_exit_code_of_a_command_is_that_of_the_command_line(project):
    with pytest.raises(SystemExit) as ended:
        call_command("smartbatch", "jobs", "show")
    assert ended.value.code == 2


class Person(SimpleNamespace):
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
    request = RequestFactory().get(url)
    request.user = Person(may=may)
    page = getattr(site._registry[StoredJob], name)(request, **arguments)
    page.render()
    return str(page.content.decode())


LIST = "/admin/smartbatch/storedjob/"


def test_the_admin_shows_that_there_are_no_jobs_yet(project, tmp_path):
    assert "No jobs yet" in page(LIST, "changelist_view", "smartbatch.view_storedjob")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
def test_the_admin_shows_jobs_and_a_page_for_each(project):
    job = get_client().submit_batch(["a secret question"], key="<nightly>", strategy="individual")
    job.wait()
    listed = page(LIST, "changelist_view", "smartbatch.view_storedjob")
    assert f'<a href="{LIST}{job.id}/change/">{job.id}</a>' in listed
    assert "&lt;nightly&gt;" in listed
    shown = page(f"{LIST}{job.id}/change/", "change_view", "smartbatch.view_storedjob", object_id=job.id)
    assert "1 completed" in shown
    assert "secret" not in listed + shown


def test_the_admin_has_no_page_of_a_job_that_is_not_there(project):
    with pytest.raises(Http404):
        page(LIST, "change_view", "smartbatch.view_storedjob", object_id="job-none")


@pytest.mark.parametrize(
    ("given", "problem"), [({}, "is not a database"), ({"paralelism": 3}, "unknown setting")]
)
def test_the_admin_shows_why_jobs_cannot_be_read(project, tmp_path, given, problem):
    (tmp_path / "jobs.db").write_text("not a store" * 100)
    project(**given)
    assert problem in page(LIST, "changelist_view", "smartbatch.view_storedjob")
    assert problem in page(LIST, "change_view", "smartbatch.view_storedjob", object_id="job-none")


def test_the_admin_shows_jobs_to_whom_it_may_concern(project):
    with pytest.raises(PermissionDenied):
        page(LIST, "changelist_view")


LOGGED_IN = {
    "MIDDLEWARE": [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
    ],
    "SESSION_ENGINE": "django.contrib.sessions.backends.signed_cookies",
}


@pytest.fixture
def migrated(project, tmp_path):
    with database("default", NAME=str(tmp_path / "db.sqlite3")), override_settings(**LOGGED_IN):
        call_command("migrate", verbosity=0)
        yield


@pytest.mark.usefixtures("migrated")
def test_staff_with_the_permission_to_view_jobs_see_them_in_the_admin():
    from django.contrib.auth.models import Permission, User

    staff = User.objects.create_user("ada", is_staff=True)
    browser = Client()
    browser.force_login(staff)
    assert browser.get(LIST).status_code == 403
    staff.user_permissions.add(Permission.objects.get(codename="view_storedjob"))
    assert "No jobs yet" in browser.get(LIST).content.decode()


@pytest.mark.usefixtures("migrated")
def test_jobs_are_no_part_of_the_projects_data(capsys):
    assert not [name for name in connection.introspection.table_names() if "smartbatch" in name]
    for options in ([], ["--all"]):
        call_command("dumpdata", *options)
        dumped = {row["model"] for row in json.loads(capsys.readouterr().out)}
        assert "auth.permission" in dumped
        assert "smartbatch.storedjob" not in dumped


def test_there_is_nothing_to_migrate(capsys):
    call_command("makemigrations", "--check", "--dry-run")
    assert "No changes detected" in capsys.readouterr().out


SAME_PAGE = {"HTTP_SEC_FETCH_SITE": "same-origin"}


def test_the_dashboard_is_refused_without_a_rule_of_access(project):
    for reply in (Client().get("/closed/jobs"), Client().post("/closed/jobs", **SAME_PAGE)):
        assert (reply.status_code, b"access=" in reply.content) == (403, True)


def test_the_dashboard_has_the_jobs_of_the_project_at_its_place(project):
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


def test_who_may_look_and_who_may_act_is_for_the_project_to_say(project):
    browser = Client(enforce_csrf_checks=True)
    statuses = [
        (
            browser.get(f"/board/jobs?user={user}").status_code,
            browser.post(f"/board/action/no-such?user={user}", **SAME_PAGE).status_code,
        )
        for user in ("ada", "bob", "eve")
    ]
    assert statuses == [(200, 404), (200, 403), (403, 403)]
    assert browser.post("/board/action/no-such?user=ada").status_code == 403
    assert browser.get("/board/jobs?user=ada", HTTP_HOST="evil.example").status_code == 400


def test_an_action_has_its_form_and_the_name_of_the_user(project, monkeypatch):
    said = {"say": lambda _, asked: f"{asked.by}: {asked.form['word']}"}
    monkeypatch.setattr(application, "ACTIONS", said)
    form = urlencode({"word": "héllo & <b>"})
    request = RequestFactory().post("/board/action/say?user=ada", form, **FORM, **SAME_PAGE)
    request.user = Person(may=())
    reply = resolve("/board/action/say").func(request, page="action/say")
    assert reply.status_code == 200
    assert "me: héllo &amp; &lt;b&gt;" in reply.content.decode()


FORM = {"content_type": "application/x-www-form-urlencoded"}


def test_the_page_on_webhooks_mounts_the_view():
    page = Page("docs/how-to/webhooks.md", (ROOT / "docs/how-to/webhooks.md").read_text())
    namespace: dict[str, Any] = {}
    for block in page.blocks():
        if "django" in block.text:
            exec(block.text, namespace)
    assert [pattern.callback for pattern in namespace["urlpatterns"]] == [webhooks]


def test_webhooks_are_received_with_the_secret_of_the_project(project, tmp_path):
    body, provider = body_of("batch_1"), Client()
    signed, forged = (headers_of(body, time.time(), secret) for secret in (SECRET, OTHER_SECRET))
    with override_settings(SMARTBATCH={**settings.SMARTBATCH, "webhook_secret": [OTHER_SECRET[:-8], SECRET]}):
        answers = [
            provider.post("/hooks", body, "application/json", headers=headers)
            for headers in (signed, signed, forged)
        ]
    assert [answer.status_code for answer in answers] == [200, 200, 401]
    assert [answer.content for answer in answers[:2]] == [b"stored\n", b"ignored: received before\n"]
    store = open_store(str(tmp_path / "jobs.db"))
    assert store.webhook_events.unused(["batch_1"]) == {"batch_1": 1}
    store.close()
