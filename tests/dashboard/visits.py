"""Visits to the dashboard without a server: each is one call of the WSGI application, held to PEP 3333."""

from __future__ import annotations

import gzip
import io
import json
import re
from collections.abc import Iterable
from html import unescape
from typing import Any
from urllib.parse import unquote_to_bytes, urlencode
from wsgiref.validate import validator

from attrs import field, frozen

from smartbatch.dashboard import Dashboard, TokenAccess

TOKEN = "a-token-of-tests"
LOCAL = TokenAccess(token=TOKEN)


@frozen
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        whole = gzip.decompress(self.body) if self.headers.get("Content-Encoding") == "gzip" else self.body
        return whole.decode()

    @property
    def words(self) -> str:
        assert self.status == 200
        plain = re.sub(r"<svg.*?</svg>", " ", self.text, flags=re.DOTALL)
        return " ".join(unescape(re.sub(r"<[^>]+>", " ", plain)).split())

    @property
    def json(self) -> Any:
        return json.loads(self.text)


@frozen
class Visitor:
    """Somebody with a browser.

    Attributes:
        app: the dashboard.
        headers: sent with each request.
        environ: of the server, such as the address of the peer.
    """

    app: Dashboard
    headers: dict[str, str] = field(
        factory=lambda: {"Host": "127.0.0.1:8137", "Authorization": f"Bearer {TOKEN}"}
    )
    environ: dict[str, Any] = field(factory=dict)

    def get(self, path: str = "/", **headers: str) -> Answer:
        return self._ask("GET", path, b"", headers)

    def post(self, path: str, form: dict[str, str], **headers: str) -> Answer:
        sent = {"Origin": "http://127.0.0.1:8137", "Sec-Fetch-Site": "same-origin", **headers}
        return self._ask("POST", path, urlencode(form).encode(), sent)

    def ask(self, method: str, path: str = "/", **headers: str) -> Answer:
        return self._ask(method, path, b"", headers)

    def open(self, path: str, **headers: str) -> tuple[int, Iterable[bytes]]:
        heard: list[str] = []
        environ = self._environ("GET", path, b"", headers)
        body = self.app(environ, lambda status, _headers, _error=None: heard.append(status) or print)  # type: ignore[func-returns-value]
        return int(heard[0][:3]), body

    def _ask(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        heard: list[Any] = []

        def start(status: str, found: list[tuple[str, str]], error: object = None) -> Any:
            heard[:] = [status, found]
            return lambda data: None

        parts = validator(self.app)(self._environ(method, path, body, headers), start)
        try:
            whole = b"".join(parts)
        finally:
            parts.close()  # type: ignore[attr-defined]
        return Answer(int(heard[0][:3]), dict(heard[1]), whole)

    def _environ(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> dict[str, Any]:
        place, _, values = path.partition("?")
        told = {name.replace("-", "_").upper(): value for name, value in {**self.headers, **headers}.items()}
        environ: dict[str, Any] = {
            "REQUEST_METHOD": method,
            "SCRIPT_NAME": "",
            "PATH_INFO": unquote_to_bytes(place).decode("latin-1"),
            "QUERY_STRING": values,
            "CONTENT_LENGTH": str(len(body)),
            "SERVER_NAME": "127.0.0.1",
            "SERVER_PORT": "8137",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "REMOTE_ADDR": "127.0.0.1",
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": "http",
            "wsgi.input": io.BytesIO(body),
            "wsgi.errors": io.StringIO(),
            "wsgi.multithread": True,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
            **{f"HTTP_{name}": value for name, value in told.items()},
            **self.environ,
        }
        return {name: value for name, value in environ.items() if value is not None}
