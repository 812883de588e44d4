"""A WSGI application: checks host, access, method and origin, then creates a page or performs an action."""

from __future__ import annotations

import gzip
import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import parse_qsl

from attrs import frozen

from smartbatch.dashboard.access import MAX_QUERY_FIELDS, Access, TokenAccess, is_from_own_page, is_known_host
from smartbatch.dashboard.action_forms import READ_ONLY
from smartbatch.dashboard.live import Streamed
from smartbatch.dashboard.page import Query
from smartbatch.views.html import render, source_of, styles
from smartbatch.views.model import Link

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment


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
    "rows.js": "text/javascript; charset=utf-8",
}
_NO_ACCESS = (
    "This dashboard has no access rule: pass access= to smartbatch.dashboard.app() to define who may view it "
    "and who may act. There is no default, because behind a proxy every visitor seems to be on this machine."
)
_WRONG_HOST = (
    "This host name is not allowed. An application that mounts the dashboard must list the names under which "
    'it is reached: smartbatch.dashboard.app(…, hosts=["example.org"]).'
)
_DENIED_TEXT = "You may not view this page."
_LOCAL_PATH = re.compile(r"/(?![/\\])[!-~]*")  # path and query within this application, encoded as in links


@frozen(kw_only=True)
class Response:
    status: str = "200 OK"
    kind: str = "text/html; charset=utf-8"
    body: bytes | Iterator[bytes] | Streamed = b""
    headers: tuple[tuple[str, str], ...] = (("Cache-Control", "no-store"),)


class Refused(Exception):
    """Ends a request with a status and a sentence."""

    def __init__(self, status: str, text: str, *headers: tuple[str, str]) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.headers = headers


class WebApplication(ABC):
    """The part that all applications share.

    Args:
        access: who may view and act; ``None`` for nobody.
        hosts: accepted names in the ``Host`` header.
    """

    command: ClassVar[str]  # the command that serves the application on this machine
    navigation: ClassVar[Mapping[str, str]]  # names of pages by the first part of their path

    def __init__(self, access: Access | None, hosts: Collection[str]) -> None:
        self._access = access
        self._hosts = hosts

    @abstractmethod
    def _page(self, environ: WSGIEnvironment, query: Query, /) -> Response:
        """Return a page. May raise Refused."""

    @abstractmethod
    def _do_action(self, form: Mapping[str, str], by: str, query: Query, /) -> Response:
        """Perform an action that an authorized visitor sent from one of the pages. May raise Refused."""

    def stop(self) -> None:
        """Close open streams before the server stops."""

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            answer = self._answer(environ)
        except Refused as refused:
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

    # -- access ----------------------------------------------------------------------------------------------

    def _answer(self, environ: WSGIEnvironment) -> Response:
        if not is_known_host(environ, self._hosts):
            raise Refused("421 Misdirected Request", _WRONG_HOST)
        query = self._admitted(environ)
        method = environ["REQUEST_METHOD"]
        if method == "POST":
            if query.granted != "all":
                raise Refused("403 Forbidden", READ_ONLY)
            if not is_from_own_page(environ):
                raise Refused("403 Forbidden", "Actions must be sent from a page of this application.")
            local = "token" if isinstance(self._access, TokenAccess) else "unnamed"
            return self._do_action(_form_of(environ), environ.get("REMOTE_USER") or local, query)
        if method not in ("GET", "HEAD"):
            raise Refused(
                "405 Method Not Allowed",
                "Read pages with GET, and send actions with POST.",
                ("Allow", "GET, HEAD, POST"),
            )
        if isinstance(self._access, TokenAccess) and "token" in query.values:
            return self._with_cookie(self._access, environ, query)
        return _static(query.argument) if query.path == "static" else self._page(environ, query)

    def _admitted(self, environ: WSGIEnvironment) -> Query:
        if self._access is None:
            raise Refused("403 Forbidden", _NO_ACCESS)
        granted = self._access(environ)
        if granted is None:
            needs_token = (
                f"Open the address printed by {self.command}, on this machine: it contains the token."
            )
            reason = needs_token if isinstance(self._access, TokenAccess) else _DENIED_TEXT
            raise Refused("403 Forbidden", reason)
        path, _, argument = _path_of(environ).strip("/").partition("/")
        values = fields_in(environ.get("QUERY_STRING", ""), MAX_QUERY_FIELDS)
        root = environ.get("SCRIPT_NAME", "").rstrip("/")
        return Query(path=path, argument=argument, values=values, granted=granted, root=root)

    def _with_cookie(self, access: TokenAccess, environ: WSGIEnvironment, query: Query) -> Response:
        """Store the token in a cookie, and redirect to the same address without it."""
        cookie = access.cookie(environ)
        headers = [("Location", query.again(token=None)), ("Cache-Control", "no-store")]
        if cookie:
            headers.append(("Set-Cookie", cookie))
        return Response(status="303 See Other", headers=tuple(headers))

    # -- pages as HTML documents -----------------------------------------------------------------------------

    def _rendered(self, template: str, query: Query, **values: Any) -> bytes:
        links = [(Link(name, query.link(path)), path == query.path) for path, name in self.navigation.items()]
        places = {name.partition(".")[0]: _static_link(query, name) for name in _STATIC}
        text = render(template, navigation=links, places=places, styles=styles(), **values)
        return text.encode()

    def _message(self, title: str, text: str, query: Query, *, back: str = "") -> bytes:
        """Return a page with a single message; ``back`` is the local path it links to."""
        return self._rendered(
            "message.html", query, title=title, text=text, back=Link("Back", local(back, query))
        )


def local(path: str, query: Query) -> str:
    """Return the address of a path from a form; a path outside the application becomes the first page."""
    return query.root + (path if _LOCAL_PATH.fullmatch(path) else "/")


def _without_content(body: Iterator[bytes] | Streamed) -> Iterable[bytes]:
    """Close a stream for a HEAD request."""
    if isinstance(body, Streamed):
        body.close()
    return ()


def _path_of(environ: Mapping[str, Any]) -> str:
    """Return the path of a request as text; PEP 3333 passes its bytes as Latin-1."""
    return str(environ.get("PATH_INFO", "")).encode("latin-1").decode("utf-8", "replace")


def _form_of(environ: WSGIEnvironment) -> dict[str, str]:
    try:
        size = int(environ.get("CONTENT_LENGTH") or 0)
    except ValueError:
        size = -1
    if not 0 <= size <= MAX_FORM_BYTES:
        raise Refused("413 Content Too Large", "The form is too large.")
    text = environ["wsgi.input"].read(size).decode("utf-8", "replace")
    return fields_in(text, MAX_FORM_FIELDS)


def fields_in(text: str, limit: int) -> dict[str, str]:
    """Return the fields of a query string or a form; if a name is repeated, the last value counts."""
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=limit))
    except ValueError:
        raise Refused("400 Bad Request", f"There are more than {limit:,} fields.") from None


def _static(name: str) -> Response:
    if name not in _STATIC:
        raise Refused("404 Not Found", "There is no such file.")
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


def _static_link(query: Query, name: str) -> str:
    digest = hashlib.blake2s(static_file(name), digest_size=6).hexdigest()
    return query.link("static", name, v=digest)
