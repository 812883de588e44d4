"""A Django project, for the tests of what the library brings to one; Django can be set up once a process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import django
import pytest
from django.conf import settings
from django.db import connections
from django.http import HttpRequest, HttpResponse
from django.test import override_settings
from django.urls import include, path
from signed_events import SECRET

from smartbatch import ConfigError
from smartbatch.integrations.django import get_client
from smartbatch.integrations.django.urls import dashboard_urls, webhooks

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

from django.contrib.admin.sites import site  # noqa: E402 - applications have to be there

from smartbatch.integrations.django.models import StoredJob  # noqa: E402

__all__ = ["Project", "StoredJob", "acts", "database", "project", "site"]

acts: list[Callable[[], object]] = []


def view(request: HttpRequest) -> HttpResponse:
    acts[0]()
    return HttpResponse("done")


async def asynchronous(request: HttpRequest) -> HttpResponse:
    """Ask a question."""
    return HttpResponse((await asyncio.wrap_future(get_client().submit("a"))).text)


def may_see_jobs(request: HttpRequest) -> Any:
    return {"ada": "all", "bob": "read"}.get(request.GET.get("user", ""))


urlpatterns = [
    path("", view),
    path("closed/", include(dashboard_urls())),
    path("hooks", webhooks),
    path("board/", include(dashboard_urls(may_see_jobs))),
    path("asynchronous", asynchronous),
    path("smartbatch/", include("smartbatch.integrations.django.urls")),
    path("admin/", site.urls),
]


@pytest.fixture
def project(tmp_path):
    changes: list[override_settings] = []

    def change(**given: Any) -> None:
        table = {"model": "sim:demo", "store": str(tmp_path / "jobs.db"), "webhook_secret": SECRET}
        table |= given
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
    if connections[alias].connection is not None:
        connections[alias].close()
    del connections[alias]
