"""Jobs in the admin, read-only: a list, and a page for each job. Prompts and answers are not shown."""

from __future__ import annotations

import time
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path

from smartbatch._words import duration
from smartbatch.cli.clients import missing_store
from smartbatch.errors import JobNotFound, SmartbatchError
from smartbatch.integrations.django.host import host
from smartbatch.integrations.django.models import StoredJob

_MAX_JOBS = 200  # newest jobs


@admin.register(StoredJob)
class StoredJobAdmin(admin.ModelAdmin):
    """The pages, for users who may view jobs."""

    def has_add_permission(self, request: HttpRequest) -> bool:  # noqa: ARG002
        return False

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:  # noqa: ARG002
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:  # noqa: ARG002
        return False

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("", view(self.changelist_view), name="smartbatch_storedjob_changelist"),
            path("<path:object_id>/change/", view(self.change_view), name="smartbatch_storedjob_change"),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:  # noqa: ARG002
        jobs, problem = [], ""
        try:
            stored = host().jobs
            if missing_store(stored.config.store) is None:
                jobs = stored.statuses(limit=_MAX_JOBS)
        except SmartbatchError as error:
            problem = error.message
        now = time.time()
        rows = [(job, duration(max(0.0, now - job.created_at))) for job in jobs]
        return self._page(request, "jobs", {"rows": rows, "problem": problem, "shown": _MAX_JOBS})

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",  # noqa: ARG002
        extra_context: Any = None,  # noqa: ARG002
    ) -> HttpResponse:
        status, problem = None, ""
        try:
            stored = host().jobs
            if missing_store(stored.config.store) is not None:
                raise JobNotFound("there is no store")
            status = stored.job(object_id).status()
        except JobNotFound as error:
            raise Http404(error.message) from None
        except SmartbatchError as error:
            problem = error.message
        return self._page(request, "job", {"status": status, "problem": problem})

    def _page(self, request: HttpRequest, name: str, context: dict[str, Any]) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        shared = {**self.admin_site.each_context(request), "opts": self.opts, "title": "Jobs"}
        return TemplateResponse(request, f"smartbatch/admin_{name}.html", {**shared, **context})
