"""A client of plain sockets, which shows the exact bytes received."""

from __future__ import annotations

import json
import socket
from typing import Any

TIMEOUT = 10.0  # seconds that only a hanging test waits


def chat(prompt: str = "hello", **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": prompt}], **fields}


def request_bytes(
    body: Any = None,
    *,
    method: str = "POST",
    path: str = "/v1/chat/completions",
    headers: str = "",
    key: str | None = "k",
    version: str = "1.1",
    host: str = "localhost",
) -> bytes:
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    authorization = f"Authorization: Bearer {key}\r\n" if key is not None else ""
    head = f"{method} {path} HTTP/{version}\r\nHost: {host}\r\n{authorization}{headers}"
    if "chunked" not in headers:
        head += f"Content-Length: {len(data)}\r\n"
    return head.encode() + b"\r\n" + data


class RawClient:
    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT)
        self._file = self.socket.makefile("rb")

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Read one answer, whose body may be incomplete if the connection ends."""
        status_line = self._file.readline()
        if not status_line:
            raise EOFError("the connection ended before an answer")
        headers = {}
        while (line := self._file.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        return int(status_line.split()[1]), headers, self._body(headers)

    def _body(self, headers: dict[str, str]) -> bytes:
        if "content-length" in headers:
            return self._file.read(int(headers["content-length"]))
        if headers.get("transfer-encoding") != "chunked":
            return self._file.read()
        body = b""
        while size := int(self._file.readline() or b"0", 16):
            body += self._file.read(size)
            self._file.readline()
        self._file.readline()
        return body

    def line(self) -> bytes:
        return self._file.readline()

    def rest(self) -> bytes:
        return self._file.read()

    def ask(self, body: Any = None, **options: Any) -> tuple[int, dict[str, str], Any]:
        self.send(request_bytes(body, **options))
        status, headers, data = self.answer()
        return status, headers, json.loads(data)
