"""Pages for those who run the project: ``health``, about the client of the process that answers."""

from __future__ import annotations

from attrs import asdict
from django.http import HttpRequest, JsonResponse
from django.urls import path
from django.views.decorators.http import require_GET

from smartbatch.errors import SmartbatchError
from smartbatch.integrations.django.host import host

app_name = "smartbatch"


@require_GET
def health(_request: HttpRequest) -> JsonResponse:
    """Say as JSON how the client is; with status 503 where it cannot be used."""
    try:
        found = host().health()
    except SmartbatchError:
        return JsonResponse({"ok": False, "problem": "settings"}, status=503)
    return JsonResponse(asdict(found), status=200 if found.ok else 503)


urlpatterns = [path("health", health, name="health")]
