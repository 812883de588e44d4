"""The dashboard as a WSGI application: checks host, access, method and path, then creates the page."""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, final
from urllib.parse import parse_qsl, unquote

from attrs import evolve, frozen

from smartbatch.dashboard import (
    decisions_page,
    errors_page,
    job_page,
    jobs_page,
    models_page,
    now_page,
)
from smartbatch.dashboard.access import MAX_QUERY_FIELDS, Access, TokenAccess, is_from_own_page, is_known_host
from smartbatch.dashboard.action_forms import ACTIONS, READ_ONLY, ActionRequest
from smartbatch.dashboard.job_page import KINDS, formats, may_download, results_file
from smartbatch.dashboard.live import OpenStreams, Rendered, Streamed, stream
from smartbatch.dashboard.page import Page, PageOf, Query
from smartbatch.dashboard.source import Source
from smartbatch.errors import JobNotFound, SmartbatchError
from smartbatch.views.html import render, source_of, styles
from smartbatch.views.model import Link

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment


DEFAULT_STREAMS = 8  # concurrent streams of updates per process
MAX_FORM_BYTES = 65_536
MAX_FORM_FIELDS = 1_000
_MIN_GZIP_BYTES = 1_000

_HEADERS = (
    ("X-Content-Type-Options", "nosniff"),
    # with "no-referrer", browsers would send forms with "Origin: null"
    ("Referrer-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
_STATIC = {
    "icon.svg": "image/svg+xml",
    "live.js": "text/javascript; charset=utf-8",
}
_NO_ACCESS = (
    "This dashboard has no access rule: pass access= to smartbatch.dashboard.app() to define who may view it "
    "and who may act. There is no default, because behind a proxy every visitor seems to be on this machine."
)
_DENIED_TEXT = "You may not view this page."
_DENIED_TOKEN = "Open the address printed by smartbatch dashboard, on this machine: it contains the token."


@frozen(kw_only=True)
class Response:
    status: str = "200 OK"
    kind: str = "text/html; charset=utf-8"
    body: bytes | Iterator[bytes] | Streamed = b""
    headers: tuple[tuple[str, str], ...] = (("Cache-Control", "no-store"),)


class _Refused(Exception):
    def __init__(self, status: str, text: str, *headers: tuple[str, str]) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.headers = headers


@final
class Dashboard:
    """The application, created by :func:`.app`. Thread-safe, and safe in forked processes."""

    def __init__(self, source: Source, access: Access | None, hosts: Collection[str], streams: int) -> None:
        self._source = source
        self._access = access
        self._hosts = hosts
        self._streams = OpenStreams(streams)
        self._stopped = False

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            answer = self._answer(environ)
        except _Refused as refused:
            answer = _text(refused.status, refused.text, *refused.headers)
        is_head = environ["REQUEST_METHOD"] == "HEAD"
        headers = [("Content-Type", answer.kind), *answer.headers, *_HEADERS]
        headers.append(("Content-Security-Policy", content_security_policy()))
        if not isinstance(answer.body, bytes):
            start_response(answer.status, headers)
            return _without_content(answer.body) if is_head else answer.body
        body = answer.body
        if len(body) >= _MIN_GZIP_BYTES and "gzip" in environ.get("HTTP_ACCEPT_ENCODING", ""):
            body = gzip.compress(body, 5, mtime=0)
            headers += [("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding")]
        start_response(answer.status, [*headers, ("Content-Length", str(len(body)))])
        return [b"" if is_head else body]

    def stop(self) -> None:
        """End open streams, before the server stops."""
        self._stopped = True

    # -- access ----------------------------------------------------------------------------------------------

    def _answer(self, environ: WSGIEnvironment) -> Response:
        if not is_known_host(environ, self._hosts):
            raise _Refused(
                "421 Misdirected Request",
                "The dashboard does not answer requests for this host. "
                "List the host names under which it is reached: "
                'smartbatch.dashboard.app(…, hosts=["example.org"]).',
            )
        query = self._admitted(environ)
        method = environ["REQUEST_METHOD"]
        if method == "POST":
            return self._do_action(environ, query)
        if method not in ("GET", "HEAD"):
            raise _Refused(
                "405 Method Not Allowed",
                "Read pages with GET, and send actions with POST.",
                ("Allow", "GET, HEAD, POST"),
            )
        if isinstance(self._access, TokenAccess) and "token" in query.values:
            return self._with_cookie(self._access, environ, query)
        return self._page(environ, query)

    def _admitted(self, environ: WSGIEnvironment) -> Query:
        if self._access is None:
            raise _Refused("403 Forbidden", _NO_ACCESS)
        granted = self._access(environ)
        if granted is None:
            reason = _DENIED_TOKEN if isinstance(self._access, TokenAccess) else _DENIED_TEXT
            raise _Refused("403 Forbidden", reason)
        path, _, argument = _path_of(environ).strip("/").partition("/")
        values = _fields_of(environ.get("QUERY_STRING", ""), MAX_QUERY_FIELDS)
        root = environ.get("SCRIPT_NAME", "").rstrip("/")
        return Query(path=path, argument=argument, values=values, granted=granted, root=root)

    def _with_cookie(self, access: TokenAccess, environ: WSGIEnvironment, query: Query) -> Response:
        """Store the token in a cookie, and redirect to the same address without it."""
        cookie = access.cookie(environ)
        headers = [("Location", query.again(token=None)), ("Cache-Control", "no-store")]
        if cookie:
            headers.append(("Set-Cookie", cookie))
        return Response(status="303 See Other", headers=tuple(headers))

    # -- pages and actions -----------------------------------------------------------------------------------

    def _page(self, environ: WSGIEnvironment, query: Query) -> Response:
        if query.path == "static":
            return _static(query.argument)
        if query.path in ("live", "news"):
            return self._news(environ, query)
        if query.path == "download":
            return self._download(query)
        try:
            page = _page_of(self._source, query)
        except SmartbatchError as error:
            return self._problem(query, error)
        return Response(body=page_document(page, query))

    def _problem(self, query: Query, error: SmartbatchError) -> Response:
        missing = isinstance(error, JobNotFound)
        status = "404 Not Found" if missing else "503 Service Unavailable"
        title = "No such job" if missing else "This page is unavailable"
        return Response(status=status, body=message_page(title, error.message, query))

    def _news(self, environ: WSGIEnvironment, query: Query) -> Response:
        """Return what has changed on a page: as a stream (``live``), or once (``news``)."""
        watched = _query_of_page(query)
        seen = environ.get("HTTP_LAST_EVENT_ID") or query.values.get("seen", "")
        try:
            page = _page_of(self._source, watched)
        except SmartbatchError as error:
            raise _Refused("503 Service Unavailable", error.message) from None
        if query.path == "news":
            return Response(kind="application/json", body=Rendered.of(page).news(seen))
        release = self._streams.take() if environ.get("wsgi.multithread") else None
        if release is None:
            raise _Refused("503 Service Unavailable", "Too many live connections; reload for updates.")
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
            raise _Refused("403 Forbidden", "You may not download results.")
        kind = query.values.get("format", "")
        if kind not in formats():
            raise _Refused("404 Not Found", f"Unknown format; choose one of {', '.join(formats())}.")
        try:
            name, content = results_file(self._source, query.argument, kind)
        except SmartbatchError as error:
            return self._problem(query, error)
        headers = (("Content-Disposition", f'attachment; filename="{name}"'), ("Cache-Control", "no-store"))
        return Response(kind=KINDS[kind], body=content, headers=headers)

    def _do_action(self, environ: WSGIEnvironment, query: Query) -> Response:
        if query.granted != "all":
            raise _Refused("403 Forbidden", READ_ONLY)
        if not is_from_own_page(environ):
            raise _Refused("403 Forbidden", "Actions must be sent from a page of this dashboard.")
        action = ACTIONS.get(query.argument) if query.path == "action" else None
        if action is None:
            raise _Refused("404 Not Found", "There is no such action.")
        by = environ.get("REMOTE_USER") or ("token" if isinstance(self._access, TokenAccess) else "unnamed")
        request = ActionRequest(form=_form_of(environ), by=by)
        back = request.form.get("back", "")
        try:
            return Response(body=message_page("Done", action(self._source, request), query, back=back))
        except SmartbatchError as error:
            status = "404 Not Found" if isinstance(error, JobNotFound) else "409 Conflict"
            return Response(status=status, body=message_page("Not done", error.message, query, back=back))


def _page_of(source: Source, query: Query) -> Page:
    entry = PAGES.get(query.path)
    make = None if entry is None else entry.of_one if query.argument else entry.page
    if entry is None or make is None:
        raise _Refused("404 Not Found", "There is no such page.")
    return make(source, query)


def _without_content(body: Iterator[bytes] | Streamed) -> Iterable[bytes]:
    """Close a stream for a HEAD request."""
    if isinstance(body, Streamed):
        body.close()
    return ()


def _query_of_page(query: Query) -> Query:
    place, _, values = query.values.get("page", "").partition("?")
    path, _, argument = place.strip("/").partition("/")
    fields = _fields_of(values, MAX_QUERY_FIELDS)
    return evolve(query, path=path, argument=unquote(argument), values=fields)


def _path_of(environ: Mapping[str, Any]) -> str:
    """Return the path of a request as text; PEP 3333 passes its bytes as Latin-1."""
    return str(environ.get("PATH_INFO", "")).encode("latin-1").decode("utf-8", "replace")


def _form_of(environ: WSGIEnvironment) -> dict[str, str]:
    try:
        size = int(environ.get("CONTENT_LENGTH") or 0)
    except ValueError:
        size = -1
    if not 0 <= size <= MAX_FORM_BYTES:
        raise _Refused("413 Content Too Large", "The form is too large.")
    text = environ["wsgi.input"].read(size).decode("utf-8", "replace")
    return _fields_of(text, MAX_FORM_FIELDS)


def _fields_of(text: str, limit: int) -> dict[str, str]:
    """Return the fields of a query string or a form; if a name is repeated, the last value counts."""
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=limit))
    except ValueError:
        raise _Refused("400 Bad Request", f"There are more than {limit:,} fields.") from None


def _static(name: str) -> Response:
    if name not in _STATIC:
        raise _Refused("404 Not Found", "There is no such file.")
    # the address changes with the version
    cached = (("Cache-Control", "private, max-age=31536000, immutable"),)
    return Response(kind=_STATIC[name], body=static_file(name), headers=cached)


def _text(status: str, text: str, *headers: tuple[str, str]) -> Response:
    return Response(
        status=status,
        kind="text/plain; charset=utf-8",
        body=f"{text}\n".encode(),
        headers=(*headers, ("Cache-Control", "no-store")),
    )


# -- pages as HTML documents ---------------------------------------------------------------------------------


@frozen
class PageEntry:
    name: str  # shown in the navigation
    page: PageOf
    of_one: PageOf | None = None  # for a single item, such as a job


PAGES: Mapping[str, PageEntry] = {
    "": PageEntry("Now", now_page.page),
    "jobs": PageEntry("Jobs", jobs_page.page, of_one=job_page.page),
    "decisions": PageEntry("Decisions", decisions_page.page, of_one=decisions_page.page_of_one),
    "models": PageEntry("Models", models_page.page),
    "errors": PageEntry("Errors", errors_page.page),
}
"""The pages by the first part of their path, in the order of the navigation."""

_LOCAL_PATH = re.compile(r"/(?![/\\])[!-~]*")  # path and query within this application, encoded as in links


@cache
def static_file(name: str) -> bytes:
    return files("smartbatch.dashboard").joinpath("static", name).read_bytes()


@cache
def content_security_policy() -> str:
    """Allow nothing from other hosts, and no inline scripts or styles."""
    return (
        f"default-src 'none'; script-src 'self'; style-src {source_of(styles())}; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )


def page_document(page: Page, query: Query) -> bytes:
    place = evolve(query, root="").again()
    version = Rendered.of(page).version
    return _rendered("dashboard.html", query, view=page.view, root=query.root, page=place, version=version)


def message_page(title: str, text: str, query: Query, *, back: str = "") -> bytes:
    """Return a page with a single message; ``back`` is the local path it links to."""
    place = query.root + (back if _LOCAL_PATH.fullmatch(back) else "/")
    return _rendered("message.html", query, title=title, text=text, back=Link("Back", place))


def _rendered(template: str, query: Query, **values: Any) -> bytes:
    links = [(Link(entry.name, query.link(path)), path == query.path) for path, entry in PAGES.items()]
    places = {name.partition(".")[0]: _static_link(query, name) for name in ("icon.svg", "live.js")}
    text = render(template, navigation=links, places=places, styles=styles(), **values)
    return text.encode()


def _static_link(query: Query, name: str) -> str:
    digest = hashlib.blake2s(static_file(name), digest_size=6).hexdigest()
    return query.link("static", name, v=digest)
