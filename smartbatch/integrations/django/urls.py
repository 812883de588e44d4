"""Operations URLs: the health of the client, the dashboard of the project's jobs, and their webhooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from attrs import asdict
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse, StreamingHttpResponse
from django.urls import URLPattern, path, re_path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET

from smartbatch.errors import SmartbatchError
from smartbatch.integrations.django.host import host
from smartbatch.integrations.hosting import HostClient

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

    from smartbatch.dashboard.page import Granted


__all__ = ["dashboard_urls", "webhooks"]

Access: TypeAlias = "Callable[[HttpRequest], Granted | None]"

_REQUEST_KEY: Final = "smartbatch.django_request"
"""Key of the request in its WSGI environment."""


def dashboard_urls(
    access: Access | None = None, *, show_content: bool = False
) -> tuple[list[URLPattern], str]:
    """Return the dashboard's URLs, for ``path("jobs/", include(dashboard_urls(access)))``.

    Args:
        access: called with each web request; returns ``"all"`` (view and act), ``"read"`` or ``None``.
            Without it every request is answered with 403. Actions are recorded with the user's name.
        show_content: show prompts and answers of jobs, and let all visitors download them.
    """
    made: dict[HostClient, WSGIApplication] = {}

    @csrf_exempt  # the dashboard checks that actions come from one of its pages
    def show(request: HttpRequest, page: str) -> HttpResponseBase:
        found = host()
        if found not in made:  # tests change the settings
            made.clear()
            made[found] = found.dashboard(
                None if access is None else _asked(access), show_content=show_content
            )
        return _answer(made[found], request, page)

    return [re_path(r"^(?P<page>.*)$", show, name="dashboard")], "smartbatch_dashboard"


def _asked(access: Access) -> Callable[[dict[str, Any]], Granted | None]:
    def granted(environ: dict[str, Any]) -> Granted | None:
        request = environ[_REQUEST_KEY]
        user = getattr(request, "user", None)
        if user is not None and user.is_authenticated:
            environ["REMOTE_USER"] = user.get_username()
        return access(request)

    return granted


def _answer(application: WSGIApplication, request: HttpRequest, page: str) -> HttpResponseBase:
    environ = {
        **request.META,
        "REQUEST_METHOD": request.method,
        "HTTP_HOST": request.get_host(),  # already checked against ALLOWED_HOSTS, even behind a proxy
        "SCRIPT_NAME": request.path.removesuffix(page).rstrip("/"),
        "PATH_INFO": "/" + page.encode().decode("latin-1"),
        "wsgi.input": BytesIO(request.body),
        _REQUEST_KEY: request,
    }
    head: list[Any] = []

    def start(status: str, headers: list[tuple[str, str]], *_: object) -> Callable[[bytes], object]:
        head[:] = status, headers
        return lambda _: None

    body: Iterable[bytes] = application(environ, start)
    status, headers = head
    answer: HttpResponseBase = (
        HttpResponse(b"".join(body)) if isinstance(body, list) else StreamingHttpResponse(body)
    )
    answer.status_code = int(status.partition(" ")[0])
    del answer["Content-Type"]
    for name, value in headers:
        answer[name] = value
    return answer


_receivers: dict[HostClient, WSGIApplication] = {}


@csrf_exempt  # events are signed
def webhooks(request: HttpRequest) -> HttpResponseBase:
    """Receive webhooks for the project's jobs: a view for ``path("webhooks", webhooks)``.

    The secrets are in ``settings.SMARTBATCH["webhook_secret"]`` or the environment variable
    ``SMARTBATCH_WEBHOOK_SECRET``.
    """
    found = host()
    if found not in _receivers:  # tests change the settings
        _receivers.clear()
        _receivers[found] = found.webhooks()
    return _answer(_receivers[found], request, "")


app_name = "smartbatch"


@require_GET
def health(_request: HttpRequest) -> JsonResponse:
    """Return the client's health as JSON, with status 503 if it cannot be used."""
    try:
        found = host().health()
    except SmartbatchError:
        return JsonResponse({"ok": False, "problem": "settings"}, status=503)
    return JsonResponse(asdict(found), status=200 if found.ok else 503)


urlpatterns = [path("health", health, name="health")]
