"""Requests to an emulated host over plain HTTP, without an SDK."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any

from attrs import frozen

from smartbatch.testing import Emulator, emulator

_BOUNDARY = "boundary"
TIMEOUT = 20.0  # seconds that only a hanging test waits


@frozen
class Reply:
    status: int
    headers: dict[str, str]  # by lower-case name
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def lines(self) -> dict[str, Any]:
        """The lines of results by their custom id."""
        return {line["custom_id"]: line for line in map(json.loads, self.body.splitlines())}


class Visitor:
    """A client of an emulated host.

    Args:
        key: sent in ``Authorization``.
    """

    def __init__(self, emu: Emulator, key: str = "k") -> None:
        self.emu = emu
        self._path = emu.base_url.removeprefix(emu.url)
        self._headers = {"authorization": f"Bearer {key}"}

    def send(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Reply:
        """Send a request to a path below the host's base URL, or to a whole URL of the emulator."""
        path = path.removeprefix(self.emu.url) if path.startswith("http") else self._path + path
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection = HTTPConnection("127.0.0.1", self.emu.port, timeout=TIMEOUT)
        try:
            connection.request(method, path, data, {**self._headers, **(headers or {})})
            reply = connection.getresponse()
            return Reply(
                reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read()
            )
        finally:
            connection.close()

    def get(self, path: str) -> Reply:
        return self.send("GET", path)

    def post(self, path: str, body: Any = None) -> Reply:
        return self.send("POST", path, body)

    def chat(self, prompt: str = "hello", **fields: Any) -> Reply:
        body = {"model": "m", "messages": [{"role": "user", "content": prompt}], **fields}
        return self.post("/chat/completions", body)

    def form(self, path: str, fields: dict[str, str], file: bytes | None = None) -> Reply:
        """Send a form, with ``file`` as the file ``job.jsonl``."""
        parts = [f'name="{name}"\r\n\r\n{value}'.encode() for name, value in fields.items()]
        if file is not None:
            parts.append(b'name="file"; filename="job.jsonl"\r\n\r\n' + file)
        start = f"--{_BOUNDARY}\r\nContent-Disposition: form-data; ".encode()
        body = b"".join(start + part + b"\r\n" for part in parts) + f"--{_BOUNDARY}--\r\n".encode()
        return self.send("POST", path, body, {"content-type": f"multipart/form-data; boundary={_BOUNDARY}"})

    def upload(self, lines: list[dict[str, Any]], purpose: str = "batch") -> str:
        data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        reply = self.form("/files", {"purpose": purpose}, data)
        assert reply.status == 200, reply
        return reply.json["id"]


def request(number: int, **fields: Any) -> dict[str, Any]:
    """Return a request in the form ``{"custom_id", "body"}``."""
    body = {"messages": [{"role": "user", "content": f"prompt {number}"}], **fields}
    return {"custom_id": f"id-{number}", "body": body}


def addressed(number: int, **fields: Any) -> dict[str, Any]:
    """Return a request in OpenAI's form."""
    line = request(number, model="m", **fields)
    return {"method": "POST", "url": "/v1/chat/completions", **line}


@contextmanager
def visiting(dialect: str, **settings: Any) -> Iterator[Visitor]:
    with emulator(dialect=dialect, hang_seconds=0.05, **settings) as emu:
        yield Visitor(emu)
