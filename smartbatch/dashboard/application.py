"""The dashboard as one WSGI callable: host, access, path, page."""

from __future__ import annotations

import gzip
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, final
from urllib.parse import parse_qsl, unquote

from attrs import evolve, frozen

from smartbatch.dashboard import acts
from smartbatch.dashboard.access import MAX_QUERY_FIELDS, Access, TokenAccess, is_from_own_page, is_known_host
from smartbatch.dashboard.downloads import KINDS, formats, may_download, results_file
from smartbatch.dashboard.layout import document, message, policy, static_file
from smartbatch.dashboard.live import OpenStreams, Rendered, Streamed, stream
from smartbatch.dashboard.navigation import PAGES
from smartbatch.dashboard.page import Page, Query
from smartbatch.dashboard.source import Source
from smartbatch.errors import JobNotFound, SmartbatchError

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment


STREAMS = 8
"""Streams of live news that a process serves at a time, unless it is told otherwise."""
MOST_FORM = 65_536
"""Bytes of a form."""
MOST_FIELDS = 1_000
"""Fields of a form."""
_WORTH = 1_000
"""Bytes from which an answer is compressed."""

_HEADERS = (
    ("X-Content-Type-Options", "nosniff"),
    # not "no-referrer": with it browsers send a form with "Origin: null"
    ("Referrer-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
_STATIC = {
    "icon.svg": "image/svg+xml",
    "live.js": "text/javascript; charset=utf-8",
}
_NO_ACCESS = (
    "This dashboard has no rule of access: give smartbatch.dashboard.app() an access= that says who may look "
    "and who may act. Behind a proxy every visitor seems to come from this machine, so there is no default."
)
_DENIED = "You may not see this page."
_DENIED_TOKEN = (
    "Open the address that smartbatch dashboard printed: it has the token, and names this machine."
)


@frozen(kw_only=True)
class Response:
    """What goes back: a whole body, or a stream."""

    status: str = "200 OK"
    kind: str = "text/html; charset=utf-8"
    body: bytes | Iterator[bytes] | Streamed = b""
    headers: tuple[tuple[str, str], ...] = (("Cache-Control", "no-store"),)


class _Refused(Exception):
    """A request that goes no further, with its answer."""

    def __init__(self, status: str, text: str, *headers: tuple[str, str]) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.headers = headers


@final
class Dashboard:
    """The application: safe from any thread, and in forked processes. Made by :func:`.app`."""

    def __init__(self, source: Source, access: Access | None, hosts: Collection[str], streams: int) -> None:
        self._source = source
        self._access = access
        self._hosts = hosts
        self._streams = OpenStreams(streams)
        self._stopped = False

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request, as PEP 3333 says."""
        try:
            answer = self._answer(environ)
        except _Refused as refused:
            answer = _text(refused.status, refused.text, *refused.headers)
        is_head = environ["REQUEST_METHOD"] == "HEAD"
        headers = [("Content-Type", answer.kind), *answer.headers, *_HEADERS]
        headers.append(("Content-Security-Policy", policy()))
        if not isinstance(answer.body, bytes):
            start_response(answer.status, headers)
            return _without_content(answer.body) if is_head else answer.body
        body = answer.body
        if len(body) >= _WORTH and "gzip" in environ.get("HTTP_ACCEPT_ENCODING", ""):
            body = gzip.compress(body, 5, mtime=0)
            headers += [("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding")]
        start_response(answer.status, [*headers, ("Content-Length", str(len(body)))])
        return [b"" if is_head else body]

    def stop(self) -> None:
        """End the streams soon: the server stops."""
        self._stopped = True

    # -- who -------------------------------------------------------------------------------------------------

    def _answer(self, environ: WSGIEnvironment) -> Response:
        """Answer a request. What is checked, in order: the host, the access, the method, then the path."""
        if not is_known_host(environ, self._hosts):
            raise _Refused(
                "421 Misdirected Request",
                "The dashboard does not answer for this host. Name the hosts it is reached by: "
                'smartbatch.dashboard.app(…, hosts=["example.org"]).',
            )
        query = self._admitted(environ)
        method = environ["REQUEST_METHOD"]
        if method == "POST":
            return self._act(environ, query)
        if method not in ("GET", "HEAD"):
            raise _Refused(
                "405 Method Not Allowed",
                "Pages are read with GET, and actions are sent with POST.",
                ("Allow", "GET, HEAD, POST"),
            )
        if isinstance(self._access, TokenAccess) and "token" in query.values:
            return self._with_cookie(self._access, environ, query)
        return self._page(environ, query)

    def _admitted(self, environ: WSGIEnvironment) -> Query:
        """Return what is asked, by somebody who may ask it."""
        if self._access is None:
            raise _Refused("403 Forbidden", _NO_ACCESS)
        granted = self._access(environ)
        if granted is None:
            told = _DENIED_TOKEN if isinstance(self._access, TokenAccess) else _DENIED
            raise _Refused("403 Forbidden", told)
        path, _, argument = _path_of(environ).strip("/").partition("/")
        values = _fields_of(environ.get("QUERY_STRING", ""), MAX_QUERY_FIELDS)
        root = environ.get("SCRIPT_NAME", "").rstrip("/")
        return Query(path=path, argument=argument, values=values, granted=granted, root=root)

    def _with_cookie(self, access: TokenAccess, environ: WSGIEnvironment, query: Query) -> Response:
        """Keep the token in a cookie, and lead to the same address without it."""
        cookie = access.cookie(environ)
        kept = (("Set-Cookie", cookie),) if cookie else ()
        place = query.again(token=None)
        return Response(
            status="303 See Other", headers=(("Location", place), ("Cache-Control", "no-store"), *kept)
        )

    # -- what ------------------------------------------------------------------------------------------------

    def _page(self, environ: WSGIEnvironment, query: Query) -> Response:
        if query.path == "static":
            return _static(query.argument)
        if query.path in ("live", "news"):
            return self._news(environ, query)
        if query.path == "download":
            return self._download(query)
        try:
            page = _made(self._source, query)
        except SmartbatchError as error:
            return self._wrong(query, error)
        return Response(body=document(page, query))

    def _wrong(self, query: Query, error: SmartbatchError) -> Response:
        """Answer with the reason why a page cannot be made."""
        missing = isinstance(error, JobNotFound)
        status = "404 Not Found" if missing else "503 Service Unavailable"
        title = "No such job" if missing else "This page is unavailable"
        return Response(status=status, body=message(title, error.message, query))

    def _news(self, environ: WSGIEnvironment, query: Query) -> Response:
        """Answer with what changed on a page: as a stream (``live``), or once (``news``)."""
        asked = _query_of_page(query)
        seen = environ.get("HTTP_LAST_EVENT_ID") or query.values.get("seen", "")
        try:
            page = _made(self._source, asked)
        except SmartbatchError as error:
            raise _Refused("503 Service Unavailable", error.message) from None
        if query.path == "news":
            return Response(kind="application/json", body=Rendered.of(page).news(seen))
        give_back = self._streams.take() if environ.get("wsgi.multithread") else None
        if give_back is None:
            raise _Refused("503 Service Unavailable", "No stream is free here: ask for news now and then.")
        source = self._source
        events = stream(
            lambda: Rendered.of(_made(source, asked)),
            seen,
            source.clock,
            lambda: self._stopped,
            source.written,
        )
        headers = (("Cache-Control", "no-store"), ("X-Accel-Buffering", "no"))
        return Response(kind="text/event-stream", body=Streamed(events, give_back), headers=headers)

    def _download(self, query: Query) -> Response:
        """Answer with the results of a job as a file."""
        if not may_download(self._source, query):
            raise _Refused("403 Forbidden", "Results hold answers, and you may not have them.")
        kind = query.values.get("format", "")
        if kind not in formats():
            raise _Refused("404 Not Found", f"There is no such format; there are {', '.join(formats())}.")
        try:
            name, content = results_file(self._source, query.argument, kind)
        except SmartbatchError as error:
            return self._wrong(query, error)
        headers = (("Content-Disposition", f'attachment; filename="{name}"'), ("Cache-Control", "no-store"))
        return Response(kind=KINDS[kind], body=content, headers=headers)

    def _act(self, environ: WSGIEnvironment, query: Query) -> Response:
        """Do an act: by somebody who may, from a page of this host."""
        if query.granted != "all":
            raise _Refused("403 Forbidden", "You may look, but not act.")
        if not is_from_own_page(environ):
            raise _Refused("403 Forbidden", "An act has to come from a page of this dashboard.")
        act = acts.ACTS.get(query.argument) if query.path == "act" else None
        if act is None:
            raise _Refused("404 Not Found", "There is no such act.")
        by = environ.get("REMOTE_USER") or ("token" if isinstance(self._access, TokenAccess) else "unnamed")
        asked = acts.Asked(form=_form_of(environ), by=by, query=query)
        try:
            return Response(
                body=message("Done", act(self._source, asked), query, back=asked.form.get("back", ""))
            )
        except SmartbatchError as error:
            status = "404 Not Found" if isinstance(error, JobNotFound) else "409 Conflict"
            shown = message("Not done", error.message, query, back=asked.form.get("back", ""))
            return Response(status=status, body=shown)


def _made(source: Source, query: Query) -> Page:
    """Return the page that is asked for.

    Raises:
        _Refused: there is none.
    """
    entry = PAGES.get(query.path)
    make = None if entry is None else entry.of_one if query.argument else entry.page
    if entry is None or make is None:
        raise _Refused("404 Not Found", "There is no such page.")
    return make(source, query)


def _without_content(body: Iterator[bytes] | Streamed) -> Iterable[bytes]:
    """End a body that nobody reads."""
    if isinstance(body, Streamed):
        body.close()
    return ()


def _query_of_page(query: Query) -> Query:
    """Return the query of the page whose news are asked for."""
    place, _, values = query.values.get("page", "").partition("?")
    path, _, argument = place.strip("/").partition("/")
    told = _fields_of(values, MAX_QUERY_FIELDS)
    return evolve(query, path=path, argument=unquote(argument), values=told)


def _path_of(environ: Mapping[str, Any]) -> str:
    """Return the path of a request as text; PEP 3333 has its bytes as Latin-1."""
    return str(environ.get("PATH_INFO", "")).encode("latin-1").decode("utf-8", "replace")


def _form_of(environ: WSGIEnvironment) -> dict[str, str]:
    """Return the fields of a form, the last of each name."""
    try:
        size = int(environ.get("CONTENT_LENGTH") or 0)
    except ValueError:
        size = -1
    if not 0 <= size <= MOST_FORM:
        raise _Refused("413 Content Too Large", "The form is too large.")
    text = environ["wsgi.input"].read(size).decode("utf-8", "replace")
    return _fields_of(text, MOST_FIELDS)


def _fields_of(text: str, most: int) -> dict[str, str]:
    """Return the fields of a query string or a form, the last of each name."""
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=most))
    except ValueError:
        raise _Refused("400 Bad Request", f"There are more than {most:,} fields.") from None


def _static(name: str) -> Response:
    if name not in _STATIC:
        raise _Refused("404 Not Found", "There is no such file.")
    kept = (("Cache-Control", "private, max-age=31536000, immutable"),)  # its address has its version
    return Response(kind=_STATIC[name], body=static_file(name), headers=kept)


def _text(status: str, text: str, *headers: tuple[str, str]) -> Response:
    return Response(
        status=status,
        kind="text/plain; charset=utf-8",
        body=f"{text}\n".encode(),
        headers=(*headers, ("Cache-Control", "no-store")),
    )
