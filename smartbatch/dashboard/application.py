"""The dashboard as a WSGI application: its pages, live updates, downloads and actions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, ClassVar, final
from urllib.parse import unquote

from attrs import evolve, frozen

from smartbatch.dashboard import decisions_page, errors_page, job_page, jobs_page, models_page, now_page
from smartbatch.dashboard.access import MAX_QUERY_FIELDS, Access
from smartbatch.dashboard.action_forms import ACTIONS, ActionRequest
from smartbatch.dashboard.job_page import KINDS, formats, may_download, results_file
from smartbatch.dashboard.live import OpenStreams, Rendered, Streamed, stream
from smartbatch.dashboard.page import Page, PageOf, Query
from smartbatch.dashboard.source import Source
from smartbatch.dashboard.web_application import Refused, Response, WebApplication, fields_in
from smartbatch.errors import JobNotFound, SmartbatchError

if TYPE_CHECKING:
    from wsgiref.types import WSGIEnvironment


DEFAULT_STREAMS = 8  # concurrent streams of updates per process


@frozen
class PageEntry:
    name: str  # shown in the navigation
    page: PageOf | None = None  # ``None`` if the navigation leaves it out
    of_one: PageOf | None = None  # for a single item, such as a job


PAGES: Mapping[str, PageEntry] = {
    "": PageEntry("Now", now_page.page),
    "jobs": PageEntry("Jobs", jobs_page.page, of_one=job_page.page),
    "decisions": PageEntry("Decisions", decisions_page.page, of_one=decisions_page.page_of_one),
    "models": PageEntry("Models", models_page.page),
    "errors": PageEntry("Errors", errors_page.page),
    "answers": PageEntry("Answers", of_one=job_page.answers_page),
}
"""The pages by the first part of their path, in the order of the navigation."""


@final
class Dashboard(WebApplication):
    """The application, created by :func:`.app`. Thread-safe, and safe in forked processes."""

    command = "smartbatch dashboard"
    navigation: ClassVar = {path: entry.name for path, entry in PAGES.items() if entry.page is not None}

    def __init__(self, source: Source, access: Access | None, hosts: Collection[str], streams: int) -> None:
        super().__init__(access, hosts)
        self._source = source
        self._streams = OpenStreams(streams)
        self._stopped = False

    def stop(self) -> None:
        """End open streams, before the server stops."""
        self._stopped = True

    # -- pages and actions -----------------------------------------------------------------------------------

    def _page(self, environ: WSGIEnvironment, query: Query, /) -> Response:
        if query.path in ("live", "news"):
            return self._news(environ, query)
        if query.path == "download":
            return self._download(query)
        try:
            page = _page_of(self._source, query)
        except SmartbatchError as error:
            return self._problem(query, error)
        return Response(body=self._document(page, query))

    def _problem(self, query: Query, error: SmartbatchError) -> Response:
        missing = isinstance(error, JobNotFound)
        status = "404 Not Found" if missing else "503 Service Unavailable"
        title = "No such job" if missing else "This page is unavailable"
        return Response(status=status, body=self._message(title, error.message, query))

    def _news(self, environ: WSGIEnvironment, query: Query) -> Response:
        """Return what has changed on a page: as a stream (``live``), or once (``news``)."""
        watched = _query_of_page(query)
        seen = environ.get("HTTP_LAST_EVENT_ID") or query.values.get("seen", "")
        try:
            page = _page_of(self._source, watched)
        except SmartbatchError as error:
            raise Refused("503 Service Unavailable", error.message) from None
        if query.path == "news":
            return Response(kind="application/json", body=Rendered.of(page).news(seen))
        release = self._streams.take() if environ.get("wsgi.multithread") else None
        if release is None:
            raise Refused("503 Service Unavailable", "Too many live connections; reload for updates.")
        source = self._source
        events = stream(
            lambda: Rendered.of(_page_of(source, watched)),
            seen,
            source.clock,
            lambda: self._stopped,
            source.written,
        )
        headers = (("Cache-Control", "no-store"), ("X-Accel-Buffering", "no"))
        return Response(kind="text/event-stream", body=Streamed(events, release), headers=headers)

    def _download(self, query: Query) -> Response:
        if not may_download(self._source, query):
            raise Refused("403 Forbidden", "You may not download results.")
        kind = query.values.get("format", "")
        if kind not in formats():
            raise Refused("404 Not Found", f"Unknown format; choose one of {', '.join(formats())}.")
        try:
            name, content = results_file(self._source, query.argument, kind)
        except SmartbatchError as error:
            return self._problem(query, error)
        headers = (("Content-Disposition", f'attachment; filename="{name}"'), ("Cache-Control", "no-store"))
        return Response(kind=KINDS[kind], body=content, headers=headers)

    def _do_action(self, form: Mapping[str, str], by: str, query: Query, /) -> Response:
        action = ACTIONS.get(query.argument) if query.path == "action" else None
        if action is None:
            raise Refused("404 Not Found", "There is no such action.")
        back = form.get("back", "")
        try:
            done = action(self._source, ActionRequest(form=form, by=by))
            return Response(body=self._message("Done", done, query, back=back))
        except SmartbatchError as error:
            status = "404 Not Found" if isinstance(error, JobNotFound) else "409 Conflict"
            return Response(status=status, body=self._message("Not done", error.message, query, back=back))

    def _document(self, page: Page, query: Query) -> bytes:
        place = evolve(query, root="").again()
        version = Rendered.of(page).version
        return self._rendered(
            "dashboard.html", query, view=page.view, root=query.root, page=place, version=version
        )


def _page_of(source: Source, query: Query) -> Page:
    entry = PAGES.get(query.path)
    make = None if entry is None else entry.of_one if query.argument else entry.page
    if entry is None or make is None:
        raise Refused("404 Not Found", "There is no such page.")
    return make(source, query)


def _query_of_page(query: Query) -> Query:
    place, _, values = query.values.get("page", "").partition("?")
    path, _, argument = place.strip("/").partition("/")
    fields = fields_in(values, MAX_QUERY_FIELDS)
    return evolve(query, path=path, argument=unquote(argument), values=fields)
